"""An approximate inverse of a linear model's curvature, from a sample of the rows.

Where columns have very different sizes, or are nearly dependent, a solver that sees the data
through products alone takes thousands of iterations. A sample of s rows mends that: its Xᵀ D X,
scaled up, is that of all rows up to a factor (1 ± √(d / s))² in every direction. Where all rows are
in the sample, a step with the inverse is Newton's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from ..arrays import CodedMatrix
from ..arrays.fetching import sampled

Floats = NDArray[np.float64]
Inverse = Callable[[Floats], Floats]  # gradients (p, m) -> steps (p, m), but for their sign

DENSE = 512  # columns: with more of them, only their sizes are looked at
ROWS = 16  # rows a column, at least
WORK = 20_000_000  # multiply-adds that a sample may always cost
CHANGED = 0.2  # of the curvature of the rows: what was found is found anew
SLIGHTLY = 1e-3  # the same, where all rows are in the sample: it is cheap then, and exact
SINGULAR = 1e-11  # of the largest curvature: a direction about which nothing is known
ROUNDING = 1e-12  # of a column's squares: where less is left without its mean, it is rounding
ALIKE = 10.0  # columns whose sizes differ by less are left as they are
RARE = 4.0  # a column that is so much larger than in the sample is not in the sample


@dataclass(eq=False)
class Sample:
    """Some rows of a matrix (s, p), the column of ones for an intercept included.

    `index`: which rows, of how many (`total`). `squares`: Σ x² of each column over all rows, where
    that is known. What was found last is kept for as long as the curvature is about the same.
    """

    rows: Any  # an array, or CSR where there are many columns
    index: NDArray[np.intp]
    total: int
    squares: Floats | None = None
    _kept: tuple[Floats, Floats, Inverse] | None = field(default=None, init=False)

    def centred(self, mean: Floats) -> Sample:
        """The sample of a matrix whose columns have this mean, less the mean."""
        if not self.sharp:
            return self  # sizes do as they are
        squares = self.squares
        if squares is not None:
            squares = np.maximum(squares - self.total * mean * mean, 0.0)
        rows = self.rows - mean
        rows[:, _squares(rows) <= ROUNDING * _squares(self.rows)] = 0.0  # constant columns
        return Sample(rows, self.index, self.total, squares)

    def sizes(self) -> Floats:
        """Σ x² of each column over all rows: known, or about."""
        if self.squares is not None:
            return self.squares
        return _squares(self.rows) * (self.total / len(self.index))

    @property
    def sharp(self) -> bool:
        """Whether it holds more than the sizes of the columns."""
        return int(self.rows.shape[1]) <= DENSE

    @property
    def whole(self) -> bool:
        """Whether it has all rows."""
        return len(self.index) == self.total

    def inverse(self, bend: Callable[[], Floats], penalties: Floats) -> Inverse:
        """About (Xᵀ diag(bend) X + diag(penalty))⁻¹ for every column of bend (N, m)."""
        now = bend()[self.index]
        if self._kept is not None and np.array_equal(self._kept[1], penalties):
            before = self._kept[0]
            most = SLIGHTLY if self.whole and self.sharp else CHANGED
            if float(np.abs(now - before).sum()) <= most * float(before.sum()):
                return self._kept[2]
        return self.restore(now, penalties)

    @property
    def bend(self) -> Floats | None:
        """The curvature that what is kept was found for."""
        return None if self._kept is None else self._kept[0]

    def restore(self, bend: Floats, penalties: Floats) -> Inverse:
        """Find it for this curvature of the sample's rows, and keep it."""
        inverse = self._inverse(bend * (self.total / len(self.index)), penalties)
        self._kept = (bend, penalties, inverse)
        return inverse

    def _inverse(self, bend: Floats, penalties: Floats) -> Inverse:
        if not self.sharp:
            return self._by_sizes(bend, penalties)
        if np.ptp(bend, axis=1).any() or np.ptp(penalties, axis=1).any():
            each = [self._dense(bend[:, t], penalties[:, t]) for t in range(bend.shape[1])]
        else:  # as it is for all columns at the start, and for least squares
            each = [self._dense(bend[:, 0], penalties[:, 0])] * bend.shape[1]
        if all(one is each[0] for one in each):
            return each[0]
        return lambda g: np.concatenate(
            [one(g[:, t : t + 1]) for t, one in enumerate(each)], axis=1
        )

    def _dense(self, bend: Floats, penalty: Floats) -> Inverse:
        count, there = len(bend), np.flatnonzero(bend)
        few = 2 * len(there) < count  # as with a hinge, whose far side is flat
        rows, bent = (self.rows[there], bend[there]) if few else (self.rows, bend)
        H = np.asarray((rows.T * bent) @ rows)
        if self.squares is not None:
            # A column that is hardly in the sample: what all rows say of its size must do.
            bent = float(bend.mean()) * count / self.total * self.squares
            rare = np.flatnonzero(bent > RARE * H.diagonal())
            H[rare] = 0.0
            H[:, rare] = 0.0
            H[rare, rare] = bent[rare]
        H[np.diag_indices_from(H)] += penalty
        return inverse_of(H)

    def _by_sizes(self, bend: Floats, penalties: Floats) -> Inverse:
        dense = isinstance(self.rows, np.ndarray)
        squares = self.rows**2 if dense else self.rows.power(2)
        sizes = np.asarray(squares.T @ bend) + penalties
        scale = _scales(sizes)
        return lambda g: g / scale**2


