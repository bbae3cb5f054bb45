"""The elastic round: every live worker reads its window; losses and delays are topped up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from ..model import Command, Reply, RowRange, Task
from .cover import Cover
from .lateness import Late
from .watch import WatchedRound
from .windows import Windows


class Work(Protocol):
    """What an elastic round needs to know of the work it does."""

    key: str  # of the shares that workers must hold

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        """Make the task for a worker's runs of its share."""

    def weak(self, cover: Cover) -> Sequence[int]:
        """Segments that need one more reply to decode well."""

    def refused(self, cover: Cover) -> Sequence[int]:
        """Segments that decode so poorly that the result would be refused."""


class ElasticRound(WatchedRound):
    """One product over a cover of windows; `work` makes the tasks.

    `shares` tells the share of each worker that holds one. Who has no window is `resting`.
    """

    what = "X @ w"

    def __init__(
        self,
        id: int,
        windows: Windows,
        shares: Mapping[int, int],
        work: Work,
        late: Late | None,
        resting: Collection[int] = (),
    ) -> None:
        super().__init__(id, work.key, windows.threshold, shares, late, resting)
        self.windows = windows
        self.cover = Cover(windows)
        self.values: list[tuple[int, tuple[RowRange, ...], Any]] = []
        self._work = work

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        commands = self._send(self.windows.work)
        if len(self.windows.shares) < int(self.windows.need.max(initial=0)):
            commands += self._mend()
        return [*commands, *self._finish()]

    @property
    def rule(self) -> str:
        return f"every row has come from {self.threshold} workers"

    @property
    def unanswered(self) -> tuple[int, ...]:
        owing = self._debts.owed  # also who has delivered all, and not said that this was it
        if not owing:
            return tuple(sorted(self._slow))
        owed = self.cover.asked & ~self.cover.have
        shares = {share for i, share in enumerate(self.cover.shares) if owed[i].any()}
        return tuple(sorted({w for w in owing if self._slot_of[w] in shares} | self._slow))

    def _replied(self, event: Reply) -> Sequence[Command]:
        if event.what is not None:
            share = self._slot_of[event.worker]
            self.cover.deliver(share, event.what)
            if event.value is not None:
                self.values.append((share, event.what, event.value))
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
        return self._send(runs) if runs else ()

    def _mend(self) -> list[Command]:
        runs, self.missing = self.cover.top_up(*self._counted_on())
        return [*self._send(runs), *self._finish()]

    def _counted_on(self) -> tuple[list[int], list[int]]:
        self.cover.keep(self._holder)
        return super()._counted_on()

    def _send(self, work: Mapping[int, tuple[RowRange, ...]]) -> list[Command]:
        return [
            self._dispatch(self._work.task(self.id, self._holder[share], share, runs))
            for share, runs in work.items()
        ]
