"""Raptor: a precode makes every term appear in three checks, and an LT code of low degree follows.

K groups of terms and S checks are K + S columns. Check c says that its groups and column K + c add
up to zero: so column K + c is minus the sum of the groups, and the S rows of the checks are known
to the decoder before any reply has come. Symbols add up a few of the K + S columns; a worker
evaluates what that is in terms of the groups. Every group is in three checks, so all columns
together are 1 - 3 = -2 times the sum that is wanted: any decoder of the all-ones row will do.

Shokrollahi, 2006; checks and degrees of RFC 5053, over the reals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..checks import whole
from ..errors import BadInput
from ..interrupts import imported
from .assignment import Assignment, SumCode
from .inactivation import InactivationDecoder
from .linear import Decoder, Floats, Row, Weights
from .rateless import TableAssignment
from .soliton import Table, deal

# Degrees of RFC 5053, section 5.4.4.2, and their chances; 4.6 on average.
DEGREES = np.array([1, 2, 3, 4, 10, 11, 40])
CHANCES = np.array([0.0098, 0.4590, 0.2110, 0.1134, 0.1113, 0.0799, 0.0156])
LEAST = 64  # groups; below that a plain LT code is as good


@dataclass(frozen=True)
class Raptor(SumCode):
    """LT over terms with a precode: hardly more symbols are needed than there are groups.

    r: terms in a group. systematic: the first symbols are the groups themselves. symbols: how many
    there are in all (default: four times the groups). Symbols that hold a check are long, some 50
    groups for m = 1000, so that a worker evaluates more terms for a symbol than with `LT`: it pays
    where symbols are dear to send and cheap to evaluate.
    """

    r: int = 1
    systematic: bool = False
    symbols: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.r, "r (terms in a group)", 1)
        whole(self.seed, "seed", 0)
        if self.symbols is not None:
            whole(self.symbols, "symbols (in all)", 1)

    def assign(self, m: int, n: int) -> Assignment:
        groups = -(-whole(m, "m (the number of terms)", 1) // self.r)
        if groups < LEAST:
            raise BadInput(
                f"a Raptor code needs {LEAST} groups at least: its checks would be as many as the "
                f"terms; got {m} terms in groups of {self.r}. Use kofn.LT, or a smaller r."
            )
        held = max(4 * groups, n) if self.symbols is None else self.symbols
        if held < groups:
            raise BadInput(
                f"a sum of {groups} groups takes {groups} symbols at least; got symbols={held}, "
                f"{groups - held} too few. Use symbols={2 * groups}, or a larger r."
            )
        return RaptorAssignment(m, n, self, -(-held // n))


@dataclass(frozen=True)
class RaptorAssignment(TableAssignment):
    """Raptor on n slots; the symbols come after the checks."""

    recipe: Raptor

    @property
    def needs(self) -> int:
        return self.groups + 10  # measured: 5 at most at 1000 groups

    @property
    def made(self) -> tuple[Table, Any]:
        """The table, checks first, and the symbols in terms of the groups (symbols, groups)."""
        return _made(self.groups, self.each * self.n, self.recipe)

    def _row(self, key: int) -> Row:
        every = self.made[1]
        a, b = every.indptr[key], every.indptr[key + 1]
        parts: list[int] = []
        values: list[float] = []
        for g, value in zip(every.indices[a:b].tolist(), every.data[a:b].tolist(), strict=True):
            terms = self._terms(g)
            parts.extend(terms)
            values.extend([value] * len(terms))
        return Row(tuple(parts), None if all(v == 1.0 for v in values) else tuple(values))

    def decoder(self) -> Decoder:
        table, every = self.made
        squares = np.asarray(every.multiply(every).sum(axis=1)).ravel()
        return RaptorDecoder(table, squares, repr(self.recipe))


class RaptorDecoder(InactivationDecoder):
    """Inactivation that knows the checks. `squares`: the squared length of each symbol's row."""

    def __init__(self, table: Table, squares: Floats, name: str = "this code") -> None:
        super().__init__(table, name)
        self._checks, self._squares = len(table) - len(squares), squares
        for check in range(self._checks):
            super().offer(check)

    @property
    def arrived(self) -> tuple[int, ...]:
        return tuple(key - self._checks for key in self._keys if key >= self._checks)

    def offer(self, key: int, row: object = None) -> bool:
        """Take symbol `key`, and return `ready`. A key seen before is ignored."""
        return super().offer(self._checks + key)

    def _need(self) -> int:
        return max(self.k - self._checks, len(self.arrived) + 1)

    def _weigh(self, weights: Mapping[int, float]) -> Weights:
        every = super()._weigh(weights)
        own = [i for i, key in enumerate(every.keys) if key >= self._checks]
        keys = tuple(every.keys[i] - self._checks for i in own)
        matrix = -0.5 * every.matrix[:, own]
        groups = self.k - self._checks
        eta = float(np.sqrt(matrix[0] ** 2 @ self._squares[list(keys)] / groups))
        return Weights(keys, matrix, eta, "sum")


def checks_for(groups: int) -> int:
    """S: the smallest prime from ⌈0.01 K⌉ + X on, X(X - 1) >= 2K."""
    x = 1
    while x * (x - 1) < 2 * groups:
        x += 1
    s = -(-groups // 100) + x
    while s < 3 or any(s % i == 0 for i in range(2, int(s**0.5) + 1)):
        s += 1
    return s


def check_members(groups: int) -> list[list[int]]:
    """The groups of each check; every group is in three of them."""
    s = checks_for(groups)
    members: list[list[int]] = [[] for _ in range(s)]
    for i in range(groups):
        a, b = 1 + i // s % (s - 1), i % s
        for _ in range(3):
            members[b].append(i)
            b = (b + a) % s
    return members


@lru_cache(maxsize=16)
def _made(groups: int, symbols: int, recipe: Raptor) -> tuple[Table, Any]:
    members = check_members(groups)
    columns = groups + len(members)
    rng = np.random.default_rng((recipe.seed, groups))
    own = min(groups, symbols) if recipe.systematic else 0
    degrees = rng.choice(DEGREES, symbols - own, p=CHANCES / CHANCES.sum())
    coded = deal(columns, degrees, rng)
    checks = [[*those, groups + c] for c, those in enumerate(members)]
    meaning = [(i, i, 1.0) for i in range(groups)]
    meaning += [(groups + c, i, -1.0) for c, those in enumerate(members) for i in those]
    row, column, value = (np.array(part) for part in zip(*meaning, strict=True))
    sparse = imported("scipy.sparse")
    expand = sparse.csr_array((value, (row, column)), shape=(columns, groups))

    def stretched(table: Table) -> Any:
        ones = np.ones(len(table.where))
        shape = (len(table), columns)
        matrix = sparse.csr_array((ones, table.where, table.start), shape=shape) @ expand
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return matrix

    rows: list[list[int]] = [[i] for i in range(own)] + coded.rows
    every = stretched(Table.of(columns, rows))
    for empty in np.flatnonzero(np.diff(every.indptr) == 0).tolist():
        rows[empty] = [empty % groups]  # a check and all its groups say nothing: one group instead
    every = stretched(Table.of(columns, rows))
    return Table.of(columns, [*checks, *rows]), every
