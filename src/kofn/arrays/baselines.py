"""What coding is compared with, in the same frame: the same master, engines and report.

`uncoded` and `whole_shares` are coded matrices with special numbers; `Replicated` keeps copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..codes.linear import error_bound
from ..codes.mds import MDSCode
from ..errors import BadInput, NothingYet
from ..model import Report, Task
from ..rounds import Drive, Late
from ..rounds.holders import Holders
from ..rounds.replicated import ReplicatedRound
from . import checks, work
from .matrix import CodedMatrix, Options, threshold
from .shares import shares_of


class HasDrive(Protocol):
    """A Cluster, as far as this module needs one."""

    _drive: Drive


def uncoded(where: Drive | HasDrive, A: object) -> CodedMatrix:
    """Every live worker holds one block, and all must answer: an MDS code with k = n."""
    drive = _drive(where)
    return _whole(drive, A, len(drive.engine.workers))


def whole_shares(where: Drive | HasDrive, A: object, k: int) -> CodedMatrix:
    """Non-adaptive MDS: every live worker multiplies its whole share, the first k replies count."""
    return _whole(_drive(where), A, k)


def _whole(drive: Drive, A: object, k: int) -> CodedMatrix:
    array = checks.matrix(A, check_finite=True)
    n = len(drive.engine.workers)
    code = threshold(k, n)
    options = Options(margin=n - code.k, late=None, measured_loads=False)
    return CodedMatrix(drive, array.shape, array.dtype, code, shares_of(array, code), options)


class Replicated:
    """A dense matrix in blocks, each with at least `r` holders; `@` multiplies with a vector.

    r-replication: n // r blocks for n live workers, each computed by all its holders at once. Or,
    with `backup`, n blocks, each computed by one holder; the next one is asked when the first is
    later than `backup` times the time in which half of this round's blocks came (3 is usual).

    Any worker may be lost while every block has a holder; then TooFewWorkers, until one joins: it
    takes the place of a lost one. Cost: A is stored r times over; without `backup` read so too.
    """

    def __init__(
        self, where: Drive | HasDrive, A: object, r: int, *, backup: float | None = None
    ) -> None:
        array = checks.matrix(A, check_finite=True)
        if not isinstance(array, np.ndarray):
            raise BadInput("Replicated takes a dense matrix; got a sparse one. Pass A.toarray().")
        self._drive = drive = _drive(where)
        n = len(drive.engine.workers)
        self.r = checks.whole(r, "r (copies)", 1)
        if self.r > n:
            raise BadInput(
                f"r must be at most the number of live workers; got r={r} and {n} live. "
                f"Use r <= {n}, or more workers."
            )
        if backup is not None and not checks.seconds(backup, "backup") > 1:
            raise BadInput(f"backup must be a factor > 1, or None; got {backup!r}.")
        self.shape: tuple[int, int] = array.shape
        self.dtype = array.dtype
        self._late = None if backup is None else Late(factor=float(backup))
        self.blocks = n // self.r if backup is None else n
        copies = 1 if backup is None else self.r  # blocks in one seat
        self._seats = seats = [
            tuple((seat + i) % self.blocks for i in range(copies)) for seat in range(n)
        ]
        self._cuts = cuts = [b * int(array.shape[0]) // self.blocks for b in range(self.blocks + 1)]
        self._holders = _Seats(
            drive,
            MDSCode(n, 1),
            lambda seat: np.concatenate([array[cuts[b] : cuts[b + 1]] for b in seats[seat]]),
        )
        self._holders.seats = seats
        self._holders.enlist()
        drive.await_stored(self._holders.key, list(self._holders.shares))
        self.key = self._holders.key
        self._report: Report | None = None

    @property
    def report(self) -> Report:
        """What the last product did. Raises NothingYet before the first."""
        if self._report is None:
            raise NothingYet("a report describes the last product; there was none yet. Multiply.")
        return self._report

    def __matmul__(self, w: object) -> NDArray[Any]:
        """A @ w for a vector (d,). Raises TooFewWorkers when a block has no holder left."""
        operand = checks.operand(w, self.shape[1], self.dtype, True)
        if operand.ndim != 1:
            raise BadInput(f"Replicated multiplies with vectors; got shape {operand.shape}.")
        drive = self._drive
        began = drive.engine.now()
        drive.settle()
        self._holders.enlist()
        ready = self._holders.ready()
        round = ReplicatedRound(
            drive.next_round(), self._seats, ready, self._holders.shares, self, self._late
        )
        drive.run(round, operand, self._holders.supply)
        gathered = drive.engine.now()
        result = self._assemble(round)
        self._report = self._told(round, tuple(ready), (began, gathered))
        return result

    def task(self, round: int, worker: int, seat: int, block: int) -> Task:
        """Make the task for a block: the rows of it in what this seat holds."""
        first = sum(self._rows(b) for b in self._seats[seat][: self._seats[seat].index(block)])
        runs = ((first, first + self._rows(block)),)
        task = self._drive.next_task()
        return Task(task, round, worker, work.product, (self.key, runs), runs, self._rows(block))

    def _rows(self, block: int) -> int:
        return self._cuts[block + 1] - self._cuts[block]

    def _assemble(self, round: ReplicatedRound) -> NDArray[Any]:
        if not self._drive.engine.capabilities.values:
            return np.full(self.shape[0], np.nan, self.dtype)
        # Pieces of a task come in the order of its rows.
        parts = [value for b in range(self.blocks) for _, value in round.values[b]]
        return np.concatenate(parts)

    def _told(
        self, round: ReplicatedRound, live: tuple[int, ...], times: tuple[float, float]
    ) -> Report:
        began, gathered = times
        ended = self._drive.engine.now()
        return Report(
            round=round.id,
            live=live,
            rows_read=dict(round.read),
            rows_used=self.shape[0],
            rows_wasted=max(0, sum(round.read.values()) - self.shape[0]),
            rows_topped_up=sum(self._rows(block) for block in round.asked_again),
            rows_moved=0,
            late=tuple(round.late),
            lost=tuple(round.lost),
            joined=tuple(round.joined),
            restarted=False,
            seconds={"wait": gathered - began, "decode": ended - gathered, "total": ended - began},
            eta=1.0,
            error_bound=error_bound(self.shape[1], self.dtype, 1.0),
        )


class _Seats(Holders):
    """Who sits where; a newcomer takes the free seat whose blocks have the fewest holders."""

    seats: Sequence[tuple[int, ...]]  # the blocks of each

    def _free(self, worker: int, taken: set[int] | None = None) -> int | None:
        if super()._free(worker, taken) is None:
            return None
        held = {seat for w, seat in self.shares.items() if w in self.drive.stored}
        holders = Counter(block for seat in held for block in self.seats[seat])
        free = [seat for seat in range(len(self.seats)) if seat not in held]
        return min(free, key=lambda seat: min(holders[block] for block in self.seats[seat]))


def _drive(where: Drive | HasDrive) -> Drive:
    drive = where if isinstance(where, Drive) else where._drive
    drive.settle()
    return drive
