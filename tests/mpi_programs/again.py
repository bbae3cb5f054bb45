"""A worker as if on another machine is frozen, given up, and used again. mpiexec -n 4."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from apart import refuse_all

import kofn

A = np.random.default_rng(0).standard_normal((600, 40))


def pid(part: int, x: Any) -> Any:
    """Tell the process that has a part."""
    return np.eye(3)[part] * os.getpid()


def until(X: kofn.CodedMatrix, done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while True:
        w = np.random.default_rng(time.monotonic_ns()).standard_normal(40)
        np.testing.assert_allclose(X @ w, A @ w, rtol=0, atol=1e-11)
        if done():
            return
        assert time.monotonic() < limit


def give_up(X: kofn.CodedMatrix, cluster: kofn.Cluster, worker: int) -> None:
    """As a round does after `lost_after` seconds, which others may take too on a busy machine."""
    until(X, lambda: worker in X.report.late)  # it owes an answer
    cluster.engine.give_up(worker)
    until(X, lambda: len(cluster.workers) == 2)


refuse_all()
with kofn.connect("mpi") as cluster:
    X = cluster.encode(A, k=2)
    pids = cluster.parts([0, 1, 2], kofn.Uncoded()).sum(pid).value
    victim = int(pids[1])
    os.kill(victim, signal.SIGSTOP)
    try:
        give_up(X, cluster, 1)
        print("given up")
    finally:
        os.kill(victim, signal.SIGCONT)
    until(X, lambda: len(cluster.workers) == 3)
    newcomer = max(cluster.workers)
    assert newcomer == 3, cluster.workers
    until(X, lambda: newcomer in X.report.rows_read)
    assert victim in cluster.parts([0, 1, 2], kofn.Uncoded()).sum(pid).value.astype(int)
    print("used again")
    # One who is killed after it was given up is nobody's loss.
    os.kill(victim, signal.SIGSTOP)
    give_up(X, cluster, newcomer)
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    until(X, lambda: time.monotonic() > began + 2)
    assert [record.worker for record in cluster.log if record.kind == "lost"] == [1, 3]
print("all of it held")
