"""First-order optimisers: a gradient in, the next point out. Pure; nothing here knows of workers.

An optimiser walks from State to State. Gradients may be exact, approximate or stochastic: whoever
calls `descend` says how they are had, usually as a coded sum (see `kofn.learn.coded`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import number
from ..errors import BadInput, NotFinite

Vector = NDArray[Any]
Rate = Callable[[int], float]  # the step size of iteration t = 1, 2, …


@dataclass(frozen=True)
class Constant:
    """The same step size in every iteration."""

    rate: float

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def __call__(self, t: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Decay:
    """rate · factorᵗ: 0.1 · 0.99ᵗ by default."""

    rate: float = 0.1
    factor: float = 0.99

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        _positive("factor", self.factor)
        if self.factor > 1:
            raise BadInput(f"factor must be at most 1, or steps would grow; got {self.factor!r}.")

    def __call__(self, t: int) -> float:
        return float(self.rate * self.factor**t)


@dataclass(frozen=True, eq=False)
class State:
    """Where an optimiser is: its point, the one before it, and iterations since it (re)started."""

    x: Vector
    before: Vector
    t: int = 0


class Optimiser(ABC):
    """One rule of descent. Stateless: what it remembers is in State."""

    @abstractmethod
    def look(self, state: State) -> Vector:
        """The point at which the next gradient is wanted."""

    @abstractmethod
    def step(self, state: State, at: Vector, gradient: Vector, t: int) -> State:
        """Go on, given the gradient at the point that `look` returned, in iteration t >= 1."""


@dataclass(frozen=True)
class GradientDescent(Optimiser):
    """x ← x − rate(t) · gradient."""

    rate: Rate

    def __post_init__(self) -> None:
        _schedule(self.rate)

    def look(self, state: State) -> Vector:
        return state.x

    def step(self, state: State, at: Vector, gradient: Vector, t: int) -> State:
        return State(at - self.rate(t) * gradient, at, state.t + 1)


@dataclass(frozen=True)
class Nesterov(Optimiser):
    """Nesterov's accelerated descent: the gradient is taken a little ahead of the last step.

    momentum: how far ahead, or None for (t − 1) / (t + 2). restart: begin anew when a step goes
    against the gradient (O'Donoghue and Candès), which suits exact gradients.
    """

    rate: Rate
    momentum: float | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        _schedule(self.rate)
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise BadInput(f"momentum must be from 0 to below 1; got {self.momentum!r}.")

    def look(self, state: State) -> Vector:
        ahead = state.t / (state.t + 3) if self.momentum is None else self.momentum
        if state.t == 0 or ahead == 0:
            return state.x
        return state.x + ahead * (state.x - state.before)

    def step(self, state: State, at: Vector, gradient: Vector, t: int) -> State:
        x = at - self.rate(t) * gradient
        if self.restart and float(np.vdot(gradient, x - state.x)) > 0:
            return State(x, x, 0)
        return State(x, state.x, state.t + 1)


@dataclass(frozen=True, eq=False)
class Descent:
    """What a descent came to."""

    x: Vector
    iterations: int
    converged: bool


def descend(
    gradient: Callable[[Vector, int], tuple[Vector, bool]],
    x: Vector,
    optimiser: Optimiser,
    iterations: int,
    tol: float = 0.0,
    on_step: Callable[[int, Vector], bool | None] | None = None,
) -> Descent:
    """Run an optimiser. `gradient(x, t)` returns the gradient and whether it is exact.

    Stops after so many iterations, when the largest entry of an exact gradient is at most `tol`,
    or when `on_step(t, x)`, called after every iteration, returns True. Raises NotFinite when the
    point is not finite any more.
    """
    state = State(x, x)
    for t in range(1, iterations + 1):
        at = optimiser.look(state)
        slope, exact = gradient(at, t)
        if tol > 0 and exact and float(np.abs(slope).max(initial=0.0)) <= tol:
            return Descent(at, t - 1, True)
        with np.errstate(over="ignore", invalid="ignore"):  # said once, below
            state = optimiser.step(state, at, slope, t)
        if not np.isfinite(state.x).all():
            wrong = np.flatnonzero(~np.isfinite(state.x))
            raise NotFinite("point", t, float(state.x.flat[wrong[0]]))
        if on_step is not None and on_step(t, state.x):
            return Descent(state.x, t, True)
    return Descent(state.x, iterations, False)


def schedule(rate: float | Rate) -> Rate:
    """A number is a constant step size; a function of t is itself."""
    if callable(rate):
        return rate
    _positive("rate", rate)
    return Constant(float(rate))


def _schedule(rate: Any) -> None:
    if not callable(rate):
        raise BadInput(
            f"rate must be a function of the iteration, as Constant(0.1) or Decay(); got {rate!r}."
        )


def _positive(name: str, value: Any) -> None:
    number(value, f"{name} of a step size", "> 0")
