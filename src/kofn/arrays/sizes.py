"""How far right replies may be from what they should be: a bound, row by row.

Let L be the length of the k rows of a place together (after `scales`), g the coefficients of a
share, u the unit round-off of the matrix. By Cauchy and Schwarz the share's row there is at most
|g| L long. It is a sum of k products: off by at most (k + 1) u |g| L. Its product with w, of d
terms added up in whatever order, is off by at most (d + 1) u |g| L |w|. An update adds a row of
length c: the new row is rounded, u |g| (L + c), and so is what is added, a coded sum of k terms
times r columns: (r + k + 2) u |g| c. Together, for the product with w:

    |g| |w| u ((d + k + 4) L + past),    past = Σ over updates of (L after it + (r + k + 3) c)

up to terms in u², which the 4 (for 2) is for. What a velocity is off by is added with each move.

These are worst cases, with no assumption on how roundings behave: data of one sign, or all alike,
come near them where random data do not. A share that was rebuilt is off by more; that is
measured (`drift`), relative to |g| L.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ..checks import is_sparse

Floats = NDArray[np.float64]
# Rows first..last of each block, in order; those of a block may end before, and are zero then.
Pieces = Iterable[tuple[int, int, Sequence[Any]]]

MORE = 4  # roundings beyond d + k, and room for terms in u²
MEASURED = 2.0  # what is known of a rebuilt share is an estimate: this many times as much


@dataclass(frozen=True, eq=False)
class Sizes:
    """Bounds for the rows at each place of a matrix of k blocks.

    `length`: L, (rows,). `past`: as above. `speed` and `drag`: the same two of a velocity.
    """

    k: int
    unit: float
    tiny: float  # the smallest number: what is smaller is rounded to a multiple of it
    length: Floats
    past: Floats
    speed: Floats
    drag: Floats

    @classmethod
    def begun(cls, lengths: Floats, dtype: np.dtype[Any]) -> Sizes:
        """For rows of these lengths, (k, rows)."""
        info = np.finfo(dtype)
        unit, tiny = float(info.eps) / 2, float(info.smallest_subnormal)
        length = np.hypot.reduce(lengths, axis=0)
        none = np.zeros_like(length)
        return cls(len(lengths), unit, tiny, length, none, none, none)

    def after(self, change: Floats, rank: int, momentum: float | None) -> Sizes:
        """After an update whose rows have these lengths, (k, rows); or a move with a momentum."""
        c = np.asarray(np.linalg.norm(change, axis=0))
        added = (rank + self.k + 3) * c
        if momentum is None:
            length = self.length + c
            return replace(self, length=length, past=self.past + length + added)
        speed = momentum * self.speed + c
        drag = momentum * self.drag + 2 * speed + added
        length = self.length + speed
        past = self.past + length + drag
        return replace(self, length=length, past=past, speed=speed, drag=drag)

    def noise(self, inner: int, off: float = 0.0) -> Floats:
        """By how much a row of a product may be off, (rows,), relative to |g| |w|.

        `off`: what is known of the share, relative to |g| L.
        """
        most = self.unit * ((inner + self.k + MORE) * self.length + self.past)
        return most + MEASURED * off * self.length if off else most


def row_lengths(rows: Any) -> Floats:
    """The lengths of rows, dense or CSR, however large or small their entries are."""
    with np.errstate(over="ignore"):
        lengths = _lengths(rows)
    info = np.finfo(np.float64)
    doubtful = np.flatnonzero(~((lengths > np.sqrt(info.tiny) / info.eps) & (lengths < np.inf)))
    if len(doubtful):  # squares that left the range of numbers, or lost digits at its lower end
        some: Any = rows[doubtful]
        large = abs(some).max(axis=1)
        large = np.asarray(large.toarray() if is_sparse(some) else large).reshape(-1)
        shift = np.frexp(np.where(large > 0, large, 1.0))[1]
        half = shift // 2  # two to -shift may not be a number
        for e in (half, shift - half):
            scaling = scipy.sparse.diags_array(np.exp2(-e.astype(np.float64)))
            some = (scaling @ scipy.sparse.csr_array(some)).tocsr()
        lengths[doubtful] = np.ldexp(_lengths(some), shift)
    return lengths


def _lengths(rows: Any) -> Floats:
    if isinstance(rows, np.ndarray):
        wide = rows.astype(np.float64, copy=False)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", wide, wide)))
    return np.asarray(np.sqrt(rows.astype(np.float64).power(2).sum(axis=1))).reshape(-1)
