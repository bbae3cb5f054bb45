"""Least squares of many rows: workers say how the sum curves, and one step is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
from numpy.typing import NDArray
from support import until
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
    # What the mean costs in X w - mean w, and the nearly equal columns (1e4 squared) in the rest.
    within = 100.0 * EPS * far * 1e4**2
    with kofn.connect("virtual", workers=workers) as cluster:
        for model, data in (
            (Ridge(), A),
            (Ridge(cluster=cluster), A),
            (Ridge(), cluster.encode(A)),
        ):
            model.fit(data, y)
            assert np.abs(model.coef_ - exact).max() <= max(within, 1e-6) * np.abs(exact).max()


@pytest.mark.parametrize("far", [1.0, 1e4, 1e7], ids=["near", "far", "very far"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_array_is_summed_up_here_wherever_its_columns_are(dtype: Any, far: float) -> None:
    A = (RNG.standard_normal((3001, 20)) + far * RNG.standard_normal(20)).astype(dtype)
    y = A @ np.arange(20.0) + RNG.standard_normal(3001)
    B = A.astype(np.float64) - A.mean(axis=0, dtype=np.float64)
    exact = np.linalg.solve(B.T @ B + np.eye(20), B.T @ (y - y.mean()))
    seen = []
    tell = lambda iteration, loss, data: seen.append((iteration, data.report))  # noqa: E731
    model = Ridge(callback=tell).fit(A, y)
    assert model.where_ == "here"
    assert [(iteration, report.extra) for iteration, report in seen] == [(1, {"where": "here"})]
    assert seen[0][1].live == ()  # no worker was started
    # The numbers, as they are given, have far * eps(float64) of a deviation; B loses as much. The
    # coefficients are of the type of the data.
    within = 1e3 * EPS * far + np.finfo(dtype).eps
    assert np.abs(model.coef_ - exact).max() <= within * np.abs(exact).max()


@pytest.mark.parametrize("given", ["an open cluster", "workers", "k"])
def test_workers_that_were_given_are_used(given: str) -> None:
    """Ridge of an array with few columns used none of them."""
    A, y = X[:3000, :8], Y[:3000]
    calm = Ridge().fit(A, y)
    with kofn.connect("virtual", workers=3) as cluster:
        ways: dict[str, dict[str, Any]] = {
            "an open cluster": {"cluster": cluster},
            "workers": {"cluster": "virtual", "workers": 3},
            "k": {"cluster": "virtual", "k": 2},
        }
        seen = []
        tell = lambda iteration, loss, data: seen.append(data.report)  # noqa: E731
        model = Ridge(callback=tell, **ways[given]).fit(A, y)
        assert model.where_ == "workers"
        assert sum(seen[0].rows_read.values()) >= len(A)
        if given == "an open cluster":
            assert {"sent", "result"} & {record.kind for record in cluster.log}
            with pytest.raises(kofn.BadInput, match="k must be at most"):
                Ridge(cluster=cluster, k=4).fit(A, y)
    sizes = A.std(axis=0) + (A.std(axis=0) == 0.0)
    apart = np.abs((model.coef_ - calm.coef_) * sizes).max()
    assert apart < 1e-8 * np.abs(calm.coef_ * sizes).max()


def test_an_engine_that_does_not_exist_is_refused_also_where_none_is_needed() -> None:
    with pytest.raises(kofn.EngineUnavailable, match="there is no 'nowhere'"):
        Ridge(cluster="nowhere").fit(X, Y)


@pytest.mark.parametrize("A", [np.hstack([X, X[:, :3]]), RNG.standard_normal((300, 257))])
def test_what_one_pass_is_not_exact_or_not_short_enough_for_goes_to_the_workers(A: Any) -> None:
    y = A @ RNG.standard_normal(A.shape[1])
    model = LinearRegression(cluster="virtual", workers=3, k=2).fit(A, y)
    assert model.where_ == "workers"
    assert np.abs(model.predict(A) - y).max() <= 1e-6 * np.abs(y).max()


@pytest.mark.parametrize("given", [None, WEIGHT], ids=["alike", "weighted"])
def test_one_step_gives_scikit_learns_coefficients(given: NDArray[Any] | None) -> None:
    sizes = X.std(axis=0) + (X.std(axis=0) == 0.0)
    exact = sklearn.linear_model.LinearRegression()
    if "tol" in exact.get_params():  # from 1.7 on, it drops what is smaller
        exact.set_params(tol=1e-12)
    for ours, theirs in (
        (Ridge(), sklearn.linear_model.Ridge(solver="cholesky")),
        (Ridge(fit_intercept=False), sklearn.linear_model.Ridge(fit_intercept=False)),
        (LinearRegression(), exact),
    ):
        theirs.fit(X, Y, given)
        with kofn.connect("virtual") as cluster:
            for where, data in (("virtual", X), (cluster, X), ("virtual", cluster.encode(X))):
                ours.set_params(cluster=where).fit(data, Y, given)
                assert ours.n_iter_ <= 2
                apart = np.abs((ours.coef_ - theirs.coef_) * sizes).max()
                assert apart < 1e-8 * np.abs(theirs.coef_ * sizes).max()


@pytest.mark.engine
def test_kills_in_that_round_and_later_leave_the_coefficients() -> None:
    exact = sklearn.linear_model.Ridge(solver="cholesky").fit(X, Y)
    faults = Faults().lose(worker=0, round=1).lose(worker=1, round=3)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        model = Ridge(cluster=cluster).fit(cluster.encode(X, k=2), Y)
        until(lambda: cluster.workers == (2, 3), "the news of the losses")
    sizes = X.std(axis=0)
    apart = np.abs((model.coef_ - exact.coef_) * sizes).max()
    assert apart < 1e-8 * np.abs(exact.coef_ * sizes).max()


@pytest.mark.parametrize(("scale", "kind"), [(1e-300, "small"), (1e300, "large")])
@pytest.mark.parametrize("where", ["here", "on workers", "on many workers", "sparse"])
def test_squares_that_are_no_numbers_any_more_are_refused(
    scale: float, kind: str, where: str
) -> None:
    """Such columns were taken for constant ones, and had a coefficient of 0."""
    N = 60_000 if where == "on many workers" else 4000
    A = np.random.default_rng(0).standard_normal((N, 20)) * scale
    y = A @ np.ones(20) / scale
    with kofn.connect("virtual", workers=4) as cluster:
        given: Any = scipy.sparse.csr_array(A) if where == "sparse" else A
        if "workers" in where:
            given = cluster.encode(A, k=3)
        used: Any = "virtual" if where == "here" else cluster
        with pytest.raises(kofn.BadInput, match=f"squares of each column.*too {kind} for float64"):
            LinearRegression(cluster=used).fit(given, y)
        model = Ridge(cluster=used).fit(np.zeros((50, 2)), np.ones(50))  # nothing is lost here
        assert model.coef_.tolist() == [0.0, 0.0]
        constant = LinearRegression(cluster=used).fit(np.ones((50, 2)), np.ones(50))
        assert constant.coef_.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e8, 1e15, 1e140, 1e-15, 1e-140])
@pytest.mark.parametrize("where", ["here", "sent", "on workers"])
def test_columns_of_very_different_sizes_have_their_coefficients(size: float, where: str) -> None:
    """The smaller ones were taken for constant, and had a coefficient of 0."""
    A = np.random.default_rng(0).standard_normal((400, 20))
    A[:, 7] = 1.0 / 3.0  # which is constant
    sizes = np.where(np.arange(20) % 2, 1.0, size)
    want = np.where(np.arange(20) == 7, 0.0, 1.0)
    y = A @ want
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A * sizes, k=4) if where == "on workers" else A * sizes
        model = LinearRegression(cluster="virtual" if where == "here" else cluster).fit(X, y)
        apart = np.abs(model.coef_ * sizes - want).max()
    centred = np.delete(A - A.mean(axis=0), 7, axis=1)
    condition = np.linalg.cond(centred) ** 2  # of the normal equations, once scaled
    assert apart <= EPS * len(A) * condition
