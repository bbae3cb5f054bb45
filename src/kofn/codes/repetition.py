"""Repetition codes for sums: every part lies on c workers (gradient coding).

Fractional repetition: the workers form n/c groups; the c workers of a group all hold the same
parts. Cyclic repetition: worker i holds the parts i, i+1, …, i+c-1 of n. Either gives the exact sum
whichever c-1 workers are missing, and something near it when more are (ErasureHead).

`stream="parts"`: each term is said by itself as soon as it is there, so that what a straggler has
half done counts; holders of the same parts begin at different ones. `stream="whole"`: one sum a
worker, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..errors import BadInput
from .assignment import Assignment, Row, SumCode
from .linear import Decoder, EliminationDecoder, Floats, Weights

Stream = Literal["parts", "whole"]


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

    def _weights(self) -> Weights:
        used = self.arrived
        eta = float(np.sqrt(len(used) / max(1, self.k)))
        return Weights(used, np.ones((1, len(used))), eta, "sum")


@dataclass(frozen=True)
class _Repeated(Assignment):
    c: int
    stream: Stream
    name: str

    @property
    def k(self) -> int:
        return self.n - self.c + 1

    @property
    def copies(self) -> int:
        return self.c

    def _walk(self, parts: Sequence[int], turn: int) -> Sequence[Row]:
        """One symbol for all, or one for each, beginning at a `turn`-th of c."""
        if self.stream == "whole" or len(parts) == 1:
            return (Row(tuple(parts)),)
        start = turn * len(parts) // self.c
        return tuple(Row((part,)) for part in [*parts[start:], *parts[:start]])


@dataclass(frozen=True)
class _Fractional(_Repeated):
    @property
    def disjoint(self) -> bool:
        return True

    def decoder(self) -> CoverageDecoder:
        return CoverageDecoder(self.m, self.name)

    def symbols(self, slot: int) -> Sequence[Row]:
        return self._symbols[slot]

    @cached_property
    def _symbols(self) -> tuple[Sequence[Row], ...]:
        groups = _cut(self.m, self.n // self.c)
        pairs = (divmod(slot, self.c) for slot in range(self.n))
        return tuple(self._walk(groups[group], turn) for group, turn in pairs)


@dataclass(frozen=True)
class _Cyclic(_Repeated):
    random: bool

    @property
    def disjoint(self) -> bool:
        return self.stream == "parts"

    def decoder(self) -> Decoder:
        if self.stream == "parts":
            return CoverageDecoder(self.m, self.name)
        return EliminationDecoder(self.m, "sum", self.name)

    def symbols(self, slot: int) -> Sequence[Row]:
        return self._symbols[slot]

    @cached_property
    def _symbols(self) -> tuple[Sequence[Row], ...]:
        pieces = _cut(self.m, self.n)
        found: list[Sequence[Row]] = []
        for slot in range(self.n):
            held = [(slot + i) % self.n for i in range(self.c)]
            if not self.random:
                found.append(self._walk([part for i in held for part in pieces[i]], 0))
                continue
            row = _tandon(self.n, self.c)[slot]
            parts = tuple(part for i in held for part in pieces[i])
            found.append((Row(parts, tuple(float(row[i]) for i in held for _ in pieces[i])),))
        return tuple(found)


@dataclass(frozen=True)
class FractionalRepetition(SumCode):
    """Each part on c workers, in n/c groups that hold the same parts. c must divide the workers.

    Exact from any n-c+1 workers, and whenever one of every group is there.
    """

    c: int = 2
    stream: Stream = "parts"

    def assign(self, m: int, n: int) -> Assignment:
        _check(self.c, self.stream, m, n)
        if n % self.c:
            raise BadInput(
                f"fractional repetition needs c to divide the number of workers; got c={self.c} "
                f"and {n} workers. Use {_divisors(n)}, or CyclicRepetition(c={self.c})."
            )
        if m < n:
            raise BadInput(
                f"fractional repetition needs a part for each of the {n} workers; got {m} parts. "
                f"Cut the data into {n} parts or more, or connect fewer workers."
            )
        return _Fractional(m, n, self.c, self.stream, repr(self))


@dataclass(frozen=True)
class CyclicRepetition(SumCode):
    """Worker i holds c of n pieces, beginning with its own. Exact from any n-c+1 workers.

    Said part by part, any c will do. Said whole (`stream="whole"`), all-ones rows need c to divide
    n; `coefficients="random"` does not (Tandon et al., for comparison: it loses digits).
    """

    c: int = 2
    stream: Stream = "parts"
    coefficients: Literal["ones", "random"] = "ones"

    def assign(self, m: int, n: int) -> Assignment:
        _check(self.c, self.stream, m, n)
        if self.coefficients not in ("ones", "random"):
            raise BadInput(f"coefficients must be 'ones' or 'random'; got {self.coefficients!r}.")
        random = self.coefficients == "random"
        if m < n:
            raise BadInput(
                f"cyclic repetition needs a part for each of the {n} workers; got {m} parts. Cut "
                f"the data into {n} parts or more."
            )
        if random and self.stream != "whole":
            raise BadInput(
                "random coefficients mix a worker's parts, so they cannot be said one by one; got "
                "stream='parts'. Use CyclicRepetition(..., stream='whole', coefficients='random')."
            )
        if self.stream == "whole" and not random and n % self.c:
            raise BadInput(
                f"cyclic repetition said whole is exact only where c divides the number of "
                f"workers; got c={self.c} and {n} workers. Use {_divisors(n)}, or stream='parts'."
            )
        return _Cyclic(m, n, self.c, self.stream, repr(self), random)


@dataclass(frozen=True)
class Uncoded(SumCode):
    """Each part on one worker: every worker is needed for the exact sum."""

    stream: Stream = "parts"

    def assign(self, m: int, n: int) -> Assignment:
        _check(1, self.stream, m, n)
        if m < n:
            raise BadInput(
                f"every worker needs a part; got {m} parts and {n} workers. Cut the data into {n} "
                f"parts or more, or connect fewer workers."
            )
        return _Fractional(m, n, 1, self.stream, repr(self))


def _check(c: object, stream: object, m: int, n: int) -> None:
    if isinstance(c, bool) or not isinstance(c, int) or not 1 <= c <= n:
        raise BadInput(
            f"c is how many of the {n} workers hold a part: a whole number from 1 to {n}; got "
            f"{c!r}."
        )
    if stream not in ("parts", "whole"):
        raise BadInput(f"stream must be 'parts' or 'whole'; got {stream!r}.")
    if m < 1:
        raise BadInput(f"a sum needs at least one part; got {m}.")


def _divisors(n: int) -> str:
    found = [c for c in range(1, n + 1) if n % c == 0]
    return "c=" + " or ".join(map(str, found))


def _cut(m: int, pieces: int) -> list[list[int]]:
    """The numbers below m in so many runs of nearly equal length."""
    edges = [j * m // pieces for j in range(pieces + 1)]
    return [list(range(a, b)) for a, b in pairwise(edges)]


@lru_cache(maxsize=8)
def _tandon(n: int, c: int) -> Floats:
    """Rows supported on c consecutive columns, any n-c+1 of which span the all-ones row.

    Gradient coding's Algorithm 2: all rows lie in the null space of a random (c-1, n) matrix whose
    rows sum to zero, which contains the all-ones row.
    """
    rng = np.random.default_rng((n, c))
    H = rng.standard_normal((c - 1, n))
    H[:, -1] = -H[:, :-1].sum(axis=1)
    B = np.zeros((n, n))
    for i in range(n):
        rest = [(i + j) % n for j in range(1, c)]
        B[i, i] = 1.0
        if rest:
            B[i, rest] = np.linalg.solve(H[:, rest], -H[:, i])
    B.flags.writeable = False
    return B
