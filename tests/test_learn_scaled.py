"""Small and badly scaled data: scikit-learn's own data sets, as they come, in few iterations."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
import sklearn.svm
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from support import until
from threadpoolctl import threadpool_info, threadpool_limits

import kofn
from kofn.arrays.fetching import sampled
from kofn.learn import LinearRegression, LinearSVC, LogisticRegression, Ridge
from kofn.learn.precondition import Sample, inverse_of, sample_of


def of(name: str) -> tuple[Any, Any]:
    return getattr(datasets, f"load_{name}")(return_X_y=True)  # type: ignore[no-any-return]


CLASSES = {
    **{name: of(name) for name in ("iris", "wine", "breast_cancer", "digits")},
    "moons": datasets.make_moons(300, noise=0.2, random_state=0),
    "circles": datasets.make_circles(300, noise=0.1, factor=0.5, random_state=0),
    "hastie": datasets.make_hastie_10_2(300, random_state=0),
}
NUMBERS = {
    **{name: of(name) for name in ("diabetes", "linnerud", "wine")},
    "friedman": datasets.make_friedman1(300, random_state=0),
}


def apart(one: Any, other: Any) -> float:
    """The largest difference of a coefficient, by the largest coefficient."""
    return float(np.abs(one.coef_ - other.coef_).max() / np.abs(other.coef_).max())


@pytest.fixture(autouse=True)
def _alone() -> Any:
    # One thread: the other's own, on cores that are taken, wait for one another for minutes.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("error", ConvergenceWarning)
        yield


@pytest.mark.parametrize("name", CLASSES)
def test_logistic_regression_on_data_as_they_come(name: str) -> None:
    X, y = (part[:400] for part in CLASSES[name])
    model = LogisticRegression(cluster="virtual", tol=1e-9).fit(X, y)
    exact = sklearn.linear_model.LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(X, y)
    assert model.n_iter_ < 100
    # A gradient of N tol, where the penalty alone curves by 1: no further off than that.
    size = np.abs(exact.coef_).max()
    assert apart(model, exact) <= np.sqrt(model.coef_.size) * len(y) * 1e-9 / size


@pytest.mark.parametrize("name", CLASSES)
def test_support_vectors_on_data_as_they_come(name: str) -> None:
    X, y = (part[:400] for part in CLASSES[name])
    model = LinearSVC(cluster="virtual").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other's: it wants more iterations for its tol
        exact = sklearn.svm.LinearSVC(dual=False, tol=1e-10, max_iter=20_000).fit(X, y)
    assert model.n_iter_ < 100
    size = np.abs(exact.coef_).max()
    # Ours has a gradient of tol = 1e-6 at most; theirs, 1e-10 of that at zero.
    first = 2 * np.abs(X).sum(axis=0).max()
    within = np.sqrt(model.coef_.size) * (1e-6 + 1e-10 * first) / size
    assert apart(model, exact) <= max(within, 1e-6)


@pytest.mark.parametrize("name", NUMBERS)
def test_least_squares_on_data_as_they_come(name: str) -> None:
    X, y = NUMBERS[name]
    for ours, theirs in (
        (Ridge(cluster="virtual"), sklearn.linear_model.Ridge(solver="svd")),
        (LinearRegression(cluster="virtual"), sklearn.linear_model.LinearRegression()),
    ):
        assert apart(ours.fit(X, y), theirs.fit(X, y)) <= 1e-9  # tol of a ridge: 1e-10
        assert max(ours.n_iter_) <= 3  # all rows are in the sample: one, and some for rounding


def test_all_classes_of_a_machine_go_in_the_same_rounds() -> None:
    X, y = CLASSES["digits"]
    rounds = []
    LinearSVC(
        cluster="virtual", callback=lambda i, loss, matrix: rounds.append(matrix.report.round)
    ).fit(X, y)
    assert len(rounds) < 60
    assert rounds[-1] < 300  # they were 21,560


@pytest.mark.engine
def test_a_sample_of_few_rows_serves_as_well_through_kills() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 120)) * np.geomspace(1.0, 1e5, 120)
    X[:, 1] = X[:, 0] + 1e-3 * X[:, 1]
    y = (X @ (rng.standard_normal(120) / np.geomspace(1.0, 1e5, 120)) > 0).astype(int)
    sample = sample_of(X, None, True)
    assert isinstance(sample, Sample)
    assert 16 * 120 < len(sample.index) < 2000
    calm = LogisticRegression(cluster="virtual", workers=4, k=2).fit(X, y)
    with kofn.connect("local", workers=4) as cluster:

        def strike(iteration: int, loss: float, matrix: kofn.CodedMatrix) -> None:
            if iteration in (2, 4):
                pid = cluster.engine.pid(iteration // 2)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)

        model = LogisticRegression(cluster=cluster, k=2, callback=strike).fit(X, y)
        assert model.n_iter_ < 100
        until(lambda: len(cluster.workers) == 2, "the news of the losses")
    # The same steps: what is left is the rounding of decoding, by the sizes of the columns.
    size = np.abs(X).max(axis=0)
    np.testing.assert_allclose(
        model.coef_ * size, calm.coef_ * size, atol=1e-7 * np.abs(calm.coef_ * size).max()
    )


def test_rows_of_a_coded_matrix_are_had_from_its_workers() -> None:
    A = np.random.default_rng(1).standard_normal((1001, 7)) * np.geomspace(1, 1e30, 1001)[:, None]
    with kofn.connect("virtual", workers=5) as cluster:
        found = sampled(cluster.encode(A, 3), 300)
        assert found is not None
        index, rows = found
        assert 300 <= len(index) <= 1001
        assert len(set(index)) == len(index)
        np.testing.assert_allclose(rows, A[index], rtol=1e-9)
        all_rows = sampled(cluster.encode(A, 3), 5000)
        assert all_rows is not None
        assert sorted(all_rows[0]) == list(range(1001))


def test_a_coded_matrix_is_fitted_in_as_few_iterations() -> None:
    X, y = CLASSES["breast_cancer"]
    with kofn.connect("virtual", workers=4) as cluster:
        model = LogisticRegression().fit(cluster.encode(X, 2), y)
    assert model.n_iter_ < 30


def test_a_column_that_is_not_in_the_sample_is_known_by_its_size() -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((3000, 110))
    X[:, 7] = 0.0
    sample = sample_of(X, None, False)
    assert sample is not None
    rest = np.setdiff1d(np.arange(3000), sample.index)
    X[rest[:5], 7] = 100.0
    y = X @ np.ones(110) + rng.standard_normal(3000)
    model = Ridge(cluster="virtual", fit_intercept=False).fit(X, y)
    assert model.n_iter_ < 30
    exact = sklearn.linear_model.Ridge(solver="cholesky", fit_intercept=False).fit(X, y)
    assert apart(model, exact) < 1e-9


def test_wide_data_are_scaled_by_the_sizes_of_their_columns() -> None:
    rng = np.random.default_rng(3)
    sizes = np.geomspace(1.0, 1e4, 520)
    dense = rng.standard_normal((200, 520)) * sizes
    y = (dense / sizes) @ rng.standard_normal(520) + rng.standard_normal(200)
    for X in (dense, scipy.sparse.csr_array(np.where(np.abs(dense) > 1.5 * sizes, dense, 0.0))):
        model = Ridge(1e6, cluster="virtual", fit_intercept=False).fit(X, y)
        exact = sklearn.linear_model.Ridge(1e6, solver="cholesky", fit_intercept=False).fit(X, y)
        assert apart(model, exact) < 1e-8


def test_directions_without_curvature_are_left_alone() -> None:
    v = np.array([[1.0, 2.0], [2.0, 4.0], [0.0, 1.0]])
    H = v @ v.T
    null = np.linalg.svd(H)[0][:, -1]
    step = inverse_of(H)(null[:, None])
    assert np.linalg.norm(step) <= 2 / np.linalg.eigvalsh(H).max()
    wanted = H @ np.array([[0.3], [0.1], [-0.2]])
    np.testing.assert_allclose(H @ inverse_of(H)(wanted), wanted, rtol=1e-9, atol=1e-12)


def test_blas_has_its_threads_again_after_a_fit() -> None:
    def threads() -> list[int]:
        return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]

    before = threads()
    during: list[list[int]] = []
    X, y = CLASSES["moons"]
    LogisticRegression(cluster="virtual", callback=lambda *_: during.append(threads())).fit(X, y)
    assert threads() == before
    assert all(count == 1 for counts in during for count in counts)
