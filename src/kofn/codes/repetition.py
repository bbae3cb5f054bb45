"""Repetition codes for sums: every part lies on c workers (gradient coding, Tandon et al., 2017).

Fractional repetition: the workers form n/c groups; the c workers of a group all hold the same
parts. Cyclic repetition: worker i holds the parts i, i+1, …, i+c-1 of n. Either gives the exact sum
whichever c-1 workers are missing, and something near it when more are (ErasureHead, Wang et al.,
2019).

`stream="parts"`: a worker sends each term as soon as it is there, so that what a straggler has
half done counts; holders of the same parts begin at different ones. `stream="whole"`: a worker
sends one sum, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from ..checks import one_of, whole, whole_fields
from ..errors import BadInput
from .assignment import Assignment, Listed, Row, SumCode
from .linear import Floats

Stream = Literal["parts", "whole"]


@dataclass(frozen=True)
class FractionalRepetition(SumCode):
    """Each part on c workers, in n/c groups that hold the same parts. c must divide the workers.

    There may be fewer parts than workers, down to one a group. Exact from any n-c+1 workers, and
    whenever one of every group is there.
    """

    c: int = 2
    stream: Stream = "parts"

    def __post_init__(self) -> None:
        whole_fields(self, c=1)
        one_of(self.stream, "stream", get_args(Stream))

    def assign(self, m: int, n: int) -> Assignment:
        _check("fractional repetition", self.c, m, n, -(-n // self.c))
        if n % self.c:
            raise BadInput(
                f"fractional repetition needs c to divide the number of workers; got c={self.c} "
                f"and {n} workers. Use {_divisors(n)}, or CyclicRepetition(c={self.c})."
            )
        return _fractional(m, n, self.c, self.stream, repr(self))


@dataclass(frozen=True)
class CyclicRepetition(SumCode):
    """Worker i holds c of n pieces, beginning with its own. Exact from any n-c+1 workers.

    Sent part by part, any c will do. Sent whole (`stream="whole"`), all-ones rows need c to divide
    n; `coefficients="random"` does not (Tandon et al., 2017; for comparison: it loses digits).
    """

    c: int = 2
    stream: Stream = "parts"
    coefficients: Literal["ones", "random"] = "ones"

    def __post_init__(self) -> None:
        whole_fields(self, c=1)
        one_of(self.stream, "stream", get_args(Stream))
        one_of(self.coefficients, "coefficients", ("ones", "random"))

    def assign(self, m: int, n: int) -> Assignment:
        _check("cyclic repetition", self.c, m, n)
        random = self.coefficients == "random"
        if random and self.stream != "whole":
            raise BadInput(
                "random coefficients mix a worker's parts, so they cannot be sent one by one; got "
                "stream='parts'. Use CyclicRepetition(..., stream='whole', coefficients='random')."
            )
        if self.stream == "whole" and not random and n % self.c:
            raise BadInput(
                f"cyclic repetition sent whole is exact only where c divides the number of "
                f"workers; got c={self.c} and {n} workers. Use {_divisors(n)}, or stream='parts'."
            )
        pieces = _cut(m, n)
        rows: list[tuple[Row, ...]] = []
        for slot in range(n):
            held = [(slot + i) % n for i in range(self.c)]
            parts = tuple(part for i in held for part in pieces[i])
            if random:
                weight = _tandon(n, self.c)[slot]
                rows.append((Row(parts, tuple(float(weight[i]) for i in held for _ in pieces[i])),))
            elif self.stream == "whole":
                rows.append(_symbols(parts, "whole"))
            else:
                rows.append(_symbols(_in_turn([pieces[i] for i in held]), "parts"))
        return Listed(m, n, tuple(rows), n - self.c + 1, repr(self))


@dataclass(frozen=True)
class Uncoded(SumCode):
    """Each part on one worker: every worker is needed for the exact sum."""

    stream: Stream = "parts"

    def __post_init__(self) -> None:
        one_of(self.stream, "stream", get_args(Stream))

    def assign(self, m: int, n: int) -> Assignment:
        _check("a sum without a code", 1, m, n)
        return _fractional(m, n, 1, self.stream, repr(self))


def _fractional(m: int, n: int, c: int, stream: Stream, name: str) -> Listed:
    groups = _cut(m, n // c)
    rows = []
    for slot in range(n):
        group, turn = divmod(slot, c)
        pieces = [groups[group]]
        if stream == "parts":
            cut = [[groups[group][i] for i in piece] for piece in _cut(len(groups[group]), c)]
            pieces = [*cut[turn:], *cut[:turn]]
        rows.append(_symbols(_in_turn(pieces), stream))
    return Listed(m, n, tuple(rows), n - c + 1, name)


def _in_turn(pieces: Sequence[list[int]]) -> list[int]:
    """One piece after the other, every second one from its end on.

    So the holders of a piece, who come to it at different times, meet in its middle.
    """
    return [part for i, piece in enumerate(pieces) for part in piece[:: -1 if i % 2 else 1]]


def _symbols(parts: Sequence[int], stream: Stream) -> tuple[Row, ...]:
    """One symbol for all parts, or one for each."""
    return (Row(tuple(parts)),) if stream == "whole" else tuple(Row((part,)) for part in parts)


def _check(kind: str, c: int, m: int, n: int, least: int | None = None) -> None:
    whole(c, f"c, how many of the {n} workers hold a part,", 1, n)
    least = n if least is None else least
    if m < least:
        whom = f"{least} groups of {c} workers" if least < n else f"{n} workers"
        raise BadInput(
            f"{kind} needs a part for each of the {whom}; got {m} parts. Cut the data into "
            f"{least} parts or more, or connect fewer workers."
        )


def _divisors(n: int) -> str:
    return "c=" + " or ".join(str(c) for c in range(1, n + 1) if n % c == 0)


def _cut(m: int, pieces: int) -> list[list[int]]:
    """The numbers below m in so many runs of nearly equal length."""
    return [list(range(j * m // pieces, (j + 1) * m // pieces)) for j in range(pieces)]


@lru_cache(maxsize=8)
def _tandon(n: int, c: int) -> Floats:
    """Rows supported on c consecutive columns, any n-c+1 of which span the all-ones row.

    Algorithm 2 of Tandon et al., 2017: all rows lie in the null space of a random (c-1, n) matrix
    whose rows sum to zero, which contains the all-ones row.
    """
    H = np.random.default_rng((n, c)).standard_normal((c - 1, n))
    H[:, -1] = -H[:, :-1].sum(axis=1)
    B = np.zeros((n, n))
    for i in range(n):
        rest = [(i + j) % n for j in range(1, c)]
        B[i, i] = 1.0
        B[i, rest] = np.linalg.solve(H[:, rest], -H[:, i])
    B.flags.writeable = False
    return B
