"""Some rows of a coded matrix as a matrix of its own, for stochastic descent.

Row r of the matrix is in block r // B, at place r % B of every share, B being the rows of a share.
So reading one place of k shares decodes k rows, one of each block. A product with some rows reads
their places only. `CodedMatrix.batches` draws rows so that every decoded row is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import checks
from ..errors import BadInput, CannotDo
from ..model import ProductReport
from . import work
from .operator import Reporting
from .scales import factors
from .transpose import Transpose

if TYPE_CHECKING:
    from .matrix import CodedMatrix

Ints = NDArray[np.intp]


class CodedRows(Reporting):
    """Rows `index` of a CodedMatrix, in that order: X.rows(index) @ w, and X.rows(index).T @ z.

    Shares no data of its own. Of every share only the places of these rows are read.
    """

    def __init__(self, matrix: CodedMatrix, index: ArrayLike) -> None:
        if matrix._options.verify is not None:
            raise CannotDo("verify checks whole products, not those of some rows. Leave it out.")
        self.index = _checked(index, matrix.shape[0])
        super().__init__(matrix.dtype, (len(self.index), matrix.shape[1]))
        self._matrix, self._driver = matrix, matrix._driver
        block, place = np.divmod(self.index, matrix._rows)
        self._places, at = np.unique(place, return_inverse=True)
        self._at = block * len(self._places) + at  # where each row is among those decoded
        scales = matrix._scales
        self._exponents = None if scales is None else scales.exponents[self.index]

    @property
    def T(self) -> Transpose[Any]:
        """The transpose."""
        return Transpose(self)

    @property
    def report(self) -> ProductReport:
        """What the last product with the matrix did."""
        return self._matrix.report

    @property
    def _check_finite(self) -> bool:
        return self._matrix._check_finite

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
        matrix = self._matrix
        if not len(self.index):
            return np.empty((0, *operand.shape[1:]), operand.dtype)
        with self._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            count, places = len(self._places), self._places
            blocks = matrix._pass(matrix.code, count, operand, work.picked, lambda share: (places,))
            rows = blocks[self._at].reshape(len(self.index), *operand.shape[1:])
            return matrix._finite(self._unscaled(rows))

    def _transposed(self, z: NDArray[Any]) -> NDArray[Any]:
        """The rows' transpose times z, for an operand that has been checked."""
        matrix = self._matrix
        if z.size == 0:
            return np.zeros((self.shape[1], *z.shape[1:]), z.dtype)
        unscaled = self._unscaled(z[:, None] if z.ndim == 1 else z)
        full = np.zeros((matrix.code.k * len(self._places), unscaled.shape[1]), z.dtype)
        np.add.at(full, self._at, unscaled)  # a row may be there twice
        with self._driver.lock, np.errstate(over="ignore", invalid="ignore"):
            return matrix._finite(matrix._sum(full, z.shape[1:], self._places))

    def _unscaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows if self._exponents is None else rows * factors(self._exponents, rows)

    def __repr__(self) -> str:
        return f"<{len(self.index)} rows of {self._matrix!r}>"


def aligned(N: int, rows: int, size: int, seed: Any) -> Iterator[Ints]:
    """Rows 0 … N-1 in batches of about `size`, each once: places at random, all blocks of each."""
    size = checks.whole(size, "size (rows of a batch)", 1)
    order = np.random.default_rng(seed).permutation(rows)
    blocks = -(-N // rows)
    step = max(1, round(size / blocks))
    for first in range(0, rows, step):
        places = np.sort(order[first : first + step])
        every = (np.arange(blocks)[:, None] * rows + places).ravel()
        yield every[every < N]


def _checked(index: ArrayLike, N: int) -> Ints:
    array = checks.plain(index, "row numbers")
    if array.dtype == bool and array.shape == (N,):
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise BadInput(
            f"rows takes row numbers, a list or an array of whole numbers, or {N} booleans; got "
            f"shape {array.shape}, dtype {array.dtype}."
        )
    rows = array.astype(np.intp)
    rows = np.where(rows < 0, rows + N, rows)
    if rows.size and not 0 <= rows.min() <= rows.max() < N:
        raise BadInput(f"row numbers are below {N}, the rows of the matrix; got {array.max()}.")
    return rows
