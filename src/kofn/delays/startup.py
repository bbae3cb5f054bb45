"""Start-up delays: a worker begins after a random time, then needs so much a unit.

The model of the rateless paper, Y = X + τ B for B computations: X exponential is
`Exponential(unit=τ, mean=1/μ)`; X Pareto is here, and X drawn from what was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import BadInput
from .models import Delays


@dataclass(frozen=True)
class Pareto(Delays):
    """A wait X with P(X > t) = (scale / t)^shape for t >= scale, then `unit` seconds a unit.

    At shape 1 and below the mean is infinite: compare medians and tails.
    """

    unit: float = 1e-6
    shape: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (self.shape > 0 and self.scale > 0 and self.unit >= 0):
            raise BadInput(
                f"Pareto takes shape > 0, scale > 0 and unit >= 0; got shape={self.shape!r}, "
                f"scale={self.scale!r}, unit={self.unit!r}."
            )

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return sum(self.timing(rng, worker, round, cost))

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        return self.scale * (1.0 + float(rng.pareto(self.shape))), self.unit * cost


@dataclass(frozen=True, eq=False)
class Sampled(Delays):
    """A wait drawn from `waits`, recorded seconds, then `unit` seconds a unit.

    Each task draws anew: unlike a replay (`Recorded`) it forgets who was slow, and there may be
    more workers than were recorded.
    """

    waits: NDArray[np.float64]
    unit: float = 1e-6

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return sum(self.timing(rng, worker, round, cost))

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        return float(self.waits.flat[rng.integers(self.waits.size)]), self.unit * cost
