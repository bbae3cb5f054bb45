"""Stragglers in bursts, and the books of a code that is made for them.

A gradient may be ready some rounds after its own, so a training loop runs several models in turn.
Gradient t is begun in round t, and due in round t + delay. A straggler's work of a round is lost.
Books hold what workers do in a round and which results are there; they know no times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checks import whole_fields
from ..errors import BadInput
from .base import Floats, Mask


@dataclass(frozen=True)
class Bursty:
    """In any W rounds on end at most `lam` workers straggle, each within at most B of them.

    So from a worker's first to its last straggle in these rounds there are at most B rounds, both
    counted. B < W: else a worker may straggle for ever.
    """

    B: int
    W: int
    lam: int

    def __post_init__(self) -> None:
        whole_fields(self, B=1, W=2, lam=0)
        if not self.B < self.W:
            raise BadInput(
                f"a burst is shorter than the window it is in, B < W; got B={self.B} and "
                f"W={self.W}. Use W >= {self.B + 1}."
            )

    def until(self, before: Mask, times: Floats) -> float:
        """The first moment at which all who have not come by then may be stragglers.

        `times`: when each worker comes. `before`, (rounds, workers): who straggled so far.
        """
        r, n = len(before), len(times)
        first = max(0, r - self.W + 1)
        lately = before[first:].any(axis=0)  # they count already
        must = before[first : max(first, r - self.B + 1)].any(axis=0)
        end = float(times[must].max(initial=0.0))
        if self.lam >= n:
            return end
        others, enough = times[~lately], n - self.lam
        return max(end, float(np.partition(others, enough - 1)[enough - 1]))


class RepeatBooks:
    """Of SR-SGC: any n - s results of a gradient are enough; what lacks after B rounds is repeated.

    Just as many repeat it as are lacking, first those that straggled in its own round.
    """

    def __init__(self, n: int, B: int, s: int) -> None:
        self.n, self.round = n, 0
        self._delay, self._s = B, s
        self._held: dict[int, Mask] = {}  # gradient -> whose results are there
        self._late: dict[int, Mask] = {}  # round -> who straggled

    def repeating(self) -> Mask:
        """Who does the gradient that is due once more in this round; the others do this round's."""
        mask = np.zeros(self.n, dtype=bool)
        due = self.round - self._delay
        if due >= 0:
            held = self._held[due]
            lacking = max(0, self.n - self._s - int(held.sum()))
            rank = np.where(held, 2, np.where(self._late[due], 0, 1))
            mask[np.argsort(rank, kind="stable")[:lacking]] = True
        return mask

    def finish(self, returned: Mask) -> bool | None:
        """End a round in which these workers have returned all they were given.

        Returns whether the gradient that is due is there, None where none is due yet.
        """
        again, due = self.repeating(), self.round - self._delay
        self._held[self.round] = returned & ~again
        self._late[self.round] = ~returned
        self.round += 1
        if due < 0:
            return None
        self._late.pop(due)
        return int((self._held.pop(due) | (returned & again)).sum()) >= self.n - self._s
