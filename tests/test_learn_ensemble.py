"""Ensembles that change after their trees were placed, the rows they take, and their labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import kofn
from kofn.learn import CodedEnsemble


@pytest.fixture(scope="module")
def cluster() -> Iterator[kofn.Cluster]:
    with kofn.connect("virtual", workers=4) as found:
        yield found


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2


@pytest.mark.parametrize("kind", [RandomForestRegressor, GradientBoostingRegressor])
def test_an_ensemble_fitted_again_is_placed_again(cluster: kofn.Cluster, kind: Any) -> None:
    X, y = data(80)
    model = kind(n_estimators=30, random_state=0).fit(X, y)
    coded = CodedEnsemble(model, cluster=cluster)
    coded.predict(X)
    placed = coded._kept[-1]
    assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12
    assert coded._kept[-1] is placed  # nothing changed: nothing is placed

    model.set_params(n_estimators=50, random_state=3).fit(X, -2 * y)
    assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12
    model.fit(X, y + 7)  # as many trees as before
    assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12
    model.set_params(n_estimators=60, warm_start=True).fit(X, y + 7)  # the same list grows
    assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12


def test_another_code_is_taken_up(cluster: kofn.Cluster) -> None:
    X, y = data(60)
    model = RandomForestRegressor(20, random_state=0).fit(X, y)
    coded = CodedEnsemble(model, cluster=cluster)
    coded.predict(X)
    assert str(coded._kept[-1].code).startswith("RandomGroups(")
    coded.set_params(code=kofn.LT(r=2))
    assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12
    assert coded._kept[-1].code == kofn.LT(r=2)


@pytest.mark.parametrize("code", [None, kofn.LT(r=2), kofn.LT(r=1, seed=4)])
@pytest.mark.parametrize("trees", [2, 10, 30])
def test_labels_are_the_forest_s_own_where_classes_tie(
    cluster: kofn.Cluster, trees: int, code: Any
) -> None:
    # Fully grown trees vote for one class each: with an even number of them many votes tie.
    X, _ = data(300)
    y = np.random.default_rng(1).integers(0, 2, 300)
    model = RandomForestClassifier(trees, random_state=0).fit(X[:150], y[:150])
    probabilities = model.predict_proba(X)
    assert (probabilities[:, 0] == probabilities[:, 1]).any()
    coded = CodedEnsemble(model, cluster=cluster, code=code)
    assert np.array_equal(coded.predict(X), model.predict(X))


@pytest.mark.parametrize("trees", [1, 2, 3])
def test_few_trees_need_no_code_of_their_own(cluster: kofn.Cluster, trees: int) -> None:
    X, y = data(40)
    model = RandomForestRegressor(trees, random_state=0).fit(X, y)
    got = CodedEnsemble(model, cluster=cluster).predict(X)
    assert np.abs(got - model.predict(X)).max() <= 1e-12


# The rows that an ensemble takes, and what it has, are the wrapped one's.


@pytest.mark.parametrize("kind", [RandomForestClassifier, GradientBoostingClassifier])
def test_columns_in_another_order_are_refused(cluster: kofn.Cluster, kind: Any) -> None:
    X, y = data(80)
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = kind(n_estimators=5, random_state=0).fit(frame, y > 0)
    coded = CodedEnsemble(model, cluster=cluster)
    assert coded.score(frame, y > 0) == model.score(frame, y > 0)
    assert list(coded.feature_names_in_) == list("abcde")
    with pytest.raises(ValueError, match="same order as they were in fit"):
        coded.predict(frame[list("edcba")])
    with pytest.raises(ValueError, match="should match those that were passed during fit"):
        coded.predict_proba(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [RandomForestRegressor, GradientBoostingRegressor])
def test_values_that_the_ensemble_refuses_are_refused(
    cluster: kofn.Cluster, kind: Any, value: float
) -> None:
    X, y = data(60)
    model = kind(n_estimators=5, random_state=0).fit(X, y)
    coded = CodedEnsemble(model, cluster=cluster)
    X[3, 2] = value
    if kind is RandomForestRegressor and np.isnan(value):
        assert np.abs(coded.predict(X) - model.predict(X)).max() <= 1e-12
    else:
        for predicting in (model, coded):
            with pytest.raises(ValueError, match="Input X contains"):
                predicting.predict(X)


@pytest.mark.parametrize("kind", [RandomForestClassifier, GradientBoostingClassifier])
def test_scikit_learn_s_tools_ask_for_the_methods_that_are_there(
    cluster: kofn.Cluster, kind: Any
) -> None:
    X, y = data(90)
    labels = y > np.median(y)
    model = kind(n_estimators=6, random_state=0).fit(X, labels)
    coded = CodedEnsemble(model, cluster=cluster)
    for name in ("decision_function", "predict_proba", "predict_log_proba"):
        assert hasattr(coded, name) == hasattr(model, name)
    with np.errstate(divide="ignore"):
        expected = model.predict_log_proba(X)
    np.testing.assert_allclose(coded.predict_log_proba(X), expected, rtol=1e-12, atol=1e-14)
    scores, probabilities, kept = [], [], []
    for one in (coded, model):
        scores.append(cross_val_score(one, X, labels, cv=3, scoring="roc_auc"))
        probabilities.append(CalibratedClassifierCV(one, cv=3).fit(X, labels).predict_proba(X))
        kept.append(SelectFromModel(one, prefit=True).transform(X))
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-12)
    difference = np.abs(probabilities[0] - probabilities[1]).max()
    assert difference <= 1e-9  # where the minimizer of the calibration stops
    assert np.array_equal(coded.feature_importances_, model.feature_importances_)
    assert np.array_equal(kept[0], kept[1])


def test_fit_leaves_the_parameter_as_it_is(cluster: kofn.Cluster) -> None:
    X, y = data(60)
    model = RandomForestRegressor(5, random_state=0)
    coded = CodedEnsemble(model, cluster=cluster).fit(X, y)
    assert not hasattr(model, "estimators_")
    assert np.abs(coded.predict(X) - model.fit(X, y).predict(X)).max() <= 1e-12


@pytest.mark.parametrize("kind", [RandomForestRegressor, GradientBoostingRegressor])
def test_sparse_rows(cluster: kofn.Cluster, kind: Any) -> None:
    X, y = data(60)
    sparse = scipy.sparse.csr_array(np.where(X > 0.5, X, 0.0))
    model = kind(n_estimators=5, random_state=0).fit(sparse, y)
    coded = CodedEnsemble(model, cluster=cluster)
    for rows in (sparse, sparse.tocsc(), sparse.toarray()):
        assert np.abs(coded.predict(rows) - model.predict(rows)).max() <= 1e-12


def test_a_forest_of_several_outputs(cluster: kofn.Cluster) -> None:
    X, y = data(80)
    labels = np.stack([np.digitize(y, [0, 0.5]), X[:, 2] > 0], axis=1)
    model = RandomForestClassifier(9, max_depth=3, random_state=0).fit(X, labels)
    coded = CodedEnsemble(model, cluster=cluster)
    for ours, theirs in zip(coded.predict_proba(X), model.predict_proba(X), strict=True):
        assert np.abs(ours - theirs).max() <= 1e-12
    assert len(coded.predict_log_proba(X)) == 2
    assert np.array_equal(coded.predict(X), model.predict(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_own_checks() -> None:
    model = RandomForestClassifier(3, random_state=0)
    coded = CodedEnsemble(model, cluster="virtual", workers=2)
    # The forest itself fails these: a weight is not a row that is drawn twice.
    kinds = ("dense", "sparse")
    reasons = {f"check_sample_weight_equivalence_on_{kind}_data": "the forest's" for kind in kinds}
    outcomes = check_estimator(coded, expected_failed_checks=reasons)
    assert len(outcomes) > 50
