"""CodedGrid: a coded matrix cut both ways, by rows and by columns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..codes.polydot import PolyDotCode, PolyDotPass
from ..errors import BadInput, CannotDo
from ..rounds import RoundDriver
from ..rounds.holders import HasDriver
from . import work
from .baselines import driver_of
from .decode import Code
from .matrix import CodedMatrix
from .options import Options
from .scales import scales_of
from .shares import Shares, longest_of


class CodedGrid(CodedMatrix):
    """A CodedMatrix of which every worker holds 1/(mp), by a PolyDot code (codes/polydot.py).

    X @ w needs m(2p-1) live workers, X.T @ z p(2m-1); with fewer than the larger of the two no
    product is begun. Unlike with rows alone, both products take any so many replies, so neither
    waits for a given worker. The rows of the shares (forward) or their columns (backward) are cut
    among the live workers, as everywhere. Dense matrices only.
    """

    code: PolyDotCode

    def __init__(
        self, driver: RoundDriver, A: NDArray[Any], code: PolyDotCode, options: Options
    ) -> None:
        shape, scales = (A.shape[0], A.shape[1]), scales_of(A, code.m)
        even = A if scales is None else scales.over(A)
        share_of, longest = partial(code.encode_share, A=even), partial(longest_of, A)
        grid = Shares(code, shape, A.dtype, share_of, scales=scales, longest=longest)
        if A.dtype.itemsize < 8:
            doubled = replace(grid, share_of=partial(share_of, doubled=True), doubled=True)
            grid = replace(grid, double=lambda: doubled)
        super().__init__(driver, grid, options)

    def iterate(self, *_: Any, **__: Any) -> NoReturn:
        """Not with a grid."""
        raise CannotDo(
            "iterate needs a matrix cut by rows: in a grid every worker's operand is coded apart. "
            "Use cluster.encode."
        )

    def rows(self, index: Any) -> NoReturn:
        """Not with a grid."""
        raise CannotDo("rows of a grid are spread over all its columns. Use cluster.encode.")

    @property
    def _columns(self) -> int:
        return self.code.block_columns(self.shape[1])

    @property
    def _stored(self) -> Code:
        return self.code.stored

    def _coded(
        self, share: int, U: NDArray[Any], V: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        if not self._values:
            return None, None
        if V is None:
            return self.code.encode_share(share, U), None
        return self.code.encode_rows(share, U), self.code.encode_columns(share, V)

    def _joined(self, blocks: NDArray[Any]) -> NDArray[Any]:
        m, p = self.code.m, self.code.p
        grid = blocks.reshape(m, p, self._rows, self._columns).transpose(0, 2, 1, 3)
        whole = grid.reshape(m * self._rows, p * self._columns)
        return np.ascontiguousarray(whole[: self.shape[0], : self.shape[1]])

    def _product(self, operand: NDArray[Any]) -> NDArray[Any]:
        return self._unscaled(self._aligned(self.code.forward, self._rows, operand, self.shape))

    def _back(self, z: NDArray[Any]) -> NDArray[Any]:
        z = self._unscaled(z)
        return self._aligned(self.code.backward, self._columns, z, self.shape[::-1])

    def _aligned(
        self, one: PolyDotPass, rows: int, operand: NDArray[Any], shape: tuple[int, int]
    ) -> NDArray[Any]:
        columns, turned = self._columns, one.kind == "backward"
        blocks = self._pass(
            one, rows, operand, work.mixed, lambda share: (columns, one.operand(share), turned)
        )
        return blocks[: shape[0]].reshape(shape[0], *operand.shape[1:])

    def __repr__(self) -> str:
        code = self.code
        return (
            f"<CodedGrid {self.shape[0]} x {self.shape[1]} {self.dtype} in {code.m} x {code.p}, "
            f"any {code.k} of {code.n} shares; {len(self._holders.ready())} live>"
        )


def encode_grid(
    where: HasDriver,
    A: object,
    grid: tuple[int, int] = (2, 2),
    *,
    n: int | None = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> CodedGrid:
    """Cut A (N x d, dense) in a grid of m x p blocks and give every live worker a coded one.

    `n`: shares, at least the live workers (default: just those). Each is ceil(N/m) x ceil(d/p).
    """
    array = checks.matrix(A, options.check_finite)
    if not isinstance(array, np.ndarray):
        raise BadInput("a grid takes a dense matrix; got a sparse one. Pass A.toarray().")
    driver = driver_of(where)
    live = len(driver.engine.workers)
    count = live if n is None else checks.whole(n, "n (shares)", live)
    return CodedGrid(driver, array, PolyDotCode(count, *grid), options)
