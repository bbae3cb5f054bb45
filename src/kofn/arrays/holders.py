"""Who holds which share of a matrix, and how newcomers get theirs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..codes.mds import MDSCode
from ..errors import KofnError
from ..model import Update
from ..rounds import Drive

ShareOf = Callable[[int], Any]  # a share's number -> its value, or a Build that a worker runs


class Holders:
    """The shares of one matrix on the workers of one cluster.

    Every live worker without a share is given a free one while there are any. A share that is
    being stored counts as held, but not as ready.
    """

    def __init__(self, drive: Drive, code: MDSCode, share_of: ShareOf) -> None:
        self.drive, self.code = drive, code
        self.key = f"share-{drive.next_task()}"
        self.shares: dict[int, int] = {}  # worker -> the share it holds or is being given
        self.updates = 0
        self._share_of: ShareOf | None = share_of
        # Workers forget their shares when nobody can multiply with them any more.
        weakref.finalize(self, _forget, drive, self.key)

    def ready(self) -> dict[int, int]:
        """Live workers that hold their share as it is now, in the order of shares."""
        stored, key = self.drive.stored, self.key
        held = [(s, w) for w, s in self.shares.items() if key in stored.get(w, ())]
        return {w: s for s, w in sorted(held)}

    def enlist(self) -> None:
        """Give a share to each live worker that has none, while there are shares left."""
        live = self.drive.stored
        if len(self.shares) == len(live) and self.shares.keys() == live.keys():
            return
        for worker in [w for w in self.shares if w not in live]:
            del self.shares[worker]
        for worker in live:
            self.supply(worker)

    def supply(self, worker: int) -> None:
        """Give one worker a share, if it has none and one is free.

        A matrix that has been updated is no longer what it was made of: see `vacant`.
        """
        if self._share_of is not None:
            share = self._free(worker)
            if share is not None:
                self.give(worker, share, self._share_of(share))

    def vacant(self) -> list[tuple[int, int]]:
        """Workers to be given a share that must be rebuilt from live ones, and which."""
        if self._share_of is not None:
            return []
        found: list[tuple[int, int]] = []
        for worker in self.drive.stored:
            share = self._free(worker, {s for _, s in found})
            if share is not None:
                found.append((worker, share))
        return found

    def give(self, worker: int, share: int, value: Any) -> None:
        """Store a share at a worker."""
        self.shares[worker] = share
        self.drive.engine.put(worker, self.key, value)

    def update(self, change: Callable[[int], Update]) -> None:
        """Let every holder change its share in place; who has not confirmed is not ready.

        Puts are ordered and never cancelled, so a worker that is late with it, even one that is
        stopped and goes on, is never used with a share that lacks an update.
        """
        self._share_of = None
        self.updates += 1
        for worker, share in list(self.shares.items()):
            if worker in self.drive.stored:
                self.drive.stored[worker].discard(self.key)
                self.drive.engine.put(worker, self.key, change(share))
        self.drive.await_stored(self.key, list(self.shares), enough=self.code.k)

    def _free(self, worker: int, taken: set[int] | None = None) -> int | None:
        if worker in self.shares or worker not in self.drive.stored:
            return None
        held = {s for w, s in self.shares.items() if w in self.drive.stored} | (taken or set())
        return next((s for s in range(self.code.n) if s not in held), None)


def _forget(drive: Drive, key: str) -> None:
    with suppress(KofnError):  # closed already: nothing is kept any more
        drive.engine.forget(key)
