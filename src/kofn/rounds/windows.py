"""Windows: which rows of each live share are read, on a circle of rows.

Rounds think in shares, not in workers: when a newcomer takes over the share of a lost worker,
the rows that worker had delivered stay good, and are not asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ..model import RowRange

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

EQUAL = 0.10  # speeds that agree to this are one speed


@dataclass(frozen=True, eq=False)
class Windows:
    """A choice of rows: of share i `runs[i]` are read, so segment j is read where `asked[:, j]`.

    Segment j is rows cuts[j]..cuts[j+1] of every share; a segment is done when `need[j]` of
    those asked have delivered.
    """

    shares: tuple[int, ...]
    cuts: Ints  # (segments + 1,), strictly rising from 0 to the rows of a share
    asked: NDArray[np.bool_]  # (shares, segments)
    need: Ints  # (segments,)
    runs: tuple[tuple[RowRange, ...], ...]  # at most two a share, unless windows stay still
    starts: Ints  # (shares,) where each window begins on the circle
    lengths: Ints  # (shares,)
    threshold: int
    groups: int = 0  # windows begin and end with one of so many groups of rows; 0: anywhere

    def __post_init__(self) -> None:
        self.asked.flags.writeable = False  # rounds share it, and copy it when they must

    @property
    def rows(self) -> int:
        """Rows of a share."""
        return int(self.cuts[-1])

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each share is among the shares."""
        return {share: i for i, share in enumerate(self.shares)}

    @cached_property
    def work(self) -> dict[int, tuple[RowRange, ...]]:
        """What each share reads, of those that read anything."""
        return {share: runs for share, runs in zip(self.shares, self.runs, strict=True) if runs}

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """Rows that each share reads."""
        return tuple(sum(last - first for first, last in mine) for mine in self.runs)

    @cached_property
    def rows_needed(self) -> int:
        """Rows of all shares together that decoding needs."""
        return int(self.need @ np.diff(self.cuts))

    @cached_property
    def most(self) -> int:
        """How many a row needs, at most."""
        return int(self.need.max(initial=0))

    @cached_property
    def exact(self) -> bool:
        """Whether just those are asked that are needed."""
        return bool((self.asked.sum(axis=0) == self.need).all())


