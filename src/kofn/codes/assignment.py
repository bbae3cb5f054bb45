"""Codes for sums of parts: who evaluates which parts, in which order, and what decodes.

The source values are the m terms fn(partᵢ, x); their sum is wanted. A worker takes one of n slots
and evaluates the slot's symbols in order. A symbol is a combination of terms: a `Row` names its
parts and, unless all are one, their coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from ..errors import BadInput
from .linear import Decoder, EliminationDecoder, Weights
from .linear import Row as Row


@dataclass(frozen=True)
class Assignment(ABC):
    """m parts on n slots. The i-th symbol of a slot has the key i * n + slot."""

    m: int
    n: int

    @property
    @abstractmethod
    def k(self) -> int:
        """Fewest slots such that any so many of them, done, give the sum; n if none fewer do."""

    @abstractmethod
    def symbols(self, slot: int) -> Sequence[Row]:
        """The rows of a slot's symbols, in the order in which they are evaluated."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A fresh decoder of the sum: it is offered rows under their keys."""

    @property
    def needs(self) -> int:
        """Symbols that are enough for the sum, in nearly all cases at least."""
        return self.m

    @property
    def disjoint(self) -> bool:
        """Whether any two rows are all ones and either equal or without a part in common.

        Then the sum of what has come is known at once, and decoding is counting parts.
        """
        return False

    @property
    def copies(self) -> int | None:
        """How many slots add a part, once each, where all parts have as many; else None."""
        return None

    def row(self, key: int) -> Row:
        """The row of a symbol by its key."""
        i, slot = divmod(key, self.n)
        return self.symbols(slot)[i]

    def parts(self, slot: int) -> tuple[int, ...]:
        """The parts that a slot's holder needs."""
        return tuple(sorted({part for row in self.symbols(slot) for part in row.parts}))


def uncovered(n: int, c: int, r: int) -> float:
    """The probability that none of a part's c holders is among r of n workers, all alike likely."""
    return comb(n - c, r) / comb(n, r) if 0 <= r <= n else 0.0


_NO_ROW = np.empty(0)  # a decoder that counts parts has no use for their coefficients


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
        self._rows[key] = _NO_ROW
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


@dataclass(frozen=True)
class Listed(Assignment):
    """An assignment written out: `rows[slot]` has the rows of a slot's symbols, in order.

    `threshold` is its k. The decoder counts parts where rows are disjoint; else it eliminates.
    """

    rows: tuple[tuple[Row, ...], ...]
    threshold: int
    name: str = "this code"

    @property
    def k(self) -> int:
        return self.threshold

    def symbols(self, slot: int) -> Sequence[Row]:
        return self.rows[slot]

    def decoder(self) -> Decoder:
        if self.disjoint:
            return CoverageDecoder(self.m, self.name)
        return EliminationDecoder(self.m, "sum", self.name)

    @cached_property
    def disjoint(self) -> bool:
        distinct = {id(row): row for rows in self.rows for row in rows}.values()
        if any(row.coefficients is not None for row in distinct):
            return False
        each = {row.parts for row in distinct}
        return sum(map(len, each)) == len({part for parts in each for part in parts})

    @cached_property
    def copies(self) -> int | None:
        count: Counter[int] = Counter()
        for rows in self.rows:
            once = {part for row in rows for part in row.parts}
            if len(once) < sum(len(row.parts) for row in rows):
                return None
            count.update(once)
        every = {count[part] for part in range(self.m)}
        return every.pop() if len(every) == 1 else None


class SumCode(ABC):
    """A code by its parameters alone, before the numbers of parts and workers are known."""

    def __init_subclass__(cls) -> None:
        if callable(getattr(cls, "decoder", None)):
            raise BadInput(
                f"the assignment of a sum decodes it, not its code; {cls.__name__} has decoder(). "
                f"Move it to the class of what assign() returns: a subclass of kofn.codes.Listed."
            )

    @abstractmethod
    def assign(self, m: int, n: int) -> Assignment:
        """The assignment of m parts to n slots. Raises BadInput where there is none."""
