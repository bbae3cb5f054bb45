"""Frames go in wherever arrays do, and the names of their columns are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import is_classifier
from sklearn.ensemble import RandomForestClassifier

import kofn
from kofn.learn import (
    PCA,
    CodedEnsemble,
    CodedMLPClassifier,
    KernelRidge,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    Ridge,
    TruncatedSVD,
)

RNG = np.random.default_rng(0)
A = RNG.standard_normal((60, 3))
NAMES = ["height", "weight", "adult"]
Y = (A[:, 0] > 0).astype(int)


def table(**more: Any) -> Any:
    """A pandas frame of two columns of floats and one of bools: NumPy makes objects of that."""
    return pd.DataFrame({"height": A[:, 0], "weight": A[:, 1], "adult": A[:, 2] > 0, **more})


EXACT = np.column_stack([A[:, :2], A[:, 2] > 0])
KINDS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": pa.Table.from_pandas,
}
kinds = pytest.mark.parametrize("kind", KINDS)
Estimator = pytest.mark.parametrize(
    "model",
    [
        Ridge(),
        LinearRegression(),
        LogisticRegression(),
        LinearSVC(tol=1e-3),
        LogisticRegression(solver="coded-gradient", tol=1e-3),
        KernelRidge(),
        CodedMLPClassifier((4,), max_epochs=1, random_state=0, k=2),
    ],
    ids=lambda model: f"{type(model).__name__}",
)


@kinds
def test_a_frame_is_encoded_and_cut_as_its_array_is(kind: str) -> None:
    frame = KINDS[kind](table())
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(frame, k=2)
        assert X.columns == tuple(NAMES)
        np.testing.assert_allclose(X.toarray(), EXACT, rtol=1e-13, atol=1e-13)
        parts = cluster.parts((frame, frame["height"]))
        found = parts.sum(lambda part, x: part[0].T @ part[1], 0).value
        np.testing.assert_allclose(found, EXACT.T @ EXACT[:, 0], rtol=1e-13, atol=1e-13)
        assert cluster.encode(EXACT, k=2).columns is None
        assert cluster.encode(pd.DataFrame(EXACT), k=2).columns is None  # numbers are no names


@kinds
@Estimator
def test_an_estimator_keeps_the_names(kind: str, model: Any) -> None:
    frame = KINDS[kind](table())
    target = Y if is_classifier(model) else A[:, 0]
    with kofn.connect("virtual", workers=4) as cluster:
        model.set_params(cluster=cluster).fit(frame, target)
        assert list(model.feature_names_in_) == NAMES
        found = model.predict(frame)
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(KINDS[kind](table().rename(columns={"adult": "child"})))
        fresh = type(model)(**model.get_params()).fit(EXACT, target)
        assert not hasattr(fresh, "feature_names_in_")
        np.testing.assert_allclose(found, fresh.predict(EXACT))


def test_names_go_through_encode_and_leave_with_the_next_fit() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        model = Ridge(cluster=cluster).fit(cluster.encode(table(), k=2), A[:, 0])
        assert list(model.feature_names_in_) == NAMES
        model.predict(table())
        model.fit(cluster.encode(EXACT, k=2), A[:, 0])
        assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("kind", [PCA, TruncatedSVD])
def test_a_transformer_returns_the_frame_that_is_asked_for(kind: Any) -> None:
    model = kind(2, random_state=0, cluster="virtual", workers=2)
    plain = model.fit_transform(EXACT)
    prefix = kind.__name__.lower()
    for output, frame in (("pandas", pd.DataFrame), ("polars", pl.DataFrame)):
        found = model.set_output(transform=output).fit_transform(table())
        assert isinstance(found, frame)
        assert list(found.columns) == [f"{prefix}0", f"{prefix}1"]
        np.testing.assert_allclose(np.asarray(found), plain)


@kinds
def test_a_column_of_text_is_named(kind: str) -> None:
    frame = KINDS[kind](table(city="Rome"))
    with kofn.connect("virtual", workers=4) as cluster:
        uses: list[Callable[[], Any]] = [
            lambda: cluster.encode(frame, k=2),
            lambda: cluster.parts(frame),
            lambda: Ridge(cluster=cluster).fit(frame, A[:, 0]),
            lambda: PCA(2, cluster=cluster).fit(frame),
        ]
        for use in uses:
            with pytest.raises(kofn.BadInput, match=r"column 'city' holds 'Rome'\. Leave it out"):
                use()


@kinds
def test_a_missing_integer_is_nan(kind: str) -> None:
    frame = KINDS[kind](table(age=pd.array([None, *range(59)], dtype="Int64")))
    with kofn.connect("virtual", workers=4) as cluster:
        with pytest.raises(kofn.BadInput, match=r"Entry \[0, 3\] is nan"):
            cluster.encode(frame, k=2)
        whole = KINDS[kind](table(age=pd.array(range(60), dtype="Int64")))
        assert cluster.encode(whole, k=2).toarray()[59, 3] == pytest.approx(59.0, rel=1e-13)


LAZY: dict[str, Callable[[], Any]] = {
    "array": lambda: pytest.importorskip("dask.array").from_array(EXACT),
    "frame": lambda: pytest.importorskip("dask.dataframe").from_pandas(table(), 2),
}


@pytest.mark.parametrize("kind", LAZY)
def test_dask_collections_are_refused_wherever_data_enter(kind: str) -> None:
    lazy = LAZY[kind]()
    forest = RandomForestClassifier(2, max_depth=2).fit(EXACT, Y)
    with kofn.connect("virtual", workers=4) as cluster:
        ridge = Ridge(cluster=cluster).fit(EXACT, Y)
        uses: list[Callable[[], Any]] = [
            lambda: cluster.encode(lazy, k=2),
            lambda: cluster.encode(EXACT.T, k=2) @ lazy,
            lambda: cluster.parts(lazy),
            lambda: cluster.parts((EXACT, lazy)),
            lambda: cluster.parts([lazy, lazy]),
            lambda: cluster.sequence().submit(EXACT.T, lazy),
            lambda: ridge.fit(lazy, Y),
            lambda: ridge.fit(EXACT, lazy),
            lambda: ridge.fit(EXACT, Y, lazy),
            lambda: ridge.predict(lazy),
            lambda: KernelRidge(cluster=cluster).fit(lazy, Y),
            lambda: CodedMLPClassifier((3,), cluster=cluster).partial_fit(lazy, Y),
            lambda: PCA(2, cluster=cluster).fit(EXACT).transform(lazy),
            lambda: CodedEnsemble(forest, cluster=cluster).fit(lazy, Y),
            lambda: CodedEnsemble(forest, cluster=cluster).predict(lazy),
        ]
        for use in uses:
            with pytest.raises(kofn.BadInput, match=r"got \w+ of Dask\. Write it with"):
                use()
