"""Stragglers in bursts, and the books of codes that are made for them.

A gradient may be ready some rounds after its own, so a training loop runs several models in turn.
Gradient t is begun in round t, and due in round t + delay. A straggler's work of a round is lost.
Books hold what workers do in a round and which results are there; they know no times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import whole_fields
from ..errors import BadInput
from .base import Floats, Mask

Ints = NDArray[np.intp]


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

    def conforms(self, pattern: Mask) -> bool:
        """Whether stragglers (rounds, workers) are as this says."""
        late = pattern.astype(np.float64)
        return not any(self.until(pattern[:r], row) > 0 for r, row in enumerate(late))


class Books(ABC):
    """Which results of which gradients are there. One round after the other is finished."""

    def __init__(self, n: int, delay: int) -> None:
        self.n, self.round = n, 0
        self._delay = delay

    def finish(self, returned: Mask) -> bool | None:
        """End a round in which these workers have returned all they were given.

        Returns whether the gradient that is due is there, None where none is due yet.
        """
        self._take(returned)
        due, self.round = self.round - self._delay, self.round + 1
        return None if due < 0 else self._close(due)

    @abstractmethod
    def _take(self, returned: Mask) -> None: ...

    @abstractmethod
    def _close(self, due: int) -> bool: ...


class RepeatBooks(Books):
    """Of SR-SGC: any n - s results of a gradient are enough; what lacks after B rounds is repeated.

    Just as many repeat it as are lacking, first those that straggled in its own round.
    """

    def __init__(self, n: int, B: int, s: int) -> None:
        super().__init__(n, B)
        self._s = s
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

    def held(self, gradient: int) -> Mask:
        """Whose results of a gradient are there."""
        return self._held[gradient]

    def _take(self, returned: Mask) -> None:
        again, due = self.repeating(), self.round - self._delay
        self._held[self.round] = returned & ~again
        self._late[self.round] = ~returned
        if due >= 0:
            self._held[due] = self._held[due] | (returned & again)

    def _close(self, due: int) -> bool:
        self._late.pop(due)
        self._held.pop(due - 1, None)  # the last one can still be looked at
        return int(self._held[due].sum()) >= self.n - self._s


class MultiplexBooks(Books):
    """Of M-SGC: each gradient has W - 1 + B mini-tasks for each worker, one in each round.

    The first W - 1 are the worker's own parts, which nobody else has. Each of the last B is one of
    the own parts that is lacking, if any is; else a coded result of a group of parts that all
    workers have, of which any n - lam are enough.
    """

    def __init__(self, n: int, B: int, W: int, lam: int) -> None:
        super().__init__(n, W - 2 + B)
        self._parts, self._groups, self._lam = W - 1, B, lam
        self._own: dict[int, Mask] = {}  # gradient -> (n, W - 1)
        self._coded: dict[int, Mask] = {}  # gradient -> (n, B)

    def mini_tasks(self) -> dict[int, Ints]:
        """For each gradient at work, what each worker does for it in this round.

        Below W - 1 it is that own part; from W - 1 on a group, the first of which is W - 1.
        """
        tasks = {}
        for gradient in range(max(0, self.round - self._delay), self.round + 1):
            slot = self.round - gradient
            task = np.full(self.n, slot, dtype=np.intp)
            if slot >= self._parts:
                own = self._own[gradient]
                task = np.where(own.all(axis=1), slot, own.argmin(axis=1))
            tasks[gradient] = task
        return tasks

    def results(self, gradient: int) -> tuple[Mask, Mask]:
        """Which own parts, (n, W - 1), and which coded results, (n, B), are there."""
        return self._own[gradient], self._coded[gradient]

    def _take(self, returned: Mask) -> None:
        self._own[self.round] = np.zeros((self.n, self._parts), dtype=bool)
        self._coded[self.round] = np.zeros((self.n, self._groups), dtype=bool)
        for gradient, task in self.mini_tasks().items():
            own = returned & (task < self._parts)
            self._own[gradient][own, task[own]] = True
            coded = returned & ~own
            self._coded[gradient][coded, task[coded] - self._parts] = True

    def _close(self, due: int) -> bool:
        self._own.pop(due - 1, None)  # the last one can still be looked at
        self._coded.pop(due - 1, None)
        enough = self._coded[due].sum(axis=0) >= self.n - self._lam
        return bool(self._own[due].all() and enough.all())
