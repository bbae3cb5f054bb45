"""The table of scikit-learn's parameters in docs/learn.md: each row is tried."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
import sklearn.kernel_ridge
import sklearn.linear_model
import sklearn.svm
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_regression

import kofn
from kofn import learn

PAGE = Path(__file__).parent.parent / "docs" / "learn.md"
HEADING = "## Parameters of scikit-learn\n"
ROW = re.compile(r"\| (`[A-Z][^|]*) \| ([^|]*) \| (taken|ignored|refused)\b[^|]*\|")
EXPRESSION = re.compile(r"`([a-z0-9_]+=[^`]+)`", re.IGNORECASE)

NUMBERS = make_regression(60, 5, n_targets=2, noise=5.0, random_state=0)
LABELS = make_classification(80, 5, n_informative=3, flip_y=0.2, random_state=0)
# By class: scikit-learn's, the data, and what has it iterate to the end.
THEIRS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "Ridge": (sklearn.linear_model.Ridge, NUMBERS, {"tol": 1e-12, "max_iter": 20_000}),
    "LinearRegression": (sklearn.linear_model.LinearRegression, NUMBERS, {}),
    "LogisticRegression": (
        sklearn.linear_model.LogisticRegression,
        LABELS,
        {"tol": 1e-9, "max_iter": 20_000},
    ),
    # Kernels of histograms want no negative numbers.
    "KernelRidge": (
        sklearn.kernel_ridge.KernelRidge,
        (np.abs(NUMBERS[0]), NUMBERS[1]),
        {},
    ),
    "PCA": (sklearn.decomposition.PCA, NUMBERS, {}),
    "TruncatedSVD": (sklearn.decomposition.TruncatedSVD, NUMBERS, {}),
    "LinearSVC": (sklearn.svm.LinearSVC, LABELS, {"tol": 1e-9, "max_iter": 100_000}),
}


def rows() -> list[tuple[str, str, str]]:
    """Class, `parameter=value` and what happens, for each cell of the table that has one."""
    table = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    found = []
    for classes, parameters, happens in ROW.findall(table):
        for name in re.findall(r"`(\w+)`", classes):
            found += [(name, parameter, happens) for parameter in EXPRESSION.findall(parameters)]
    return found


def option(parameter: str) -> dict[str, Any]:
    """`name=value`, as a keyword."""
    return dict(eval(f"dict({parameter})", {"np": np, "dict": dict}))


def said_of(model: Any, X: NDArray[Any]) -> NDArray[Any]:
    """What a fitted model says of rows."""
    methods = ("decision_function", "predict", "transform")
    return np.asarray(next(getattr(model, m) for m in methods if hasattr(model, m))(X))


def fitted(name: str, **options: Any) -> NDArray[Any]:
    """What kofn's class says of the rows that it was fitted to, to the last digits."""
    model = getattr(learn, name)(cluster="virtual", **{"tol": 1e-10, **options})
    data = THEIRS[name][1]
    return said_of(model.fit(*data), data[0])


# scikit-learn 1.8 and later warn of these two.
@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:'n_jobs' has no effect:FutureWarning")
@pytest.mark.parametrize(("name", "parameter", "happens"), rows())
def test_each_row_of_the_table_is_so(name: str, parameter: str, happens: str) -> None:
    given = option(parameter)
    key = next(iter(given))
    if happens == "refused":
        with pytest.raises(kofn.BadInput, match=rf"^{key} (must be|is) "):
            fitted(name, **given)
        return
    ours = fitted(name, **given)
    if happens == "ignored":
        np.testing.assert_array_equal(ours, fitted(name))
        return
    kind, data, tight = THEIRS[name]
    known = inspect.signature(kind).parameters
    theirs = {**tight, **given}
    if theirs.get("max_iter", 0) is None or key == "verbose":
        theirs = tight
    theirs = {k: np.array(v) if isinstance(v, list) else v for k, v in theirs.items() if k in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what scikit-learn will drop, and of "sag" at 1e-12
        model = kind(**theirs).fit(*data)
    said = said_of(model, data[0])
    # liblinear and sag stop at 1e-9 of their own measures of what is left.
    np.testing.assert_allclose(ours, said, atol=1e-5 * np.abs(said).max())


@pytest.mark.parametrize("name", THEIRS)
def test_the_table_has_every_parameter_of_scikit_learns_class(name: str) -> None:
    table = {next(iter(option(parameter))) for kind, parameter, _ in rows() if kind == name}
    assert set(inspect.signature(THEIRS[name][0]).parameters) <= table


@pytest.mark.parametrize("name", THEIRS)
def test_scikit_learns_defaults_are_taken_as_they_are(name: str) -> None:
    kind, data, _ = THEIRS[name]
    options = kind().get_params()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = said_of(kind(**{**options, **THEIRS[name][2]}).fit(*data), data[0])
    ours = said_of(getattr(learn, name)(cluster="virtual", **options).fit(*data), data[0])
    np.testing.assert_allclose(ours, said, atol=1e-5 * np.abs(said).max())
