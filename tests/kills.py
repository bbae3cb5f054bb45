"""Ten workers are killed one after the other, each during a product, and `keep` brings others.

Imported by test_keep.py, and run under mpiexec. Prints a line when all of it held.
"""

from __future__ import annotations

import os
import signal

import numpy as np

import kofn
from kofn.engines.base import Engine, Wrapped
from kofn.model import Task

WORKERS, THRESHOLD, KILLS = 6, 3, 10


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


def ten_kills(engine: Engine) -> kofn.Cluster:
    """Multiply through the kills; return the cluster, with as many workers as before."""
    rng = np.random.default_rng(0)
    A, killing = rng.standard_normal((600, 40)), Killing(engine, KILLS)
    cluster = kofn.connect(killing, keep=WORKERS, wait=120.0)
    X = cluster.encode(A, k=THRESHOLD)
    while killing.left or len(cluster.workers) < WORKERS:
        w = rng.standard_normal(40)
        y, exact = X @ w, A @ w
        bound = X.report.error_bound
        assert bound is not None
        assert np.linalg.norm(y - exact) <= bound * np.linalg.norm(exact)
    assert len(cluster.workers) == WORKERS, cluster.workers
    log = cluster.log
    assert sorted(r.worker for r in log if r.kind == "lost") == sorted(killing.killed)
    assert len(killing.killed) == KILLS
    assert sum(r.kind == "ordered" for r in log) == KILLS
    assert not [r for r in log if r.kind == "refused"]
    return cluster


if __name__ == "__main__":
    from kofn.engines.mpi import MPIEngine

    with ten_kills(MPIEngine()):
        print("six workers again")
