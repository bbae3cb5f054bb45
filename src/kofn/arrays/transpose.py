"""The transpose of a matrix on workers: shares no data of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import CannotDo, NothingYet
from ..model import ProductReport, RowRange
from .lowrank import LowRank

if TYPE_CHECKING:
    from .baselines import Replicated
    from .matrix import CodedMatrix

M = TypeVar("M", "CodedMatrix", "Replicated")


class OnWorkers:
    """A matrix that NumPy cannot take apart: its numbers are not here."""

    ndim = 2

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise CannotDo(
            f"a matrix on workers takes X @ w, X.T @ z and += alone; this {type(self).__name__} "
            f"was given to NumPy, or indexed. Use X.T @ w for w @ X; X.toarray() fetches a coded X."
        )

    __array_ufunc__ = __getitem__ = __array__


class Reporting(OnWorkers):
    """A matrix on workers: `report` says what its last product did."""

    _report: ProductReport | None = None

    @property
    def report(self) -> ProductReport:
        """What the last product did. Raises NothingYet before the first."""
        if self._report is None:
            raise NothingYet("a report describes the last product; there was none yet. Multiply.")
        return self._report


class Transpose(OnWorkers, Generic[M]):
    """X.T @ z, by a second kind of pass over the same shares or blocks."""

    def __init__(self, matrix: M) -> None:
        self.T: M = matrix
        self.shape: tuple[int, int] = matrix.shape[::-1]
        self.dtype: np.dtype[Any] = matrix.dtype

    @property
    def report(self) -> ProductReport:
        """What the last product with the matrix, either way, did."""
        return self.T.report

    def __matmul__(self, z: object) -> NDArray[Any]:
        """X.T @ z for a vector (N,) or columns (N, c): exact to `report.error_bound`."""
        self.T._driver.check()
        finite = self.T._check_finite
        operand = checks.operand(z, self.shape[1], self.dtype, finite, name="X.T @ z")
        return self.T._transposed(operand)

    def __repr__(self) -> str:
        return f"<transpose of {self.T!r}>"


class CodedTranspose(Transpose["CodedMatrix"]):
    """The transpose of a CodedMatrix."""

    @property
    def code(self) -> Any:
        """The code of the shares."""
        return self.T.code

    @property
    def shares(self) -> dict[int, int]:
        """Which share each live worker holds."""
        return self.T.shares

    def windows(self) -> dict[int, tuple[RowRange, ...]]:
        """Rows of its share (of X, not of its transpose) that each worker reads next."""
        return self.T.windows()

    def __iadd__(self, change: object) -> Self:
        """Add kofn.low_rank(U, V), or an array of this shape, to the transpose."""
        matrix = self.T
        matrix += change.T if isinstance(change, LowRank) else checks.plain(change, "an update").T
        return self
