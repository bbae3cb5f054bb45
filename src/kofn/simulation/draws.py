"""Common random numbers: a worker has the same delays in a round whatever the code asks of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from ..delays import Delays
from ..delays.models import InTwoParts
from ..engines._links import size_of
from ..engines.base import Engine, Wrapped
from ..model import Dropped, Event, Failed, Lost, Reply, Update

_MASK = (1 << 64) - 1
# Seconds of a core that a simulation takes, about: for an event and for a worker that is lost;
# where as many were lost in the same round as there are, for each worker and term of a sum besides.
EVENT, LOSS, STORM, TERM = 1.5e-5, 4e-4, 5e-5, 2e-6


class Spent(Exception):
    """A simulation has taken as much effort as it may."""


class Begun(NamedTuple):
    """A task that a worker has begun: when, its wait and work in seconds, and its units."""

    time: float
    wait: float
    work: float
    units: float


class Common(InTwoParts):
    """`delays` for fractions of the whole work, drawn anew for each worker, round and task of it.

    A draw depends on the seed, the worker, the round and how many tasks the worker has begun in
    the round, and on nothing else. So codes that are compared meet the same stragglers.
    """

    def __init__(self, delays: Delays, whole: float, seed: int) -> None:
        self.delays, self.whole, self.seed = delays, whole, seed
        self.begun: dict[tuple[int, int], list[Begun]] = defaultdict(list)
        self.clock: Callable[[], float] | None = None  # set where somebody reads `begun`
        self._bits = np.random.PCG64(0)
        self._rng = Generator(self._bits)
        self._state = self._bits.state
        self._counts: dict[int, int] = {}
        self._round = -1
        self.skipped = 0  # rounds that were not played: their delays are passed over

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """The wait and the work; `rng` is left alone."""
        if round > self._round:
            self._round, self._counts = round, {}
        nth = self._counts[worker] = self._counts.get(worker, 0) + 1
        key = _mixed(_mixed(_mixed(self.seed, worker + 1), round + self.skipped + 1), nth)
        self._state["state"]["state"] = key << 64 | _mixed(key, 1)
        self._bits.state = self._state
        wait, work = self.delays.timing(self._rng, worker, round + self.skipped, cost / self.whole)
        if self.clock is not None:
            self.begun[worker, round].append(Begun(self.clock(), wait, work, cost))
        return wait, work


def _mixed(state: int, value: int) -> int:
    """One step of splitmix64."""
    state = (state + value * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return state ^ state >> 31


class Meter(Wrapped):
    """A simulated engine that counts the work that its workers really do.

    Of a task that is dropped it counts what was done until then. `kept`: the most bytes that a
    worker keeps under one key. `effort`: how long it takes to simulate this, by what happened and
    not by a clock; with more than `most` of it, `events` raises Spent.
    """

    def __init__(self, engine: Engine, delays: Common, terms: int = 0) -> None:
        super().__init__(engine)
        self.effort, self.most = 0.0, float("inf")
        self._lost, self._terms = 0, terms
        delays.clock = engine.now
        self._begun = delays.begun
        self.units = 0.0
        self.kept = 0.0
        self._sizes: dict[tuple[int, str], float] = {}  # of what workers have been given

    def put(self, worker: int, key: str, value: object) -> None:
        self.engine.put(worker, key, value)
        size = size_of(value)
        if isinstance(value, Update) and value.keeps:
            size += self._sizes.get((worker, value.of), 0.0)
        self._sizes[worker, key] = size
        self.kept = max(self.kept, size)

    def events(self, timeout: float) -> list[Event]:
        events = self.engine.events(timeout)
        for event in events:
            if type(event) is Reply:
                if event.last:
                    self._ended(event.worker, event.round, event.time)
            elif type(event) is Dropped or (type(event) is Failed and event.task is not None):
                self._ended(event.worker, event.round, event.time)
            elif type(event) is Lost:
                for key in [key for key in self._begun if key[0] == event.worker]:
                    self._ended(*key, event.time)
                self._lost += 1
                n = len(self.engine.workers)
                share = min(1.0, self._lost / max(1, n))
                self.effort += LOSS + (STORM * n + TERM * self._terms) * share**2
        self.effort += EVENT * len(events)
        if self.effort > self.most:
            raise Spent
        return events

    def cancel(self, round: int) -> None:
        self._lost = 0
        self.engine.cancel(round)

    def settle(self) -> float:
        """Count what is still at work, up to now; return all units."""
        now = self.engine.now()
        for worker, round in list(self._begun):
            self._ended(worker, round, now)
        return self.units

    def _ended(self, worker: int, round: int, time: float) -> None:
        some = self._begun.get((worker, round))
        if not some:
            return  # it had not begun
        began, wait, work, units = some.pop(0)
        if not some:
            del self._begun[worker, round]
        spent = time - began - wait
        self.units += units * (min(1.0, max(0.0, spent / work)) if work > 0 else spent >= 0)
