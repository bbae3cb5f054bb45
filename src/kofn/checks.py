"""Bad input, caught before a worker is touched: each message names rule, fact and remedy."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from .errors import BadInput, Overflowed

# Numbers in one scalar product: with more, BLAS wakes all its threads. They go on burning cores for
# up to a tenth of a second afterwards, which the workers need.
ON_ONE_THREAD = 8192
AT_ONCE = 1 << 20  # numbers looked at at a time
WORKERS = 1_000_000  # at most, and slots for them: a slip of the keyboard must not fill the memory
DEFAULT = "Pass an int, or leave it out for the default."
LEAVE = "Leave it out for the default."
RULES: dict[str, Callable[[float], bool]] = {
    "that is finite": math.isfinite,
    ">= 0": lambda value: value >= 0,
    ">= 1": lambda value: value >= 1,
    "> 0": lambda value: value > 0,
    "> 1": lambda value: value > 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in (0, 1)": lambda value: 0 < value < 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
}


def is_sparse(value: object) -> bool:
    """Tell whether this is a matrix or array of scipy.sparse.

    Who has one has imported that module. It takes a third of the time of `import kofn`, so kofn
    imports it only when it is needed: `import scipy`, then `scipy.sparse.name` where it is used.
    """
    known = type(value) is not np.ndarray and "scipy.sparse" in sys.modules
    return known and bool(scipy.sparse.issparse(value))


def whole(
    value: object, name: str, least: int, most: float = math.inf, remedy: str = DEFAULT
) -> int:
    """Return `value` as an int from `least` to `most`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not least <= int(value) <= most
    ):
        rule = f">= {least}" if most == math.inf else f"from {least} to {most}"
        raise BadInput(f"{name} must be a whole number {rule}; got {value!r}. {remedy}")
    return int(value)


def whole_fields(owner: object, **least: int) -> None:
    """Make these fields of a frozen dataclass ints, each at least so large."""
    kind = type(owner).__name__
    for field, low in least.items():
        value = whole(getattr(owner, field), f"{field} of {kind}", low, remedy="Pass an int.")
        object.__setattr__(owner, field, value)


def number(
    value: object, name: str, rule: str, remedy: str = LEAVE, *, infinite: bool = False
) -> float:
    """Return `value` as a float that keeps one of RULES; NaN never does."""
    try:
        result = (
            float(value)
            if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
            else math.nan
        )
    except OverflowError:  # a whole number or a fraction that no float is as large as
        result = math.nan
    if not RULES[rule](result) or (math.isinf(result) and not infinite):
        raise BadInput(f"{name} must be a number {rule}; got {value!r}. {remedy}")
    return result


def seconds(value: object, name: str) -> float:
    """Return `value` as a number of seconds >= 0, or infinity."""
    remedy = "It counts seconds: use 0 for not at all, float('inf') for ever."
    return number(value, name, ">= 0", remedy, infinite=True)


def one_of(value: object, name: str, options: Collection[str], remedy: str = LEAVE) -> None:
    """Refuse what is not one of these."""
    if not isinstance(value, str) or value not in options:
        raise BadInput(f"{name} must be one of {', '.join(options)}; got {value!r}. {remedy}")


def margin(value: object, n: int, k: int) -> int:
    """Return how many more than k of n are asked for a row."""
    extra = whole(value, "margin", 0)
    if extra > n - k:
        raise BadInput(
            f"k + margin must be at most n: no more than {n} can be asked for a row; got k={k}, "
            f"margin={extra}, n={n}. Use margin <= {n - k}."
        )
    return extra


def slots(n: object, live: int) -> int:
    """Return n, at least the number of live workers; that number for None."""
    count = live if n is None else whole(n, "n", 1, WORKERS)
    if count < live:
        raise BadInput(
            f"n must be at least the number of live workers; got n={n} and {live} live. "
            f"Give {live} or more (n=, the n of a code, or workers= of an estimator), or connect "
            f"fewer workers."
        )
    return count


