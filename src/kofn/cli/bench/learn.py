"""kofn bench learn: our estimators against scikit-learn's, in one run, nobody lost."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import sklearn.decomposition
import sklearn.linear_model
import sklearn.svm
from numpy.typing import NDArray
from rich.console import Console
from threadpoolctl import threadpool_limits

from ...cluster import Cluster, connect
from ...learn import PCA, LinearSVC, LogisticRegression, Ridge
from ...learn.normal import COLUMNS
from ..output import print_table
from .frame import Figure
from .turns import interleaved, timed

TIGHT = {"tol": 1e-10, "max_iter": 10_000}
# An estimator of ours, its counterpart, both as they come, and what makes the latter most exact.
# PCA by the solver that needs coded products: "auto" would take one pass for XᵀX.
TEN: dict[str, Any] = {"n_components": 10, "random_state": 0, "svd_solver": "randomized"}
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Ridge": (Ridge, sklearn.linear_model.Ridge, {"solver": "cholesky"}),
    "LogisticRegression": (LogisticRegression, sklearn.linear_model.LogisticRegression, TIGHT),
    "LinearSVC": (LinearSVC, sklearn.svm.LinearSVC, {"dual": False, **TIGHT}),
    "PCA": (
        partial(PCA, **TEN),
        partial(sklearn.decomposition.PCA, **TEN),
        {},
    ),
}


def run(rows: int, columns: int, workers: int, times: int) -> dict[str, Any]:
    """Fit each pair `times` times in turn, the data in memory, the cluster open.

    Our time is of a whole `fit`: the data are checked, coded and sent to the workers every time;
    but Ridge is given no workers, so that it fits an array of few columns in this process. Both
    have as many threads as there are workers.
    """
    X, y = make_data(rows, columns)
    figures: dict[str, Figure] = {}
    models: dict[str, Any] = {}
    with connect("local", workers=workers) as cluster:
        for name in PAIRS:
            target = y if name == "Ridge" else (y > 0).astype(np.intp)
            figures[name], models[name] = compare(name, cluster, X, target, times)
    return {"figures": figures, "models": models}


def make_data(rows: int, columns: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Correlated columns of different size, and noisy numbers to predict."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    X += 0.5 * X[:, ::-1]
    w = rng.standard_normal(columns)
    return X, X @ w + rng.standard_normal(rows) * np.sqrt(columns)


def compare(
    name: str, cluster: Cluster, X: Any, target: Any, times: int
) -> tuple[Figure, dict[str, Any]]:
    """Fit one pair in turn: the figure, and how right both were."""
    our_kind, their_kind, tight = PAIRS[name]
    coded = name != "Ridge" or X.shape[1] > COLUMNS
    ours, theirs = our_kind(cluster=cluster) if coded else our_kind(), their_kind()
    calls = {"ours": timed(ours.fit, X, target), "theirs": timed(theirs.fit, X, target)}
    if coded:
        calls["coding"] = timed(cluster.encode, X)
    with warnings.catch_warnings(), threadpool_limits(len(cluster.workers)):
        warnings.simplefilter("ignore")  # of not having converged: what was reached is compared
        turns = interleaved(calls, times, most=1)
        best = their_kind(**tight).fit(X, target)
    return turns.figure("ours", "theirs", "scikit-learn's", "s"), {
        "of_which_coding_seconds": turns.median("coding") if coded else 0.0,
        "our_iterations": int(np.max(getattr(ours, "n_iter_", 0))),
        "our_error": _apart(ours, best),
        "their_error": _apart(theirs, best),
    }


def _apart(one: Any, other: Any) -> float:
    """The largest difference of a coefficient, relative to the largest coefficient."""
    first, second = (getattr(model, "coef_", None) for model in (one, other))
    if first is None or second is None:
        first, second = one.components_, other.components_
    return float(np.abs(first - second).max() / np.abs(second).max())


def table(console: Console, result: dict[str, Any]) -> None:
    """Print how right both were."""
    keys = ("of_which_coding_seconds", "their_error", "our_error")
    columns = {"model": "", "of which coding: s": ".2f", "error: theirs": ".0e", "ours": ".0e"}
    rows = [(name, *(row[key] for key in keys)) for name, row in result["models"].items()]
    print_table(console, "largest difference of a coefficient from the exact one", columns, rows)
