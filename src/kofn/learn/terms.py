"""What workers evaluate on their parts for a linear model. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .losses import Loss
from .solvers import Floats

LossOf = Callable[[Floats, Floats], Loss]  # targets (rows, m), weights (rows, 1)


@dataclass(frozen=True)
class Term:
    """fn of a sum: gradient and loss of a linear model on one part (X, targets, weights, rows)."""

    loss: LossOf
    intercept: bool
    batch: float | None = None

    def __call__(self, part: Any, x: Any) -> tuple[Floats, Floats]:
        X, y, weight, rows = part
        point, t = x
        scale = 1.0
        if self.batch is not None:
            take = max(1, round(self.batch * len(y)))
            # By the iteration and the part alone: every holder of a part draws the same rows.
            drawn = np.random.default_rng((t, int(rows[0]))).permutation(len(y))[:take]
            X, y, weight, scale = X[drawn], y[drawn], weight[drawn], len(y) / take
        m = y.shape[1]
        W = point[: X.shape[1] * m].reshape(-1, m)
        scores = np.asarray(X @ W, dtype=np.float64)
        if self.intercept:
            scores += point[X.shape[1] * m :]
        loss = self.loss(y, weight)
        slope = scale * loss.slope(scores)
        gradient = np.asarray(X.T @ slope).ravel()
        if self.intercept:
            gradient = np.concatenate([gradient, slope.sum(axis=0)])
        return gradient, np.asarray(scale * loss.rows(scores).sum())
