"""Counts of operations and strikes, and the error for a wrong result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..errors import KofnError


class Wrong(KofnError):
    """A result that is not NumPy's, or an error that is not true."""


@dataclass
class Tally:
    """What was done."""

    operations: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # errors that say truly why
    counts: Counter[str] = field(default_factory=Counter)  # of what else happened
    checked: int = 0
    worst: float = 0.0  # the largest error, as a fraction of its tolerance

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            both_of(self.operations, other.operations),
            both_of(self.interrupted, other.interrupted),
            both_of(self.refused, other.refused),
            both_of(self.counts, other.counts),
            self.checked + other.checked,
            max(self.worst, other.worst),
        )


def both_of(one: Counter[str], other: Counter[str]) -> Counter[str]:
    """Add counts that other threads go on with: a dict is copied in one step."""
    return Counter(dict(one)) + Counter(dict(other))
