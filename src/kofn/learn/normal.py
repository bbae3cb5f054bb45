"""The normal equations of least squares: from one pass over the data, or through products."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..arrays import CodedMatrix
from ..arrays.gram import Gram, gram, gram_here
from ..errors import BadInput
from .losses import product
from .precondition import ROUNDING, WORK, inverse_of, sample_of
from .products import Here
from .solvers import Columns, Floats, Linear

COLUMNS = 256  # up to so many one pass, for all products of two of them, is sooner done than CG
SOME = 1000  # rows that show which columns are far from zero
FAR = 3.0  # times its deviation: such a mean is taken off first, for the digits that it costs
CLEAR = 1e-3  # of a column's squares, left without its mean: they are as exact as the data
SURE = 1e-5  # the least eigenvalue, of columns of length 1: rounding counts 1e5 times at most


@dataclass(frozen=True)
class Normal:
    """(Xcᵀ D Xc + alpha) W = B: the mean of the columns, B (d, t), what multiplies W; its inverse.

    `M`: a preconditioner, about the inverse, if anything is known of it. `squares`: Xcᵀ
    D Xc, where it was formed and is exact enough to solve with.
    """

    mean: Floats
    B: Floats
    apply: Columns
    M: Linear | None
    data: Any  # what the equations were formed from, and products are with
    squares: Floats | None = None


def normal(
    given: Any, X: Any, left: Floats, weight: Floats, alpha: Floats, intercept: bool
) -> Normal:
    """The normal equations of X (N, d), which may be `given` on workers; left (N, t): D · targets.

    alpha (t,): the penalty of each target. One pass forms Xᵀ D X: this process makes it
    for data that are here, the workers for many rows with few columns. Where rows are
    missing in it, or it would be inexact, it only serves as an approximate inverse, and
    X goes to the workers if it is not there.
    """
    (rows, d), t, total = X.shape, left.shape[1], float(weight.sum())
    U, shift, M = np.hstack([left, weight]), np.zeros(d), None
    known: Gram | None = None
    if isinstance(X, Here):
        began = time.perf_counter()
        if intercept:
            shift = _offsets(X.rows)
        known = gram_here(X.rows, U, shift if shift.any() else None)
        X.seconds = time.perf_counter() - began
        if known is None:
            raise _beyond("large")
    elif isinstance(X, CodedMatrix) and d <= COLUMNS and rows * d * d > WORK:
        known = gram(X, U)
    if known is not None and known.whole:
        both = known.sums.T
    else:
        X, shift = X.placed() if isinstance(X, Here) else X, np.zeros(d)
        both = product(X.T, U if intercept else left)  # the mean takes no pass of its own
    mean = both[:, -1] / total if intercept else np.zeros(d)
    B = both[:, :t] - np.outer(mean, left.sum(axis=0))
    sample = sample_of(given, X, False) if known is None else None
    if known is not None:
        squares = known.squares.diagonal()
    else:
        with np.errstate(over="ignore", under="ignore"):
            # At least, by Cauchy and Schwarz. A few rows may miss what is in a column.
            lengths = np.linalg.norm(U[:, : both.shape[1]], axis=0)
            squares = np.square(both / np.where(lengths, lengths, 1.0)).max(axis=1)
            if sample is not None:
                squares = np.maximum(squares, sample.sizes())
    if np.isinf(squares).any():
        raise _beyond("large")
    if (both.any(axis=1) & (squares + alpha.min() < rows * np.finfo(np.float64).tiny)).any():
        raise _beyond("small")  # and have lost their digits
    if known is not None:
        H, clear = _centred(known, mean, total, float(alpha.min()))
        M = _inverses(H, alpha)
        if clear and known.whole:
            return Normal(mean + shift, B, lambda P, at: H @ P + alpha[at] * P, M, X, H)
    mean = mean + shift
    if isinstance(X, Here):
        X = X.placed()
    if sample is not None:
        several = t if np.ptp(alpha) else 1
        weights = np.broadcast_to(weight, (rows, several))
        penalties = np.broadcast_to(alpha[:several], (d, several))
        M = sample.centred(mean).inverse(lambda: weights, penalties)

    def apply(P: Floats, at: NDArray[np.intp]) -> Floats:
        R = weight * (product(X, P) - mean @ P)
        return product(X.T, R) - np.outer(mean, R.sum(axis=0)) + alpha[at] * P

    return Normal(mean, B, apply, M, X)


def _beyond(how: str) -> BadInput:
    return BadInput(
        f"least squares adds up the squares of each column; some of these sums are too {how} for "
        f"float64. Scale the data, with sklearn.preprocessing.StandardScaler, say."
    )


def _offsets(X: Floats) -> Floats:
    """About the mean of each column that is far from zero, by some of the rows; zero of others."""
    some = np.asarray(X[:: -(-len(X) // SOME)], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = some.mean(axis=0), some.std(axis=0)
        return np.where(np.abs(mean) > FAR * deviation, mean, 0.0)


def _centred(known: Gram, mean: Floats, total: float, alpha: float) -> tuple[Floats, bool]:
    """Xcᵀ D Xc of all rows, as far as it is known, and whether it is exact enough with alpha."""
    squares = known.squares.diagonal()
    cross = np.outer(known.sums[-1], mean)
    H = known.squares - cross - cross.T + known.part * total * np.outer(mean, mean)
    clear = bool((H.diagonal() >= CLEAR * squares).all())
    flat = np.flatnonzero(H.diagonal() <= ROUNDING * squares)
    H[flat] = H[:, flat] = 0.0
    H = H / known.part
    solved = H + alpha * np.eye(len(mean))
    size = np.sqrt(solved.diagonal())
    if not clear or not size.all():
        return H, False
    return H, float(np.linalg.eigvalsh(solved / np.outer(size, size))[0]) > SURE


def _inverses(H: Floats, alpha: Floats) -> Linear:
    """The inverse of H + alpha, which may be another for each column."""
    some, which = np.unique(alpha, return_inverse=True)
    inverses = [inverse_of(H + penalty * np.eye(len(H))) for penalty in some]
    if len(some) == 1:
        return inverses[0]

    def apply(B: Floats) -> Floats:
        out = np.empty_like(B)
        for i, inverse in enumerate(inverses):
            out[:, which == i] = inverse(B[:, which == i])
        return out

    return apply


def singular_values(normal: Normal, given: Any, weight: Floats) -> Floats | None:
    """Those of √D Xc, largest first; None where they would take a pass through the workers.

    From Xcᵀ D Xc where it is exact enough: the triangle of Cholesky's has them as
    exactly as the rows. Else of the rows, if they are in this process and have few
    columns.
    """
    if normal.squares is not None:
        triangle = scipy.linalg.cholesky(normal.squares, check_finite=False)
        return np.asarray(scipy.linalg.svdvals(triangle, check_finite=False))
    if not isinstance(given, np.ndarray) or given.shape[1] > COLUMNS:
        return None
    rows = np.sqrt(weight) * (given - normal.mean)
    return np.asarray(scipy.linalg.svdvals(rows, check_finite=False))
