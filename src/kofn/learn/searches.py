"""Line searches: how far to go in a direction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .losses import Line
    from .losses import LinearObjective as Objective
    from .solvers import Floats

LEVEL = 1e-12  # relative: values that differ by less may differ by rounding
SEARCHES = 60  # trials of a line search
SHORTEST, LONGEST = 1e-10, 16.0  # steps of Newton's


def halved(
    f: Objective, x: Floats, value: float, gradient: Floats, t: float, smallest: float
) -> tuple[Floats | None, float]:
    """A point along -gradient, and its step, halved from t on until it helps.

    None where rounding hides the way down. An exact objective takes one pass, however many trials,
    an inexact one a pass each, and near the end two.
    """
    slope = -float(gradient @ gradient)
    line = f.line(x, -gradient) if f.exact else None
    while True:
        point = x - t * gradient
        if line is None:
            along = partial(_along, f, point, -gradient)
            helps = _helps(value, slope, -0.1 * t * slope, f.value(point), along)
        else:
            _, _, helps = _tried(line, t, value, slope, 0.1)
        if helps or t <= smallest:
            return (point if line is None else line.arrive(t)), t
        t /= 2.0
        if f.exact and np.array_equal(point, x):
            return None, t


def wolfe(
    f: Objective, x: Floats, value: float, gradient: Floats, p: Floats, scaled: bool
) -> Floats | None:
    """A point along p, by Wolfe's conditions; None where rounding hides the way down. One pass.

    `scaled`: whether p has a length that can be trusted.
    """
    slope = float(gradient @ p)
    if not slope < 0.0:
        return None
    t = 1.0 if scaled else min(1.0, 1.0 / (float(np.linalg.norm(p)) or 1.0))
    low: tuple[float, float, float] = (0.0, value, slope)
    high: tuple[float, float, float] | None = None
    line = f.line(x, p)
    for _ in range(SEARCHES):
        trial, along, helps = _tried(line, t, value, slope, 1e-4)
        if not helps:
            high = (t, trial, along)
        elif along < 0.9 * slope:
            low = (t, trial, along)
        else:
            return line.arrive(t)
        t = 4.0 * t if high is None else _between(low, high)
        if np.array_equal(x + t * p, x + low[0] * p):
            break
    return None


def _tried(
    line: Line, t: float, value: float, slope: float, part: float
) -> tuple[float, float, bool]:
    """The value and slope at t, and whether going there helps by a `part` of what is promised."""
    with np.errstate(over="ignore", invalid="ignore"):
        trial, along = line.value_and_slope(t)
    helps = _helps(value, slope, -part * t * slope, trial, lambda: along)
    return trial, along, bool(helps and np.isfinite(along))


def _helps(
    value: float, slope: float, promised: float, trial: float, along: Callable[[], float]
) -> bool:
    """Whether the value falls by what is promised (Armijo), or near the end, where values differ by
    rounding only, what is left of the slope is less (Hager and Zhang, 2005).
    """
    if promised > LEVEL * abs(value):
        return trial <= value - promised
    return trial <= value + LEVEL * abs(value) and along() <= -0.8 * slope


def _along(f: Objective, x: Floats, p: Floats) -> float:
    """The slope at x along p: a pass, where the value there is known."""
    return float(f.value_and_gradient(x)[1] @ p)


def _between(low: tuple[float, float, float], high: tuple[float, float, float]) -> float:
    """Where a cubic through two points with slopes is lowest, not too near to either of them."""
    (a, fa, ga), (b, fb, gb) = low, high
    with np.errstate(all="ignore"):
        d = ga + gb - 3.0 * (fb - fa) / (b - a)
        root = np.copysign(np.sqrt(np.maximum(d * d - ga * gb, 0.0)), b - a)
        t = float(b - (b - a) * (gb + root - d) / (gb - ga + 2.0 * root))
    near, far = a + 0.1 * (b - a), a + 0.9 * (b - a)
    return min(max(t, near), far) if np.isfinite(t) else 0.5 * (a + b)


def by_slopes(line: Line, slope: Floats) -> Floats:
    """How far to go, for each column that stands alone: (m,) or (1,); 0 where nothing helps.

    To where a tenth of the slope is left, of either sign. By slopes, because near the end values
    differ by rounding only; no trial costs a pass.
    """
    low, high = np.zeros_like(slope), np.full_like(slope, np.inf)
    at_low, at_high = slope.copy(), np.ones_like(slope)
    step = np.where(slope < 0.0, 1.0, 0.0)
    for _ in range(SEARCHES):
        with np.errstate(over="ignore", invalid="ignore"):
            now = line.slopes(step)
        far = ~(np.abs(now) <= -0.1 * slope) & (step > 0.0) & (step < LONGEST)
        far &= high - low > 1e-3 * step
        if not far.any():
            break
        past = far & ~(now < 0.0)
        high, at_high = np.where(past, step, high), np.where(past, now, at_high)
        low, at_low = np.where(far & ~past, step, low), np.where(far & ~past, now, at_low)
        with np.errstate(invalid="ignore"):
            part = np.where(np.isfinite(at_high), at_low / (at_low - at_high), 0.1)
            between = low + np.clip(part, 0.1, 0.9) * (high - low)
        step = np.where(far, np.where(np.isinf(high), 2.0 * step, between), step)
        step = np.where(far & (step < SHORTEST), 0.0, step)
    return step
