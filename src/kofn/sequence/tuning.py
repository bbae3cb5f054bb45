"""Which code and slack a sequence runs under, learnt from its rounds: no I/O, no clock.

A code for few stragglers has little work in each round. Where more come, it has more, and waits.
What a round would have taken otherwise is told by the replies of the last rounds: how long each
worker waited, and how long its work took. Jobs that have begun keep their code.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..rounds import lateness
from ..rounds.trial import Looks, Trial
from .schemes import DIP, over_two_rounds, usual

Floats = NDArray[np.float64]
SLACK = 0.25
SLACKS = (0.1, SLACK, 0.5, 1.0, 2.0)
LAST = 24  # rounds that are looked at
ENOUGH = 4  # rounds without which nothing is changed
BETTER = 0.03
SLOW, FEARED = 5.0, 0.25  # a round with a quarter of the workers so slow; how much it counts
CALLS = 1000  # numbers in the time of the calls that predict one round, for all choices together


class Shown(NamedTuple):
    """What a round has shown, by slot: seconds and multiply-adds until a reply."""

    firsts: dict[int, tuple[float, float]]
    lasts: dict[int, tuple[float, float]]
    given: float  # multiply-adds of each worker's mini-tasks
    took: float


class Choice(NamedTuple):
    """What is chosen. `late`: mini-tasks that may fail in two rounds at no cost."""

    late: int
    slack: float


class Change(NamedTuple):
    """What is to be done otherwise, and why."""

    code: DIP
    slack: float
    why: str


class SequenceTuner:
    """Chooses for sequences on n >= 2 slots. slack: what the caller has set; None leaves it too."""

    def __init__(self, n: int, slack: float | None = None) -> None:
        self.n = n
        first = usual(n)
        bounds = sorted({0, 1, max(1, n // 8), max(1, n // 4)})
        ranges = [range(a, b) for a, b in pairwise(bounds)]
        ranges.append(range(max(1, n // 2) + 1, 3 * n // 4 + 1))
        codes = [first, *(over_two_rounds(n, late) for late in ranges if late)]
        self.codes = {2 * n - code.x * code.y: code for code in codes}
        self.slacks = SLACKS if slack is None else (slack,)
        self.now = Choice(2 * n - first.x * first.y, SLACK if slack is None else slack)
        self._forget(0.0)

    def _forget(self, size: float) -> None:
        self._size = size  # multiply-adds of a job
        self._shown: deque[Shown] = deque(maxlen=LAST)
        self._looks, self._trial, self._proven = Looks(), Trial(), self.now
        self._tried = False  # whether late ones were waited for, to see how late they are
        self._trying: Choice | None = None  # what was chosen before that, while they are

    @property
    def code(self) -> DIP:
        """The code of the jobs to begin."""
        return self.codes[self.now.late]

    def learn(self, shown: Shown, size: float) -> None:
        """Take in a round whose jobs were all alike, of `size` multiply-adds each."""
        if size != self._size:
            self._forget(size)  # rounds of other jobs tell nothing of these
        self._shown.append(shown)
        if self._trying is None:
            self._trial.learn(shown.took)
        self._looks.learn(shown.took)

    def change(self) -> Change | None:
        """What is better from now on, if it is time for a look and anything is."""
        if worse := self._trial.failed():
            self._looks.failed()
            return self._to(self._proven, worse)
        numbers = len(self._shown) * len(self.codes) * len(self.slacks) * self.n
        costs = numbers + CALLS * len(self._shown)
        if len(self._shown) < ENOUGH or not (self._looks.due and self._looks.affords(costs)):
            return None
        self._looks.looked()
        if not self._tried and len(self.slacks) > 1 and any(map(self._late, self._shown)):
            self._tried, self._trying = True, self.now
            self._looks.again()
            return self._to(self.now._replace(slack=max(self.slacks)), "to see how late they are")
        return self._best()

    def _to(self, choice: Choice, why: str) -> Change:
        before, self.now = self.now, choice
        return Change(self.code, choice.slack, f"{_words(choice, before)}: {why}")

    def _best(self) -> Change | None:
        options = [Choice(late, slack) for late in self.codes for slack in self.slacks]
        seconds = self._predict(options)
        usual, self._trying = self._trying or self.now, None
        now = seconds[options.index(usual)]
        gains = now - seconds  # of the same rounds: luck is the same
        counts = np.append(np.ones(now.size - 1), FEARED) / (now.size - 1 + FEARED)
        gain, sure = gains @ counts, gains[:, :-1].std(axis=1) / (now.size - 1) ** 0.5
        gain[(gain < BETTER * (now @ counts)) | (gain < sure)] = 0.0
        best = int(gain.argmax())
        if gain[best] > 0:
            if self._trial.begin():
                self._proven = usual
            self._looks.soon(ENOUGH)
            means = seconds[best, :-1].mean(), now[:-1].mean()
            why = "{:.3g} s a round expected in place of {:.3g} s".format(*means)
            return None if options[best] == self.now else self._to(options[best], why)
        return None if usual == self.now else self._to(usual, "they are too late to wait for")

    def _late(self, one: Shown) -> bool:
        """Whether a worker had not ended when a round was over."""
        return any(one.lasts.get(slot, (0.0, 0.0))[1] < one.given for slot in range(self.n))

    def _times(self) -> tuple[Floats, Floats]:
        """Waits, and seconds of a multiply-add: (rounds, slots) each.

        Who had not ended when a round was over is thought as late as half of those that were seen
        to be later than that, in rounds that waited for longer; or twice as late as any.
        """
        first, work, last, done = (np.zeros((len(self._shown), self.n)) for _ in range(4))
        for r, one in enumerate(self._shown):
            for slot, (seconds, read) in one.firsts.items():
                first[r, slot], work[r, slot] = seconds, read
                last[r, slot], done[r, slot] = one.lasts[slot]
        given = np.array([[one.given] for one in self._shown])
        took = np.array([[one.took] for one in self._shown])
        out = done < given
        fastest = np.where(out, np.inf, last).min(axis=1, keepdims=True)
        fastest = np.maximum(np.minimum(fastest, took), 1e-12)
        waited = took / fastest
        most = 2 * float(waited[out.any(axis=1)].max(initial=1.0))
        seen = np.where(out, np.where(waited * 2 < most, 0.0, most), last / fastest)
        for r in np.flatnonzero(out.any(axis=1)).tolist():
            later = seen[seen > waited[r]]
            last[r, out[r]] = fastest[r] * (float(np.median(later)) if later.size else most)
        done = np.where(out, given, done)
        pace = np.where(done > work, (last - first) / np.maximum(done - work, 1e-12), 0.0)
        return np.maximum(0.0, first - pace * work), pace

    def _predict(self, options: list[Choice]) -> Floats:
        """Seconds under each of each round that was seen, as DIP runs; and of one that is feared.

        Shape (options, rounds + 1).
        """
        wait, pace = self._times()
        feared = np.median(pace, axis=0) * np.where(np.arange(self.n) < self.n / 4, SLOW, 1.0)
        wait, pace = np.vstack([wait, np.median(wait, axis=0)]), np.vstack([pace, feared])
        k = np.array([[2.0 * self.n - option.late] for option in options])
        slack = np.array([option.slack for option in options])
        mini, n = self._size / k, self.n
        there, done = np.full((len(options), 1), float(n)), list[Floats]()
        for r in (-1, *range(len(wait))):  # the first tells only what is there of the due job
            lacking = np.maximum(1.0, k - there)
            each = np.ceil(lacking / n)  # mini-tasks of the due job, after one of the new job
            ends = [wait[r] + i * pace[r] * mini for i in (1, 2, 3)]
            last = np.where(each > 1, ends[2], ends[1])
            fastest = last.min(axis=1)
            noise = np.minimum(lateness.MOST_NOISE, lateness.NOISE * fastest)
            over = fastest + np.maximum(noise, slack * fastest)
            both = np.hstack([ends[1], np.where(each > 1, ends[2], np.inf)])
            due = np.take_along_axis(np.sort(both), lacking.astype(int) - 1, axis=1)[:, 0]
            done.append(np.maximum(np.minimum(over, last.max(axis=1)), due))
            there = (ends[0] <= done[-1][:, None]).sum(axis=1, keepdims=True).astype(float)
        return np.stack(done[1:], axis=1)


def _words(now: Choice, before: Choice) -> str:
    """What is otherwise."""
    code = f"{now.late} late mini-tasks in two rounds cost nothing, not {before.late}"
    slack = f"slack {now.slack:g}, not {before.slack:g}"
    changed = [code] * (now.late != before.late) + [slack] * (now.slack != before.slack)
    return "; ".join(changed)
