"""Start-up delays: a worker begins after a random time, then needs so much a unit.

The model of the rateless paper, Y = X + τ B for B computations: X exponential is
`Exponential(unit=τ, mean=1/μ)`; X Pareto is here.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

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
