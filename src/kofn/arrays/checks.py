"""Bad input, caught before a worker is touched: each message names rule, fact and remedy."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..errors import BadInput, Overflowed
from .lowrank import LowRank

CHUNK = 1 << 20  # numbers looked at at a time


def whole(value: object, name: str, least: int) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise BadInput(
            f"{name} must be a whole number >= {least}; got {value!r}. Pass an int, or leave it "
            f"out for the default."
        )
    return int(value)


def seconds(value: object, name: str) -> float:
    """Return `value` as a number of seconds >= 0 (infinity is fine, NaN is not)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise BadInput(
            f"{name} must be a number of seconds >= 0; got {value!r}. Use 0 for not at all, "
            f"float('inf') for ever."
        )
    return float(value)


def positive(value: object, name: str, remedy: str) -> float:
    """Return `value` as a number > 0 (infinity is fine, NaN is not)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise BadInput(f"{name} must be a number > 0; got {value!r}. {remedy}")
    return float(value)


def plain(value: Any, name: str) -> NDArray[Any]:
    """Return `value` as a base NumPy array; masks and ragged lists are refused."""
    unmasked(value, name)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise BadInput(
            f"{name} must be an array, or rows of equal length; NumPy says: {error}. Check the "
            f"lengths of its rows."
        ) from None


def unmasked(value: Any, name: str) -> None:
    """Refuse a masked array, or rows that are: NumPy would drop the mask without a word."""
    rows = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise BadInput(
            f"{name} must be a plain array: a mask cannot be coded. Got a masked array; pass "
            f"x.filled(0), or drop the masked rows."
        )


def matrix(A: Any, check_finite: bool) -> Any:
    """Return A as a float64 or float32 matrix, dense or CSR, with at least one row and column."""
    sparse = bool(scipy.sparse.issparse(A))
    if sparse and A.format != "csr":
        raise BadInput(
            f"a sparse matrix to encode must be in CSR format, whose rows can be cut; got "
            f"{A.format.upper()}. Pass A.tocsr()."
        )
    array: Any = A if sparse else plain(A, "a matrix to encode")
    if array.ndim != 2:
        hint = "A.reshape(-1, 1) for a single column" if array.ndim < 2 else "A.reshape(len(A), -1)"
        raise BadInput(
            f"a matrix to encode must have 2 dimensions; got {array.ndim} (shape {array.shape}). "
            f"Use {hint}."
        )
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise BadInput(
            f"a matrix to encode must have at least one row and one column; got shape "
            f"{array.shape}. Check how it was loaded."
        )
    array = _floats(array, "a matrix to encode")
    if check_finite:
        _finite(array.data if sparse else array, "the matrix to encode", "encode")
    return array


def operand(
    w: object, d: int, dtype: np.dtype[Any], check_finite: bool, name: str = "X @ w"
) -> NDArray[Any]:
    """Return w as an array (d,) or (d, c) of `dtype`, C-contiguous."""
    letter = name[-1]
    if scipy.sparse.issparse(w):
        raise BadInput(
            f"{name} takes a dense vector or matrix; got a sparse {letter}. Pass "
            f"{letter}.toarray()."
        )
    array = plain(w, letter)
    if array.ndim not in (1, 2):
        got = f"{array.ndim} dimensions" if array.dtype != object else f"a {type(w).__name__}"
        raise BadInput(
            f"{name} takes a vector or a matrix of columns; got {got}. Pass a NumPy array of "
            f"{d} rows."
        )
    if array.shape[0] != d:
        matrix = name.split(" ")[0]
        raise BadInput(
            f"{matrix} has {d} columns, so {letter} must have {d} rows; got shape {array.shape}."
            + (f" Did you mean {letter}.T?" if array.ndim == 2 and array.shape[1] == d else "")
        )
    array = np.ascontiguousarray(_floats(array, letter), dtype=dtype)
    if check_finite:
        _finite(array, letter, "encode")
    return array


def change(
    value: object,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    check_finite: bool,
    scaled: Callable[[NDArray[Any]], NDArray[Any]],
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return (U, V) of an update U Vᵀ, or (array, None) of a plain one; copies, rows `scaled`."""
    made = value if isinstance(value, LowRank) else plain(value, "an update")
    if made.shape != shape:
        raise BadInput(
            f"an update of X must have its shape {shape}; got {made.shape}. Use "
            f"X += kofn.low_rank(U, V) with U ({shape[0]}, r) and V ({shape[1]}, r)."
        )
    parts = (made.U, made.V) if isinstance(made, LowRank) else (made,)
    # Copies: an update that was interrupted is sent to the rest later, and must be the same then.
    done = [np.array(_floats(part, "an update"), dtype=dtype, order="C") for part in parts]
    if check_finite:
        for part in done:
            _finite(part, "the update", "encode")
    with np.errstate(over="ignore", invalid="ignore"):
        done[0] = scaled(done[0])
    if check_finite:
        with np.errstate(over="ignore"):
            # Room for the sums of a share, whatever its coefficients.
            most = np.prod([np.abs(part).max(initial=0.0) for part in done], dtype=dtype)
            if not np.isfinite(most * dtype.type(1e3 * done[0].shape[1])):
                raise Overflowed(
                    f"an update must stay well below {np.finfo(dtype).max:.1e}; this one goes up "
                    f"to {float(most):.1e}, or its rows do beside those that they are added to. "
                    f"Scale it down."
                )
    return done[0], done[1] if len(done) == 2 else None


def _floats(array: Any, name: str) -> Any:
    if array.dtype in (np.float64, np.float32) and array.dtype.isnative:
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize == 4:
        return array.astype(np.float32)  # the other byte order
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    raise BadInput(
        f"{name} must hold real numbers (float64, float32, or integers, which become float64); "
        f"got dtype {array.dtype}. Convert it, for example with .astype(float)."
    )


def _finite(array: NDArray[Any], name: str, where: str) -> None:
    rows = max(1, CHUNK // max(1, array[0].size if len(array) else 1))
    for first in range(0, len(array), rows):
        part = array[first : first + rows]
        # The sum is finite unless an entry is not (or it overflows): one cheap pass first.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(part.sum()):
                continue
        if not np.isfinite(part).all():
            bad = np.argwhere(~np.isfinite(part))[0]
            place = (int(bad[0]) + first, *(int(i) for i in bad[1:]))
            shown = ", ".join(map(str, place))
            raise BadInput(
                f"{name} must be finite: one NaN would spread over every coded reply. Entry "
                f"[{shown}] is {part[tuple(bad)]}. Clean it, or pass {where}(..., "
                f"check_finite=False) to let it through."
            )
