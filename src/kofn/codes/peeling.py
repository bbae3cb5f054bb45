"""Peeling: a symbol with one unknown left gives it away, which may leave others with one.

First in, first out: values then come from short chains of subtractions. A stack makes long ones and
costs three digits (numerics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from ..interrupts import imported
from .linear import Decoder, Floats, Weights
from .soliton import Table


class Peeler:
    """Rows of a table in, by number; resolved columns out. Plain lists: rows are short."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.taken: list[int] = []  # rows of the table, in order of arrival
        self.open: list[int] = []  # how many unresolved columns each of them has
        self.left = table.k  # columns not resolved
        self.done = [False] * table.k
        self.pivots: list[int] = []  # numbers in `taken`, as each resolved a column
        self.columns: list[int] = []  # and that column
        self.spent = 0  # rows without an unresolved column, pivots included
        self.bare = table.k  # columns in no row at all
        self._watch: list[list[int]] = [[] for _ in self.done]  # column -> numbers in `taken`

    def load(self, rows: list[int]) -> None:
        """Take the first rows all at once: much cheaper than one by one."""
        where, start = self.table.gather(rows)
        shape = (len(rows), self.table.k)
        ones = np.ones(len(where), np.int8)
        by_column = imported("scipy.sparse").csr_array((ones, where, start), shape=shape).tocsc()
        watchers, ends = by_column.indices.tolist(), by_column.indptr.tolist()
        lengths = np.diff(start)
        self.taken, self.open = list(rows), lengths.tolist()
        self._watch = [watchers[a:b] for a, b in pairwise(ends)]
        self.bare = self._watch.count([])
        self._run(np.flatnonzero(lengths == 1).tolist())

    def add(self, row: int) -> None:
        """Take one more row."""
        s, done, watch, count = len(self.taken), self.done, self._watch, 0
        self.taken.append(row)
        for i in self.table.rows[row]:
            if not done[i]:
                seen = watch[i]
                if not seen:
                    self.bare -= 1
                seen.append(s)
                count += 1
        self.open.append(count)
        if count == 1:
            self._run([s])
        elif not count:
            self.spent += 1

    def retire(self, columns: Iterable[int]) -> None:
        """Treat these columns as known from here on."""
        queue: list[int] = []
        count = self.open
        for i in columns:
            self.done[i] = True
            self.left -= 1
            for w in self._watch[i]:
                count[w] -= 1
                if count[w] == 1:
                    queue.append(w)
                elif not count[w]:
                    self.spent += 1
        self._run(queue)

    def _run(self, queue: list[int]) -> None:
        """Resolve what can be; `queue` names rows with one column left, and grows meanwhile."""
        done, count, watch = self.done, self.open, self._watch
        rows, taken = self.table.rows, self.taken
        pivots, columns, spent = self.pivots, self.columns, 0
        before = len(pivots)
        for s in queue:
            if count[s] != 1:
                continue
            for i in rows[taken[s]]:
                if not done[i]:
                    break
            done[i] = True
            pivots.append(s)
            columns.append(i)
            for w in watch[i]:
                c = count[w] - 1
                count[w] = c
                if c < 2:
                    if c:
                        queue.append(w)
                    else:
                        spent += 1
        self.left -= len(pivots) - before
        self.spent += spent

    def spread(self, want: list[float], upto: int | None = None) -> dict[int, float]:
        """Weights, by number in `taken`, of the first `upto` pivots that give `want`.

        From the last resolved column to the first: a row weighs what its column still lacks. Whole
        numbers stay whole. `want` is used up.
        """
        weights: dict[int, float] = {}
        rows, taken = self.table.rows, self.taken
        pairs = zip(self.pivots[:upto], self.columns[:upto], strict=True)
        for s, i in reversed(list(pairs)):
            x = want[i]
            if x:
                weights[s] = x
                for j in rows[taken[s]]:
                    want[j] -= x
        return weights


class SparseDecoder(Decoder):
    """For rows of ones that a table lists by key. Ready when every column is known.

    k columns take k rows at least: until then rows are only noted.
    """

    def __init__(self, table: Table, name: str = "this code") -> None:
        super().__init__(table.k, name)
        self.table = table
        self._keys: dict[int, None] = {}
        self._peeler = Peeler(table)

    @property
    def arrived(self) -> tuple[int, ...]:
        return tuple(self._keys)

    def offer(self, key: int, row: object = None) -> bool:
        """Take row `key` of the table, and return `ready`. A key seen before is ignored."""
        keys = self._keys
        if key not in keys:
            keys[key] = None
            if len(keys) < self.k:
                return False
            if len(keys) == self.k:
                self._peeler.load(list(keys))
            else:
                self._add(key)
            self._look()
        return self.ready

    def _add(self, key: int) -> None:
        self._peeler.add(key)

    def _look(self) -> None:
        """See whether what has come is enough."""

    def order(self) -> tuple[list[int], list[int]]:
        """When ready: k keys, and the columns in the order in which they determine them.

        In this order the rows are lower triangular, but for the last columns, if any were put
        aside; these rows are then in the order of their pivots.
        """
        peeler = self._peeler
        return [peeler.taken[s] for s in peeler.pivots], list(peeler.columns)

    def _need(self) -> int:
        return max(self.k, len(self._keys) + 1)

    def _weigh(self, weights: Mapping[int, float]) -> Weights:
        """From weights by number of arrival."""
        taken = self._peeler.taken
        keys = [taken[s] for s in weights]
        matrix: Floats = np.fromiter(weights.values(), np.float64, len(weights))[None, :]
        eta = float(np.sqrt(matrix[0] ** 2 @ np.diff(self.table.start)[keys] / self.k))
        return Weights(tuple(keys), matrix, eta, "sum")


class PeelingDecoder(SparseDecoder):
    """First-in first-out peeling, as each row arrives. O(degree) a row and a resolved column."""

    @property
    def ready(self) -> bool:
        return not self._peeler.left

    def find_weights(self) -> Weights:
        return self._weigh(self._peeler.spread([1] * self.k))