@dataclass(frozen=True)
class Layout:
    """How windows are laid: the threshold, how many more are asked, and where the circle begins.

    `fractions` say how much of itself each share reads; None lays equal windows. `groups`: see
    Windows. `spare`: those beyond the threshold are waited for, and at least one of them needed.
    `still`: when shares leave or come, the others' windows stay where they are (still.py).
    """

    threshold: int
    margin: int = 0
    fractions: tuple[float, ...] | None = None
    groups: int = 0
    spare: bool = False
    still: bool = False

    def lay(self, shares: Sequence[int], rows: int, offset: int = 0) -> Windows:
        """Return windows that cover every row by exactly threshold + margin shares.

        Where fewer shares are live, each reads everything. Equal windows are cyclic: the share at
        position q reads the groups from q on, of n groups that are cut at ⌊(j·rows + n − span)/n⌋:
        a single row is read by the first shares, which are blocks in most codes.
        """
        n, span = len(shares), min(self.threshold + self.margin, len(shares))
        if self.fractions is None or span == n:
            starts = (np.arange(n, dtype=np.intp) * rows + n - span) // max(1, n)
            after = np.arange(n, dtype=np.intp) + span
            lengths = starts[after % max(1, n)] + rows * (after // max(1, n)) - starts
        else:
            starts, lengths = _chain(np.asarray(self.fractions), span, rows)
        starts = (starts + offset) % rows
        if self.groups:
            ends = snapped(starts + lengths, rows, self.groups)
            starts = snapped(starts, rows, self.groups)
            starts, lengths = starts % rows, ends - starts
        windows = _windows(shares, rows, starts, lengths, self.threshold + self.spare)
        need = np.full_like(windows.need, max(span, windows.threshold))
        need = need if self.spare else windows.need
        return replace(windows, groups=self.groups, need=need)


def snapped(places: Ints, rows: int, groups: int) -> Ints:
    """The nearest beginnings of groups, ⌊g·rows/groups⌋, to places on the circle of rows.

    What begins where another ends still does, so every row is read by as many as before.
    """
    turns, place = np.divmod(places, rows)
    nearest = (2 * place * groups + rows) // (2 * rows)
    return np.asarray(nearest * rows // groups + turns * rows, dtype=np.intp)


def fill(speeds: Sequence[float], threshold: int) -> tuple[float, ...] | None:
    """Loads min(1, s·t) that add up to `threshold`: those who can finish together do.

    None when the speeds agree to 10 %, or when everyone must read everything.
    """
    s = np.asarray(speeds, dtype=np.float64)
    if len(s) <= threshold or s.max() <= (1 + EQUAL) * s.min():
        return None
    order = np.sort(s)[::-1]
    # With the `full` fastest shares reading everything, the rest share what remains.
    for full in range(threshold):
        t = (threshold - full) / order[full:].sum()
        if order[full] * t <= 1.0:
            break
    load = np.minimum(1.0, s * t)
    return tuple((load * (threshold / load.sum())).clip(max=1.0).tolist())


def shifted(before: Windows, layout: Layout, shares: Sequence[int]) -> Windows:
    """Lay new windows, turned so that shares that were there read as few other rows as they can.

    O(n²) for n shares: the number of rows moved is piecewise linear in the turn, so only the turns
    at which a window's end meets an end of its old window are tried.
    """
    rows = before.rows
    fresh = layout.lay(shares, rows)
    old = before.places
    stay = [i for i, share in enumerate(shares) if share in old]
    if not stay:
        return fresh
    was = np.array([old[shares[i]] for i in stay])
    s0, l0 = before.starts[was], before.lengths[was]
    s1, l1 = fresh.starts[stay], fresh.lengths[stay]
    turns = np.unique(np.concatenate([[0], (s0 - s1) % rows, (s0 + l0 - s1 - l1) % rows]))
    moved = [_moved(s0, l0, (s1 + turn) % rows, l1, rows) for turn in turns.tolist()]
    return layout.lay(shares, rows, int(turns[int(np.argmin(moved))]))


def rows_moved(before: Windows, after: Windows) -> int:
    """Rows that shares in both read now and did not before, beyond what their load has grown."""
    old = before.places
    pairs = [(old[share], i) for i, share in enumerate(after.shares) if share in old]
    if not pairs:
        return 0
    was, now = (np.array(side) for side in zip(*pairs, strict=True))
    start, length = before.starts[was], before.lengths[was]
    return _moved(start, length, after.starts[now], after.lengths[now], before.rows)


def _moved(s0: Ints, l0: Ints, s1: Ints, l1: Ints, rows: int) -> int:
    gap = (s1 - s0) % rows
    common = np.minimum(l0 - gap, l1).clip(0) + np.minimum(l0, gap + l1 - rows).clip(0)
    return int(((l1 - common) - (l1 - l0).clip(0)).clip(0).sum())


def _chain(fractions: Floats, span: int, rows: int) -> tuple[Ints, Ints]:
    """Windows of unequal lengths, laid end to end `span` times round the circle.

    The order goes round in steps of `span`, as equal windows do, so that the shares that meet at a
    row are spread over all of them.
    """
    n = len(fractions)
    rings = gcd(n, span)
    order = [(first + step * span) % n for first in range(rings) for step in range(n // rings)]
    ends = np.concatenate([[0.0], np.cumsum(fractions[order])]) * rows
    edges = np.floor(ends + 0.5).astype(np.intp)
    edges[-1] = span * rows
    # Rounding may give a window one row more than there are, which would be the same row twice:
    # what is over goes to the next one, or where those are full, to the one before.
    slack = edges - rows * np.arange(n + 1)
    edges = np.minimum.accumulate(slack).clip(slack[-1]) + rows * np.arange(n + 1)
    starts, lengths = np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
    starts[order], lengths[order] = edges[:-1] % rows, np.diff(edges)
    return starts, lengths


def _windows(
    shares: Sequence[int], rows: int, starts: Ints, lengths: Ints, threshold: int
) -> Windows:
    runs: list[tuple[RowRange, ...]] = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        end = start + length
        if length >= rows:
            runs.append(((0, rows),))
        elif end <= rows:
            runs.append(((start, end),) if length else ())
        else:
            runs.append(((0, end - rows), (start, rows)))
    edges = {0, rows, *(row for mine in runs for run in mine for row in run)}
    cuts = np.array(sorted(edges), dtype=np.intp)
    asked = np.zeros((len(runs), len(cuts) - 1), dtype=bool)
    index = {row: j for j, row in enumerate(cuts.tolist())}
    for i, mine in enumerate(runs):
        for first, last in mine:
            asked[i, index[first] : index[last]] = True
    need = np.full(len(cuts) - 1, threshold, dtype=np.intp)
    return Windows(tuple(shares), cuts, asked, need, tuple(runs), starts, lengths, threshold)


def with_extra(windows: Windows, weak: Sequence[int]) -> Windows:
    """Ask one more share, where there is one, for each of the segments `weak`.

    It is the one least extended so far; its window may have one run more then.
    """
    asked, need = windows.asked.copy(), windows.need.copy()
    extended = np.zeros(len(windows.shares), dtype=np.intp)
    size = np.diff(windows.cuts)
    for j in weak:
        free = np.flatnonzero(~asked[:, j])
        if len(free):
            i = free[np.argmin(extended[free])]
            asked[i, j] = True
            need[j] += 1
            extended[i] += size[j]
    runs = tuple(runs_of(mask, windows.cuts) for mask in asked)
    return replace(windows, asked=asked, need=need, runs=runs)


def runs_of(mask: NDArray[np.bool_], cuts: Ints) -> tuple[RowRange, ...]:
    """Return the runs of rows in the segments where `mask` holds, neighbours joined."""
    return tuple((int(cuts[a]), int(cuts[b])) for a, b in runs(np.flatnonzero(mask)))


def runs(rows: Ints) -> tuple[RowRange, ...]:
    """Return rows in the order given as runs; a run ends where the next row does not follow."""
    pieces = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return tuple((int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece))
