"""Which rows of each live share are read: windows on a circle of rows.

A lane is a share that somebody holds. Rounds think in lanes: when a newcomer takes over the share
of a worker that was lost, what that worker had delivered stays good, and is not asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model import Run


@dataclass(frozen=True, eq=False)
class Windows:
    """A choice of rows: of lane i `runs[i]` are read, so segment j is read where `asked[:, j]`.

    Segment j is rows cuts[j]..cuts[j+1] of every share; a segment is done when `need[j]` of
    those asked have delivered.
    """

    lanes: tuple[int, ...]
    cuts: NDArray[np.intp]  # (segments + 1,), strictly rising from 0 to the rows of a share
    asked: NDArray[np.bool_]  # (lanes, segments)
    need: NDArray[np.intp]  # (segments,)
    runs: tuple[tuple[Run, ...], ...]  # at most two a lane

    @property
    def rows(self) -> int:
        """Rows of a share."""
        return int(self.cuts[-1])


def cyclic(lanes: Sequence[int], rows: int, threshold: int) -> Windows:
    """Equal windows: the lane at position q reads groups q, …, q + threshold − 1 (mod n).

    Lanes are given in order of position. Groups are cut at ⌊j·rows/n⌋. Where fewer
    than the threshold are live, each reads everything, and it is not enough.
    """
    n = len(lanes)
    span = min(threshold, n)
    edge = [j * rows // n for j in range(n)] + [rows] if n else [0, rows]
    cuts = np.unique(np.asarray(edge, dtype=np.intp))
    asked = np.zeros((n, len(cuts) - 1), dtype=bool)
    runs: list[tuple[Run, ...]] = []
    index = np.searchsorted(cuts, np.asarray(edge, dtype=np.intp))
    for q in range(n):
        last = q + span
        if span == n:
            pairs = [(0, n)]
        elif last <= n:
            pairs = [(q, last)]
        else:
            pairs = [(0, last - n), (q, n)]
        pairs = [(a, b) for a, b in pairs if edge[a] < edge[b]]
        for a, b in pairs:
            asked[q, index[a] : index[b]] = True
        runs.append(tuple((edge[a], edge[b]) for a, b in pairs))
    need = np.full(len(cuts) - 1, threshold, dtype=np.intp)
    return Windows(tuple(lanes), cuts, asked, need, tuple(runs))


def with_extra(windows: Windows, weak: Sequence[int]) -> Windows:
    """Ask one more lane, where there is one, for each of the segments `weak`.

    It is the one least extended so far; its window may have one run more then.
    """
    asked, need = windows.asked.copy(), windows.need.copy()
    extended = np.zeros(len(windows.lanes), dtype=np.intp)
    size = np.diff(windows.cuts)
    for j in weak:
        free = np.flatnonzero(~asked[:, j])
        if len(free) == 0:
            continue
        i = free[np.argmin(extended[free])]
        asked[i, j] = True
        need[j] += 1
        extended[i] += size[j]
    runs = tuple(runs_of(asked[i], windows.cuts) for i in range(len(windows.lanes)))
    return Windows(windows.lanes, windows.cuts, asked, need, runs)


def runs_of(mask: NDArray[np.bool_], cuts: NDArray[np.intp]) -> tuple[Run, ...]:
    """Return the runs of rows in the segments where `mask` holds, neighbours joined."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return tuple((int(cuts[a]), int(cuts[b])) for a, b in edges.reshape(-1, 2))
