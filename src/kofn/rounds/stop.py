"""Stop rules: when a round of a sum is closed. Small, pure, and combined with | and &.

first(11) | exact()        # eleven workers, or the exact sum, whichever is sooner
fraction(0.9) & first(20)  # both
exact() | deadline(2.0)    # the exact sum, or what is there after two seconds
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..checks import number, whole
from ..errors import BadInput


class RoundStatus(NamedTuple):
    """What a rule may look at."""

    seconds: float  # since the round began
    finished: int  # workers all of whose work is here
    owing: int  # workers that are still at it, or at that of an earlier round
    covered: float  # fraction of the parts that are in the sum
    exact: bool  # the exact sum is there


class Stop(ABC):
    """Says when a round is over. `first(r) | exact()` is a rule too, and `&`."""

    def after(self, seconds: float) -> float:
        """The next time, in seconds after the start, at which the rule must be asked again.

        When the clock is there, `RoundStatus.seconds` is at least as much, whatever rounding says.
        """
        return float("inf")

    @abstractmethod
    def met(self, status: RoundStatus) -> bool:
        """Whether the round is over."""

    def accepts_when_idle(self, status: RoundStatus) -> bool:
        """Whether it is over when nobody is left at work: a rule about time or workers is."""
        return True

    def enough(self, covered: float, exact: bool) -> bool:
        """Whether it would be content with so much."""
        return self.accepts_when_idle(RoundStatus(0.0, 0, 0, covered, exact))

    def check(self, n: int) -> None:  # noqa: B027 - most rules can always be met
        """Raise BadInput where n workers can never meet it."""

    def __or__(self, other: Stop) -> Stop:
        return _Several((self, _rule(other)), any)

    def __and__(self, other: Stop) -> Stop:
        return _Several((self, _rule(other)), builtins.all)

    def __bool__(self) -> bool:
        raise BadInput(
            f"a stop rule is neither true nor false: or, and, not and if would drop it; got "
            f"{self!r}. Combine rules with | and &, and compare with None by `is`."
        )


@dataclass(frozen=True)
class All(Stop):
    """Every live worker has finished."""

    def __repr__(self) -> str:
        return "all()"

    def __str__(self) -> str:
        return "every live worker has finished"

    def met(self, status: RoundStatus) -> bool:
        return status.owing == 0


@dataclass(frozen=True)
class Exact(Stop):
    """The exact sum is there."""

    def __repr__(self) -> str:
        return "exact()" if type(self) is Exact else f"{type(self).__name__}()"

    def __str__(self) -> str:
        return "the exact sum is there"

    def met(self, status: RoundStatus) -> bool:
        return status.exact

    def accepts_when_idle(self, status: RoundStatus) -> bool:
        return status.exact


@dataclass(frozen=True)
class First(Stop):
    """The first r workers have finished (or all that live, if they are fewer by then)."""

    r: int

    def __post_init__(self) -> None:
        whole(self.r, "r of first(r)", 1, remedy="It counts workers.")

    def __repr__(self) -> str:
        return f"first({self.r})"

    def __str__(self) -> str:
        return f"the first {self.r} workers have finished"

    def met(self, status: RoundStatus) -> bool:
        return status.finished >= self.r

    def check(self, n: int) -> None:
        if self.r > n:
            raise BadInput(
                f"first({self.r}) waits for {self.r} workers; there are {n} slots, so it can never "
                f"be met. Use first(r) with r <= {n}."
            )


@dataclass(frozen=True)
class Fraction(Stop):
    """So large a fraction of the parts is in the sum."""

    delta: float

    def __post_init__(self) -> None:
        number(self.delta, "d of fraction(d)", "in (0, 1]", "As in fraction(0.9).")

    def __repr__(self) -> str:
        return f"fraction({self.delta!r})"

    def __str__(self) -> str:
        return f"{self.delta:g} of the parts are in the sum"

    def met(self, status: RoundStatus) -> bool:
        return status.covered >= self.delta - 1e-12

    def accepts_when_idle(self, status: RoundStatus) -> bool:
        return self.met(status)


@dataclass(frozen=True)
class Deadline(Stop):
    """So many seconds have passed; what is there then counts (at least one reply)."""

    seconds: float

    def __post_init__(self) -> None:
        number(self.seconds, "s of deadline(s)", "> 0", "It counts seconds.", infinite=True)

    def after(self, seconds: float) -> float:
        return float("inf") if seconds >= self.seconds else self.seconds

    def __repr__(self) -> str:
        return f"deadline({self.seconds!r})"

    def __str__(self) -> str:
        return f"{self.seconds:g} s have passed"

    def met(self, status: RoundStatus) -> bool:
        return status.seconds >= self.seconds and status.covered > 0


@dataclass(frozen=True)
class _Several(Stop):
    rules: tuple[Stop, ...]
    how: Callable[[Iterable[bool]], bool]  # any of them, or all

    def __repr__(self) -> str:
        inner = [f"({one!r})" if isinstance(one, _Several) else repr(one) for one in self.rules]
        return (" | " if self.how is any else " & ").join(inner)

    def __str__(self) -> str:
        return (" or " if self.how is any else " and ").join(map(str, self.rules))

    def after(self, seconds: float) -> float:
        return min(rule.after(seconds) for rule in self.rules)

    def met(self, status: RoundStatus) -> bool:
        return self.how(rule.met(status) for rule in self.rules)

    def accepts_when_idle(self, status: RoundStatus) -> bool:
        return self.how(rule.accepts_when_idle(status) for rule in self.rules)

    def check(self, n: int) -> None:
        problems: list[BadInput] = []
        for rule in self.rules:
            try:
                rule.check(n)
            except BadInput as problem:
                problems.append(problem)
        fine = len(self.rules) - len(problems)
        if not self.how([True] * fine + [False] * len(problems)):
            raise problems[0]


def _rule(stop: object) -> Stop:
    if not isinstance(stop, Stop):
        raise BadInput(
            f"a stop rule is kofn.exact(), kofn.first(r), kofn.fraction(d), kofn.deadline(s) or "
            f"kofn.stop.all(), or several with | and &; got {stop!r}."
        )
    return stop


all, exact, first, fraction, deadline = All, Exact, First, Fraction, Deadline
