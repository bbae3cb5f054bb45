"""Model selection runs on the cluster that the estimator was given, or says why it cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score

import kofn
from kofn.learn import CodedEnsemble, Ridge

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 4))
y = X @ np.arange(4.0) + 0.1 * rng.standard_normal(60)
GRID = {"alpha": [0.1, 10.0]}


@pytest.fixture
def cluster() -> Iterator[kofn.Cluster]:
    with kofn.connect("virtual", workers=3) as cluster:
        yield cluster


@pytest.fixture
def processes() -> Iterator[None]:
    yield
    get_reusable_executor().shutdown(wait=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_search_in_this_process_runs_on_the_given_cluster(
    cluster: kofn.Cluster, jobs: int
) -> None:
    before = len(cluster.log)
    with parallel_config("threading"):
        model = Ridge(cluster=cluster, k=2, solver="lbfgs")  # which goes to the workers
        search = GridSearchCV(model, GRID, cv=2, n_jobs=jobs).fit(X, y)
        scores = cross_val_score(model, X, y, cv=2, n_jobs=jobs)
    assert search.best_params_ == {"alpha": 0.1}
    assert search.best_estimator_.cluster is cluster
    assert scores.min() > 0.9
    rounds = [record for record in cluster.log[before:] if record.kind == "round"]
    assert len(rounds) >= 5 + 2  # a fit or more for each of the models


@pytest.mark.engine
def test_a_search_in_other_processes_says_that_the_cluster_stays_here(
    cluster: kofn.Cluster, processes: None
) -> None:
    model = Ridge(cluster=cluster, k=2)
    words = r"(?s)CannotDo.*cluster on engine 'virtual' was left behind.*set_params"
    with pytest.raises(ValueError, match=words):
        GridSearchCV(model, GRID, cv=2, n_jobs=2).fit(X, y)
    with pytest.raises(ValueError, match=words):
        cross_val_score(model, X, y, cv=2, n_jobs=2)
    assert not [record for record in cluster.log if record.kind == "round"]
    by_name = Ridge(cluster="virtual", workers=3)  # each process opens one of its own, as asked
    assert cross_val_score(by_name, X, y, cv=2, n_jobs=2).min() > 0.9


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, clone], ids=lambda f: f.__name__)
def test_copies_use_the_same_cluster_and_callback(cluster: kofn.Cluster, again: Any) -> None:
    seen: list[int] = []
    model = Ridge(cluster=cluster, callback=lambda iteration, loss, data: seen.append(iteration))
    other = again(model)
    assert other.cluster is cluster
    other.fit(X, y)
    assert seen


def test_an_ensemble_that_was_pickled_asks_for_a_cluster(cluster: kofn.Cluster) -> None:
    forest = RandomForestRegressor(n_estimators=6, max_depth=3, random_state=0).fit(X, y)
    model = CodedEnsemble(forest, cluster=cluster)
    expected = model.predict(X)
    again = pickle.loads(pickle.dumps(model))
    with pytest.raises(kofn.CannotDo, match=r"CodedEnsemble was pickled.*set_params"):
        again.predict(X)
    np.testing.assert_allclose(again.set_params(cluster=cluster).predict(X), expected, rtol=1e-12)
