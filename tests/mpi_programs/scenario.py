"""Six of twelve workers killed in flight, two join, one is frozen and goes on; every product right.

Under `mpiexec --with-ft ulfm -n 13`, or alone. Prints a line when all of it held.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import kofn
from kofn.engines.mpi import MPIEngine
from kofn.testing import Faults

WORKERS, THRESHOLD, ROWS, COLUMNS = 12, 6, 6000, 200
VICTIMS = [3, 0, 8, 11, 5, 1]

A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


def check(X: kofn.CodedMatrix) -> kofn.ProductReport:
    """One product, right to the stated bound, not restarted."""
    w = np.random.default_rng(time.monotonic_ns()).standard_normal(COLUMNS)
    y, exact = X @ w, A @ w
    report = X.report
    assert report.error_bound is not None
    assert report.error_bound < 1e-12
    assert np.linalg.norm(y - exact) <= report.error_bound * np.linalg.norm(exact)
    assert not report.restarted
    return report


def until_it_takes_part(worker: int, X: kofn.CodedMatrix) -> None:
    limit = time.monotonic() + 60
    while worker not in check(X).rows_read:
        assert time.monotonic() < limit


def kills(X: kofn.CodedMatrix, cluster: kofn.Cluster) -> None:
    reports = [check(X) for _ in range(2 * len(VICTIMS) + 1)]
    assert sorted(w for r in reports for w in r.lost) == sorted(VICTIMS)
    assert all(len(r.lost) <= 1 for r in reports)
    assert sum(r.rows_topped_up > 0 for r in reports) >= len(VICTIMS)
    assert set(cluster.workers) == set(range(WORKERS)) - set(VICTIMS)


def frozen(X: kofn.CodedMatrix, cluster: kofn.Cluster) -> None:
    victim = cluster.workers[0]
    until_it_takes_part(victim, X)
    pid = cluster.engine.pid(victim)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(5):
            report = check(X)
            assert victim in report.late  # or this had waited for it until it goes on: for ever
            assert victim not in report.rows_read
    finally:
        os.kill(pid, signal.SIGCONT)
    until_it_takes_part(victim, X)


def main() -> None:
    faults = Faults()
    for i, victim in enumerate(VICTIMS):
        # Slow in its last round, so that the kill surely falls into work in flight.
        round = 2 * i + 2
        faults = faults.slow(worker=victim, by=1000.0, round=round).lose(worker=victim, round=round)
    with kofn.connect(faults.on(MPIEngine(WORKERS))) as cluster:
        # Nobody is left out, late or slow as it may be: each victim is asked, and dies.
        X = cluster.encode(A, k=THRESHOLD, loads="equal", late=None)
        kills(X, cluster)
        assert [cluster.join(), cluster.join()] == [WORKERS, WORKERS + 1]
        for newcomer in (WORKERS, WORKERS + 1):
            until_it_takes_part(newcomer, X)
        frozen(cluster.encode(A, k=THRESHOLD), cluster)
    print("every product right")


main()
