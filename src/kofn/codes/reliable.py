"""Fractional repetition for workers of unequal reliability, and the weights that suit them.

Worker j is missing in a round with probability pⱼ, independently. Workers of a group hold the same
parts. Groups are made so that the chance that all of a group are missing is about equal: reliable
workers are paired with unreliable ones. The sum of a group is divided by the chance that one of its
workers replies, 1 − Πp: the mean over many rounds is then the exact sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, prod

import numpy as np

from ..checks import number, whole_fields
from ..errors import BadInput
from .assignment import Assignment, Listed, Row, SumCode
from .linear import Decoder, EliminationDecoder, Weights, amplification

LEAST = 0.01  # of a chance: a worker that was never missing may yet be


@dataclass(frozen=True)
class ReliableRepetition(SumCode):
    """Each part on c workers, grouped by `missing`: how often each worker, by slot, is not there.

    Chances below 0.01 count as 0.01. With weights="unbiased" each group is divided by its own
    chance to be covered.
    """

    missing: tuple[float, ...]
    c: int = 2

    def __post_init__(self) -> None:
        whole_fields(self, c=1)
        for chance in self.missing:
            number(chance, "the chance that a worker is missing", "in [0, 1)")
        object.__setattr__(self, "missing", tuple(max(LEAST, float(p)) for p in self.missing))

    def assign(self, m: int, n: int) -> Assignment:
        if n != len(self.missing) or n % self.c or m < n // self.c:
            raise BadInput(
                f"reliable repetition needs a chance for each of the {n} workers, c to divide "
                f"{n}, and a part for each group; got {len(self.missing)} chances, c={self.c} and "
                f"{m} parts."
            )
        groups = grouped(self.missing, self.c)
        cut = [range(j * m // len(groups), (j + 1) * m // len(groups)) for j in range(len(groups))]
        rows: list[tuple[Row, ...]] = [()] * n
        chance = [0.0] * n
        for parts, group in zip(cut, groups, strict=True):
            for slot in group:
                rows[slot] = (Row(tuple(parts)),)
                chance[slot] = 1 - prod(self.missing[other] for other in group)
        return _Reliable(m, n, tuple(rows), n - self.c + 1, repr(self), tuple(chance))


@dataclass(frozen=True)
class _Reliable(Listed):
    chance: tuple[float, ...] = ()  # by slot: that somebody of its group replies

    def decoder(self) -> Decoder:
        return ReliableDecoder(self)


class ReliableDecoder(EliminationDecoder):
    """The first reply of each group counts, by the chance that there is one."""

    def __init__(self, code: _Reliable) -> None:
        super().__init__(code.m, "sum", code.name)
        self._code = code

    def nearest(self, kind: str) -> Weights | None:
        code, seen, row = self._code, set[int](), []
        for key in self.arrived:
            first = code.row(key).parts[0]
            by = code.chance[key % code.n] if kind == "unbiased" else 1.0
            row.append(0.0 if first in seen else 1.0 / by)
            seen.add(first)
        matrix = np.array([row])
        return Weights(self.arrived, matrix, amplification(self.rows, matrix), "sum")


def grouped(missing: Sequence[float], c: int) -> list[tuple[int, ...]]:
    """Slots in groups of c whose products of `missing` are about equal.

    The least reliable first, each to the group that is the most reliable so far and has room.
    """
    groups: list[list[int]] = [[] for _ in range(len(missing) // c)]
    total = [0.0] * len(groups)
    for slot in sorted(range(len(missing)), key=lambda slot: -missing[slot]):
        room = [j for j, group in enumerate(groups) if len(group) < c]
        # The smallest first, so that sizes stay alike; of these the most reliable so far.
        at = min(room, key=lambda j: (len(groups[j]), total[j]))
        groups[at].append(slot)
        total[at] += log(max(LEAST, missing[slot]))
    return [tuple(sorted(group)) for group in groups]
