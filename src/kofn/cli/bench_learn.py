"""kofn bench learn: our estimators against scikit-learn's, in one run, nobody lost."""

from __future__ import annotations

import os
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

from ..cluster import Cluster, connect
from ..learn import PCA, LinearSVC, LogisticRegression, Ridge
from .interleaved import timed
from .output import print_table, print_text

TIGHT = {"tol": 1e-10, "max_iter": 10_000}
# An estimator of ours, its counterpart, both as they come, and what makes the latter most exact.
TEN: dict[str, Any] = {"n_components": 10, "random_state": 0}
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Ridge": (Ridge, sklearn.linear_model.Ridge, {"solver": "cholesky"}),
    "LogisticRegression": (LogisticRegression, sklearn.linear_model.LogisticRegression, TIGHT),
    "LinearSVC": (LinearSVC, sklearn.svm.LinearSVC, {"dual": False, **TIGHT}),
    "PCA": (
        partial(PCA, **TEN),
        partial(sklearn.decomposition.PCA, svd_solver="randomized", **TEN),
        {},
    ),
}


def run(rows: int, columns: int, workers: int, times: int) -> dict[str, Any]:
    """Fit each pair `times` times in turn, the data in memory, the cluster open; medians.

    Our time is of a whole `fit`: the data are checked, coded and sent to the workers every time.
    Both have as many threads as there are workers.
    """
    X, y = make_data(rows, columns)
    models = {}
    with connect("local", workers=workers) as cluster:
        for name in PAIRS:
            target = y if name == "Ridge" else (y > 0).astype(np.intp)
            models[name] = _compare(name, cluster, X, target, times)
    sizes = {"rows": rows, "columns": columns, "workers": workers, "times": times}
    return {**sizes, "cores": os.cpu_count(), "models": models}


def make_data(rows: int, columns: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Correlated columns of different size, and noisy numbers to predict."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    X += 0.5 * X[:, ::-1]
    w = rng.standard_normal(columns)
    return X, X @ w + rng.standard_normal(rows) * np.sqrt(columns)


def _compare(name: str, cluster: Cluster, X: Any, target: Any, times: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "theirs": [], "coding": []}
    our_kind, their_kind, tight = PAIRS[name]
    ours, theirs = our_kind(cluster=cluster), their_kind()
    with warnings.catch_warnings(), threadpool_limits(len(cluster.workers)):
        warnings.simplefilter("ignore")  # of not having converged: what was reached is compared
        for _ in range(times):
            seconds["coding"] += timed(cluster.encode, X)(1)
            seconds["ours"] += timed(ours.fit, X, target)(1)
            seconds["theirs"] += timed(theirs.fit, X, target)(1)
        best = their_kind(**tight).fit(X, target)
    medians = {kind: float(np.median(values)) for kind, values in seconds.items()}
    return {
        "ours_seconds": medians["ours"],
        "of_which_coding_seconds": medians["coding"],
        "theirs_seconds": medians["theirs"],
        "ratio": medians["ours"] / medians["theirs"],
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
    """Print the measurements for a person."""
    title = (
        f"{result['rows']} x {result['columns']}, {result['workers']} workers, "
        f"{result['cores']} cores: seconds of a fit (median of {result['times']})"
    )
    columns = dict.fromkeys(("scikit-learn", "kofn", "of which coding", "ratio"), ".2f")
    columns = {"model": "", **columns, "error: theirs, ours": ">"}
    keys = ("theirs_seconds", "ours_seconds", "of_which_coding_seconds", "ratio")
    rows = []
    for name, row in result["models"].items():
        errors = f"{row['their_error']:.0e}, {row['our_error']:.0e}"
        rows.append((name, *(row[key] for key in keys), errors))
    print_table(console, title, columns, rows)
    text = (
        "Error: largest difference of a coefficient from scikit-learn's at its tightest tolerance."
    )
    print_text(console, text)
