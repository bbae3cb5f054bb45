"""DSAG: iterations that wait for some fresh replies and keep everybody's last one.

A rival of coding, for comparison (Severinson, Rosnes, El Rouayheb, Graell i Amat 2021). Each part
lies on one worker. The master keeps the newest value of every part, however stale, and their
running total. An iteration ends when `fresh` workers have answered it, and a little later. No
task is cancelled: a late answer still replaces the older value, and its worker is then given the
current point. Loads are balanced: a worker that is slower than an iteration takes fewer of its
parts at a time.

Every iteration has a round id of its own, so that delay models can distinguish them;
to the loop all of them are one round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codes.total import Shapes, Total, same_shapes
from ..model import Command, Event, Lost, Reply, Send, Task, Tick
from .base import Round
from .lateness import Late

SMOOTH = 0.3  # weight of the newest time in a worker's moving average
SLACK = 1.2  # a worker is slow (fast) when it takes so many times as long (as short)

Leaves = tuple[Any, ...]
Advance = Callable[[int, float, Leaves | None, float], Any]  # t, time, total, covered -> x or None
MakeTask = Callable[[int, int, Sequence[int], Any], Task]  # round, worker, parts, x


@dataclass
class _Worker:
    parts: tuple[int, ...]
    load: int
    next: int = 0  # where in its parts it goes on
    task: int = -1  # the open one
    round: int = -1  # whose point that is
    since: float = 0.0
    usual: float = 0.0  # seconds of a task, smoothed

    def take(self) -> tuple[int, ...]:
        """The next parts to work through, in turn."""
        held = len(self.parts)
        parts = tuple(self.parts[(self.next + i) % held] for i in range(self.load))
        self.next = (self.next + self.load) % held
        return parts


class StaleRound(Round):
    """Runs until `advance` returns None.

    `slots`: worker -> its parts. `ids` gives the round ids. `task` makes the task that evaluates
    parts at a point; its replies' `what` names the part. `advance(t, time, total, covered)` is
    called at the end of iteration t, at `time`, with the total of all newest values and the
    fraction of the parts that have one; it returns the next point. `portion`: parts that a worker
    starts out with at a time, as a fraction of its own. Joiners hold nothing, and are left out.
    """

    what = "stale sum"

    def __init__(
        self,
        ids: Callable[[], int],
        slots: Mapping[int, Sequence[int]],
        task: MakeTask,
        x: Any,
        advance: Advance,
        fresh: int,
        *,
        margin: float = 0.02,
        portion: float = 1.0,
        balance: bool = True,
    ) -> None:
        super().__init__(ids(), fresh)
        self.t = 1
        self.stale = 0  # answers to an earlier iteration that were put to use
        self.fresh_parts = 0  # that came for this iteration's point
        self._ids, self._make, self._x, self._advance = ids, task, x, advance
        self._rule, self._balance = Late(margin, least=0.0), balance
        self._workers = {
            worker: _Worker(tuple(parts), max(1, round(portion * len(parts))))
            for worker, parts in slots.items()
        }
        self.missing = max(0, fresh - len(slots))
        self._m = sum(len(parts) for parts in slots.values())
        self._known: dict[int, Leaves | None] = {}  # part -> its newest value
        self._shapes: Shapes | None = None
        self._total = Total(np.float64)  # what is added and taken out again and again needs digits
        self._fresh: set[int] = set()
        self._began = 0.0

    def start(self, time: float) -> Sequence[Command]:
        self._began = time
        return [self._send(worker, time) for worker in self._workers]

    def on(self, event: Event) -> Sequence[Command]:
        if self.done:
            return ()
        commands: list[Command] = []
        if type(event) is Reply:
            commands += self._replied(event)
        elif type(event) is Lost:
            self._workers.pop(event.worker, None)  # its last value stays known
            self.missing = max(0, self.threshold - len(self._workers))
        if len(self._fresh) >= self.threshold:
            if self.wake == float("inf"):
                self.wake = event.time + self._rule.allowed(event.time - self._began)
            if event.time >= self.wake or type(event) is Tick:
                commands += self._end(event.time)
        return commands

    @property
    def live(self) -> int:
        return len(self._workers)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(w for w, home in self._workers.items() if home.task >= 0))

    @property
    def loads(self) -> dict[int, int]:
        """How many parts each live worker is given at a time now."""
        return {worker: home.load for worker, home in self._workers.items()}

    def _send(self, worker: int, time: float) -> Send:
        home = self._workers[worker]
        task = self._make(self.id, worker, home.take(), self._x)
        home.task, home.round, home.since = task.id, self.id, time
        return Send(task)

    def _replied(self, event: Reply) -> Sequence[Command]:
        home = self._workers.get(event.worker)
        if home is None or event.task != home.task:
            return ()
        self.read[event.worker] = self.read.get(event.worker, 0) + event.read
        self.fresh_parts += event.read if home.round == self.id else 0
        if event.what is not None:
            self._keep(event.what, event.value)
        if not event.last:
            return ()
        home.task = -1
        took = event.time - home.since
        home.usual = took if not home.usual else (1 - SMOOTH) * home.usual + SMOOTH * took
        if home.round == self.id:
            self._fresh.add(event.worker)
            return ()
        self.stale += 1
        return [self._send(event.worker, event.time)]

    def _keep(self, part: int, value: Leaves | None) -> None:
        before = self._known.get(part)
        self._known[part] = value
        if value is None:
            return
        shapes = tuple(leaf.shape for leaf in value)
        self._shapes = same_shapes(self._shapes, shapes, f"part {part}")
        self._total.add(value)
        if before is not None:
            self._total.subtract(before)

    def _end(self, time: float) -> Sequence[Command]:
        total = None if self._total.leaves is None else tuple(self._total.leaves)
        self._x = self._advance(self.t, time, total, len(self._known) / self._m)
        if self._x is None:
            self.done = True
            return ()
        if self._balance:
            self._rebalance(time - self._began)
        self.t, self.fresh_parts = self.t + 1, 0
        self.id, self.wake, self._began = self._ids(), float("inf"), time
        idle, self._fresh = self._fresh & self._workers.keys(), set()
        return [self._send(worker, time) for worker in sorted(idle)]

    def _rebalance(self, iteration: float) -> None:
        """Fewer parts for those who take longer than an iteration, more for those who wait."""
        for home in self._workers.values():
            if home.usual > SLACK * iteration and home.load > 1:
                home.load -= 1
            elif 0 < home.usual < iteration / SLACK and home.load < len(home.parts):
                home.load += 1
