"""Degrees and neighbours of LT codes: how many source values a symbol adds up, and which.

Symbols come packed in a `Table`: the neighbours of symbol i are `where[start[i]:start[i + 1]]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import BadInput
from .linear import Floats

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of ones over k columns, end to end: row i has its ones at where[start[i]:start[i+1]]."""

    k: int
    where: Ints
    start: Ints

    @classmethod
    def of(cls, k: int, rows: Sequence[Iterable[int]]) -> Table:
        """The table of rows given one by one."""
        lists = [list(row) for row in rows]
        where = np.array([i for row in lists for i in row], np.intp)
        return cls(k, where, _starts(np.array([len(row) for row in lists], np.intp)))

    def __len__(self) -> int:
        return len(self.start) - 1

    @cached_property
    def rows(self) -> list[list[int]]:
        """The same as lists, for loops over few entries at a time."""
        where, start = self.where.tolist(), self.start.tolist()
        return [where[a:b] for a, b in pairwise(start)]

    def gather(self, rows: Sequence[int]) -> tuple[Ints, Ints]:
        """The entries of these rows, end to end, and where each row of them begins."""
        first = self.start[rows]
        start = _starts(self.start[np.asarray(rows, np.intp) + 1] - first)
        at = np.arange(start[-1]) + np.repeat(first - start[:-1], np.diff(start))
        return self.where[at], start


@lru_cache(maxsize=64)
def robust_soliton(k: int, c: float = 0.03, delta: float = 0.5) -> Floats:
    """Luby's robust soliton over k source values: p[d-1] is the probability of degree d.

    R = c ln(k/δ) √k, the spike at round(k/R). Mallick et al., 2021 give neither c nor δ; (0.03,
    0.5) is what comes nearest to the numbers of symbols that they report.
    """
    if not 0 < delta < 1 or not c > 0:
        raise BadInput(
            f"the robust soliton takes c > 0 and 0 < delta < 1; got c={c!r}, delta={delta!r}."
        )
    d = np.arange(1.0, k + 1)
    p = np.concatenate([[1.0 / k], 1.0 / (d[1:] * (d[1:] - 1))])
    R = c * np.log(k / delta) * np.sqrt(k)
    spike = min(max(round(k / R), 1), k) if R > 0 else k
    p[: spike - 1] += R / (k * d[: spike - 1])
    p[spike - 1] += max(0.0, R * np.log(max(R, delta) / delta) / k)
    p /= p.sum()
    p.flags.writeable = False
    return p


def mean_degree(k: int) -> float:
    """The average degree of the robust soliton over k source values."""
    return float(robust_soliton(k) @ np.arange(1, k + 1))


def deal(k: int, degrees: Ints, rng: Generator) -> Table:
    """Neighbours from a shuffled deck: each symbol takes the next cards, the deck is never short.

    So every source value occurs equally often, give or take one. A symbol that takes the last
    cards of one deck leaves out, of the next, those that it has.
    """
    start = _starts(degrees)
    decks = -(-int(start[-1]) // k) + 1
    where = rng.permuted(np.tile(np.arange(k), (decks, 1)), axis=1).ravel()
    ends = np.arange(k, int(start[-1]), k)  # where a new deck begins
    for end, i in zip(ends, np.searchsorted(start, ends, side="right") - 1, strict=True):
        a, b = start[i], start[i + 1]
        if a < end < b:
            _keep_apart(where[a:end], where[end : end + k], b - end)
    return Table(k, where[: start[-1]], start)


def _keep_apart(held: Ints, deck: Ints, taken: int) -> None:
    """Order a fresh deck, in place, so that its first cards are none of those held."""
    known = np.isin(deck, held)
    if known[:taken].any():
        deck[:] = np.concatenate([deck[~known], deck[known]])
        # Those put off go anywhere among the rest, lest they all lie at the end.
        rest = deck[taken:]
        rest[:] = np.roll(rest, int(held[0]) % max(1, len(rest)))


def draw(k: int, degrees: Ints, rng: Generator) -> Table:
    """Neighbours drawn uniformly without repetition, symbol by symbol, as published."""
    start = _starts(degrees)
    where = rng.integers(0, k, int(start[-1]))
    owner = np.repeat(np.arange(len(degrees)), degrees)
    for i in np.flatnonzero(2 * degrees > k):  # drawing again would take long
        where[start[i] : start[i + 1]] = rng.permutation(k)[: degrees[i]]
    while True:
        name = owner * k + where
        order = np.argsort(name, kind="stable")
        again = order[1:][name[order[1:]] == name[order[:-1]]]
        if not len(again):
            return Table(k, where, start)
        where[again] = rng.integers(0, k, len(again))


def _starts(degrees: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(degrees)]).astype(np.intp)
