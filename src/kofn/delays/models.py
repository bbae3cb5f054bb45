"""Delay models: how long a task takes on a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import BadInput


class Delays(ABC):
    """Draws the duration of each task. Stateless: all randomness is in `rng`."""

    @abstractmethod
    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        """Seconds that a task of `cost` units takes on `worker` in `round`."""

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """The same in two parts: seconds before the work begins, and seconds of the work.

        A task that streams its pieces has them at even steps of the second part. In models
        without a wait the first part is 0.
        """
        return 0.0, checked_seconds(self, self.seconds(rng, worker, round, cost))


def check_delays(delays: object) -> Delays:
    """Return `delays` if that is a delay model, or raise BadInput."""
    if not isinstance(delays, Delays):
        raise BadInput(
            f"delays is a model of kofn.delays, such as Exponential(mean=2.0); got {delays!r}. A "
            f"model of your own is a subclass of kofn.delays.Delays that has `seconds`."
        )
    return delays


def checked_seconds(delays: Delays, seconds: object) -> float:
    """Return what a model says. Raise BadInput where no clock can do it."""
    if type(seconds) is float and seconds >= 0:  # nearly always; the rest takes longer
        return seconds
    if not isinstance(seconds, Real) or not float(seconds) >= 0:
        raise BadInput(
            f"a delay model gives seconds >= 0, as a float; {delays!r} gave {seconds!r}. Return "
            f"float('inf') for never."
        )
    return float(seconds)


@dataclass(frozen=True)
class PerUnit(Delays):
    """Every unit of work takes `unit` seconds, on worker w times `slow[w]` (1 if not named)."""

    unit: float = 1e-6
    slow: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.unit * cost * self.slow.get(worker, 1.0)


class InTwoParts(Delays):
    """A model that says how long the wait and the work are; together they are the seconds."""

    @abstractmethod
    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """Seconds before the work begins, and seconds of the work."""

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return sum(self.timing(rng, worker, round, cost))


class StartUp(InTwoParts):
    """A worker begins after a random wait, then needs `unit` seconds for each unit of work.

    With B units that is the model Y = X + τ B of Mallick et al., 2021.
    """

    unit: float

    @abstractmethod
    def wait(self, rng: Generator) -> float:
        """Draw the seconds before the work begins."""

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        return checked_seconds(self, self.wait(rng)), self.unit * cost


@dataclass(frozen=True)
class Exponential(StartUp):
    """`shift` seconds, `unit` more per unit of work, and an exponential wait of mean `mean`.

    This is the load-independent model: a task of no work waits as long as a large one. The
    experiments of Wang et al., 2019 use it (section 5: mean 2 s, no shift).
    """

    unit: float = 1e-6
    mean: float = 1.0
    shift: float = 0.0

    def wait(self, rng: Generator) -> float:
        return self.shift + self.mean * float(rng.standard_exponential())


@dataclass(frozen=True)
class Pareto(StartUp):
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

    def wait(self, rng: Generator) -> float:
        return self.scale * (1.0 + float(rng.pareto(self.shape)))


@dataclass(frozen=True, eq=False)
class Sampled(StartUp):
    """A wait drawn from `waits`, recorded seconds, then `unit` seconds a unit.

    Each task draws anew: unlike a replay (`Recorded`) it forgets who was slow, and there may be
    more workers than were recorded.
    """

    waits: NDArray[np.float64]
    unit: float = 1e-6

    def wait(self, rng: Generator) -> float:
        return float(self.waits.flat[rng.integers(self.waits.size)])


@dataclass(frozen=True)
class ExponentialByLoad(Delays):
    """All of the work, `whole` units, takes `full` · (1 + E / `rate`) seconds, E exponential.

    This is the load-dependent model (section 4 of Wang et al., 2019, after Lee et al., 2018): the
    wait shrinks and grows with the work, a task of `cost` units takes cost / whole of such a time.
    `rate` is the straggling parameter λ: the smaller, the longer the tail.
    """

    whole: float
    rate: float = 1.0
    full: float = 1.0

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        wait = float(rng.standard_exponential()) / self.rate
        return self.full * (1.0 + wait) * cost / self.whole


@dataclass(frozen=True)
class Scaled(Delays):
    """`by` times the seconds of `delays`: those of a recording or of a paper, made short.

    With `kofn.engines.paced.Paced` the workers of a real engine then really wait so long. Where
    `workers` are named, only theirs are changed.
    """

    delays: Delays
    by: float
    workers: Collection[int] | None = None

    def __post_init__(self) -> None:
        check_delays(self.delays)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self._by(worker) * self.delays.seconds(rng, worker, round, cost)

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        wait, work = self.delays.timing(rng, worker, round, cost)
        return self._by(worker) * wait, self._by(worker) * work

    def _by(self, worker: int) -> float:
        return self.by if self.workers is None or worker in self.workers else 1.0
