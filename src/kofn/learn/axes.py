"""Coordinates in which a linear model curves about alike in all directions.

Columns far from zero, or of very different sizes, make a valley that descent crosses for ever.
Only the master knows of these coordinates: workers see parameters and return their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from .losses import Problem
from .solvers import Floats

_FLAT = 1e-12  # of the largest curvature: a column that does not vary
_ALIKE = 10.0  # columns whose sizes differ by less are left as they are
_ROWS = 4096  # at a time


@dataclass(frozen=True, eq=False)
class Axes:
    """Parameters (W row by row, then b) from points p: W = p_W / scale, b = p_b / base − mean W."""

    mean: Floats  # (d,), of the columns; zero where the intercept is penalised or there is none
    scale: Floats  # (d,)
    base: float
    targets: int
    intercept: bool

    def parameters(self, p: Floats) -> Floats:
        """The parameters at a point."""
        W, b = self._split(p)
        W = W / self.scale[:, None]
        return np.append(W.ravel(), b / self.base - self.mean @ W) if self.intercept else W.ravel()

    def slope(self, gradient: Floats) -> Floats:
        """The gradient by the point, from that by the parameters."""
        W, b = self._split(gradient)
        if not self.intercept:
            return (W / self.scale[:, None]).ravel()
        return np.append(
            ((W - np.outer(self.mean, b)) / self.scale[:, None]).ravel(), b / self.base
        )

    def _split(self, x: Floats) -> tuple[Floats, Floats]:
        size = len(self.scale) * self.targets
        return x[:size].reshape(-1, self.targets), x[size:]


def axes(problem: Problem, curvature: float) -> Axes:
    """Axes for scores X W + b; `curvature`: the most that the scaled loss curves by score.

    Columns are centred where b is not penalised.
    """
    X, weight, penalty = problem.X, problem.weight.ravel(), problem.penalty
    total = float(weight.sum())
    free = not problem.penalise_intercept
    centred = problem.intercept and free and total > 0
    mean = np.asarray(X.T @ weight) / total if centred else np.zeros(X.shape[1])
    if scipy.sparse.issparse(X):
        squares = X.power(2)  # type: ignore[attr-defined]
        spread = np.asarray(squares.T @ weight) - total * mean * mean
    else:
        spread = np.zeros(X.shape[1])
        for first in range(0, len(X), _ROWS):
            rows = slice(first, first + _ROWS)
            spread += np.square(X[rows] - mean).T @ weight[rows]
    curved = curvature * np.maximum(spread, 0.0) + penalty
    most = float(curved.max(initial=0.0)) or 1.0
    scale = np.sqrt(np.where(curved > _FLAT * most, curved, most))
    if len(scale) and scale.max() < _ALIKE * scale.min():
        # As they are, so that where many solutions are as good the smallest is found.
        scale = np.full_like(scale, np.sqrt(most))
    base = curvature * total + (0.0 if free else penalty)
    targets = int(problem.targets.shape[1])
    return Axes(mean, scale, float(np.sqrt(base)) or 1.0, targets, problem.intercept)
