"""Kernel ridge regression and additive ensembles over coded sums, against scikit-learn's own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.ensemble import (
    AdaBoostRegressor,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process.kernels import ExpSineSquared as Periodic
from sklearn.kernel_ridge import KernelRidge as Reference
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import until

import kofn
from kofn.engines.local import LocalEngine
from kofn.errors import BadInput
from kofn.learn import CodedEnsemble, KernelRidge
from kofn.testing import Faults


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.05 * rng.standard_normal(n)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kernel", "theirs", "options"),
    [
        ("gaussian", "rbf", {}),
        ("rbf", "rbf", {"gamma": 0.7}),
        ("laplacian", "laplacian", {"gamma": 0.2}),
        ("polynomial", "polynomial", {"degree": 2, "coef0": 0.5}),
        ("linear", "linear", {}),
    ],
)
def test_every_kernel_as_scikit_learn_s(
    cluster: kofn.Cluster, kernel: str, theirs: str, options: dict[str, Any]
) -> None:
    X, y = data(120)
    ours = KernelRidge(alpha=0.5, kernel=kernel, cluster=cluster, k=2, **options).fit(X, y)
    reference = Reference(alpha=0.5, kernel=theirs, **options).fit(X, y)
    Z, _ = data(40, seed=1)
    assert np.abs(ours.predict(Z) - reference.predict(Z)).max() <= 1e-6
    assert np.abs(ours.dual_coef_ - reference.dual_coef_).max() <= 1e-6
    assert ours.score(X, y) == pytest.approx(reference.score(X, y), abs=1e-6)


@pytest.mark.engine
def test_several_targets_and_weights(cluster: kofn.Cluster) -> None:
    X, y = data(80)
    Y, weight = np.stack([y, -2 * y + X[:, 2]], axis=1), np.linspace(0.2, 2.0, 80)
    options: dict[str, Any] = {"kernel": "rbf", "code": kofn.RandomGroups(5)}
    ours = KernelRidge(cluster=cluster, k=2, **options).fit(X, Y, weight)
    reference = Reference(kernel="rbf").fit(X, Y, weight)
    assert ours.predict(X).shape == (80, 2)
    assert np.abs(ours.predict(X) - reference.predict(X)).max() <= 1e-6


@pytest.mark.engine
def test_four_of_twelve_workers_killed() -> None:
    # One is killed while it is at work in each of four rounds of the fit.
    X, y = data(240)
    faults = Faults()
    for worker, round in ((3, 2), (7, 3), (0, 5), (11, 6)):
        faults = faults.slow(worker, by=1e4, round=round).lose(worker, round=round)
    with kofn.connect(faults.on(LocalEngine(12))) as cluster:
        ours = KernelRidge(alpha=0.3, kernel="rbf", cluster=cluster, k=6).fit(X, y)
        until(lambda: len(cluster.workers) == 8, "the news of the losses")
        Z, _ = data(60, seed=2)
        got = ours.predict(Z)
    reference = Reference(alpha=0.3, kernel="rbf").fit(X, y)
    assert np.abs(got - reference.predict(Z)).max() <= 1e-6


@pytest.mark.engine
def test_four_of_twelve_workers_killed_in_a_prediction() -> None:
    X, y = data(150)
    Z, _ = data(30, seed=2)
    model = KernelRidge(kernel="rbf", cluster="local", workers=2, k=1).fit(X, y)
    faults = Faults()
    for worker in (1, 4, 6, 9):
        faults = faults.slow(worker, by=1e4, round=1).lose(worker, round=1)
    with kofn.connect(faults.on(LocalEngine(12))) as cluster:
        model.cluster = cluster
        expected = Reference(kernel="rbf").fit(X, y).predict(Z)

        def all_are_lost() -> bool:
            assert np.abs(model.predict(Z) - expected).max() <= 1e-6
            return len(cluster.workers) == 8

        until(all_are_lost, "the news of the losses")


@pytest.mark.engine
def test_a_fitted_model_travels_and_clones(cluster: kofn.Cluster) -> None:
    X, y = data(60)
    model = KernelRidge(kernel="rbf", cluster=cluster, k=2).fit(X, y)
    first = model.predict(X[:5])
    again = pickle.loads(pickle.dumps(model))
    with pytest.raises(kofn.CannotDo, match="its cluster on engine 'local' was left behind"):
        again.predict(X[:5])
    again.set_params(cluster="local", workers=2)
    assert np.allclose(again.predict(X[:5]), first, rtol=1e-12)
    assert clone(model).get_params()["alpha"] == 1.0
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


# Kernels and data as scikit-learn takes them.


def overlap(x: Any, row: Any, power: float = 1.0) -> float:
    return float(np.minimum(np.abs(x), np.abs(row)).sum() ** power)


def product(x: Any, row: Any) -> float:  # of sparse rows
    return float((x @ row.T).sum())


VIRTUAL: dict[str, Any] = {"cluster": "virtual", "workers": 3}
KINDS: list[tuple[Any, dict[str, Any]]] = [
    ("linear", {}),
    ("poly", {"degree": 2}),
    ("sigmoid", {"gamma": 0.1}),
    ("cosine", {}),
    ("chi2", {"gamma": 0.5}),
    ("additive_chi2", {}),
    (overlap, {}),
    (overlap, {"kernel_params": {"power": 0.5}}),
    (Periodic(periodicity=3.0), {}),
]


@pytest.mark.filterwarnings("ignore:Singular matrix in solving dual problem")
@pytest.mark.filterwarnings("ignore:.*not positive definite. the least-squares solution")
@pytest.mark.parametrize(("kernel", "options"), KINDS)
def test_more_kernels_as_scikit_learn_s(kernel: Any, options: dict[str, Any]) -> None:
    X, y = data(60)
    X = np.abs(X)
    reference = Reference(0.5, kernel=kernel, **options).fit(X, y)
    ours = KernelRidge(0.5, kernel=kernel, **options, **VIRTUAL).fit(X, y)
    assert np.abs(ours.predict(X[:20]) - reference.predict(X[:20])).max() <= 1e-6
    assert ours.score(X, y) == pytest.approx(reference.score(X, y), abs=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "laplacian", "poly", "sigmoid", product])
def test_sparse_rows(kernel: Any) -> None:
    X, y = data(15 if kernel is product else 60)
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    options: dict[str, Any] = {"kernel": kernel, "gamma": 0.2}
    rows: dict[str, Any] = {"csr": scipy.sparse.csr_matrix(X[:9])}
    rows["csc"] = scipy.sparse.csc_array(X[:9])
    if kernel is not product:
        rows["dense"] = X[:9]
    points = scipy.sparse.csr_array(X)
    ours = KernelRidge(9.0, **options, **VIRTUAL).fit(points, y)
    reference = Reference(9.0, **options).fit(points, y)
    for Z in rows.values():
        assert np.abs(ours.predict(Z) - reference.predict(Z)).max() <= 1e-6
    if kernel is not product:
        other = KernelRidge(9.0, **options, **VIRTUAL).fit(X, y)
        assert np.abs(other.predict(rows["csr"]) - reference.predict(rows["csr"])).max() <= 1e-6


def test_a_kernel_that_the_caller_has_computed() -> None:
    X, y = data(50)
    K = X @ X.T
    before, weight = K.copy(), np.linspace(0.2, 2.0, 50)
    for kernel in (K, scipy.sparse.csr_array(K)):
        ours = KernelRidge(kernel="precomputed", **VIRTUAL).fit(kernel, y, weight)
        expected = Reference(kernel="precomputed").fit(K, y, weight).predict(K[:9])
        assert np.abs(ours.predict(kernel[:9]) - expected).max() <= 1e-6
    assert np.array_equal(K, before)
    scores = cross_val_score(ours, K, y, cv=3)  # cut by rows and columns
    assert scores == pytest.approx(cross_val_score(KernelRidge(**VIRTUAL), X, y, cv=3), abs=1e-6)


def test_a_penalty_for_each_target() -> None:
    X, y = data(50)
    Y = np.stack([y, -2 * y + X[:, 2], y**2], axis=1)
    options: dict[str, Any] = {"alpha": [0.1, 5.0, 40.0], "kernel": "rbf"}
    ours = KernelRidge(**options, **VIRTUAL).fit(X, Y, np.linspace(0.2, 2.0, 50))
    reference = Reference(**options).fit(X, Y, np.linspace(0.2, 2.0, 50))
    assert np.abs(ours.dual_coef_ - reference.dual_coef_).max() <= 1e-6


@pytest.mark.filterwarnings("ignore:Singular matrix in solving dual problem")
@pytest.mark.parametrize(("alpha", "kernel"), [(0.0, "linear"), (1e-3, "sigmoid")])
def test_a_matrix_that_is_not_definite_is_solved_by_least_squares(
    alpha: float, kernel: str
) -> None:
    X, y = data(50)  # more rows than columns, and y is no sum of them
    with pytest.warns(UserWarning, match="least-squares solution was taken"):
        ours = KernelRidge(alpha, kernel=kernel, **VIRTUAL).fit(X, y)
    expected = Reference(alpha, kernel=kernel).fit(X, y)
    assert np.abs(ours.predict(X) - expected.predict(X)).max() <= 1e-6


def test_float32_stays_float32() -> None:
    X, y = data(50)
    X32, y32 = X.astype(np.float32), y.astype(np.float32)
    ours = KernelRidge(kernel="rbf", **VIRTUAL).fit(X32, y32)
    assert ours.dual_coef_.dtype == ours.predict(X32).dtype == np.float32
    expected = Reference(kernel="rbf").fit(X, y).predict(X)
    assert np.abs(ours.predict(X32) - expected).max() <= 1e-4
    assert KernelRidge(kernel="rbf", **VIRTUAL).fit(X32, y).predict(X32).dtype == np.float64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "cubic"}, "kernel must be one of gaussian, laplacian, polynomial"),
        ({"alpha": -1.0}, "alpha must be a number >= 0"),
        ({"alpha": [1.0, 2.0]}, "one for each of the 1 targets"),
        ({"kernel": "chi2"}, "X contains negative values"),
        ({"kernel": "precomputed"}, "must be square"),
        ({"kernel": max, "kernel_params": 3}, "kernel_params must be a dict"),
        ({"gamma": -1.0}, "gamma must be a number > 0"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], words: str) -> None:
    X, y = data(20)
    with pytest.raises(BadInput, match=words):
        KernelRidge(**options).fit(X, y)


# Ensembles.


def classes(n: int) -> tuple[Any, Any]:
    X, y = data(n)
    return X, np.digitize(y, np.quantile(y, [0.3, 0.7]))


@pytest.mark.engine
@pytest.mark.parametrize("code", [kofn.LT(r=2), kofn.RandomGroups(10)], ids=repr)
def test_a_forest_of_500_trees_is_itself(cluster: kofn.Cluster, code: Any) -> None:
    X, y = data(300)
    forest = RandomForestRegressor(500, max_depth=6, random_state=0).fit(X, y)
    coded = CodedEnsemble(forest, cluster=cluster, code=code)
    Z, _ = data(200, seed=1)
    assert np.abs(coded.predict(Z) - forest.predict(Z)).max() <= 1e-12
    assert coded.score(Z, forest.predict(Z)) == pytest.approx(1.0)


@pytest.mark.engine
@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_forests_of_classifiers(cluster: kofn.Cluster, kind: Any) -> None:
    X, y = classes(200)
    forest = kind(80, max_depth=5, random_state=0).fit(X, y)
    coded = CodedEnsemble(forest, cluster=cluster)
    assert np.abs(coded.predict_proba(X) - forest.predict_proba(X)).max() <= 1e-12
    assert np.array_equal(coded.predict(X), forest.predict(X))
    assert not hasattr(coded, "decision_function")  # nor has the forest


@pytest.mark.engine
def test_boosting(cluster: kofn.Cluster) -> None:
    X, y = data(200)
    model = GradientBoostingRegressor(n_estimators=100, random_state=0).fit(X, y)
    assert (
        np.abs(CodedEnsemble(model, cluster=cluster).predict(X) - model.predict(X)).max() <= 1e-12
    )
    for labels in (classes(200)[1], classes(200)[1] > 0):
        boosted = GradientBoostingClassifier(n_estimators=40, random_state=0).fit(X, labels)
        coded = CodedEnsemble(boosted, cluster=cluster)
        assert np.abs(coded.decision_function(X) - boosted.decision_function(X)).max() <= 1e-11
        assert np.abs(coded.predict_proba(X) - boosted.predict_proba(X)).max() <= 1e-12
        assert np.array_equal(coded.predict(X), boosted.predict(X))


@pytest.mark.engine
def test_missing_values_go_where_the_tree_says(cluster: kofn.Cluster) -> None:
    X, y = data(200)
    X[::7, 1] = np.nan
    forest = RandomForestRegressor(50, random_state=0).fit(X, y)
    coded = CodedEnsemble(forest, cluster=cluster, code=kofn.RandomGroups(5))
    assert np.abs(coded.predict(X) - forest.predict(X)).max() <= 1e-12


@pytest.mark.engine
def test_what_is_no_sum_of_trees_is_refused(cluster: kofn.Cluster) -> None:
    X, y = data(40)
    with pytest.raises(BadInput, match="an additive ensemble is one of RandomForestRegressor"):
        CodedEnsemble(AdaBoostRegressor().fit(X, y), cluster=cluster).predict(X)
    with pytest.raises(NotFittedError):
        CodedEnsemble(RandomForestRegressor(), cluster=cluster).predict(X)
    forest = RandomForestRegressor(20).fit(X, y)
    with pytest.raises(ValueError, match="is expecting 5 features"):
        CodedEnsemble(forest, cluster=cluster).predict(X[:, :3])
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        CodedEnsemble(forest, cluster=cluster).predict_proba(X)


# "virtual" runs the very same master, products and sums in this process: the checks are many.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([KernelRidge(cluster="virtual", workers=3)])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_callback_is_told_the_loss() -> None:
    rng = np.random.default_rng(0)
    points, targets, weight = rng.random((40, 3)), rng.random((40, 2)), rng.random(40)
    told: list[float] = []
    options: dict[str, Any] = {"kernel": "rbf", "gamma": 1.0, "cluster": "virtual"}
    model = KernelRidge(0.3, callback=lambda *a: told.append(a[1]), **options)
    model.fit(points, targets, sample_weight=weight)
    K = np.exp(-((points[:, None] - points) ** 2).sum(axis=2))
    left = K @ model.dual_coef_ - targets
    penalty = 0.3 * np.sum(model.dual_coef_ * (K @ model.dual_coef_))
    assert told[-1] == pytest.approx((weight[:, None] * left**2).sum() + penalty, rel=1e-9)


def test_a_fit_that_does_not_converge_says_so() -> None:
    X, y = data(60)
    model = KernelRidge(1e-3, kernel="rbf", max_iter=2, cluster="virtual")
    with pytest.warns(ConvergenceWarning, match=r"max_iter=2 iterations .* 1 of the targets"):
        model.fit(X, y)
    assert model.n_iter_ == 2
    with pytest.warns(ConvergenceWarning, match="2 of the targets"):
        model.fit(X, np.stack([y, 0 * y, X[:, 0]], axis=1))  # zeros are met at once


@pytest.mark.engine
def test_one_row_is_enough_and_another_code_is_taken_up() -> None:
    X, y = data(20)
    with kofn.connect("virtual", workers=3) as cluster:
        one = KernelRidge(kernel="rbf", cluster=cluster, k=1).fit(X[:1], y[:1])
        reference = Reference(kernel="rbf").fit(X[:1], y[:1])
        assert np.allclose(one.predict(X), reference.predict(X), rtol=1e-9)
        model = KernelRidge(kernel="rbf", cluster=cluster, k=2).fit(X, y)
        first = model.predict(X)
        model.set_params(code=kofn.LT(r=2))
        assert np.allclose(model.predict(X), first, rtol=1e-10)
        assert isinstance(model._kept[-1].code, kofn.LT)
        model.dual_coef_ = 2 * model.dual_coef_
        assert np.allclose(model.predict(X), 2 * first, rtol=1e-10)
    with kofn.connect(LocalEngine(2)) as cluster:  # workers have copies
        model = KernelRidge(kernel="rbf", cluster=cluster, k=1).fit(X, y)
        first = model.predict(X)
        placed = model._kept[-1]
        assert np.allclose(model.predict(X), first, rtol=1e-10)
        assert model._kept[-1] is placed
        model.dual_coef_ *= 2  # in place
        assert np.allclose(model.predict(X), 2 * first, rtol=1e-10)


def test_a_path_is_not_predicted_from() -> None:
    model = KernelRidge(cluster="virtual").fit(np.eye(4), np.arange(4.0))
    with pytest.raises(BadInput, match="predicts from rows in memory"):
        model.predict("X.npy")
