"""The normal equations of least squares: from one pass over the data, or through products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import CodedMatrix
from ..arrays.gram import Gram, gram
from .losses import product
from .precondition import WORK, inverse_of, sample_of
from .solvers import Floats, Linear

COLUMNS = 256  # up to so many one pass, for all products of two of them, is sooner done than CG
CLEAR = 1e-3  # of a column's squares, left without its mean: they are as exact as the data
ROUNDING = 1e-12  # where less is left, it is rounding
SURE = 1e-5  # the least eigenvalue, of columns of length 1: rounding counts 1e5 times at most


@dataclass(frozen=True)
class Normal:
    """(Xcᵀ D Xc + alpha) W = B: the mean of the columns, B (d, t), what multiplies W; its inverse.

    `near`: about the inverse, if anything is known of it.
    """

    mean: Floats
    B: Floats
    apply: Linear
    near: Linear | None


def normal(
    given: Any, X: Any, left: Floats, weight: Floats, alpha: float, intercept: bool
) -> Normal:
    """The equations of X (N, d), which is `given` on workers; left (N, t): D times the targets.

    With few columns and many rows the workers add up Xᵀ D X in one pass. Where some of the rows
    are missing in it, or it would be inexact, it tells no more than about the inverse.
    """
    (rows, d), t, total = X.shape, left.shape[1], float(weight.sum())
    U = np.hstack([left, weight])
    many = isinstance(X, CodedMatrix) and d <= COLUMNS and rows * d * d > WORK
    known = gram(X, U) if many else None
    if known is not None and known.whole:
        both = known.sums.T
    else:
        both = product(X.T, U if intercept else left)  # the mean takes no pass of its own
    mean = both[:, -1] / total if intercept else np.zeros(d)
    B = both[:, :t] - np.outer(mean, left.sum(axis=0))
    near: Linear | None = None
    if known is None:
        if (sample := sample_of(given, X, False)) is not None:
            near = sample.centred(mean).inverse(lambda: weight, np.full((d, 1), alpha))
    else:
        H, clear = _centred(known, mean, total, alpha)
        near = inverse_of(H)
        if clear and known.whole:
            return Normal(mean, B, lambda P: H @ P, near)

    def apply(P: Floats) -> Floats:
        R = weight * (product(X, P) - mean @ P)
        return product(X.T, R) - np.outer(mean, R.sum(axis=0)) + alpha * P

    return Normal(mean, B, apply, near)


def _centred(known: Gram, mean: Floats, total: float, alpha: float) -> tuple[Floats, bool]:
    """Xcᵀ D Xc + alpha of all rows, as far as it is known, and whether it is exact enough."""
    squares = known.squares.diagonal()
    cross = np.outer(known.sums[-1], mean)
    H = known.squares - cross - cross.T + known.part * total * np.outer(mean, mean)
    clear = bool((H.diagonal() >= CLEAR * squares).all())
    flat = np.flatnonzero(H.diagonal() <= ROUNDING * squares)
    H[flat] = H[:, flat] = 0.0
    H = H / known.part + alpha * np.eye(len(mean))
    size = np.sqrt(H.diagonal())
    if not clear or not size.all():
        return H, False
    return H, float(np.linalg.eigvalsh(H / np.outer(size, size))[0]) > SURE
