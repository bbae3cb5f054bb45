"""The virtual engine: a heap of future events and a virtual clock, under the same contract.

The master that runs here is the real one; only time is simulated. With `compute=False` bodies are
not run and replies carry no values, so thousands of workers cost microseconds an event. Given the
`sizes` of messages, what moves takes its time, and so does the master (`kofn.costs`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from typing import Any

import numpy as np

from ..checks import WORKERS, whole
from ..costs import Costs
from ..delays import Change, Delays, Membership, PerUnit
from ..delays.models import check_delays, checked_seconds
from ..errors import BadInput, Closed, UnknownWorker
from ..exchange import GATHER, REST, TASK, WORK, Exchange, ExchangeLayout
from ..model import (
    Dropped,
    Event,
    Failed,
    Joined,
    Leaving,
    Lost,
    Piece,
    Reply,
    Stored,
    Task,
)
from ._links import Links, Sizes, size_of
from ._simulated import NOTHING, SimulatedWorker, Steps, pieces_of
from .base import Capabilities, Engine
from .protocol.worker import format_error, keep

SLICE = 0.01  # seconds between two looks of a worker at the current round


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
        costs: Costs = Costs(),  # noqa: B008 - frozen
        sizes: Sizes | None = None,
    ) -> None:
        workers = whole(workers, "workers", 1, WORKERS)
        if membership is not None and not isinstance(membership, Membership):
            raise BadInput(
                f"membership is a model of kofn.delays, such as Spot(5.0, 5.0) or Script(...); got "
                f"{membership!r}. A model of your own is a subclass of kofn.delays.Membership."
            )
        self.compute = compute
        can = Capabilities(processes=False, can_lose=True, can_join=True, exchange=True)
        self.capabilities = replace(can, virtual_time=True, given_time=True, values=compute)
        self._costs, self._links = costs, None if sizes is None else Links(costs, sizes)
        charged = Costs(0.0, start_up=0.0) if sizes is None else costs
        self._start_up, self._pause = charged.start_up, charged.per_event
        self._number = charged.per_number
        self._delays = PerUnit() if delays is None else check_delays(delays)
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._cancelled = -1  # the highest cancelled round
        self._workers = {w: SimulatedWorker(w) for w in range(workers)}
        self._order: tuple[int, ...] | None = None  # of them; None: to be sorted when asked for
        self._ids, self._numbers = count(workers), count()
        # What happens when: (time, number, None, make), or the next step of a worker's task:
        # (time, number, worker, token). Plain tuples: there are two or more of them a task.
        self._heap: list[tuple[float, int, SimulatedWorker | None, Any]] = []
        self._parked: dict[int, SimulatedWorker] = {}  # those that may be
        self._operands: dict[int, Any] = {}
        self._closed = False
        # Membership draws from streams of its own: how many tasks ran must not move it.
        stream, self._victims = (np.random.default_rng((seed, i)) for i in (1, 2))
        self._named: deque[int] = deque()  # drawn for a notice, and not lost yet
        self._changes = iter(()) if membership is None else membership.changes(stream)
        self._next_change()

    @property
    def workers(self) -> tuple[int, ...]:
        if self._order is None:
            self._order = tuple(sorted(self._workers))
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
        if self._links is not None:
            self._now += self._pause
            home.ready = max(home.ready, self._links.put(size_of(value), self._now))
            self._fly(home, event, home.ready + self._costs.latency)
        else:  # whoever is lost meanwhile says nothing more
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
        if self._links is not None:
            self._links.broadcast(round, value, len(self._workers), self._now)

    def submit(self, task: Task) -> None:
        home = self._home(task.worker)
        there = 0.0
        if self._links is not None:
            self._now += self._pause
            there = max(home.ready, self._links.task(task.round, self._now))
        home.queue.append((task, home.kept, there))
        if len(home.queue) == 1:
            self._begin(home)

    def cancel(self, round: int) -> None:
        self._check_open()
        if round <= self._cancelled:
            return
        self._cancelled = round
        for old in [r for r in self._operands if r <= round]:
            del self._operands[old]
        soon = self._now + SLICE
        if self._links is not None:
            self._links.cancel(round)
            soon += self._costs.latency
        for home in self._workers.values():
            # A worker busy with stale work looks up at the end of its slice.
            if home.queue and home.due > soon and home.queue[0][0].round <= round:
                self._step_at(soon, home)

    def events(self, timeout: float) -> list[Event]:
        self._check_open()
        limit = self._now + max(0.0, timeout)
        events: list[Event] = []
        heap = self._heap
        while heap and heap[0][0] <= (self._now if events else limit):
            time, _, home, what = heapq.heappop(heap)
            if time > self._now:
                self._now = time
            event: Event | None = None
            if home is None:
                event = what()
            elif what == home.token:
                event = self._step(home)
            if event is not None:
                events.append(event)
        if not events and limit != float("inf"):
            self._now = max(self._now, limit)
        self._now += self._pause * len(events)
        if self._number and (links := self._links) is not None:
            self._now += self._number * sum(map(links.numbers, events))
        return events

    def spend(self, numbers: Callable[[], float]) -> None:
        self._now += self._number * numbers() if self._number else 0.0

    def lose(self, worker: int) -> None:
        self._home(worker)
        self._at(self._now, lambda: self._leave(worker))

    def join(self) -> int:
        self._check_open()
        worker = next(self._ids)
        self._at(self._now + self._start_up, lambda: self._enter(worker))
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
        self._order = None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this engine is closed; connect again to get a new one.")

    def _home(self, worker: int) -> SimulatedWorker:
        self._check_open()
        home = self._workers.get(worker)
        if home is None:
            raise UnknownWorker(worker, self.workers)
        return home

    def _at(self, time: float, make: Callable[[], Event | None]) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), None, make))

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
        elif worker == -1 and self._workers:
            order = self.workers
            if deadline is not None:  # nobody is told twice where another can be
                order = tuple(w for w in order if w not in self._named) or order
            worker = order[int(self._victims.integers(len(order)))]
            if deadline is not None:
                self._named.append(worker)
        return self._leave(worker) if deadline is None else self._notice(worker, deadline)

    def _notice(self, worker: int, deadline: float, reason: str = "") -> Event | None:
        return Leaving(self._now, worker, deadline, reason) if worker in self._workers else None

    def _enter(self, worker: int) -> Event:
        self._workers[worker] = SimulatedWorker(worker)
        self._order = None
        return Joined(self._now, worker)

    def _leave(self, worker: int) -> Event | None:
        home = self._workers.pop(worker, None)
        if home is None:
            return None
        home.token += 1
        self._parked.pop(worker, None)
        self._order = None
        ended = sorted({*home.flying, *(task.id for task, _, _ in home.queue)})
        return Lost(self._now, worker, tuple(ended))

    # Tasks.

    def _begin(self, home: SimulatedWorker) -> None:
        """Start the first task of the queue."""
        task, kept, there = home.queue[0]
        home.rows, home.reads, home.pace = 0, (0.0, 0.0), (None, None)
        due = self._now
        if task.round > self._cancelled:
            start = self._exchanging if task.what == TASK else self._timed
            due = start(task, kept, home, max(self._now, there))
        self._step_at(due, home)

    def _step_at(self, time: float, home: SimulatedWorker) -> None:
        home.due = time
        home.token += 1
        if time < float("inf"):
            heapq.heappush(self._heap, (time, next(self._numbers), home, home.token))

    def _step(self, home: SimulatedWorker) -> Event | None:
        task = home.queue[0][0]
        home.due, home.parked = float("inf"), False
        event: Event | None = None
        due = None
        if task.round <= self._cancelled:
            read = home.undelivered(self._now)
            event = Dropped(self._now, home.id, task.round, task.id, read, *home.pace)
        else:
            if home.steps is None:
                piece, seconds = home.piece, home.seconds
            else:
                piece, seconds, due = next(home.steps)
            if isinstance(piece, Exception):
                event = Failed(self._now, home.id, task.round, task.id, *format_error(piece))
            else:
                what, value, read = piece
                home.rows += read
                if due is None or what is not None or value is not None:
                    here = self._now, home.id, task.round, task.id
                    event = Reply(*here, what, value, home.rows, seconds, due is None)
                    home.rows = 0
        if event is not None and self._links is not None:
            arrives = self._links.reply(event, self._now)
            self._fly(home, event, arrives, None if due is not None else task.id)
            event = None
        if due is not None:
            self._step_at(due, home)
            return event
        home.queue.popleft()
        if home.queue:
            self._begin(home)
        return event

    def _fly(self, home: SimulatedWorker, event: Any, time: float, ends: int | None = None) -> None:
        """Let an event reach the master at this time, unless its worker is lost before."""

        def arrive() -> Any:
            if self._workers.get(home.id) is not home:
                return None
            home.flying.discard(-1 if ends is None else ends)
            return event._replace(time=self._now)

        if ends is not None:
            home.flying.add(ends)
        self._at(time, arrive)

    def _timed(
        self, task: Task, kept: dict[str, Any], home: SimulatedWorker, start: float
    ) -> float:
        """Run a task from `start` on; its pieces are due as rows are read. When is the first?"""
        pieces = pieces_of(task, kept, self._operands.get(task.round), self.compute)
        wait, work = self._delays.timing(self._rng, task.worker, task.round, task.cost)
        seconds = checked_seconds(self._delays, wait + work)
        reads = [0 if isinstance(piece, Exception) else piece.read for piece in pieces]
        if (rows := sum(reads)) > 0:
            home.pace = wait, work / rows
        if len(pieces) == 1:
            home.steps, home.piece, home.seconds = None, pieces[0], seconds
            home.reads = start + wait, start + wait + work
            return start + wait + work
        # Where no piece says how many rows it read, at even steps.
        reads = reads if rows else [1] * len(pieces)
        step = work / sum(reads)
        spent = [step * read for read in reads]
        dues = [*accumulate(spent, initial=start + wait)][1:]
        spent[0] += wait
        home.steps = zip(pieces, spent, [*dues[1:], None], strict=True)
        return dues[0]

    def _exchanging(
        self, task: Task, kept: dict[str, Any], home: SimulatedWorker, start: float
    ) -> float:
        """Run a task that exchanges with others up to its next piece, again and again.

        What a worker has written by then others see, so a loss falls between two pieces.
        """
        home.steps = self._exchanged(task, kept, home)
        return start

    def _exchanged(self, task: Task, kept: dict[str, Any], home: SimulatedWorker) -> Steps:
        worker, round = task.worker, task.round
        operand, body = self._operands.get(round), None
        while True:
            try:
                body = body or iter(task.body(kept, operand, *task.args))
                what, value, read = next(body)
            except StopIteration:
                yield NOTHING, 0.0, None
                return
            except Exception as error:
                yield error, 0.0, None
                return
            due = self._now
            kind = what[0] if value is None else None
            if kind == REST:
                home.parked, due = True, max(what[1], due)
                self._parked[worker] = home
            elif kind == WORK:
                cost = what[2] * task.cost
                seconds = self._delays.seconds(self._rng, worker, round + what[1], cost)
                checked_seconds(self._delays, seconds)
                due += seconds
            elif kind == GATHER:
                due += self._costs.ring(what[1], what[2])
            yield Piece(None if kind else what, value, read), 0.0, due

    def _wake(self) -> None:
        """Let those go on that wait for somebody to write something."""
        resting, self._parked = self._parked, {}
        for worker in sorted(resting):
            if (home := resting[worker]).parked:
                home.parked = False
                self._step_at(self._now, home)
