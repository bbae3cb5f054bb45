"""Linear models: scikit-learn's own checks, its own optimum, and workers killed during the fit."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.special
import sklearn.linear_model
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import until

import kofn
from kofn.learn import (
    CodedMLPClassifier,
    KernelRidge,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    Ridge,
)


# "virtual" runs the very same master and products in this process: the checks are many.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        Ridge(cluster="virtual"),
        LinearRegression(cluster="virtual"),
        LogisticRegression(cluster="virtual"),
        LinearSVC(cluster="virtual", tol=1e-4),  # scikit-learn's own default: the checks are many
    ]
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


X, Y = make_regression(400, 25, noise=5.0, random_state=0)
XC, YC = make_classification(600, 20, n_informative=8, random_state=0)
XM, YM = make_classification(600, 20, n_informative=8, n_classes=4, random_state=0)
WEIGHT = np.random.default_rng(0).random(400)

PAIRS: dict[str, tuple[Any, Any, Any, Any, dict[str, Any]]] = {
    "ridge": (Ridge(2.0), sklearn.linear_model.Ridge(2.0), X, Y, {}),
    "ridge, weights": (
        Ridge(2.0),
        sklearn.linear_model.Ridge(2.0),
        X,
        Y,
        {"sample_weight": WEIGHT},
    ),
    "ridge, descent": (
        Ridge(2.0, solver="gd", tol=1e-9),
        sklearn.linear_model.Ridge(2.0),
        X,
        Y,
        {},
    ),
    "ridge, no intercept": (
        Ridge(2.0, fit_intercept=False),
        sklearn.linear_model.Ridge(2.0, fit_intercept=False),
        X,
        Y,
        {},
    ),
    "ridge, lbfgs, sparse": (
        Ridge(2.0, solver="lbfgs", tol=1e-8),
        sklearn.linear_model.Ridge(2.0, tol=1e-10),
        scipy.sparse.csr_array(np.where(np.abs(X) > 1, X, 0)),
        Y,
        {},
    ),
    "least squares, two targets": (
        LinearRegression(),
        sklearn.linear_model.LinearRegression(),
        X,
        np.stack([Y, Y**2], axis=1),
        {},
    ),
    "logistic": (
        LogisticRegression(tol=1e-10),
        sklearn.linear_model.LogisticRegression(tol=1e-10, solver="newton-cholesky"),
        XC,
        YC,
        {},
    ),
    "multinomial": (
        LogisticRegression(tol=1e-10, solver="newton-cg"),
        sklearn.linear_model.LogisticRegression(tol=1e-10, solver="newton-cholesky"),
        XM,
        YM,
        {},
    ),
    "svm": (
        LinearSVC(),
        sklearn.svm.LinearSVC(dual=False, tol=1e-10, max_iter=10_000),
        XC,
        YC,
        {},
    ),
    "svm, four classes": (
        LinearSVC(),
        sklearn.svm.LinearSVC(dual=False, tol=1e-10, max_iter=10_000),
        XM,
        YM,
        {},
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("case", PAIRS)
def test_the_optimum_is_scikit_learns(cluster: kofn.Cluster, case: str) -> None:
    ours, theirs, data, target, options = PAIRS[case]
    ours = clone(ours).set_params(cluster=cluster, k=2)
    ours.fit(data, target, **options)
    theirs.fit(data, target, **options)
    scale = np.abs(theirs.coef_).max()
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6 * scale)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5 * scale)
    assert np.all(ours.n_iter_ > 0)
    assert ours.score(data, target) == pytest.approx(theirs.score(data, target), abs=1e-6)


@pytest.mark.engine
def test_workers_killed_during_the_fit_change_nothing() -> None:
    undisturbed = LinearSVC(cluster="virtual", workers=4, k=2).fit(XC, YC)
    with kofn.connect("local", workers=4) as cluster:
        seen: list[float] = []

        def strike(iteration: int, loss: float, matrix: kofn.CodedMatrix) -> None:
            seen.append(loss)
            if iteration in (1, 3):
                pid = cluster.engine.pid(iteration)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            if iteration == 4:
                cluster.join()

        model = LinearSVC(cluster=cluster, k=2, callback=strike).fit(XC, YC)
        until(lambda: set(cluster.workers) == {0, 2, 4}, "the news of the losses")
    np.testing.assert_allclose(model.coef_, undisturbed.coef_, rtol=1e-8, atol=1e-10)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == model.n_iter_


@pytest.mark.engine
def test_a_model_is_fitted_on_a_coded_matrix_and_travels_without_its_cluster(
    cluster: kofn.Cluster,
) -> None:
    coded = cluster.encode(XC, k=2)
    model = LogisticRegression(cluster=cluster, callback=lambda *_: None).fit(coded, YC)
    again = pickle.loads(pickle.dumps(model))
    with pytest.raises(kofn.CannotDo, match="its cluster on engine 'local' was left behind"):
        again.fit(XC, YC)
    np.testing.assert_array_equal(again.predict(XC), model.predict(XC))
    p = again.predict_proba(XC)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(again.predict_log_proba(XC)), p)
    assert clone(model).get_params()["cluster"] is cluster


def test_an_engines_name_opens_a_cluster_for_the_fit() -> None:
    model = Ridge(cluster="virtual", workers=3, k=2).fit(X, Y)
    assert model.score(X, Y) > 0.9


@pytest.mark.engine
def test_bad_input_gets_one_clear_error(cluster: kofn.Cluster) -> None:
    coded = cluster.encode(XC, k=2)
    with pytest.raises(kofn.BadInput, match="same number of rows; got 600 and 5"):
        LogisticRegression().fit(coded, np.ones(5))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        LogisticRegression(cluster=cluster).fit(XC, YC[:5])
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class"):
        LinearSVC(cluster=cluster).fit(XC, np.zeros(600))
    with pytest.raises(ValueError, match="NaN"):
        Ridge(cluster=cluster).fit(np.full((5, 2), np.nan), np.ones(5))
    with pytest.raises(kofn.BadInput, match=r"solver must be one of .*Leave it out"):
        LinearSVC(cluster=cluster, solver="magic").fit(XC, YC)
    with pytest.raises(kofn.BadInput, match=r"C must be .*got 0\. Leave it out"):
        LinearSVC(cluster=cluster, C=0).fit(XC, YC)
    with pytest.raises(kofn.BadInput, match="alpha must be"):
        Ridge(-1.0, cluster=cluster).fit(X, Y)
    with pytest.raises(kofn.BadInput, match="sample_weight"):
        Ridge().fit(coded, YC.astype(float), sample_weight=np.ones(3))
    with pytest.warns(ConvergenceWarning, match="failed to converge.*Increase the number"):
        LogisticRegression(cluster=cluster, max_iter=2).fit(XC, YC)


@pytest.mark.parametrize("hole", [np.nan, np.inf])
@pytest.mark.parametrize("model", [Ridge(), LogisticRegression(), LinearSVC()])
def test_a_matrix_file_with_holes_is_refused(model: Any, hole: float, tmp_path: Path) -> None:
    broken = XC.copy()
    broken[7, 3] = hole
    np.save(tmp_path / "X.npy", broken)
    model = clone(model).set_params(cluster="virtual", workers=3, k=2)
    with pytest.raises(kofn.BadInput, match=r"must be finite.*\[7, 3\] is"):
        model.fit(str(tmp_path / "X.npy"), YC)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("kind", "solver"),
    [(Ridge, s) for s in ("cg", "gd", "lbfgs")]
    + [(LogisticRegression, s) for s in ("lbfgs", "newton-cg", "gd")]
    + [(LinearSVC, s) for s in ("newton-cg", "lbfgs", "gd")],
)
def test_a_loss_that_is_not_finite_stops_every_solver(kind: Any, solver: str) -> None:
    broken = XC.copy()
    broken[7, 3] = np.nan
    with kofn.connect("virtual", workers=3) as cluster:
        coded = cluster.encode(broken, k=2, check_finite=False)  # let through on purpose
        with pytest.raises(kofn.NotFinite, match="a fit goes on while its"):
            kind(solver=solver).fit(coded, YC)


@pytest.mark.parametrize("coded", [False, True])
def test_sparse_targets_are_refused(coded: bool) -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        given: Any = cluster.encode(XC, k=2) if coded else XC
        with pytest.raises(kofn.BadInput, match=r"y must be a dense array; got csr_array"):
            Ridge(cluster=cluster).fit(given, scipy.sparse.csr_array(YC[:, None]))


@pytest.mark.parametrize("kind", [Ridge, LogisticRegression, LinearSVC])
@pytest.mark.parametrize("solver", ["gd", "lbfgs", "newton-cg"])
def test_gradients_whose_squares_are_no_numbers_stop_every_solver(kind: Any, solver: str) -> None:
    """ZeroDivisionError, or a model of zeros."""
    if solver in kind.solvers:
        with pytest.raises(kofn.NotFinite, match="square of the gradient is finite"):
            kind(solver=solver, cluster="virtual").fit(XC * 1e200, YC)


@pytest.mark.parametrize("solver", ["cg", "gd", "lbfgs", "coded-gradient"])
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_tells_the_loss_that_it_minimises(solver: str, intercept: bool) -> None:
    told: list[float] = []
    targets = np.stack([Y, Y[::-1]], axis=1)
    model = Ridge(2.0, solver=solver, fit_intercept=intercept, cluster="virtual", tol=1e-8)
    model.set_params(callback=lambda i, loss, matrix: told.append(loss))
    model.fit(X, targets, sample_weight=WEIGHT)
    left = X @ model.coef_.T + model.intercept_ - targets
    loss = (WEIGHT[:, None] * left**2).sum() + 2.0 * (model.coef_**2).sum()
    assert told[-1] == pytest.approx(loss, rel=1e-9)
    assert told[0] >= told[-1] * (1 - 400 * np.finfo(float).eps)  # a sum over the rows


@pytest.mark.parametrize("solver", ["cg", "coded-gradient"])
def test_weights_are_one_number_or_many_and_never_negative(solver: str) -> None:
    model = Ridge(2.0, solver=solver, cluster="virtual")
    many = clone(model).fit(X, Y, sample_weight=np.full(400, 3.0))
    for number in (3, 3.0, np.float32(3)):
        one = clone(model).fit(X, Y, sample_weight=number)
        np.testing.assert_array_equal(one.coef_, many.coef_)
    weight = WEIGHT.copy()
    weight[5] = -0.25
    with pytest.raises(kofn.BadInput, match=r"must not be negative; got -0\.25 for row 5"):
        model.fit(X, Y, sample_weight=weight)
    with pytest.raises(kofn.BadInput, match="must not be negative"):
        model.fit(X, Y, sample_weight=-1.0)


@pytest.mark.parametrize("bad", [{"tol": -1}, {"tol": np.nan}, {"tol": "x"}, {"max_iter": 0}])
def test_bad_limits_are_told(bad: dict[str, Any]) -> None:
    with pytest.raises(kofn.BadInput, match=f"{next(iter(bad))} must be a"):
        Ridge(cluster="virtual", **bad).fit(X, Y)


def test_a_model_predicts_from_rows_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", XC)
    with kofn.connect("virtual", workers=3) as cluster:
        coded = cluster.encode(XC, k=2)
        model = LinearSVC(cluster=cluster).fit(coded, YC)
        for given in (str(tmp_path / "X.npy"), tmp_path / "X.npy", coded, coded.T):
            with pytest.raises(kofn.BadInput, match="predicts from rows in memory"):
                model.predict(given)
            with pytest.raises(kofn.BadInput, match="predicts from rows in memory"):
                model.score(given, YC)


@pytest.mark.parametrize("solver", ["gd", "lbfgs", "newton-cg", "coded-gradient"])
@pytest.mark.parametrize("model", [LogisticRegression, LinearSVC])
def test_tol_means_the_same_to_every_solver(model: Any, solver: str) -> None:
    rng = np.random.default_rng(5)
    A = rng.standard_normal((10_000, 5))
    y = A @ rng.standard_normal(5) + rng.standard_normal(10_000) > 0
    with kofn.connect("virtual", workers=4) as cluster:
        model = model(solver=solver, tol=1e-4, cluster=cluster).fit(A, y)
    w, sign = model.coef_[0], np.where(y, 1.0, -1.0)
    margin = sign * (A @ w + model.intercept_)
    if isinstance(model, LogisticRegression):  # of the gradient of the mean loss
        pull, penalised, most = -sign * scipy.special.expit(-margin), 0.0, 1e-4 * len(y)
    else:
        pull, penalised, most = -2.0 * sign * np.maximum(0.0, 1.0 - margin), 1.0, 1e-4
    gradient = np.append(A.T @ pull + w, pull.sum() + penalised * model.intercept_)
    # The gradient is computed here in another order: n terms of at most |pull| |A|.
    assert np.abs(gradient).max() <= most + len(y) * np.finfo(float).eps * np.abs(pull).sum()
    assert model.n_iter_ > 0
    assert model.score(A, y) > 0.8


BAD: list[tuple[Any, dict[str, Any]]] = [
    *((Ridge, {"alpha": bad}) for bad in ([1, 2], "a", np.nan, np.inf, True)),
    *((LogisticRegression, {"C": bad}) for bad in ("a", None, 0.0)),
    *((LinearSVC, {"C": bad}) for bad in (np.inf, [1.0])),
    *((KernelRidge, {"gamma": bad}) for bad in ("a", 0.0)),
    (KernelRidge, {"alpha": [1.0, "a"]}),
    (KernelRidge, {"degree": "a", "kernel": "polynomial"}),
    (KernelRidge, {"coef0": None, "kernel": "polynomial"}),
    (KernelRidge, {"tol": "a"}),
    (KernelRidge, {"max_iter": 0}),
    (CodedMLPClassifier, {"learning_rate": "a"}),
    (CodedMLPClassifier, {"momentum": [0.5]}),
    *((model, {"callback": 3}) for model in (Ridge, LinearSVC, KernelRidge, CodedMLPClassifier)),
]


@pytest.mark.parametrize(("model", "options"), BAD)
def test_parameters_that_cannot_be_meant_are_told(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(kofn.BadInput, match=f"^{next(iter(options))} must be"):
        model(cluster="virtual", **options).fit(np.eye(8), np.arange(8) % 2)


REGRESSORS: list[tuple[Any, Any]] = [
    (Ridge, sklearn.linear_model.Ridge),
    (LinearRegression, sklearn.linear_model.LinearRegression),
]
CLASSIFIERS: list[tuple[Any, Any]] = [
    (LogisticRegression, sklearn.linear_model.LogisticRegression),
    (LinearSVC, sklearn.svm.LinearSVC),
]


def same_kind(ours: Any, theirs: Any, dtype: Any = None) -> None:
    """Of the same shape, and of this type of numbers, or the same; scalars are scalars."""
    assert np.shape(ours) == np.shape(theirs)
    assert np.asarray(ours).dtype == np.asarray(theirs if dtype is None else dtype(0)).dtype
    assert isinstance(ours, np.ndarray) == isinstance(theirs, np.ndarray)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("targets", [(), (1,), (2,)], ids=["(N,)", "(N, 1)", "(N, 2)"])
@pytest.mark.parametrize("intercept", [True, False])
def test_what_regressors_have_and_say_is_of_scikit_learns_shapes_and_types(
    dtype: Any, targets: tuple[int, ...], intercept: bool
) -> None:
    """y - predict(X) was N x N for y (N, 1), intercept_ a Python float, and all was float64."""
    A = X[:60, :5].astype(dtype)
    y = np.stack([Y[:60], Y[:60] ** 2], axis=1)[:, : np.prod(targets, dtype=int)]
    y = y.reshape(60, *targets)
    for ours, theirs in REGRESSORS:
        model = ours(fit_intercept=intercept, cluster="virtual").fit(A, y)
        known = theirs(fit_intercept=intercept).fit(A, y)
        same_kind(model.coef_, known.coef_)
        same_kind(model.intercept_, known.intercept_)
        same_kind(model.predict(A), known.predict(A))
        assert model.n_iter_.shape == (targets or (1,))
        scale = np.abs(known.coef_).max()
        close = 1e-10 if dtype is np.float64 else 1e-4  # what scikit-learn's own float32 has
        np.testing.assert_allclose(model.coef_, known.coef_, atol=close * scale)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("labels", [YC, YM], ids=["two classes", "four classes"])
def test_what_classifiers_have_and_say_is_of_scikit_learns_shapes_and_types(
    dtype: Any, labels: Any
) -> None:
    A = XC.astype(dtype)
    for (ours, theirs), intercept in ((pair, b) for pair in CLASSIFIERS for b in (True, False)):
        model = ours(fit_intercept=intercept, cluster="virtual", tol=1e-3).fit(A, labels)
        known = theirs(fit_intercept=intercept, max_iter=2000).fit(A, labels)
        kind = np.float64 if ours is LinearSVC else dtype  # older versions had more of float64
        same_kind(model.coef_, known.coef_, kind)
        if ours is not LinearSVC or intercept:  # where scikit-learn has the number 0.0
            same_kind(model.intercept_, known.intercept_, kind)
        same_kind(model.decision_function(A), known.decision_function(A), kind)
        assert type(model.n_iter_) is type(known.n_iter_)
        assert np.shape(model.n_iter_) == np.shape(known.n_iter_)
        if ours is LogisticRegression:
            same_kind(model.predict_proba(A), known.predict_proba(A), dtype)


@pytest.mark.parametrize("way", ["here", "sent", "wide", "lbfgs", "gd", "coded-gradient"])
def test_each_target_may_have_a_penalty_of_its_own(way: str) -> None:
    alphas = np.array([0.5, 50.0, 0.5])
    A = np.hstack([X] * 11)[:40] if way == "wide" else X[:, :8]
    targets = np.stack([Y, Y**2, Y[::-1]], axis=1)[: len(A)]
    options: dict[str, Any] = {"cluster": "virtual", "tol": 1e-10}
    if way == "sent":
        options["workers"] = 3
    if way in ("lbfgs", "gd", "coded-gradient"):
        options["solver"] = way
    model = Ridge(alphas, **options).fit(A, targets, sample_weight=WEIGHT[: len(A)])
    for i, alpha in enumerate(alphas):
        known = sklearn.linear_model.Ridge(alpha, tol=1e-12, solver="cholesky")
        known.fit(A, targets[:, i], sample_weight=WEIGHT[: len(A)])
        within = 1e-6 * np.abs(known.coef_).max()  # of gd, whose tol is of the gradient
        np.testing.assert_allclose(model.coef_[i], known.coef_, atol=within)
    with pytest.raises(kofn.BadInput, match="number of penalties do not correspond: 3 != 2"):
        Ridge(alphas, **options).fit(A, targets[:, :2])
    with pytest.raises(kofn.BadInput, match="alpha of each target must be"):
        Ridge([1.0, -1.0, 1.0], **options).fit(A, targets)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["alike", "weighted"])
def test_least_squares_tell_the_rank_and_the_singular_values(weight: Any) -> None:
    deficient = np.hstack([X, X[:, :2]])
    for A, rank in ((X, 25), (deficient, 25), (X[:10], 9)):
        w = None if weight is None else weight[: len(A)]
        known = sklearn.linear_model.LinearRegression().fit(A, Y[: len(A)], w)
        model = LinearRegression(cluster="virtual").fit(A, Y[: len(A)], w)
        assert model.rank_ == known.rank_ == rank
        # What rounding of the largest one leaves of each; more where scikit-learn's X is centred.
        within = 100 * np.finfo(float).eps * known.singular_[0]
        np.testing.assert_allclose(model.singular_, known.singular_, atol=within)
    for other in (model, clone(model).fit(X, Y).set_params(solver="lbfgs")):
        other.fit(scipy.sparse.csr_array(X) if other is model else X, Y)
        assert not hasattr(other, "rank_")


def test_a_penalised_intercept_is_the_weight_of_a_column() -> None:
    for ours, theirs in (
        (LogisticRegression(solver="liblinear", cluster="virtual"), CLASSIFIERS[0][1]),
        (LinearSVC(cluster="virtual"), CLASSIFIERS[1][1]),
    ):
        for options in ({}, {"intercept_scaling": 0.25}, {"intercept_scaling": 4.0}):
            ours.set_params(tol=1e-9, **options).fit(XC + 2.0, YC)
            known = theirs(tol=1e-10, max_iter=200_000, **options)
            if theirs is CLASSIFIERS[0][1]:
                known.set_params(solver="liblinear")
            known.fit(XC + 2.0, YC)
            # liblinear stops at a part of the gradient at zero.
            np.testing.assert_allclose(ours.coef_, known.coef_, atol=1e-4)
            np.testing.assert_allclose(ours.intercept_, known.intercept_, atol=1e-4)
        with pytest.raises(kofn.BadInput, match="intercept_scaling must be"):
            ours.set_params(intercept_scaling=0.0).fit(XC, YC)
    with pytest.raises(kofn.BadInput, match="'liblinear' solver does not support multiclass"):
        LogisticRegression(solver="liblinear", cluster="virtual").fit(XM, YM)


@pytest.mark.parametrize("kind", [LogisticRegression, LinearSVC])
def test_sparse_coefficients_predict_as_before(kind: Any) -> None:
    model = kind(cluster="virtual", tol=1e-3, warm_start=True).fit(XC, YC)
    model.coef_[:, ::2] = 0.0
    dense, said = model.coef_.copy(), model.decision_function(XC)
    assert scipy.sparse.issparse(model.sparsify().coef_)
    for rows in (XC, scipy.sparse.csr_array(XC)):
        np.testing.assert_allclose(model.decision_function(rows), said, atol=1e-12)
    np.testing.assert_array_equal(model.densify().coef_, dense)
    model.sparsify().fit(XC, YC)  # begins from there
    assert isinstance(model.coef_, np.ndarray)


def test_no_iterations_leave_a_classifier_where_it_begins() -> None:
    for kind in (LogisticRegression, LinearSVC):
        with pytest.warns(ConvergenceWarning, match="failed to converge") as seen:
            model = kind(max_iter=0, cluster="virtual").fit(XC, YC)
        assert seen[0].filename == __file__
        assert model.n_iter_ == 0
        assert not model.coef_.any()


# scikit-learn 1.8 and later warn of it, and so do we with them.
@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
def test_no_penalty_is_said_in_two_ways_and_one_tells_that_it_ignores_C() -> None:
    with pytest.warns(UserWarning, match="penalty=None will ignore the C") as seen:
        model = LogisticRegression(penalty=None, C=4.0, cluster="virtual").fit(XC, YC)
    assert seen[0].filename == __file__
    endless = LogisticRegression(C=np.inf, cluster="virtual").fit(XC, YC)
    np.testing.assert_array_equal(endless.coef_, model.coef_)


SPARSE = scipy.sparse.csr_array(np.where(np.abs(X) > 1, X, 0))


@pytest.mark.parametrize(
    ("solver", "intercept"), [("svd", True), ("svd", False), ("cholesky", True), ("saga", True)]
)
def test_scikit_learns_solvers_refuse_sparse_rows_as_there(solver: str, intercept: bool) -> None:
    model = Ridge(solver=solver, fit_intercept=intercept, cluster="virtual")
    with pytest.raises(kofn.BadInput, match=f"solver='{solver}' does not support"):
        model.fit(SPARSE, Y)
    with kofn.connect("virtual") as cluster:  # on workers they are no matter of the solver
        model.set_params(cluster=cluster).fit(cluster.encode(SPARSE), Y)
    exact = Ridge(fit_intercept=intercept, cluster="virtual").fit(SPARSE, Y)
    np.testing.assert_allclose(model.coef_, exact.coef_, rtol=1e-6)


def test_an_intercept_of_sparse_rows_by_sag_warns_of_a_high_tol() -> None:
    model = Ridge(solver="sag", tol=1e-3, max_iter=None, cluster="virtual")
    with pytest.warns(UserWarning, match='"sag" solver requires a low "tol"') as seen:
        model.fit(SPARSE, Y)
    assert seen[0].filename == __file__
    model.set_params(tol=1e-4).fit(SPARSE, Y)  # and no warning, which would be an error


@pytest.mark.parametrize("solver", ["liblinear", "sag", "saga", "lbfgs"])
def test_wide_indices_are_taken_by_the_solvers_that_take_them_in_scikit_learn(solver: str) -> None:
    wide = scipy.sparse.csr_array(XC)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    model = LogisticRegression(solver=solver, cluster="virtual")
    if solver == "lbfgs":
        assert model.fit(wide, YC).score(wide, YC) > 0.7
        return
    with pytest.raises(kofn.BadInput, match="Only sparse matrices with 32-bit integer indices"):
        model.fit(wide, YC)


def test_liblinear_refuses_values_that_it_refuses_in_scikit_learn() -> None:
    rows, labels = np.array([[0.0], [1e31]]), np.array([0, 1])
    for data in (rows, scipy.sparse.csr_array(rows)):
        with pytest.raises(kofn.BadInput, match=r"'liblinear'.*value > 1e30.*1e\+31"):
            LogisticRegression(solver="liblinear", cluster="virtual").fit(data, labels)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (LogisticRegression(solver="liblinear"), "Liblinear failed to converge, increase the"),
        (LogisticRegression(solver="newton-cholesky"), "Newton solver did not converge after 1 "),
        (LogisticRegression(solver="newton-cg"), "newton-cg failed to converge"),
        (LinearSVC(), "Liblinear failed to converge, increase the"),
        (LinearSVC(solver="lbfgs"), "lbfgs failed to converge"),
    ],
)
def test_warnings_of_convergence_begin_with_scikit_learns_words(model: Any, words: str) -> None:
    # As filters of warnings match them: at the beginning.
    with pytest.warns(ConvergenceWarning, match=f"^{words}.*Increase the number of iterations"):
        clone(model).set_params(cluster="virtual", max_iter=1).fit(XC, YC)


def test_parameters_that_scikit_learn_drops_are_warned_of() -> None:
    with pytest.warns(FutureWarning, match="'n_jobs' has no effect.*Use workers=") as seen:
        LogisticRegression(n_jobs=2, cluster="virtual").fit(XC, YC)
    assert seen[0].filename == __file__
    if sklearn.linear_model.LogisticRegression().penalty == "l2":
        LogisticRegression(penalty="l2", cluster="virtual").fit(XC, YC)  # no warning before 1.8
        return
    for penalty in ("l2", None):
        with pytest.warns(FutureWarning, match="'penalty' was deprecated.*C=np.inf") as seen:
            LogisticRegression(penalty=penalty, cluster="virtual").fit(XC, YC)
        assert seen[0].filename == __file__


class Recorded:
    """A callback of scikit-learn's that keeps what it is told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, str]] = []
        self.models: list[Any] = []
        self.ends = 0

    def setup(self, estimator: Any, context: Any) -> None:
        self.tasks.append(("setup", context.task_name))

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.tasks.append(("begin", context.task_name))

    def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any) -> None:
        self.tasks.append(("end", context.task_name))
        if fitted_estimator is not None:
            self.models.append(fitted_estimator)

    def teardown(self, estimator: Any, context: Any) -> None:
        self.ends += 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LogisticRegression(solver="lbfgs"), "lbfgs-iter"),
        (LogisticRegression(solver="liblinear"), "newton-cg-iter"),
        (LogisticRegression(solver="coded-gradient", tol=1e-3), "coded-gradient-iter"),
        (LinearSVC(), "newton-cg-iter"),
    ],
)
def test_scikit_learns_callbacks_are_told_of_each_iteration(model: Any, name: str) -> None:
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks since 1.9")
    seen, losses = Recorded(), []
    model = clone(model).set_params(cluster="virtual", callback=lambda *told: losses.append(told))
    plain = clone(model).fit(XC, YC)
    losses.clear()
    model.set_callbacks(seen).fit(XC, YC)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    pairs = [(when, name) for _ in range(len(losses) + 1) for when in ("begin", "end")]
    assert seen.tasks == [("setup", "fit"), ("begin", "fit"), *pairs, ("end", "fit")]
    assert seen.ends == 1
    for number, early in enumerate(seen.models[:3], 1):  # as if the fit had stopped there
        with pytest.warns(ConvergenceWarning):
            stopped = clone(plain).set_params(max_iter=number).fit(XC, YC)
        np.testing.assert_allclose(early.decision_function(XC), stopped.decision_function(XC))
    np.testing.assert_array_equal(seen.models[-1].predict(XC), model.predict(XC))


def test_scikit_learns_callbacks_hear_the_end_of_a_fit_that_failed() -> None:
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks since 1.9")
    seen = Recorded()

    def stop(*_: Any) -> None:
        raise OSError("no more")

    model = LogisticRegression(cluster="virtual", callback=stop).set_callbacks(seen)
    with pytest.raises(OSError, match="no more"):
        model.fit(XC, YC)
    assert seen.ends == 1
    assert not hasattr(model, "_callback_fit_ctx")
    model.set_params(callback=None).set_callbacks().fit(XC, YC)  # none is told any more
    assert seen.ends == 1
