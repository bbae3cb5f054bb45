"""Probes: a few secret sums of a matrix, by which every reply can be checked in O(its size).

Let r be random and secret, and c = rᵀX kept. A reply y that should be X w passes if r·y = c·w, up
to rounding (Freivalds, 1977): O(rows + columns) instead of O(rows · columns). Whoever does not know
r cannot make a wrong y that passes.

Rows are cut in groups, and each group has its own sums; windows begin and end where groups do. A
share is a combination of blocks, so its sums are that of theirs. For X.T @ z the sums are over the
columns: X σ is kept, and a reply v = Σ share[i]ᵀ u[i] passes if σ·v = Σ (share[i]·σ) u[i].

Entries of r and σ are ±(1 … 2), drawn evenly, so a single wrong entry e shows wherever |e| > 2τ, τ
being the tolerance. For several, r·e has a density of at most 0.83/|e| (Bobkov and Chistyakov,
2014), so it lies within ±2τ with a chance of at most 3.3 τ/|e|. There are two probes, and both
have to miss it: from |e| = SURELY · τ on the chance is below 3e-6.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sizes import MEASURED, MORE, Floats, Pieces, Sizes, row_lengths

PROBES = 2
SURELY = 2000.0  # an error of so many times the tolerance is seen
GROUP = 512  # rows of a group, about
AT_ONCE, WIDE = 32, 256  # rows, and columns, that are added up at a time: fewer digits are lost
UNIT = float(np.finfo(np.float64).eps) / 2  # of what is kept here, whatever the matrix is
MOST = 900  # exponents of rows beyond which they are not brought to one size
SAFE = 8.0  # |Σ r[i] e[i]| > 2 · SAFE · |e| has a chance below 3e-14: Hoeffding, |r[i]| ≤ 2

Edges = NDArray[np.intp]


def group_count(rows: int, workers: int) -> int:
    """How many groups: so that the windows of so many equal workers begin and end with groups."""
    return min(rows, workers * max(1, -(-rows // (GROUP * workers))))


def edges_of(rows: int, groups: int) -> Edges:
    """Where groups begin and end."""
    return np.arange(groups + 1, dtype=np.intp) * rows // groups


@dataclass(frozen=True, eq=False)
class Sums:
    """Secret sums of a matrix, or of its velocity, and how far they may be off.

    `r`: (groups, k, PROBES, d), r times the rows of each group and block; off by UNIT · `r_off`,
    (groups,), relative to |g| |w|. `s`: (k, rows, PROBES), the blocks times σ; off by
    UNIT · `s_off`, (rows,), relative to |g|.
    """

    r: Floats
    s: Floats
    r_off: Floats
    s_off: Floats

    def plus(self, other: Sums, momentum: float = 1.0) -> Sums:
        """momentum · self + other: rounded once more."""
        r, s = momentum * self.r + other.r, momentum * self.s + other.s
        r_off = momentum * self.r_off + other.r_off + 2 * np.sqrt((r**2).sum(axis=(1, 2, 3)))
        s_off = momentum * self.s_off + other.s_off + 2 * np.linalg.norm(s, axis=(0, 2))
        return Sums(r, s, r_off, s_off)

    @property
    def nbytes(self) -> int:
        return self.r.nbytes + self.s.nbytes + self.r_off.nbytes + self.s_off.nbytes


@dataclass(frozen=True, eq=False)
class Probes:
    """The secret numbers, and the sums of one version of a matrix.

    `r`: (PROBES, rows), divided by `size`, (rows,): powers of two near the length of the rows, so
    that a short row shows beside long ones. `sigma`: (d, PROBES).
    """

    edges: Edges
    r: Floats
    size: Floats
    sigma: Floats
    sums: Sums
    sizes: Sizes
    moving: Sums | None = None  # the same of a velocity

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        kept = self.sums.nbytes + (0 if self.moving is None else self.moving.nbytes)
        return kept + self.r.nbytes + self.size.nbytes + self.sigma.nbytes

    def after(
        self, U: NDArray[Any], V: NDArray[Any] | None, lengths: Floats, momentum: float | None
    ) -> Probes:
        """After X += U Vᵀ (or U), or a move; `lengths`: of its rows, (N,)."""
        k, rows = self.sums.s.shape[:2]
        flat, long = np.zeros((k * rows, U.shape[1])), np.zeros(k * rows)
        flat[: len(U)], long[: len(U)] = U, lengths
        blocks = flat.reshape(k, rows, -1)
        r = np.stack([
            np.stack([add_up(block[a:b], self.r[:, a:b]) for block in blocks])
            for a, b in pairwise(self.edges.tolist())
        ])  # fmt: skip
        v = np.eye(U.shape[1]) if V is None else V.astype(np.float64)
        r, s = (r if V is None else r @ v.T), blocks @ times(v.T, self.sigma)
        change, rank = long.reshape(k, rows), 1 if V is None else v.shape[1]
        length = np.linalg.norm(change, axis=0)
        r_off = summing(self.edges, length / self.size, rank + 2)
        s_off = (terms_off(v.shape[0]) + 2 * np.sqrt(v.shape[0]) * (rank + 2)) * length
        new = Sums(r, s, r_off, s_off)
        sizes = self.sizes.after(change, rank, momentum)
        if momentum is None:
            return replace(self, sums=self.sums.plus(new), sizes=sizes)
        moving = new if self.moving is None else self.moving.plus(new, momentum)
        return replace(self, sums=self.sums.plus(moving), sizes=sizes, moving=moving)

    # X @ w: a group at a time.

    @cached_property
    def tolerance(self) -> Floats:
        """τ of a group, (groups,), relative to |g| |w|.

        It adds up: the noise of its rows, times the independent r (Hoeffding); the error of the
        sums; the rounding of c·w, of d terms, and of the sum over blocks; and that of r·y, of m
        terms of at most 2 L / size.
        """
        sums, d = self.sums, len(self.sigma)
        worth = np.sqrt((sums.r**2).sum(axis=(1, 2, 3)))
        own = sums.r_off + (d + self.sizes.k + MORE) * worth
        own = own + np.diff(self.edges) * 2 * self._per_group(self.sizes.length / self.size)
        return np.asarray(self._noisy(self.sizes.noise(d)) + UNIT * own)

    @cached_property
    def off_tolerance(self) -> Floats:
        """What τ grows by, (groups,), for a share that is off by 1, relative to |g| L."""
        return self._noisy(MEASURED * self.sizes.length)

    @cached_property
    def smallest(self) -> Floats:
        """τ where numbers are so small that they lose their digits, (groups,): d terms a row."""
        return (len(self.sigma) + MORE) * self.sizes.tiny * 2 * self._per_group(1 / self.size)

    def _noisy(self, noise: Floats) -> Floats:
        squares = self._per_group((noise / self.size) ** 2)
        return 2 * np.minimum(SAFE, np.sqrt(np.diff(self.edges))) * np.sqrt(squares)

    def _per_group(self, rows: Floats) -> Floats:
        return np.asarray(np.add.reduceat(rows, self.edges[:-1]))

    def of_product(self, first: int, last: int, y: Floats) -> Floats:
        """r times rows first..last of a product, (m, c), group by group: (groups, PROBES, c)."""
        a, b = np.searchsorted(self.edges, [first, last])
        cuts = self.edges[a : b + 1].tolist()
        if y.shape[1] == 1:
            terms = self.r[:, first:last] * y[:, 0]
            return np.asarray(np.add.reduceat(terms, self.edges[a:b] - first, axis=1).T[..., None])
        return np.stack([self.r[:, i:j] @ y[i - first : j - first] for i, j in pairwise(cuts)])

    def groups(self, first: int, last: int) -> slice | None:
        """The groups that these rows are; None where they are not whole groups."""
        a, b = np.searchsorted(self.edges, [first, last])
        whole = b < len(self.edges) and self.edges[a] == first and self.edges[b] == last
        return slice(int(a), int(b)) if whole and a < b else None

    # X.T @ z and rows themselves: by σ.

    def of_share(self, row: Floats, first: int, last: int) -> Floats:
        """Rows first..last of a share with these coefficients, times σ: (m, PROBES)."""
        return np.asarray(np.tensordot(row, self.sums.s[:, first:last], 1))


def draw(rng: np.random.Generator, *shape: int) -> Floats:
    """Random numbers of size 1 to 2 and either sign."""
    return np.asarray(rng.uniform(1.0, 2.0, shape) * rng.choice([-1.0, 1.0], shape))


def summing(edges: Edges, length: Floats, more: int = 0) -> Floats:
    """By how much sums over the rows of groups may be off, (groups,), in units of UNIT |w|.

    An entry of r·X is off by at most (AT_ONCE + sums) u Σ |r[i]| |x[i]|, and times w that is at
    most Σ |r[i]| L[i] |w|, row by row (Cauchy and Schwarz); |r[i]| ≤ 2, and there are two probes.
    `length`: L, divided by the size of the rows.
    """
    count = np.diff(edges)
    size = 2 * np.sqrt(PROBES) * np.add.reduceat(length, edges[:-1])
    return np.asarray((AT_ONCE + 2 * count / AT_ONCE + MORE + more) * size)


def terms_off(terms: int, at_once: int = WIDE) -> float:
    """By how much x·σ of so many terms is off, in units of UNIT |x|: Σ |x| |σ| ≤ 2 √terms |x|."""
    added = min(terms, at_once) + terms / at_once + MORE
    return added * 2 * float(np.sqrt(PROBES * terms))


def add_up(rows: Floats, r: Floats) -> Floats:
    """r (PROBES, m) times rows (m, d), AT_ONCE rows at a time."""
    whole = len(rows) // AT_ONCE * AT_ONCE
    total: Floats = r[:, whole:] @ rows[whole:]
    if whole:
        count = whole // AT_ONCE
        parts = r[:, :whole].reshape(len(r), count, AT_ONCE).transpose(1, 0, 2)
        total = total + np.matmul(parts, rows[:whole].reshape(count, AT_ONCE, -1)).sum(axis=0)
    return total


def times(rows: Any, sigma: Floats) -> Floats:
    """Rows (m, d) times σ (d, PROBES), WIDE columns at a time."""
    if not isinstance(rows, np.ndarray):
        return np.asarray(rows @ sigma)
    starts = range(0, rows.shape[1], WIDE)
    return np.asarray(sum(rows[:, a : a + WIDE] @ sigma[a : a + WIDE] for a in starts))


def begin(pieces: Pieces, shape: tuple[int, int, int], dtype: Any, groups: int) -> Probes:
    """Probes of a matrix of `shape` (k, rows, d), from one pass over its blocks.

    `pieces`: rows of all blocks, dense or CSR, scaled as the shares are; each within a group.
    """
    k, rows, d = shape
    rng = np.random.default_rng()  # of the system's own entropy: a seed would be no secret
    edges, r, sigma = edges_of(rows, groups), draw(rng, PROBES, rows), draw(rng, d, PROBES)
    lengths, size = np.zeros((k, rows)), np.ones(rows)
    sums, seen = np.zeros((groups, k, PROBES, d)), np.zeros((k, rows, PROBES))
    added: Counter[int] = Counter()  # pieces, by group; of sparse ones each row
    dense = True
    for first, last, blocks in pieces:
        parts = [block.astype(np.float64, copy=False) for block in blocks]
        for j, part in enumerate(parts):
            end = first + part.shape[0]
            lengths[j, first:end] = row_lengths(part)
            seen[j, first:end] = times(part, sigma)
        size[first:last] = sizes_of(np.hypot.reduce(lengths[:, first:last], axis=0))
        r[:, first:last] /= size[first:last]
        g = int(np.searchsorted(edges, first, "right")) - 1
        for j, part in enumerate(parts):
            mine = r[:, first : first + part.shape[0]]
            dense = isinstance(part, np.ndarray)
            sums[g, j] += add_up(part, mine) if dense else (part.T @ mine.T).T
        added[g] += 1 if dense else last - first
    sizes = Sizes.begun(lengths, np.dtype(dtype))
    r_off = summing(edges, sizes.length / size, max(added.values()))
    kept = Sums(sums, seen, r_off, terms_off(d, WIDE if dense else d) * sizes.length)
    return Probes(edges, r, size, sigma, kept, sizes)


def sizes_of(length: Floats) -> Floats:
    """Powers of two near the lengths of rows; a row of zeros counts as the shortest."""
    exponents = np.frexp(length)[1].astype(np.float64)
    there = length > 0
    low = exponents[there].min() if there.any() else 0.0
    return np.asarray(np.exp2(np.where(there, exponents, low).clip(-MOST, MOST)))
