"""The master's side: which worker watches which source, and what was announced. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import cloudpickle

from ..errors import BadInput
from ..model import Leaving
from .base import Source

INF = float("inf")
OVER = 5.0  # seconds after its time after which a notice is void: the worker is still there


EACH = ("worker", "machine", "cluster")


class Order(NamedTuple):
    """A worker is to watch a source: its number, pickle, and the place that it speaks for."""

    worker: int
    source: int
    code: bytes
    place: str  # in place of one that the source does not name; empty: the worker itself
    said: tuple[str, ...]  # places, as the source names them, of which notices stand


class Books:
    """Each source has one watcher for each worker, machine or cluster, as its `each` says.

    A worker's deadline is the first of all that were announced for it or its machine. `due` holds
    what is to be sent to workers.
    """

    def __init__(self) -> None:
        self.due: list[Order] = []
        self._sources: list[tuple[Source, bytes]] = []
        self._failed: set[int] = set()  # sources of which trouble has been logged
        self._hosts: dict[int, str] = {}  # of live workers
        self._watchers: dict[tuple[int, int | str], int] = {}  # by source and group
        self._standing: dict[tuple[int, int | str], tuple[float, str]] = {}  # and worker or place
        self._deadlines: dict[int, float] = {}  # deadlines, of workers that will go

    def add(self, sources: Iterable[Source]) -> None:
        """Watch these too, unless the very same are watched already."""
        known = {code for _, code in self._sources}
        for source in sources:
            if not isinstance(getattr(source, "name", None), str) or source.each not in EACH:
                raise BadInput(
                    f"a source of notices has a `name`, and is for `each` of {', '.join(EACH)}; "
                    f"{type(source).__name__} has not, or is not. Set both in its class."
                )
            try:
                code = cloudpickle.dumps(source, 5)
            except Exception as error:
                raise BadInput(
                    f"a source of notices is sent to workers; {source!r} cannot be pickled "
                    f"({error}). Make what it needs in its `probe`."
                ) from error
            if code not in known:
                known.add(code)
                self._sources.append((source, code))
        for worker in self._hosts:
            self._order(worker)

    def joined(self, worker: int, host: str, now: float) -> list[Leaving]:
        """A worker is there; without a host it counts as on a machine of its own."""
        self._hosts[worker] = host or f"worker {worker}"
        self._order(worker)
        return self._changed([worker], now, "") if self._standing else []

    def lost(self, worker: int) -> None:
        """A worker is gone; another one of its machine watches in its place."""
        if self._hosts.pop(worker, None) is None:
            return
        self._deadlines.pop(worker, None)
        for key in [key for key in self._standing if key[1] == worker]:
            del self._standing[key]
        self.due = [order for order in self.due if order.worker != worker]
        for key in [key for key, watcher in self._watchers.items() if watcher == worker]:
            del self._watchers[key]
            if self._sources[key[0]][0].each != "worker":
                heirs = (other for other in self._hosts if self._group(key[0], other) == key[1])
                for heir in islice(heirs, 1):
                    self._order(heir)

    def on_leaving(
        self, worker: int, now: float, seconds: float, reason: str, source: int, place: str
    ) -> list[Leaving]:
        """A watcher says that its worker, or all of a place, go in so many seconds, or stay."""
        key = source, place or worker
        if seconds == INF:
            self._standing.pop(key, None)
        else:
            self._standing[key] = now + seconds, reason
        there = [w for w, host in self._hosts.items() if host == place] if place else [worker]
        return self._changed(there, now, reason)

    def failed(self, worker: int, source: int, reason: str) -> None:
        """A watcher had trouble: that is logged, once for each source."""
        if source not in self._failed:
            self._failed.add(source)
            name = self._sources[source][0].name
            logging.getLogger("kofn").warning(f"notices {name!r}, on worker {worker}: {reason}")

    def _group(self, source: int, worker: int) -> int | str:
        each = self._sources[source][0].each
        return worker if each == "worker" else self._hosts[worker] if each == "machine" else ""

    def _order(self, worker: int) -> None:
        """Have a worker watch what nobody watches for it."""
        for number, (source, code) in enumerate(self._sources):
            group = self._group(number, worker)
            if (number, group) not in self._watchers:
                self._watchers[number, group] = worker
                places = [str(place) for other, place in self._standing if other == number]
                if source.each == "cluster":
                    order = Order(worker, number, code, "", tuple(places))
                elif source.each == "machine":
                    said = ("",) if group in places else ()
                    order = Order(worker, number, code, str(group), said)
                else:
                    order = Order(worker, number, code, "", ())
                self.due.append(order)

    def _changed(self, workers: list[int], now: float, reason: str) -> list[Leaving]:
        """The events for those whose deadline is another one now."""
        events = []
        for worker in workers:
            mine = (worker, self._hosts[worker])
            stand = [
                notice
                for (_, of), notice in self._standing.items()
                if of in mine and notice[0] + OVER > now
            ]
            deadline, why = min(stand, default=(INF, reason))
            if deadline != self._deadlines.get(worker, INF):
                self._deadlines[worker] = deadline
                events.append(Leaving(now, worker, deadline, why))
        return events
