"""Rateless products (Mallick et al., 2019): LT-coded rows, worked off until the product decodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .. import checks
from ..codes.inactivation import InactivationDecoder
from ..codes.linear import error_bound
from ..codes.rateless import LT, LTAssignment
from ..codes.values import Values
from ..errors import BadInput, CannotDo
from ..model import Outline, Task
from ..rounds.holders import HasDriver, Holders
from ..rounds.rateless import RatelessRound
from . import work
from .baselines import conclude, driver_of
from .operator import Reporting

BLOCKS = 1000  # of rows, by default: the master decodes so many values
PIECES = 64  # messages of a worker that works off its whole stack, about


class Rateless(Reporting):
    """A matrix as `blocks` blocks of rows (default: 1000, or single rows), coded without a rate.

    Each of n workers holds a stack of LT symbols, sums of a few blocks, twice as many in all as
    there are blocks (or `symbols`). It multiplies them from the top, and whatever a worker has done
    counts, from its first symbol on. `X @ w` ends when the symbols that are here, whosever,
    determine all blocks: a few more than there are blocks.

    No top-ups, no windows, no loads to learn; in return A is stored twice over, the master solves a
    sparse system for every product, and there is no X.T @ z: a rival of `cluster.encode`.
    """

    def __init__(
        self,
        where: HasDriver,
        A: object,
        *,
        blocks: int | None = None,
        symbols: int | None = None,
        n: int | None = None,
        seed: int = 0,
    ) -> None:
        array: Any = checks.matrix(A, check_finite=True)
        self._driver = driver = driver_of(where)
        rows = int(array.shape[0])
        count = checks.slots(n, len(driver.engine.workers))
        k = min(rows, BLOCKS) if blocks is None else checks.whole(blocks, "blocks", 1, rows)
        self._height = height = -(-rows // k)
        self.blocks = k = -(-rows // height)
        enough = LT().typical(k)
        made = max(2 * k, enough + count) if symbols is None else symbols
        self.code: LTAssignment = LT(symbols=made, seed=seed).assign(k, count)
        super().__init__(array.dtype, array.shape)
        table, each = self.code.table, self.code.each
        every = self.decoder()
        if not any(every.offer(key) for key in range(each * count)):
            raise BadInput(
                f"all symbols together must determine the {k} blocks; {each * count} do not. Use "
                f"symbols={2 * max(made, enough)}, or another seed."
            )
        padded = _padded(array, k * height)

        def held(slot: int) -> Any:
            where, start = table.gather(list(range(slot, each * count, count)))
            mix = sp.csr_array((np.ones(len(where)), where, start), shape=(each, k))
            if bool(sp.issparse(padded)):
                return sp.csr_array(sp.kron(mix, sp.eye_array(height)) @ padded, dtype=self.dtype)
            stack = mix @ padded.reshape(k, -1)
            return np.ascontiguousarray(stack.reshape(each * height, -1), self.dtype)

        self._holders = Holders(driver, count, held)
        self._holders.place()
        self.key = self._holders.key

    @property
    def T(self) -> NoReturn:
        """There is none."""
        raise CannotDo(
            "rateless rows have products X @ w alone: a sum over all rows has no rows to be coded. "
            "Use cluster.encode(A), whose X.T @ z is coded too."
        )

    def decoder(self) -> InactivationDecoder:
        """Make what says when the symbols that are here determine all blocks."""
        return InactivationDecoder(self.code.table, "these rows")

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
        driver = self._driver
        with driver.lock:
            began = driver.engine.now()
            driver.settle()
            self._holders.enlist()
            ready, id = self._holders.ready(), driver.next_round()
            decoder, code = self.decoder(), self.code
            round = RatelessRound(id, ready, _Stacks(self), decoder, code.n, code.each)
            round.standby = self._holders.second()
            driver.run(round, operand, self._holders.supply)
            times = (began, driver.engine.now())
            result = np.full((self.shape[0], *operand.shape[1:]), np.nan, operand.dtype)
            eta = 1.0
            if driver.engine.capabilities.values:
                values = Values(decoder)
                eta = values.eta
                blocks = values.of(self._replies(round, values.keys, operand.shape[1:]))
                result[:] = blocks.reshape(-1, *operand.shape[1:])[: self.shape[0]]
            figures: dict[str, Any] = {"error_bound": error_bound(self.shape[1], self.dtype, eta)}
            figures["extra"] = {"symbols": sum(b - a for _, (a, b), _ in round.values)}
            used = self.blocks * self._height
            conclude(self, round, tuple(ready), times, used, eta, **figures)
        return result

    def _replies(
        self, round: RatelessRound, keys: list[int], width: tuple[int, ...]
    ) -> NDArray[Any]:
        """The values of these symbols, shape (k, rows of a block, *width)."""
        h, n = self._height, self.code.n
        known = {
            i * n + slot: value[(i - first) * h : (i - first + 1) * h]
            for slot, (first, last), value in round.values
            for i in range(first, last)
        }
        return np.stack([known[key] for key in keys]).reshape(len(keys), h, *width)

    def __repr__(self) -> str:
        return (
            f"<Rateless {self.shape[0]} x {self.shape[1]} {self.dtype}, {self.blocks} blocks, "
            f"{self.code.n} stacks of {self.code.each} symbols>"
        )


@dataclass(frozen=True, eq=False)
class _Stacks:
    """The work of one product."""

    matrix: Rateless

    @property
    def key(self) -> str:
        return self.matrix.key

    def task(self, round: int, worker: int, first: int) -> Task:
        """Make the task for a stack from a symbol on; what it says counts symbols."""
        matrix = self.matrix
        each, h = matrix.code.each, matrix._height
        step = -(-each // PIECES)
        ends = [*range(first, each, step), each]
        pieces = Outline((((a, b),), (b - a) * h) for a, b in pairwise(ends))
        args = (matrix.key, (first, each), step, h)
        id = matrix._driver.next_task()
        return Task(id, round, worker, work.stacked, args, pieces, (each - first) * h)


def _padded(array: Any, rows: int) -> Any:
    """The same with rows of zeros at its end."""
    more = rows - array.shape[0]
    if not more:
        return array
    shape = (more, array.shape[1])
    if bool(sp.issparse(array)):
        return sp.vstack([array, sp.csr_array(shape, dtype=array.dtype)], format="csr")
    return np.concatenate([array, np.zeros(shape, array.dtype)])
