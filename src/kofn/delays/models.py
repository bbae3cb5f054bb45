"""Delay models: how long a task takes on a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from numpy.random import Generator

from ..errors import BadInput


class Delays(ABC):
    """Draws the duration of each task. Stateless: all randomness is in `rng`."""

    @abstractmethod
    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        """Seconds that a task of `cost` units takes on `worker` in `round`."""

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """The same in two: seconds before the work begins, and seconds over it.

        A task that streams its pieces has them at even steps over the second. Models that know of
        no wait spread all of it.
        """
        return 0.0, self.seconds(rng, worker, round, cost)


def check_delays(delays: object) -> Delays:
    """Return `delays` if that is a delay model, or raise BadInput."""
    if not isinstance(delays, Delays):
        raise BadInput(
            f"delays is a model of kofn.delays, such as Exponential(mean=2.0); got {delays!r}. A "
            f"model of your own is a subclass of kofn.delays.Delays that has `seconds`."
        )
    return delays


def checked_seconds(delays: Delays, seconds: float) -> None:
    """Raise BadInput where a model says what no clock can do."""
    if not seconds >= 0:
        raise BadInput(f"a delay model gives seconds >= 0; {delays!r} gave {seconds!r}.")


@dataclass(frozen=True)
class PerUnit(Delays):
    """Every unit of work takes `unit` seconds, on worker w times `slow[w]` (1 if not named)."""

    unit: float = 1e-6
    slow: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.unit * cost * self.slow.get(worker, 1.0)


@dataclass(frozen=True)
class Exponential(Delays):
    """`shift` seconds, `unit` more per unit of work, and an exponential wait of mean `mean`.

    This is the load-independent model: a task of no work waits as long as a large one. The
    experiments of gradient coding use it (section 5 of ErasureHead: mean 2 s, no shift).
    """

    unit: float = 1e-6
    mean: float = 1.0
    shift: float = 0.0

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return sum(self.timing(rng, worker, round, cost))

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        return self.shift + self.mean * float(rng.standard_exponential()), self.unit * cost


@dataclass(frozen=True)
class ExponentialByLoad(Delays):
    """All of the work, `whole` units, takes `full` · (1 + E / `rate`) seconds, E exponential.

    This is the load-dependent model (section 4 of ErasureHead, after Lee et al.): the wait shrinks
    and grows with the work, a task of `cost` units takes cost / whole of such a time. `rate` is
    the straggling parameter λ: the smaller, the longer the tail.
    """

    whole: float
    rate: float = 1.0
    full: float = 1.0

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        whole = self.full * (1.0 + float(rng.standard_exponential()) / self.rate)
        return whole * cost / self.whole


@dataclass(frozen=True)
class Scaled(Delays):
    """`by` times what `delays` says: seconds of a recording or of a paper, made short.

    With `kofn.engines.paced.Paced` the workers of a real engine then really wait so long.
    """

    delays: Delays
    by: float

    def __post_init__(self) -> None:
        check_delays(self.delays)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.by * self.delays.seconds(rng, worker, round, cost)

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        wait, work = self.delays.timing(rng, worker, round, cost)
        return self.by * wait, self.by * work
