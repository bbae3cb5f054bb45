"""Recorded membership: who came and who went, as a spot market really did it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from math import isfinite
from os import PathLike, fspath
from typing import NamedTuple

from numpy.random import Generator

from ..errors import BadInput
from .spot import Announced, Change, Membership
from .tables import read_rows


class Event(NamedTuple):
    """At `time` seconds a node was added, or removed."""

    time: float
    added: bool
    node: str


@dataclass(frozen=True)
class SpotTrace:
    """A recorded run of a spot market; times in seconds from its start, never decreasing."""

    events: tuple[Event, ...]
    name: str = "trace"

    @property
    def at_start(self) -> int:
        """Nodes that are there at time zero."""
        return sum(event.added for event in self.events if event.time <= 0)

    @property
    def most(self) -> int:
        """The most nodes alive at any time."""
        return max(accumulate((1 if event.added else -1 for event in self.events), initial=0))

    def until(self, seconds: float) -> SpotTrace:
        """The first so many seconds of it."""
        return SpotTrace(tuple(e for e in self.events if e.time <= seconds), self.name)

    def since(self, seconds: float) -> SpotTrace:
        """What is left after so many seconds; who is there then is there at its start."""
        alive: dict[str, None] = {}
        for event in self.events:
            if event.time <= seconds:
                if event.added:
                    alive[event.node] = None
                else:
                    del alive[event.node]
        start = [Event(0.0, True, node) for node in alive]
        later = [e._replace(time=e.time - seconds) for e in self.events if e.time > seconds]
        return SpotTrace((*start, *later), self.name)

    def at_most(self, nodes: int) -> SpotTrace:
        """The same where no more than so many nodes are wanted: others that come are left out."""
        alive: set[str] = set()
        events: list[Event] = []
        for event in self.events:
            if event.added and len(alive) < nodes:
                alive.add(event.node)
                events.append(event)
            elif not event.added and event.node in alive:
                alive.remove(event.node)
                events.append(event)
        return SpotTrace(tuple(events), self.name)

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
        arrivals = count()  # of names, which may come back, and then stand for another worker
        for event in self.trace.events:
            if event.added:
                worker[event.node] = next(arrivals)  # ids are given in order of arrival
                if event.time > 0:
                    yield Change(event.time / self.scale, None)
            else:
                yield Change(event.time / self.scale, worker[event.node])


def read_spot_trace(path: str | PathLike[str]) -> SpotTrace:
    """Read a CSV file, gzipped or not: the columns time_ms, event (add or remove) and node."""
    name = fspath(path)
    found = [
        (_event(row, line, name), line)
        for line, row in enumerate(read_rows(path, "a spot trace"), 2)
    ]
    found.sort(key=lambda pair: pair[0].time)
    alive: set[str] = set()
    for (_, added, node), line in found:
        if added == (node in alive):
            kind, state = ("add", "is there already") if added else ("remove", "is not there")
            raise BadInput(f"line {line} of {name} would {kind} {node!r}, which {state}.")
        (alive.add if added else alive.discard)(node)
    if not any(event.time <= 0 for event, _ in found):
        raise BadInput(
            f"a spot trace starts with the nodes that are there at time 0; {name} has none."
        )
    return SpotTrace(tuple(event for event, _ in found), name)


def _event(row: dict[str, str], line: int, path: str) -> Event:
    try:
        time, kind, node = float(row["time_ms"]) / 1e3, row["event"], row["node"]
        if kind not in ("add", "remove") or not isfinite(time) or node is None:
            raise ValueError(kind)
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            f"a spot trace has the columns time_ms, event (add or remove) and node; line "
            f"{line} of {path} is {dict(row)}."
        ) from None
    return Event(time, kind == "add", node)
