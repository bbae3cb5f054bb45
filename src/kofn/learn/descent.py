"""First-order optimisers: a gradient in, the next point out. Pure; nothing here knows of workers.

An optimiser goes from State to State. Gradients may be exact, approximate or stochastic: the
caller of `descend` computes them, usually as a coded sum (see `kofn.learn.coded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import number, whole
from ..errors import BadInput, NotFinite
from .saves import NOWHERE, Saves
from .solvers import Solution

Vector = NDArray[Any]
Rate = Callable[[int], float]  # the step size of iteration t = 1, 2, …


@dataclass(frozen=True)
class Constant:
    """The same step size in every iteration."""

    rate: float

    def __post_init__(self) -> None:
        number(self.rate, "rate of a step size", "> 0", "Try 0.1.")

    def __call__(self, t: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Decay:
    """rate · factorᵗ: 0.1 · 0.99ᵗ by default."""

    rate: float = 0.1
    factor: float = 0.99

    def __post_init__(self) -> None:
        number(self.rate, "rate of a step size", "> 0", "Try 0.1.")
        number(self.factor, "factor of a step size", "in (0, 1]", "Above 1, steps would grow.")

    def __call__(self, t: int) -> float:
        return float(self.rate * self.factor**t)


@dataclass(frozen=True, eq=False)
class State:
    """Where an optimiser is: its point, the one before it, and iterations since it (re)started."""

    x: Vector
    before: Vector
    t: int = 0


@dataclass(frozen=True)
class Nesterov:
    """Nesterov's accelerated descent: the gradient is taken a little ahead of the last step.

    momentum: how far ahead, or None for (t − 1) / (t + 2). restart: begin anew when a step goes
    against the gradient (O'Donoghue and Candès), which suits exact gradients.
    """

    rate: Rate
    momentum: float | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if not callable(self.rate):
            raise BadInput(
                f"rate must be a function of the iteration, as Constant(0.1) or Decay(); got "
                f"{self.rate!r}."
            )
        if self.momentum is not None:
            number(self.momentum, "momentum", "in [0, 1)")

    def look(self, state: State) -> Vector:
        """The point at which the next gradient is wanted."""
        ahead = state.t / (state.t + 3) if self.momentum is None else self.momentum
        if state.t == 0 or ahead == 0:
            return state.x
        return state.x + ahead * (state.x - state.before)

    def step(self, state: State, at: Vector, gradient: Vector, t: int) -> State:
        """Go on, given the gradient at the point that `look` returned, in iteration t >= 1."""
        x = at - self.rate(t) * gradient
        if self.restart and float(np.vdot(gradient, x - state.x)) > 0:
            return State(x, x, 0)
        return State(x, state.x, state.t + 1)


@dataclass(frozen=True)
class GradientDescent(Nesterov):
    """x ← x − rate(t) · gradient."""

    momentum: float | None = field(default=0.0, init=False)
    restart: bool = field(default=False, init=False)


@dataclass(frozen=True)
class SVRG(GradientDescent):
    """Stochastic descent with its variance reduced (Johnson and Zhang, 2013).

    Every `every` iterations the gradient of all rows is taken, as an exact sum. In between a
    batch's gradient is corrected by what the batch had at that point, so that steps need not become
    smaller. Use it with `CodedGradient(batch=...)`; a rate of a tenth over the largest curvature is
    usual.
    """

    every: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.every, "every, the iterations between two gradients of all rows,", 1)


def descend(
    gradient: Callable[[Vector, int], tuple[Vector, bool]],
    x: Vector,
    optimiser: Nesterov,
    iterations: int,
    tol: float = 0.0,
    on_step: Callable[[int, Vector], bool | None] | None = None,
    saves: Saves = NOWHERE,
) -> Solution:
    """Run an optimiser. `gradient(x, t)` returns the gradient and whether it is exact.

    Stops after so many iterations, when the largest entry of an exact gradient is at most `tol`,
    or when `on_step(t, x)`, called after each, returns True. Raises NotFinite for such a point.
    """
    state, saved = State(x, x), saves.state
    if saved:
        state = State(saved["x"], saved["before"], saved["t"])
    for t in range(saved.get("iteration", 0) + 1, iterations + 1):
        at = optimiser.look(state)
        slope, exact = gradient(at, t)
        if tol > 0 and exact and float(np.abs(slope).max(initial=0.0)) <= tol:
            return Solution(at, t - 1, True)
        with np.errstate(over="ignore", invalid="ignore"):  # said once, below
            state = optimiser.step(state, at, slope, t)
        if not np.isfinite(state.x).all():
            wrong = np.flatnonzero(~np.isfinite(state.x))
            raise NotFinite("point", t, float(state.x.flat[wrong[0]]))
        if on_step is not None and on_step(t, state.x):
            return Solution(state.x, t, True)
        saves.offer(iteration=t, x=state.x, before=state.before, t=state.t)
    return Solution(state.x, iterations, False)
