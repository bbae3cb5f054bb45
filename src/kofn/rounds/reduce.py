"""A round whose every reply is needed, because the result is their sum.

A share is a combination of any k others. So what a lost (or late) worker owed is re-expressed as
work for others, scaled by known coefficients; the sums that have arrived stay good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..model import Command, Event, Joined, Lost, Reply, Run, Send, Stored, Supply, Task, Tick
from .base import Round
from .watch import Late


@dataclass(eq=False)
class Item:
    """A part of the sum: rows of a lane, times `u`. Done by its own reply, or by all `parts`."""

    lane: int
    runs: tuple[Run, ...]
    u: NDArray[Any] | None  # (rows of the runs, width); None where values are skipped
    value: Any = None
    replied: bool = False
    parts: list[Item] | None = field(default=None)

    @property
    def rows(self) -> int:
        return sum(last - first for first, last in self.runs)

    @property
    def done(self) -> bool:
        return self.replied or (self.parts is not None and all(part.done for part in self.parts))

    def total(self) -> Any:
        """The item's value, its own or that of its parts."""
        if self.replied:
            return self.value
        assert self.parts is not None
        values = [part.total() for part in self.parts]
        return None if values[0] is None else sum(values[1:], start=values[0])


class SumWork(Protocol):
    """What a sum round needs to know of the work it does."""

    key: str  # of the shares that workers must hold
    threshold: int

    def task(self, round: int, worker: int, number: int, item: Item) -> Task:
        """Make the task for an item."""

    def express(self, lane: int, others: Sequence[int]) -> NDArray[np.float64]:
        """Coefficients c with share[lane] = Σ c[i] · share[others[i]]."""


