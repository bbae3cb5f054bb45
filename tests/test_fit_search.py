"""kofn fit --search chooses settings by cross-validation; --test scores what it has not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from rich.console import Console
from sklearn.datasets import dump_svmlight_file
from sklearn.model_selection import GridSearchCV, KFold

import kofn
from kofn.cli import fit
from kofn.cli.fit import Fit, run
from kofn.learn import load

rng = np.random.default_rng(0)
X = rng.standard_normal((90, 12))
Y = X @ np.arange(12.0) + 9.0 * rng.standard_normal(90)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "classes.npy", np.where(Y > 0, 1, -1))
    return {"data": tmp_path / "X.npy", "labels": tmp_path / "y.npy", "engine": "virtual"}


def test_it_chooses_as_scikit_learn_does_and_saves_that_model(
    files: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "model.kofn"
    texts = ("alpha=0.1,10,100", "fit_intercept=true,false")
    job = Fit(**files, model="ridge", workers=3, search=texts, folds=4, seed=7, out=out)
    result = run(job, quiet=True)
    values = {"alpha": [0.1, 10, 100], "fit_intercept": [True, False]}
    theirs = GridSearchCV(
        sklearn.linear_model.Ridge(), values, cv=KFold(4, shuffle=True, random_state=7)
    ).fit(X, Y)
    found = result["search"]
    assert found["chosen"] == theirs.best_params_
    scores = [row["score"] for row in found["scores"]]
    np.testing.assert_allclose(scores, theirs.cv_results_["mean_test_score"], rtol=1e-7)
    model = load(out)
    assert model.alpha == found["chosen"]["alpha"]
    np.testing.assert_allclose(model.coef_, theirs.best_estimator_.coef_, rtol=1e-7)
    assert json.loads((tmp_path / "model.kofn.report.json").read_text())["search"] == found
    console = Console(width=100, record=True)
    fit.table(console, result)
    text = console.export_text()
    assert "cross-validation, 4 folds" in text
    assert text.count("chosen") == 1


def test_without_search_and_test_there_is_nothing_of_them(files: dict[str, Any]) -> None:
    result = run(Fit(**files, model="ridge", workers=3), quiet=True)
    assert result["search"] is result["test_score"] is None


def test_a_classifier_is_scored_on_the_test_file(tmp_path: Path) -> None:
    signs = np.where(Y > 0, 1, -1)
    sparse = np.where(rng.random(X.shape) < 0.3, X, 0.0)
    sparse[60:, -1] = 0.0  # a column that LIBSVM text of these rows does not know of
    dump_svmlight_file(sparse[:60], signs[:60], str(tmp_path / "train.svm"), zero_based=False)
    dump_svmlight_file(sparse[60:], signs[60:], str(tmp_path / "test.svm"), zero_based=False)
    job = Fit(
        tmp_path / "train.svm",
        *("svm", 3, 2, "virtual"),
        search=("C=0.001,0.1",),
        test=tmp_path / "test.svm",
        out=tmp_path / "m.kofn",
    )
    result = run(job, quiet=True)
    model = load(tmp_path / "m.kofn")
    assert result["test_score"] == model.score(sparse[60:], signs[60:])
    assert result["search"]["folds"] == 5
    console = Console(width=100, record=True)
    fit.table(console, result)
    assert "score on --test" in console.export_text()


@pytest.mark.parametrize(
    ("model", "texts", "problem"),
    [
        ("ridge", ["C=1,2"], "--search names a setting of ridge .*got 'C=1,2'. Name one of alpha"),
        ("ridge", ["alpha=1", "alpha=2"], "each setting once; got 'alpha=2'"),
        ("ridge", ["alpha=1, two"], "takes numbers, true and false; got 'alpha=1, two'"),
        ("ridge", ["alpha"], "takes numbers, true and false; got 'alpha'"),
        ("ridge", ["alpha=1,-1"], "alpha must be a number >= 0; got -1"),
        ("svm", ["C=1,true"], "C must be a number > 0; got True"),
        ("mlp", ["hidden=3"], "setting of mlp .*Name one of learning_rate"),
    ],
)
def test_what_cannot_be_searched_is_told_before_a_worker_starts(
    files: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    texts: list[str],
    problem: str,
) -> None:
    monkeypatch.setattr("kofn.cli.fit.connect", lambda *_, **__: pytest.fail("workers started"))
    with pytest.raises(kofn.BadInput, match=problem):
        run(Fit(**files, model=model, workers=3, search=tuple(texts)), quiet=True)


def test_data_that_do_not_go_with_it_are_told_before_a_worker_starts(
    files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kofn.cli.fit.connect", lambda *_, **__: pytest.fail("workers started"))

    def refused(problem: str, model: str, **more: Any) -> None:
        with pytest.raises(kofn.BadInput, match=problem):
            run(Fit(**files | more, model=model, workers=3), quiet=True)

    refused(
        "each of --folds 91 needs a row; there are only 90", "ridge", search=("alpha=1",), folds=91
    )
    few = np.r_[[1, 1, 1], np.zeros(87, dtype=int)]
    np.save(tmp_path / "few.npy", few)
    labels = {"labels": tmp_path / "few.npy"}
    refused(
        "--folds 5 needs a row of each class; there are only 3", "svm", search=("C=1",), **labels
    )
    np.save(tmp_path / "narrow.npy", X[:, :5])
    test: dict[str, Any] = {"test": tmp_path / "narrow.npy", "test_labels": tmp_path / "y.npy"}
    refused("columns of the data, 12; narrow.npy has 5", "ridge", **test)
    np.save(tmp_path / "text.npy", np.where(Y > 0, "yes", "no"))
    test = {"test": tmp_path / "X.npy", "test_labels": tmp_path / "text.npy"}
    classes = {"labels": tmp_path / "classes.npy"}
    refused("labels that the data have; X.npy has 'no', the data -1", "svm", **test, **classes)
    holes = X.copy()
    holes[0, 0] = np.nan
    np.save(tmp_path / "holes.npy", holes)
    test = {"test": tmp_path / "holes.npy", "test_labels": tmp_path / "y.npy"}
    refused(r"every number in holes\.npy must be finite", "ridge", **test)
