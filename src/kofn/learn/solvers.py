"""Solvers that see the data only through two products: X @ v and X.T @ z.

Each takes an objective, reports every iteration to `on_step`, and returns a Solution. Nothing
here knows of workers: a loss in the middle of a fit is the products' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import NotFinite
from .saves import NOWHERE, Saves
from .searches import LEVEL, by_slopes, halved, wolfe

if TYPE_CHECKING:
    from .losses import LinearObjective as Objective

HALVINGS = 10  # of the last step that helped, where products are not exact
FIRST = 60  # before there is one
MEMORY = 10  # steps that L-BFGS remembers
IDLE = 10  # iterations without a smaller gradient or value
# The same, of gradient descent. Its steps grow until the gradient along large curvatures rises, and
# then leave 4/5 of that each: until it is down by a condition number of 1e4, 4.5 ln 1e4 iterations
# pass, and log2 1e4 on the way up.
ZIGZAG = 60
POINT = ("iteration", "x", "value", "gradient")  # of a state

Floats = NDArray[np.float64]
OnStep = Callable[[int, float, Floats], None]  # iteration, loss, parameters
ColumnStep = Callable[[int, Floats, Floats], None]  # iteration, residuals, X; both change later
Linear = Callable[[Floats], Floats]  # columns in, as many out
# Some of the columns, and which they are -> H P, which may be another H for each column.
Columns = Callable[[Floats, NDArray[np.intp]], Floats]
# The same, and what adds up along the way.
Apply = Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Solution:
    """The solution: parameters (flat), iterations, and whether the tolerance was met."""

    x: Floats
    iterations: int
    converged: bool


def check_finite(iteration: int, loss: float, gradient: Floats | None = None) -> None:
    """Raise NotFinite where a fit cannot go on from here."""
    if not np.isfinite(loss):
        raise NotFinite("loss", iteration, float(loss))
    if gradient is None:
        return
    if not np.isfinite(gradient).all():
        raise NotFinite("gradient", iteration, float(gradient[~np.isfinite(gradient)][0]))
    with np.errstate(over="ignore"):
        size = float(gradient @ gradient)
    if not np.isfinite(size):  # no step is short enough then
        raise NotFinite("square of the gradient", iteration, size)


def gradient_descent(
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep, saves: Saves = NOWHERE
) -> Solution:
    """Batch gradient descent with backtracking line search, as in Yang et al., 2019.

    Until the largest entry of the gradient is at most `tol`, as with the other solvers. The first
    step tried is twice the last one taken; it is halved until it helps. An inexact objective is
    another one each time it is looked at: where no step helps, the smallest (2^-HALVINGS of the
    last) is taken, and on it goes.
    """
    done, x, value, gradient = _begun(f, x, saves)
    step, halvings = saves.state.get("step", 1.0), saves.state.get("halvings", FIRST)
    course = Course.of(saves)
    for iteration in range(done + 1, max_iter + 1):
        if course.ends(gradient, tol, ZIGZAG):
            return Solution(x, iteration - 1, True)
        smallest = 0.0 if f.exact else step * 0.5**halvings
        point, tried = halved(f, x, value, gradient, 2.0 * step, smallest)
        if point is None:
            return Solution(x, iteration, True)  # rounding: no step makes it better
        x, before = point, value
        value, gradient = f.value_and_gradient(x)
        check_finite(iteration, value, gradient)
        course.note(before, value, certain=f.exact)
        on_step(iteration, value, x)
        if tried > smallest:  # else start from the old one: what made the loss rise may be over
            step, halvings = tried, HALVINGS
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, **vars(course), step=step, halvings=halvings, known=f)
    return Solution(x, max_iter, False)


@dataclass
class Course:
    """What tells a solver that it wanders about in rounding.

    best: the smallest of the gradients' largest entries. idle: iterations since that, or the value,
    became smaller.
    """

    best: float = np.inf
    idle: int = 0

    @classmethod
    def of(cls, saves: Saves) -> Course:
        return cls(saves.state.get("best", np.inf), saves.state.get("idle", 0))

    def ends(self, gradient: Floats, tol: float, idle: int = IDLE) -> bool:
        """Whether nothing more is to be gained."""
        size = float(np.abs(gradient).max(initial=0.0))
        self.best, self.idle = (size, 0) if size < self.best else (self.best, self.idle + 1)
        return size <= tol or self.idle > idle

    def note(self, before: float, value: float, certain: bool = True) -> None:
        """Take in a step. Values that are not `certain` tell nothing."""
        if not certain or before - value > LEVEL * abs(value):
            self.idle = 0


def _begun(f: Objective, x: Floats, saves: Saves) -> tuple[int, Floats, float, Floats]:
    """Iterations done, the point, and value and gradient there: as saved, or at the start."""
    if saves.state:
        iteration, x, value, gradient = (saves.state[name] for name in POINT)
        if "known" in saves.state:
            f.restore(x, saves.state["known"])
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
    course = Course.of(saves)
    for iteration in range(done + 1, max_iter + 1):
        if course.ends(gradient, tol):
            return Solution(x, iteration - 1, True)
        M = f.inverse(x)
        if M is not None and f.whole:
            S, Y = none, none  # nothing that was learnt before is as good
        p = _direction(gradient, S, Y, M, f)
        point = wolfe(f, x, value, gradient, p, len(S) > 0 or M is not None)
        if point is None and (len(S) or M is not None):  # that may mislead: begin anew
            S, Y = none, none
            point = wolfe(f, x, value, gradient, -gradient, False)
        if point is None:
            return Solution(x, iteration, True)  # rounding: no step makes it better
        old, before, here = gradient, value, x
        x = point
        value, gradient = f.value_and_gradient(x)
        check_finite(iteration, value, gradient)
        course.note(before, value)
        s = x - here
        if float(s @ (gradient - old)) > 0.0:
            S, Y = np.vstack([S, s])[-MEMORY:], np.vstack([Y, gradient - old])[-MEMORY:]
        on_step(iteration, value, x)
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, **vars(course), S=S, Y=Y, known=f)
    return Solution(x, max_iter, False)


def _direction(gradient: Floats, S: Floats, Y: Floats, M: Linear | None, f: Objective) -> Floats:
    """-H gradient by the two loops of L-BFGS, from `M` on: O(len(S) · d), and M's own."""

    def inverse(v: Floats) -> Floats:
        return v if M is None else M(v.reshape(-1, f.m)).ravel()

    p, along = -gradient, []
    for s, y in zip(S[::-1], Y[::-1], strict=True):
        a = float(s @ p) / float(s @ y)
        p = p - a * y
        along.append(a)
    p = inverse(p)
    if len(S) and not f.sharp:
        p = p * (float(S[-1] @ Y[-1]) / float(Y[-1] @ inverse(Y[-1])))
    for s, y, a in zip(S, Y, along[::-1], strict=True):
        p = p + (a - float(y @ p) / float(s @ y)) * s
    return p


