"""Windows that stay where they are when a share leaves or comes.

The rows of a lost share go to others that did not read them; those of a new share are taken from
others. So no share gives up rows and takes different ones: the transition waste of Dau et al., 2023
is zero. A maximum flow decides which takes how much, so that loads stay equal where possible.
The price: windows fall into more and more runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import NDArray

from .windows import Layout, Windows, runs_of

Flags = NDArray[np.bool_]
Ints = NDArray[np.intp]


def still(before: Windows, layout: Layout, shares: Sequence[int], most: int) -> Windows | None:
    """Windows for these shares that move nothing; None where some would have more than `most` runs.

    Every row is read by as many shares as before. Loads are equal, give or take a row, where a flow
    can make them so; else the share that reads least takes what is left.
    """
    span = min(layout.threshold + layout.margin, len(shares))
    state = _Rows(before)
    if before.asked.sum(axis=0).min(initial=span) < span or not set(shares) & set(before.shares):
        return None
    lost = [share for share in before.shares if share not in shares]
    new = [share for share in shares if share not in before.shares]
    for old, successor in zip(lost, new, strict=False):  # it reads what that one has read
        state.shares[state.shares.index(old)] = successor
    for share in lost[len(new) :]:
        state.leave(share, span)
    for share in new[len(lost) :]:
        state.come(share)
    windows = state.windows(shares, before)
    return None if max(map(len, windows.runs)) > most else windows


def rows_taken_up(before: Windows, after: Windows) -> int:
    """Rows that shares in both read now and did not before, beyond what their load has grown."""
    cuts = np.union1d(before.cuts, after.cuts)
    size, total = np.diff(cuts), 0
    old, new = (
        one.asked[:, np.searchsorted(one.cuts, cuts[:-1], side="right") - 1]
        for one in (before, after)
    )
    for share, i in before.places.items():
        j = after.places.get(share)
        if j is not None:
            grown = int(size @ new[j]) - int(size @ old[i])
            total += max(0, int(size @ (new[j] & ~old[i])) - max(0, grown))
    return total


class _Rows:
    """Who reads which rows: shares, cuts, and `asked` (shares, segments), changed in place."""

    def __init__(self, windows: Windows) -> None:
        self.shares = list(windows.shares)
        self.cuts, self.asked = windows.cuts.copy(), windows.asked.copy()

    @property
    def size(self) -> Ints:
        return np.diff(self.cuts)

    def leave(self, share: int, span: int) -> None:
        """Give what a share read to others that did not read it."""
        i = self.shares.index(share)
        self.asked = np.delete(self.asked, i, axis=0)
        self.shares.pop(i)
        lacking = np.flatnonzero(self.asked.sum(axis=0) < span)
        room = self._room(int(self.size @ self.asked.sum(axis=0) + self.size[lacking].sum()))
        given = self._flow(lacking, ~self.asked[:, lacking], room)
        self._hand_out(lacking, given, True)
        # What no flow could place goes to whoever reads least and did not read it.
        for j in np.flatnonzero(self.asked.sum(axis=0) < span).tolist():
            free = np.flatnonzero(~self.asked[:, j])
            if len(free):
                self.asked[free[np.argmin((self.asked @ self.size)[free])], j] = True

    def come(self, share: int) -> None:
        """Take rows from the others, each row from one of them, for a new share."""
        total = int(self.size @ self.asked.sum(axis=0))
        self.shares.append(share)
        self.asked = np.vstack([self.asked, np.zeros((1, len(self.size)), dtype=bool)])
        over = -self._room(total)
        every = np.arange(len(self.size))
        given = self._flow(every, self.asked, over.clip(0))
        self._hand_out(every, given, False)

    def _room(self, total: int) -> Ints:
        """How much more each may read, (shares,), for loads that are equal, give or take a row."""
        n = len(self.shares)
        target = np.full(n, total // n) + (np.arange(n) < total % n)
        return np.asarray(target - self.asked @ self.size, dtype=np.intp)

    def _flow(self, segments: Ints, may: Flags, room: Ints) -> Ints:
        """Rows of each segment for each share, (shares, segments): as many as can be placed."""
        n, m = may.shape
        graph = np.zeros((n + m + 2, n + m + 2), dtype=np.int32)
        graph[0, 1 : m + 1] = self.size[segments]
        graph[1 : m + 1, m + 1 : m + 1 + n] = np.where(may.T, self.size[segments][:, None], 0)
        graph[m + 1 : m + 1 + n, -1] = room.clip(0)
        capacities = scipy.sparse.csr_array(graph)
        flow = scipy.sparse.csgraph.maximum_flow(capacities, 0, n + m + 1).flow.toarray()
        return np.asarray(flow[1 : m + 1, m + 1 : m + 1 + n].T, dtype=np.intp).clip(0)

    def _hand_out(self, segments: Ints, given: Ints, reads: bool) -> None:
        """Cut segments as a flow says; each piece is read by its share from now on, or no more.

        What is taken away goes to the last share.
        """
        pieces: list[tuple[int, int, int]] = []  # first row, last row, share
        for number, j in enumerate(segments.tolist()):
            first = int(self.cuts[j])
            for i in np.flatnonzero(given[:, number]).tolist():
                last = first + int(given[i, number])
                pieces.append((first, last, i))
                first = last
        cuts = np.union1d(self.cuts, [row for first, last, _ in pieces for row in (first, last)])
        cuts = cuts.astype(np.intp)
        self.asked = self.asked[:, np.searchsorted(self.cuts, cuts[:-1], side="right") - 1]
        self.cuts = cuts
        for first, last, i in pieces:
            a, b = np.searchsorted(cuts, (first, last))
            self.asked[i, a:b] = reads
            if not reads:
                self.asked[-1, a:b] = True

    def windows(self, shares: Sequence[int], before: Windows) -> Windows:
        """As a round takes them: shares in their order, equal neighbours joined."""
        order = [self.shares.index(share) for share in shares]
        asked = self.asked[order]
        change = np.flatnonzero((asked[:, 1:] != asked[:, :-1]).any(axis=0)) + 1
        keep = [0, *change.tolist()]
        asked, cuts = asked[:, keep], self.cuts[[*keep, len(self.cuts) - 1]]
        lengths = asked @ np.diff(cuts)
        runs = tuple(runs_of(mask, cuts) for mask in asked)
        return replace(
            before,
            shares=tuple(shares),
            cuts=cuts,
            asked=np.ascontiguousarray(asked),
            need=np.full(len(cuts) - 1, before.threshold, dtype=np.intp),
            runs=runs,
            starts=np.array([mine[0][0] if mine else 0 for mine in runs], dtype=np.intp),
            lengths=np.asarray(lengths, dtype=np.intp),
        )


def balance(windows: Windows) -> float:
    """The largest load over the mean one."""
    loads = np.array(windows.loads, dtype=np.float64)
    return float(loads.max() / loads.mean())
