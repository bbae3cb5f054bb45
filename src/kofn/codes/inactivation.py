"""Inactivation: peel; where that stops, put a few columns aside and go on; solve for these.

Needs hardly more rows than there are columns, where peeling alone needs a third more. The columns
put aside ("inactive") are few, and everything else peels in terms of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from .linear import Floats, Weights
from .peeling import Peeler, SparseDecoder
from .soliton import Ints, Table

# Columns that peeling may leave open for a dense solution to be tried. It costs their square and
# more; a large code whose peeling has not got so far waits for more rows.
OPEN = 1500
AT_ONCE = 0.05  # of the open columns are put aside together: more make shorter chains
SINGULAR = 1e-9  # pivots below this, against the largest
POOR = 100.0  # an eta above this is worth one more row
EXACT = 1e-11  # how far the weighted rows may be from the all-ones row; aimed at: 1e-13


class InactivationDecoder(SparseDecoder):
    """Peeling first, dense elimination on the rest; ready when every column is determined.

    Says so only with weights in hand that give the all-ones row to EXACT. Looks from the k-th row
    on, at each arrival.
    """

    def __init__(self, table: Table, name: str = "this code") -> None:
        super().__init__(table, name)
        self._core: _Core | None = None
        self._solution: dict[int, float] | None = None
        self._enough: int | None = None  # rows at which it was found

    @property
    def ready(self) -> bool:
        return self._solution is not None or (not self._peeler.left and self._core is None)

    @property
    def good(self) -> bool:
        if self._solution is None or self._enough is None or len(self._keys) > self._enough:
            return self.ready
        return self._weigh(self._solution).eta <= POOR

    @property
    def _over(self) -> bool:
        """Whether weights are there, and one more row has been looked at: the rest is idle."""
        return self._enough is not None and len(self._keys) > self._enough + 1

    def _add(self, key: int) -> None:
        if self._over:
            return
        if self._core is None:
            self._peeler.add(key)
        else:
            self._peeler.taken.append(key)
            self._core.add([len(self._peeler.taken) - 1])

    def _look(self) -> None:
        peeler = self._peeler
        if self._over:
            return
        if self._core is None and 0 < peeler.left <= OPEN:
            if peeler.bare or len(peeler.taken) - peeler.spent < peeler.left:
                return  # a column in no row, or fewer rows than columns among what is left
            self._core = _Core(peeler)
        if self._core is not None:
            # Also when ready: one more row may make better weights, once.
            weights = self._core.solve()
            if weights is not None:
                self._solution = weights
                self._enough = len(self._keys) if self._enough is None else self._enough

    def order(self) -> tuple[list[int], list[int]]:
        keys, columns = super().order()
        if self._core is None:
            return keys, columns
        taken = self._peeler.taken
        return [*keys, *(taken[s] for s in self._core.chosen)], columns + self._core.inactive

    def find_weights(self) -> Weights:
        if self._solution is None:
            return self._weigh(self._peeler.spread([1] * self.k))
        return self._weigh(self._solution)


class _Core:
    """The columns U that peeling left open: [L B; C E] over (peeled, inactive) columns.

    L is lower triangular in the order of peeling; S = E - C L⁻¹B remains for the inactive ones.
    """

    def __init__(self, peeler: Peeler) -> None:
        self._peeler, k = peeler, peeler.table.k
        self._first = first = len(peeler.pivots)
        alive = np.flatnonzero(np.array(peeler.open) > 1)
        self.inactive = inactive = _put_aside(peeler, alive)
        self.chosen: list[int] = []  # rows that determine those, by number of arrival
        peeled = peeler.columns[first:]
        self._pivots = peeler.pivots[first:]
        self._p, self._q = p, q = len(peeled), len(inactive)
        self._order = np.array(peeled + inactive, np.intp)
        self._place = np.full(k, -1)
        self._place[self._order] = np.arange(p + q)
        r, c = self._entries(self._pivots)
        inside = c < p
        self._L: Any = scipy.sparse.linalg.splu(
            _ones(r[inside], c[inside], (p, p)).tocsc(),
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0,
            options={"Equil": False},
        )
        self._B = np.zeros((p, q), order="F")
        self._B[r[~inside], c[~inside] - p] = 1.0
        self._X = np.ascontiguousarray(self._L.solve(self._B))
        self._rest: list[int] = []
        self._S = np.empty((0, q))
        self._C = scipy.sparse.csr_array((0, p))
        chosen = np.zeros(len(peeler.taken), bool)
        chosen[self._pivots] = True
        self.add(alive[~chosen[alive]].tolist())

    def add(self, numbers: list[int]) -> None:
        """Take more rows, by number of arrival."""
        r, c = self._entries(numbers)
        inside = c < self._p
        C = _ones(r[inside], c[inside], (len(numbers), self._p))
        S = -(C @ self._X)
        S[r[~inside], c[~inside] - self._p] += 1.0
        self._C = scipy.sparse.vstack([self._C, C], format="csr") if self._rest else C
        self._S = np.concatenate([self._S, S])
        self._rest += numbers

    def _entries(self, numbers: list[int]) -> tuple[Ints, Ints]:
        """Row and column, in the order of peeling, of the ones that these rows have in U."""
        taken = self._peeler.taken
        where, start = self._peeler.table.gather([taken[s] for s in numbers])
        column = self._place[where]
        row = np.repeat(np.arange(len(numbers)), np.diff(start))
        inside = column >= 0
        return row[inside], column[inside]

    def solve(self) -> dict[int, float] | None:
        """Weights by number of arrival that give the all-ones row; None while there are none."""
        p, q, many = self._p, self._q, len(self._rest)
        if many < q:
            return None
        lu, swaps, _ = scipy.linalg.lapack.dgetrf(self._S)
        pivots = np.abs(np.diagonal(lu))
        if pivots.min() <= SINGULAR * pivots.max():
            return None
        top, first = lu[:q], _swapped(swaps, many)[:q]
        self.chosen = [self._rest[i] for i in first]

        def weigh(want: Floats) -> Floats:
            u = self._L.solve(want[:p], "T")
            half = scipy.linalg.lapack.dtrtrs(top, want[p:] - u @ self._B, trans=1)[0]
            second = np.zeros(many)
            second[first] = scipy.linalg.lapack.dtrtrs(top, half, lower=1, trans=1, unitdiag=1)[0]
            return np.concatenate([self._L.solve(want[:p] - self._C.T @ second, "T"), second])

        return self._refined(weigh)

    def _refined(self, weigh: Callable[[Floats], Floats]) -> dict[int, float] | None:
        """Weights whose rows add up to ones; elimination in whole numbers let rounding grow."""
        peeler, k = self._peeler, self._peeler.table.k
        numbers = [*self._pivots, *self._rest]
        where, start = peeler.table.gather([peeler.taken[s] for s in numbers])
        lengths = np.diff(start)
        weights: Floats = np.zeros(len(numbers))
        missing: Floats = np.ones(k)
        for _ in range(3):
            weights = weights + weigh(missing[self._order])
            used = np.bincount(where, np.repeat(weights, lengths), minlength=k)
            missing = 1.0 - used.astype(np.float64)
            off = float(np.abs(missing[self._order]).max())
            if off <= 1e-2 * EXACT:
                break
        if off > EXACT:
            return None
        exact = dict(zip(numbers, weights.tolist(), strict=True))
        return exact | peeler.spread(missing.tolist(), self._first) if self._first else exact


def _put_aside(peeler: Peeler, alive: Ints) -> list[int]:
    """Columns put aside until all others have peeled; those in most rows first."""
    columns: list[int] = []
    k = peeler.table.k
    where, start = peeler.table.gather([peeler.taken[s] for s in alive.tolist()])
    row = np.repeat(alive, np.diff(start))
    while peeler.left:
        active = np.array(peeler.open)[row] > 1
        degree = np.bincount(where[active], minlength=k)
        degree[np.array(peeler.done)] = -1
        many = max(1, int(AT_ONCE * peeler.left))
        chosen = np.argpartition(-degree, many - 1)[:many].tolist()
        columns += chosen
        peeler.retire(chosen)
    return columns


def _ones(row: Ints, column: Ints, shape: tuple[int, int]) -> Any:
    """A sparse matrix of ones; `row` does not decrease."""
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))])
    return scipy.sparse.csr_array((np.ones(len(row)), column, start), shape=shape)


def _swapped(swaps: Ints, n: int) -> Ints:
    """The order of rows that LAPACK's interchanges make."""
    order = list(range(n))
    for i, j in enumerate(swaps.tolist()):
        order[i], order[j] = order[j], order[i]
    return np.array(order, np.intp)
