"""Membership models: who leaves and who comes, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from numpy.random import Generator


class Change(NamedTuple):
    """At `time`, `worker` is lost; -1 stands for any live one, None for a newcomer instead."""

    time: float
    worker: int | None


class Membership(ABC):
    """Draws the changes of the set of workers, in the order of time."""

    @abstractmethod
    def changes(self, rng: Generator) -> Iterator[Change]:
        """Yield changes, their times never decreasing; may go on for ever."""


@dataclass(frozen=True)
class Script(Membership):
    """Just these changes."""

    script: tuple[Change, ...]

    def changes(self, rng: Generator) -> Iterator[Change]:
        return iter(sorted(self.script, key=lambda change: change.time))


@dataclass(frozen=True)
class Spot(Membership):
    """Losses and newcomers as two Poisson streams, each with its mean seconds between events."""

    between_losses: float
    between_joins: float

    def changes(self, rng: Generator) -> Iterator[Change]:
        loss = self.between_losses * float(rng.standard_exponential())
        join = self.between_joins * float(rng.standard_exponential())
        while True:
            if loss <= join:
                yield Change(loss, -1)
                loss += self.between_losses * float(rng.standard_exponential())
            else:
                yield Change(join, None)
                join += self.between_joins * float(rng.standard_exponential())
