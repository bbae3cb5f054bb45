"""Keep n workers: when to order another for one that leaves. Pure; the time is an argument."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from ..model import Record
from .roster import Roster

LEAD = 180.0  # seconds before its announced end from which on a worker is replaced
FIRST, CEILING = 1.0, 60.0  # seconds until the next try after an order that came to nothing
STEADY = 10.0  # seconds in which as many may be ordered as are to be kept
YOUNG = 5.0  # seconds: who is lost sooner after it came has come in vain
IN_VAIN = 3  # so many in a row, or 2 keep if that is more, are reported


class Keeper:
    """Counts workers that are live, leave and are on the way; orders those missing to `keep`.

    Limits: at most `keep` orders at once, from then on one a second (a tenth of `keep`, if that is
    more). After an order that came to nothing there is one at a time, 1, 2, 4, … seconds after the
    last failure and in the end once a minute, until a worker comes.

    `ordered`: workers on the way, also those that the user has ordered. `look`: when to ask again
    if nothing happens before. `news`: a record for the log, why workers do not come or do not stay;
    it is made once until `keep` workers are live again.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.ordered: set[int] = set()
        self.look = inf
        self.news: Record | None = None
        self._interval = min(1.0, STEADY / keep) if keep else inf
        self._earned = -inf  # when the orders so far would be due if they came evenly
        self._pause, self._retry = 0.0, -inf  # after a failure: how long, and until when
        self._emitted = False
        self._came: dict[int, float] = {}  # who was ordered and is new, and since when it is there
        self._vain = 0  # of those the last so many were lost at once

    def act(self, roster: Roster, now: float, order: Callable[[str], int]) -> Record | None:
        """Order missing workers. An error does not end the round. Return the record to log."""
        for _ in range(self.orders(roster, now)):
            try:
                order(self.why(roster))
            except Exception as error:
                self.refused(roster, now, -1, str(error) or repr(error))
                break
        news, self.news = self.news, None
        if news is not None:
            logging.getLogger("kofn").warning(news.why)
        return news

    def orders(self, roster: Roster, now: float) -> int:
        """Return how many workers to order now."""
        for worker in [worker for worker in self.ordered if roster.came(worker)]:
            self.ordered.discard(worker)
            if worker in roster.unborn:
                self.refused(roster, now, worker, roster.unborn[worker])
            elif roster.leaving.get(worker, inf) - LEAD <= now:  # as would be the next, there
                self.refused(roster, now, worker, "it came to a machine that will be gone")
            else:
                self._pause, self._retry = 0.0, -inf
                self._came[worker] = now
        self._look_after(roster, now)
        # Who is to be gone in an hour need not be replaced yet.
        ends = [deadline - LEAD for deadline in roster.leaving.values()]
        self.look = min((end for end in ends if end > now), default=inf)
        live = len(roster.kept) - sum(end <= now for end in ends)
        if live >= self.keep:
            self._emitted = False
        missing = self.keep - live - len(self.ordered)
        if missing > 0 and self._pause:
            if self.ordered:
                return 0  # what becomes of it is an event
            missing = 1
            if now < self._retry:
                self.look = min(self.look, self._retry)
                return 0
        count = 0
        while count < missing:
            # Compared with a time, not by what is left: a virtual clock would not move.
            due = self._earned - (self.keep - 1) * self._interval
            if now < due:
                self.look = min(self.look, due)
                break
            self._earned = max(self._earned, now) + self._interval
            count += 1
        return count

    def why(self, roster: Roster) -> str:
        """Why one more is ordered."""
        live, leave, come = len(roster.kept), len(roster.leaving), len(self.ordered)
        return f"keep={self.keep}; {live} live, {leave} leaving, {come} ordered"

    def refused(self, roster: Roster, now: float, worker: int, why: str) -> None:
        """Note that an order has failed: that of this worker, -1 if it never had an id."""
        if now >= self._retry:  # those that were ordered together have failed together
            self._pause = min(CEILING, max(FIRST, 2 * self._pause))
            self._retry = now + self._pause
        self.look = min(self.look, self._retry)
        why = why.rstrip(".") or "it was lost before it came"
        again = f"no other can be had ({why}). It is tried again, in the end once a minute"
        self._emit(roster, now, worker, again)

    def _look_after(self, roster: Roster, now: float) -> None:
        """See which of those that came have stayed, and warn where none does."""
        for worker, since in list(self._came.items()):
            if since + YOUNG <= now:  # also if it is lost by now: between rounds nobody looks
                del self._came[worker]
                self._vain = 0
            elif worker not in roster.kept:
                del self._came[worker]
                self._vain += 1
                if self._vain >= max(IN_VAIN, 2 * self.keep):
                    lost = f"the last {self._vain} that came were lost within {YOUNG:.0f} s"
                    self._emit(roster, now, worker, f"{lost}. Others are ordered, one a second")

    def _emit(self, roster: Roster, now: float, worker: int, what: str) -> None:
        """Tell once what is wrong, until all are there again."""
        if not self._emitted:
            self._emitted = True
            text = (
                f"keep={self.keep} orders a worker for each one that leaves; {len(roster.kept)} "
                f"are live, and {what}. Make room for others on the machines of this cluster, or "
                f"go on with those that are live."
            )
            self.news = Record(now, "refused", -1, worker, -1, 0, text)