class SumRound(Round):
    """Sum the items; re-express what is lost or late.

    `holders`: worker -> lane of those that take part; `shares` the same of all, also of those
    that join during the round.
    """

    def __init__(
        self,
        id: int,
        items: Sequence[Item],
        holders: Mapping[int, int],
        shares: Mapping[int, int],
        work: SumWork,
        late: Late | None,
    ) -> None:
        self.id, self.threshold = id, work.threshold
        self.items = list(items)
        self.read: dict[int, int] = {}
        self.spent: dict[int, float] = {}
        self.late: list[int] = []
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.rows_topped_up = 0
        self._shares, self._work, self._late = shares, work, late
        self._holder = {lane: worker for worker, lane in holders.items()}
        self._numbered: list[Item] = []
        self._open: dict[int, tuple[int, Item]] = {}  # task -> worker, item
        self._slow: set[int] = set()
        self._homeless: list[Item] = []  # owed by nobody: fewer than k lanes are live
        self._start, self._patience = 0.0, 0.0
        self._first: float | None = None
        self._sent = 0

    def start(self, time: float) -> list[Command]:
        self._start = time
        self.done = not self.items
        return [self._send(item) for item in self.items]

    def on(self, event: Event) -> Sequence[Command]:
        if type(event) is Reply:
            return self._replied(event) if event.round == self.id and not self.done else ()
        if type(event) is Lost:
            return self._worker_lost(event)
        if type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        if type(event) is Stored:
            return self._worker_ready(event)
        if type(event) is Tick:
            return self._look_for_late(event.time)
        return ()

    @property
    def missing(self) -> int:
        return max(0, self._work.threshold - len(self._holder)) if self._homeless else 0

    @property
    def live(self) -> int:
        return len(self._holder)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted({worker for worker, item in self._open.values() if not item.done}))

    def total(self) -> Any:
        """The sum; None where values are skipped."""
        values = [item.total() for item in self.items]
        return None if values[0] is None else sum(values[1:], start=values[0])

    def _replied(self, event: Reply) -> Sequence[Command]:
        worker = event.worker
        self.read[worker] = self.read.get(worker, 0) + event.read
        self.spent[worker] = self.spent.get(worker, 0.0) + event.seconds
        if event.what is not None:
            item = self._numbered[event.what]
            item.replied, item.value = True, event.value
        if event.last:
            self._open.pop(event.task, None)
            self._slow.discard(worker)
            took = event.time - self._start
            self._first = took if self._first is None else self._first
            if self._late and not self._patience and 2 * len(self._open) <= self._sent:
                self._patience = self._late.patience(self._first, took)
                self.wake = self._start + self._patience
        self.done = all(item.done for item in self.items)
        return ()

    def _worker_lost(self, event: Lost) -> Sequence[Command]:
        lane = self._shares.get(event.worker)
        if lane is None or self._holder.get(lane) != event.worker:
            return ()
        del self._holder[lane]
        self.lost.append(event.worker)
        owed = [item for worker, item in self._open.values() if worker == event.worker]
        self._open = {t: (w, item) for t, (w, item) in self._open.items() if w != event.worker}
        owed = [item for item in owed if not item.done and item.parts is None]
        return () if self.done else self._mend(owed)

    def _worker_ready(self, event: Stored) -> Sequence[Command]:
        lane = self._shares.get(event.worker)
        if event.key != self._work.key or lane is None or lane in self._holder:
            return ()
        self._holder[lane] = event.worker
        waiting, self._homeless = self._homeless, []
        return () if self.done else self._mend(waiting)

    def _look_for_late(self, time: float) -> Sequence[Command]:
        self.wake = float("inf")
        if self.done:
            return ()
        late = [w for w in self.owing if w not in self._slow]
        self.late += late
        self._slow.update(late)
        if late:
            self.wake = time + self._patience
        owed = [i for w, i in self._open.values() if w in late and not i.done and i.parts is None]
        quick = [lane for lane, worker in self._holder.items() if worker not in self._slow]
        # With fewer than k quick lanes nobody can stand in for a slow one: it must be waited for.
        return self._mend(owed) if len(quick) >= self._work.threshold else ()

    def _mend(self, items: Sequence[Item]) -> list[Command]:
        """Re-express items as work for others, or hold them back until somebody joins."""
        commands: list[Command] = []
        for item in items:
            again = self._holder.get(item.lane)
            lanes = [lane for lane, w in self._holder.items() if w not in self._slow]
            if len(lanes) < self._work.threshold:
                lanes = list(self._holder)
            if again is not None and again not in self._slow:
                item.parts = [Item(item.lane, item.runs, item.u)]  # its share has a new holder
            elif len(lanes) < self._work.threshold:
                self._homeless.append(item)
                continue
            else:
                item.parts = self._express(item, sorted(lanes))
            self.rows_topped_up += sum(part.rows for part in item.parts)
            commands += [self._send(part) for part in item.parts]
        return commands

    def _express(self, item: Item, lanes: Sequence[int]) -> list[Item]:
        """Cut the rows in as many pieces as there are lanes; k lanes do each, in turn."""
        n, k, rows = len(lanes), self._work.threshold, item.rows
        edges = [p * rows // n for p in range(n + 1)]
        scale = np.zeros((n, rows))
        for p in range(n):
            team = sorted((p + i) % n for i in range(k))
            c = self._work.express(item.lane, [lanes[q] for q in team])
            scale[team, edges[p] : edges[p + 1]] = c[:, None]
        parts = []
        flat = np.concatenate([np.arange(first, last) for first, last in item.runs])
        for q, lane in enumerate(lanes):
            mine = np.flatnonzero(scale[q])
            if len(mine) == 0:
                continue
            u = None
            if item.u is not None:
                u = (item.u[mine] * scale[q, mine, None]).astype(item.u.dtype)
            parts.append(Item(lane, _runs(flat[mine]), u))
        return parts

    def _send(self, item: Item) -> Send:
        worker = self._holder[item.lane]
        self._numbered.append(item)
        task = self._work.task(self.id, worker, len(self._numbered) - 1, item)
        self._open[task.id] = (worker, item)
        self._sent += 1
        return Send(task)


def _runs(rows: NDArray[np.intp]) -> tuple[Run, ...]:
    """Rows in the order given, as runs; a run ends where the next row does not follow."""
    ends = np.flatnonzero(np.diff(rows) != 1)
    firsts = rows[np.concatenate([[0], ends + 1])]
    lasts = rows[np.concatenate([ends, [len(rows) - 1]])] + 1
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
