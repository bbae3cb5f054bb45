"""A round over stacks of coded rows: everybody works its own off from the top until it decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..codes.peeling import SparseDecoder
from ..model import Command, Reply, RowRange, Task
from .watch import WatchedRound


class StackWork(Protocol):
    """What a rateless round needs to know of the work it does."""

    @property
    def key(self) -> str:
        """Of what workers must hold."""

    def task(self, round: int, worker: int, first: int) -> Task:
        """Make the task for a stack from its symbol `first` on."""


class RatelessRound(WatchedRound):
    """`each` symbols in a stack; symbol i of slot s is row i·n + s of the decoder's table.

    No worker is asked for what another owes: every symbol is as good as any other. The symbols of
    a lost worker stay good, and the worker that takes its slot goes on where it stopped.
    """

    what = "rateless product"

    def __init__(
        self,
        id: int,
        ready: Mapping[int, int],
        work: StackWork,
        decoder: SparseDecoder,
        n: int,
        each: int,
    ) -> None:
        super().__init__(id, work.key, -(-decoder.k // each), ready, None)
        self.values: list[tuple[int, RowRange, Any]] = []  # slot, its symbols, their values
        self._work, self._decoder, self._n, self._each = work, decoder, n, each
        self._next = [0] * n  # symbols of each slot that are here

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        return [*self._mend()]

    @property
    def rule(self) -> str:
        return f"the {self._decoder.k} blocks are determined"

    def _replied(self, event: Reply) -> Sequence[Command]:
        slot = self._slot_of[event.worker]
        for first, last in event.what or ():
            if last > self._next[slot]:  # what another holder of the slot has sent is known
                self.values.append((slot, (first, last), event.value))
                for i in range(self._next[slot], last):
                    self._decoder.offer(i * self._n + slot)
                self._next[slot] = last
        self._look_whether_done()
        return ()

    def _look_whether_done(self) -> None:
        self.done = self._decoder.ready
        coming = sum(self._next) + sum(self._each - self._next[slot] for slot in self._holder)
        left = any(self._next[slot] < self._each for slot in self._holder)
        short = -(-(self._decoder.k - coming) // self._each)
        self.missing = 0 if self.done else max(short, 0 if left else 1)

    def _mend(self) -> Sequence[Command]:
        """Send everybody who is at nothing to its stack."""
        self._look_whether_done()
        busy = set(self._open.values())
        return [
            self._dispatch(self._work.task(self.id, worker, self._next[slot]))
            for slot, worker in self._holder.items()
            if worker not in busy and self._next[slot] < self._each
        ]
