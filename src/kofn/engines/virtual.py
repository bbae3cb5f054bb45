"""The virtual engine: a heap of future events and a virtual clock, under the same contract.

The master that runs here is the real one; only time is invented. With `compute=False` bodies are
not run and replies carry no values, so thousands of workers cost microseconds an event.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from ..delays import Change, Delays, Membership, PerUnit
from ..delays.models import check_delays, checked_seconds
from ..errors import BadInput, Closed, UnknownWorker
from ..model import Dropped, Event, Failed, Joined, Last, Lost, Outline, Piece, Reply, Stored, Task
from .base import Capabilities, Engine
from .exchange import GATHER, REST, TASK, WORK, Exchange, Link, Shape
from .protocol.worker import format_error, keep

SLICE = 0.01  # seconds between two looks of a worker at the current round


@dataclass
class _Worker:
    queue: deque[Task] = field(default_factory=deque)
    kept: dict[str, Any] = field(default_factory=dict)
    seen: deque[dict[str, Any]] = field(default_factory=deque)  # `kept` as each queued task sees it
    token: int = 0  # steps scheduled under an older token are void
    # when each piece is due, the worker's seconds over it, the piece
    rest: deque[tuple[float, float, Piece | Failed]] = field(default_factory=deque)
    body: Iterator[Piece] | None = None  # of a task that exchanges with others, step by step
    read: int = 0  # rows since its last reply
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
        link: Link = Link(),  # noqa: B008 - frozen
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise BadInput(f"workers must be a whole number >= 1; got {workers!r}.")
        if membership is not None and not isinstance(membership, Membership):
            raise BadInput(
                f"membership is a model of kofn.delays, such as Spot(5.0, 5.0) or Script(...); got "
                f"{membership!r}. A model of your own is a subclass of kofn.delays.Membership."
            )
        self.compute = compute
        self.capabilities = Capabilities(
            processes=False,
            can_lose=True,
            can_join=True,
            virtual_time=True,
            given_time=True,
            values=compute,
            exchange=True,
        )
        self._link = link
        self._delays = PerUnit() if delays is None else check_delays(delays)
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._floor = -1  # highest cancelled round
        self._workers = {w: _Worker() for w in range(workers)}
        self._order = tuple(self._workers)
        self._ids = count(workers)
        self._seq = count()
        self._heap: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._operands: dict[int, Any] = {}
        self._closed = False
        # Membership draws from streams of its own: how many tasks ran must not move it.
        self._victims = np.random.default_rng((seed, 2))
        self._changes: Iterator[Change] = iter(())
        if membership is not None:
            self._changes = membership.changes(np.random.default_rng((seed, 1)))
        self._next_change()

    @property
    def workers(self) -> tuple[int, ...]:
        return self._order

    def now(self) -> float:
        return self._now

    def put(self, worker: int, key: str, value: Any) -> None:
        home = self._home(worker)
        if self.compute or isinstance(value, Exchange):
            try:
                keep(home.change(), key, value)
            except Exception as error:
                self._say(_failure(self._now, worker, -1, None, error, key))
                return
        self._say(Stored(self._now, worker, key))

    def forget(self, key: str) -> None:
        self._check_open()
        for home in self._workers.values():
            home.change().pop(key, None)

    def exchange(self, shape: Shape) -> Exchange:
        self._check_open()
        return Exchange(bytearray(shape.size), shape, self.now, self._wake)

    def broadcast(self, round: int, value: Any) -> None:
        self._check_open()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        self._operands[round] = value if self.compute else None

    def submit(self, task: Task) -> None:
        home = self._home(task.worker)
        home.queue.append(task)
        home.seen.append(home.kept)
        if len(home.queue) == 1:
            self._begin(task.worker, home)

    def cancel(self, round: int) -> None:
        self._check_open()
        if round <= self._floor:
            return
        self._floor = round
        for old in [r for r in self._operands if r <= round]:
            del self._operands[old]
        soon = self._now + SLICE
        for worker, home in self._workers.items():
            # A worker busy with stale work looks up at the end of its slice.
            if not home.queue or home.queue[0].round > round:
                continue
            # One without pieces could not begin: its delay model raised.
            if home.body is not None or not home.rest or home.rest[0][0] > soon:
                self._step_at(soon, worker, home)

    def events(self, timeout: float) -> list[Event]:
        self._check_open()
        limit = self._now + max(0.0, timeout)
        found: list[Event] = []
        while self._heap and self._heap[0][0] <= (self._now if found else limit):
            time, _, make = heapq.heappop(self._heap)
            self._now = max(self._now, time)
            event = make()
            if event is not None:
                found.append(event)
        if not found and limit != float("inf"):
            self._now = max(self._now, limit)
        return found

    def lose(self, worker: int) -> None:
        self._home(worker)
        self._at(self._now, lambda: self._leave(worker))

    def join(self) -> int:
        self._check_open()
        worker = next(self._ids)
        self._at(self._now, lambda: self._enter(worker))
        return worker

    def close(self) -> None:
        self._closed = True
        self._heap.clear()
        self._workers.clear()
        self._operands.clear()
        self._order = ()

    # How the simulation moves on.

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
        heapq.heappush(self._heap, (time, next(self._seq), make))

    def _say(self, event: Event) -> None:
        self._at(self._now, lambda: event)

    def _next_change(self) -> None:
        for time, worker in self._changes:
            self._at(time, lambda worker=worker: self._change(worker))  # type: ignore[misc]
            return

    def _change(self, worker: int | None) -> Event | None:
        self._next_change()
        if worker is None:
            return self._enter(next(self._ids))
        if worker == -1:
            worker = int(self._victims.choice(self._order)) if self._order else -1
        return self._leave(worker) if worker in self._workers else None

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
        return Lost(self._now, worker, tuple(sorted(task.id for task in home.queue)))

    def _begin(self, worker: int, home: _Worker) -> None:
        """Start the first task of the queue: lay out when each of its pieces will be there."""
        task = home.queue[0]
        home.rest.clear()
        if task.round <= self._floor:
            home.rest.append((self._now, 0.0, Piece(None, None)))
        elif task.what == TASK:
            home.body = iter(task.body(home.seen[0], self._operands.get(task.round), *task.args))
            self._step_at(self._now, worker, home)
            return
        else:
            pieces = self._pieces(task, home)
            wait, work = self._delays.timing(self._rng, worker, task.round, task.cost)
            checked_seconds(self._delays, wait + work)
            # Pieces are due as their rows are read; where none says how many, at even steps.
            reads = [0 if isinstance(piece, Failed) else piece.read for piece in pieces]
            reads = reads if sum(reads) else [1] * len(pieces)
            due, step = self._now + wait, work / sum(reads)
            for i, (piece, read) in enumerate(zip(pieces, reads, strict=True)):
                due += step * read
                home.rest.append((due, step * read + (0.0 if i else wait), piece))
        self._step_at(home.rest[0][0], worker, home)

    def _pieces(self, task: Task, home: _Worker) -> list[Piece | Failed]:
        if not self.compute:
            if type(task.what) is Outline:
                return [Piece(what, None, read) for what, read in task.what]
            return [Piece(task.what, None, int(task.cost))]
        pieces: list[Piece | Failed] = []
        try:
            operand = self._operands.get(task.round)
            for piece in task.body(home.seen[0], operand, *task.args):
                pieces.append(Piece(*piece))
                if type(piece) is Last:
                    break
        except Exception as error:
            pieces.append(_failure(self._now, task.worker, task.round, task.id, error))
        return pieces or [Piece(None, None)]

    def _step_at(self, time: float, worker: int, home: _Worker) -> None:
        home.token += 1
        token = home.token
        self._at(time, lambda: self._step(worker, home, token))

    def _step(self, worker: int, home: _Worker, token: int) -> Event | None:
        if token != home.token:
            return None
        task = home.queue[0]
        if task.round <= self._floor:
            return self._end(worker, home, Dropped(self._now, worker, task.round, task.id))
        if home.body is not None:
            return self._go_on(worker, home, task, home.body)
        _, seconds, piece = home.rest.popleft()
        if isinstance(piece, Failed):
            return self._end(worker, home, piece._replace(time=self._now))
        what, value, read = piece
        home.read += read
        last = not home.rest
        if value is None and what is None and not last:
            self._step_at(home.rest[0][0], worker, home)
            return None
        read, home.read = home.read, 0
        reply = Reply(self._now, worker, task.round, task.id, what, value, read, seconds, last)
        if last:
            return self._end(worker, home, reply)
        self._step_at(home.rest[0][0], worker, home)
        return reply

    # Bodies that exchange with others. Each runs up to its next piece; what a worker has written by
    # then others see, so a loss falls between two pieces.

    def _go_on(self, worker: int, home: _Worker, task: Task, body: Iterator[Piece]) -> Event | None:
        home.parked = False
        try:
            what, value, read = next(body)
        except StopIteration:
            last = Reply(self._now, worker, task.round, task.id, None, None, home.read, 0.0, True)
            return self._end(worker, home, last)
        except Exception as error:
            failed = _failure(self._now, worker, task.round, task.id, error)
            return self._end(worker, home, failed)
        home.read += read
        if value is not None:
            rows, home.read = home.read, 0
            self._step_at(self._now, worker, home)
            return Reply(self._now, worker, task.round, task.id, what, value, rows, 0.0, False)
        if what[0] == REST:
            home.parked = True
            if what[1] < float("inf"):
                self._step_at(max(what[1], self._now), worker, home)
            return None
        seconds = 0.0
        if what[0] == WORK:
            cost = what[2] * task.cost
            seconds = self._delays.seconds(self._rng, worker, task.round + what[1], cost)
            checked_seconds(self._delays, seconds)
        elif what[0] == GATHER:
            seconds = self._link.seconds(what[1], what[2])
        self._step_at(self._now + seconds, worker, home)
        return None

    def _wake(self) -> None:
        """Let those go on that wait for somebody to write something."""
        for worker, home in self._workers.items():
            if home.parked:
                home.parked = False
                self._step_at(self._now, worker, home)

    def _end(self, worker: int, home: _Worker, event: Event) -> Event:
        home.queue.popleft()
        home.seen.popleft()
        home.rest.clear()
        home.body, home.read, home.parked = None, 0, False
        if home.queue:
            self._begin(worker, home)
        return event


def _failure(
    time: float,
    worker: int,
    round: int,
    task: int | None,
    error: Exception,
    key: str | None = None,
) -> Failed:
    return Failed(time, worker, round, task, *format_error(error), key)
