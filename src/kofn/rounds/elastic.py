"""The elastic round: every live worker reads its window; losses and delays are topped up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from ..errors import WrongReplies
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


class Jury(Protocol):
    """Looks at all replies together, once every row has as many as it needs."""

    def judge(
        self, cover: Cover, values: Sequence[tuple[int, tuple[RowRange, ...], Any]]
    ) -> tuple[Mapping[int, str], Sequence[int]]:
        """Shares whose replies are wrong, and why; segments where one more has to say whose."""


class ElasticRound(WatchedRound):
    """One product over a cover of windows; `work` makes the tasks.

    `shares`: the share of each worker that holds one. Workers without a window are `resting`. Rows
    that a `jury` finds wrong at the end are asked of others.
    """

    what = "X @ w"
    jury: Jury | None = None

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
        self.firsts: dict[int, tuple[float, int]] = {}  # seconds and rows of a worker's first reply
        self._work = work

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        commands = self._send(self.windows.work)
        if len(self.windows.shares) < self.windows.most:
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
        return tuple(sorted({w for w in owing if self.cover.owes(self._slot_of[w])} | self._slow))

    def _replied(self, event: Reply) -> Sequence[Command]:
        if event.what is not None:
            self.firsts.setdefault(event.worker, (event.seconds, event.read))
            share = self._slot_of[event.worker]
            self.cover.deliver(share, event.what)
            if self.has_values:
                self.values.append((share, event.what, event.value))
        return self._finish()

    def _finish(self) -> Sequence[Command]:
        """End the round, or ask for one more reply where those at hand decode poorly."""
        if not self.cover.done:
            return ()
        if self.jury is not None and self.values:
            guilty, doubtful = self.jury.judge(self.cover, self.values)
            if guilty or doubtful:
                return self._convict(guilty) if guilty else self._doubtful(doubtful)
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

    def _convict(self, guilty: Mapping[int, str]) -> list[Command]:
        """Take back what some shares have delivered, and ask others."""
        commands: list[Command] = []
        for share, why in guilty.items():
            self.values = [one for one in self.values if one[0] != share]
            self.cover.forget(share)
            senders = [w for w, slot in self._slot_of.items() if slot == share and w in self.read]
            # Of two that delivered some of a share nobody knows whose is wrong.
            for worker in senders if len(senders) == 1 else ():
                commands += self._accuse(worker, -1, why)
        return [*commands, *self._mend_all()]

    def _doubtful(self, segments: Sequence[int]) -> list[Command]:
        """Ask for one more reply where those at hand do not agree; or say that there is none."""
        rows = int(sum(self.cover.cuts[j + 1] - self.cover.cuts[j] for j in segments))
        quick, slow = self._counted_on()
        self.cover.require_more(segments)
        runs, _ = self.cover.top_up([*quick, *slow])
        if self.cover.done:
            raise WrongReplies({}, self.live, 1, rows)
        return self._send(runs)

    def _mend(self) -> list[Command]:
        runs, self.missing = self.cover.top_up(*self._counted_on())
        return [*self._send(runs), *self._finish()]

    def _could_ask(self) -> bool:
        return self.cover.short

    def _counted_on(self) -> tuple[list[int], list[int]]:
        self.cover.keep(self._holder)
        return super()._counted_on()

    def _send(self, work: Mapping[int, tuple[RowRange, ...]]) -> list[Command]:
        return [
            self._dispatch(self._work.task(self.id, self._holder[share], share, runs))
            for share, runs in work.items()
        ]
