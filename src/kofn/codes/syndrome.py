"""Replies beyond the threshold say whether all are right, and which are not.

Replies Y (m, ...) with coefficient rows G (m, k), m > k, should be G B for some blocks B. Let H
(r, m), r = m − k, have orthonormal rows with H G = 0. The syndrome S = H Y then is zero, whatever
B is, and an error e of reply j adds h_j e to it, h_j being column j of H. So one reply too many
shows an error; with two too many, the direction of S says whose it is.

Rows and replies are divided by the lengths of the rows first: what a reply is off by rounding grows
with its row, so that after this all are off by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .linear import Floats

MOST_SETS = 5000  # of suspects that are tried, as many at a time as r allows


class Verdict(NamedTuple):
    """Which replies are wrong, by their places; and which columns nobody can be blamed for."""

    guilty: tuple[int, ...]
    doubtful: NDArray[np.intp]


class Syndrome:
    """The checks that replies with these coefficient rows (m, k), m > k, must pass."""

    def __init__(self, rows: Floats) -> None:
        self.lengths: Floats = np.linalg.norm(rows, axis=1)
        k = rows.shape[1]
        q, _ = np.linalg.qr(rows / self.lengths[:, None], mode="complete")
        self.H: Floats = q[:, k:].T

    @property
    def spare(self) -> int:
        """r: how many replies there are beyond the threshold."""
        return len(self.H)

    @cached_property
    def sight(self) -> float:
        """The least fraction of an error of one reply that shows which reply is wrong.

        With r = 1 it only shows that one is: the smallest |h_j|. Else the smallest distance of an
        h_j from the line of another: that much of S no error of the other reply can explain.
        """
        sizes = np.linalg.norm(self.H, axis=0)
        if self.spare == 1:
            return float(sizes.min())
        across = self.H.T @ self.H / np.maximum(sizes, np.finfo(float).tiny)  # on the line of each
        apart = np.maximum(sizes[:, None] ** 2 - across**2, 0.0)
        np.fill_diagonal(apart, np.inf)
        return float(np.sqrt(apart.min()))

    def of(self, replies: NDArray[np.floating]) -> Floats:
        """S for replies (m, c), which are divided by the lengths of their rows here."""
        syndromes: Floats = (self.H / self.lengths) @ replies
        return syndromes

    def limit(self, replies: NDArray[np.floating], noise: Floats) -> Floats:
        """How long S may be, (c,), where each reply is off by at most `noise` (c,).

        |S| ≤ |e| ≤ √m · noise, because the rows of H are orthonormal. S itself is a sum of m terms
        here, rounded: m u |Y| more, twice, because H and the lengths are rounded, too. A wrong
        reply raises that, but by some u of its error only.
        """
        m = len(replies)
        sizes = np.abs(replies / self.lengths[:, None]).sum(axis=0)  # squares might overflow
        limits: Floats = np.sqrt(m) * noise + 2 * m * np.finfo(np.float64).eps * sizes
        return limits

    def judge(self, replies: NDArray[np.floating], noise: Floats) -> Verdict | None:
        """None where replies (m, c) agree but for rounding of at most `noise` (c,) each."""
        with np.errstate(over="ignore", invalid="ignore"):
            S, limit = self.of(replies), self.limit(replies, noise)
            limit = np.maximum(limit, np.finfo(np.float64).tiny)
            # Divided first: squares of right numbers must not overflow, either.
            alarm = np.flatnonzero(np.linalg.norm(S / limit, axis=0) > 1)
        if not len(alarm):
            return None
        # Squares of what is left must not overflow, however wrong a reply is.
        scale = np.abs(S[:, alarm]).max(axis=0)
        guilty, left = self._blame(S[:, alarm] / scale, limit[alarm] / scale)
        return Verdict(guilty, alarm[left])

    def _blame(self, S: Floats, limit: Floats) -> tuple[tuple[int, ...], NDArray[np.intp]]:
        """The fewest replies that explain all columns of S; and which columns nobody explains."""
        every = np.arange(S.shape[1])
        if self.spare < 2:
            return (), every
        m = self.H.shape[1]
        left = np.array([self._left(S, (j,)) <= limit for j in range(m)])  # (m, columns)
        alone = np.flatnonzero(left.all(axis=1))
        if len(alone):
            return ((int(alone[0]),), every[:0]) if len(alone) == 1 else ((), every)
        # Columns that are clearly one's own: several replies are wrong, in different rows.
        clear = left.sum(axis=0) == 1
        if clear.any():
            return tuple(np.flatnonzero(left[:, clear].any(axis=1)).tolist()), every[~clear]
        for count in range(2, self.spare):
            sets = list(combinations(range(m), count))
            if len(sets) > MOST_SETS:
                break
            fitting = [J for J in sets if (self._left(S, J) <= limit).all()]
            if fitting:
                return (fitting[0], every[:0]) if len(fitting) == 1 else ((), every)
        return (), every

    def _left(self, S: Floats, suspects: Sequence[int]) -> Floats:
        """How much of each column of S these replies cannot explain."""
        q, _ = np.linalg.qr(self.H[:, list(suspects)])
        return np.asarray(np.linalg.norm(S - q @ (q.T @ S), axis=0))
