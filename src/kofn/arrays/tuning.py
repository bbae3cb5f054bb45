"""The margin of a matrix's products, learnt from the products before: no I/O, no clock.

A margin has every row read by more workers than are needed. It costs work, and stragglers cost
nothing. Whether that pays depends on how much of a task's time is work: two loads tell.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..rounds import ElasticRound, Late
from ..rounds.trial import TO_LEARN, Looks, Trial, shorter

Floats = NDArray[np.float64]
LAST = 8  # rounds that are looked at
PLACES = 24  # of the circle of rows at which a margin is tried
BETTER = 0.05
UNEVEN = 1.3  # so much longer than half of the tasks a round takes, where anything can be gained
MEASURED = 3  # rounds of a margin after which what was measured counts, not what was predicted
APART = 0.1  # loads that tell waits from work differ by so much
SAMPLES = 24  # replies without which nothing is changed


class Shown(NamedTuple):
    """What a product has shown: by worker, in the order of their shares."""

    margin: int
    workers: tuple[int, ...]
    firsts: dict[int, tuple[float, int]]  # seconds and rows of a worker's first reply
    took: float


class Change(NamedTuple):
    """A margin, and why."""

    margin: int
    why: str


class MarginTuner:
    """Chooses the margin of products with a matrix, any k shares of which are enough."""

    def __init__(self, k: int, late: Late) -> None:
        self.k, self.late, self.margin = k, late, 0
        self._shown: deque[Shown] = deque(maxlen=LAST)
        self._took: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._looks = Looks()
        self._known: float | None = None  # the pace, as it was last seen
        self._trial, self._proven = Trial(), 0
        self._trying: int | None = None  # the margin before another one was tried for a round

    def learn(self, round: ElasticRound, workers: tuple[int, ...]) -> None:
        """Take in a product that has ended; `workers` had windows, in the order of their shares.

        One that lost a worker says nothing of stragglers.
        """
        if round.lost:
            return
        took = round.took
        self._shown.append(Shown(self.margin, workers, round.firsts, took))
        if self._looks.rounds:  # in the first, workers find their shares for the first time
            self._took[self.margin].append(took)
            if self._trying is None:
                self._trial.learn(took)
        self._looks.learn(took)

    def change(self) -> Change | None:
        """A better margin, if it is time for a look and there is one."""
        if worse := self._trial.failed():
            self._looks.failed()
            why = f"margin {self._proven} again, not {self.margin}: {worse}"
            self.margin = self._proven
            return Change(self.margin, why)
        if not self._looks.due:
            return None
        n = len(self._shown[-1].workers)
        if len(self._shown) * n < SAMPLES:
            return None
        margins = [0, *(2**i for i in range((n - self.k).bit_length()) if 2**i < n - self.k)]
        margins += [n - self.k] if n > self.k else []
        numbers = len(self._shown) * PLACES * sum(self.k + margin for margin in margins)
        if n <= self.k or not self._looks.affords(numbers):
            return None
        self._looks.looked()
        return self._best(margins, [one for one in self._shown if len(one.workers) == n])

    def _best(self, margins: list[int], seen: list[Shown]) -> Change | None:
        # Of who had not answered when the product was there, twice its time is assumed.
        both = [[one.firsts.get(w, (2 * one.took, 0)) for w in one.workers] for one in seen]
        times, rows = np.moveaxis(np.array(both, float), 2, 0)
        took = float(np.mean([one.took for one in seen]))
        if took < UNEVEN * float(np.median(times)) and self.margin == 0:
            return None  # nobody is late, or not by much
        usual, tried = (self.margin, None) if self._trying is None else (self._trying, self.margin)
        self._trying = None
        pace = self._known = self._pace() or self._known
        expected: dict[int, float] = {}
        if pace is not None:
            wait = np.maximum(times - pace * rows, 0.0)
            n = rows.shape[1]
            full = float(np.median(rows)) * n / (self.k + self.margin)  # rows of a share
            expected = {m: self._predict(m, wait + pace * full * (self.k + m) / n) for m in margins}
        elif tried is None and (margin := min(max(1, self.k // 4), margins[-1])) != usual:
            self._looks.again()
            self._trying, self.margin = usual, margin
            return Change(margin, f"margin {margin} {TO_LEARN}")
        known = {m: past for m, past in self._took.items() if len(past) >= MEASURED}
        measured = {m: float(np.mean(past)) for m, past in known.items() if m in margins}
        less = [s for m, s in measured.items() if m < usual]
        if less and min(less) < measured.get(usual, 0.0):
            expected = {}  # more would be no better
        # Where workers share cores, forecasts are too good; larger margins have shown by how much.
        off = (s / expected[m] for m, s in measured.items() if usual < m in expected)
        slower = max([1.0, *off])
        expected = {m: s * (slower if m > usual else 1.0) for m, s in expected.items()}
        expected |= measured
        best = min(expected, key=lambda m: (expected[m], m), default=usual)
        now = expected.get(usual, took)
        gain = now - expected.get(best, now)
        if best == usual or gain < BETTER * now or gain < self._noise(best, usual):
            self.margin = usual
            return None if tried is None else Change(usual, f"margin {usual} again: it is enough")
        if self._trial.begin():
            self._proven = usual
        self.margin = best
        why = shorter(now - gain, now, "product")
        return Change(best, f"margin {best}, not {usual}: {why}")

    def _noise(self, *margins: int) -> float:
        """By how much two margins may seem to differ; 0 where one of them was hardly tried."""
        both = [self._took[m] for m in margins]
        if min(map(len, both)) < MEASURED:
            return 0.0
        return float(np.sqrt(sum(np.var(past) / len(past) for past in both)))

    def _pace(self) -> float | None:
        """Seconds that a row takes, by products in which workers had different loads; or None."""
        points = []
        for one in self._shown:
            if one.firsts:
                seconds, rows = np.median(np.array(list(one.firsts.values()), float), axis=0)
                points.append((float(rows), float(seconds)))
        least, most = min(points), max(points)
        if most[0] < (1 + APART) * least[0]:
            return None
        half = (least[0] + most[0]) / 2
        low, high = ([s for r, s in points if (r > half) == above] for above in (False, True))
        return max(0.0, (float(np.median(high)) - float(np.median(low))) / (most[0] - least[0]))

    def _predict(self, margin: int, ends: Floats) -> float:
        """Seconds of a product, in the mean of those that were seen, if tasks ended so."""
        n, span, k = ends.shape[1], self.k + margin, self.k
        places = np.unique(np.arange(PLACES) * n // PLACES)
        near = (places[:, None] - np.arange(span)) % n  # those that read the rows there
        done = np.partition(ends[:, near], k - 1, axis=2)[:, :, k - 1].max(axis=1)
        half, first = np.median(ends, axis=1), ends.min(axis=1)
        rule = self.late.knowing(float(np.median(half)))
        late = np.array([rule.allowed(h, f) for h, f in zip(half, first, strict=True)])
        # Others then do what the late ones owe, each a little.
        owing = (ends > late[:, None]).sum(axis=1)
        again = late + half * np.minimum(1.0, owing / np.maximum(1, n - owing) + 0.5)
        return float(np.minimum(done, np.maximum(again, half)).mean())
