"""Solvers that see the data only through two products: X @ v and X.T @ z.

Each takes an objective, reports every iteration to `on_step`, and returns a Solution. Nothing
here knows of workers: a loss in the middle of a fit is the products' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import NotFinite

if TYPE_CHECKING:
    from .losses import LinearObjective as Objective

HALVINGS = 10  # of the last step that helped, where products are not exact
FIRST = 60  # before there is one

Floats = NDArray[np.float64]
OnStep = Callable[[int, float, Floats], None]  # iteration, loss, parameters
Step = Callable[[int, Floats, Floats], None]  # iteration, residual, x; both change later
ColumnStep = Callable[[int, int, Floats, Floats], None]  # and which column, first
Linear = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Solution:
    """What a solver found: parameters (flat), iterations, and whether it met the tolerance."""

    x: Floats
    iterations: int
    converged: bool


def check_finite(iteration: int, loss: float, gradient: Floats | None = None) -> None:
    """Raise NotFinite where a fit cannot go on from here."""
    if not np.isfinite(loss):
        raise NotFinite("loss", iteration, float(loss))
    if gradient is not None and not np.isfinite(gradient).all():
        raise NotFinite("gradient", iteration, float(gradient[~np.isfinite(gradient)][0]))


def gradient_descent(
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep
) -> Solution:
    """Batch gradient descent with backtracking line search, as in Yang et al., 2019.

    Until the largest entry of the gradient is at most `tol`, as with the other solvers. The first
    step tried is twice the last one taken; it is halved until the loss falls by a tenth of what the
    slope promises (Armijo). Where no step helps, an exact objective is at its end. An inexact one
    is not: the smallest step (2^-HALVINGS of the last) is taken, and on it goes.
    """
    step, halvings = 1.0, FIRST
    value, gradient = f.value_and_gradient(x)
    check_finite(0, value, gradient)
    for iteration in range(1, max_iter + 1):
        slope = float(gradient @ gradient)
        if np.abs(gradient).max(initial=0.0) <= tol:
            return Solution(x, iteration - 1, True)
        smallest = 0.0 if f.exact else step * 0.5**halvings
        tried = 2.0 * step
        # "not <=": a step so long that the loss overflows is too long.
        while (
            not (trial := f.value(x - tried * gradient)) <= value - 0.1 * tried * slope
            and tried > smallest
        ):
            tried /= 2.0
            if f.exact and tried * np.sqrt(slope) < 1e-16 * (1.0 + float(np.linalg.norm(x))):
                check_finite(iteration, trial)
                return Solution(x, iteration, True)  # no step is small enough to help: rounding
        x = x - tried * gradient
        value, gradient = f.value_and_gradient(x)
        check_finite(iteration, value, gradient)
        on_step(iteration, value, x)
        if tried > smallest:  # else start from the old one: what made the loss rise may be over
            step, halvings = tried, HALVINGS
    return Solution(x, max_iter, False)


def lbfgs(f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep) -> Solution:
    """Limited-memory BFGS (SciPy's), until the largest entry of the gradient is below `tol`."""
    seen = {"iteration": 0}

    def note(intermediate_result: Any) -> None:
        seen["iteration"] += 1
        check_finite(seen["iteration"], float(intermediate_result.fun), intermediate_result.x)
        on_step(seen["iteration"], float(intermediate_result.fun), intermediate_result.x)

    import scipy.optimize  # workers load losses from beside here, and have no use for it

    limits: Any = {"maxiter": max_iter, "gtol": tol, "ftol": 0.0, "maxfun": 20 * max_iter + 100}
    found = scipy.optimize.minimize(
        f.value_and_gradient,
        x,
        jac=True,
        method="L-BFGS-B",
        callback=note,
        options=limits,
    )
    check_finite(int(found.nit), float(found.fun), np.asarray(found.jac))
    # "ABNORMAL" is a line search that rounding stopped: as far as the numbers go.
    return Solution(np.asarray(found.x), int(found.nit), found.status != 1)


def newton_cg(f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep) -> Solution:
    """Newton steps, halved until the loss falls (Armijo); converges to the last digits.

    Far from the optimum conjugate gradients stop early, so that a step costs what it is worth.
    """
    value, gradient = f.value_and_gradient(x)
    check_finite(0, value, gradient)
    start = float(np.linalg.norm(gradient)) or 1.0
    for iteration in range(1, max_iter + 1):
        size = float(np.linalg.norm(gradient))
        if float(np.abs(gradient).max(initial=0.0)) <= tol:
            return Solution(x, iteration - 1, True)
        hessian = f.curvature(x)
        within = min(0.5, np.sqrt(size / start)) * size
        p = conjugate_gradients(hessian, -gradient, within, 50 + len(x))
        slope, step = float(gradient @ p), 1.0
        while True:
            trial, next_gradient = f.value_and_gradient(x + step * p)
            if trial <= value + 1e-4 * step * slope or step < 1e-10:
                break
            step /= 2.0
        check_finite(iteration, trial, next_gradient)
        if step < 1e-10 or not trial <= value + 1e-12 * abs(value):
            return Solution(x, iteration, True)  # rounding: no step makes it better
        stuck = bool(np.array_equal(x + step * p, x))
        x, value, gradient = x + step * p, trial, next_gradient
        on_step(iteration, value, x)
        if stuck:
            return Solution(x, iteration, True)
    return Solution(x, max_iter, False)


def conjugate_gradients(
    apply: Linear, b: Floats, within: float, max_iter: int, on_step: Step | None = None
) -> Floats:
    """Solve H x = b for positive definite H, to a residual of norm `within`."""
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), float(r @ r)
    for iteration in range(max_iter):
        if not np.isfinite(rr):
            raise NotFinite("residual", iteration, rr)
        if np.sqrt(rr) <= within:
            break
        Hp = apply(p)
        curve = float(p @ Hp)
        if not np.isfinite(curve):
            raise NotFinite("curvature", iteration + 1, curve)
        if curve <= 0.0:
            break  # rounding: nothing more to gain in this direction
        x += (rr / curve) * p
        r -= (rr / curve) * Hp
        rr, old = float(r @ r), rr
        p = r + (rr / old) * p
        if on_step is not None:
            on_step(iteration + 1, r, x)
    return x


def solve_columns(
    apply: Linear, B: Floats, tol: float, max_iter: int, on_step: ColumnStep
) -> tuple[Floats, int, int]:
    """Solve H X = B column by column, each to a residual of `tol` times its right side.

    Returns X, the most iterations that a column took, and how many columns have not met `tol`.
    """
    X, steps, unmet = np.zeros_like(B), 0, 0
    for t, b in enumerate(B.T):
        left = size = float(np.linalg.norm(b))

        def count(iteration: int, r: Floats, x: Floats, t: int = t) -> None:
            nonlocal steps, left
            steps, left = max(steps, iteration), float(np.linalg.norm(r))
            on_step(t, iteration, r, x)

        X[:, t] = conjugate_gradients(apply, b, tol * size, max_iter, count)
        unmet += left > tol * size
    return X, steps, unmet


SOLVERS = {"gd": gradient_descent, "lbfgs": lbfgs, "newton-cg": newton_cg}
