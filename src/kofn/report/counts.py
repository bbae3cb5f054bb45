"""The pieces of a run's state: bounded lists, the facts of a worker, counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .uncoded import Pace

# Seconds; of the histogram of rounds.
BUCKETS = tuple(float(f"{base}e{power}") for power in range(-4, 3) for base in (1, 2.5, 5))

WINDOW = 10.0  # seconds over which the rate of rounds is taken

Json = dict[str, Any]


class Series:
    """The newest of a list that only grows, and how many there ever were."""

    def __init__(self, most: int) -> None:
        self.items: deque[Any] = deque(maxlen=most)
        self.count = 0

    def add(self, item: Any) -> None:
        """Append one."""
        self.items.append(item)
        self.count += 1

    def since(self, count: int, most: int | None = None) -> list[Any]:
        """Those after the first `count`, as far as they are kept; the oldest `most` of them."""
        length = len(self.items)
        first = length - min(self.count - count, length)
        last = length if most is None else min(length, first + most)
        if length - first > last:
            return [*islice(self.items, first, last)]
        newest = [*islice(reversed(self.items), length - last, length - first)]  # the shorter way
        newest.reverse()
        return newest

    def reached(self, count: int, most: int | None = None) -> int:
        """How many there were up to the last that `since` returns."""
        first = max(count, self.count - len(self.items))
        return self.count if most is None else min(self.count, first + most)


@dataclass(slots=True)
class Worker:
    """The facts of one worker; times are the engine's clock."""

    id: int
    stamp: int = 0  # of its last change
    joined: float | None = None
    stored: float | None = None  # when it first had what it needs, if it joined
    leaving: bool = False
    lost: float | None = None
    why: str = ""  # it was lost, or will be
    tasks: int = 0
    rows: int = 0  # that came in time
    busy: float = 0.0
    pace: Pace | None = None  # of its tasks: seconds for a row in the last, wait on average
    paced: int = 0  # tasks of which it is known
    states: dict[str, int] = field(default_factory=dict)  # how its tasks ended
    usage: dict[str, float] = field(default_factory=dict)  # bytes: resident, moved

    def learn(self, pace: Pace | None) -> None:
        """Take in the pace of a task, where it is known."""
        if pace is not None:
            self.paced += 1
            before = 0.0 if self.pace is None else self.pace.wait
            self.pace = Pace(before + (pace.wait - before) / self.paced, pace.row)

    def row(self, zero: float) -> Json:
        """The worker as a page is sent it."""
        at = {name: getattr(self, name) for name in ("joined", "stored", "lost")}
        times = {name: None if t is None else brief(t - zero) for name, t in at.items()}
        other = {"id": self.id, "leaving": self.leaving, "why": self.why, "tasks": self.tasks}
        more = {"rows": self.rows, "busy": brief(self.busy), "states": self.states, **self.usage}
        return times | other | more


@dataclass(slots=True)
class Totals:
    """Counts since the log began."""

    rounds: int = 0
    raised: int = 0
    seconds: float = 0.0  # in rounds that are over
    lost: int = 0
    joined: int = 0
    used: int = 0
    read: float = 0.0
    wasted: float = 0.0
    topped_up: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


@dataclass(slots=True)
class Speed:
    """How quick the last rounds were."""

    took: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))  # seconds of each
    counted: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=100))

    def rate(self, zero: float) -> float:
        """Rounds a second, of the last few; before there were any, since `zero`."""
        if not self.counted:
            return 0.0
        now, rounds = self.counted[-1]
        then, before = next((c for c in self.counted if c[0] >= now - WINDOW), (zero, 0))
        if then == now:
            then, before = zero, 0
        return (rounds - before) / (now - then) if now > then else 0.0

    def quantiles(self, *fractions: float) -> list[float | None]:
        """Seconds that these fractions of the last rounds took at most."""
        took = sorted(self.took)
        last = len(took) - 1
        return [brief(took[min(last, int(q * len(took)))]) if took else None for q in fractions]


def brief(seconds: float) -> float:
    """To the microsecond: pages need no more, and it is half as long."""
    return round(seconds, 6)
