"""Linear models by coded sums of gradients: solver="coded-gradient".

The data lie on the workers in parts; each iteration is one `parts.sum`. With an approximate stop
rule no iteration waits for stragglers (ErasureHead).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..codes.assignment import SumCode
from ..errors import BadInput
from ..rounds.stop import Stop
from ..sums import Parts
from ..sums.tally import Kind
from .descent import Constant, Nesterov, Optimiser, descend
from .losses import logistic, multinomial, squared, squared_hinge
from .solvers import Floats, Solution, sound
from .terms import LossOf, Term, cut

# The most that a loss curves by score, times the weight.
CURVATURE: dict[LossOf, float] = {
    squared: 1.0,
    logistic: 0.25,
    multinomial: 0.5,
    squared_hinge: 2.0,
}
POWER = 30  # products that the largest curvature is found by
SAFETY = 1.1  # what is found is a little below it


@dataclass(frozen=True)
class CodedGradient:
    """How gradients are had, and what is done with them; `solver="coded-gradient"` is the default.

    code, stop, weights: see `cluster.parts` and `parts.sum` (default: two copies and exact sums).
    optimiser: GradientDescent or Nesterov, given the gradient of the *mean* loss over the rows plus
    the penalty's (default: Nesterov with restarts, at one over the largest curvature). parts: how
    many to cut the rows into (default: one a worker). batch: the stochastic variant, a fraction of
    the rows of each part, drawn anew each iteration, the same ones wherever the part lies.
    """

    code: SumCode | None = None
    stop: Stop | None = None
    weights: Kind = "covered"
    optimiser: Optimiser | None = None
    parts: int | None = None
    batch: float | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and not 0 < self.batch <= 1:
            raise BadInput(f"batch is a fraction of each part, in (0, 1]; got {self.batch!r}.")
        if self.optimiser is not None and not isinstance(self.optimiser, Optimiser):
            raise BadInput(
                f"optimiser must be GradientDescent or Nesterov; got {self.optimiser!r}."
            )


@dataclass(frozen=True, eq=False)
class Problem:
    """scale · Σ loss(X W + b) + ½ penalty ‖W‖² (and ‖b‖² if `penalise_intercept`)."""

    X: Any  # (N, d), an array or CSR
    targets: Floats  # (N, m)
    weight: Floats  # (N, 1)
    loss: LossOf
    scale: float = 1.0
    penalty: float = 0.0
    intercept: bool = True
    penalise_intercept: bool = False

    @property
    def size(self) -> int:
        """How many parameters there are, flat: W (d, m) row by row, then b (m,)."""
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

    def curvature(self) -> float:
        """The largest curvature of the whole, at most: some products with X, here."""
        X, weight = self.X, self.weight[:, 0]
        v = np.random.default_rng(0).standard_normal(X.shape[1] + self.intercept)
        largest = 0.0
        for _ in range(POWER):
            v /= float(np.linalg.norm(v)) or 1.0
            scores = X @ v[: X.shape[1]] + (v[-1] if self.intercept else 0.0)
            back = weight * scores
            v = np.asarray(X.T @ back)
            v = np.append(v, back.sum()) if self.intercept else v
            largest = float(np.linalg.norm(v))
        return SAFETY * self.scale * CURVATURE[self.loss] * largest + self.penalty


def solve(
    cluster: Cluster,
    problem: Problem,
    how: CodedGradient,
    tol: float,
    max_iter: int,
    tell: Callable[[int, float, Floats, Parts], None],
) -> Solution:
    """Descend from zero until the largest entry of an exact gradient is at most `tol`."""
    rows = int(problem.X.shape[0])
    count = len(cluster.workers) if how.parts is None else how.parts
    data = cut(problem.X, problem.targets, problem.weight, count)
    optimiser = how.optimiser
    if optimiser is None:
        optimiser = Nesterov(Constant(rows / max(problem.curvature(), 1e-300)), restart=True)
    parts = cluster.parts(data, how.code, parts=how.parts)
    term = Term(problem.loss, problem.intercept, how.batch)
    penalties = problem.penalties()
    seen = {"loss": float("nan")}

    def gradient(x: Floats, t: int) -> tuple[NDArray[Any], bool]:
        found = parts.sum(term, (x, t), stop=how.stop, weights=how.weights)
        slope, loss = found.value
        seen["loss"] = problem.scale * float(loss) + 0.5 * float(penalties @ (x * x))
        sound(t, seen["loss"], slope)
        # Of the mean, so that a step size does not depend on how many rows there are.
        mean = (problem.scale * slope + penalties * x) / rows
        return mean, found.exact and how.batch is None

    def told(t: int, x: Floats) -> None:
        tell(t, seen["loss"], x, parts)

    found = descend(gradient, np.zeros(problem.size), optimiser, max_iter, tol / rows, told)
    return Solution(found.x, found.iterations, found.converged or how.optimiser is not None)
