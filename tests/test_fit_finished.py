"""kofn fit, kofn predict and kofn encode, with all that they take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import kofn
from kofn.cli.app import app
from kofn.cli.fit import Fit, run
from kofn.cli.predict import run as predict
from kofn.learn import load

X, Y = load_diabetes(return_X_y=True)
XC, YC = load_breast_cancer(return_X_y=True)


def table(path: Path, X: Any, y: Any, target: bool = True) -> Path:
    names = [f"x{i}" for i in range(X.shape[1])] + ["y"] * target
    lines, pairs = [",".join(names)], zip(X, y, strict=True)
    lines += [",".join(map(repr, [*row.tolist(), *([str(t)] * target)])) for row, t in pairs]
    path.write_text("\n".join(lines).replace("'", "") + "\n")
    return path


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    return table(tmp_path / "numbers.csv", X, Y)


def frame(X: Any) -> Any:
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])


def fitted(data: Path, model: str, tmp_path: Path, **options: Any) -> tuple[dict[str, Any], Any]:
    out = tmp_path / "model.kofn"
    given = Fit(data, model, 3, engine="virtual", out=out, **options)
    return run(given, quiet=True), load(out)


def test_settings_and_a_standardised_fit(tmp_path: Path, numbers: Path) -> None:
    given = {"alpha": 3.0, "tol": 1e-12, "max_iter": 50}
    result, model = fitted(numbers, "ridge", tmp_path, given=given, standardise=True)
    scaler = StandardScaler().fit(X)
    exact = sklearn.linear_model.Ridge(3.0).fit(scaler.transform(X), Y)
    np.testing.assert_allclose(model.coef_, exact.coef_ / scaler.scale_, rtol=1e-7)
    np.testing.assert_allclose(
        model.predict(frame(X)), exact.predict(scaler.transform(X)), rtol=1e-7
    )
    assert result["score"] == pytest.approx(exact.score(scaler.transform(X), Y))
    assert model.alpha == 3.0


def test_a_standardised_classifier_and_network_predict_from_rows_as_they_are(
    tmp_path: Path,
) -> None:
    data = table(tmp_path / "classes.csv", XC, YC)
    result, model = fitted(data, "logistic", tmp_path, standardise=True, hold_out=0.3)
    assert result["test_score"] > 0.9
    assert result["rows"] + result["test_rows"] == len(YC)
    assert model.score(frame(XC), YC) > 0.95
    result, model = fitted(data, "mlp", tmp_path, standardise=True, epochs=2, hidden="4")
    assert model.score(frame(XC), YC) == pytest.approx(result["score"])
    assert result["score"] > 0.8
    assert model.classes_.dtype.kind == "i"  # as they are written: 0, not 0.0


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("ridge", {"given": {"C": 1.0}}, "--C is for logistic and svm"),
        ("svm", {"given": {"alpha": 1.0}}, "--alpha is for ridge"),
        ("mlp", {"given": {"tol": 1.0}}, "--tol is for linear models"),
        ("ridge", {"given": {"alpha": -1.0}}, "alpha must be a number"),
        ("ridge", {"hold_out": 1.5}, "--hold-out is a part"),
        ("ridge", {"at_most": 2}, "--at-most limits"),
    ],
)
def test_settings_that_do_not_go_with_the_model(
    numbers: Path, model: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(kofn.BadInput, match=words):
        run(Fit(numbers, model, 3, engine="virtual", **options), quiet=True)


def test_a_saved_model_predicts(tmp_path: Path, numbers: Path) -> None:
    _, model = fitted(numbers, "ridge", tmp_path)
    expected = model.predict(frame(X))
    alone = table(tmp_path / "alone.csv", X, Y, target=False)
    np.save(tmp_path / "rows.npy", X)
    for data, score in ((numbers, True), (alone, False), (tmp_path / "rows.npy", False)):
        result = predict(tmp_path / "model.kofn", data, tmp_path / "out.npy", None, None)
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected)
        assert (result["score"] is not None) == score
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model.kofn"), str(alone)])
    np.testing.assert_allclose([float(line) for line in done.stdout.split()], expected)
    out = ["--out", str(tmp_path / "p.csv"), "--json"]
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model.kofn"), str(numbers), *out])
    assert json.loads(done.stdout)["score"] == pytest.approx(model.score(frame(X), Y))
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "prediction"
    np.save(tmp_path / "few.npy", X[:, :3])
    with pytest.raises(kofn.BadInput, match="fitted to 10 columns"):
        predict(tmp_path / "model.kofn", tmp_path / "few.npy", None, None, None)
    with pytest.raises(kofn.BadInput, match=r"\.csv or a \.npy"):
        predict(tmp_path / "model.kofn", alone, tmp_path / "p.txt", None, None)


def test_columns_are_found_by_their_names(tmp_path: Path, numbers: Path) -> None:
    test = tmp_path / "other.csv"
    lines = [line.split(",")[::-1] for line in numbers.read_text().split()]
    test.write_text("\n".join(map(",".join, lines)))
    result, model = fitted(numbers, "ridge", tmp_path, test=test)
    assert result["test_score"] == pytest.approx(result["score"])
    assert model.feature_names_in_.tolist() == [f"x{i}" for i in range(10)]
    found = predict(tmp_path / "model.kofn", test, None, None, None)
    assert found["score"] == pytest.approx(result["score"])
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model.kofn"), str(test)])
    assert done.stderr == f"score {result['score']:.4f}\n"
    test.write_text(test.read_text().replace("x3", "age"))
    for given in (None, "y"):
        with pytest.raises(kofn.BadInput, match=r"lacks x3, and has besides (y, )?age"):
            predict(tmp_path / "model.kofn", test, None, given, None)
    with pytest.raises(kofn.BadInput, match=r"other.csv must have the columns"):
        fitted(numbers, "ridge", tmp_path, test=test, target="y")
    alone = table(tmp_path / "alone.csv", X, Y, target=False)
    with pytest.raises(kofn.BadInput, match=r"the target must be .*; alone.csv has none"):
        fitted(numbers, "ridge", tmp_path, test=alone)


@pytest.mark.engine
def test_a_csv_file_is_encoded_without_its_target(tmp_path: Path, numbers: Path) -> None:
    args = ["encode", str(numbers), str(tmp_path / "store"), "--n", "3", "--k", "2"]
    done = CliRunner().invoke(app, [*args, "--target", "y", "--labels", str(tmp_path / "y.npy")])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), Y)
    with kofn.connect("local", workers=3) as cluster:
        np.testing.assert_allclose(cluster.encode(str(tmp_path / "store")).toarray(), X, rtol=1e-9)
    done = CliRunner().invoke(app, [*args[:2], str(tmp_path / "whole"), *args[3:]])
    assert done.exit_code == 0
    assert "442 x 11" in done.output
    done = CliRunner().invoke(app, [*args, "--labels", "y.txt"])
    assert isinstance(done.exception, kofn.BadInput)


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["lifetimes", "counts"])
def test_every_trace_of_who_comes_and_goes(tmp_path: Path, numbers: Path, kind: str) -> None:
    path = tmp_path / "trace.csv"
    if kind == "lifetimes":
        path.write_text("lifetime_s,end_event\n5e6,preempted\n8e6,preempted\n9e6,stopped\n")
    else:
        path.write_text("time_s,instances\n0,6\n100,5\n200,6\n")
    given = Fit(numbers, "ridge", 3, spot=str(path), at_most=2 if kind == "counts" else None)
    result = run(given, quiet=True)
    assert result["score"] > 0.4
    assert result["live"][0] == (2 if kind == "counts" else 3)


def test_completion_is_offered() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert "--install-completion" in done.output
