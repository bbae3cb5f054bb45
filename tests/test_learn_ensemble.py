"""Ensembles that change after their trees were placed, and labels where classes tie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

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
