"""From the event log to what each worker did with its time. Pure: records in, frozen lanes out.

A task starts when it was sent, or when its worker's task before it ended, if that is later:
workers do their tasks in the order sent. It ends at its `reply`, `dropped` or `failed`, else with
its worker's loss; else it is open. One that had delivered all its rows in time ends with the last
of them.

A round ends at its `done` or `raised`. A piece or reply is in time if it stands before that in the
log, whatever its stamp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..errors import BadInput
from ..model import Record

State = Literal["used", "late", "wasted", "lost", "failed", "open"]


@dataclass(frozen=True, slots=True)
class Span:
    """One task on its worker; times are the engine's clock.

    state: used (its reply, or all rows asked of it, in time), late (it replied after its round's
    end), wasted (dropped), lost (cut off by its worker's loss), failed (it raised), open (it has
    not ended where the log does).

    Pieces that came before `used_until` were in time whatever became of the rest; it is `start` if
    there were none and `end` if the task is used.
    """

    start: float
    end: float
    round: int
    task: int
    state: State
    used_until: float
    asked: int = field(default=0, compare=False)  # rows of the task
    came: int = field(default=0, compare=False)  # of them, in time
    first: tuple[float, int] | None = field(default=None, compare=False)  # when, and its rows
    read: int = field(default=0, compare=False)  # rows in all, delivered or not, in time or not
    read_until: float = field(default=0.0, compare=False)
    wait: float | None = field(default=None, compare=False)  # seconds before it read any
    row: float | None = field(default=None, compare=False)  # seconds for each, if it was stopped


@dataclass(frozen=True, slots=True)
class Lane:
    """A worker's life. `joined` is None if it was there from the start, `lost` if to the end.

    Spans are in order and do not overlap; none ends after the loss.
    """

    worker: int
    spans: tuple[Span, ...]
    joined: float | None = None
    lost: float | None = None
    leaving: tuple[float, ...] = ()  # when it was announced that it leaves
    staying: tuple[float, ...] = ()  # and that it stays after all


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """When a round ran. `done` is False if it raised, or still ran where the log ends."""

    id: int
    start: float
    end: float
    done: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """A whole log: a lane for each worker (by id), its rounds (in order), its first and last time.

    Storing shares before the first round is not part of it.
    """

    lanes: tuple[Lane, ...]
    rounds: tuple[RoundSpan, ...]
    start: float
    end: float


@dataclass(slots=True)
class _Task:
    sent: Record
    rows: int = 0  # that came in time
    in_time: float | None = None  # of the last piece or reply in time
    first: tuple[float, int] | None = None  # the first that had rows, and how many
    late: bool = False  # its last piece or reply was not in time
    read: int = 0  # rows, whenever they came, and those of a stopped task that did not
    read_until: float = 0.0
    end: Record | None = None  # its reply, dropped or failed


class Follower:
    """Follows a log, record by record, and returns how each task ended.

    It keeps the tasks that are open, and which rounds have ended; of workers only when each was
    lost and when it was free. Pieces and ends of tasks whose send it has not seen are ignored.
    """

    def __init__(self) -> None:
        self.ended: set[int] = set()  # rounds; those without open tasks may be taken out
        self.lost: dict[int, float] = {}
        self._open: dict[int, dict[int, _Task]] = {}  # worker -> task, in the order sent
        self._free: dict[int, float] = {}

    def take(self, record: Record) -> tuple[tuple[int, Span], ...]:
        """Take a record in; return the spans that it ends, each with its worker."""
        kind, worker = record.kind, record.worker
        if kind == "send":
            self._open.setdefault(worker, {})[record.task] = _Task(record)
            # A send may be stamped after a loss that stood further back in the same batch.
            return self._cut_off(worker) if worker in self.lost else ()
        if kind in ("piece", "reply", "dropped", "failed"):
            task = self._open.get(worker, {}).get(record.task)
            if task is None:
                return ()
            _add_record(task, record, late=record.round in self.ended)
            if task.end is None:
                return ()
            del self._open[worker][record.task]
            return ((worker, self._span(task, record.time)),)
        if kind == "lost":
            self.lost[worker] = record.time
            return self._cut_off(worker)
        if kind in ("done", "raised"):
            self.ended.add(record.round)
        return ()

    def forget(self, round: int) -> None:
        """Say nothing more of tasks of this round."""
        for tasks in self._open.values():
            for id in [id for id, task in tasks.items() if task.sent.round == round]:
                del tasks[id]

    def busy(self, worker: int) -> bool:
        """Whether a worker has tasks that have not ended."""
        return bool(self._open.get(worker))

    def still_open(self, now: float) -> list[tuple[int, Span]]:
        """The tasks that have not ended, as spans up to now."""
        free = dict(self._free)
        spans = []
        for worker, tasks in self._open.items():
            spans += [(worker, self._span(task, now)) for task in tasks.values()]
        self._free = free
        return spans

    def _cut_off(self, worker: int) -> tuple[tuple[int, Span], ...]:
        tasks = self._open.pop(worker, {}).values()
        return tuple((worker, self._span(task, self.lost[worker])) for task in tasks)

    def _span(self, task: _Task, now: float) -> Span:
        sent = task.sent
        lost = self.lost.get(sent.worker)
        state, end = _fate(task, lost, now)
        start = max(sent.time, self._free.get(sent.worker, float("-inf")))
        end = max(start, end)
        if lost is not None:
            end = min(end, lost)
            start = min(start, end)
        until = start if task.in_time is None else min(max(task.in_time, start), end)
        until = end if state == "used" else until
        self._free[sent.worker] = end
        numbers = dict(task.end.numbers) if task.end is not None else {}
        read_until = min(max(task.read_until, start), end)
        rows = sent.rows, task.rows, task.first, task.read, read_until
        pace = numbers.get("wait"), numbers.get("row")
        return Span(start, end, sent.round, sent.task, state, until, *rows, *pace)


@dataclass(slots=True)
class _Gathered:
    """What one pass over the log has gathered, besides the spans."""

    end: float  # of the log
    rounds: dict[int, RoundSpan] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    joined: dict[int, float] = field(default_factory=dict)
    notices: dict[tuple[str, int], list[float]] = field(default_factory=dict)  # kind, worker


def lanes(log: Iterable[Record]) -> Lanes:
    """Return each worker's lane, and the rounds. O(records).

    Pieces and ends of tasks whose send has already fallen off a full log are left out.
    """
    records = list(log)
    if not records:
        raise BadInput("the log is empty: nothing has run yet. Multiply first, then draw.")
    seen, follower = _Gathered(max(r.time for r in records)), Follower()
    spans: list[tuple[int, Span]] = []
    for record in records:
        _take(seen, record)
        spans += follower.take(record)
    spans += follower.still_open(seen.end)
    # By time, not by place: a send is stamped later than what came in the same batch.
    start = min((r.time for r in records if r.kind != "stored"), default=records[0].time)
    mine: dict[int, list[Span]] = {worker: [] for worker in sorted(seen.workers)}
    for worker, span in spans:
        mine[worker].append(span)
    workers = (
        Lane(
            w,
            tuple(own),
            seen.joined.get(w),
            follower.lost.get(w),
            tuple(seen.notices.get(("leaving", w), ())),
            tuple(seen.notices.get(("staying", w), ())),
        )
        for w, own in mine.items()
    )
    return Lanes(tuple(workers), tuple(seen.rounds.values()), start, seen.end)


def _take(seen: _Gathered, record: Record) -> None:
    time, kind, round = record.time, record.kind, record.round
    if record.worker >= 0 and kind not in ("ordered", "refused"):  # it may never come
        seen.workers.add(record.worker)
    if kind in ("leaving", "staying"):
        seen.notices.setdefault((kind, record.worker), []).append(time)
    elif kind == "joined":
        seen.joined[record.worker] = time
    elif kind == "round":
        seen.rounds[round] = RoundSpan(round, time, seen.end, False)
    elif kind in ("done", "raised"):
        start = seen.rounds[round].start if round in seen.rounds else time
        seen.rounds[round] = RoundSpan(round, start, time, kind == "done")


def _add_record(task: _Task, record: Record, late: bool) -> None:
    if record.rows:
        task.read += record.rows
        task.read_until = record.time
        if task.first is None and record.kind != "dropped":
            task.first = (record.time, record.rows)
    if record.kind in ("piece", "reply"):
        task.late = late
        if not late:
            task.in_time = record.time
            task.rows += record.rows
    if record.kind != "piece":
        task.end = record


def _fate(task: _Task, lost: float | None, now: float) -> tuple[State, float]:
    """How a task ended, and when."""
    if task.end is None:
        return ("open", now) if lost is None else ("lost", lost)
    time, kind = task.end.time, task.end.kind
    if kind == "failed":
        return "failed", time
    # A stream's end is a word of its own, read perhaps long after the piece that ended the round.
    if task.in_time is not None and 0 < task.sent.rows <= task.rows:
        return "used", task.in_time
    if kind == "dropped":
        return "wasted", time
    return ("late" if task.late else "used"), time
