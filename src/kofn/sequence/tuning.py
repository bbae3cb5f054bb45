"""Which code and slack a sequence runs under, learnt from its rounds: no I/O, no clock.

It begins with the work of no code, and waits for all but the very late. What a round would have
taken under a code follows from the replies of the last rounds: how long each worker waited, and how
long its work took. Jobs that have begun keep their code.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..rounds import lateness
from ..rounds.trial import TO_LEARN, Looks, Trial, shorter
from .schemes import DIP, over_two_rounds, usual

Floats = NDArray[np.float64]
Shape = tuple[int, int, int]  # of a job: m, n, p
SLACK = 0.25
SLACKS = (None, 0.1, SLACK, 0.5, 1.0, 2.0)
LAST = 24  # rounds that are looked at
ENOUGH = 4  # rounds without which nothing is changed
BETTER = 0.2  # of a round: on shared cores no forecast is better
BACK = 0.03  # for the choice that it begins with
FIXED = 0.5  # of a mini-task's time is thought to be no work, until two sizes have shown it
PRICE = 0.1  # of a round's seconds, for as much work again
MUCH = 0.1  # of a round could be gained if all of it was work: then it is found out
# Numbers in the time that a look takes for a slot under a choice, and for the calls of a round.
SORTED, CALLS = 8, 2500


class Shown(NamedTuple):
    """What a round has shown, by slot: seconds and multiply-adds until a reply."""

    firsts: dict[int, tuple[float, float]]
    lasts: dict[int, tuple[float, float]]
    given: float  # multiply-adds of each worker's mini-tasks
    took: float


class Times(NamedTuple):
    """What workers took in the rounds that were seen: (rounds, slots) each."""

    wait: Floats  # seconds before the first mini-task
    each: Floats  # seconds of a mini-task
    size: Floats  # its multiply-adds: (rounds, 1)


class Choice(NamedTuple):
    """What is chosen. `k`: results that a job needs; with n workers n to 2n."""

    k: int
    slack: float | None


class Change(NamedTuple):
    """Another code and slack, and why."""

    code: DIP
    slack: float | None
    why: str


class SequenceTuner:
    """Chooses for sequences on n >= 2 slots. slack: what the caller has set; None leaves it too."""

    def __init__(self, n: int, slack: float | None = None) -> None:
        self.n = n
        bounds = (1, max(1, n // 8), max(1, n // 4), max(1, n // 2) + 1, 3 * n // 4 + 1)
        codes = [usual(n), *(over_two_rounds(n, range(a, b)) for a, b in pairwise(bounds) if a < b)]
        self.codes = {code.product.k: code for code in codes}
        self.slacks = SLACKS if slack is None else (slack,)
        self.options = [Choice(k, slack) for k in self.codes for slack in self.slacks]
        self.now = Choice(n, slack)
        self._forget((0, 0, 0))

    def _forget(self, shape: Shape) -> None:
        self._shape = shape
        self._shown: deque[Shown] = deque(maxlen=LAST)
        self._looks, self._trial, self._proven = Looks(), Trial(), self.now
        self._fixed: float | None = None  # how much of a mini-task's time is no work, if known
        self._tried = False  # whether another code was run, to know that
        self._trying: Choice | None = None  # what was chosen before that, meanwhile

    @property
    def code(self) -> DIP:
        """The code of the jobs to begin."""
        return self.codes[self.now.k]

    def learn(self, shown: Shown, shape: Shape) -> None:
        """Take in a round whose jobs were all alike, of this shape."""
        if shape != self._shape:
            self._forget(shape)  # rounds of other jobs are no measure of these
        self._shown.append(shown)
        if self._trying is None:
            self._trial.learn(shown.took)
        self._looks.learn(shown.took)

    def change(self) -> Change | None:
        """What is better from now on, if it is time for a look and anything is."""
        if worse := self._trial.failed():
            self._looks.failed()
            return self._to(self._proven, worse)
        costs = len(self._shown) * (SORTED * len(self.options) * self.n + CALLS)
        if len(self._shown) < ENOUGH or not (self._looks.due and self._looks.affords(costs)):
            return None
        self._looks.looked()
        return self._best()

    def _to(self, choice: Choice, why: str) -> Change:
        before, self.now = self.now, choice
        return Change(self.code, choice.slack, f"{_words(choice, before, self.n)}: {why}")

    def _best(self) -> Change | None:
        usual, self._trying = self._trying or self.now, None
        here, times = self.options.index(usual), self._times()
        self._fixed = self._part(times)
        seconds = self._predict(times, FIXED if self._fixed is None else self._fixed)
        best, gain = self._gain(seconds, here)
        if self._fixed is None and not self._tried:
            if_work = self._predict(times, 0.0)
            other, most = self._gain(if_work, here)
            if most > max(gain, MUCH * if_work[here].mean()) and self.options[other].k != usual.k:
                self._tried, self._trying = True, usual
                self._looks.again()
                return self._to(self.options[other], TO_LEARN)
        if gain > 0:
            if self._trial.begin():
                self._proven = usual
            self._looks.soon(ENOUGH)
            why = shorter(float(seconds[best].mean()), float(seconds[here].mean()))
            return None if self.options[best] == self.now else self._to(self.options[best], why)
        return None if usual == self.now else self._to(usual, "the other choice would save no time")

    def _gain(self, seconds: Floats, here: int) -> tuple[int, float]:
        """The best option, and what it gains in a round next to this one, if it surely does."""
        gains = seconds[here] - seconds  # of the same rounds, with the same delays
        gain, sure = gains.mean(axis=1), gains.std(axis=1) / seconds.shape[1] ** 0.5
        least = np.full(len(gain), BETTER)
        least[0] = BACK
        gain[(gain < least * seconds[here].mean()) | (gain < sure)] = 0.0
        best = int(gain.argmax())
        return best, float(gain[best])

    def _times(self) -> Times:
        """What the rounds have shown.

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
        # Who did one mini-task shows no wait before it: its wait is as that of the others.
        size = np.maximum(work.max(axis=1, keepdims=True), 1e-12)
        several = done > 1.5 * size
        each = np.where(several, (last - first) * size / np.maximum(done - work, 1e-12), 0.0)
        wait = np.where(work > 0, np.maximum(0.0, first - each), 0.0)
        share = (wait / np.maximum(first, 1e-12))[several & (work > 0)]
        wait = np.where(several, wait, last * (np.median(share) if share.size else 0.0))
        return Times(wait, np.where(several, each, last - wait), size)

    def _part(self, times: Times) -> float | None:
        """How much of the time of a mini-task of no code is no work, as two sizes have shown."""
        size = times.size[:, 0]
        least, most = size.min(), size.max()
        if most < 1.05 * least:
            return self._fixed
        low, high = (float(np.median(times.each[abs(size - s) < 0.02 * s])) for s in (least, most))
        slope = max(0.0, high - low) / (most - least)
        return float(1.0 - min(1.0, slope * most / max(high, 1e-12)))

    def _predict(self, times: Times, fixed: float) -> Floats:
        """Seconds under each option of each round that was seen, as DIP runs: (options, rounds)."""
        n, full = self.n, self._cost(self.n)
        mini = np.array([fixed + (1 - fixed) * self._cost(k) / full for k, _ in self.options])
        each = times.each / (fixed + (1 - fixed) * times.size / full)
        # When workers have done one, two and three: (rounds, 3, options, n).
        tasks = np.arange(1.0, 4.0)[:, None, None] * mini[:, None]
        ends = times.wait[:, None, None, :] + tasks * each[:, None, None, :]
        order = np.sort(ends)
        first, half, last = (order[..., at] for at in (0, (n - 1) // 2, n - 1))
        over, every, either = np.empty_like(last), len(self.slacks), (np.maximum, np.minimum)
        for at, slack in enumerate(self.slacks):  # every so many options have the same
            one = np.s_[..., at::every]
            over[one] = lateness.in_sequence(slack, half[one], first[one], True, *either)
        over = np.minimum(over, last)
        both = np.sort(np.concatenate([ends[:, 1], ends[:, 2]], axis=2))
        k, which = np.array([k for k, _ in self.options]), np.arange(len(self.options))
        there, seconds = np.full(len(k), n), np.empty((len(k), len(ends)))
        size = np.array([self._cost(k) / full for k, _ in self.options])
        for r in (-1, *range(len(ends))):  # the first only counts what is there of the due job
            lacking = np.maximum(0, k - there)
            more = -(-lacking // n)  # mini-tasks of the due job, after one of the new job
            due = np.where(
                more > 1,
                both[r, which, lacking - 1],
                order[r, 1, which, np.minimum(lacking, n) - 1],
            )
            done = np.maximum(over[r, more, which], np.where(lacking > 0, due, 0.0))
            there = (ends[r, 0] <= done[:, None]).sum(axis=1)
            seconds[:, r] = done * (1 + PRICE * ((1 + more) * size - 1))
        return seconds

    def _cost(self, k: int) -> float:
        """Multiply-adds of a mini-task."""
        return self.codes[k].product.cost(self._shape)


def _words(now: Choice, before: Choice, n: int) -> str:
    """What is otherwise."""

    def said(k: int) -> str:
        coded = f"coded to do without {2 * n - k} of the mini-tasks of two rounds"
        return coded if k > n else "not coded"

    changed = [f"{said(now.k)} (before: {said(before.k)})"] * (now.k != before.k)
    slacks = ["no slack" if s is None else f"slack {s:g}" for s in (now.slack, before.slack)]
    return "; ".join(changed + ["{} (before: {})".format(*slacks)] * (now.slack != before.slack))