def newton_cg(
    f: Objective, x: Floats, tol: float, max_iter: int, on_step: OnStep, saves: Saves = NOWHERE
) -> Solution:
    """Newton steps, each as long as it helps; converges to the last digits.

    Far from the optimum conjugate gradients stop early, so that a step costs what it is worth.
    Columns that stand alone have residuals and steps of their own, in the same products.
    """
    done, x, value, gradient = _begun(f, x, saves)
    start = saves.state.get("start")
    course = Course.of(saves)
    for iteration in range(done + 1, max_iter + 1):
        if course.ends(gradient, tol):
            return Solution(x, iteration - 1, True)
        M, G = f.inverse(x), gradient.reshape(-1, f.m)
        left = np.sqrt(_dots(G, G if M is None else M(G), f.joint))
        start = np.where(left > 0.0, left, 1.0) if start is None else start
        within = np.minimum(0.5, np.sqrt(left / start)) * left
        if not f.joint:  # whoever is there already waits for the others
            within = np.where(np.abs(G).max(axis=0, initial=0.0) <= tol, np.inf, within)
        solution = conjugate_gradients(f.curvature(x), -G, within, 50 + len(x), M, f.joint)
        line = f.line(x, solution.X.ravel(), solution.reached)
        step = by_slopes(line, _dots(G, solution.X, f.joint))
        if not step.any():
            return Solution(x, iteration, True)  # rounding: no step makes it better
        here, before = x, value
        x = line.arrive(step)
        value, gradient = f.value_and_gradient(x)
        check_finite(iteration, value, gradient)
        if not value <= before + LEVEL * abs(before):
            return Solution(here, iteration, True)
        course.note(before, value)
        on_step(iteration, value, x)
        if np.array_equal(x, here):
            return Solution(x, iteration, True)
        at = {"iteration": iteration, "x": x, "value": value, "gradient": gradient}
        saves.offer(**at, **vars(course), start=start, known=f)
    return Solution(x, max_iter, False)


