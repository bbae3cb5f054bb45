"""Who holds which share (of a matrix, or of the parts of a sum), and how newcomers get theirs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

from .. import interrupts
from ..errors import SharesLost, Stalled, UnknownWorker, WorkerError
from ..model import Build, Update
from .driver import RoundDriver
from .roster import Enough

MANY, LOOK = 100, 0.25  # of more workers it is looked so many seconds apart who has its share
ShareOf = Callable[[int], Any]  # a share's number -> its value, or a Build that a worker runs
Change = Callable[[str, int], Update]  # the key of what is changed, a share's number -> its update


class HasDriver(Protocol):
    """A Cluster, as far as matrices and sums need one."""

    _driver: RoundDriver


@dataclass(frozen=True)
class Version:
    """A version of the shares, after so many updates: its key, and what its owner notes of it.

    `untold` are the holders, with their shares, that may not have been sent the last `change`.
    """

    updates: int
    key: str
    note: Any = None
    change: Callable[[int], Update] | None = None
    untold: dict[int, int] = field(default_factory=dict)


class Holders:
    """The shares of one matrix or sum on the workers of one cluster.

    Every live worker without a share is given a free one while there are any: the first, or, where
    `blocks` says what each share holds copies of, one whose blocks have the fewest holders. A share
    that is being stored counts as held, but not as ready. Of the n shares k are `enough` for a
    product, and the `least` that bring all back.

    When no share is free, a worker without one is given that of a worker that is leaving. A share
    has two holders then, for a while; the one that stays is the one to ask.
    """

    def __init__(
        self,
        driver: RoundDriver,
        n: int,
        share_of: ShareOf,
        blocks: Sequence[Collection[int]] | None = None,
        enough: int = 1,
        least: int = 1,
    ) -> None:
        self.driver = driver
        self._blocks, self._enough, self._least = blocks, enough, least
        self._name = f"share-{driver.next_task()}"
        self.version = Version(0, self._name)
        self.shares = driver.roster.slots(n)  # worker -> the share it holds or is being given
        self._share_of = share_of
        self._twice: set[int] = set()  # shares that may have two holders
        self._known: tuple[tuple[int, str] | None, dict[int, int]] = None, {}
        # Workers forget their shares when nobody can multiply with them any more.
        self._keys = [self._name]
        weakref.finalize(self, driver.unwanted.extend, self._keys)

    @property
    def key(self) -> str:
        """Under which workers keep their shares as they are now."""
        return self.version.key

    @property
    def state(self) -> tuple[int, str]:
        """Where it is the same as before, so is all that can be said of the holders."""
        return self.driver.roster.changes, self.version.key

    def ready(self) -> dict[int, int]:
        """Live workers that hold their share as it is now, in the order of shares."""
        kept, key = self.driver.roster.kept, self.key
        # A copy: whoever asks may be in another thread than the one that drives.
        held = [(s, w) for w, s in list(self.shares.items()) if key in kept.get(w, ())]
        if self._twice:
            held = self._one_each(held)
        return {w: s for s, w in sorted(held)}

    def place(self, enough: int | None = None) -> None:
        """Give every live worker its first share, and wait until those are there.

        Alone at the engine. With `enough` of them there, the rest is waited for only a little.
        """
        with self.driver.lock:
            self.enlist()
            given = list(self.shares)
            least = len(given) if enough is None else min(enough, len(given))
            self.driver.await_stored(self.key, given, self._there(len(given), least))

    def enlist(self) -> None:
        """Give a share to each live worker that has none, while there are shares left."""
        self._send_update()
        self._check()
        live = self.driver.roster.kept
        if self._twice:
            self._part()
        # Somebody may join while another is given its share.
        while len(self.shares) != len(live):
            given = [worker for worker in live if self.supply(worker)]
            if not given:
                return
            # What came from here is there in a moment; what a worker fetches itself may take long.
            self.driver.await_stored(self.key, given, enough=lambda _: True)

    def enlisted(self) -> dict[int, int]:
        """`ready`, after `enlist`."""
        self.enlist()
        return self.ready()

    def known(self, look: Callable[[], dict[int, int]], least: int = 0) -> dict[int, int]:
        """Who is ready, as `look` said; it looks again after a change, and below `least` of them.

        Of one Holders it is always the same look.
        """
        if self.state != self._known[0]:
            ready = look()
            self._known = self.state if len(ready) >= least else None, ready
        return self._known[1]

    def supply(self, worker: int) -> bool:
        """Give one worker a share, if it has none and one is free; whether it was sent from here.

        A matrix that has been updated is no longer what it was made of: see `vacant`.
        """
        if worker in self.shares and not self.version.updates:
            return False
        interrupts.due()  # a share may take long to make
        self._check()
        share = None if self.version.updates else self._free(worker)
        if share is None:
            return False
        value = self._share_of(share)
        self.give(worker, share, value)
        # One that a leaving worker still has is not waited for.
        return not isinstance(value, Build) and share not in self._twice

    def vacant(self) -> list[tuple[int, int]]:
        """Workers to be given a share that must be rebuilt from live ones, and which."""
        pairs: list[tuple[int, int]] = []
        roster = self.driver.roster
        for worker in roster.kept:
            if (worker, self.key) in roster.refused and worker in self.shares:
                # It could not fetch its share (a file is gone or spoiled): the others have it.
                pairs.append((worker, self.shares[worker]))
        for worker in roster.kept if self.version.updates else ():
            share = self._free(worker, {s for _, s in pairs})
            if share is not None:
                pairs.append((worker, share))
        return pairs

    def give(self, worker: int, share: int, value: Any) -> None:
        """Store a share at a worker."""
        with suppress(UnknownWorker):  # it left while its share was being made
            self.driver.put(worker, self.key, value, share)
            if share in self.shares.taken:
                self._twice.add(share)
            self.shares[worker] = share

    def second(self) -> dict[int, int]:
        """Live workers that hold a share as it is now, too, but are not the ones to ask."""
        if not self._twice:
            return {}
        asked = self.ready()
        return {w: s for w, s in self.shares.items() if w not in asked and self._keeps(w)}

    def _one_each(self, held: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """One holder of each share: of two the one that stays, or stays longer."""
        leaving, best = self.driver.roster.leaving, dict[int, int]()
        for share, worker in held:
            other = best.setdefault(share, worker)
            if leaving.get(worker, inf) > leaving.get(other, inf):
                best[share] = worker
        return list(best.items())

    def _leaving(self, worker: int, taken: Collection[int]) -> int | None:
        """The share that will be without a holder first, for one that stays."""
        leaving = self.driver.roster.leaving
        until: dict[int, float] = {}  # share -> when its last holder will be gone
        for holder, share in self.shares.items():
            until[share] = max(until.get(share, -inf), leaving.get(holder, inf))
        soon = [(end, s) for s, end in until.items() if end < inf and s not in taken]
        return min(soon)[1] if soon and worker not in leaving else None

    def _part(self) -> None:
        """Where both holders of a share stay after all, let the later one have a free share."""
        roster, free = self.driver.roster, len(self.shares.free())
        for share in list(self._twice):
            both = [w for w, s in self.shares.items() if s == share]
            if len(both) < 2:
                self._twice.discard(share)
            elif free and roster.leaving.keys().isdisjoint(both) and all(map(self._keeps, both)):
                free -= 1
                del self.shares[both[-1]]
                roster.drop(both[-1], {self.key})

    def _refused(self, taken: Collection[int]) -> list[int]:
        """Shares that nobody could keep of those that were given them, or not yet: another may."""
        refused = self.driver.roster.refused | self.driver.roster.late
        could = {share for w, share in self.shares.items() if (w, self.key) not in refused}
        return sorted({*self.shares.values()} - could - {*taken}) if refused else []

    def _keeps(self, worker: int) -> bool:
        return self.driver.roster.keeps(worker, self.key)

    def update(self, change: Change, note: Any = None) -> None:
        """Let every holder change its share; a holder is ready again when it has confirmed.

        The new version has a key of its own, so shares before and after it are never mixed. One
        assignment decides: an exception before it leaves all as it was; after an exception
        behind it, the next use of the shares sends the update to the rest. Puts are ordered and
        never cancelled, so a worker that is late with it, even one that is stopped and goes on,
        is never used with a share that lacks an update.
        """
        self._send_update()
        ready = list(self.ready())  # who was behind before this is not waited for
        old, number = self.key, self.version.updates + 1
        key, untold = f"{self._name}.{number}", dict(self.shares)
        self._keys.append(key)
        self.version = Version(number, key, note, lambda share: change(old, share), untold)
        self._send_update()
        self.wait(ready)

    def wait(self, workers: Sequence[int] | None = None) -> None:
        """Wait until k of these workers (default: of all holders) are ready, or none will be.

        Of an updated matrix, one that could not keep its share is no error: the others have it.
        """
        while True:
            try:
                some = list(self.shares) if workers is None else workers
                # Also those that are not waited for may be enough.
                enough = self._there(len(some), self._enough)
                return self.driver.await_stored(self.key, some, enough)
            except WorkerError as error:
                if not self.version.updates:
                    raise
                self._check(error)
            except Stalled:
                if not self._pass_on():
                    raise

    def _pass_on(self) -> bool:
        """Give shares that are on their way to the silent to others too; whether there are any."""
        given = len(self.shares)
        if self.driver.roster.overdue(self.key):
            for worker in list(self.driver.roster.kept):
                self.supply(worker)
        return len(self.shares) > given

    def _there(self, awaited: int, enough: int) -> Enough:
        """Whether enough are ready: that looks at all, so with many not for each event."""
        apart, look = LOOK if awaited > MANY else 0.0, -inf

        def there(now: float) -> bool:
            nonlocal look
            if now < look:
                return False
            look = now + apart
            return len(self.ready()) >= enough

        return there

    def _send_update(self) -> None:
        """Send the last update to those that have not been sent it; twice does no harm."""
        version, roster = self.version, self.driver.roster
        if version.change is None:
            return
        while version.untold:
            worker, share = next(iter(version.untold.items()))
            if worker in roster.kept:
                ours = {key for key in roster.kept[worker] if key.split(".")[0] == self._name}
                roster.drop(worker, ours - {version.key})
                with suppress(UnknownWorker):  # it left meanwhile
                    self.driver.put(worker, version.key, version.change(share), share)
            version.untold.pop(worker, None)
        del self._keys[: self._keys.index(version.key)]
        self.version = replace(version, change=None)

    def _check(self, cause: Exception | None = None) -> None:
        """Raise SharesLost where waiting for joiners is in vain: nobody can make their shares."""
        if self.version.updates:
            refused, left = self.driver.roster.refused, len(self.shares.taken)
            if refused:
                left = len({s for w, s in self.shares.items() if (w, self.key) not in refused})
            if left < self._least:
                raise SharesLost(left, self._least, 0.0) from cause

    def _free(self, worker: int, taken: Collection[int] = ()) -> int | None:
        live = self.driver.roster.kept
        if worker in self.shares or worker not in live:
            return None
        first, blocks = self.shares.first_free(), self._blocks
        if first is not None and not taken and (blocks is None or len(live) >= self.shares.count):
            return first  # with as many workers all shares are given anyway
        free = [share for share in self.shares.free() if share not in taken]
        free = free or self._refused(taken)
        if not free:
            return self._leaving(worker, taken) if self.driver.roster.leaving else None
        if blocks is None or len(live) >= self.shares.count:
            return free[0]
        held = {*self.shares.values(), *taken}
        copies = Counter(block for share in held for block in blocks[share])

        def rank(share: int) -> tuple[int, int]:
            counts = [copies[block] for block in blocks[share]]
            return min(counts), -counts.count(min(counts))

        return min(free, key=rank)
