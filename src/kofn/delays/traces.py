"""Recorded membership: who came and who went, as a spot market really did it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, count, pairwise
from typing import NamedTuple

from numpy.random import Generator

from .spot import Announced, Change, Membership


class Event(NamedTuple):
    """At `time` seconds a node was added, or removed; it was announced `notice` seconds ahead."""

    time: float
    added: bool
    node: str
    notice: float = 0.0


class Price(NamedTuple):
    """From `time` seconds on a machine costs so much an hour."""

    time: float
    usd_per_hour: float


@dataclass(frozen=True)
class SpotTrace:
    """A recorded run of a spot market; times in seconds from its start, never decreasing.

    `length`: seconds that were recorded, where that is more than the time of the last event.
    """

    events: tuple[Event, ...]
    name: str = "trace"
    prices: tuple[Price, ...] = ()
    length: float = 0.0

    @property
    def at_start(self) -> int:
        """Nodes that are there at time zero."""
        return sum(event.added for event in self.events if event.time <= 0)

    @property
    def most(self) -> int:
        """The most nodes alive at any time."""
        return max(accumulate((1 if event.added else -1 for event in self.events), initial=0))

    @property
    def seconds(self) -> float:
        """How long it is."""
        return max(self.length, max((event.time for event in self.events), default=0.0))

    def counts(self) -> list[tuple[float, int]]:
        """How many nodes there are, from each time of a change on."""
        counts: dict[float, int] = {0.0: 0}
        live = 0
        for event in self.events:
            live += 1 if event.added else -1
            counts[max(0.0, event.time)] = live
        return list(counts.items())

    def machine_seconds(self, until: float) -> float:
        """Seconds of all nodes together, up to a time."""
        return self._sum(until, ())

    def usd(self, until: float) -> float | None:
        """What the nodes cost up to a time; None where no price is known."""
        return self._sum(until, self.prices) if self.prices else None

    def _sum(self, until: float, prices: tuple[Price, ...]) -> float:
        """Seconds x nodes, or x what those cost where there are prices."""
        counts = dict(self.counts())
        costs = {max(0.0, time): usd / 3600 for time, usd in prices}
        live, cost, total = 0, costs[min(costs)] if costs else 1.0, 0.0
        times = sorted({*counts, *costs, until})
        for time, following in pairwise([t for t in times if t <= until]):
            live, cost = counts.get(time, live), costs.get(time, cost)
            total += live * cost * (following - time)
        return total

    def until(self, seconds: float) -> SpotTrace:
        """The first so many seconds of it."""
        events = tuple(e for e in self.events if e.time <= seconds)
        prices = tuple(p for p in self.prices if p.time <= seconds)
        return SpotTrace(events, self.name, prices, min(self.seconds, seconds))

    def since(self, seconds: float) -> SpotTrace:
        """The rest of the trace from so many seconds on; nodes that are there then start it."""
        alive: dict[str, None] = {}
        for event in self.events:
            if event.time <= seconds:
                if event.added:
                    alive[event.node] = None
                else:
                    del alive[event.node]
        start = [Event(0.0, True, node) for node in alive]
        later = [e._replace(time=e.time - seconds) for e in self.events if e.time > seconds]
        before = [p for p in self.prices if p.time <= seconds][-1:]
        after = [p for p in self.prices if p.time > seconds]
        prices = tuple(p._replace(time=max(0.0, p.time - seconds)) for p in (*before, *after))
        return SpotTrace((*start, *later), self.name, prices, max(0.0, self.seconds - seconds))

    def at_most(self, nodes: int) -> SpotTrace:
        """The trace with so many nodes at most: others that come are left out."""
        alive: set[str] = set()
        events: list[Event] = []
        for event in self.events:
            if event.added and len(alive) < nodes:
                alive.add(event.node)
                events.append(event)
            elif not event.added and event.node in alive:
                alive.remove(event.node)
                events.append(event)
        return replace(self, events=tuple(events), length=self.seconds)

    def offer(self, workers: int, seed: int = 0) -> SpotTrace:
        """The trace of a user who wants so many workers. Others stand by, for when one is lost.

        It begins when so many are there for the first time, or as many as there ever are.
        """
        standby: dict[str, Event] = {}
        mine: dict[str, None] = {}
        events: list[Event] = []
        for event in self.events:
            if not event.added:
                standby.pop(event.node, None)
                if event.node not in mine:
                    continue
                del mine[event.node]
                events.append(event)
            else:
                standby[event.node] = event
            while standby and len(mine) < workers:
                node = next(iter(standby))
                del standby[node]
                mine[node] = None
                events.append(Event(event.time, True, node))
        offered = replace(self, events=tuple(events), length=self.seconds)
        counts = offered.counts()
        wanted = min(workers, max(live for _, live in counts))
        start = next(time for time, live in counts if live >= wanted)
        return offered.since(start) if start > 0 else offered

    def started(self, seconds: float) -> SpotTrace:
        """The same as workers see it: a node is one so many seconds after it was added.

        Those of time zero are there at once; one that is removed before is never seen.
        """
        events: list[Event] = []
        came: dict[str, int] = {}  # node -> where its addition is
        for event in self.events:
            if event.added:
                came[event.node] = len(events)
                up = event.time + seconds if event.time > 0 else event.time
                events.append(event._replace(time=up))
            elif events[came[event.node]].time < event.time:
                events.append(event)
            else:
                events[came[event.node]] = event._replace(time=-1.0, node="")
        seen = sorted((e for e in events if e.node), key=lambda event: event.time)
        return replace(self, events=tuple(seen), length=self.seconds)

    def membership(self, scale: float, notice: float = 0.0) -> Membership:
        """As a membership model for the virtual engine, `scale` trace seconds a second.

        The nodes of time zero are those the engine starts with. Each loss is announced `notice`
        seconds of the trace ahead, if that is not 0.
        """
        replay = _Replay(self, scale)
        return Announced(replay, notice / scale) if notice else replay


@dataclass(frozen=True)
class _Replay(Membership):
    trace: SpotTrace
    scale: float

    def changes(self, rng: Generator) -> Iterator[Change]:
        worker: dict[str, int] = {}
        came: dict[str, float] = {}
        arrivals = count()  # of names, which may come back, and then stand for another worker
        changes: list[Change] = []
        for time, added, node, notice in self.trace.events:
            if added:
                worker[node], came[node] = next(arrivals), time  # ids are in order of arrival
                if time > 0:
                    changes.append(Change(time / self.scale, None))
                continue
            due = time / self.scale
            if notice > 0:
                announced = max(came[node], time - notice) / self.scale
                changes.append(Change(announced, worker[node], due))
            changes.append(Change(due, worker[node]))
        return iter(sorted(changes, key=lambda change: change.time))
