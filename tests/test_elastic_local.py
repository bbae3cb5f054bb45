"""The first promise on real processes: products go on while workers are killed and join."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import kofn
from kofn.engines.local import LocalEngine
from kofn.testing import Faults

pytestmark = pytest.mark.engine

ROWS, COLUMNS, WORKERS, THRESHOLD = 20_000, 500, 20, 10


@pytest.fixture(scope="module")
def A() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


def check(
    X: kofn.CodedMatrix, A: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> kofn.ProductReport:
    """One product, right to the stated bound, not restarted."""
    w = np.random.default_rng(len(X.windows())).standard_normal(COLUMNS)
    y, exact = X @ w, A @ w
    report = X.report
    assert report.error_bound is not None
    assert report.error_bound < 1e-12
    assert np.linalg.norm(y - exact) <= report.error_bound * np.linalg.norm(exact)
    assert not report.restarted
    return report


def test_the_eleventh_loss_gives_one_clear_error_naming_how_many_are_missing(
    A: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    faults = Faults()
    for victim in range(11):  # slow, or a short task is done before the kill
        faults = faults.slow(worker=victim, by=1e4, round=2).lose(worker=victim, round=2)
    with kofn.connect(faults.on(LocalEngine(WORKERS))) as cluster:
        X = cluster.encode(A, k=THRESHOLD, late=None)  # who owes an answer would not be asked
        check(X, A)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing") as caught:
            X @ np.ones(COLUMNS)
        assert (caught.value.live, caught.value.need, caught.value.missing) == (9, 10, 1)
        # Nothing is broken: with one worker more the same matrix goes on.
        cluster.join()
        check(X, A)


def test_with_a_wait_limit_a_joiner_in_time_saves_the_round(
    A: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    faults = Faults().join(round=2)
    for victim in range(11):  # slow, or a short task is done before the kill
        faults = faults.slow(worker=victim, by=1e4, round=2).lose(worker=victim, round=2)
    with kofn.connect(faults.on(LocalEngine(WORKERS)), wait=60.0) as cluster:
        X = cluster.encode(A, k=THRESHOLD, late=None)
        check(X, A)
        report = check(X, A)
        assert report.joined == (20,)
        assert len(report.lost) == 11
        assert 20 in report.rows_read


def test_a_wait_limit_that_passes_is_kept() -> None:
    with kofn.connect(LocalEngine(2), wait=0.3) as cluster:
        X = cluster.encode(np.ones((10, 3)), k=2)
        pid = cluster.engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while len(cluster.workers) > 1:
            pass
        with pytest.raises(kofn.TooFewWorkers, match=r"1 missing after waiting 0\.\d s"):
            X @ np.ones(3)


def test_a_frozen_worker_that_is_needed_is_named_at_the_limit() -> None:
    with kofn.connect(Faults().freeze(worker=1, round=1).on(LocalEngine(2)), limit=1.0) as cluster:
        X = cluster.encode(np.ones((10, 3)), k=2)
        with pytest.raises(kofn.Stalled, match=r"workers \[1\]"):
            X @ np.ones(3)


def test_a_workers_exception_comes_with_its_own_traceback() -> None:
    with kofn.connect("local", workers=2) as cluster:
        X = cluster.encode(np.ones((10, 3)), k=1)
        for worker in cluster.workers:  # spoil the share behind the matrix's back
            cluster.engine.put(worker, X._holders.key, np.ones((10, 2)))
        with pytest.raises(kofn.WorkerError, match=r"times\(share\[first:last\], operand\)"):
            X @ np.ones(3)
