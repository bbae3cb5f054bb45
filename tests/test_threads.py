"""Engines know one caller: whoever speaks to one holds the cluster's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support import driver_of

import kofn
from kofn.arrays.baselines import Replicated, uncoded, whole_shares
from kofn.arrays.grid import encode_grid
from kofn.engines.base import Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Task
from kofn.sums.rivals import Backups, Stale

pytestmark = pytest.mark.engine

A = np.random.default_rng(0).standard_normal((24, 6))


class Guarded(Wrapped):
    """An engine that notes who spoke to it without the lock."""

    lock: Any = None

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.without: list[str] = []

    def _look(self, what: str) -> None:
        if self.lock is not None and not getattr(self.lock, "_lock", self.lock)._is_owned():
            self.without.append(what)

    def put(self, worker: int, key: str, value: Any) -> None:
        self._look("put")
        super().put(worker, key, value)

    def submit(self, task: Task) -> None:
        self._look("submit")
        super().submit(task)

    def broadcast(self, round: int, value: Any) -> None:
        self._look("broadcast")
        super().broadcast(round, value)

    def cancel(self, round: int) -> None:
        self._look("cancel")
        super().cancel(round)

    def forget(self, key: str) -> None:
        self._look("forget")
        super().forget(key)

    def events(self, timeout: float) -> list[Event]:
        self._look("events")
        return super().events(timeout)


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


def stale(cluster: kofn.Cluster) -> Any:
    return Stale(cluster, A).run(total, 0.0, lambda *_: None, 2)


USES: dict[str, Callable[[kofn.Cluster], Any]] = {
    "encode": lambda c: c.encode(A, k=2) @ np.ones(6),
    "transpose": lambda c: c.encode(A, k=2).T @ np.ones(24),
    "toarray": lambda c: c.encode(A, k=2).toarray(),
    "update": lambda c: c.encode(A, k=2).__iadd__(kofn.low_rank(A[:, :1], np.ones((6, 1)))),
    "grid": lambda c: encode_grid(c, A, (1, 2)) @ np.ones(6),
    "uncoded": lambda c: uncoded(c, A) @ np.ones(6),
    "whole shares": lambda c: whole_shares(c, A, 2) @ np.ones(6),
    "replicated": lambda c: Replicated(c, A, 2) @ np.ones(6),
    "backup": lambda c: Replicated(c, A, 2, backup=3.0).T @ np.ones(24),
    "parts": lambda c: c.parts(A).sum(total),
    "another code": lambda c: c.parts(A).sum(total, code=kofn.Uncoded()),
    "backups": lambda c: Backups(c, A).sum(total),
    "stale": stale,
}


@pytest.mark.parametrize("use", USES)
def test_whoever_speaks_to_an_engine_holds_the_lock(use: str) -> None:
    engine = Guarded(VirtualEngine(4))
    with kofn.connect(engine) as cluster:
        engine.lock = driver_of(cluster).lock
        USES[use](cluster)
        engine.lock = None
    assert engine.without == []


def test_threads_have_their_own_functions() -> None:
    # Each thread has its own function, and a barrier lets both begin at once.
    with kofn.connect(LocalEngine(3)) as cluster:
        backups, parts = Backups(cluster, [1.0, 2.0, 3.0]), cluster.parts([1.0, 2.0, 3.0])
        together = threading.Barrier(4)

        def sums(by: float, some: Any) -> set[float]:
            found = set()
            for _ in range(30):
                together.wait(timeout=240)
                value = some.sum(lambda part, x: part * by)
                found.add(float(value.value if some is parts else value))
            return found

        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(sums, by, some) for by in (1.0, 10.0) for some in (backups, parts)]
            assert [job.result() for job in jobs] == [{6.0}, {6.0}, {60.0}, {60.0}]
        assert backups.asked_again >= 0


def test_who_waits_for_a_worker_does_not_hold_up_another_threads_rounds() -> None:
    """It looks at what has arrived, and rests without the lock; or rounds wait for its waits."""
    waits: dict[int, list[float]] = {}

    class Timed(Wrapped):
        def events(self, timeout: float) -> list[Event]:
            waits.setdefault(threading.get_ident(), []).append(timeout)
            return super().events(timeout)

    with kofn.connect(Timed(LocalEngine(3))) as cluster, ThreadPoolExecutor(1) as pool:
        X = cluster.encode(A, k=2)
        X @ np.ones(6)
        enough = threading.Event()
        driver = driver_of(cluster)
        waiter = pool.submit(driver._wait, lambda: [] if enough.is_set() else [99])
        other = pool.submit(threading.get_ident)
        while len(waits) < 2 or len(list(waits.values())[1]) < 3:
            np.testing.assert_allclose(X @ np.ones(6), A @ np.ones(6), rtol=1e-12)
        enough.set()
        waiter.result(60)
        assert set(waits[other.result(60)]) == {0.0}
        cluster.wait_for(3)
        assert cluster.join() == 3  # in the thread that has the rounds it waits as ever
