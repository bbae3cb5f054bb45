"""Linear models by coded sums of gradients: solver="coded-gradient".

Each iteration is one `parts.sum`; with an approximate stop rule it waits for no straggler,
as in ErasureHead (Wang et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..checks import number
from ..cluster import Cluster
from ..codes.assignment import SumCode
from ..errors import BadInput
from ..rounds.stop import Stop
from ..sums import Parts, Sum
from ..sums.tally import Kind
from .descent import SVRG, Constant, Nesterov, descend
from .losses import LossOf, Problem, logistic, multinomial, squared, squared_hinge
from .saves import Saves
from .solvers import Floats, Solution, check_finite
from .terms import Term, cut

Show = Callable[[int, float, Floats, Parts], None]  # iteration, loss, parameters, parts

# The most that a loss curves by score, times the weight.
CURVATURE: dict[LossOf, float] = {squared: 1, logistic: 0.25, multinomial: 0.5, squared_hinge: 2}
POWER = 30  # products that the largest curvature is found by
SAFETY = 1.1  # what is found is a little below it
FLAT = 1e-12  # of the largest curvature: a column that does not vary
ALIKE = 10.0  # columns whose sizes differ by less are left as they are
ROWS = 4096  # at a time
TINY, STILL = 1e-9, 50  # a gradient, by the first, that rounding may be all of; iterations to judge


@dataclass(frozen=True)
class CodedGradient:
    """Coded gradients, and the optimiser that uses them; `solver="coded-gradient"` is the default.

    code, stop, weights: see `cluster.parts` and `parts.sum` (default: two copies and exact sums).
    optimiser: GradientDescent, Nesterov or SVRG, given the gradient of the *mean* loss over the
    rows plus the penalty's (default: Nesterov with restarts, at one over the largest curvature).
    parts: how many to cut the rows into (default: one a worker). batch: the stochastic variant, a
    fraction of the rows of each part, drawn anew each iteration, the same wherever the part lies.
    """

    code: SumCode | None = None
    stop: Stop | None = None
    weights: Kind = "covered"
    optimiser: Nesterov | None = None
    parts: int | None = None
    batch: float | None = None

    def __post_init__(self) -> None:
        if self.batch is not None:
            number(self.batch, "batch", "in (0, 1]", "It is a fraction of each part.")
        if self.optimiser is not None and not isinstance(self.optimiser, Nesterov):
            raise BadInput(
                f"optimiser must be GradientDescent or Nesterov; got {self.optimiser!r}."
            )
        if isinstance(self.optimiser, SVRG) and self.batch is None:
            raise BadInput(
                "SVRG corrects the gradients of batches; got batch=None. Give batch=, a fraction "
                "of each part, or use GradientDescent."
            )


@dataclass(frozen=True, eq=False)
class Axes:
    """Coordinates in which a linear model curves about alike in all directions.

    Columns far from zero, or of very different sizes, make a valley that descent crosses for ever.
    Only the master knows of these coordinates: workers see parameters, W row by row, then b, and
    return their gradients. From points p: W = p_W / scale, b = p_b / base − mean W.
    """

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

    def point(self, x: Floats) -> Floats:
        """The point at which these are the parameters."""
        W, b = self._split(x)
        p = (W * self.scale[:, None]).ravel()
        return np.append(p, (b + self.mean @ W) * self.base) if self.intercept else p

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
    """Axes for scores X W + b; `curvature`: the most that the scaled loss curves by score."""
    X, weight, penalty = problem.X, problem.weight.max(axis=1), float(np.max(problem.penalty))
    total = float(weight.sum())
    centred = problem.intercept and not problem.intercept_penalty and total > 0
    mean = np.asarray(X.T @ weight) / total if centred else np.zeros(X.shape[1])
    if scipy.sparse.issparse(X):
        squares = X.power(2)  # type: ignore[attr-defined]
        spread = np.asarray(squares.T @ weight) - total * mean * mean
    else:
        spread = np.zeros(X.shape[1])
        for first in range(0, len(X), ROWS):
            rows = slice(first, first + ROWS)
            spread += np.square(X[rows] - mean).T @ weight[rows]
    curved = curvature * np.maximum(spread, 0.0) + penalty
    most = float(curved.max(initial=0.0)) or 1.0
    scale = np.sqrt(np.where(curved > FLAT * most, curved, most))
    if len(scale) and scale.max() < ALIKE * scale.min():
        # As they are, so that where many solutions are as good the smallest is found.
        scale = np.full_like(scale, np.sqrt(most))
    base = curvature * total + problem.intercept_penalty
    targets = int(problem.targets.shape[1])
    return Axes(mean, scale, float(np.sqrt(base)) or 1.0, targets, problem.intercept)


def _largest_curvature(problem: Problem, where: Axes, by_score: float) -> float:
    """The largest curvature in those coordinates: some products with X, here."""
    X, weight, at = problem.X, problem.weight.max(axis=1), replace(where, targets=1)
    penalties = problem.penalties().reshape(-1, problem.targets.shape[1]).max(axis=1)
    v = np.random.default_rng(0).standard_normal(X.shape[1] + problem.intercept)
    largest = 0.0
    for _ in range(POWER):
        v /= float(np.linalg.norm(v)) or 1.0
        x = at.parameters(v)
        scores = X @ x[: X.shape[1]] + (x[-1] if problem.intercept else 0.0)
        back = by_score * weight * scores
        gradient = np.asarray(X.T @ back)
        gradient = np.append(gradient, back.sum()) if problem.intercept else gradient
        v = at.slope(gradient + penalties * x)
        largest = float(np.linalg.norm(v))
    return SAFETY * largest


def solve(
    cluster: Cluster,
    problem: Problem,
    how: CodedGradient,
    tol: float,
    max_iter: int,
    show: Show,
    saves: Saves,
    start: Floats,
) -> Solution:
    """Descend until an exact gradient is within `tol`, or at the level of rounding.

    From `start`, or from where the saved state was.
    An optimiser of the user's own sees the parameters; ours works in coordinates of its own.
    """
    rows = int(problem.X.shape[0])
    usual = max(len(cluster.workers), cluster.keep or 0)  # as cluster.parts has it
    count = usual if how.parts is None else how.parts
    data = cut(problem.X, problem.targets, problem.weight, count)
    optimiser, where = how.optimiser, None
    if optimiser is None:
        by_score = problem.scale * CURVATURE[problem.loss]
        where = axes(problem, by_score)
        largest = max(_largest_curvature(problem, where, by_score), 1e-300)
        optimiser = Nesterov(Constant(rows / largest), restart=True)
    parts = cluster.parts(data, how.code, parts=how.parts)
    term = Term(problem.loss, problem.intercept, how.batch)
    penalties = problem.penalties()
    seen = {"loss": float("nan")}
    floor = _Floor(*saves.state.get("floor", ()))

    options: Any = {"stop": how.stop, "weights": how.weights}
    reduced = _Reduced(parts, term, optimiser.every) if isinstance(optimiser, SVRG) else None

    def gradient(p: Floats, t: int) -> tuple[NDArray[Any], bool]:
        x = p if where is None else where.parameters(p)
        if reduced is None:
            result = parts.sum(term, (x, t), **options)
        else:
            result = reduced.sum(x, t, **options)
        slope, loss = result.value
        seen["loss"] = problem.scale * float(loss) + 0.5 * float(penalties @ (x * x))
        check_finite(t, seen["loss"], slope)
        # Of the mean, so that a step size does not depend on how many rows there are.
        mean = (problem.scale * slope + penalties * x) / rows
        exact = result.exact and how.batch is None
        if where is None:
            return mean, exact
        flat = exact and float(np.abs(mean).max(initial=0.0)) <= tol / rows
        mean = where.slope(mean)
        if exact and tol > 0 and (floor.reached(t, mean) or flat):
            mean = np.zeros_like(mean)
        return mean, exact

    def at_point(t: int, p: Floats) -> None:
        show(t, seen["loss"], p if where is None else where.parameters(p), parts)

    within = tol / rows if where is None else float(np.finfo(float).tiny)
    begin = start if where is None else where.point(start)
    saves = saves.beside(floor=floor)
    result = descend(gradient, begin, optimiser, max_iter, within, at_point, saves)
    x = result.x if where is None else where.parameters(result.x)
    return Solution(x, result.iterations, result.converged or how.optimiser is not None)


class _Reduced:
    """Gradients of batches, corrected by the exact one of all rows at a point some steps back."""

    def __init__(self, parts: Parts, term: Term, every: int) -> None:
        self.parts, self.term, self.every = parts, term, every
        self._all = replace(term, batch=None)
        self._at: Floats | None = None
        self._slope: Any = None

    def sum(self, x: Floats, t: int, **options: Any) -> Sum:
        """As `parts.sum` has it: (gradient, loss). A fit that goes on begins with all rows."""
        if self._at is None or (t - 1) % self.every == 0:
            self._slope, self._at = self.parts.sum(self._all, (x, t)).value[0], x
        result = self.parts.sum(self.term.change, (x, t, self._at), **options)
        slope, loss = result.value
        return replace(result, value=(self._slope + slope, loss))


@dataclass
class _Floor:
    """Tells when gradients are as small as rounding lets them become: tiny, and long no smaller."""

    first: float = float("inf")
    best: float = float("inf")
    since: int = 0

    def __checkpoint__(self) -> tuple[float, float, int]:
        return self.first, self.best, self.since

    def reached(self, t: int, gradient: Floats) -> bool:
        """Whether this one is at the floor."""
        size = float(np.abs(gradient).max(initial=0.0))
        if t == 1:
            self.first = size
        if size < 0.9 * self.best:
            self.best, self.since = size, t
        return self.best <= TINY * self.first and t - self.since > STILL
