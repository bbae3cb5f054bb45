"""Least squares of many rows: workers say how the sum curves, and one step is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import kofn
from kofn.arrays.gram import gram
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import LinearRegression, Ridge
from kofn.testing import Faults

EPS = float(np.finfo(np.float64).eps)
RNG = np.random.default_rng(0)
X: NDArray[Any] = RNG.standard_normal((9001, 50)) * np.geomspace(1.0, 1e4, 50) + 3.0
X[:, 7] = X[:, 6] + 1e-3 * X[:, 7]  # nearly the same
X[:, 9] = 2.5  # a column that says nothing
Y = X @ RNG.standard_normal(50) + RNG.standard_normal(9001)
WEIGHT = RNG.random(9001)


@pytest.fixture(autouse=True)
def _alone() -> Any:
    with threadpool_limits(1):  # threads of BLAS on cores that are taken wait for minutes
        yield


U = np.column_stack([RNG.standard_normal(9001), np.ones(9001)])
SIZE = np.sqrt(np.outer((X**2).sum(axis=0), (X**2).sum(axis=0)))


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("weight", [np.ones(9001), WEIGHT], ids=["alike", "weighted"])
def test_it_is_that_of_all_rows_where_all_blocks_are_there(
    weight: NDArray[Any], workers: int
) -> None:
    V = np.column_stack([U[:, 0], weight])
    with kofn.connect("virtual", workers=workers) as cluster:
        for k in sorted({1, workers // 2 + 1, workers}):
            matrix = cluster.encode(X, k=k)
            found = gram(matrix, V)
            assert found is not None
            assert found.whole
            assert found.part == pytest.approx(1.0)
            assert (np.abs(found.squares - (X.T * weight) @ X) <= 1e3 * EPS * SIZE).all()
            size = np.outer(np.linalg.norm(V, axis=0), np.linalg.norm(X, axis=0))
            assert (np.abs(found.sums - V.T @ X) <= 1e3 * EPS * size).all()
            assert matrix.report.rows_used == 9001
            assert sum(matrix.report.rows_read.values()) == 9001


def test_who_is_lost_is_left_out_and_the_rest_says_how_much_it_is() -> None:
    faults = Faults().lose(worker=1, round=1)
    with kofn.connect(faults.on(VirtualEngine(4))) as cluster:
        found = gram(cluster.encode(X, k=2), U)  # 0 and 1 have blocks
        assert 1 not in cluster.workers
    assert found is not None
    assert not found.whole
    assert found.part == pytest.approx(4501 / 9001)
    assert (np.abs(found.squares - X[:4501].T @ X[:4501]) <= 1e3 * EPS * SIZE).all()


def test_where_nobody_has_a_block_or_rows_are_scaled_nothing_is_said() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        A = cluster.encode(X, k=2)
        cluster.lose(0)
        cluster.lose(1)
        assert gram(A, U) is None
        assert gram(cluster.encode(X * np.geomspace(1e-200, 1.0, 9001)[:, None], k=2), U) is None
        assert gram(cluster.encode(X, k=2, verify="probe"), U) is None


@pytest.mark.parametrize("far", [1.0, 1e4, 1e7], ids=["near", "far", "very far"])
@pytest.mark.parametrize("workers", [1, 4])
def test_columns_that_are_far_from_zero_or_alike_lose_no_digits(far: float, workers: int) -> None:
    A = RNG.standard_normal((9001, 50)) + far
    A[:, 1] = A[:, 0] + 1e-4 * A[:, 1]
    y = A @ np.arange(50.0) + RNG.standard_normal(9001)
    centred = A - A.mean(axis=0)
    exact = np.linalg.solve(centred.T @ centred + np.eye(50), centred.T @ (y - y.mean()))
    model = Ridge(cluster="virtual", workers=workers).fit(A, y)
    # What the mean costs in X w - mean w, and the nearly equal columns (1e4 squared) in the rest.
    within = 100.0 * EPS * far * 1e4**2
    assert np.abs(model.coef_ - exact).max() <= max(within, 1e-6) * np.abs(exact).max()


@pytest.mark.parametrize("given", [None, WEIGHT], ids=["alike", "weighted"])
def test_one_step_gives_scikit_learns_coefficients(given: NDArray[Any] | None) -> None:
    sizes = X.std(axis=0) + (X.std(axis=0) == 0.0)
    for ours, theirs in (
        (Ridge(cluster="virtual"), sklearn.linear_model.Ridge(solver="cholesky")),
        (
            Ridge(cluster="virtual", fit_intercept=False),
            sklearn.linear_model.Ridge(fit_intercept=False),
        ),
        (LinearRegression(cluster="virtual"), sklearn.linear_model.LinearRegression(tol=1e-12)),
    ):
        ours.fit(X, Y, given)
        theirs.fit(X, Y, given)
        assert ours.n_iter_ <= 2
        apart = np.abs((ours.coef_ - theirs.coef_) * sizes).max()
        assert apart < 1e-8 * np.abs(theirs.coef_ * sizes).max()


@pytest.mark.engine
def test_kills_in_that_round_and_later_leave_the_coefficients() -> None:
    exact = sklearn.linear_model.Ridge(solver="cholesky").fit(X, Y)
    faults = Faults().lose(worker=0, round=1).lose(worker=1, round=3)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        model = Ridge(cluster=cluster, k=2).fit(X, Y)
        assert cluster.workers == (2, 3)
    sizes = X.std(axis=0)
    apart = np.abs((model.coef_ - exact.coef_) * sizes).max()
    assert apart < 1e-8 * np.abs(exact.coef_ * sizes).max()
