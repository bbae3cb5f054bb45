"""Delay models: how long a task takes on a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from numpy.random import Generator


class Delays(ABC):
    """Draws the duration of each task. Stateless: all randomness is in `rng`."""

    @abstractmethod
    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        """Seconds that a task of `cost` units takes on `worker` in `round`."""


@dataclass(frozen=True)
class PerUnit(Delays):
    """Every unit of work takes `unit` seconds, on worker w times `slow[w]` (1 if not named)."""

    unit: float = 1e-6
    slow: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.unit * cost * self.slow.get(worker, 1.0)


@dataclass(frozen=True)
class Exponential(Delays):
    """`unit` seconds per unit of work, plus an exponential wait of mean `mean` whatever the load.

    This is the load-independent model: a task of no work waits as long as a large one.
    """

    unit: float = 1e-6
    mean: float = 1.0

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.unit * cost + self.mean * float(rng.standard_exponential())
