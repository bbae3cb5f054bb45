"""Rounds of a long run that are not played: they take as long as those played just before."""

from __future__ import annotations

from bisect import bisect_right

from ..delays import SpotTrace

BLOCK = 8  # rounds that are played in a row, at most
PIECES = 8  # of a run, at least, where so many rounds are played


class Ahead:
    """Which rounds of a long run are played, and how far it goes on in between.

    The run is cut into even pieces. The first rounds of each piece are played. The others are
    jumped over: each takes the mean of those played, while the clock, the market and the workers'
    delays go on. A jump ends where fewer than `fewest` machines would be left: a round is played
    there, so that the wait for machines is as long as it really is. `fewest` sinks when a round is
    done with fewer. The mean leaves out rounds that waited, and the first after a jump, whose
    stragglers are new. Where there are too many waits to play them all, the others pass without a
    round.
    """

    def __init__(
        self, rounds: int, played: int, fewest: int, trace: SpotTrace | None, until: float
    ) -> None:
        self.block = min(BLOCK, max(3, played // PIECES), played) if played < rounds else rounds
        self.pieces = max(1, round(played / self.block))
        self.rounds, self.fewest, self.until = rounds, fewest, until
        counts = [(0.0, fewest)] if trace is None else trace.counts()
        self.times, self.live = [time for time, _ in counts], [live for _, live in counts]
        self.counts: list[float] = []  # how many rounds each that was played stands for
        self.seconds: list[float] = []  # how long it took
        self.skipped = 0
        self._piece, self._todo, self._new = 0, self.block, False
        self._stops = 2 * played  # that are left
        self._sample: list[int] = []  # played rounds of this piece whose mean stands for the others
        self._known = 0.0  # seconds of a round, by the last such sample

    @property
    def done(self) -> int:
        """Rounds so far, played or not."""
        return len(self.counts) + self.skipped

    def after(self, began: float, ended: float) -> float:
        """Note a round that was played; return until when others go on that are not."""
        first, last = (bisect_right(self.times, time) - 1 for time in (began, ended))
        least = min(self.live[first : last + 1])
        if first == last:
            self.fewest = min(self.fewest, least)
        if not self._new and least >= self.fewest:
            self._sample.append(len(self.counts))
        self._new = False
        self.counts.append(1.0)
        self.seconds.append(ended - began)
        self._todo -= 1
        return ended if self._todo > 0 else self._jump(ended)

    def _jump(self, now: float) -> float:
        due = round(self.rounds * (self._piece + 1) / self.pieces)
        if self._sample:
            self._known = sum(self.seconds[i] for i in self._sample) / len(self._sample)
        each, skipped = self._known or self.seconds[-1], 0
        while self.done + skipped < due and now < self.until:
            end = min(self._short(now), self.until)
            some = due - self.done - skipped
            if each > 0 and end < float("inf"):
                some = min(some, int((end - now) / each))
            skipped, now = skipped + some, now + some * each
            if self.done + skipped < due:
                if self._stops > 0 or end >= self.until:
                    self._stops -= 1
                    break
                now = self._enough(end)
        self._stand(skipped)
        self._new = skipped > 0
        if self.done < due:
            self._todo = 1  # what stopped it is played
        else:
            self._piece, self._todo, self._sample = self._piece + 1, self.block, []
        return now

    def _stand(self, skipped: int) -> None:
        """Let the sample stand for these rounds too."""
        for i in self._sample or [len(self.counts) - 1]:
            self.counts[i] += skipped / max(1, len(self._sample))
        self.skipped += skipped

    def _short(self, now: float) -> float:
        """From when on there are too few."""
        at = bisect_right(self.times, now) - 1
        if self.live[at] < self.fewest:
            return now
        later = range(at + 1, len(self.times))
        return next((self.times[i] for i in later if self.live[i] < self.fewest), float("inf"))

    def _enough(self, now: float) -> float:
        """From when on there are enough again."""
        at = bisect_right(self.times, now)
        later = range(at, len(self.times))
        return next((self.times[i] for i in later if self.live[i] >= self.fewest), self.until)
