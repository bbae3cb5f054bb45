"""Rows that are mixed in a share are brought to one size first, by powers of two.

Row r of a share is a sum over row r of every block. Beside a row of 1e20 a row of ones is rounding
error, and decoding cannot bring it back. So where the k rows of a place differ much in length, each
is divided by a power of two near its length; products are multiplied with it again. Both are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPREAD = 4  # lengths of a place that differ by no more than about two to this are left as they are
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


def factors(exponents: Exponents, rows: NDArray[Any]) -> NDArray[Any]:
    """Two to these exponents, one a row, to multiply `rows` with."""
    two = np.ldexp(rows.dtype.type(1), exponents)
    return np.reshape(two, (-1, *(1,) * (rows.ndim - 1)))


def scales_of(A: Any, blocks: int) -> Scales | None:
    """The scales of a matrix in memory, dense or CSR, cut in so many blocks; None for none.

    One pass over A, without a copy.
    """
    exponents = lengths(A)
    B = -(-len(exponents) // blocks)
    places = np.full(blocks * B, ZERO, np.int16)
    places[: len(exponents)] = exponents
    return scales(places.reshape(blocks, B), len(exponents), A.dtype)


def scales(places: Exponents, N: int, dtype: np.dtype[Any]) -> Scales | None:
    """The scales for lengths by block and place, (k, ceil(N / k)), of N rows."""
    found = balanced(places, dtype).reshape(-1)[:N]
    return Scales(found) if found.any() else None


def balanced(places: Exponents, dtype: np.dtype[Any]) -> Exponents:
    """By which exponents to divide rows of such lengths, (k, places): 0 where a place is even."""
    there = places != ZERO
    low = np.where(there, places, np.iinfo(np.int16).max).min(axis=0).astype(np.int32)
    uneven = places.max(axis=0) - low > SPREAD
    # A row of zeros counts as the smallest of its place. Two to an exponent, and one over it, must
    # be numbers of this kind.
    most = np.finfo(dtype).maxexp - 1
    found: Exponents = np.where(uneven, np.where(there, places, low), 0).astype(np.int16)
    return np.clip(found, 2 - most, most)


def lengths(rows: Any) -> Exponents:
    """The exponent e of every row's length, 2^(e-1) <= length < 2^e; ZERO for a row of zeros."""
    if not isinstance(rows, np.ndarray):
        return _careful(rows)
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    found: Exponents = np.frexp(np.sqrt(squares))[1].astype(np.int16)
    # Squares that left the range of the numbers, or lost digits at its lower end.
    info = np.finfo(rows.dtype)
    doubtful = np.flatnonzero(~((squares > info.tiny / info.eps) & (squares <= info.max)))
    if len(doubtful):
        found[doubtful] = _careful(rows[doubtful])
    return found


def _careful(rows: Any) -> Exponents:
    """The same for rows of any size, each divided by its largest entry first."""
    sparse = not isinstance(rows, np.ndarray)
    large = abs(rows).max(axis=1)
    large = (large.toarray() if sparse else np.asarray(large)).reshape(-1)
    good = (large > 0) & np.isfinite(large)
    shift = np.frexp(np.where(good, large, 1.0))[1].astype(np.int32)
    found = np.full(len(large), ZERO, np.int16)
    with np.errstate(all="ignore"):
        if sparse:
            row = np.repeat(np.arange(len(large)), np.diff(rows.indptr))
            small = np.ldexp(rows.data.astype(np.float64), -shift[row])
            squares = np.bincount(row, small * small, len(large))
        else:
            squares = (np.ldexp(rows.astype(np.float64), -shift[:, None]) ** 2).sum(axis=1)
        exponents = shift + np.frexp(np.sqrt(squares))[1]
    found[good] = exponents[good]
    return found
