"""Saved models: the same predictions after loading, no pickle, and clean errors for all else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError

import kofn
from kofn import saved
from kofn.learn import (
    CodedEnsemble,
    CodedGradient,
    CodedMLPClassifier,
    KernelRidge,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    Ridge,
    load,
    save,
)

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 5))
Y = X @ np.arange(5.0) + 1
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y, [-3, 3])]
MODELS = {
    "ridge": (Ridge(0.5, cluster="virtual"), Y),
    "two targets": (Ridge(cluster="virtual", workers=3, k=2), np.stack([Y, -Y], axis=1)),
    "one column of targets": (Ridge((2.0,), cluster="virtual"), Y[:, None]),
    "least squares": (LinearRegression(cluster="virtual", fit_intercept=False), Y),
    "two classes": (LogisticRegression(np.float32(2.0), cluster="virtual"), Y > 0),
    "three classes": (LogisticRegression(cluster="virtual"), LABELS),
    "svm": (LinearSVC(cluster="virtual", max_iter=cast(int, np.int64(50))), LABELS.astype(object)),
    "network": (
        CodedMLPClassifier((7, 4), max_epochs=2, random_state=1, cluster="virtual"),
        LABELS,
    ),
    "kernel": (KernelRidge(gamma=0.3, cluster="virtual"), Y),
}


def members(value: Any) -> list[Any]:
    """The arrays of a list, or the one that it is."""
    return value if isinstance(value, list) else [value]


def test_models_are_the_same_when_they_are_loaded(tmp_path: Path) -> None:
    for name, (model, y) in MODELS.items():
        model.fit(X, y)
        save(model, tmp_path / name)
        again = load(tmp_path / name)
        assert type(again) is type(model)
        assert again.get_params() == model.get_params()
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.score(X, y) == model.score(X, y)
        fitted = [key for key in vars(model) if key.endswith("_")]
        assert len(fitted) >= 4
        for key in fitted:
            mine, theirs = vars(model)[key], vars(again)[key]
            assert type(theirs) is type(mine), key
            for a, b in zip(*map(members, (mine, theirs)), strict=True):
                assert np.asarray(a).dtype == np.asarray(b).dtype, key
        save(again, tmp_path / "again")
        assert (tmp_path / name).read_bytes() == (tmp_path / "again").read_bytes()


def test_names_of_features_stay(tmp_path: Path) -> None:
    model = Ridge(cluster="virtual").fit(X, Y)
    model.feature_names_in_ = np.array(list("abcde"), dtype=object)  # as a pandas table has them
    save(model, tmp_path / "m")
    names = load(tmp_path / "m").feature_names_in_
    assert names.dtype == object
    assert names.tolist() == list("abcde")


def test_an_open_cluster_and_the_callback_are_left_behind(tmp_path: Path) -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        model = KernelRidge(cluster=cluster, callback=lambda *_: None).fit(X, Y)
        expected = model.predict(X)
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.callback is None
    with pytest.raises(kofn.CannotDo, match=r"or saved, and its cluster on engine 'virtual'"):
        again.predict(X)
    save(again, tmp_path / "m")  # and again
    np.testing.assert_allclose(
        load(tmp_path / "m").set_params(cluster="virtual").predict(X), expected, rtol=1e-10
    )


def test_sparse_training_points_are_saved(tmp_path: Path) -> None:
    points = scipy.sparse.csr_array(np.where(X > 0, X, 0.0))
    model = KernelRidge([0.5], kernel="rbf", cluster="virtual").fit(points, Y)
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(points), model.predict(points))
    save(again, tmp_path / "again")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "again").read_bytes()
    arrays, facts = saved.read(tmp_path / "m")
    arrays["X_fit__indices"] = arrays["X_fit__indices"] + 99
    saved.write(tmp_path / "x", arrays, facts)
    with pytest.raises(kofn.BadFile, match="a saved model has"):
        load(tmp_path / "x")


def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    forest = RandomForestRegressor(2).fit(X, Y)
    with pytest.raises(kofn.BadInput, match=r"got CodedEnsemble\. Save what scikit-learn"):
        save(CodedEnsemble(forest), tmp_path / "m")
    with pytest.raises(NotFittedError):
        save(Ridge(), tmp_path / "m")
    own = KernelRidge(kernel=np.dot, cluster="virtual").fit(X, Y)
    with pytest.raises(kofn.BadInput, match="its kernel is one that has a name"):
        save(own, tmp_path / "m")
    model = Ridge(solver=CodedGradient(), cluster="virtual", tol=1e-3).fit(X, Y)
    with pytest.raises(kofn.BadInput, match=r"solver is CodedGradient.*set_params"):
        save(model, tmp_path / "m")
    save(model.set_params(solver="coded-gradient"), tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").coef_, model.coef_)


def test_a_pickled_model_of_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(Ridge(cluster="virtual").fit(X, Y)))
    with pytest.raises(kofn.BadFile, match=r"m\.pkl: a saved file is .*pickle.*save it anew"):
        load(tmp_path / "m.pkl")


def test_a_file_that_is_whole_but_no_model_is_refused(tmp_path: Path) -> None:
    ridge = Ridge(cluster="virtual").fit(X, Y)
    save(ridge, tmp_path / "m")
    arrays, facts = saved.read(tmp_path / "m")
    fitted = facts["fitted"]

    def refused(said: str, arrays: Any = arrays, **changed: Any) -> None:
        saved.write(tmp_path / "x", arrays, {**facts, **changed})
        with pytest.raises(kofn.BadFile, match=rf"a saved model has .*{said}"):
            load(tmp_path / "x")

    refused("it is a checkpoint", kind="checkpoint")
    refused("Popen", **{"class": "Popen"})
    refused("CodedEnsemble", **{"class": "CodedEnsemble"})
    refused("unexpected keyword", parameters={"shell": True})
    refused("alpha", parameters={"alpha": "1"})
    refused("fit sets", fitted={**fitted, "predict": "array"})
    refused("coef_", fitted={k: v for k, v in fitted.items() if k != "coef_"})
    refused("coef_", arrays={})
    refused("fit together", fitted={**fitted, "n_features_in_": 10**15})
    refused("fit together", arrays={**arrays, "coef_": arrays["coef_"][:4]})
    refused("fit together", arrays={**arrays, "coef_": np.zeros((1, 1, 5))})
    refused("floating-point", arrays={**arrays, "coef_": np.zeros(5, dtype=int)})
    refused("classes_", **{"class": "LinearSVC"}, parameters={})
    refused("no whole number", fitted={**fitted, "n_features_in_": 5.0})
    save(LinearSVC(cluster="virtual").fit(X, Y > 0), tmp_path / "m")
    arrays, facts = saved.read(tmp_path / "m")
    refused("two classes", arrays=arrays, fitted={**facts["fitted"], "classes_": None})
    saved.write(tmp_path / "x", arrays, {})
    with pytest.raises(kofn.BadFile, match="kind"):
        load(tmp_path / "x")
