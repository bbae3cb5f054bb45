"""The rule of lateness: how long to wait for the rest, by how long others took.

Rounds over shares (`rounds.watch`) judge by half of the replies, sequences by the fastest worker or
by half of them, iterations by a usual round, stale sums by those that are fresh. Each has its
numbers here; the rule is `Late.allowed` for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..checks import number

Choose = Callable[[Any, Any], Any]  # of two

NEVER = float("inf")
FEW = 10.0  # with fewer than half in: so many times the seconds of the last reply
# Equal workers in step do not end in one instant: messages take their time. So much of the fastest
# one's time is noise, and so many seconds at most.
NOISE, MOST_NOISE = 0.05, 0.015
# A straggler of a sequence that is needed is waited for up to so many times the fastest one's time.
# Then those that are idle do what is due in its place: it may never come. They are waited for twice
# as long.
NEEDED = 20.0
# Where half of the tasks of such a round usually end soon, nobody is late before so many times
# these seconds. But workers that share cores answer some 2 ms late now and then, and are not slow.
TIMES, SOON = 4.0, 0.002
LAST, ENOUGH = 8, 4  # rounds that are looked at, and how many there must be
LEAST_BETWEEN = 0.1  # seconds: below, waiting costs an iteration less than two new plans


@dataclass(frozen=True)
class Late:
    """When to stop counting on a worker: judged by this round's replies, once half are in.

    With `factor`, at so many times the seconds in which half of the tasks were done. Without, at
    those seconds plus `spreads` times their spread, first reply to half of them. Never before
    `least` seconds. Where it is known that half of the tasks of such a round usually end soon,
    that is four times these seconds, and 2 ms at least: then asking others costs a part of what
    waiting did. With `after`, at so many seconds, whatever others do.
    """

    factor: float | None = None
    spreads: float = 4.0
    least: float = 0.02
    after: float | None = None

    @classmethod
    def of(cls, given: Late | float | None) -> Late | None:
        """The rule that is given, by itself or by its factor; None for never."""
        if given is None or isinstance(given, Late):
            return given
        remedy = "It is a factor; leave it out to judge by the spread of replies."
        return cls(factor=number(given, "late", "> 1", remedy, infinite=True))

    def knowing(self, usual: float | None) -> Late:
        """The rule where half of the tasks usually end in so many seconds; None: not known."""
        if usual is None or self.least <= (least := max(SOON, TIMES * usual)):
            return self
        return self._soon if least == SOON else replace(self, least=least)

    @cached_property
    def _soon(self) -> Late:
        return replace(self, least=SOON)

    def allowed(self, took: Any, first: Any = 0.0, larger: Choose = max) -> Any:
        """Seconds to wait, given those of enough others, and of the first of them.

        Numbers; or arrays of them, where `larger` is np.maximum.
        """
        if self.factor is not None:
            return larger(self.least, self.factor * took)
        # Equal machines in step have no spread to speak of: a tenth is noise.
        return larger(self.least, took + self.spreads * larger(took - first, 0.1 * took))

    def allowed_few(self, took: float) -> float:
        """Seconds to wait where fewer than half have answered, the last of them after `took`."""
        return FEW * max(self.least, took)

    def between(self) -> Late:
        """The rule for an iteration, whose workers are judged by a usual round."""
        factor = self.spreads if self.factor is None else self.factor
        return Late(factor, least=max(LEAST_BETWEEN, self.least))


class UsualHalf:
    """In how many seconds half of the tasks end, in rounds of one kind: the median of the last few.

    The time of whole rounds would not do: where one worker is late in each round, it is the time
    of that worker.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._last: deque[float] = deque(maxlen=LAST)

    def learn(self, seconds: float | None) -> None:
        """In a round half of the tasks have ended in so many seconds; None: it ended before."""
        if seconds is None:
            return
        self._last.append(seconds)
        if len(self._last) >= ENOUGH:
            self.seconds = sorted(self._last)[len(self._last) // 2]


# In a sequence without a code what one has not done is work for all in the next round. So nobody is
# late before twice the time of half of the workers.
PATIENT = Late(spreads=10.0)


def in_sequence(
    slack: float | None,
    took: Any,
    fastest: Any,
    half: bool,
    larger: Choose = max,
    smaller: Choose = min,
) -> Any:
    """Seconds after which nobody is waited for in a round of a sequence, if others are enough.

    That is `slack` times the fastest one's time beyond it. Without a slack PATIENT says it, of the
    last worker that is done after `took`, and `half` of them are, or fewer. Arrays as in `allowed`.
    """
    if slack is not None:
        return fastest + larger(slack * fastest, smaller(MOST_NOISE, NOISE * fastest))
    return PATIENT.allowed(took, fastest, larger) if half else PATIENT.allowed_few(took)
