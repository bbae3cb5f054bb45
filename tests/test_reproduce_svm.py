"""kofn reproduce svm, on the real data where they are, and on made-up ones everywhere."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from rich.console import Console
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import f1_score
from support import DataFolder, unresolved

import kofn
from kofn.cli import reproduce
from kofn.reproduce import averaging
from kofn.reproduce.inventory import claims
from kofn.reproduce.svm import REPORTED, Settings

pytestmark = pytest.mark.papers

ROOT = Path(__file__).parent.parent


def made_up(where: Path) -> Path:
    """Data of the same form: 219 columns of zeros and ones."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(219)
    (where / "credit_default").mkdir()
    for name, rows in (("train", 900), ("test", 400)):
        X = (rng.random((rows, 219)) < 0.08).astype(float)
        y = np.where(X @ weights + rng.standard_normal(rows) > 0, 1, -1)
        text = io.BytesIO()
        dump_svmlight_file(X, y, text, zero_based=False)
        (where / "credit_default" / f"{name}.svm.gz").write_bytes(gzip.compress(text.getvalue()))
    return where


def check(data: Path, out: Path) -> dict[str, Any]:
    result = reproduce.run("svm", out, data, quiet=True)
    assert json.loads((out / "results.json").read_text()) == result
    assert sorted(result["killed"]) == [1, 3]
    assert unresolved(claims("svm"), result) == []
    assert result["joined"] == [4]
    assert result["max_coef_difference"] <= 1e-8
    assert abs(result["accuracy"] - result["sklearn_accuracy"]) <= 0.003
    assert len(result["chosen"]["four"]) == 4
    console = Console(width=160, record=True)
    reproduce.table(console, result)
    text = console.export_text()
    assert all(f"{100 * value:.2f}%" in text for value in REPORTED["four"].values())
    return result


def test_on_made_up_data(tmp_path: Path) -> None:
    check(made_up(tmp_path), tmp_path / "out")


def test_on_the_reports_own_data(tmp_path: Path, data_folder: DataFolder) -> None:
    result = check(data_folder("credit_default"), tmp_path / "out")
    assert result["accuracy"] >= 0.804
    for machines in ("one", "four"):  # the report's accuracies, by its own way
        assert abs(result["repeated"][machines]["accuracy"] - REPORTED[machines]["accuracy"]) < 0.03


def test_descent_in_columns_is_descent_one_by_one() -> None:
    """The report's loop, as it stands there: one setting, one row at a time."""
    dense = np.random.default_rng(0).random((40, 7)) * (
        np.random.default_rng(4).random((40, 7)) < 0.4
    )
    X = scipy.sparse.csr_array(dense)
    y = np.where(np.random.default_rng(1).random(40) < 0.5, 1.0, -1.0)
    rates, trades = np.array([10.0, 0.1, 1.0]), np.array([0.01, 1.0, 10.0])
    used = np.random.default_rng(2).random((40, 3)) < 0.8
    W = averaging._descend(X, y, rates, trades, used, 3, lambda W: None)
    for column in range(3):
        order = np.random.default_rng(3)
        w, t = np.zeros(7), 0
        for _ in range(averaging.EPOCHS):
            for row in order.permutation(40):
                if used[row, column]:
                    x, step = dense[row], rates[column] / (1 + t)
                    inside = y[row] * (w @ x) <= 1
                    w = (1 - step) * w + (step * trades[column] * y[row] * x if inside else 0.0)
                    t += 1
        np.testing.assert_allclose(W[:, column], w, rtol=1e-9, atol=1e-12)


def test_f1_of_held_out_rows() -> None:
    y, scores = np.array([1.0, -1, 1, -1, 1]), np.array([[2.0], [1], [-1], [-1], [3]])
    counted = np.array([[True], [True], [True], [True], [False]])
    assert averaging.f1(y, scores, counted)[0] == f1_score(y[:4], np.sign(scores[:4, 0]))
    assert averaging.f1(y, -np.abs(scores), counted)[0] == 0.0


def test_workers_that_are_no_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match="those of engine 'virtual' are not"):
        reproduce.run(
            *("svm", tmp_path / "out", made_up(tmp_path)),
            quiet=True,
            settings=Settings("virtual"),
        )


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match=r"credit_default/train\.svm\.gz"):
        reproduce.run("svm", tmp_path / "out", tmp_path, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(kofn.BadInput, match="is a file"):
        reproduce.run("svm", tmp_path / "file", tmp_path, quiet=True)
