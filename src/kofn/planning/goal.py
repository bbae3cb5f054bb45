"""The goal of a plan: which of two options is better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

from .options import Option

WORTH = 0.03  # a code that saves less than this is not worth its memory
NEAR = 0.01  # options no further apart than this are equally good
NEARBY = 0.1  # what is safer is looked at first if it is no further from the best


class Goal(NamedTuple):
    """The cheapest in time if there is a deadline; else, with prices, the least time x price.

    At the least time x price, one percent more money buys less than one percent of the time: the
    knee. `risk`: options with at most so much are preferred.
    """

    deadline: float | None
    priced: bool
    risk: float = 1.0

    def __str__(self) -> str:
        text = "the least time x price" if self.priced else "the least time"
        if self.deadline is not None:
            cheap = "the least price" if self.priced else "the fewest machine seconds"
            text = f"{cheap} within {self.deadline:g} s"
        return text + (f", at a risk of {self.risk:.3g} at most" if self.risk < 1 else "")

    def late(self, option: Option) -> bool:
        """Whether it misses the deadline."""
        return self.deadline is not None and option.seconds > self.deadline

    def risky(self, option: Option) -> float:
        """Its risk, if that is more than is allowed; else 0."""
        return _risk(option) or 0.05 if (option.risk or 0.0) > self.risk else 0.0

    def met(self, option: Option) -> bool:
        """Whether it is within all limits."""
        return not self.late(option) and not self.risky(option)

    def value(self, option: Option) -> float:
        """The less the better; among options of which all or none are late."""
        if self.deadline is not None and not self.late(option):
            return option.cost
        if self.priced and self.deadline is None:
            return sqrt(option.seconds * option.cost)
        return option.seconds

    def key(self, option: Option) -> tuple[float, bool, float, str, int]:
        """To sort by, the best first; the same in every run."""
        ends = option.code, option.workers
        return self.risky(option), self.late(option), self.value(option), *ends

    def equal(self, option: Option, best: Option, within: float) -> bool:
        """Whether it is as good as the best, within a fraction."""
        if self.key(option)[:2] != self.key(best)[:2]:
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

    def kept(self, options: Sequence[Option], count: int) -> list[Option]:
        """Choose `count` options that are played further.

        The best without a code, and the best with one. Then those with less risk than all that are
        better, the nearest to the best first. Then the next best.
        """
        ordered = sorted(options, key=self.key)
        coded = next((one for one in ordered if one.runs and one.coded), None)
        first = [one for one in (plain(options, self), coded) if one is not None]
        able, safer = [one for one in ordered if one.runs], list[Option]()
        for one in able:
            if _risk(one) < min(map(_risk, [able[0], *safer])):
                safer.append(one)
        near = [one for one in safer if self.equal(one, able[0], NEARBY)]
        safer = near[::-1] + [one for one in safer if one not in near]
        first += [one for one in safer if one not in first][: max(1, count // 2 - 1)]
        rest = [one for one in ordered if one not in first]
        return [*first, *rest[: max(0, count - len(first))]]


def _risk(option: Option) -> float:
    return round(option.risk or 0.0, 1)  # what is finer is chance


def plain(options: Iterable[Option], goal: Goal) -> Option | None:
    """The best of those without a code that give the exact result."""
    uncoded = [o for o in options if not o.coded and "covered" not in dict(o.candidate.parameters)]
    return min(uncoded, key=goal.key, default=None)
