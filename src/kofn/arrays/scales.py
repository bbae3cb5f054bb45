"""Rows that are mixed in a share are brought to one size first, by powers of two.

Row r of a share is a sum over row r of every block. Beside a row of 1e20 a row of ones is rounding
error, and decoding cannot bring it back. So where the k rows of a place differ much in length, each
is divided by a power of two near its length; products are multiplied with it again. Both are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..threads import each

SPREAD = 4  # lengths of a place that differ by no more than about two to this are left as they are
AT_ONCE = 1 << 22  # numbers that one of several threads looks at at a time
ZERO = np.iinfo(np.int16).min  # the exponent of a row of zeros, or one that is not finite

Exponents = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Scales:
    """What the rows of a matrix were divided by: 2 to `exponents`, (N,)."""

    exponents: Exponents

    def times(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Multiply (N,) or (N, c): from scaled rows to the rows themselves."""
        return np.asarray(rows * factors(self.exponents, rows))

    def over(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Divide (N,) or (N, c): from rows to scaled rows."""
        return np.asarray(rows * factors(-self.exponents, rows))


@dataclass(frozen=True, eq=False)
class Growth:
    """By how much updates have made the rounding of a place larger than its rows.

    Rows keep the scales that they were encoded with. An update may be small beside the largest row
    of its place and huge beside a small one. Divided by the scale of the small row it fills the
    shares, and their rounding is multiplied with the scale of the large row. `length`: bounds on
    the lengths of the scaled rows, (N,). `speed`: those of their velocity. `size`: what the longest
    row of each place has surely been, (rows,); row r lies at place r % rows.
    """

    scales: Scales
    size: NDArray[np.float64]
    length: NDArray[np.float64]
    speed: NDArray[np.float64]

    @classmethod
    def begun(cls, scales: Scales, rows: int) -> Growth:
        """Before the first update."""
        N = len(scales.exponents)
        longest = _by_place(scales.exponents.astype(np.float64), rows, -np.inf)
        return cls(scales, np.exp2(longest - 1), np.ones(N), np.zeros(N))

    def after(self, change: NDArray[np.float64], momentum: float = 0.0) -> Growth:
        """After an update whose scaled rows have these lengths, (N,); or a move."""
        speed = momentum * self.speed + change
        with np.errstate(over="ignore", invalid="ignore"):
            least = np.ldexp(speed - self.length, self.scales.exponents) if not momentum else 0.0
        grown = _by_place(np.broadcast_to(least, speed.shape), len(self.size), 0.0)
        size = np.maximum(self.size, np.nan_to_num(grown, posinf=0.0))
        return Growth(self.scales, size, self.length + speed, speed)

    @cached_property  # products ask for it, updates change it
    def factor(self) -> float:
        """What the error bound of a place, relative to its rows, is to be multiplied with."""
        exponents, rows = self.scales.exponents.astype(np.float64), len(self.size)
        high, low = _by_place(exponents, rows, -np.inf), -_by_place(-exponents, rows, -np.inf)
        with np.errstate(over="ignore", divide="ignore"):
            worst = high + np.log2(_by_place(self.length, rows, 0.0)) - np.log2(self.size) - 1
            # Never worse than the spread of the scales.
            return float(np.exp2(np.clip(worst, 0.0, high - low)).max(initial=1.0))


def _by_place(rows: NDArray[Any], places: int, empty: float) -> NDArray[np.float64]:
    """The largest of the rows at each place."""
    whole = np.full(-(-len(rows) // places) * places, empty)
    whole[: len(rows)] = rows
    return np.asarray(whole.reshape(-1, places).max(axis=0))


def change_lengths(U: NDArray[Any], V: NDArray[Any] | None) -> NDArray[np.float64]:
    """The lengths of the rows of U Vᵀ, or of U, (N,)."""
    rows = U.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        if V is not None:
            rows = rows @ np.linalg.qr(V.astype(np.float64, copy=False))[1].T
        return np.asarray(np.linalg.norm(rows, axis=1))


def factors(exponents: Exponents, rows: NDArray[Any]) -> NDArray[Any]:
    """Two to these exponents, one a row, to multiply `rows` with."""
    two = np.ldexp(rows.dtype.type(1), exponents)
    return np.reshape(two, (-1, *(1,) * (rows.ndim - 1)))


def scales_of(A: Any, blocks: int) -> Scales | None:
    """The scales of A, dense or CSR, cut in so many blocks; None for none. One pass, no copy."""
    return scales_by(all_lengths(A), blocks, A.dtype)


def scales_by(exponents: Exponents, blocks: int, dtype: np.dtype[Any]) -> Scales | None:
    """The scales of rows of these lengths."""
    B = -(-len(exponents) // blocks)
    places = np.full(blocks * B, ZERO, np.int16)
    places[: len(exponents)] = exponents
    return scales_at(places.reshape(blocks, B), len(exponents), dtype)


def scales_at(places: Exponents, N: int, dtype: np.dtype[Any]) -> Scales | None:
    """The scales for lengths by block and place, (k, ceil(N / k)), of N rows."""
    exponents = balanced(places, dtype).reshape(-1)[:N]
    return Scales(exponents) if exponents.any() else None


def balanced(places: Exponents, dtype: np.dtype[Any]) -> Exponents:
    """By which exponents to divide rows of such lengths, (k, places): 0 where a place is even."""
    there = places != ZERO
    low = np.where(there, places, np.iinfo(np.int16).max).min(axis=0).astype(np.int32)
    uneven = places.max(axis=0) - low > SPREAD
    # A row of zeros counts as the smallest of its place. Two to an exponent, and one over it, must
    # be numbers of this kind.
    most = np.finfo(dtype).maxexp - 1
    exponents: Exponents = np.where(uneven, np.where(there, places, low), 0).astype(np.int16)
    return np.clip(exponents, 2 - most, most)


def lengths(rows: Any) -> Exponents:
    """The exponent e of every row's length, 2^(e-1) <= length < 2^e; ZERO for a row of zeros."""
    if not isinstance(rows, np.ndarray):
        return _careful(rows)
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    exponents: Exponents = np.frexp(np.sqrt(squares))[1].astype(np.int16)
    # Squares that left the range of the numbers, or lost digits at its lower end.
    info = np.finfo(rows.dtype)
    doubtful = np.flatnonzero(~((squares > info.tiny / info.eps) & (squares <= info.max)))
    if len(doubtful):
        exponents[doubtful] = _careful(rows[doubtful])
    return exponents


def all_lengths(A: Any) -> Exponents:
    """The same of a whole matrix, by several threads if it is dense and large."""
    step = max(1, AT_ONCE // max(1, A.shape[1]))
    if not isinstance(A, np.ndarray) or len(A) <= step:
        return lengths(A)
    exponents = np.empty(len(A), np.int16)

    def some(first: int) -> None:
        exponents[first : first + step] = lengths(A[first : first + step])

    each(some, range(0, len(A), step))
    return exponents


def _careful(rows: Any) -> Exponents:
    """The same for rows of any size, each divided by its largest entry first."""
    sparse = not isinstance(rows, np.ndarray)
    large = abs(rows).max(axis=1)
    large = (large.toarray() if sparse else np.asarray(large)).reshape(-1)
    good = (large > 0) & np.isfinite(large)
    shift = np.frexp(np.where(good, large, 1.0))[1].astype(np.int32)
    result = np.full(len(large), ZERO, np.int16)
    with np.errstate(all="ignore"):
        if sparse:
            row = np.repeat(np.arange(len(large)), np.diff(rows.indptr))
            small = np.ldexp(rows.data.astype(np.float64), -shift[row])
            squares = np.bincount(row, small * small, len(large))
        else:
            squares = (np.ldexp(rows.astype(np.float64), -shift[:, None]) ** 2).sum(axis=1)
        exponents = shift + np.frexp(np.sqrt(squares))[1]
    result[good] = exponents[good]
    return result
