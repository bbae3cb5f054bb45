"""Cover: for every segment of rows, who has delivered and who still owes.

The one mechanism for loss, lateness and newcomers: rows that a worker will not deliver, or not
soon, are asked of others that do not cover them yet. Replies that are in stay good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..model import RowRange
from .windows import Windows, runs_of, snapped

SMALLEST_PIECE = 16  # rows; a top-up is not cut finer than this
_NO_FLAGS = np.empty((0, 0), dtype=bool)
_NO_COUNTS = np.empty(0, dtype=np.intp)
_NO_INDEX: dict[int, int] = {}


class Cover:
    """The state of one round's rows.

    As long as shares deliver whole windows, just as planned, they are only noted; the arrays follow
    when they are read. Cost per delivery otherwise: a few array slices.
    """

    def __init__(self, windows: Windows) -> None:
        self.shares: Sequence[int] = windows.shares
        self.cuts = windows.cuts
        # Of all rounds on these windows, until something changes.
        self.asked = windows.asked
        self.need = windows.need
        self.delivered_rows = 0
        self.topped_up_rows = 0
        self.repeated_rows = 0  # asked again of a share that had delivered them: a restart
        self.short = False  # some rows would come from slow shares alone, or from none
        # Nothing has been asked or cut beyond windows that ask for just what is needed.
        self.as_planned = windows.exact
        self._windows = windows
        self._whole: set[int] | None = set()  # places of shares; None: the arrays are there
        self._have, self._count, self._index = _NO_FLAGS, _NO_COUNTS, _NO_INDEX
        self._place = windows.places
        self.rows_used = windows.rows_needed  # by decoding
        self._window = self.rows_used // max(1, len(self.shares))

    def deliver(self, share: int, runs: Sequence[RowRange]) -> None:
        """Note that rows of a share have arrived."""
        i, whole = self._place[share], self._whole
        if (
            whole is not None
            and self.as_planned
            and i not in whole
            and runs == self._windows.runs[i]
        ):
            whole.add(i)
            self.delivered_rows += self._windows.loads[i]
            return
        self._unfold()
        self._deliver(i, runs)

    def _deliver(self, i: int, runs: Iterable[RowRange]) -> None:
        for first, last in runs:
            a, b = self._at(first), self._at(last)
            have = self._have[i, a:b]
            if have.any():  # never asked twice; but an engine may repeat itself
                self._count[a:b] += ~have
                self.delivered_rows += int(np.diff(self.cuts)[a:b] @ ~have)
            else:
                self._count[a:b] += 1
                self.delivered_rows += last - first
            have[:] = True
            self.asked[i, a:b] = True  # also what came after it was given up: not to be asked again

    def _unfold(self) -> None:
        """Bring the arrays up to what was noted."""
        whole, self._whole = self._whole, None
        if whole is None:
            return
        self.asked = self.asked.copy()
        self._have = np.zeros_like(self.asked)
        self._count = np.zeros(len(self.need), dtype=np.intp)
        self._index = {row: j for j, row in enumerate(self.cuts.tolist())}
        self.delivered_rows = 0
        for i in whole:
            self._deliver(i, self._windows.runs[i])

    @property
    def have(self) -> NDArray[np.bool_]:
        """(shares, segments): what each share has delivered."""
        self._unfold()
        return self._have

    @property
    def count(self) -> NDArray[np.intp]:
        """(segments,): how many have delivered."""
        self._unfold()
        return self._count

    def owes(self, share: int) -> bool:
        """Whether a share was asked for rows that have not come."""
        i = self._place[share]
        if self._whole is not None:
            return i not in self._whole and bool(self._windows.runs[i])
        return bool((self.asked[i] & ~self._have[i]).any())

    @property
    def done(self) -> bool:
        """True when every segment has what it needs."""
        # Counting rows first keeps the array test off the path of all but the last replies.
        if self.delivered_rows < self.rows_used:
            return False
        return (self.as_planned and self._whole is not None) or bool(
            (self.count >= self.need).all()
        )

    def require_more(self, segments: Sequence[int]) -> None:
        """Raise by one what these segments need (the replies at hand decode poorly).

        More than the threshold is a wish: `top_up` lets it go where nobody is left to grant it.
        """
        self.as_planned = False
        self.need = self.need.copy()
        self.need[list(segments)] += 1
        self.rows_used = int(self.need @ np.diff(self.cuts))

    def admit(self, share: int) -> None:
        """Add a share that came to life during the round; it owes nothing yet.

        A share that was there before, under another worker, keeps what it has delivered.
        """
        if share in self._place:
            return
        self._place = {**self._place, share: len(self.shares)}
        self.shares = [*self.shares, share]
        blank = np.zeros((1, len(self.need)), dtype=bool)
        self._unfold()
        self.asked = np.vstack([self.asked, blank])
        self._have = np.vstack([self._have, blank])

    def retire(self, share: int) -> None:
        """Note that what a share still owes will not come."""
        self._unfold()
        i = self._place[share]
        self.asked[i] = self._have[i]

    def forget(self, share: int) -> None:
        """Note that what a share has delivered was wrong: it is to come from others."""
        i = self._place[share]
        have = self.have[i]
        self._count -= have
        self.delivered_rows -= int(np.diff(self.cuts) @ have)
        self.asked[i] = have[:] = False
        self.as_planned = False

    def keep(self, shares: Collection[int]) -> None:
        """Bring the shares up to those that are live: retire the others, admit new ones."""
        for share in self.shares:
            if share not in shares:
                self.retire(share)
        for share in shares:
            self.admit(share)

    def top_up(
        self, helpers: Sequence[int], slow: Sequence[int] = ()
    ) -> tuple[dict[int, tuple[RowRange, ...]], int]:
        """Ask helpers for rows that would otherwise not come, or not soon.

        `helpers` are live shares that can take more, `slow` those live but only to be counted on
        where nobody else can stand in. An extra reply beyond the threshold is a wish: where no
        helper can give it, it is needed no more. Returns new runs by share, and how many shares are
        missing (0: none is).
        """
        lacking = self.need - self._promised(helpers)
        if not (lacking > 0).any():
            self.short = False
            return {}, 0
        self._cut_fine(lacking, len(helpers))
        lacking = self.need - self._promised(helpers)
        rows = np.array([self._place[h] for h in helpers], dtype=np.intp)
        size = np.diff(self.cuts)
        load = np.zeros(len(rows), dtype=np.intp)
        # An even share of the work, but no less than an eighth of a usual window: below that, a
        # message costs more than the rows.
        quota = max(-(-int(lacking.clip(0) @ size) // max(1, len(rows))), self._window // 8)
        # Turned by segment, so that each step of the loop reads memory that lies together.
        open_to = np.ascontiguousarray(~self.asked[rows].T)
        reach = np.ascontiguousarray(_free_run(~self.asked[rows]).T)
        given = np.zeros_like(open_to)
        for j in np.flatnonzero(lacking > 0):
            free = np.flatnonzero(open_to[j])
            # First those that have just been given the rows before, up to their quota, then the
            # least loaded that can go on longest: one long run is one product and one reply.
            going_on = given[j - 1, free] & (load[free] < quota)
            rank = np.where(going_on, -len(size), load[free] * len(size) - reach[j, free])
            take = free[np.argsort(rank, kind="stable")][: lacking[j]]
            given[j, take] = True
            load[take] += size[j]
            lacking[j] -= len(take)
        let_go = np.minimum(lacking, self.need - self._windows.threshold).clip(0)
        self.need = self.need - let_go
        self.rows_used = int(self.need @ size)
        missing = int((lacking - let_go).max(initial=0))
        self.as_planned, self.short = False, missing > 0
        self.repeated_rows += int(((self.have[rows] & given.T) @ size).sum())
        self.asked[rows] |= given.T
        self.topped_up_rows += int(load.sum())
        new = {h: runs_of(given[:, i], self.cuts) for i, h in enumerate(helpers) if load[i]}
        if missing and slow:
            # Nobody quick is left for some rows: count on the slow ones after all.
            more, missing = self.top_up([*helpers, *slow])
            new |= more
            self.short = True
        return new, missing

    def _promised(self, helpers: Sequence[int]) -> NDArray[np.intp]:
        """Deliveries per segment that are in, or owed by a helper."""
        rows = [self._place[h] for h in helpers]
        owed = self.asked[rows] & ~self.have[rows]
        return np.asarray(self.count + owed.sum(axis=0), dtype=np.intp)

    def _cut_fine(self, lacking: NDArray[np.intp], helpers: int) -> None:
        """Cut the lacking segments so that the helpers can share them evenly."""
        size = np.diff(self.cuts)
        piece = max(SMALLEST_PIECE, -(-int(lacking.clip(0) @ size) // max(1, 2 * helpers)))
        fine = []
        for j in np.flatnonzero((lacking > 0) & (size > piece)):
            parts = -(-int(size[j]) // piece)
            fine += [int(self.cuts[j]) + int(size[j]) * p // parts for p in range(1, parts)]
        if fine and self._windows.groups:
            at = np.array(fine, dtype=np.intp)
            fine = snapped(at, self._windows.rows, self._windows.groups).tolist()
        if fine:
            self._split(fine)

    def _at(self, row: int) -> int:
        """Index of the segment that begins at `row`, cutting one where needed."""
        j = self._index.get(row)
        if j is None:
            self._split([row])
            j = self._index[row]
        return j

    def _split(self, rows: Sequence[int]) -> None:
        self._unfold()
        cuts = np.union1d(self.cuts, np.asarray(rows, dtype=np.intp))
        old = np.searchsorted(self.cuts, cuts[:-1], side="right") - 1
        self.cuts = cuts
        self.asked, self._have = self.asked[:, old], self._have[:, old]
        self.need, self._count = self.need[old], self._count[old]
        self._index = {row: j for j, row in enumerate(cuts.tolist())}
        self.as_planned = False


def _free_run(free: NDArray[np.bool_]) -> NDArray[np.intp]:
    """For each row of `free`, how many columns from here on are free without a gap."""
    columns = np.arange(free.shape[1])
    taken = np.where(free, free.shape[1], columns)
    return np.asarray(np.minimum.accumulate(taken[:, ::-1], axis=1)[:, ::-1] - columns)
