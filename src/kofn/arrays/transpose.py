"""The transpose of a matrix on workers: shares no data of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from numpy.typing import NDArray

from .. import checks
from ..model import ProductReport, RowRange
from .lowrank import LowRank
from .operator import OnWorkers, check_assigned

if TYPE_CHECKING:
    from .baselines import Replicated
    from .batches import CodedRows
    from .matrix import CodedMatrix

M = TypeVar("M", "CodedMatrix", "Replicated", "CodedRows")


class Transpose(OnWorkers, Generic[M]):
    """X.T @ z, by a second kind of pass over the same shares or blocks."""

    _product_name = "X.T @ z"

    def __init__(self, matrix: M) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])
        self._matrix: M = matrix
        self._driver = matrix._driver

    @property
    def T(self) -> M:
        """The matrix that this is the transpose of."""
        return self._matrix

    @T.setter
    def T(self, value: M) -> None:
        check_assigned(value is self._matrix, value)

    @property
    def report(self) -> ProductReport:
        """What the last product with the matrix, either way, did."""
        return self.T.report

    @property
    def _check_finite(self) -> bool:
        return self.T._check_finite

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
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
