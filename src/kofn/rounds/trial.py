"""When to consider a change, and whether a change made rounds slower: no I/O, no clock.

The effect of a change is predicted from the times of each worker alone. Where workers share cores,
more work for one is more time for all, so predictions are too good. Only measured rounds show it.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median, pvariance

LAST = 8  # rounds before the change
SINCE = 4  # rounds after it
SLOWER = 1.1
RARELY = 4  # times as many rounds until the next change is thought of, after one that failed
EACH, FIXED = 2e-8, 6e-4  # seconds of the master for a look: a number in its tables, and in all
SHARE = 0.01  # of the time that looks may take


# Reasons of changes, for the event log.
TO_LEARN = "once, to learn how much of a task's time grows with its work"


def shorter(now: float, before: float, what: str = "round") -> str:
    """That rounds will be shorter."""
    return f"a {what} is expected to take {now:.3g} s, not {before:.3g} s"


class Looks:
    """When a tuner looks at what it has learnt: ever more rarely, and where it costs little."""

    def __init__(self) -> None:
        self.rounds, self.at, self._elapsed = 0, 1, 0.0

    def learn(self, took: float) -> None:
        """Take in a round that has ended."""
        self.rounds += 1
        self._elapsed += took

    @property
    def due(self) -> bool:
        """Whether it is time for one."""
        return self.rounds >= self.at

    def affords(self, numbers: int) -> bool:
        """Whether a look at so many numbers is a small part of the time since the last one."""
        return self._elapsed * SHARE >= FIXED + EACH * numbers

    def looked(self) -> None:
        """Note a look."""
        self.at = self.rounds + min(max(1, self.rounds // 2), 16)
        self._elapsed = 0.0

    def soon(self, rounds: int) -> None:
        """Look after so many rounds: something was changed."""
        self.at = self.rounds + rounds

    def again(self) -> None:
        """Look after the next round, whatever it costs: something is being tried."""
        self.at, self._elapsed = self.rounds + 1, float("inf")

    def failed(self) -> None:
        """Look rarely: a change was taken back."""
        self.at = RARELY * self.rounds


class Trial:
    """The rounds before the last change, and the first of those since."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=LAST)
        self._since: list[float] | None = None  # while a change is on trial

    def learn(self, took: float) -> None:
        """Take in a round that has ended."""
        (self._before if self._since is None else self._since).append(took)

    def begin(self) -> bool:
        """Note a change; whether none was on trial. What was before the first of them counts."""
        new, self._since = self._since is None, []
        return new

    def failed(self) -> str:
        """Say how much slower it became, once, when that is known; else nothing.

        Slower is the median, as of most rounds, and the mean, as with the few that are very long:
        that by more than the standard error, as who is late comes and goes.
        """
        if self._since is None or len(self._since) < SINCE:
            return ""
        since, self._since = self._since, None
        pairs = [(of(self._before or [0]), of(since)) for of in (median, fmean)]
        noise = sum(pvariance(p) / len(p) for p in (since, self._before or [0])) ** 0.5
        sure = pairs[1][1] - pairs[1][0] > noise
        if not self._before or any(now <= SLOWER * usual for usual, now in pairs) or not sure:
            self._before = deque(since, maxlen=LAST)
            return ""
        usual, now = pairs[0]
        return f"a round took {now:.3g} s, not {usual:.3g} s as before"
