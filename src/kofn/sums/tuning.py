"""How a sum is to be run, learnt from the sums before it: no I/O, no clock.

Two things are chosen. How slots are asked: for their own parts first, or for all their parts at
once. And how many copies of each part there are: more of them are sent where that pays for itself.
Both are predicted from the replies of the last rounds, by what those would have taken.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes.assignment import SumCode
from ..codes.repetition import CyclicRepetition, FractionalRepetition
from ..rounds.trial import TO_LEARN, Looks, Trial, shorter
from .lead import RULE, LeadRound

Floats = NDArray[np.float64]
KEPT = 64e6  # bytes of parts that a worker may be given beyond the first copies
LAST = 6  # rounds that are looked at
MANY = 16  # workers: of more, somebody is likely to be late from the start
AHEAD = 16  # rounds that are expected at least; and as many more as there were
BETTER, MUCH_BETTER = 0.03, 0.05  # another way of asking; more copies
SAMPLES = 24  # replies without which more copies are not thought of
SLICE = 0.01  # seconds after which work that is simulated or paced is dropped


def first_copies(n: int) -> int:
    """How many copies n workers begin with: two, and one more for each factor of four beyond 16.

    With one in four workers slow, about one part is then without a quick holder.
    """
    return min(n, max(2, math.ceil(math.log(max(n, 2), 4) - 1e-9)))


class Shown(NamedTuple):
    """What a round has shown."""

    firsts: dict[int, tuple[float, int]]  # of a slot: seconds until its first reply, parts in it
    later_seconds: float
    later_parts: int
    took: float
    out: Collection[int]  # slots that were not asked
    way: tuple[int, bool]  # copies, and whether all were asked for at once


class Change(NamedTuple):
    """Another number of copies or way to ask, and why."""

    copies: int
    at_once: bool
    why: str


class SumTuner:
    """Chooses for one placing of m parts on n slots. `size`: bytes of all parts; 0 if unknown.

    With fewer parts than n there are as many slots as have work, in groups, and other workers stand
    by. `slice`: seconds after which a worker drops stale work; None where it ends the part it is
    at.
    """

    def __init__(self, m: int, n: int, size: float, slice: float | None) -> None:
        c = first_copies(n)
        self.copies, self.at_once = c, n > MANY
        self.m, self.n = m, n if m >= n else min(n - n % c, m * c)
        self.size, self.slice = size, slice
        self.placing = 0.0  # seconds that one copy of everything took to place
        self._shown: deque[Shown] = deque(maxlen=LAST)
        self._looks, self._trial = Looks(), Trial()  # a trial of how slots are asked

    @property
    def code(self) -> SumCode:
        """The code with so many copies: in groups, where that can be.

        With groups there are fewer sets of workers that must not all be slow.
        """
        return self._code(self.copies)

    def _code(self, c: int) -> SumCode:
        return FractionalRepetition(c) if self.n % c == 0 else CyclicRepetition(c)

    def _price(self, copies: int) -> float:
        """Seconds until so many copies are placed: what a slot has is not sent again."""
        alike = type(self._code(copies)) is type(self.code)
        return self.placing * (copies - self.copies if alike else copies)

    def own(self, slot: int) -> int:
        """Symbols of a slot that come first, as no other slot begins with them."""
        if self.n % self.copies:
            return (slot + 1) * self.m // self.n - slot * self.m // self.n
        group, turn = divmod(slot, self.copies)
        groups, c = self.n // self.copies, self.copies
        held = (group + 1) * self.m // groups - group * self.m // groups
        return (turn + 1) * held // c - turn * held // c

    def learn(self, round: LeadRound) -> None:
        """Take in a round that has ended."""
        took = round.took
        later, way = (round.later_seconds, round.later_parts), (self.copies, self.at_once)
        seen = Shown(round.firsts, *later, took, round.out, way)
        self._shown.append(seen)
        self._trial.learn(took)
        self._looks.learn(took)

    def change(self) -> Change | None:
        """What is better from now on, if it is time for a look and anything is."""
        if worse := self._trial.failed():
            self._looks.failed()
            self.at_once = not self.at_once
            return Change(self.copies, self.at_once, f"{_asks(self.at_once)} again: {worse}")
        if not self._looks.due or self.n < 2:
            return None
        options = self._options()
        numbers = len(self._shown) * self.n * sum(options)
        if not self._looks.affords(numbers):
            return None
        self._looks.looked()
        wait, own, known = self._times()
        change = self._best(options, wait, own) if known else self._try(wait, own)
        if change is not None:
            if change.copies != self.copies or not self._trial.begin():
                self._trial = Trial()  # copies stay; or it is as it was before the trial
            self.copies, self.at_once = change.copies, change.at_once
        return change

    def _options(self) -> list[int]:
        """Copies that may be had: as now, and more, as long as workers can keep them."""
        most, options = self.copies, [self.copies]
        if self.size > 0 and self.placing > 0 and len(self._shown) * self.n >= SAMPLES:
            most = min(self.n, int(KEPT * self.n / self.size))
        while (more := min(2 * options[-1], most)) > options[-1]:
            options.append(more)
        # Cyclic repetition needs a part for each slot.
        return [c for c in options if self.n % c == 0 or self.m >= self.n]

    def _times(self) -> tuple[Floats, float, bool]:
        """Waits (rounds, slots), the seconds of a slot's own parts, and whether these are known.

        Who had said nothing when a round was over was at least so late; twice that is assumed.
        Who was not asked waits for ever.
        """
        parts = sum(one.later_parts for one in self._shown)
        each = self.m / self.n
        if parts:
            part = sum(one.later_seconds for one in self._shown) / parts
        else:
            firsts = [first for one in self._shown for first in one.firsts.values()]
            part = float(np.median([took / max(1, read) for took, read in firsts]))
        wait = np.empty((len(self._shown), self.n))
        for row, one in zip(wait, self._shown, strict=True):
            row[:] = 2 * one.took
            row[list(one.out)] = math.inf
            for slot, (took, read) in one.firsts.items():
                row[slot] = max(0.0, took - part * read)
        return wait, part * each, parts > 0

    def _try(self, wait: Floats, own: float) -> Change | None:
        """Ask for everything once, where somebody is late: that tells waits from work."""
        ends = np.where(np.isinf(wait), 0.0, wait + own)
        if self.at_once or ends.max(axis=1).mean() < 1.5 * float(np.median(ends)):
            return None
        self._looks.again()
        return Change(self.copies, True, f"{_asks(True)} {TO_LEARN}")

    def _best(self, options: list[int], wait: Floats, own: float) -> Change | None:
        ahead = AHEAD + self._looks.rounds
        now = self._predict(wait, own, self.copies, self.at_once)
        took = [one.took for one in self._shown if one.way == (self.copies, self.at_once)]
        now = min([now, fmean(took)] if took else [now])  # what was measured is no worse
        ways = {(self.copies, at_once): 0.0 for at_once in (False, True)}
        ways |= {(c, True): self._price(c) for c in options[1:]}
        best: tuple[float, float, int, bool] | None = None
        for (copies, at_once), price in ways.items():
            seconds = self._predict(wait, own, copies, at_once)
            value = seconds + price / ahead
            need = MUCH_BETTER if price else BETTER
            if value < now * (1 - need) and (best is None or value < best[0]):
                best = value, seconds, copies, at_once
        if best is None:
            return None
        _, seconds, copies, at_once = best
        if copies != self.copies:
            what = f"{copies} copies of each part, not {self.copies}"
        else:
            what = _asks(at_once)
        return Change(copies, at_once, f"{what}: {shorter(seconds, now)}")

    def _predict(self, wait: Floats, own: float, copies: int, at_once: bool) -> float:
        """Seconds of a round, in the mean of those that were seen."""
        stale = own * self.n / self.m  # a part
        stale = stale if self.slice is None else min(stale, self.slice)
        if at_once or copies == 1:
            times = _streamed(wait, own, copies)
            return float(times.mean()) + (stale if copies > 1 else 0.0)
        ends = wait + own
        out = np.isinf(ends)
        half = np.median(ends, axis=1)
        rule = RULE.knowing(float(np.median(half)))
        late = np.array([rule.allowed(h, f) for h, f in zip(half, ends.min(axis=1), strict=True)])
        begin = np.maximum(ends, late[:, None]) + wait
        times = ends
        for i in range(1, copies):  # others know from the start who is not asked
            after = np.where(out, _neighbours(ends, i, copies), _neighbours(begin, i, copies))
            times = np.minimum(times, after + own)
        times = times.max(axis=1)
        return float((times + stale * (times > late)).mean())


def _asks(at_once: bool) -> str:
    of = "all parts that they hold" if at_once else "their own parts first"
    return f"workers are asked for {of}"


def _streamed(wait: Floats, own: float, copies: int) -> Floats:
    """Seconds until every slot's own parts are there from one of those that hold them.

    Slot s holds those of s, s + 1, … (of its group, if there are any), and does them in that order.
    """
    times = wait + own
    least = wait.min()
    for i in range(1, copies):
        if least + (i + 1) * own >= times.max():
            break  # nobody could be sooner
        times = np.minimum(times, _neighbours(wait, i, copies) + (i + 1) * own)
    return np.asarray(times.max(axis=1))


def _neighbours(values: Floats, i: int, copies: int) -> Floats:
    """For every slot that of the slot i before it, in its group of so many if there are groups."""
    rounds, n = values.shape
    if n % copies:
        return np.roll(values, i, axis=1)
    return np.roll(values.reshape(rounds, -1, copies), i, axis=2).reshape(rounds, n)
