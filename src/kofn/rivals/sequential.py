"""Gradient coding, exact and with minimal waits: GC, and SR-SGC and M-SGC, which take bursts.

They have no master of their own here: `round_times` is a function of recorded times at their load.
Workers are admitted in the order in which they come, until those who have not come may be
stragglers; and for SR-SGC and M-SGC at least up to `1 + mu` times the time of the fastest, so that
whoever is only a little slower is none. A straggler's work is lost, and it begins the next round
with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..checks import number, whole, whole_fields
from ..delays import Recording
from ..errors import BadInput
from .base import Floats, Mask, Rival, Rounds, replayed
from .bursts import Bursty, RepeatBooks

MUS = (0.25, 0.5, 1.0)  # tried by a search; the paper has 1
WINDOWS = ((1, 2), (1, 3), (2, 3))  # B, W


@dataclass(frozen=True)
class GradientCode(Rival):
    """Exact gradient coding (Tandon et al., 2017): any n - s of the n workers are enough."""

    name = "gc"
    s: int

    def __post_init__(self) -> None:
        whole_fields(self, s=0)

    def load(self, n: int) -> float:
        whole(self.s, "s (stragglers)", 0, n - 1)
        return (self.s + 1) / n

    def round_times(self, times: Recording, rounds: int | None = None) -> Rounds:
        load, last = self.load(times.workers), times.workers - self.s - 1
        seconds = replayed(times, load, rounds)
        return _rounds(seconds, np.partition(seconds, last, axis=1)[:, last], load)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(s) for s in range(n))


@dataclass(frozen=True)
class _Sequential(Rival):
    B: int
    W: int
    lam: int
    mu: float = 1.0

    def __post_init__(self) -> None:
        whole_fields(self, B=1, W=2, lam=0)
        number(self.mu, "mu", ">= 0")
        _ = self.pattern

    @property
    def pattern(self) -> Bursty:
        """The stragglers that cost nothing."""
        return Bursty(self.B, self.W, self.lam)

    def _check(self, n: int) -> None:
        whole(self.lam, "lam (workers that straggle in a window)", 0, n)


@dataclass(frozen=True)
class SRSGC(_Sequential):
    """Selective repetition: a gradient code in which results that lack are repeated B rounds later.

    W must be a multiple of B, and one more. s = ⌈B lam / (W - 1 + B)⌉ may lack in the end.
    """

    name = "sr_sgc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.W - 1) % self.B:
            raise BadInput(
                f"SR-SGC takes W = x B + 1 for a whole x; got B={self.B} and W={self.W}. Use "
                f"W={self.B * (1 + (self.W - 1) // self.B) + 1}."
            )

    @property
    def delay(self) -> int:
        return self.B

    @property
    def s(self) -> int:
        """How many results may lack in the end."""
        return -(-self.B * self.lam // (self.W - 1 + self.B))

    def load(self, n: int) -> float:
        self._check(n)
        return GradientCode(self.s).load(n)

    def round_times(self, times: Recording, rounds: int | None = None) -> Rounds:
        n, s, pattern = times.workers, self.s, self.pattern
        load, books = self.load(n), RepeatBooks(n, self.B, s)
        seconds = replayed(times, load, rounds)
        counted = np.zeros(seconds.shape, dtype=bool)
        ends = _usual(seconds, self.mu)
        for r, row in enumerate(seconds):
            until, simple = pattern.until(counted[:r], row), not books.repeating().any()
            if simple:  # then n - s are enough now, and nobody need count as a straggler
                until = min(until, float(np.partition(row, n - s - 1)[n - s - 1]))
            ends[r] = max(ends[r], until)
            late = row > ends[r]
            if not simple or late.sum() > s:
                counted[r] = late
            books.finish(~late)
        return _rounds(seconds, ends, load)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        windows = [(B, W) for B, W in WINDOWS if (W - 1) % B == 0]
        return (cls(*window, lam, mu) for window in windows for lam in _lams(n) for mu in MUS)


@dataclass(frozen=True)
class MSGC(_Sequential):
    """Multiplexed: W - 1 + B mini-tasks in a round, each for another gradient.

    What a straggler lacks of its own parts it does later, in place of coded mini-tasks.
    """

    name = "m_sgc"

    @property
    def delay(self) -> int:
        return self.W - 2 + self.B

    def load(self, n: int) -> float:
        self._check(n)
        B, W, lam = self.B, self.W, self.lam
        if lam == n:
            return (W - 1 + B) / (n * (W - 1))
        return (lam + 1) * (W - 1 + B) / (n * (B + (W - 1) * (lam + 1)))

    def round_times(self, times: Recording, rounds: int | None = None) -> Rounds:
        load, pattern = self.load(times.workers), self.pattern
        seconds = replayed(times, load, rounds)
        late = np.zeros(seconds.shape, dtype=bool)
        ends = _usual(seconds, self.mu)
        for r, row in enumerate(seconds):
            ends[r] = max(ends[r], pattern.until(late[:r], row))
            late[r] = row > ends[r]
        return _rounds(seconds, ends, load)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(*window, lam, mu) for window in WINDOWS for lam in _lams(n) for mu in MUS)


def _lams(n: int) -> list[int]:
    """From 1 to n, in coarser steps where one more or less matters little."""
    return sorted({*range(1, min(n, 33)), *range(36, min(n, 129), 4), *range(144, n, 16), n})


def _usual(seconds: Floats, mu: float) -> Floats:
    """When rounds end at the earliest: 1 + mu times the fastest, or with the last to come."""
    ends: Floats = np.minimum((1 + mu) * seconds.min(axis=1), seconds.max(axis=1))
    return ends


def _rounds(seconds: Floats, ends: Floats, load: float) -> Rounds:
    late: Mask = seconds > ends[:, None]
    n = seconds.shape[1]
    return Rounds(ends, load * (n - late.sum(axis=1)), np.ones(len(ends)), n, late)
