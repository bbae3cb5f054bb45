"""Losses of linear models: what is done with the scores X W + b, all on the master."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logsumexp, softmax

from .solvers import Floats


@dataclass(frozen=True)
class Loss:
    """Loss of scores (N, m): that of each row, its slope and its curvature by score."""

    rows: Callable[[Floats], Floats]  # (N,)
    slope: Callable[[Floats], Floats]  # (N, m)
    curve: Callable[[Floats, Floats], Floats]  # scores, direction of scores -> (N, m)


def squared(y: Floats, weight: Floats) -> Loss:
    """½ Σ weight (score − y)²; y (N, m), weight (N, 1)."""
    return Loss(
        lambda s: 0.5 * (weight * (s - y) ** 2).sum(axis=1),
        lambda s: weight * (s - y),
        lambda s, ds: weight * ds,
    )


def logistic(y: Floats, weight: Floats) -> Loss:
    """Σ weight log(1 + exp(−y score)), y = ±1."""

    def curve(s: Floats, ds: Floats) -> Floats:
        p = expit(s)
        return np.asarray(weight * p * (1 - p) * ds)

    return Loss(
        lambda s: np.asarray((weight * np.logaddexp(0.0, -y * s)).sum(axis=1)),
        lambda s: np.asarray(-weight * y * expit(-y * s)),
        curve,
    )


def multinomial(y: Floats, weight: Floats) -> Loss:
    """Σ weight (logsumexp(scores) − score of the class); y (N, classes) one-hot."""

    def curve(s: Floats, ds: Floats) -> Floats:
        p = softmax(s, axis=1)
        return np.asarray(weight * p * (ds - (p * ds).sum(axis=1, keepdims=True)))

    return Loss(
        lambda s: np.asarray(weight[:, 0] * (logsumexp(s, axis=1) - (y * s).sum(axis=1))),
        lambda s: np.asarray(weight * (softmax(s, axis=1) - y)),
        curve,
    )


def squared_hinge(y: Floats, weight: Floats) -> Loss:
    """Σ weight max(0, 1 − y score)², y = ±1, one column a class."""
    return Loss(
        lambda s: (weight * np.maximum(0.0, 1 - y * s) ** 2).sum(axis=1),
        lambda s: -2.0 * weight * y * np.maximum(0.0, 1 - y * s),
        lambda s, ds: 2.0 * weight * (y * s < 1) * ds,
    )


LossOf = Callable[[Floats, Floats], Loss]  # of targets (rows, m) and weights (rows, 1)


@dataclass(frozen=True, eq=False)
class Problem:
    """scale · Σ loss(X W + b) + ½ penalty ‖W‖² (and ‖b‖² if `penalise_intercept`).

    Parameters are flat: W (d, m) row by row, then b (m,) if there is an intercept.
    """

    X: Any  # (N, d): an array or CSR, or what it is on workers
    targets: Floats  # (N, m)
    weight: Floats  # (N, 1)
    loss: LossOf
    scale: float = 1.0
    penalty: float = 0.0
    intercept: bool = True
    penalise_intercept: bool = False

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return (int(self.X.shape[1]) + self.intercept) * int(self.targets.shape[1])

    def split(self, x: Floats) -> tuple[Floats, Floats]:
        """Return W (d, m) and b (m,)."""
        m = int(self.targets.shape[1])
        W = x[: int(self.X.shape[1]) * m].reshape(-1, m)
        return W, x[W.size :] if self.intercept else np.zeros(m)

    def penalties(self) -> Floats:
        """The penalty of each parameter."""
        found = np.full(self.size, self.penalty)
        if self.intercept and not self.penalise_intercept:
            found[int(self.X.shape[1]) * int(self.targets.shape[1]) :] = 0.0
        return found


class LinearObjective:
    """A problem seen through products with its X.

    The scores of the last point are kept, so that a value and a gradient there cost one pass with
    X. Where products are not exact (see arrays.Replicated), rows whose score is NaN are not there:
    they count neither for the value nor for the gradient.
    """

    def __init__(self, problem: Problem) -> None:
        self.X = problem.X
        self.exact = bool(getattr(problem.X, "exact", True))
        self.problem, self.loss = problem, problem.loss(problem.targets, problem.weight)
        self.m, self.scale = problem.targets.shape[1], problem.scale
        self._at: tuple[bytes, Floats] | None = None

    def value(self, x: Floats) -> float:
        """One pass with X."""
        rows = self._there(self.loss.rows(self._scores(x)))
        return self.scale * float(rows.sum()) + 0.5 * float((self.problem.penalties() * x) @ x)

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """One pass with X and one with X.T."""
        slope = self._there(self.scale * self.loss.slope(self._scores(x)))
        return self.value(x), self._back(slope) + self.problem.penalties() * x

    def curvature(self, x: Floats) -> Callable[[Floats], Floats]:
        """Return p -> H(x) p; each call is one pass with X and one with X.T."""
        scores = self._scores(x)

        def apply(p: Floats) -> Floats:
            W, b = self.problem.split(p)
            along = self._forward(W) + b
            curve = self._there(self.scale * self.loss.curve(scores, along))
            return self._back(curve) + self.problem.penalties() * p

        return apply

    def _there(self, rows: Floats) -> Floats:
        """The same, rows that are not there counting nothing."""
        return rows if self.exact else np.where(np.isnan(rows), 0.0, rows)

    def _scores(self, x: Floats) -> Floats:
        key = x.tobytes()
        if self._at is None or self._at[0] != key:
            W, b = self.problem.split(x)
            self._at = (key, self._forward(W) + b)
        return self._at[1]

    def _forward(self, W: Floats) -> Floats:
        # One column travels and multiplies best as a vector.
        product = self.X @ W[:, 0] if self.m == 1 else self.X @ W
        return np.asarray(product, dtype=np.float64).reshape(-1, self.m)

    def _back(self, r: Floats) -> Floats:
        product = self.X.T @ (r[:, 0] if self.m == 1 else r)
        G = np.asarray(product, dtype=np.float64).ravel()
        return np.concatenate([G, r.sum(axis=0)]) if self.problem.intercept else G