def plain(value: Any, name: str) -> NDArray[Any]:
    """Return `value`, a frame too, as a base NumPy array; masks and ragged lists are refused."""
    if type(value) is np.ndarray:
        return value
    convertible(value, name)
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biuf" or (names := column_names(value)) is None:
            return array
        return np.stack([_column(value, i, n, name) for i, n in enumerate(names)], axis=1)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(
            f"{name} must be an array, or rows of equal length; NumPy says: "
            f"{str(error).rstrip('.')}. Check the lengths of its rows."
        ) from None


def feature_names(value: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame, if all are text, as in scikit-learn; None of all else."""
    names = column_names(value)
    return None if names is None or not all(isinstance(one, str) for one in names) else names


def column_names(value: Any) -> tuple[Any, ...] | None:
    """Labels of the columns of a pandas or polars frame or a pyarrow table; None of all else."""
    names = getattr(value, "column_names", None)  # pyarrow's
    names = getattr(value, "columns", None) if names is None else names
    if names is None or not hasattr(value, "__array__"):
        return None
    return tuple(names)


def _column(frame: Any, i: int, label: object, name: str) -> NDArray[Any]:
    """One column of a frame as numbers, NaN where one is missing."""
    if hasattr(frame, "iloc"):  # pandas
        column = frame.iloc[:, i]
    else:
        column = frame.column(i) if hasattr(frame, "column") else frame.to_series(i)
    array = np.asarray(column)
    if array.dtype == object:  # pandas, where a number may be missing
        with suppress(TypeError, ValueError):  # of text, which is told below
            array = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if array.dtype.kind not in "biuf":
        shown = repr(str(array[0])) if len(array) else str(array.dtype)
        raise BadInput(
            f"{name} must hold numbers in every column; column {label!r} holds {shown}. Leave it "
            f"out, or turn it into numbers, with sklearn.preprocessing.OneHotEncoder say."
        )
    return array


def convertible(value: Any, name: str) -> None:
    """Refuse what NumPy or SciPy takes without a word, but not as it was meant."""
    in_memory(value, name)
    unmasked(value, name)
    if is_sparse(value):
        indexed(value, name)


def indexed(A: Any, name: str) -> Any:
    """Return a sparse matrix, without a copy; refuse indices that lead outside of it.

    SciPy would read and write there. Numbers beyond the last entry are left out. The cost
    is a pass over the indices. Formats without index arrays cannot have such.
    """
    try:
        if A.format in ("csr", "csc", "bsr"):
            if not {A.indices.dtype.kind, A.indptr.dtype.kind} <= {"i", "u"}:
                raise ValueError("indices and index pointer must be whole numbers")
            A = copy.copy(A)  # the arrays are the same; what is changed is not the caller's
            A.check_format(full_check=True)
        elif A.format == "coo":
            coords = A.coords if hasattr(A, "coords") else (A.row, A.col)
            for index, size in zip(coords, A.shape, strict=True):
                if len(index) != A.data.shape[0] or not _within(index, size):
                    raise ValueError("row and column indices must fit shape and data")
    except ValueError as error:
        raise BadInput(
            f"{name} must have indices that fit its shape: {str(error).rstrip('.')}. "
            f"Build it again, for example with scipy.sparse.csr_array((data, (row, "
            f"column)), shape=shape)."
        ) from None
    return A


def _within(index: NDArray[Any], size: int) -> bool:
    return not len(index) or (int(index.min()) >= 0 and int(index.max()) < size)


def in_memory(value: Any, name: str) -> None:
    """Refuse a Dask collection, or rows that are: NumPy would compute it in this process."""
    if "dask" not in sys.modules:  # whoever has a collection has imported it
        return
    for row in value if isinstance(value, list | tuple) else (value,):
        if hasattr(type(row), "__dask_graph__") and row.__dask_graph__() is not None:
            raise BadInput(
                f"{name} must be in memory or in files: kofn does not compute a Dask "
                f"collection in the calling process; got {type(row).__name__} of Dask. "
                f"Write it with to_zarr or to_parquet and pass the path to encode or "
                f"fit, or pass x.compute() if it fits in memory."
            )


def unmasked(value: Any, name: str) -> None:
    """Refuse a masked array, or rows that are: NumPy would drop the mask without a word."""
    rows = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise BadInput(
            f"{name} must be a plain array: a mask cannot be coded. Got a masked array; pass "
            f"x.filled(0), or drop the masked rows."
        )


def matrix(A: Any, check_finite: bool, name: str = "a matrix to encode") -> Any:
    """Return A as a float64 or float32 matrix, dense or CSR, with at least one row and column."""
    sparse = is_sparse(A)
    if sparse and A.format != "csr":
        raise BadInput(
            f"a sparse matrix to encode must be in CSR format, whose rows can be cut; got "
            f"{A.format.upper()}. Pass A.tocsr()."
        )
    array: Any = indexed(A, name) if sparse else plain(A, name)
    if array.ndim != 2:
        hint = "Use reshape(len(A), -1)"
        if array.ndim < 2:
            hint = "Use reshape(-1, 1) for a single column" if array.ndim else "Pass an array"
        got = f"{array.ndim} (shape {array.shape})" if array.ndim else f"a {type(A).__name__}"
        raise BadInput(f"{name} must have 2 dimensions; got {got}. {hint}.")
    if 0 in array.shape:
        raise BadInput(
            f"{name} must have at least one row and one column; got shape {array.shape}. Check "
            f"how it was loaded."
        )
    array = floats(array, name)
    if check_finite:
        finite(array, name.replace("a matrix", "the matrix"))
    return array


def operand(
    w: object, d: int, dtype: np.dtype[Any], check_finite: bool, name: str = "X @ w"
) -> NDArray[Any]:
    """Return w as an array (d,) or (d, c), C-contiguous, of the type of a product with `dtype`.

    That is NumPy's: double precision where either has it, and complex for complex numbers.
    """
    letter = name[-1]
    if hasattr(w, "toarray"):  # sparse, or on workers
        got = f"a sparse {letter}" if is_sparse(w) else f"a {type(w).__name__}"
        raise BadInput(
            f"{name} takes a dense vector or matrix; got {got}. Pass {letter}.toarray()."
        )
    array = plain(w, letter)
    if array.ndim not in (1, 2):
        got = f"{array.ndim} dimensions" if array.dtype != object else f"a {type(w).__name__}"
        raise BadInput(
            f"{name} takes a vector or a matrix of columns; got {got}. Pass a NumPy array of "
            f"{d} rows."
        )
    if array.shape[0] != d:
        raise BadInput(
            f"{name.split(' ')[0]} has {d} columns, so {letter} must have {d} rows; got shape "
            f"{array.shape}. "
            + (f"Did you mean {letter}.T?" if array.shape[1:] == (d,) else f"Pass {d} rows.")
        )
    array = np.ascontiguousarray(array, dtype=product_type(array.dtype, dtype, letter))
    if check_finite:
        finite(array, letter)
    return array


def product_type(one: np.dtype[Any], other: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The type of products of numbers of these types; the largest have 64 bits, twice if complex.

    Raises BadInput where the first are no numbers; they are those of `name`.
    """
    if one == other:
        return other
    if one.kind not in "biufc":
        raise BadInput(
            f"{name} must hold real numbers (floats, or integers) or complex ones; got dtype "
            f"{one}. Convert it, for example with .astype(float)."
        )
    dtype = np.result_type(one, other)
    return dtype if dtype.char in "fdFD" else np.dtype("D" if dtype.kind == "c" else "d")


def factors(X: Any, Y: Any, check_finite: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return X (m, n) and Y (n, p), dense, in one floating type: float32 only if both are.

    What is returned cannot be changed by the caller: copies, or arrays that nobody can write to.
    """
    pair = []
    for value, name in ((X, "X"), (Y, "Y")):
        if hasattr(value, "toarray"):
            raise BadInput(
                f"{name} must be a dense matrix; got {type(value).__name__} of shape "
                f"{getattr(value, 'shape', 'unknown')}. Pass {name}.toarray()."
            )
        pair.append(matrix(value, False, name))
    if pair[0].shape[1] != pair[1].shape[0]:
        raise BadInput(
            f"X Y needs as many columns of X as Y has rows; got shapes {pair[0].shape} and "
            f"{pair[1].shape}. Transpose one of them, or check which was meant."
        )
    dtype = np.result_type(*pair)
    left, right = (_own(array.astype(dtype, copy=False), array) for array in pair)
    if check_finite:
        finite(left, "X")
        finite(right, "Y")
    return left, right


def floats(array: Any, name: str) -> Any:
    """Return an array as float64 or float32, of this machine's byte order."""
    if array.dtype.char in "df" and array.dtype.isnative:
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize == 4:
        return array.astype(np.float32)  # the other byte order
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    raise BadInput(
        f"{name} must hold real numbers (float64, float32, or integers, which become float64); "
        f"got dtype {array.dtype}. Convert it, for example with .astype(float)."
    )


def misfit(value: object, shape: tuple[int, ...], kinds: str = "f") -> str | None:
    """Why a reply cannot be an array of this shape, of numbers of these kinds; None where it is."""
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}, where an array of shape {shape} was asked for"
    if value.shape == shape and value.dtype.kind in kinds:
        return None
    return f"{value.dtype} in shape {value.shape}, where numbers in shape {shape} were asked for"


def is_finite(array: NDArray[Any]) -> bool:
    """Whether all numbers are. One pass; squares of large numbers make a second one."""
    # By BLAS first, where that can be: half a microsecond for a few.
    plain = array.dtype.char in "fd" and array.flags.forc
    return (plain and math.isfinite(squares(array))) or bool(np.isfinite(array).all())


def squares(array: NDArray[Any]) -> float:
    """The sum of all squares, of an array in one piece. Warns of nothing."""
    flat = array if array.ndim == 1 else array.reshape(-1, order="A")
    if flat.size <= ON_ONE_THREAD:
        return float(np.vdot(flat, flat))  # `dot` would warn
    total = 0.0
    for first in range(0, flat.size, ON_ONE_THREAD):
        part = flat[first : first + ON_ONE_THREAD]
        total += float(np.vdot(part, part))
    return total


def length(array: NDArray[Any]) -> float:
    """The Euclidean norm of all numbers, in double precision."""
    return math.sqrt(squares(np.asarray(array, np.float64, order="K").ravel(order="K")))


def finite(array: Any, name: str, first: int = 0) -> None:
    """Refuse NaN and infinity, naming the entry; rows are numbered from `first` on."""
    sparse = is_sparse(array)
    values = array.data if sparse else array
    if values.size <= AT_ONCE and is_finite(values):
        return
    rows = max(1, AT_ONCE // max(1, values[0].size if len(values) else 1))
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        if not is_finite(part):
            bad = np.argwhere(~np.isfinite(part))[0]
            at = [int(bad[0]) + start, *(int(i) for i in bad[1:])]
            if sparse:
                row = int(np.searchsorted(array.indptr, at[0], "right")) - 1
                at = [row, int(array.indices[at[0]])]
            shown = ", ".join(map(str, [at[0] + first, *at[1:]]))
            raise BadInput(
                f"{name} must be finite: one NaN would spread over every coded reply. Entry "
                f"[{shown}] is {part[tuple(bad)]}. Clean it, or let it through with "
                f"check_finite=False of cluster.encode or cluster.sequence."
            )


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


def not_overflowed(result: NDArray[Any]) -> NDArray[Any]:
    """Return a coded product of finite numbers if it is finite itself."""
    if not is_finite(result):
        raise Overflowed(
            f"coded products of finite numbers must stay below {np.finfo(result.dtype).max:.1e}; "
            f"this one, or a coded sum on the way to it, does not. Scale the data or the operand "
            f"down, or pass check_finite=False to encode."
        )
    return result
