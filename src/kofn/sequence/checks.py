"""Bad input to a sequence, caught before a worker is touched: rule, fact and remedy."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput


def number(value: object, name: str, positive: bool = False) -> float:
    """Return `value` as a finite number >= 0, or > 0."""
    fine = isinstance(value, Real) and not isinstance(value, bool) and np.isfinite(float(value))
    if not fine or float(value) < 0 or (positive and float(value) == 0):  # type: ignore[arg-type]
        raise BadInput(f"{name} must be a number {'>' if positive else '>='} 0; got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def operands(X: Any, Y: Any, check_finite: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return X (m, n) and Y (n, p) in one floating type, float32 only if both are.

    What is returned cannot be changed by the caller: copies, or arrays that nobody can write to.
    """
    pair = [_matrix(value, name) for value, name in ((X, "X"), (Y, "Y"))]
    if pair[0].shape[1] != pair[1].shape[0]:
        raise BadInput(
            f"X Y needs as many columns of X as Y has rows; got shapes {pair[0].shape} and "
            f"{pair[1].shape}. Transpose one of them, or check which was meant."
        )
    dtype = np.result_type(*pair)
    left, right = (_own(array.astype(dtype, copy=False), array) for array in pair)
    if check_finite:
        for array, name in ((left, "X"), (right, "Y")):
            _finite(array, name)
    return left, right


def _own(array: NDArray[Any], given: NDArray[Any]) -> NDArray[Any]:
    """`array` in one piece, and not in memory that the caller can still change."""
    if not array.flags.forc:
        return np.ascontiguousarray(array)  # a copy
    return array.copy(order="K") if array is given and not _frozen(array) else array


def _frozen(array: NDArray[Any]) -> bool:
    """Whether neither it nor what it is a view of can be written to."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None


def _matrix(value: Any, name: str) -> NDArray[Any]:
    if hasattr(value, "toarray"):
        raise BadInput(
            f"{name} must be a dense matrix; got {type(value).__name__} of shape "
            f"{getattr(value, 'shape', 'unknown')}. Use toarray() for a sparse matrix."
        )
    array = np.asarray(value)
    if array.ndim != 2 or 0 in array.shape:
        raise BadInput(
            f"{name} must be a dense matrix with at least one row and one column; got "
            f"{type(value).__name__} of shape {array.shape}. Use reshape(-1, 1) for a vector."
        )
    if array.dtype in (np.float64, np.float32):
        return array
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    raise BadInput(
        f"{name} must hold real numbers (float64, float32, or integers, which become float64); "
        f"got dtype {array.dtype}. Convert it, for example with .astype(float)."
    )


def _finite(array: NDArray[Any], name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one cheap pass; an infinite sum may still be fine
            return
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0].tolist()
        raise BadInput(
            f"{name} must be finite: one NaN would spread over every coded reply. Entry "
            f"[{row}, {column}] is {array[row, column]}. Clean it, or pass sequence(..., "
            f"check_finite=False) to let it through."
        )
