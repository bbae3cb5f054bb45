"""From the event log to what each worker did with its time. Pure: records in, frozen lanes out.

A task starts when it was sent, or when its worker's task before it ended, if that is later:
workers do their tasks in the order sent. It ends at its `dropped` or `failed`, else at its last
reply, else with its worker's loss, else at the end of the log.

A reply is in time if it stands before its round's end in the log. A round ends at its `done`; one
that raised has none, and ends where the next begins.

The log does not say which reply was a task's last. A task that streams slices counts as finished
once its replies carry the rows it was sent for, or once its worker has answered a later task, or
if its replies count no rows at all.
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

    state: used (all its replies in time), late (finished, the last reply not in time), wasted (not
    finished, and no longer wanted), lost (cut off by its worker's loss), failed (it raised), open
    (not finished, its round still running where the log ends).

    Slices that came before `used_until` were in time whatever became of the rest; it is `start` if
    there were none and `end` if all were.
    """

    start: float
    end: float
    round: int
    task: int
    state: State
    used_until: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A worker's life. `joined` is None if it was there from the start, `lost` if to the end.

    Spans are in order and do not overlap; none ends after the loss.
    """

    worker: int
    spans: tuple[Span, ...]
    joined: float | None = None
    lost: float | None = None


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
    good: int = 0  # rows that came in time
    rows: int = 0  # rows that came at all
    in_time: float | None = None  # of the last reply in time
    replied: float | None = None  # of the last reply
    late: bool = False
    end: Record | None = None  # its dropped or failed

    @property
    def answered(self) -> bool:
        return self.replied is not None or self.end is not None


@dataclass(slots=True)
class _Round:
    start: float
    end: float | None = None
    done: bool = False


@dataclass(slots=True)
class _Seen:
    """What one pass over the log has gathered."""

    tasks: dict[int, _Task] = field(default_factory=dict)
    rounds: dict[int, _Round] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    joined: dict[int, float] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)
    running: _Round | None = None

    def ended(self, round: int) -> bool:
        known = self.rounds.get(round)
        return known is not None and known.end is not None


def lanes(log: Iterable[Record]) -> Lanes:
    """Return each worker's lane, and the rounds. O(records).

    Replies to tasks whose send has already fallen off a full log are left out.
    """
    records = list(log)
    if not records:
        raise BadInput("the log is empty: nothing has run yet. Multiply first, then draw.")
    seen = _Seen()
    for record in records:
        _take(seen, record)
    # By time, not by place: a send is stamped later than what came in the same batch.
    start = min((r.time for r in records if r.kind != "stored"), default=records[0].time)
    end = max(r.time for r in records)
    mine: dict[int, list[_Task]] = {worker: [] for worker in seen.workers}
    for task in seen.tasks.values():
        mine[task.sent.worker].append(task)
    return Lanes(
        tuple(
            Lane(w, _spans(mine[w], seen, w, end), seen.joined.get(w), seen.lost.get(w))
            for w in sorted(mine)
        ),
        tuple(
            RoundSpan(id, r.start, end if r.end is None else r.end, r.done)
            for id, r in seen.rounds.items()
        ),
        start,
        end,
    )


def _take(seen: _Seen, record: Record) -> None:
    time, kind, round = record.time, record.kind, record.round
    if record.worker >= 0:
        seen.workers.add(record.worker)
    if kind == "send":
        seen.tasks[record.task] = _Task(record)
    elif kind == "reply":
        task = seen.tasks.get(record.task)
        if task is not None:
            task.replied = time
            task.rows += record.rows
            if seen.ended(round):
                task.late = True
            else:
                task.in_time = time
                task.good += record.rows
    elif kind in ("dropped", "failed"):
        task = seen.tasks.get(record.task)
        if task is not None:
            task.end = record
    elif kind == "lost":
        seen.lost[record.worker] = time
    elif kind == "joined":
        seen.joined[record.worker] = time
    elif kind == "round":
        if seen.running is not None:
            seen.running.end = time  # it raised: no `done` was written
        seen.running = seen.rounds[round] = _Round(time)
    elif kind == "done":
        ran = seen.rounds.setdefault(round, _Round(time))
        ran.end, ran.done = time, True
        seen.running = None


def _spans(tasks: list[_Task], seen: _Seen, worker: int, log_end: float) -> tuple[Span, ...]:
    """The spans of one worker's tasks, given in the order sent."""
    lost = seen.lost.get(worker)
    last = max((i for i, task in enumerate(tasks) if task.answered), default=-1)
    spans: list[Span] = []
    free = float("-inf")
    for i, task in enumerate(tasks):
        sent = task.sent
        state, end = _fate(task, i < last, seen.ended(sent.round), lost, log_end)
        start = max(sent.time, free)
        end = max(start, end)
        if lost is not None:
            # A send may be stamped after a loss that stood further back in the same batch.
            end = min(end, lost)
            start = min(start, end)
        until = start if task.in_time is None else min(max(task.in_time, start), end)
        spans.append(
            Span(start, end, sent.round, sent.task, state, end if state == "used" else until)
        )
        free = end
    return tuple(spans)


def _fate(
    task: _Task, overtaken: bool, round_ended: bool, lost: float | None, log_end: float
) -> tuple[State, float]:
    """What became of a task, and when. `overtaken`: its worker has answered a later one."""
    asked = task.sent.rows
    # All rows were in time: a closing word after the round's end takes nothing away.
    whole = asked > 0 and task.good >= asked
    if task.end is not None:
        if task.end.kind == "failed":
            return "failed", task.end.time
        return ("used" if whole else "wasted"), task.end.time
    if task.replied is not None and (overtaken or task.rows >= asked or task.rows == 0):
        return ("late" if task.late and not whole else "used"), task.replied
    if lost is not None:
        return "lost", lost
    return ("wasted" if round_ended else "open"), log_end
