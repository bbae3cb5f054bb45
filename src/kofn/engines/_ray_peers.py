"""What the master of the Ray engine knows: of each worker, and of the machines they are on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Any

import ray

from ..errors import EngineUnavailable
from ..interrupts import held
from ._inbox import Inbox
from ._processes import Process
from ._ray_runtime import Lease

RESOURCE = "kofn"  # a machine that offers it says how many workers it takes
_END_LIMIT = 5.0  # seconds for ended workers of this machine to be gone


class Peer:
    """One worker."""

    def __init__(self, id: int, node: str, asked: bool) -> None:
        self.id, self.node, self.asked = id, node, asked
        self.actor: Any = None
        self.process: Process | None = None  # if it is on this machine
        self.live = self.gone = False
        self.tasks: dict[int, int] = {}  # open ones -> their round
        self.functions: set[int] = set()
        self.rounds: set[int] = set()  # whose operands it has
        self.told = -(2**63)  # the highest round it knows to be cancelled
        self.returns = 0  # how many of its returns were handled
        self.early: dict[int, Any] = {}  # returns that overtook others

    def kill(self) -> None:
        """End its process: at once if it is here, else Ray is asked to."""
        if self.process is not None:
            self.process.kill()
        else:
            self.dismiss()

    def dismiss(self) -> None:
        """Have Ray end its actor; one that is frozen lives some seconds longer."""
        if ray.is_initialized():  # else it is gone, and asking would start another Ray
            with contextlib.suppress(Exception):
                ray.kill(self.actor)


class House:
    """All that must be let go at the end; apart from the engine, so a finaliser can hold it."""

    def __init__(self, lease: Lease) -> None:
        self.owner, self.lease = os.getpid(), lease
        self.inbox: Inbox[tuple[Peer, int, Any]] = Inbox()
        self.peers: dict[int, Peer] = {}  # the joining ones too

    def close(self) -> None:
        """End our actors, then leave Ray as it was."""
        if os.getpid() != self.owner:
            return  # a forked child must not end its parent's workers
        with held():
            peers, self.peers = list(self.peers.values()), {}
            try:
                for peer in peers:
                    peer.gone = True
                    if self.lease.ours:
                        peer.kill()
                    else:
                        peer.dismiss()
                _await_end(peers)
            finally:
                self.lease.release()


def _await_end(peers: list[Peer]) -> None:
    limit = time.monotonic() + _END_LIMIT
    while peers := [p for p in peers if p.process is not None and p.process.running()]:
        if time.monotonic() > limit - _END_LIMIT / 2:
            for peer in peers:  # frozen, or its raylet is
                peer.kill()
        if time.monotonic() > limit:
            return
        time.sleep(0.005)


class Machines:
    """The machines of the cluster and how many workers each offers to take."""

    def __init__(self) -> None:
        self.offers: dict[str, int] = {}  # of those alive
        self.most: float = float("inf")  # workers on a machine that comes later
        self._seen: set[str] = set()

    def learn(self, nodes: Iterable[dict[str, Any]]) -> list[str]:
        """Take in what Ray says; return, for each worker to start on a new machine, the machine."""
        alive = {n["NodeID"]: n["Resources"] for n in nodes if n["Alive"]}
        self.offers = {n: int(has.get(RESOURCE, has.get("CPU", 0))) for n, has in alive.items()}
        new = [n for n in alive if n not in self._seen]
        self._seen.update(new)
        return [n for n in new for _ in range(int(min(self.most, self.offers[n])))]

    def spread(self, count: int | None) -> list[str]:
        """Return a machine for each of the first workers, in turn as far as they offer to.

        Without a count, as many as are offered.
        """
        turns = [
            node
            for i in range(max(self.offers.values(), default=0))
            for node, offer in self.offers.items()
            if i < offer
        ]
        if count is None:
            if not turns:
                raise EngineUnavailable(
                    f"RayEngine starts one worker per CPU; the {len(self.offers)} machines of this "
                    f"cluster offer none. Say how many: connect('ray', workers=4), or start a "
                    f"machine with CPUs or --resources='{{\"{RESOURCE}\": 4}}'."
                )
            return turns
        homes = turns or list(self.offers)
        self.most = -(-count // len(set(homes)))
        return list(islice(cycle(homes), count))

    def emptiest(self, peers: Iterable[Peer]) -> str:
        """Return the machine with the fewest workers for what it offers; a silent one last."""
        if not self.offers:
            raise EngineUnavailable("this Ray cluster has no machine left to start a worker on.")
        has, live = [], set()
        for peer in peers:
            has.append(peer.node)
            if peer.live:
                live.add(peer.node)
        silent = set(has) - live

        def rank(node: str) -> tuple[bool, bool, float]:
            offer = self.offers[node]
            return not offer, node in silent, (has.count(node) + 1) / (offer or 1)

        return min(self.offers, key=rank)
