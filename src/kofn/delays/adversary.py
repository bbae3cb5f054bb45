"""Patterns with at most N stragglers in any W consecutive rounds: all, random, and worst ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
from numpy.random import Generator

from .stragglers import Pattern


def conforms(pattern: Pattern, N: int, W: int, burst: int | None = None) -> bool:
    """Whether no W consecutive rounds hold more than N stragglers, and no worker a longer burst."""
    counts = np.concatenate([[0], np.cumsum(pattern.sum(axis=1))])
    width = min(W, len(pattern))
    if width and (counts[width:] - counts[:-width]).max() > N:
        return False
    if burst is None or burst >= len(pattern):
        return True
    runs = np.lib.stride_tricks.sliding_window_view(pattern, burst + 1, axis=0)
    return not runs.all(axis=2).any()


def every(rounds: int, workers: int, N: int, W: int) -> Iterator[Pattern]:
    """Yield every conforming pattern: exponentially many."""
    sets = [
        frozenset(chosen)
        for size in range(workers + 1)
        for chosen in combinations(range(workers), size)
    ]
    rows: list[frozenset[int]] = []

    def extend() -> Iterator[Pattern]:
        if len(rows) == rounds:
            pattern = np.zeros((rounds, workers), dtype=bool)
            for t, row in enumerate(rows):
                pattern[t, list(row)] = True
            yield pattern
            return
        room = N - sum(map(len, rows[max(0, len(rows) - W + 1) :])) if W > 1 else N
        for row in sets:
            if len(row) <= room:
                rows.append(row)
                yield from extend()
                rows.pop()

    return extend()


def random(rng: Generator, rounds: int, workers: int, N: int, W: int) -> Pattern:
    """Draw a conforming pattern that nothing can be added to: in random order, what still fits."""
    pattern = np.zeros((rounds, workers), dtype=bool)
    for place in rng.permutation(rounds * workers).tolist():
        t, worker = divmod(place, workers)
        pattern[t, worker] = True
        if not _fits(pattern, t, N, W):
            pattern[t, worker] = False
    return pattern


def worst(
    rng: Generator, start: Pattern, N: int, W: int, badness: Callable[[Pattern], float], steps: int
) -> tuple[Pattern, float]:
    """Search conforming patterns for one of large `badness`; return it and its badness.

    Hill climbing from `start`: a straggler is moved to another place, others in the way make room.
    """
    best, most = start.copy(), badness(start)
    rounds, workers = best.shape
    for _ in range(steps):
        trial = best.copy()
        there = np.argwhere(trial)
        if len(there):
            trial[tuple(there[rng.integers(len(there))])] = False
        t = int(rng.integers(rounds))
        trial[t, rng.integers(workers)] = True
        while not _fits(trial, t, N, W):
            first = max(0, t - W + 1)
            near = np.argwhere(trial[first : t + W])
            row, worker = near[rng.integers(len(near))].tolist()
            trial[first + row, worker] = False
        value = badness(trial)
        if value >= most:
            best, most = trial, value
    return best, most


def _fits(pattern: Pattern, t: int, N: int, W: int) -> bool:
    """Whether all windows that hold round t conform."""
    return conforms(pattern[max(0, t - W + 1) : t + W], N, W)
