"""What scikit-learn's users know: weights of classes, no penalty, going on, search."""

from __future__ import annotations

import copy
import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.svm
from joblib import parallel_config
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

import kofn
from kofn.learn import CodedMLPClassifier, LinearSVC, LogisticRegression, load, save

X, Y = make_classification(200, 8, weights=[0.8], flip_y=0.1, random_state=0)
XM, YM = load_iris(return_X_y=True)
WEIGHT = np.random.default_rng(0).random(len(YM)) + 0.5
# Before 1.7, scikit-learn's "balanced" counted rows, whatever their weights.
WEIGHTS_COUNT = "sample_weight" in inspect.signature(compute_class_weight).parameters


def apart(one: Any, other: Any) -> float:
    return float(np.abs(one.coef_ - other.coef_).max() / np.abs(other.coef_).max())


@pytest.mark.parametrize("solver", ["newton-cg", "lbfgs"])
@pytest.mark.parametrize("given", ["balanced", {0: 1.0, 1: 5.0, 2: 0.5}])
def test_weights_of_classes_are_scikit_learns(given: Any, solver: str) -> None:
    common = {"cluster": "virtual", "class_weight": given, "solver": solver, "max_iter": 20_000}
    logistic = sklearn.linear_model.LogisticRegression(
        class_weight=given, tol=1e-10, solver="newton-cholesky"
    )
    svm = sklearn.svm.LinearSVC(class_weight=given, dual=False, tol=1e-10, max_iter=9999)
    for data, labels, weight in ((X, Y, None), (XM, YM, WEIGHT), (XM, YM, None)):
        if isinstance(given, dict) and len(np.unique(labels)) == 2:
            continue
        if given == "balanced" and weight is not None and not WEIGHTS_COUNT:
            continue
        ours = LogisticRegression(tol=1e-8, **common).fit(data, labels, weight)
        assert apart(ours, logistic.fit(data, labels, weight)) < 1e-5  # both stop by gradients
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exact = svm.fit(data, labels, weight)
        assert apart(LinearSVC(**common).fit(data, labels, weight), exact) < 1e-5


def test_weights_of_classes_that_cannot_be_meant() -> None:
    bad: list[Any] = [3.0, "even", {0: -1.0, 1: 1.0}, {0: float("nan"), 1: 1.0}, {7: 2.0}]
    for given in bad:
        with pytest.raises(kofn.BadInput, match="class_weight"):
            LogisticRegression(cluster="virtual", class_weight=given).fit(X, Y)


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
def test_no_penalty_is_scikit_learns() -> None:
    for solver in ("lbfgs", "newton-cg"):
        ours = LogisticRegression(cluster="virtual", penalty=None, solver=solver, tol=1e-9)
        theirs = sklearn.linear_model.LogisticRegression(C=np.inf, tol=1e-12, max_iter=9999)
        assert apart(ours.fit(X, Y), theirs.fit(X, Y)) < 1e-6
    with pytest.raises(kofn.BadInput, match="penalty is 'l2' or None"):
        LogisticRegression(cluster="virtual", penalty="l1").fit(X, Y)


@pytest.mark.parametrize("solver", ["newton-cg", "lbfgs"])
@pytest.mark.parametrize("data", [(X, Y), (XM, YM)], ids=["two", "three"])
def test_a_warm_start_begins_where_the_last_fit_ended(data: Any, solver: str) -> None:
    model = LogisticRegression(
        0.1, cluster="virtual", warm_start=True, solver=solver, tol=1e-5, max_iter=50_000
    )
    first = model.fit(*data).n_iter_
    found = model.coef_.copy()
    assert first > 2
    assert model.fit(*data).n_iter_ == 0
    assert np.abs(model.coef_ - found).max() < 1e-2 * np.abs(found).max()
    near = model.set_params(C=0.11).fit(*data)
    cold = clone(model).set_params(warm_start=False).fit(*data)
    assert near.n_iter_ <= cold.n_iter_
    again = np.where(data[1] == 0, "a", "b")  # other classes: nothing to go on from
    assert model.fit(data[0], again).classes_.tolist() == ["a", "b"]


def test_coded_gradients_go_on_too_and_know_the_weights_of_classes() -> None:
    common: dict[str, Any] = {"cluster": "virtual", "class_weight": "balanced", "tol": 1e-5}
    exact = LinearSVC(0.01, **common).fit(XM, YM)
    model = LinearSVC(0.01, solver="coded-gradient", warm_start=True, max_iter=20_000, **common)
    assert apart(model.fit(XM, YM), exact) < 1e-3
    steps = model.n_iter_
    assert model.fit(XM, YM).n_iter_ < steps / 2


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
def test_settings_are_saved_with_the_model(tmp_path: Path) -> None:
    model = LogisticRegression(
        cluster="virtual", class_weight={0: 1.0, 1: 3.0}, penalty=None, warm_start=True
    )
    save(model.fit(X, Y), tmp_path / "model.kofn")
    again = load(tmp_path / "model.kofn")
    assert again.class_weight == {0: 1.0, 1: 3.0}
    assert again.get_params()["penalty"] is None
    assert again.fit(X, Y).n_iter_ <= 1


def network(**options: Any) -> CodedMLPClassifier:
    return CodedMLPClassifier((6,), cluster="virtual", random_state=0, batch_size=40, **options)


def test_partial_fits_of_the_same_rows_are_one_fit() -> None:
    whole = network(max_epochs=3).fit(XM, YM)
    model = network()
    for _ in range(3):
        model.partial_fit(XM, YM)
    for one, other in zip(model.coefs_, whole.coefs_, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)  # weights are read back
    assert model.n_iter_ == 3
    np.testing.assert_allclose(model.loss_curve_, whole.loss_curve_, rtol=1e-9)


def test_partial_fits_of_batches_and_of_a_copy() -> None:
    model = network().partial_fit(XM[:60], YM[:60], classes=[0, 1, 2])  # two of three classes
    model.partial_fit(XM[60:], YM[60:])
    twin = copy.deepcopy(model)
    before = twin.predict_proba(XM)
    twin.partial_fit(XM, YM)
    assert twin.n_iter_ == 3
    assert not np.array_equal(twin.predict_proba(XM), before)
    with pytest.raises(kofn.BadInput, match="classes stay"):
        model.partial_fit(XM, YM, classes=[0, 1])
    with pytest.raises(kofn.BadInput, match="labels are among the classes"):
        model.partial_fit(XM, YM + 1)
    with pytest.raises(kofn.BadInput, match="expecting 4 features"):
        model.partial_fit(XM[:, :2], YM)


def test_pipelines_are_searched_on_the_cluster_that_is_open() -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(cluster=cluster, k=2))
        grid = {"logisticregression__C": [0.01, 1.0]}
        theirs = make_pipeline(StandardScaler(), sklearn.linear_model.LogisticRegression())
        expected = GridSearchCV(theirs, grid, cv=3).fit(X, Y)
        for jobs in (None, 2):
            with parallel_config("threading"):
                search = GridSearchCV(pipeline, grid, cv=3, n_jobs=jobs).fit(X, Y)
                scores = cross_val_score(pipeline, X, Y, cv=3, n_jobs=jobs)
            assert search.best_params_ == expected.best_params_
            np.testing.assert_allclose(
                search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
            )
            np.testing.assert_allclose(scores, cross_val_score(theirs, X, Y, cv=3))
        assert cluster.workers
        before = len(cluster.log)
        with pytest.raises(ValueError, match=r"(?s)left behind.*n_jobs=1 or joblib"):
            GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X, Y)
        assert len(cluster.log) == before
