"""The elastic round: every live worker reads its window; losses and delays are topped up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..model import (
    Command,
    Dropped,
    Event,
    Joined,
    Lost,
    Reply,
    Run,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from .base import Round
from .cover import Cover
from .windows import Windows


class Work(Protocol):
    """What an elastic round needs to know of the work it does."""

    key: str  # of the shares that workers must hold

    def task(self, round: int, worker: int, runs: tuple[Run, ...]) -> Task:
        """Make the task for a worker's runs."""

    def weak(self, cover: Cover) -> Sequence[int]:
        """Segments that need one more reply to decode well."""


@dataclass(frozen=True)
class Late:
    """When to stop counting on a worker: judged by this round's replies, once half are in.

    With `factor`, at so many times the seconds in which half of the tasks were done. Without, at
    those seconds plus `spreads` times their spread, first reply to half of them. Never before
    `least` seconds: below that, asking others costs more than waiting.
    """

    factor: float | None = None
    spreads: float = 4.0
    least: float = 0.02

    def patience(self, first: float, half: float) -> float:
        """Seconds to wait for a task, given those of the first and of half of them."""
        if self.factor is not None:
            return max(self.least, self.factor * half)
        # Equal machines in step have no spread to speak of: a tenth is noise.
        return max(self.least, half + self.spreads * max(half - first, 0.1 * half))


class ElasticRound(Round):
    """One product over a cover of windows.

    `shares` tells the lane of each worker that holds one, also of those that join during the
    round; `work` makes their tasks; `late` says when to stop counting on someone.
    """

    def __init__(
        self, id: int, windows: Windows, shares: Mapping[int, int], work: Work, late: Late | None
    ) -> None:
        self.id, self.threshold = id, windows.threshold
        self.windows = windows
        self.cover = Cover(windows)
        self.values: list[tuple[int, tuple[Run, ...], Any]] = []
        self.read: dict[int, int] = {}  # rows, by worker
        self.spent: dict[int, float] = {}  # seconds, by worker
        self.late: list[int] = []
        self.lost: list[int] = []
        self.joined: list[int] = []
        self._shares, self._work, self._late = shares, work, late
        self._holder = {lane: worker for worker, lane in shares.items() if lane in windows.places}
        self._open: dict[int, int] = {}  # task -> worker
        self._sent = 0
        self._start = 0.0
        self._first: float | None = None
        self._patience = 0.0
        self._missing = 0
        self._slow: set[int] = set()  # late, and not caught up yet

    def start(self, time: float) -> list[Command]:
        self._start = time
        commands = self._send(zip(self.windows.lanes, self.windows.runs, strict=True))
        if len(self.windows.lanes) < int(self.windows.need.max(initial=0)):
            commands += self._mend()
        self._finish()
        return commands

    def on(self, event: Event) -> Sequence[Command]:
        if type(event) is Reply:
            if event.round != self.id or self.done:
                return ()
            return self._replied(event)
        if type(event) is Tick:
            return self._look_for_late(event.time)
        if type(event) is Lost:
            return self._worker_lost(event)
        if type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        if type(event) is Stored:
            return self._worker_ready(event)
        if type(event) is Dropped and event.round == self.id:
            self._open.pop(event.task, None)
        return ()

    @property
    def missing(self) -> int:
        return self._missing

    @property
    def live(self) -> int:
        return len(self._holder)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(set(self._open.values())))

    def _replied(self, event: Reply) -> Sequence[Command]:
        worker = event.worker
        if event.what is not None:
            lane = self._shares[worker]
            self.cover.deliver(lane, event.what)
            if event.value is not None:
                self.values.append((lane, event.what, event.value))
        self.read[worker] = self.read.get(worker, 0) + event.read
        self.spent[worker] = self.spent.get(worker, 0.0) + event.seconds
        if event.last:
            self._open.pop(event.task, None)
            took = event.time - self._start
            if self._first is None:
                self._first = took
            if self._late and not self._patience and 2 * len(self._open) <= self._sent:
                self._patience = self._late.patience(self._first, took)
                self.wake = self._start + self._patience
            self._slow.discard(worker)  # it caught up: count on it again
        return self._finish()

    def _finish(self) -> Sequence[Command]:
        if not self.cover.done:
            return ()
        if not self.cover.as_planned and (poor := self._work.weak(self.cover)):
            self.cover.require_more(poor)
            runs, missing = self.cover.top_up(list(self._holder))
            if missing == 0:
                return self._send(runs.items())
            # Nobody is left to ask: what is there must do. The bound will say how good it is.
        self.done = True
        return ()

    def _look_for_late(self, time: float) -> Sequence[Command]:
        self.wake = float("inf")
        if self._late is None or self.done:
            return ()
        late = [w for w in self.owing if w not in self._slow]
        if not late:
            return ()
        self.late += late
        self._slow.update(late)
        self.wake = time + self._patience  # those asked now may be late in their turn
        return self._mend()

    def _worker_lost(self, event: Lost) -> Sequence[Command]:
        lane = self._shares.get(event.worker)
        if lane is None or self._holder.get(lane) != event.worker:
            return ()
        del self._holder[lane]
        self.cover.retire(lane)
        self.lost.append(event.worker)
        self._open = {task: w for task, w in self._open.items() if w != event.worker}
        return () if self.done else self._mend()

    def _worker_ready(self, event: Stored) -> Sequence[Command]:
        lane = self._shares.get(event.worker)
        if event.key != self._work.key or lane is None or lane in self._holder:
            return ()
        self._holder[lane] = event.worker
        self.cover.admit(lane)
        return () if self.done else self._mend()

    def _mend(self) -> list[Command]:
        helpers = [lane for lane, worker in self._holder.items() if worker not in self._slow]
        slow = [lane for lane, worker in self._holder.items() if worker in self._slow]
        runs, self._missing = self.cover.top_up(helpers, slow)
        return self._send(runs.items())

    def _send(self, work: Iterable[tuple[int, tuple[Run, ...]]]) -> list[Command]:
        commands: list[Command] = []
        for lane, runs in work:
            if runs:
                worker = self._holder[lane]
                task = self._work.task(self.id, worker, runs)
                self._open[task.id] = worker
                self._sent += 1
                commands.append(Send(task))
        return commands
