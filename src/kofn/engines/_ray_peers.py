"""What the master of the Ray engine knows: of each worker, and of the machines they are on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Any

import ray

from ..errors import EngineUnavailable
from ._processes import Process, end
from .protocol import Message

RESOURCE = "kofn"  # a machine that offers it says how many workers it takes
_GRACE = 2.5  # seconds for workers of this machine to end before they are killed


class Peer:
    """One worker."""

    def __init__(self, id: int, node: str, asked: bool) -> None:
        self.id, self.node, self.asked = id, node, asked
        self.actor: Any = None
        self.process: Process | None = None  # if it is on this machine
        self.live = self.gone = False
        self.waiting: list[Message] = []  # to be sent with its next task
        self.returns = 0  # how many of its returns were handled
        self.early: dict[int, list[Message]] = {}  # returns that overtook others

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


def end_all(peers: list[Peer], at_once: bool) -> None:
    """End workers, by Ray unless `at_once`; wait until those of this machine are gone."""
    for peer in peers:
        if at_once:
            peer.kill()
        else:
            peer.dismiss()
    processes = [peer.process for peer in peers if peer.process is not None]
    limit = time.monotonic() + _GRACE
    while any(process.running() for process in processes) and time.monotonic() < limit:
        time.sleep(0.005)
    end(processes)  # frozen, or their raylet is


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
