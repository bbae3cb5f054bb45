"""Virtual time: every wait has an end, the end is reached, and nobody spins on the way to it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from support import driver_of

import kofn
from kofn.delays import Change, Delays, Script
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event

STARTS = [*np.random.default_rng(0).uniform(0.0, 100.0, 40), 1e6 / 3, 1e9 / 7, 1e12 / 3]


class Steady(VirtualEngine):
    """A virtual engine that says so when it is asked again and again at the same instant."""

    spins = 0

    def events(self, timeout: float) -> list[Event]:
        before = self.now()
        found = super().events(timeout)
        self.spins = 0 if found or self.now() > before else self.spins + 1
        assert self.spins < 1000, f"asked {self.spins} times at {before!r} s, for {timeout!r} s"
        return found


@dataclass(frozen=True)
class Times(Delays):
    """So many seconds a task, by worker; 1 s for those that are not named."""

    of: dict[int, float] = field(default_factory=dict)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.of.get(worker, 1.0)


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


def at(start: float, engine: Steady) -> Steady:
    engine.events(start)
    assert engine.now() == start
    return engine


@pytest.mark.parametrize("lost_after", [5.0, 0.1, 1 / 3])
def test_a_worker_that_says_nothing_is_lost_when_its_time_is_over(lost_after: float) -> None:
    for start in STARTS:
        engine = at(start, Steady(3, delays=Times({0: 1e15, 1: 0.05, 2: 0.05})))
        with kofn.connect(engine, lost_after=lost_after) as cluster:
            parts = cluster.parts(np.ones((3, 1)), kofn.Uncoded())
            with pytest.raises(kofn.TooFewWorkers):
                parts.sum(total, stop=kofn.exact())
            lost = [r.time for r in cluster.log if r.kind == "lost"]
        assert lost == [start + lost_after]


@pytest.mark.parametrize("seconds", [25.0, 31.0, 33.0, 40.0])
def test_who_is_asked_to_stand_in_has_all_of_the_limit(seconds: float) -> None:
    with kofn.connect(Steady(3, delays=Times({0: seconds, 1: 1e9, 2: 1e9}))) as cluster:
        X = cluster.encode(np.ones((6, 2)), k=1)
        # Worker 0 is asked for more ten times its seconds after the start: limit is 300.
        np.testing.assert_allclose(X.T @ np.ones(6), 6.0)


def test_a_worker_that_cannot_be_ended_now_is_given_up_later() -> None:
    class Short(Steady):
        short = True

        def put(self, worker: int, key: str, value: Any) -> None:
            if worker != 0:  # which never answers, so nothing but this can give it up
                super().put(worker, key, value)

        def lose(self, worker: int) -> None:
            if self.short:
                self.short = False
                raise kofn.OutOfResources("ending a worker", "Too many open files")
            super().lose(worker)

    with kofn.connect(Short(3), lost_after=5.0) as cluster:
        with pytest.raises(kofn.OutOfResources, match="ending a worker needs"):
            cluster.encode(np.ones((6, 2)), k=3)
        X = cluster.encode(np.ones((6, 2)), k=3)
        assert cluster.workers == (1, 2)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X @ np.ones(2)


@pytest.mark.parametrize("wait", [0.1, 1 / 3, 1.0])
def test_a_wait_for_joiners_ends(wait: float) -> None:
    for start in STARTS:
        engine = at(start, Steady(1, delays=Times()))
        with kofn.connect(engine, wait=wait) as cluster:
            parts = cluster.parts(np.ones((1, 1)), kofn.Uncoded())
            cluster.lose(0)
            began = engine.now()
            with pytest.raises(kofn.TooFewWorkers):
                parts.sum(total)
            assert engine.now() == began + wait


@pytest.mark.parametrize("wait", [0.1, 1 / 3])
def test_enough_are_waited_for_from_any_start(wait: float) -> None:
    for start in STARTS:
        engine = at(start, Steady(1))
        with kofn.connect(engine, wait=wait) as cluster:
            with pytest.raises(kofn.TooFewWorkers):
                driver_of(cluster).await_enough(lambda: 0, 1, lambda: wait)
            assert engine.now() == start + wait


@pytest.mark.parametrize("seconds", [0.05, 1 / 3, 2.0, 1e-4])
def test_a_deadline_ends_a_sum(seconds: float) -> None:
    for start in STARTS:
        engine = at(start, Steady(3, delays=Times({0: seconds / 7, 1: 1e15, 2: 1e15})))
        with kofn.connect(engine) as cluster:
            parts = cluster.parts(np.ones((3, 1)), kofn.Uncoded())
            found = parts.sum(total, stop=kofn.deadline(seconds) & kofn.first(1))
            assert not found.exact
            assert engine.now() == max(start + seconds, start + seconds / 7)


def test_silence_ends_at_its_limit() -> None:
    for start in STARTS:
        for limit in (1e-20, 0.1, 7 / 3):
            engine = at(start, Steady(2))
            with kofn.connect(engine, limit=limit) as cluster:
                with pytest.raises(kofn.Stalled):
                    driver_of(cluster).await_joined(7)
                assert engine.now() == start + limit


def test_a_cluster_is_waited_for_from_any_start() -> None:
    for start in STARTS:
        with kofn.connect(at(start, Steady(2))) as cluster:
            with pytest.raises(kofn.TooFewWorkers):
                cluster.wait_for(3, timeout=1 / 3)
            assert cluster.engine.now() == start + 1 / 3


class Tiring(Delays):
    """Worker 0 does its first task in `quick` seconds; every other task takes a second."""

    def __init__(self, quick: float) -> None:
        self.quick = quick

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        if worker:
            return 1.0
        took, self.quick = self.quick, 1.0
        return took


@pytest.mark.parametrize("quick", [0.0, 1e-9])
def test_a_sequence_whose_fastest_takes_no_time(quick: float) -> None:
    """The rounds of a sequence are judged by the fastest worker: also where that takes 0 s."""
    for start in (0.0, 1e12 / 3):
        with kofn.connect(at(start, Steady(6, delays=Tiring(quick)))) as cluster:
            S = cluster.sequence(kofn.Polynomial(x=2, y=2))
            X = np.arange(16.0).reshape(4, 4)
            np.testing.assert_allclose(S.submit(X, X).result(), X @ X)


class Spied:
    """A lock that counts in vain attempts: those that waited a while, and those that did not."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.waited, self.at_once = lock, 0, 0
        self.enough = threading.Event()  # attempts in vain

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.lock.acquire(blocking, timeout):
            return True
        self.waited += timeout > 0
        self.at_once += timeout <= 0
        if self.waited + self.at_once >= 6:
            self.enough.set()
        return False

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_waiting_while_another_thread_drives_is_no_loop() -> None:
    """A look that finds another thread at the engine waits for it a while."""
    began = threading.Event()

    class Held(Delays):
        def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
            began.set()
            assert spied.enough.wait(60.0)
            return 1.0

    engine = Steady(1, delays=Held(), membership=Script((Change(0.5, None),)))
    with kofn.connect(engine) as cluster:
        spied = Spied(driver_of(cluster).lock)
        driver_of(cluster).lock = spied  # type: ignore[assignment]
        parts = cluster.parts(np.ones((1, 1)), kofn.Uncoded())
        driver = threading.Thread(target=lambda: parts.sum(total))
        driver.start()
        assert began.wait(60.0)
        cluster.wait_for(2)
        driver.join()
        assert cluster.workers == (0, 1)
    # One look at who is there, then one that waits: never two in a row that do not.
    assert spied.waited >= spied.at_once - 1
