"""Straggler models for IDIP: which workers can straggle, given who did in the rounds before.

A model is asked about slots, and knows no time. `before` has the stragglers of the rounds before
this one, the newest last; at least the last W - 1 of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Rounds = Sequence[frozenset[int]]


class StragglerModel(ABC):
    """A set of patterns, closed under leaving out stragglers."""

    W: int

    @property
    @abstractmethod
    def life(self) -> int:
        """Rounds in which a job is worked on; the last is the one in which it is due."""

    @abstractmethod
    def lost(self) -> int:
        """The most results of one job that stragglers can cost, over all its rounds."""

    @abstractmethod
    def conforms(self, before: Rounds, late: Collection[int]) -> bool:
        """Whether these slots may all straggle in this round."""

    @abstractmethod
    def cannot_straggle(self, before: Rounds, slot: int, rounds: int) -> bool:
        """Whether it is ruled out that a slot straggles in this round and all of the next.

        `rounds` counts this one.
        """


@dataclass(frozen=True)
class Arbitrary(StragglerModel):
    """At most N stragglers in any W rounds, all slots counted together: (N, W)-arbitrary.

    With `burst` nobody straggles more than so many rounds in a row either (our own restriction, not
    that of Krishnan et al., 2020).
    """

    N: int
    W: int
    burst: int | None = None

    @property
    def life(self) -> int:
        return self.W

    def lost(self) -> int:
        return self.N

    def conforms(self, before: Rounds, late: Collection[int]) -> bool:
        if sum(map(len, _last(before, self.W - 1))) + len(late) > self.N:
            return False
        return self.burst is None or all(self._run(before, slot) < self.burst for slot in late)

    def cannot_straggle(self, before: Rounds, slot: int, rounds: int) -> bool:
        if self.burst is not None and self._run(before, slot) + rounds > self.burst:
            return True
        counts = [len(late) for late in _last(before, self.W - 1)]
        for s in range(min(rounds, self.W)):
            past = sum(counts[len(counts) - (self.W - 1 - s) :]) if s < self.W - 1 else 0
            if past + s + 1 > self.N:
                return True
        return False

    @staticmethod
    def _run(before: Rounds, slot: int) -> int:
        """Rounds in a row, up to the last, in which a slot has straggled."""
        ago = 0
        for late in reversed(before):
            if slot not in late:
                break
            ago += 1
        return ago


@dataclass(frozen=True)
class Bursts(StragglerModel):
    """In any W rounds at most `lam` slots straggle, each within a span of B of them: (B, W, ε).

    The variant of IDIP for bursts of Krishnan et al., 2020; λ here is their ε.
    """

    B: int
    W: int
    lam: int

    @property
    def life(self) -> int:
        return self.W - 1 + self.B

    def lost(self) -> int:
        return self.B * self.lam

    def conforms(self, before: Rounds, late: Collection[int]) -> bool:
        lately = _last(before, self.W - 1)
        if len(frozenset(late).union(*lately)) > self.lam:
            return False
        old = frozenset().union(*lately[: max(0, len(lately) - self.B + 1)])
        return old.isdisjoint(late)

    def cannot_straggle(self, before: Rounds, slot: int, rounds: int) -> bool:
        if rounds > self.B:
            return True
        lately = _last(before, self.W - 1)
        if len(frozenset((slot,)).union(*lately)) > self.lam:
            return True
        ago = [len(lately) - i for i, late in enumerate(lately) if slot in late]
        # A straggle i rounds from now and one j rounds ago span i + j + 1 rounds of one window.
        return any(self.B <= i + j < self.W for i in range(rounds) for j in ago)


def _last(before: Rounds, rounds: int) -> Rounds:
    return before[max(0, len(before) - rounds) :] if rounds else ()
