"""A matrix on workers as SciPy knows matrices that nobody has in memory: a linear operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import BadInput, CannotDo, NothingYet
from ..model import ProductReport

if TYPE_CHECKING:
    from ..rounds import RoundDriver

    LinearOperator: Any  # its stubs do not foresee that T, @ and += are a subclass's own
else:
    from scipy.sparse.linalg import LinearOperator


class OnWorkers(LinearOperator):  # type: ignore[misc]
    """A matrix that NumPy cannot take apart: its numbers are not here.

    SciPy's solvers take it as it is: svds, eigsh, lsqr, lsmr, cg, lobpcg. Sums and products with
    other operators (X.T @ X, 2 * X) are operators too, and compute nothing until they are used.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None = None  # their names, where it was encoded from a frame
    args: tuple[Any, ...] = ()  # SciPy: what an operator was made of
    _driver: RoundDriver
    _product_name = "X @ w"  # for messages

    def __matmul__(self, w: object) -> NDArray[Any]:
        """X @ w for a vector (d,) or columns (d, c): exact to `report.error_bound`.

        The result has the type that NumPy gives such a product: float64 where either is float64.
        Complex numbers travel as twice as many real columns, in one round.
        Any k live workers are enough. Raises TooFewWorkers below that, and keeps the matrix
        usable: the next product works as soon as enough workers have joined.
        """
        if isinstance(w, LinearOperator):
            if w.shape[0] != self.shape[1]:
                raise BadInput(
                    f"an operator on the right must have {self.shape[1]} rows, as many as this has "
                    f"columns; got a {type(w).__name__} of shape {w.shape}. Was X.T @ X meant?"
                )
            return self.dot(w)  # type: ignore[no-any-return] # an operator, and used as an array is
        return self._times(w)

    def _times(self, w: object) -> NDArray[Any]:
        """The product with an array."""
        self._driver.check()
        rows, columns = self.shape
        finite, name = self._check_finite, self._product_name
        operand = checks.operand(w, columns, self.dtype, finite, name)
        if operand.dtype.kind != "c":
            return self._multiplied(operand)
        real = self._multiplied(operand.view(operand.real.dtype).reshape(columns, -1))
        return np.ascontiguousarray(real).view(operand.dtype).reshape(rows, *operand.shape[1:])

    def _multiplied(self, operand: NDArray[Any]) -> NDArray[Any]:
        """The product with an array of real numbers that has been checked, in its type."""
        raise NotImplementedError

    @property
    def _check_finite(self) -> bool:
        """Whether NaN and infinity are refused."""
        return True

    def _matvec(self, x: NDArray[Any]) -> NDArray[Any]:
        return self._times(x)

    def _rmatvec(self, x: NDArray[Any]) -> NDArray[Any]:
        other: OnWorkers = self.T
        return other._times(x)

    def _adjoint(self) -> Any:
        return self.T

    _matmat, _rmatmat, _transpose = _matvec, _rmatvec, _adjoint

    def __reduce__(self) -> NoReturn:
        raise CannotDo(
            "a coded matrix cannot be pickled: its shares stay with its workers. Encode it there, "
            "or write a store (kofn encode) and pass its path."
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise CannotDo(
            f"a matrix on workers takes products and += alone; this {type(self).__name__} was "
            f"given to NumPy, or indexed. X.toarray() fetches a coded X."
        )

    __getitem__ = __array__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """w @ X, and w * X as SciPy has it, where NumPy is asked; all else cannot be done."""
        if method == "__call__" and len(inputs) == 2 and not options:
            left, right = inputs
            if ufunc is np.matmul:
                return left @ right if isinstance(left, OnWorkers) else right._rdot(left)
            # X * w does not come here, and np.multiply(X, w) means another thing.
            if ufunc is np.multiply and not isinstance(left, OnWorkers):
                return right.__rmul__(left)
        return self.__array__()


def check_assigned(same: bool, value: object) -> None:
    """Refuse what is assigned to X.T, unless X.T += change ends in it."""
    if not same:
        raise BadInput(
            f"X.T is X seen from its other side, and takes nothing but X.T += change; got a "
            f"{type(value).__name__}. Encode that instead."
        )


class Reporting(OnWorkers):
    """A matrix on workers: `report` says what its last product did."""

    _report: ProductReport | None = None

    @property
    def report(self) -> ProductReport:
        """What the last product did. Raises NothingYet before the first."""
        if self._report is None:
            raise NothingYet("a report describes the last product; there was none yet. Multiply.")
        return self._report
