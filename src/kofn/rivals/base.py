"""What every rival has in common: its load, its delay, and what its rounds took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..checks import number, whole
from ..delays import Recording

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rounds:
    """What a method's rounds took and did: each array has an entry for each round.

    `work` counts full batches that all workers together delivered: 1 if every sample came once.
    `covered` is the fraction of the batch that is in a gradient, computed at the round's own point.
    `late`, (rounds, workers): who was not waited for, where that is known.
    """

    seconds: Floats
    work: Floats
    covered: Floats
    workers: int
    late: Mask | None = None

    def summary(self) -> dict[str, float]:
        """The columns of a simulation's table; `work` and `wasted` are batches a round."""
        work = float(self.work.mean())
        return {
            "mean": float(self.seconds.mean()),
            "median": float(np.median(self.seconds)),
            "p99": float(np.quantile(self.seconds, 0.99)),
            "work": work,
            "wasted": max(0.0, work - float(self.covered.mean())),
            "exact_share": float((self.covered == 1.0).mean()),
            "machine_seconds": self.workers * float(self.seconds.sum()),
        }


class Rival(ABC):
    """A method by its parameters alone: a frozen dataclass. n is the number of workers.

    A gradient is a sum over one batch, and loads are fractions of that.
    """

    name: ClassVar[str]  # in RIVALS

    @property
    def delay(self) -> int:
        """How many rounds after its own a gradient is there; 0: at the end of its own."""
        return 0

    @abstractmethod
    def load(self, n: int) -> float:
        """The fraction of the batch that a worker is given in a round.

        Raises BadInput where n workers cannot do it.
        """

    def storage(self, n: int) -> float:
        """The fraction of the data that a worker keeps."""
        return self.load(n)

    @abstractmethod
    def round_times(self, times: Recording, rounds: int | None = None) -> Rounds:
        """Replay recorded times at the loads of this method.

        `rounds`: as many as were recorded; of more, the recording starts anew.
        """

    @classmethod
    @abstractmethod
    def grid(cls, n: int) -> Iterator[Self]:
        """The parameters that a search tries with n workers."""


def sloped(recording: Recording, slope: float) -> Recording:
    """The same workers, if a full batch took `slope` seconds of work.

    The wait before it is what the smallest recorded load took, beyond its own part of the work.
    """
    slope = number(slope, "slope, the seconds of a full batch,", ">= 0")
    wait = np.maximum(recording.timings[0] - slope * recording.loads[0], 0.0)
    name = f"{recording.name}, {slope:g} s a batch"
    return replace(recording, name=name, loads=(0.0, 1.0), timings=(wait, wait + slope))


def replayed(times: Recording, load: float, rounds: int | None) -> Floats:
    """Seconds (rounds, workers) at a load."""
    table = np.asarray(times.at(load), dtype=np.float64)
    count = len(table) if rounds is None else whole(rounds, "rounds", 1)
    return table if count == len(table) else table[np.arange(count) % len(table)]
