"""What coding is compared with, on the same master and engines, with the same report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from .. import checks
from ..codes.linear import error_bound
from ..model import ProductReport, Record, Task
from ..rounds import Late, RoundDriver
from ..rounds.base import Round
from ..rounds.holders import HasDriver, Holders
from ..rounds.replicated import ReplicatedRound
from . import work
from .matrix import CodedMatrix
from .operator import Reporting
from .options import Options
from .shares import shares_of, threshold
from .transpose import Transpose

LOST = ("wait", "ignore", "stale")


class Replicated(Reporting):
    """A matrix in blocks, each with at least `r` holders: `X @ w` and `X.T @ z`, as a CodedMatrix.

    r-replication: n // r blocks for n workers, each computed by all its holders at once; n are the
    live ones, or more: newcomers take the other slots. Or, with `backup`, n blocks, each computed
    by one holder; the next one is asked when the first is later than `backup` times the time in
    which half of this round's blocks came (3 is usual).

    `lost` says what becomes of a block that nobody holds any more, until one who joins takes the
    slot of a lost one. "wait": TooFewWorkers. "ignore": its rows are NaN in X @ w and left out of
    X.T @ z. "stale": what it last replied counts, to X @ w and to X.T @ z each (Elastic
    Distr-BGD); before its first reply it is ignored.

    Cost: A is stored r times over; without `backup` read so too.
    """

    def __init__(
        self,
        where: HasDriver,
        A: object,
        r: int,
        *,
        n: int | None = None,
        backup: float | None = None,
        lost: str = "wait",
    ) -> None:
        array = checks.matrix(A, check_finite=True)
        self._driver = driver = driver_of(where)
        live = len(driver.engine.workers)
        count = checks.slots(n, live)
        self.r = checks.whole(r, "r (copies)", 1, count, "There is one copy a worker, at most.")
        if backup is not None:
            backup = checks.number(backup, "backup", "> 1", "It is a factor, or None.")
        checks.one_of(lost, "lost", LOST)
        super().__init__(array.dtype, array.shape)
        self.lost = lost
        self._late = None if backup is None else Late(factor=backup)
        self.blocks = count // self.r if backup is None else count
        copies = 1 if backup is None else self.r  # blocks in one slot
        blocks, rows = self.blocks, int(array.shape[0])
        self.slots = slots = [tuple((s + i) % blocks for i in range(copies)) for s in range(count)]
        self._cuts = cuts = [b * rows // blocks for b in range(blocks + 1)]

        def held(slot: int) -> Any:
            return _stacked([array[cuts[b] : cuts[b + 1]] for b in slots[slot]])

        self._holders = Holders(driver, count, held, slots)
        self._holders.place()
        self.key = self._holders.key
        self._seen: dict[tuple[bool, int], NDArray[Any]] = {}  # which pass, block -> last reply

    @property
    def T(self) -> Transpose[Replicated]:
        """The transpose: shares no data of its own."""
        return Transpose(self)

    @property
    def exact(self) -> bool:
        """Whether every product is of all rows, as they are now."""
        return self.lost == "wait"

    def rows(self, block: int) -> tuple[int, int]:
        """The rows of the matrix that are in a block."""
        return self._cuts[block], self._cuts[block + 1]

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
        blocks = self._pass(_Pass(self, None), operand, operand.shape[1:])
        result = np.full((self.shape[0], *operand.shape[1:]), np.nan, operand.dtype)
        for block, value in blocks.items():
            first, last = self.rows(block)
            result[first:last] = value
        return result

    def _transposed(self, z: NDArray[Any]) -> NDArray[Any]:
        blocks = self._pass(_Pass(self, z), None, z.shape[1:])
        shape = (self.shape[1], *z.shape[1:])
        if not self._driver.engine.capabilities.values:
            return np.full(shape, np.nan, z.dtype)
        return np.asarray(sum(blocks.values(), start=np.zeros(shape, z.dtype)))

    def _pass(
        self, way: _Pass, operand: NDArray[Any] | None, width: tuple[int, ...]
    ) -> dict[int, NDArray[Any]]:
        """One round: the value of each block that counts, in the order of blocks."""
        driver = self._driver
        driver.check()
        with driver.lock:
            began = driver.engine.now()
            driver.settle()
            self._holders.enlist()
            ready = self._holders.ready()
            spare, id = not self.exact, driver.next_round()
            round = ReplicatedRound(id, self.slots, ready, way, self._late, spare=spare)
            round.standby = self._holders.second()
            driver.run(round, operand, self._holders.supply)
            gathered = driver.engine.now()
            blocks = self._counted(round, way.z is None, width)
            given = way.z if operand is None else operand
            assert given is not None
            self._conclude(round, tuple(ready), (began, gathered), given.dtype)
        return blocks

    def _counted(
        self, round: ReplicatedRound, forward: bool, width: tuple[int, ...]
    ) -> dict[int, NDArray[Any]]:
        if not self._driver.engine.capabilities.values:
            return {}
        # Pieces of a task come in the order of its rows.
        blocks = {b: np.concatenate([*round.values[b].values()]) for b in sorted(round.values)}
        if self.lost == "stale":
            for block, value in blocks.items():
                self._seen[forward, block] = value
            for block in range(self.blocks):
                last = self._seen.get((forward, block))
                if last is not None and last.shape[1:] == width:
                    blocks.setdefault(block, last)
        return blocks

    def _conclude(
        self,
        round: ReplicatedRound,
        live: tuple[int, ...],
        times: tuple[float, float],
        dtype: np.dtype[Any],
    ) -> None:
        size = np.diff(self._cuts)
        used = int(size[list(round.values)].sum())
        figures: dict[str, Any] = {"rows_topped_up": int(size[list(round.asked_again)].sum())}
        figures["extra"] = {"missing_rows": self.shape[0] - used}
        if self.exact:
            figures["error_bound"] = error_bound(self.shape[1], dtype, 1.0)
        conclude(self, round, live, times, used, 1.0, **figures)

    def __repr__(self) -> str:
        return (
            f"<Replicated {self.shape[0]} x {self.shape[1]} {self.dtype}, {self.blocks} blocks, "
            f"{self.r} copies; lost: {self.lost}>"
        )


@dataclass(frozen=True, eq=False)
class _Pass:
    """The work of one product: with `z` that of the transpose."""

    matrix: Replicated
    z: NDArray[Any] | None

    @property
    def key(self) -> str:
        return self.matrix.key

    def task(self, round: int, worker: int, slot: int, block: int) -> Task:
        """Make the task for a block: the rows of it in what this slot holds."""
        matrix = self.matrix
        before = matrix.slots[slot][: matrix.slots[slot].index(block)]
        first = sum(last - first for first, last in map(matrix.rows, before))
        begin, end = matrix.rows(block)
        runs, cost = ((first, first + end - begin),), end - begin
        task = matrix._driver.next_task()
        if self.z is None:
            return Task(task, round, worker, work.product, (self.key, runs), runs, cost)
        args = (self.key, block, runs, self.z[begin:end])
        return Task(task, round, worker, work.adjoint, args, block, cost)


def conclude(
    X: Reporting,
    round: Round,
    live: tuple[int, ...],
    times: tuple[float, float],
    used: int,
    eta: float,
    **figures: Any,
) -> None:
    """Write the report of a product that needed `used` rows."""
    read, driver = dict(round.read), X._driver
    wasted, now = max(0, sum(read.values()) - used), driver.engine.now()
    rows = {"rows_read": read, "rows_used": used, "rows_wasted": wasted}
    figures = {"error_bound": None, **rows, **figures}
    X._report = round.report(ProductReport, live, (*times, now), eta=eta, **figures)
    driver.log.append(Record.result(now, X._report))


def driver_of(where: HasDriver) -> RoundDriver:
    """Return the driver of a cluster, with what has arrived taken in."""
    where._driver.settle()
    return where._driver


def _stacked(blocks: Sequence[Any]) -> Any:
    if checks.is_sparse(blocks[0]):
        return blocks[0] if len(blocks) == 1 else scipy.sparse.vstack(blocks, format="csr")
    return np.concatenate(blocks)


def uncoded(where: HasDriver, A: object) -> CodedMatrix:
    """Every live worker holds one block, and all must answer: an MDS code with k = n."""
    driver = driver_of(where)
    return _whole(driver, A, len(driver.engine.workers))


def whole_shares(where: HasDriver, A: object, k: int) -> CodedMatrix:
    """Non-adaptive MDS: every live worker multiplies its whole share, the first k replies count."""
    return _whole(driver_of(where), A, k)


def _whole(driver: RoundDriver, A: object, k: int) -> CodedMatrix:
    array = checks.matrix(A, check_finite=True)
    n = len(driver.engine.workers)
    code = threshold(k, n)
    options = Options(margin=n - code.k, late=None, measured_loads=False)
    return CodedMatrix(driver, shares_of(array, code), options)
