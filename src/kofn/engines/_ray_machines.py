"""The machines of a Ray cluster: which of them are to have how many workers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice, zip_longest
from typing import Any

from ..errors import EngineUnavailable

RESOURCE = "kofn"  # a machine that offers it says how many workers it takes


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
        turns = zip_longest(*([node] * offer for node, offer in self.offers.items()))
        places = [node for turn in turns for node in turn if node is not None]
        if count is not None:
            places = places or list(self.offers)
            self.most = -(-count // len(set(places)))
            return list(islice(cycle(places), count))
        if not places:
            raise EngineUnavailable(
                f"RayEngine starts one worker per CPU; the {len(self.offers)} machines of this "
                f"cluster offer none. Say how many: connect('ray', workers=4), or start a "
                f"machine with CPUs or --resources='{{\"{RESOURCE}\": 4}}'."
            )
        return places

    def emptiest(self, has: list[str], live: set[str]) -> str:
        """Return the machine with the fewest workers for what it offers; a silent one last.

        `has`: the machine of each worker, `live`: machines from which somebody has come.
        """
        if not self.offers:
            raise EngineUnavailable("this Ray cluster has no machine left to start a worker on.")
        silent = set(has) - live

        def rank(node: str) -> tuple[bool, bool, float]:
            offer = self.offers[node]
            return not offer, node in silent, (has.count(node) + 1) / (offer or 1)

        return min(self.offers, key=rank)
