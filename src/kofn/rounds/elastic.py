"""The elastic round: every live worker reads its window; losses and delays are topped up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..model import Command, Event, Joined, Reply, RowRange, Supply, Task
from .base import Round
from .cover import Cover
from .watch import Late, Watch
from .windows import Windows


class Work(Protocol):
    """What an elastic round needs to know of the work it does."""

    key: str  # of the shares that workers must hold

    def task(self, round: int, worker: int, runs: tuple[RowRange, ...]) -> Task:
        """Make the task for a worker's runs."""

    def weak(self, cover: Cover) -> Sequence[int]:
        """Segments that need one more reply to decode well."""

    def refused(self, cover: Cover) -> Sequence[int]:
        """Segments that decode so poorly that the result would be refused."""


class ElasticRound(Round):
    """One product over a cover of windows.

    `shares` tells the share of each worker that holds one, also of those that join during the
    round; `work` makes their tasks; `late` says when to stop counting on someone. `resting` hold
    a share and have no window: still at the work of an earlier round, they are asked when nobody
    else can stand in, or when they are done with that.
    """

    def __init__(
        self,
        id: int,
        windows: Windows,
        shares: Mapping[int, int],
        work: Work,
        late: Late | None,
        resting: Collection[int] = (),
    ) -> None:
        self.id, self.key, self.threshold = id, work.key, windows.threshold
        self.windows = windows
        self.cover = Cover(windows)
        self.values: list[tuple[int, tuple[RowRange, ...], Any]] = []
        self.read: dict[int, int] = {}  # rows, by worker
        self.spent: dict[int, float] = {}  # seconds, by worker
        self._shares, self._work = shares, work
        holders = {worker: share for worker, share in shares.items() if share in windows.places}
        self._watch = Watch(id, work.key, holders, shares, late, self.threshold, resting)
        self.late, self.lost, self.joined = self._watch.late, self._watch.lost, self._watch.joined
        self._missing = 0
        self._choosy = True  # a result that would be refused is worth waiting for the slow

    def start(self, time: float) -> list[Command]:
        self._watch.begin(time)
        commands = self._send(zip(self.windows.shares, self.windows.runs, strict=True))
        if len(self.windows.shares) < int(self.windows.need.max(initial=0)):
            commands += self._mend()
        commands += self._finish()
        self.wake = self._watch.wake
        return commands

    def on(self, event: Event) -> Sequence[Command]:
        changed = self._watch.hear(event)
        commands: Sequence[Command] = ()
        if type(event) is Joined:
            commands = [Supply(event.worker)]
        elif type(event) is Reply and event.round == self.id and not self.done:
            commands = self._replied(event)
        if changed and not self.done:
            commands = [*commands, *self._mend()]
        self.wake = self._watch.wake
        return commands

    def last_resort(self, time: float) -> Sequence[Command]:
        self._choosy = False
        self._watch.give_up()
        return self._mend()

    @property
    def missing(self) -> int:
        return self._missing

    @property
    def live(self) -> int:
        return len(self._watch.holder)

    @property
    def owing(self) -> tuple[int, ...]:
        return self._watch.owing

    @property
    def unanswered(self) -> tuple[int, ...]:
        owing = self._watch.owing  # also who has delivered all, and not said that this was it
        if not owing:
            return tuple(sorted(self._watch.slow))
        owed = self.cover.asked & ~self.cover.have
        shares = {share for i, share in enumerate(self.cover.shares) if owed[i].any()}
        late = {worker for worker in owing if self._shares.get(worker) in shares}
        return tuple(sorted(late | self._watch.slow))

    def _replied(self, event: Reply) -> Sequence[Command]:
        worker = event.worker
        if event.what is not None:
            share = self._shares[worker]
            self.cover.deliver(share, event.what)
            if event.value is not None:
                self.values.append((share, event.what, event.value))
        self.read[worker] = self.read.get(worker, 0) + event.read
        self.spent[worker] = self.spent.get(worker, 0.0) + event.seconds
        return self._finish()

    def _finish(self) -> Sequence[Command]:
        """End the round, or ask for one more reply where those at hand decode poorly."""
        if not self.cover.done:
            return ()
        runs: dict[int, tuple[RowRange, ...]] = {}
        if not self.cover.as_planned and (poor := self._work.weak(self.cover)):
            quick, slow = self._counted_on()
            self.cover.require_more(poor)
            runs, _ = self.cover.top_up(quick)
            if self._choosy and self.cover.done and (bad := self._work.refused(self.cover)):
                self.cover.require_more(bad)
                runs, _ = self.cover.top_up([*quick, *slow])
        self.done = self.cover.done
        return self._send(runs.items()) if runs else ()

    def _mend(self) -> list[Command]:
        """Ask others for what would not come, or not soon."""
        runs, self._missing = self.cover.top_up(*self._counted_on())
        return [*self._send(runs.items()), *self._finish()]

    def _counted_on(self) -> tuple[list[int], list[int]]:
        self.cover.keep(self._watch.holder)
        return self._watch.shares()

    def _send(self, work: Iterable[tuple[int, tuple[RowRange, ...]]]) -> list[Command]:
        return [
            self._watch.send(self._work.task(self.id, self._watch.holder[share], runs))
            for share, runs in work
            if runs
        ]
