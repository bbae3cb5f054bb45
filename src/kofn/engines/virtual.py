"""The virtual engine: a heap of future events and a virtual clock, under the same contract.

The master that runs here is the real one; only time is simulated. With `compute=False` bodies are
not run and replies carry no values, so thousands of workers cost microseconds an event.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, count
from typing import Any

import numpy as np

from ..checks import whole
from ..delays import Change, Delays, Membership, PerUnit
from ..delays.models import check_delays, checked_seconds
from ..errors import BadInput, Closed, UnknownWorker
from ..exchange import GATHER, REST, TASK, WORK, Exchange, ExchangeLayout, NetworkCost
from ..model import (
    Dropped,
    Event,
    Failed,
    Joined,
    Last,
    Leaving,
    Lost,
    Outline,
    Piece,
    Reply,
    Stored,
    Task,
)
from .base import Capabilities, Engine
from .protocol.worker import format_error, keep

SLICE = 0.01  # seconds between two looks of a worker at the current round

# Of a task: what there is now, the seconds it took, and when it goes on; None when it has ended.
Steps = Iterator[tuple[Piece | Exception, float, float | None]]
_NOTHING = Piece(None, None)


@dataclass
class _Worker:
    kept: dict[str, Any] = field(default_factory=dict)
    queue: deque[tuple[Task, Steps]] = field(default_factory=deque)
    rows: int = 0  # that the first of them has read since its last reply
    due: float = float("inf")  # when it goes on
    token: int = 0  # steps scheduled under an older token are void
    parked: bool = False  # until somebody writes something

    def change(self) -> dict[str, Any]:
        """Return what is kept, to be changed: tasks that wait see it as it was."""
        if self.queue:
            self.kept = dict(self.kept)
        return self.kept


class VirtualEngine(Engine):
    """Simulated workers. The same seed and the same calls give the same events, bit for bit."""

    name = "virtual"

    def __init__(
        self,
        workers: int = 4,
        *,
        delays: Delays | None = None,
        membership: Membership | None = None,
        compute: bool = True,
        seed: int = 0,
        network: NetworkCost = NetworkCost(),  # noqa: B008 - frozen
    ) -> None:
        workers = whole(workers, "workers", 1)
        if membership is not None and not isinstance(membership, Membership):
            raise BadInput(
                f"membership is a model of kofn.delays, such as Spot(5.0, 5.0) or Script(...); got "
                f"{membership!r}. A model of your own is a subclass of kofn.delays.Membership."
            )
        self.compute = compute
        can = Capabilities(processes=False, can_lose=True, can_join=True, exchange=True)
        self.capabilities = replace(can, virtual_time=True, given_time=True, values=compute)
        self._network = network
        self._delays = PerUnit() if delays is None else check_delays(delays)
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._cancelled = -1  # the highest cancelled round
        self._workers = {w: _Worker() for w in range(workers)}
        self._order = tuple(self._workers)
        self._ids, self._numbers = count(workers), count()
        self._heap: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._operands: dict[int, Any] = {}
        self._closed = False
        # Membership draws from streams of its own: how many tasks ran must not move it.
        stream, self._victims = (np.random.default_rng((seed, i)) for i in (1, 2))
        self._named: deque[int] = deque()  # drawn for a notice, and not lost yet
        self._changes = iter(()) if membership is None else membership.changes(stream)
        self._next_change()

    @property
    def workers(self) -> tuple[int, ...]:
        return self._order

    def now(self) -> float:
        return self._now

    def put(self, worker: int, key: str, value: Any) -> None:
        home = self._home(worker)
        event: Event = Stored(self._now, worker, key)
        if self.compute or isinstance(value, Exchange):
            try:
                keep(home.change(), key, value)
            except Exception as error:
                event = Failed(self._now, worker, -1, None, *format_error(error), key)
        # Whoever is lost meanwhile says nothing more.
        self._at(self._now, lambda: event if worker in self._workers else None)

    def forget(self, key: str) -> None:
        self._check_open()
        for home in self._workers.values():
            home.change().pop(key, None)

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        self._check_open()
        return Exchange(bytearray(layout.size), layout, self.now, self._wake)

    def broadcast(self, round: int, value: Any) -> None:
        self._check_open()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        self._operands[round] = value if self.compute else None

    def submit(self, task: Task) -> None:
        home = self._home(task.worker)
        steps = self._exchanging if task.what == TASK else self._timed
        home.queue.append((task, steps(task, home.kept, home)))
        if len(home.queue) == 1:
            self._begin(task.worker, home)

    def cancel(self, round: int) -> None:
        self._check_open()
        if round <= self._cancelled:
            return
        self._cancelled = round
        for old in [r for r in self._operands if r <= round]:
            del self._operands[old]
        soon = self._now + SLICE
        for worker, home in self._workers.items():
            # A worker busy with stale work looks up at the end of its slice.
            if home.queue and home.queue[0][0].round <= round and home.due > soon:
                self._step_at(soon, worker, home)

    def events(self, timeout: float) -> list[Event]:
        self._check_open()
        limit = self._now + max(0.0, timeout)
        events: list[Event] = []
        while self._heap and self._heap[0][0] <= (self._now if events else limit):
            time, _, make = heapq.heappop(self._heap)
            self._now = max(self._now, time)
            event = make()
            if event is not None:
                events.append(event)
        if not events and limit != float("inf"):
            self._now = max(self._now, limit)
        return events

    def lose(self, worker: int) -> None:
        self._home(worker)
        self._at(self._now, lambda: self._leave(worker))

    def join(self) -> int:
        self._check_open()
        worker = next(self._ids)
        self._at(self._now, lambda: self._enter(worker))
        return worker

    def announce(self, worker: int, seconds: float, reason: str = "") -> None:
        self._home(worker)
        deadline = self._now + seconds
        self._at(self._now, lambda: self._notice(worker, deadline, reason))

    def close(self) -> None:
        self._closed = True
        self._heap.clear()
        self._workers.clear()
        self._operands.clear()
        self._order = ()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed; connect again to get a new one.")

    def _home(self, worker: int) -> _Worker:
        self._check_open()
        home = self._workers.get(worker)
        if home is None:
            raise UnknownWorker(worker, self._order)
        return home

    def _at(self, time: float, make: Callable[[], Event | None]) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), make))

    # Membership.

    def _next_change(self) -> None:
        change = next(self._changes, None)
        if change is not None:
            time, worker, deadline = Change(*change)
            self._at(time, partial(self._change, worker, deadline))

    def _change(self, worker: int | None, deadline: float | None) -> Event | None:
        self._next_change()
        if worker is None:
            return self._enter(next(self._ids))
        if worker == -1 and deadline is None and self._named:
            worker = self._named.popleft()
        elif worker == -1 and self._order:
            order = self._order
            if deadline is not None:  # nobody is told twice where another can be
                order = tuple(w for w in order if w not in self._named) or order
            worker = int(self._victims.choice(order))
            if deadline is not None:
                self._named.append(worker)
        return self._leave(worker) if deadline is None else self._notice(worker, deadline)

    def _notice(self, worker: int, deadline: float, reason: str = "") -> Event | None:
        return Leaving(self._now, worker, deadline, reason) if worker in self._workers else None

    def _enter(self, worker: int) -> Event:
        self._workers[worker] = _Worker()
        self._order = tuple(sorted(self._workers))
        return Joined(self._now, worker)

    def _leave(self, worker: int) -> Event | None:
        home = self._workers.pop(worker, None)
        if home is None:
            return None
        home.token += 1
        self._order = tuple(self._workers)
        return Lost(self._now, worker, tuple(sorted(task.id for task, _ in home.queue)))

    # Tasks.

    def _begin(self, worker: int, home: _Worker) -> None:
        """Start the first task of the queue."""
        task, steps = home.queue[0]
        home.rows = 0
        due = None if task.round <= self._cancelled else next(steps)[2]
        self._step_at(self._now if due is None else due, worker, home)

    def _step_at(self, time: float, worker: int, home: _Worker) -> None:
        home.due = time
        home.token += 1
        if time < float("inf"):
            self._at(time, partial(self._step, worker, home, home.token))

    def _step(self, worker: int, home: _Worker, token: int) -> Event | None:
        if token != home.token:
            return None
        task, steps = home.queue[0]
        home.due, home.parked = float("inf"), False
        here = self._now, worker, task.round, task.id
        event: Event | None = None
        due = None
        if task.round <= self._cancelled:
            event = Dropped(*here)
        else:
            piece, seconds, due = next(steps)
            if isinstance(piece, Exception):
                event = Failed(*here, *format_error(piece))
            else:
                what, value, read = piece
                home.rows += read
                if due is None or what is not None or value is not None:
                    event = Reply(*here, what, value, home.rows, seconds, due is None)
                    home.rows = 0
        if due is not None:
            self._step_at(due, worker, home)
            return event
        home.queue.popleft()
        if home.queue:
            self._begin(worker, home)
        return event

    def _timed(self, task: Task, kept: dict[str, Any], _: _Worker) -> Steps:
        """Run a task at once; its pieces are due as their rows are read."""
        pieces = self._pieces(task, kept)
        wait, work = self._delays.timing(self._rng, task.worker, task.round, task.cost)
        checked_seconds(self._delays, wait + work)
        # Where no piece says how many rows it read, at even steps.
        reads = [0 if isinstance(piece, Exception) else piece.read for piece in pieces]
        reads = reads if sum(reads) else [1] * len(pieces)
        step = work / sum(reads)
        spent = [step * read for read in reads]
        dues = [*accumulate(spent, initial=self._now + wait)][1:]
        spent[0] += wait
        yield _NOTHING, 0.0, dues[0]
        yield from zip(pieces, spent, [*dues[1:], None], strict=True)

    def _pieces(self, task: Task, kept: dict[str, Any]) -> list[Piece | Exception]:
        if not self.compute:
            if type(task.what) is Outline:
                return [Piece(what, None, read) for what, read in task.what]
            return [Piece(task.what, None, int(task.cost))]
        pieces: list[Piece | Exception] = []
        try:
            for piece in task.body(kept, self._operands.get(task.round), *task.args):
                pieces.append(Piece(*piece))
                if type(piece) is Last:
                    break
        except Exception as error:
            pieces.append(error)
        return pieces or [_NOTHING]

    def _exchanging(self, task: Task, kept: dict[str, Any], home: _Worker) -> Steps:
        """Run a task that exchanges with others up to its next piece, again and again.

        What a worker has written by then others see, so a loss falls between two pieces.
        """
        worker, round = task.worker, task.round
        yield _NOTHING, 0.0, self._now
        operand, body = self._operands.get(round), None
        while True:
            try:
                body = body or iter(task.body(kept, operand, *task.args))
                what, value, read = next(body)
            except StopIteration:
                yield _NOTHING, 0.0, None
                return
            except Exception as error:
                yield error, 0.0, None
                return
            due = self._now
            kind = what[0] if value is None else None
            if kind == REST:
                home.parked, due = True, max(what[1], due)
            elif kind == WORK:
                cost = what[2] * task.cost
                seconds = self._delays.seconds(self._rng, worker, round + what[1], cost)
                checked_seconds(self._delays, seconds)
                due += seconds
            elif kind == GATHER:
                due += self._network.seconds(what[1], what[2])
            yield Piece(None if kind else what, value, read), 0.0, due

    def _wake(self) -> None:
        """Let those go on that wait for somebody to write something."""
        for worker, home in self._workers.items():
            if home.parked:
                home.parked = False
                self._step_at(self._now, worker, home)
