"""What makes one option better than another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

from .options import Option

WORTH = 0.03  # a code that saves less than this is not worth its memory
NEAR = 0.01  # options no further apart than this are equally good


class Goal(NamedTuple):
    """The cheapest in time if there is a deadline; else, with prices, the least time x price.

    There one percent more money would buy less than one percent of the time: the knee.
    """

    deadline: float | None
    priced: bool

    def __str__(self) -> str:
        if self.deadline is not None:
            cheap = "the least price" if self.priced else "the fewest machine seconds"
            return f"{cheap} within {self.deadline:g} s"
        return "the least time x price" if self.priced else "the least time"

    def late(self, option: Option) -> bool:
        """Whether it misses the deadline."""
        return self.deadline is not None and option.seconds > self.deadline

    def value(self, option: Option) -> float:
        """The less the better; among options of which all or none are late."""
        if self.deadline is not None and not self.late(option):
            return option.cost
        if self.priced and self.deadline is None:
            return sqrt(option.seconds * option.cost)
        return option.seconds

    def key(self, option: Option) -> tuple[bool, float, str, int]:
        """To sort by, the best first; the same in every run."""
        return self.late(option), self.value(option), option.code, option.workers

    def equal(self, option: Option, best: Option, within: float) -> bool:
        """Whether it is as good as the best, within a fraction."""
        if self.late(option) != self.late(best):
            return False
        return self.value(option) <= self.value(best) * (1 + within)

    def pick(self, options: Sequence[Option]) -> Option:
        """The one to use: no code unless one is worth it; of equally good ones the least risk."""
        able = sorted((one for one in options if one.runs), key=self.key)
        without = plain(able, self)
        if without is not None and self.equal(without, able[0], WORTH):
            return without
        near = [one for one in able if self.equal(one, able[0], NEAR)]
        return min(near, key=lambda one: (_risk(one), one.memory or 0.0, *self.key(one)))


def _risk(option: Option) -> float:
    return round(option.risk or 0.0, 1)  # what is finer is chance


def plain(options: Iterable[Option], goal: Goal) -> Option | None:
    """The best of those without a code that give the exact result."""
    found = [o for o in options if not o.coded and "covered" not in dict(o.candidate.parameters)]
    return min(found, key=goal.key, default=None)
