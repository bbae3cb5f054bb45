"""A round over copies: every block lies on several workers, and its first whole reply counts.

No code, so nothing to decode: the baseline that coding is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..model import Command, Reply, Send, Task
from .lateness import Late
from .watch import WatchedRound


class BlockWork(Protocol):
    """What a replicated round needs to know of the work it does."""

    @property
    def key(self) -> str:
        """Of what workers must hold."""

    def task(self, round: int, worker: int, slot: int, block: int) -> Task:
        """Make the task for a block, on a worker in this slot."""


class ReplicatedRound(WatchedRound):
    """`slots[s]` lists the blocks that the worker with slot s holds, its own first.

    `ready`: worker -> slot of those that take part from the start. Without `late` every holder is
    asked at once, also those that join. With it, each block is asked of one worker, and of the next
    when it is late: a backup task. With `spare` a block that nobody holds any more is left out: the
    round ends without it.
    """

    what = "replicated product"

    def __init__(
        self,
        id: int,
        slots: Sequence[Sequence[int]],
        ready: Mapping[int, int],
        work: BlockWork,
        late: Late | None = None,
        spare: bool = False,
    ) -> None:
        blocks = sorted({block for slot in slots for block in slot})
        threshold = 1 if spare else -(-len(blocks) // max(len(slot) for slot in slots))
        super().__init__(id, work.key, threshold, ready, late)
        self.values: dict[int, dict[Any, Any]] = {}  # block -> its pieces: what -> value
        self.asked_again: list[int] = []  # blocks, after a loss or a delay
        self.spent_on: dict[int, float] = {}  # task -> seconds so far
        self._work = work
        # Block -> who may hold it: how far down the list of a slot it is, and the slot.
        self._where: dict[int, list[tuple[int, int]]] = {block: [] for block in blocks}
        for slot, held in enumerate(slots):
            for i, block in enumerate(held):
                self._where[block].append((i, slot))
        self._at_once, self._spare = late is None, spare
        self._asked: dict[int, set[int]] = {block: set() for block in blocks}  # block -> workers
        self._tasks: dict[int, int] = {}  # task -> block
        self._pieces: dict[int, dict[Any, Any]] = {}  # task -> what has come of it
        self._undone = set(blocks)
        self._orphans: set[int] = set()  # those of them that nobody holds

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        commands: list[Command] = [*self._mend()]
        self.asked_again.clear()
        return commands

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted({worker for block in self._undone for worker in self._at(block)}))

    @property
    def unanswered(self) -> tuple[int, ...]:
        return tuple(sorted(self._debts.owed))

    def task_seconds(self) -> list[float]:
        """How long each task has taken, or has been waited for."""
        known = {task: seconds for task, seconds in self.spent_on.items() if task not in self._open}
        return [*known.values(), *(max(0.0, self.took) for _ in self._open)]

    def _holders(self, block: int) -> list[int]:
        """Slots whose worker holds a block: those counted on first, then its own slot."""
        holder, quick = self._holder, self._quick
        ranked = [(not quick(holder[s]), i, s) for i, s in self._where[block] if s in holder]
        return [slot for _, _, slot in sorted(ranked)]

    def _replied(self, event: Reply) -> Sequence[Command]:
        self.spent_on[event.task] = self.spent_on.get(event.task, 0.0) + event.seconds
        pieces = self._pieces.setdefault(event.task, {})
        if event.what is not None:
            pieces[event.what] = event.value  # what is sent twice counts once
        block = self._tasks[event.task]
        if event.last and block in self._undone:
            self._undone.discard(block)
            self._orphans.discard(block)
            self.values[block] = pieces
            self._look_whether_done()
        return ()

    def _look_whether_done(self) -> None:
        orphans = len(self._orphans)  # as many newcomers are surely enough
        self.missing = int(not self._holder) if self._spare else orphans
        self.done = len(self._undone) == (orphans if self._spare and self._holder else 0)

    def _mend(self) -> tuple[Command, ...]:
        """Ask for every block that nobody is at; or all holders, where all are asked at once."""
        self._orphans = {block for block in self._undone if not self._holders(block)}
        self._look_whether_done()
        return tuple(
            self._send(slot, block)
            for block in sorted(self._undone)
            for slot in self._holders(block)
            if self._wanted(slot, block)
        )

    def _wanted(self, slot: int, block: int) -> bool:
        """Whether to ask a holder of a block, besides those that are at it."""
        worker, at_it = self._holder[slot], self._at(block)
        if worker in at_it or self._at_once:
            return worker not in at_it
        return not at_it or (self._quick(worker) and not any(map(self._quick, at_it)))

    def _at(self, block: int) -> set[int]:
        """Live workers that were asked for a block."""
        return {worker for worker in self._asked[block] if self._holds(worker)}

    def _send(self, slot: int, block: int) -> Send:
        worker = self._holder[slot]
        task = self._work.task(self.id, worker, slot, block)
        self._asked[block].add(worker)
        self._tasks[task.id] = block
        self.asked_again.append(block)
        return self._dispatch(task)
