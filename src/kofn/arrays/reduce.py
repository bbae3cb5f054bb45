"""A round that needs every reply, because the result is their sum.

A share is a combination of any k others. So what a lost (or late) worker owed is re-expressed as
work for others, scaled by known coefficients; the sums that have arrived stay good.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import length
from ..model import Command, Reply, RowRange, Send
from ..rounds.lateness import Late
from ..rounds.watch import Verifier, WatchedRound
from ..rounds.windows import runs

if TYPE_CHECKING:
    from .tasks import Adjoint

TEAMS = 16  # that stand in for a share, where they are large: weights cost O(k³) a team


@dataclass(eq=False)
class Item:
    """A term of the sum: rows of a share, times `u`."""

    share: int
    runs: tuple[RowRange, ...]
    u: NDArray[Any] | None  # (rows of the runs, width); None where values are skipped
    worker: int | None = None  # who was asked last
    value: Any = None
    replied: bool = False
    first: bool = False  # its rounding is in the η of the plan

    @property
    def rows(self) -> int:
        return sum(last - first for first, last in self.runs)

    @property
    def flat(self) -> NDArray[np.intp]:
        """The rows, one by one."""
        return np.concatenate([np.arange(first, last) for first, last in self.runs])


@dataclass(eq=False)
class _Way:
    """Items that add up to some of the sum, and those that others stand in for among them."""

    items: list[Item]
    replaced: list[Item] = field(default_factory=list)

    def waiting(self) -> dict[int, list[Item]]:
        """Items without a reply, by share."""
        by_share: dict[int, list[Item]] = {}
        for item in self.items:
            if not item.replied:
                by_share.setdefault(item.share, []).append(item)
        return by_share


@dataclass(eq=False)
class _Terms:
    """A part of the sum, with several ways to get it; the first way that is complete counts.

    The base has one way. The part that a late worker owes, `whole`, has two or more: its own
    replies, and those of others that stand in.
    """

    ways: list[_Way]
    whole: Item | None = None

    @property
    def counted(self) -> _Way | None:
        """The way that is all there."""
        return next((w for w in self.ways if all(item.replied for item in w.items)), None)


class SumRound(WatchedRound):
    """Sum the items; re-express what is lost or late. `shares`: worker -> its share.

    What a lost worker owed is replaced. What a late one owes is done by its own replies or by those
    that stand in for it, whichever are all there first; when some of these are late, too, others
    stand in beside them.
    """

    what = "X.T @ z"

    def __init__(
        self,
        id: int,
        items: Sequence[Item],
        shares: Mapping[int, int],
        work: Adjoint,
        late: Late | None,
        resting: Collection[int] = (),
    ) -> None:
        super().__init__(id, work.key, work.threshold, shares, late, resting)
        self.rows_used = sum(item.rows for item in items)
        self.rows_topped_up = 0
        self._work = work
        for item in items:
            item.first = True
        self._terms = [_Terms([_Way(list(items))])]  # the base; then one for each that was late
        self._numbered: list[Item] = []

    @property
    def rule(self) -> str:
        return "what every share adds to the sum is here"

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        self.done = self.rows_used == 0
        return [self._send(item) for item in self._terms[0].ways[0].items]

    @property
    def owing(self) -> tuple[int, ...]:
        ways = [way for terms in self._undone() for way in terms.ways]
        shares = {share for way in ways for share in way.waiting()}
        return tuple(sorted(w for share, w in self._holder.items() if share in shares))

    @property
    def unanswered(self) -> tuple[int, ...]:
        open = {item.worker for item in self._numbered if not item.replied}
        late = {worker for worker in self._holder.values() if worker in open}
        return tuple(sorted(late | self._slow))

    def total(self) -> Any:
        """The sum; None where values are skipped."""
        values = [item.value for way in self._counted() for item in way.items]
        return None if values[0] is None else sum(values[1:], start=values[0])

    @property
    def strain(self) -> float:
        """η², as far as workers that stood in for others have caused it.

        The rounding of an item is as large as its share's row times its operand, at every level of
        standing in. So η need not be propagated from level to level. Operands of items that were
        replaced are rounded too, so all levels count.
        """
        items = [item for way in self._counted() for item in [*way.items, *way.replaced]]
        return sum(self._strain(item) for item in items if not item.first)

    def _counted(self) -> list[_Way]:
        return [way for terms in self._terms if (way := terms.counted) is not None]

    def _undone(self) -> list[_Terms]:
        return [terms for terms in self._terms if terms.counted is None]

    def _strain(self, item: Item) -> float:
        length = self._work.size(item.share) * _length(item.u)
        return (length / self._work.length) ** 2 if length else 0.0

    def _wrong(self, event: Reply, verifier: Verifier) -> str | None:
        item = self._numbered[event.what]
        return verifier.wrong(item.share, item, event.value)

    def _replied(self, event: Reply) -> Sequence[Command]:
        if event.what is not None:
            item = self._numbered[event.what]
            item.replied, item.value = True, event.value
        self.done = all(terms.counted is not None for terms in self._terms)
        return ()

    def _mend(self) -> list[Command]:
        """Have others do what nobody is at, or nobody that is counted on."""
        commands: list[Command] = []
        homeless = False  # something is owed by nobody: fewer than k shares are live
        holder = self._holder
        for terms in self._undone():
            own = terms.ways[0] if terms.whole is not None and len(terms.ways) > 1 else None
            if own is not None and not own.waiting().keys() <= holder.keys():
                terms.ways.remove(own)  # the late one is lost: those that stand in are left
            for way in terms.ways:
                commands += self._replace(way)
            ways = [[holder.get(share) for share in way.waiting()] for way in terms.ways]
            homeless |= all(None in workers for workers in ways)
            if terms.whole is None:
                commands += self._set_apart(terms.ways[0])
            elif not any(all(map(self._quick, workers)) for workers in ways):
                commands += self._stand_in(terms, terms.whole)
        self.missing = max(0, self.threshold - self.live) if homeless else 0
        return commands

    def _replace(self, way: _Way) -> list[Command]:
        """Have others do what the lost owed, or those that have their shares now."""
        commands: list[Command] = []
        for share, owed in way.waiting().items():
            holder = self._holder.get(share)
            if holder is not None:
                commands += [self._ask(item) for item in owed if item.worker != holder]
                continue
            whole = _merged(owed)
            if parts := self._express(whole, lost=True):
                way.items = [item for item in way.items if item not in owed] + parts
                way.replaced.append(whole)
                commands += [self._ask(part) for part in parts]
        return commands

    def _set_apart(self, base: _Way) -> list[Command]:
        """What the late owe has two ways from now on."""
        commands: list[Command] = []
        for share, owed in base.waiting().items():
            if self._holder.get(share) in self._slow:
                whole = _merged(owed)
                terms = _Terms([_Way(owed)], whole)
                commands += self._stand_in(terms, whole)
                if len(terms.ways) > 1:
                    base.items = [item for item in base.items if item not in owed]
                    self._terms.append(terms)
        return commands

    def _stand_in(self, terms: _Terms, whole: Item) -> list[Command]:
        """Have those that are counted on do what the late owe, if they can."""
        parts = self._express(whole, lost=False)
        if parts:
            terms.ways.append(_Way(parts, [whole]))
        return [self._ask(part) for part in parts]

    def _express(self, whole: Item, lost: bool) -> list[Item]:
        """Parts that replace an item; none where too few workers are there.

        Slow workers stand in for a lost one where the others are too few, or decode so poorly that
        the result would be refused. In these cases a worker that is only late is waited for.
        """
        quick, slow = self._counted_on()
        parts: list[Item] = []
        if len(quick) >= self.threshold:
            parts = self._cut(whole, sorted(quick))
            if not self._choosy or sum(map(self._strain, parts)) <= self._work.worst**2:
                return parts
        if lost and slow and len(quick) + len(slow) >= self.threshold:
            return self._cut(whole, sorted(quick + slow))
        return parts if lost else []

    def _cut(self, item: Item, shares: Sequence[int]) -> list[Item]:
        """Cut the rows in pieces; a team of k shares does each, in turn.

        One more share is in a team as long as rounding would be amplified more than is wanted.
        """
        n, k, rows, work = len(shares), self.threshold, item.rows, self._work
        sizes = np.array([work.size(share) for share in shares])
        pieces = min(n, rows, max(TEAMS, 4 * n // k))
        scale = np.zeros((n, rows))
        for p in range(pieces):
            first, last = p * rows // pieces, (p + 1) * rows // pieces
            length = _length(item.u if item.u is None else item.u[first:last])
            most = work.wanted * work.length * np.sqrt((last - first) / work.rows)
            for size in range(k, n + 1):
                team = sorted((p * n // pieces + i) % n for i in range(size))
                c = work.express(item.share, [shares[q] for q in team])
                if np.linalg.norm(c * sizes[team]) * length <= most:
                    break
            scale[team, first:last] = c[:, None]
        parts, flat = [], item.flat
        for q, share in enumerate(shares):
            mine = np.flatnonzero(scale[q])
            if len(mine):
                u = item.u
                if u is not None:
                    u = (u[mine] * scale[q, mine, None]).astype(u.dtype)
                parts.append(Item(share, runs(flat[mine]), u))
        return parts

    def _ask(self, item: Item) -> Send:
        self.rows_topped_up += item.rows
        return self._send(item)

    def _send(self, item: Item) -> Send:
        number, item.worker = len(self._numbered), self._holder[item.share]
        self._numbered.append(item)
        return self._dispatch(self._work.task(self.id, item.worker, number, item))


def _length(u: NDArray[Any] | None) -> float:
    return 0.0 if u is None else length(u)


def _merged(items: Sequence[Item]) -> Item:
    """Several items of a share as one: what is stood in for again and again stays one task."""
    rows = np.unique(np.concatenate([item.flat for item in items]))
    u = items[0].u
    if u is not None:
        u = np.zeros((len(rows), u.shape[1]), u.dtype)
        for item in items:
            u[np.searchsorted(rows, item.flat)] += item.u
    return Item(items[0].share, runs(rows), u)
