"""Rateless codes for sums of many small terms, and what they are compared with.

LT-1: a symbol adds up d terms, d from the robust soliton. LT-r: the same over m/r groups of r
neighbouring terms (Mallick et al., 2021, section III-C): only the sum is wanted, not the terms of
a group. Random groups: the terms are in m/d groups at random. Every worker evaluates all groups, in
an order of its own; the sum is there when each group has come from some worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from ..checks import one_of, whole
from ..errors import BadInput
from .assignment import Assignment, Listed, SumCode
from .inactivation import InactivationDecoder
from .linear import CountingDecoder, Decoder, EliminationDecoder, Floats, Row, Weights
from .peeling import PeelingDecoder
from .soliton import Table, deal, draw, robust_soliton

Decoding = Literal["inactivation", "peeling", "elimination"]
Neighbours = Literal["deck", "uniform"]
SMALL = 64  # groups up to which each arrival is looked at by elimination: it may be enough early


@dataclass(frozen=True)
class LT(SumCode):
    """LT-r over m terms: symbols are sums of groups of `r` neighbouring terms.

    soliton: (c, δ) of the robust soliton. neighbours: "deck" deals groups from a shuffled deck, so
    that all occur equally often; "uniform" draws them, as published. systematic: the first symbols
    are the groups themselves. decoder: "inactivation" needs hardly more symbols than groups;
    "peeling" a third more; "elimination" is the reference, slow from some hundred groups on.
    symbols: how many there are in all, mₑ (default: four times the groups, and for each worker
    one at least); each worker is dealt as many.
    """

    r: int = 1
    soliton: tuple[float, float] = (0.03, 0.5)
    neighbours: Neighbours = "deck"
    systematic: bool = False
    decoder: Decoding = "inactivation"
    symbols: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.r, "r (terms in a group)", 1)
        one_of(self.neighbours, "neighbours", get_args(Neighbours))
        one_of(self.decoder, "decoder", get_args(Decoding))
        pair: Any = self.soliton
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not all(isinstance(one, Real) for one in pair)
        ):
            raise BadInput(f"soliton must be two numbers, (c, delta); got {pair!r}.")
        object.__setattr__(self, "soliton", tuple(pair))
        robust_soliton(1, *self.soliton)  # says what is wrong with them
        _held_and_seed(self.symbols, self.seed)

    def assign(self, m: int, n: int) -> LTAssignment:
        _fits("r", self.r, m)
        groups = -(-m // self.r)
        held = max(4 * groups, n) if self.symbols is None else self.symbols
        each = -(-held // n)
        if each * n < groups:
            raise BadInput(
                f"a sum of {groups} groups takes {groups} symbols at least, and "
                f"{self.typical(groups)} or so in most cases; got symbols={held}, {groups - held} "
                f"too few. Use symbols={2 * groups}, or a larger r."
            )
        return LTAssignment(m, n, self, each)

    def typical(self, groups: int) -> int:
        """Symbols that are enough in nearly all cases; from what was measured at 500 and 1000."""
        if self.decoder == "peeling":
            return int(groups + 12 * groups**0.5)
        return int(groups + (10 if self.neighbours == "deck" else 3 * groups**0.5))


@dataclass(frozen=True)
class TableAssignment(Assignment):
    """A rateless code on n slots: symbol i of a slot is row i·n + slot of one table."""

    recipe: Any
    each: int  # symbols of a slot

    @property
    def groups(self) -> int:
        """Source values: ceil(m / r)."""
        return -(-self.m // int(self.recipe.r))

    @property
    def k(self) -> int:
        return min(self.n, -(-self.needs // self.each))

    def symbols(self, slot: int) -> Sequence[Row]:
        symbols = self._symbols.get(slot)
        if symbols is None:
            keys = range(slot, self.each * self.n, self.n)
            symbols = self._symbols[slot] = tuple(map(self._row, keys))
        return symbols

    @cached_property
    def _symbols(self) -> dict[int, tuple[Row, ...]]:
        return {}

    def _row(self, key: int) -> Row:
        """A symbol in terms of the parts."""
        raise NotImplementedError

    def _terms(self, group: int) -> range:
        r = self.recipe.r
        return range(group * r, min(group * r + r, self.m))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.m, self.n, self.recipe, self.each)


@dataclass(frozen=True)
class LTAssignment(TableAssignment):
    """LT-r on n slots; the rows of the table are over the groups."""

    recipe: LT

    @property
    def needs(self) -> int:
        return self.recipe.typical(self.groups)

    @property
    def table(self) -> Table:
        """The groups of every symbol."""
        return _table(self.groups, self.each * self.n, self.recipe)

    def _row(self, key: int) -> Row:
        return Row(tuple(term for group in self.table.rows[key] for term in self._terms(group)))

    def decoder(self) -> Decoder:
        kind, table, name = self.recipe.decoder, self.table, repr(self.recipe)
        if kind == "peeling":
            return PeelingDecoder(table, name)
        if kind == "inactivation" and self.groups > SMALL:
            return InactivationDecoder(table, name)
        return TableElimination(table, name)


class TableElimination(EliminationDecoder):
    """λ with λᵀA = 1ᵀ from a QR of A, over the rows of a table: ready when the sum is there."""

    def __init__(self, table: Table, name: str = "this code") -> None:
        super().__init__(table.k, "sum", name)
        self.table = table

    def offer(self, key: int, row: object = None) -> bool:
        """Take row `key` of the table, and return `ready`."""
        table = self.table
        return super().offer(key, Row(tuple(table.where[table.start[key] : table.start[key + 1]])))


@lru_cache(maxsize=32)
def _table(groups: int, symbols: int, recipe: LT) -> Table:
    rng = np.random.default_rng((recipe.seed, groups))
    own = groups if recipe.systematic else 0
    p = robust_soliton(groups, *recipe.soliton)
    degrees = rng.choice(groups, max(0, symbols - own), p=p) + 1
    coded = (deal if recipe.neighbours == "deck" else draw)(groups, degrees, rng)
    if not own:
        return coded
    where = np.concatenate([np.arange(own), coded.where])
    return Table(groups, where, np.concatenate([np.arange(own), coded.start + own]))


@dataclass(frozen=True)
class RandomGroups(SumCode):
    """Terms in groups of `d` at random; each worker evaluates all groups in an order of its own.

    No code at all, and faster than LT in the delay model of Mallick et al., 2021: a group costs d
    terms as a symbol does, nothing is decoded, and any single worker is enough. With `symbols`, mₑ
    in all, each worker evaluates only the first of its order.
    """

    d: int = 10
    symbols: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.d, "d (terms in a group)", 1)
        _held_and_seed(self.symbols, self.seed)

    def assign(self, m: int, n: int) -> Assignment:
        _fits("d", self.d, m)
        groups = -(-m // self.d)
        held = groups * n if self.symbols is None else self.symbols
        if held < groups:
            raise BadInput(
                f"a sum of {groups} groups takes {groups} symbols at least; got symbols={held}, "
                f"{groups - held} too few. Leave symbols out: each worker then holds every group."
            )
        each, d = min(groups, -(-held // n)), self.d
        terms = np.random.default_rng((self.seed, m)).permutation(m).tolist()
        known = [Row(tuple(sorted(terms[i : i + d]))) for i in range(0, m, d)]
        orders = (np.random.default_rng((self.seed, m, slot + 1)) for slot in range(n))
        rows = tuple(
            tuple(known[i] for i in rng.permutation(groups)[:each].tolist()) for rng in orders
        )
        return _Groups(m, n, rows, 1 if each == groups else n, repr(self))


def groups_for(m: int, n: int) -> RandomGroups:
    """Random groups that fit m terms on n workers: of 10, or of fewer so that all have work."""
    return RandomGroups(max(1, min(10, m // (4 * max(1, n)))))


class _Groups(Listed):
    @property
    def needs(self) -> int:
        groups = -(-self.m // max(len(row.parts) for row in self.rows[0]))
        return int(groups * (np.log(groups) + 5))  # coupons: enough with probability 0.99


@dataclass(frozen=True)
class DenseMDS(SumCode):
    """Any k of n replies, each a Gaussian combination of all m terms: what linear codes would do.

    Every worker evaluates every term, so it is never faster than one worker alone: a baseline.
    """

    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.k, "k (replies that are enough)", 1)
        whole(self.seed, "seed", 0)

    def assign(self, m: int, n: int) -> Assignment:
        whole(m, "m (the number of terms)", 1)
        if self.k > min(m, n):
            raise BadInput(
                f"k is at most the number of workers and of terms; got k={self.k}, {n} workers and "
                f"{m} terms."
            )
        rng = np.random.default_rng((self.seed, self.k))
        table: Floats = rng.standard_normal((n, self.k)) / np.sqrt(self.k)
        parts, block = tuple(range(m)), np.arange(m) * self.k // m
        rows = tuple((Row(parts, tuple(row[block].tolist())),) for row in table)
        return _Dense(m, n, rows, self.k, repr(self))


class _Dense(Listed):
    def decoder(self) -> Decoder:
        return _AnyK(self.m, self.k, self.name)


class _AnyK(CountingDecoder):
    """k blocks of terms, each with one coefficient a row: their sum from any k rows."""

    def __init__(self, m: int, k: int, name: str) -> None:
        super().__init__(k, name)
        self._first = -(-np.arange(k) * m // k)  # a term of each block

    def offer(self, key: int, row: Row | ArrayLike) -> bool:
        every = row.coefficients if isinstance(row, Row) else row
        return super().offer(key, np.asarray(every, np.float64)[self._first])

    def find_weights(self) -> Weights:
        every = super().find_weights()
        return Weights(every.keys, every.matrix.sum(axis=0, keepdims=True), every.eta, "sum")


def _held_and_seed(symbols: int | None, seed: int) -> None:
    if symbols is not None:
        whole(symbols, "symbols (in all)", 1)
    whole(seed, "seed", 0)


def _fits(name: str, size: int, m: int) -> None:
    if size > whole(m, "m (the number of terms)", 1):
        raise BadInput(
            f"{name} is at most the number of terms; got {name}={size} and {m} terms. Use a "
            f"smaller {name}, or cut the data into more terms with cluster.parts(data, code, "
            f"parts=...): it makes one for each worker unless you say how many."
        )