def inverse_of(H: Floats) -> Inverse:
    """The inverse of a symmetric H without negative eigenvalues; of those that are zero, none.

    There it is one over the largest: a gradient has nothing but rounding there.
    """
    scale = _scales(H.diagonal())
    H = H / np.outer(scale, scale)
    try:
        factor = scipy.linalg.cho_factor(H, lower=True, check_finite=False)
        pivots = np.square(factor[0].diagonal())
        if float(pivots.min()) > SINGULAR * float(H.diagonal().max()):
            turned = scale[:, None]
            return lambda g: np.asarray(
                scipy.linalg.cho_solve(factor, g / turned, check_finite=False) / turned
            )
    except np.linalg.LinAlgError:
        pass
    sizes, vectors = scipy.linalg.eigh(H, check_finite=False)
    most = float(sizes[-1]) or 1.0
    sizes = np.where(sizes > SINGULAR * most, sizes, most)
    return lambda g: (
        (vectors @ ((vectors.T @ (g / scale[:, None])) / sizes[:, None])) / (scale[:, None])
    )


def _scales(sizes: Floats) -> Floats:
    """The divisors of columns of such curvatures: all equal if they are alike."""
    most = np.asarray(sizes.max(axis=0))
    known = np.sqrt(np.where(sizes > 0.0, sizes, most))
    alike = known.max(axis=0) < ALIKE * known.min(axis=0)
    scales: Floats = np.where(alike, np.sqrt(most), known) + (most == 0.0)
    return scales


def sample_of(X: Any, matrix: Any, intercept: bool) -> Sample | None:
    """A sample of a matrix: of X where that is in memory, else of what is on workers.

    None where neither says its rows.
    """
    total, d = int(X.shape[0]), int(X.shape[1])
    enough = max(ROWS * (d + 1), WORK // (d + 1) ** 2) if d < DENSE else max(1, WORK // d)
    count = min(total, enough)
    sparse, squares = bool(scipy.sparse.issparse(X)), None
    index: NDArray[np.intp] = np.arange(total)
    rows: Any
    if sparse and d > DENSE:
        rows = X.astype(np.float64)
    elif sparse or isinstance(X, np.ndarray):
        if count < total:
            index = np.sort(np.random.default_rng(total).choice(total, count, replace=False))
            squares = _squares(X)
        rows = np.asarray(X[index].toarray() if sparse else X[index], dtype=np.float64)
    elif isinstance(matrix, CodedMatrix) and d <= DENSE and (some := sampled(matrix, count)):
        index, rows = some[0], some[1].astype(np.float64)
    else:
        return None
    if intercept:
        squares = None if squares is None else np.append(squares, float(total))
        ones = np.ones((len(index), 1))
        rows = np.hstack([rows, ones]) if isinstance(rows, np.ndarray) else _beside(rows, ones)
    finite = np.isfinite(rows if isinstance(rows, np.ndarray) else rows.data).all()
    return Sample(rows, index, total, squares) if finite else None


def _beside(rows: Any, ones: Any) -> Any:
    stack: Any = scipy.sparse.hstack
    return stack([rows, ones], "csr")


def _squares(X: Any) -> Floats:
    """Σ x² of each column."""
    if not isinstance(X, np.ndarray):
        return np.asarray(X.astype(np.float64).power(2).sum(axis=0)).ravel()
    return np.asarray(np.einsum("ij,ij->j", X, X, dtype=np.float64))