@dataclass(frozen=True)
class Solved:
    """Columns X, the residuals, which of them are small enough, and what added up on the way."""

    X: Floats
    met: NDArray[np.bool_]
    iterations: int
    reached: Floats | None


def _dots(a: Floats, b: Floats, joint: bool) -> Floats:
    """Inner products, column by column (m,), or of all columns together (1,)."""
    each = np.einsum("ij,ij->j", a, b)
    return np.asarray(each.sum(keepdims=True) if joint else each)


def conjugate_gradients(
    apply: Apply,
    B: Floats,
    within: Floats,
    max_iter: int,
    M: Linear | None = None,
    joint: bool = False,
    on_step: ColumnStep | None = None,
    saves: Saves = NOWHERE,
) -> Solved:
    """Solve H X = B for positive definite H, all columns in the same products.

    `M`: a preconditioner, about the inverse of H (default: 1). Residuals are measured by it,
    √(rᵀ M r), and must become at most `within`. joint: columns are one vector, not several
    problems.
    """
    solve: Linear = M or np.copy
    state = saves.state or {"iteration": 0, "X": 0.0 * B, "R": B.copy(), "P": solve(B.copy())}
    X, R, P = (np.asarray(state[name]) for name in ("X", "R", "P"))
    iteration, reached = int(state["iteration"]), None
    size = _dots(R, solve(R), joint)
    going = np.ones(len(size), dtype=bool)
    while True:
        if not np.isfinite(size).all():
            raise NotFinite("residual", iteration, float(size[~np.isfinite(size)][0]))
        going &= size > within**2
        if not going.any() or iteration == max_iter:
            break
        at = np.arange(B.shape[1]) if joint else np.flatnonzero(going)
        some = P[:, at]
        HP, extra = apply(some, at)
        curve = _dots(some, HP, joint)
        if not np.isfinite(curve).all():
            raise NotFinite("curvature", iteration + 1, float(curve[~np.isfinite(curve)][0]))
        good = curve > 0.0  # or rounding: nothing more to gain in this direction
        step = np.where(good, size[going] / np.where(good, curve, 1.0), 0.0)
        X[:, at] += step * some
        R[:, at] -= step * HP
        if extra.size:
            reached = np.zeros((len(extra), B.shape[1])) if reached is None else reached
            reached[:, at] += step * extra
        Z = solve(R)
        old, size = size, _dots(R, Z, joint)
        P[:, at] = Z[:, at] + (size[going] / old[going]) * some
        going[going] = good
        iteration += 1
        if on_step is not None:
            on_step(iteration, R, X)
        saves.offer(iteration=iteration, X=X, R=R, P=P)
    return Solved(X, size <= within**2, iteration, reached)


def solve_columns(
    apply: Columns,
    B: Floats,
    tol: float,
    max_iter: int,
    on_step: ColumnStep,
    saves: Saves = NOWHERE,
    M: Linear | None = None,
) -> tuple[Floats, int, int]:
    """Solve H X = B, each column to a residual of `tol` times its right side.

    Returns X, the iterations taken, and how many columns have not met `tol`.
    """
    within = tol * np.sqrt(_dots(B, B if M is None else M(B), False))
    nothing = np.zeros((0, 0))
    solution = conjugate_gradients(
        lambda P, at: (apply(P, at), nothing), B, within, max_iter, M, False, on_step, saves
    )
    return solution.X, solution.iterations, int((~solution.met).sum())


SOLVERS = {"gd": gradient_descent, "lbfgs": lbfgs, "newton-cg": newton_cg}
