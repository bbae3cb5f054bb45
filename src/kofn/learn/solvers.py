"""Solvers that see the data only through two products: X @ v and X.T @ z.

Each takes an objective, reports every iteration to `on_step`, and returns a Solution. Nothing
here knows of workers: a loss in the middle of a fit is the products' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import NotFinite
from .saves import NOWHERE, Saves

if TYPE_CHECKING:
    from .losses import LinearObjective as Objective

HALVINGS = 10  # of the last step that helped, where products are not exact
FIRST = 60  # before there is one
MEMORY = 10  # steps that L-BFGS remembers
IDLE = 10  # iterations without a smaller gradient or value
SEARCHES = 60  # trials of a line search
LEVEL = 1e-12  # relative: values that differ by less may differ by rounding
POINT = ("iteration", "x", "value", "gradient")  # of a state

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
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep, saves: Saves = NOWHERE
) -> Solution:
    """Batch gradient descent with backtracking line search, as in Yang et al., 2019.

    Until the largest entry of the gradient is at most `tol`, as with the other solvers. The first
    step tried is twice the last one taken; it is halved until the loss falls by a tenth of what the
    slope promises (Armijo). Where no step helps, an exact objective is at its end. An inexact one
    is not: the smallest step (2^-HALVINGS of the last) is taken, and on it goes.
    """
    done, x, value, gradient = _begun(f, x, saves)
    step, halvings = saves.state.get("step", 1.0), saves.state.get("halvings", FIRST)
    for iteration in range(done + 1, max_iter + 1):
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
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, step=step, halvings=halvings)
    return Solution(x, max_iter, False)


def _begun(f: Objective, x: Floats, saves: Saves) -> tuple[int, Floats, float, Floats]:
    """Iterations done, the point, and value and gradient there: as saved, or at the start."""
    if saves.state:
        iteration, x, value, gradient = (saves.state[name] for name in POINT)
        return iteration, x, value, gradient
    value, gradient = f.value_and_gradient(x)
    check_finite(0, value, gradient)
    return 0, x, value, gradient


def lbfgs(
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep, saves: Saves = NOWHERE
) -> Solution:
    """Limited-memory BFGS, until the largest entry of the gradient is at most `tol`.

    Of our own, because all that it knows must be in a checkpoint: the point, and the last MEMORY
    steps with what they changed in the gradient.
    """
    done, x, value, gradient = _begun(f, x, saves)
    none = np.zeros((0, len(x)))
    S, Y = saves.state.get("S", none), saves.state.get("Y", none)
    best, idle = saves.state.get("best", np.inf), saves.state.get("idle", 0)
    for iteration in range(done + 1, max_iter + 1):
        size = float(np.abs(gradient).max(initial=0.0))
        best, idle = (size, 0) if size < best else (best, idle + 1)
        if size <= tol or idle > IDLE:  # or it wanders about in rounding
            return Solution(x, iteration - 1, True)
        found = _line_search(f, x, value, gradient, _direction(gradient, S, Y), len(S) > 0)
        if found is None and len(S):  # what was learnt may mislead: begin anew
            S, Y = none, none
            found = _line_search(f, x, value, gradient, -gradient, False)
        if found is None:
            return Solution(x, iteration, True)  # rounding: no step makes it better
        s, old, before = found[0], gradient, value
        x, value, gradient = x + s, found[1], found[2]
        idle = idle if before - value <= LEVEL * abs(value) else 0
        if float(s @ (gradient - old)) > 0.0:
            S, Y = np.vstack([S, s])[-MEMORY:], np.vstack([Y, gradient - old])[-MEMORY:]
        on_step(iteration, value, x)
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, S=S, Y=Y, best=best, idle=idle)
    return Solution(x, max_iter, False)


def _direction(gradient: Floats, S: Floats, Y: Floats) -> Floats:
    """-H gradient by the two loops of L-BFGS: O(len(S) · d)."""
    p, along = -gradient, []
    for s, y in zip(S[::-1], Y[::-1], strict=True):
        a = float(s @ p) / float(s @ y)
        p = p - a * y
        along.append(a)
    if len(S):
        p = p * (float(S[-1] @ Y[-1]) / float(Y[-1] @ Y[-1]))
    for s, y, a in zip(S, Y, along[::-1], strict=True):
        p = p + (a - float(y @ p) / float(s @ y)) * s
    return p


def _line_search(
    f: Objective, x: Floats, value: float, gradient: Floats, p: Floats, scaled: bool
) -> tuple[Floats, float, Floats] | None:
    """A step along p, and value and gradient there; None where rounding hides the way down.

    Wolfe's conditions, or near the end, where values differ by rounding only, those of Hager and
    Zhang (2005), which judge by slopes. `scaled`: whether p has a length that can be trusted.
    """
    slope = float(gradient @ p)
    t = 1.0 if scaled else min(1.0, 1.0 / (float(np.linalg.norm(p)) or 1.0))
    low: tuple[float, float, float] = (0.0, value, slope)
    high: tuple[float, float, float] | None = None
    for _ in range(SEARCHES if slope < 0.0 else 0):
        trial, at = f.value_and_gradient(x + t * p)
        along = float(at @ p)
        falls = trial <= value + 1e-4 * t * slope
        level = trial <= value + LEVEL * abs(value) and along <= -0.8 * slope
        if not (falls or level) or not np.isfinite(at).all():
            high = (t, trial, along)
        elif along < 0.9 * slope:
            low = (t, trial, along)
        else:
            return t * p, float(trial), at
        t = 4.0 * t if high is None else _between(low, high)
        if np.array_equal(x + t * p, x + low[0] * p):
            break
    return None


def _between(low: tuple[float, float, float], high: tuple[float, float, float]) -> float:
    """Where a cubic through two points with slopes is lowest, not too near to either of them."""
    (a, fa, ga), (b, fb, gb) = low, high
    with np.errstate(all="ignore"):
        d = ga + gb - 3.0 * (fb - fa) / (b - a)
        root = np.copysign(np.sqrt(np.maximum(d * d - ga * gb, 0.0)), b - a)
        t = float(b - (b - a) * (gb + root - d) / (gb - ga + 2.0 * root))
    near, far = a + 0.1 * (b - a), a + 0.9 * (b - a)
    return min(max(t, near), far) if np.isfinite(t) else 0.5 * (a + b)


def newton_cg(
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep, saves: Saves = NOWHERE
) -> Solution:
    """Newton steps, halved until the loss falls (Armijo); converges to the last digits.

    Far from the optimum conjugate gradients stop early, so that a step costs what it is worth.
    """
    done, x, value, gradient = _begun(f, x, saves)
    start = saves.state.get("start") or float(np.linalg.norm(gradient)) or 1.0
    for iteration in range(done + 1, max_iter + 1):
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
        if step < 1e-10 or not trial <= value + LEVEL * abs(value):
            return Solution(x, iteration, True)  # rounding: no step makes it better
        stuck = bool(np.array_equal(x + step * p, x))
        x, value, gradient = x + step * p, trial, next_gradient
        on_step(iteration, value, x)
        if stuck:
            return Solution(x, iteration, True)
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, start=start)
    return Solution(x, max_iter, False)


def conjugate_gradients(
    apply: Linear,
    b: Floats,
    within: float,
    max_iter: int,
    on_step: Step | None = None,
    saves: Saves = NOWHERE,
) -> Floats:
    """Solve H x = b for positive definite H, to a residual of norm `within`."""
    state = saves.state or {"iteration": 0, "x": np.zeros_like(b), "r": b.copy(), "p": b.copy()}
    x: Floats = state["x"]
    r, p = state["r"], state["p"]
    rr = float(r @ r)
    for iteration in range(state["iteration"], max_iter):
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
        saves.offer(iteration=iteration + 1, x=x, r=r, p=p)
    return x


def solve_columns(
    apply: Linear,
    B: Floats,
    tol: float,
    max_iter: int,
    on_step: ColumnStep,
    saves: Saves = NOWHERE,
) -> tuple[Floats, int, int]:
    """Solve H X = B column by column, each to a residual of `tol` times its right side.

    Returns X, the most iterations that a column took, and how many columns have not met `tol`.
    """
    state = saves.state or {"column": 0, "X": np.zeros_like(B), "steps": 0, "unmet": 0}
    X, steps, unmet = state["X"], state["steps"], state["unmet"]
    for t in range(state["column"], B.shape[1]):
        b = B[:, t]
        inner = saves.beside(column=t, X=X, steps=steps, unmet=unmet)
        if t > state["column"]:
            inner = replace(inner, state={})
        size = float(np.linalg.norm(b))
        left = float(np.linalg.norm(inner.state.get("r", b)))

        def count(iteration: int, r: Floats, x: Floats, t: int = t) -> None:
            nonlocal steps, left
            steps, left = max(steps, iteration), float(np.linalg.norm(r))
            on_step(t, iteration, r, x)

        X[:, t] = conjugate_gradients(apply, b, tol * size, max_iter, count, inner)
        steps = max(steps, inner.state.get("iteration", 0))
        unmet += left > tol * size
    return X, steps, unmet


SOLVERS = {"gd": gradient_descent, "lbfgs": lbfgs, "newton-cg": newton_cg}
