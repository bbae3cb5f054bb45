"""Losses of linear models: what is done with the scores X W + b, all on the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from .solvers import Apply, Floats

if TYPE_CHECKING:  # workers need none of it
    from .precondition import Inverse, Sample

_OfScores = Callable[[Floats], Floats]
FRESH = 25  # steps after which scores are computed anew: each adds its rounding


@dataclass(frozen=True)
class Loss:
    """Loss of scores (N, m): the loss itself, its slope and its curvature by score.

    Where each score has a loss of its own, `rows` has m columns; where the scores of a row are one
    problem, as with a softmax, it has one.
    """

    rows: Callable[[Floats], Floats]  # (N, m) or (N, 1)
    slope: Callable[[Floats], Floats]  # (N, m)
    bend: Callable[[Floats], Floats]  # the curvature by each score alone, (N, m)
    curve: Callable[[Floats], Callable[[Floats], Floats]]  # at scores: direction (N, m) -> (N, m)


def _apart(rows: _OfScores, slope: _OfScores, bend: _OfScores) -> Loss:
    """A loss in which each score counts for itself."""

    def curve(s: Floats) -> Callable[[Floats], Floats]:
        by_score = bend(s)
        return lambda ds: by_score * ds

    return Loss(rows, slope, bend, curve)


def squared(y: Floats, weight: Floats) -> Loss:
    """½ Σ weight (score − y)²; y (N, m), weight (N, 1)."""
    return _apart(
        lambda s: 0.5 * weight * (s - y) ** 2,
        lambda s: weight * (s - y),
        lambda s: np.broadcast_to(weight, s.shape),
    )


def logistic(y: Floats, weight: Floats) -> Loss:
    """Σ weight log(1 + exp(−y score)), y = ±1."""

    def bend(s: Floats) -> Floats:
        p = expit(s)
        return np.asarray(weight * p * (1 - p))

    def rows(s: Floats) -> Floats:
        margin = y * s  # exp and log1p run several times as fast as logaddexp
        with np.errstate(invalid="ignore"):
            return np.asarray(weight * (np.log1p(np.exp(-abs(margin))) - np.minimum(margin, 0.0)))

    return _apart(rows, lambda s: np.asarray(-weight * y * expit(-y * s)), bend)


def multinomial(y: Floats, weight: Floats) -> Loss:
    """Σ weight (logsumexp(scores) − score of the class); y (N, classes) one-hot."""

    def bend(s: Floats) -> Floats:
        p = softmax(s, axis=1)
        return np.asarray(weight * p * (1 - p))

    def curve(s: Floats) -> Callable[[Floats], Floats]:
        p = softmax(s, axis=1)
        return lambda ds: np.asarray(weight * p * (ds - (p * ds).sum(axis=1, keepdims=True)))

    def rows(s: Floats) -> Floats:
        total = logsumexp(s, axis=1, keepdims=True)
        return np.asarray(weight * (total - (y * s).sum(axis=1, keepdims=True)))

    return Loss(rows, lambda s: np.asarray(weight * (softmax(s, axis=1) - y)), bend, curve)


def squared_hinge(y: Floats, weight: Floats) -> Loss:
    """Σ weight max(0, 1 − y score)², y = ±1, one column a class."""
    return _apart(
        lambda s: weight * np.maximum(0.0, 1 - y * s) ** 2,
        lambda s: -2.0 * weight * y * np.maximum(0.0, 1 - y * s),
        lambda s: 2.0 * weight * (y * s < 1),
    )


LossOf = Callable[[Floats, Floats], Loss]  # of targets (rows, m) and weights (rows, 1)


@dataclass(frozen=True, eq=False)
class Problem:
    """scale · Σ loss(X W + b) + ½ penalty ‖W‖² + ½ intercept_penalty ‖b‖².

    Parameters are flat: W (d, m) row by row, then b (m,) if there is an intercept.
    """

    X: Any  # (N, d): an array or CSR, or what it is on workers
    targets: Floats  # (N, m)
    weight: Floats  # (N, 1)
    loss: LossOf
    scale: float = 1.0
    penalty: float | Floats = 0.0  # one for all columns of W, or one for each
    intercept: bool = True
    intercept_penalty: float = 0.0

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
        d, m = int(self.X.shape[1]), int(self.targets.shape[1])
        of_weights = np.broadcast_to(self.penalty, (d, m)).ravel()
        of_intercept = np.full(m if self.intercept else 0, self.intercept_penalty)
        return np.concatenate([of_weights, of_intercept])


class LinearObjective:
    """A problem seen through products with its X.

    The scores of the last point are kept, so that a value and a gradient there cost one pass with
    X; after a step along a Line they cost none. Where products are not exact (see
    arrays.Replicated), rows whose score is NaN are missing: they count neither for the value nor
    for the gradient. `sample`: some rows, from which the curvature is estimated.
    """

    def __init__(self, problem: Problem, sample: Sample | None = None) -> None:
        self.X = problem.X
        self.exact = bool(getattr(problem.X, "exact", True))
        self.problem, self.loss = problem, problem.loss(problem.targets, problem.weight)
        self.m, self.scale = problem.targets.shape[1], problem.scale
        self.penalties, self._sample = problem.penalties(), sample
        self._at: tuple[bytes, Floats] | None = None
        # The value at that point and its slope by score, if they are known already.
        self._value: float | None = None
        self._slope: Floats | None = None
        self._steps = 0
        # Whether all scores of a row are one problem; whether what `inverse` returns has the right
        # length, and all that there is to know.
        one = np.zeros((1, self.m))
        alone = problem.loss(one, one[:, :1]).rows(one).shape[1] == self.m
        self.joint = not alone
        self.sharp = sample is not None and sample.sharp
        self.whole = self.sharp and alone and sample is not None and sample.whole

    def value(self, x: Floats) -> float:
        """One pass with X."""
        scores = self._scores(x)
        if self._value is None:
            self._value = float(self._values(scores, x).sum())
        return self._value

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """One pass with X and one with X.T."""
        scores = self._scores(x)
        by_score = self.loss.slope(scores) if self._slope is None else self._slope
        slope = self._there(self.scale * by_score)
        return self.value(x), self._back(slope) + self.penalties * x

    def curvature(self, x: Floats) -> Apply:
        """Return (P, at) -> H P and X P, for those columns P of the parameters that `at` says.

        One pass with X and one with X.T. Columns may be left out where each counts for itself.
        """
        curve, d = self.loss.curve(self._scores(x)), int(self.X.shape[1])
        penalties = self.penalties.reshape(-1, self.m)

        def apply(P: Floats, at: NDArray[np.intp]) -> tuple[Floats, Floats]:
            whole = np.zeros((len(self._scores(x)), self.m))
            along = self._forward(P[:d]) + (P[d:] if self.problem.intercept else 0.0)
            whole[:, at] = along
            bent = self._there(self.scale * curve(whole))[:, at]
            return self._back(bent).reshape(P.shape) + penalties[:, at] * P, along

        return apply

    def inverse(self, x: Floats) -> Inverse | None:
        """About the inverse of the curvature at x, from the sample; None without one. No pass."""
        if self._sample is None:
            return None
        scores = self._scores(x)
        bend = lambda: self.scale * self.loss.bend(scores)  # noqa: E731
        inverse = self._sample.inverse(bend, self.penalties.reshape(-1, self.m))
        if not self.joint:
            return inverse
        # The same added to all scores of a row changes no probability: nobody should go there.
        return lambda g: _level(inverse(_level(g)))

    def line(self, x: Floats, p: Floats, along: Floats | None = None) -> Line:
        """The objective along x + t p. One pass with X, unless the scores of p are given."""
        if along is None:
            W, b = self.problem.split(p)
            along = self._forward(W) + b
        return Line(self, x, p, self._scores(x), along)

    def __checkpoint__(self) -> dict[str, Any]:
        """The state beside the point that makes the next steps the same to the bit."""
        return {
            "scores": None if self._at is None else self._at[1],
            "steps": self._steps,
            "bend": None if self._sample is None else self._sample.bend,
        }

    def restore(self, x: Floats, state: Mapping[str, Any]) -> None:
        """Go on at x from what `__checkpoint__` had."""
        self._at = None if state["scores"] is None else (x.tobytes(), state["scores"])
        self._steps, self._value, self._slope = state["steps"], None, None
        if self._sample is not None and state["bend"] is not None:
            self._sample.restore(state["bend"], self.penalties.reshape(-1, self.m))

    def _arrived(self, line: Line, t: Any) -> Floats:
        """Take what a line has found as known; but from time to time have it computed anew."""
        x = line.point(t)
        self._steps = (self._steps + 1) % FRESH
        if self._steps:
            self._at = (x.tobytes(), line.scores + t * line.along)
            value, slope = line.known(t)
            self._value, self._slope = value, slope
        else:
            self._at = None
        return x

    def _values(self, scores: Floats, x: Floats) -> Floats:
        """The objective for each column that stands alone: (m,) or (1,)."""
        rows = self._there(self.loss.rows(scores))
        penalty = 0.5 * (self.penalties * x * x).reshape(-1, self.m).sum(axis=0)
        penalty = penalty if rows.shape[1] == self.m else penalty.sum(keepdims=True)
        return np.asarray(self.scale * rows.sum(axis=0) + penalty)

    def _there(self, rows: Floats) -> Floats:
        """The same; rows that are missing count as zero."""
        return rows if self.exact else np.where(np.isnan(rows), 0.0, rows)

    def _scores(self, x: Floats) -> Floats:
        key = x.tobytes()
        if self._at is None or self._at[0] != key:
            W, b = self.problem.split(x)
            self._at = (key, self._forward(W) + b)
            self._value = self._slope = None
        return self._at[1]

    def _forward(self, W: Floats) -> Floats:
        return product(self.X, W)

    def _back(self, r: Floats) -> Floats:
        G = product(self.X.T, r).ravel()
        return np.concatenate([G, r.sum(axis=0)]) if self.problem.intercept else G


def product(matrix: Any, B: Floats) -> Floats:
    """A product with B (d, m), m > 0, rounded to float32 beside a matrix of float32.

    One column travels and multiplies best as a vector.
    """
    operand = B[:, 0] if B.shape[1] == 1 else B
    dtype = np.result_type(getattr(matrix, "dtype", B.dtype), np.float32)
    result = matrix @ np.array(operand, dtype, order="C")
    return np.asarray(result, dtype=np.float64).reshape(-1, B.shape[1])


def _level(g: Floats) -> Floats:
    return np.asarray(g - g.mean(axis=1, keepdims=True))


class Line:
    """An objective along x + t p, where a value and a slope cost no pass.

    t is a number, or one for each column that stands alone.
    """

    def __init__(
        self, f: LinearObjective, x: Floats, p: Floats, scores: Floats, along: Floats
    ) -> None:
        self.f, self.x, self.p, self.scores, self.along = f, x, p, scores, along
        self._values: tuple[Any, Floats] | None = None  # at the last t
        self._slope: tuple[Any, Floats] | None = None

    def point(self, t: Any) -> Floats:
        """x + t p."""
        return np.asarray((self.x.reshape(-1, self.f.m) + t * self.p.reshape(-1, self.f.m)).ravel())

    def values(self, t: Any) -> Floats:
        """The objective at t, for each column that stands alone: (m,) or (1,)."""
        self._values = (t, self.f._values(self.scores + t * self.along, self.point(t)))
        return self._values[1]

    def slopes(self, t: Any) -> Floats:
        """The derivatives by t, for each column that stands alone."""
        f, m = self.f, self.f.m
        self._slope = (t, f.loss.slope(self.scores + t * self.along))
        by_score = np.einsum("ij,ij->j", self._slope[1], self.along)
        by_penalty = (f.penalties * self.point(t) * self.p).reshape(-1, m).sum(axis=0)
        each = f.scale * by_score + by_penalty
        return np.asarray(each.sum(keepdims=True) if f.joint else each)

    def value_and_slope(self, t: float) -> tuple[float, float]:
        """The objective at t, and its derivative by t."""
        return float(self.values(t).sum()), float(self.slopes(t).sum())

    def known(self, t: Any) -> tuple[float | None, Floats | None]:
        """The value and the slope by score at t, if t was the last that was tried."""
        value, slope = self._values, self._slope
        return (
            float(value[1].sum()) if value is not None and np.array_equal(value[0], t) else None,
            slope[1] if slope is not None and np.array_equal(slope[0], t) else None,
        )

    def arrive(self, t: Any) -> Floats:
        """The point at t, of which the objective then knows the value and slope."""
        return self.f._arrived(self, t)
