"""Membership models: who leaves and who comes, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from numpy.random import Generator

from ..checks import number


class Change(NamedTuple):
    """At `time`, `worker` is lost; -1 stands for any live one, None for a newcomer instead.

    With a `deadline` it is only announced: the worker will be lost then, or (infinity) stays. The
    worker that is drawn for a notice to -1 is lost by the next change that loses -1.
    """

    time: float
    worker: int | None
    deadline: float | None = None


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
class Announced(Membership):
    """The changes of another model, each loss announced so many `seconds` ahead."""

    membership: Membership
    seconds: float

    def __post_init__(self) -> None:
        number(self.seconds, "seconds", ">= 0", "So long ahead is a loss announced.")

    def changes(self, rng: Generator) -> Iterator[Change]:
        waiting: list[tuple[float, int, Change]] = []  # a heap: what is due at which time
        numbers = count()
        for change in self.membership.changes(rng):
            if change.worker is not None and change.deadline is None:
                notice = Change(max(0.0, change.time - self.seconds), change.worker, change.time)
                heappush(waiting, (notice.time, next(numbers), notice))
            heappush(waiting, (change.time, next(numbers), change))
            while waiting and waiting[0][0] <= change.time - self.seconds:
                yield heappop(waiting)[2]
        while waiting:
            yield heappop(waiting)[2]


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
