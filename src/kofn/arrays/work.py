"""What workers do with a share. Runs where the share is; imports nothing heavy.

A share is a dense array or a scipy.sparse CSR matrix; slicing rows and products are all that is
used. Of small arrays `dot` takes half of the time of `@`.
A dense share may carry more columns than its matrix has: a velocity, which products leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes.threshold import mix
from ..model import Last, Piece, RowRange, new

Array = NDArray[Any]
Runs = Sequence[RowRange]
# Multiply-adds in a slice: four to ten milliseconds of a product that is bound by memory.
SLICE_WORK = 20_000_000
SENT = 2  # slices in a message: to send one takes the processor from those that multiply
CACHED = 1 << 17  # numbers that stay in cache while they are used twice
CONVERTED = 1 << 19  # numbers that are converted at a time


def slice_rows(share: Any, width: int) -> int:
    """Rows of a share in one slice, for an operand `width` wide."""
    rows, columns = share.shape
    per_row = columns if isinstance(share, np.ndarray) else 4 * share.nnz / max(1, rows)
    # A wide operand reuses each row from cache: about four of its columns cost as much as one.
    work = (per_row if per_row > 1 else 1.0) * (width / 4 if width > 4 else 1.0)
    return int(SLICE_WORK / work) or 1


def slices(runs: Runs, step: int) -> Iterator[RowRange]:
    """Runs cut into pieces of at most `step` rows."""
    for first, last in runs:
        for a in range(first, last, step):
            yield a, min(a + step, last)


def times(a: Any, b: Array) -> Any:
    """a @ b in the type of b, without a warning of what overflows: the master looks at it."""
    with np.errstate(over="ignore", invalid="ignore"):
        if a.dtype == b.dtype:
            return a.dot(b)
        if isinstance(a, np.ndarray) and a.dtype.itemsize < b.dtype.itemsize:
            return _promoted(a, b)
        return a.dot(b).astype(b.dtype, copy=False)


def _promoted(a: Array, b: Array) -> Array:
    """The same for a in lower precision: what is converted at a time stays in cache.

    NumPy converts all of a first, which takes several times as long as the product.
    """
    turned = a.strides[0] < a.strides[1]  # a transpose: its product is a sum over pieces
    rows = a.T if turned else a
    step = max(1, CONVERTED // max(1, rows.shape[1]))
    buffer = np.empty((min(step, len(rows)), rows.shape[1]), b.dtype)
    out = np.zeros((len(a), *b.shape[1:]), b.dtype)
    for first, last in slices(((0, len(rows)),), step):
        piece = buffer[: last - first]
        np.copyto(piece, rows[first:last])
        if turned:
            out += piece.T.dot(b[first:last])
        else:
            out[first:last] = piece.dot(b)
    return out


def count_rows(runs: Runs) -> int:
    """Rows in all runs."""
    rows = 0
    for first, last in runs:
        rows += last - first
    return rows


def product(kept: Any, operand: Array, key: str, runs: Runs) -> Iterable[Piece]:
    """Rows `runs` of the share times the operand: one product a run, cut in slices if long.

    A worker looks whether it is to stop after each slice, and sends some of them at a time.
    """
    return _product(matrix_of(kept[key], len(operand)), operand, runs)


def grouped(kept: Any, operand: Array, key: str, runs: Runs, groups: int) -> Iterable[Piece]:
    """The same in pieces of whole groups, of which the share has so many: the master checks each.

    `runs` begin and end with groups. A group that is longer than a slice has places to stop at.
    """
    share = matrix_of(kept[key], len(operand))
    step = slice_rows(share, 1 if operand.ndim == 1 else operand.shape[1])
    if count_rows(runs) <= step:
        return _product(share, operand, runs)
    return _grouped(share, operand, runs, step, groups)


def _grouped(share: Any, operand: Array, runs: Runs, step: int, groups: int) -> Iterator[Piece]:
    rows = share.shape[0]
    for first, last in runs:
        a = first
        while a < last:
            here = (a * groups + groups - 1) // rows  # the group that begins at a
            b = max((here + 1) * rows // groups, (a + step) * groups // rows * rows // groups)
            b, parts = min(b, last), []
            for c, d in slices(((a, b),), step):
                parts.append(times(share[c:d], operand))
                if d < b:
                    yield Piece(None, None, d - c)
            yield Piece(((a, b),), parts[0] if len(parts) == 1 else np.concatenate(parts), d - c)
            a = b


def mixed(
    kept: Any, operand: Array, key: str, runs: Runs, columns: int, coefficients: Array, turned: bool
) -> Iterable[Piece]:
    """The same, the operand's blocks added up first; `turned` takes the share's transpose."""
    share = matrix_of(kept[key], columns)
    return _product(share.T if turned else share, mix(coefficients, operand), runs)


def picked(kept: Any, operand: Array, key: str, runs: Runs, places: Array) -> Iterable[Piece]:
    """The product of some rows of the share: those at `places`, of which `runs` are to be read."""
    share = matrix_of(kept[key], len(operand))
    step = slice_rows(share, 1 if operand.ndim == 1 else operand.shape[1])
    if count_rows(runs) <= step:
        rows = np.concatenate([places[first:last] for first, last in runs])
        return (Piece(runs, times(share[rows], operand), len(rows)),)
    every = slices(runs, step)
    return (Piece(((a, b),), times(share[places[a:b]], operand), b - a) for a, b in every)


def matrix_of(share: Any, columns: int | None) -> Any:
    """The share without its velocity, if it has one."""
    moving = columns is not None and share.shape[1] == 2 * columns
    return share[:, :columns] if moving else share


def _product(share: Any, operand: Array, runs: Runs) -> Iterable[Piece]:
    step = slice_rows(share, 1 if operand.ndim == 1 else operand.shape[1])
    if count_rows(runs) <= step:
        parts = [times(share[first:last], operand) for first, last in runs]
        value = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # A known number of pieces: one message.
        return (new(Piece, (runs, value, len(value))),)
    return _long_product(share, operand, list(slices(runs, step)))


def _long_product(share: Any, operand: Array, runs: Runs) -> Iterator[Piece]:
    for i in range(0, len(runs), SENT):
        some, parts = runs[i : i + SENT], list[Any]()
        for a, b in some:
            if parts:
                yield Piece(None, None, len(parts[-1]))
            parts.append(times(share[a:b], operand))
        value = parts[0] if len(parts) == 1 else np.concatenate(parts)
        kind = Last if i + SENT >= len(runs) else Piece
        yield kind(_joined(some), value, len(parts[-1]))


def _joined(runs: Runs) -> tuple[RowRange, ...]:
    """The same rows in as few runs as can be."""
    starts = [a for i, (a, _) in enumerate(runs) if not i or runs[i - 1][1] != a]
    ends = [b for i, (_, b) in enumerate(runs, 1) if i == len(runs) or runs[i][0] != b]
    return tuple(zip(starts, ends, strict=True))


def stacked(
    kept: Any, operand: Array, key: str, symbols: RowRange, step: int, height: int
) -> Iterator[Piece]:
    """Symbols of a stack, each so many rows high, times the operand: `step` of them at a time."""
    share = kept[key]
    for a, b in slices((symbols,), step):
        value = times(share[a * height : b * height], operand)
        yield Piece(((a, b),), value, (b - a) * height)


def adjoint(
    kept: Any,
    operand: None,
    key: str,
    item: int,
    runs: Runs,
    u: Array,
    columns: int | None = None,
    places: Array | None = None,
) -> Iterable[Piece]:
    """Σ share[r]ᵀ u[r] over the rows of `runs`; u holds just those rows, in order.

    With `places` runs count these.
    """
    share = matrix_of(kept[key], columns)
    step = slice_rows(share, 1 if u.ndim == 1 else u.shape[1])
    rows = count_rows(runs)
    if rows <= step:
        return (Piece(item, np.asarray(reduce(np.add, _terms(share, runs, u, places))), rows),)
    return _long_adjoint(share, item, list(slices(runs, step)), u, places)


def _terms(share: Any, runs: Runs, u: Array, places: Array | None) -> Iterator[Any]:
    done = 0
    for first, last in runs:
        rows = share[first:last] if places is None else share[places[first:last]]
        yield times(rows.T, u[done : done + last - first])
        done += last - first


def _long_adjoint(
    share: Any, item: int, runs: Runs, u: Array, places: Array | None
) -> Iterator[Piece]:
    total: Any = 0.0
    for (a, b), term in zip(runs, _terms(share, runs, u, places), strict=True):
        total = total + term
        yield Piece(None, None, b - a)
    yield Last(item, total, 0)


def gram(
    kept: Any, operand: None, key: str, item: int, runs: Runs, columns: int, u: Array
) -> Iterator[Piece]:
    """Σ w x xᵀ over the rows x of `runs`, w being the last column of u; and uᵀ x below it."""
    share = matrix_of(kept[key], columns)
    total, done = np.zeros((columns + u.shape[1], columns)), 0
    for a, b in slices(runs, max(1, CACHED // columns)):
        add_gram(total, np.asarray(share[a:b], np.float64), u[done : done + b - a])
        done += b - a
        yield Piece(None, None, b - a)
    yield Piece(item, total, 0)


def add_gram(total: Array, x: Array, u: Array) -> None:
    """Add Σ w x xᵀ over the rows of x, and uᵀ x below it; w is the last column of u."""
    columns, w = x.shape[1], u[:, -1]
    with np.errstate(over="ignore", invalid="ignore"):
        total[:columns] += w[0] * (x.T @ x) if (w == w[0]).all() else (x.T * w) @ x
        total[columns:] += u.T @ x


def fetch(
    kept: Any, operand: None, key: str, runs: Runs, offset: int, columns: int
) -> Iterator[Piece]:
    """The rows themselves, up to a column; runs count from `offset`."""
    share = kept[key]
    dense = isinstance(share, np.ndarray)
    for a, b in slices(runs, max(1, 1_000_000 // max(1, columns))):
        rows = share[offset + a : offset + b, :columns]
        yield Piece(((a, b),), rows if dense else rows.toarray(), b - a)


def add_low_rank(share: Array, U: Array, V: Array | None) -> Array:
    """The share plus U Vᵀ (or plus U): in place once it is the worker's own memory."""
    if not share.flags.writeable:
        share = share.copy()
    _add(share, U, V)
    return share


def add_velocity(share: Array, U: Array, V: Array | None, momentum: float) -> Array:
    """The share and its velocity, side by side: velocity = momentum · velocity + U Vᵀ, share += it.

    A share without a velocity gets one, zero before this change.
    """
    d = U.shape[1] if V is None else len(V)
    if share.shape[1] == d:
        share = np.hstack([share, np.zeros_like(share)])
    elif not share.flags.writeable:
        share = share.copy()
    velocity = share[:, d:]
    velocity *= momentum
    _add(velocity, U, V)
    share[:, :d] += velocity
    return share


def _add(to: Array, U: Array, V: Array | None) -> None:
    """Add U Vᵀ (or U) to the leading columns, in place."""
    if V is None:
        to[:, : U.shape[1]] += U
        return
    for a in range(0, len(to), 1024):  # bounded temporary memory
        to[a : a + 1024, : len(V)] += U[a : a + 1024] @ V.T
