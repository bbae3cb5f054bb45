"""Where a code is played, and what comes of its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..cluster import Cluster
from .work import Work


class Outcome(NamedTuple):
    """A round has ended, at this time of the engine's clock."""

    time: float
    covered: float = 1.0  # of the sum
    exact: bool = True
    error: float = 0.0  # of decoding: see SumReport.decoding_error


class Place(NamedTuple):
    """Where a code is played: what with, and for how many workers and rounds."""

    cluster: Cluster
    work: Work
    workers: int
    rounds: int

    @property
    def values(self) -> bool:
        """Whether there are values, or sizes alone."""
        return self.cluster.engine.capabilities.values

    def outcome(self, covered: float = 1.0, exact: bool = True, error: float = 0.0) -> Outcome:
        """Of a round that has ended now."""
        return Outcome(self.cluster.engine.now(), covered, exact, error)


Outcomes = Iterator[Outcome]
