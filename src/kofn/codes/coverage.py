"""Decoding by counting: rows of ones that are equal or have no part in common."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from .linear import Decoder, Row, Weights


def uncovered(n: int, c: int, r: int) -> float:
    """The probability that none of a part's c holders is among r of n workers, all alike likely."""
    return comb(n - c, r) / comb(n, r) if 0 <= r <= n else 0.0


class CoverageDecoder(Decoder):
    """For rows of ones that are equal or disjoint: the sum is there when every part is covered.

    O(parts of the row) per row. `covered` says which parts are there, whatever the code.
    """

    def __init__(self, m: int, name: str = "this code") -> None:
        super().__init__(m, name)
        self.covered = np.zeros(m, dtype=bool)
        self.left = m

    @property
    def ready(self) -> bool:
        return self.left == 0

    @property
    def reached(self) -> float:
        return (self.k - self.left) / self.k

    def offer(self, key: int, row: Row | ArrayLike) -> bool:
        parts = row.parts if isinstance(row, Row) else np.flatnonzero(np.asarray(row)).tolist()
        self.add(key, parts)
        return self.ready

    def add(self, key: int, parts: Sequence[int]) -> bool:
        """Take a symbol; whether it is new, so that its value belongs in the sum."""
        if key in self._rows or self.covered[parts[0]]:
            return False
        self._rows[key] = np.empty(0)
        for part in parts:
            self.covered[part] = True
        self.left -= len(parts)
        return True

    def _need(self) -> int:
        return len(self._rows) + 1

    def find_weights(self) -> Weights:
        used = self.arrived
        eta = float(np.sqrt(len(used) / max(1, self.k)))
        return Weights(used, np.ones((1, len(used))), eta, "sum")
