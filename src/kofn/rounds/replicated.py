"""A round over copies: every block lies on several workers, and its first whole reply counts.

No code, so nothing to decode: the baseline that coding is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..model import (
    Command,
    Dropped,
    Event,
    Joined,
    Lost,
    Reply,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from .base import Round
from .watch import Late


class BlockWork(Protocol):
    """What a replicated round needs to know of the work it does."""

    @property
    def key(self) -> str:
        """Of what workers must hold."""

    def task(self, round: int, worker: int, seat: int, block: int) -> Task:
        """Make the task for a block, on a worker in this seat."""


class ReplicatedRound(Round):
    """`seats[s]` lists the blocks that whoever sits there holds, its own first.

    `shares`: worker -> seat, also of those that join during the round; `ready` of those that take
    part from the start. Without `late` every holder is asked at once. With it, each block is asked
    of one, and of the next one when it is late: a backup task. With `spare` a block that nobody
    holds any more is left out: the round ends without it.
    """

    def __init__(
        self,
        id: int,
        seats: Sequence[Sequence[int]],
        ready: Mapping[int, int],
        shares: Mapping[int, int],
        work: BlockWork,
        late: Late | None = None,
        spare: bool = False,
    ) -> None:
        self.id = id
        blocks = sorted({block for seat in seats for block in seat})
        self.threshold = 1 if spare else -(-len(blocks) // max(len(seat) for seat in seats))
        self.values: dict[int, list[tuple[Any, Any]]] = {}  # block -> (what, value) of its pieces
        self.read: dict[int, int] = {}
        self.late: list[int] = []
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.asked_again: list[int] = []  # blocks, after a loss or a delay
        self._seats, self._shares, self._work = seats, shares, work
        self._late, self._spare = late, spare
        self._seat = dict(ready)  # live worker -> seat
        self._asked: dict[int, set[int]] = {block: set() for block in blocks}  # block -> workers
        self._open: dict[int, tuple[int, int]] = {}  # task -> worker, block
        self._pieces: dict[int, list[tuple[Any, Any]]] = {}  # task -> what has come of it
        self._undone = set(blocks)
        self._start, self._patience = 0.0, 0.0
        self._first: float | None = None

    def start(self, time: float) -> list[Command]:
        self._start = time
        commands: list[Command] = []
        for block in sorted(self._undone):
            holders = self._holders(block)
            for worker in holders if self._late is None else holders[:1]:
                commands.append(self._send(worker, block))
        self._look_whether_done()
        return commands

    def on(self, event: Event) -> Sequence[Command]:
        if type(event) is Reply:
            if event.round == self.id and not self.done:
                self._replied(event)
        elif type(event) is Tick:
            return self._look_for_late(event.time)
        elif type(event) is Lost:
            return self._worker_lost(event.worker)
        elif type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        elif type(event) is Stored:
            seat = self._shares.get(event.worker)
            if event.key == self._work.key and seat is not None and event.worker not in self._seat:
                self._seat[event.worker] = seat
                return self._mend()
        elif type(event) is Dropped and event.round == self.id:
            self._open.pop(event.task, None)
        return ()

    @property
    def missing(self) -> int:
        """Blocks that nobody holds any more: as many newcomers are surely enough."""
        if self._spare:
            return int(not self._seat)
        return sum(not self._holders(block) for block in self._undone)

    @property
    def live(self) -> int:
        return len(self._seat)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted({w for w, block in self._open.values() if block in self._undone}))

    def _holders(self, block: int) -> list[int]:
        """Live workers that hold a block; whose own it is first."""
        found = [
            (self._seats[seat].index(block), worker)
            for worker, seat in self._seat.items()
            if block in self._seats[seat]
        ]
        return [worker for _, worker in sorted(found)]

    def _replied(self, event: Reply) -> None:
        self.read[event.worker] = self.read.get(event.worker, 0) + event.read
        pieces = self._pieces.setdefault(event.task, [])
        if event.what is not None:
            pieces.append((event.what, event.value))
        if not event.last:
            return
        _, block = self._open.pop(event.task)
        if block not in self._undone:
            return
        self._undone.discard(block)
        self.values[block] = pieces
        self._look_whether_done()
        took = event.time - self._start
        self._first = took if self._first is None else self._first
        if self._late and not self._patience and 2 * len(self._undone) <= len(self._asked):
            self._patience = self._late.patience(self._first, took)
            self.wake = self._start + self._patience

    def _look_for_late(self, time: float) -> Sequence[Command]:
        self.wake = float("inf")
        if self.done or self._late is None:
            return ()
        self.late += [worker for worker in self.owing if worker not in self.late]
        commands = [c for block in sorted(self._undone) for c in self._ask_another(block)]
        if commands:
            self.wake = time + self._patience  # those asked now may be late in their turn
        return commands

    def _worker_lost(self, worker: int) -> Sequence[Command]:
        if self._seat.pop(worker, None) is None:
            return ()
        self.lost.append(worker)
        self._open = {task: (w, block) for task, (w, block) in self._open.items() if w != worker}
        self._look_whether_done()
        return self._mend()

    def _look_whether_done(self) -> None:
        waiting = self._undone
        if self._spare and self._seat:
            waiting = {block for block in waiting if self._holders(block)}
        self.done = not waiting

    def _mend(self) -> Sequence[Command]:
        """Ask for every block that nobody is at."""
        at_work = {block for _, block in self._open.values()}
        return [c for block in sorted(self._undone - at_work) for c in self._ask_another(block)]

    def _ask_another(self, block: int) -> list[Command]:
        for worker in self._holders(block):
            if worker not in self._asked[block]:
                self.asked_again.append(block)
                return [self._send(worker, block)]
        return []

    def _send(self, worker: int, block: int) -> Send:
        task = self._work.task(self.id, worker, self._seat[worker], block)
        self._asked[block].add(worker)
        self._open[task.id] = (worker, block)
        return Send(task)
