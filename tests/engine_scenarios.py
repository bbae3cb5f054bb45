"""What happens to products while workers are killed, join and stand still, on any engine.

test_engines.py plays each on every engine of processes: in the process of the tests, or under
mpiexec, where this file is the program: `mpiexec -n 7 python engine_scenarios.py half_are_killed`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from waiting import until

import kofn
from kofn.engines.base import Engine, Wrapped
from kofn.model import Task
from kofn.testing import Faults

Make = Callable[[int], Engine]
ROWS, COLUMNS = 6000, 200


def check(X: kofn.CodedMatrix, A: NDArray[np.float64]) -> kofn.ProductReport:
    """One product, right to the stated bound, not restarted."""
    w = np.random.default_rng(time.monotonic_ns()).standard_normal(COLUMNS)
    y, exact = X @ w, A @ w
    report = X.report
    assert report.error_bound is not None
    assert report.error_bound < 1e-12
    assert np.linalg.norm(y - exact) <= report.error_bound * np.linalg.norm(exact)
    assert not report.restarted
    return report


def until_it_takes_part(worker: int, X: kofn.CodedMatrix, A: NDArray[np.float64]) -> None:
    """Multiply until a worker's rows are used."""
    until(lambda: worker in check(X, A).rows_read, f"worker {worker} to take part")


def half_are_killed(make: Make, workers: int) -> None:
    """Kill half of the workers, each while it computes; half as many join, and have their rows."""
    A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    left = workers // 2
    victims = [int(w) for w in np.random.default_rng(0).permutation(workers)[:left]]
    faults = Faults()
    for i, victim in enumerate(victims):
        # Slow in its last round, so that the kill surely falls into work in flight.
        round = 2 * i + 2
        faults = faults.slow(worker=victim, by=1000.0, round=round).lose(worker=victim, round=round)
    with kofn.connect(faults.on(make(workers)), wait=60.0) as cluster:
        # Not one is left out, late or slow as it may be: each victim is asked, and dies.
        X = cluster.encode(A, k=left, loads="equal", late=None)
        reports = [check(X, A) for _ in range(2 * len(victims) + 2)]
        # Each kill fell into a round in flight, which was counted like any other.
        assert [r.round for r in reports] == list(range(1, len(reports) + 1))
        assert sorted(worker for r in reports for worker in r.lost) == sorted(victims)
        assert all(len(r.lost) <= 1 for r in reports)
        assert all(r.rows_topped_up > 0 for r in reports if r.lost)
        assert set(cluster.workers) == set(range(workers)) - set(victims)
        assert len(check(X, A).live) == left

        joined = [cluster.join() for _ in range(left // 2)]
        assert joined == list(range(workers, workers + left // 2))
        until(lambda: len(check(X, A).live) == left + len(joined), "all of them to take part")
        report = check(X, A)
        assert not report.late
        for worker in report.live:  # the newcomers carry their part of the rows
            assert abs(report.rows_read[worker] - ROWS / len(report.live)) <= left


def one_is_frozen(make: Make, workers: int) -> None:
    """Stop a worker: no product waits for it; when it continues, it takes part again."""
    A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    with kofn.connect(make(workers)) as cluster:
        X = cluster.encode(A, k=2)
        until_it_takes_part(1, X, A)
        pid = cluster.engine.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            reports = [check(X, A) for _ in range(5)]
            assert 1 in reports[0].late  # or this had waited for it until it continues: for ever
            assert all(1 not in report.rows_read for report in reports)
            assert all(1 not in report.live for report in reports[1:])  # and is asked no more
        finally:
            os.kill(pid, signal.SIGCONT)
        until_it_takes_part(1, X, A)
        assert cluster.workers == tuple(range(workers))


def one_is_given_up(make: Make, workers: int) -> None:
    """A worker that stands still for longer than the user allows is lost."""
    A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    faults = Faults().freeze(worker=1, round=2, rounds=1000)
    with kofn.connect(faults.on(make(workers)), lost_after=5.0) as cluster:
        X = cluster.encode(A, k=workers)  # all are needed
        check(X, A)
        missing = 0
        try:
            X @ np.ones(COLUMNS)
        except kofn.TooFewWorkers as error:
            missing = error.missing
        assert missing == 1
        assert 1 not in cluster.workers
        cluster.join()
        check(X, A)


class Killing(Wrapped):
    """Kills the first worker of each round, with kill -9, right after its task was submitted."""

    name = "killing"

    def __init__(self, engine: Engine, kills: int) -> None:
        super().__init__(engine)
        self.left, self.killed, self._last = kills, list[int](), -1

    def submit(self, task: Task) -> None:
        super().submit(task)
        if self.left and task.round != self._last and task.worker not in self.killed:
            self._last, self.left = task.round, self.left - 1
            pid = self.engine.pid(task.worker)
            assert pid is not None
            self.killed.append(task.worker)
            os.kill(pid, signal.SIGKILL)


def killed_ones_are_replaced(make: Make, workers: int) -> None:
    """With `keep`, as many kills as there are workers end with as many workers as before."""
    A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    killing = Killing(make(workers), workers)
    with kofn.connect(killing, keep=workers, wait=120.0) as cluster:
        X = cluster.encode(A, k=(workers + 1) // 2)
        # The last one that was killed counts as live until its loss is known.
        while (
            killing.left
            or len(cluster.workers) < workers
            or not {*cluster.workers}.isdisjoint(killing.killed)
        ):
            check(X, A)
        assert len(cluster.workers) == workers
        assert max(cluster.workers) == 2 * workers - 1
        log = cluster.log
        assert sorted(r.worker for r in log if r.kind == "lost") == sorted(killing.killed)
        assert len(killing.killed) == workers
        assert sum(r.kind == "ordered" for r in log) == workers
        assert not [r for r in log if r.kind == "refused"]


PLAYED = (half_are_killed, one_is_frozen, one_is_given_up, killed_ones_are_replaced)
SCENARIOS = {scenario.__name__: scenario for scenario in PLAYED}

if __name__ == "__main__":
    from kofn.engines.mpi import MPIEngine

    name, workers = sys.argv[1:]
    SCENARIOS[name](MPIEngine, int(workers))
    print("all of it held")
