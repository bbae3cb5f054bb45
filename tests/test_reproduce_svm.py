"""kofn reproduce svm, on the real data where they are, and on made-up ones everywhere."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file
from support import DataFolder

import kofn
from kofn.cli import reproduce

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


def check(data: Path, out: Path) -> dict[str, float]:
    result = reproduce.run("svm", out, data, quiet=True)
    assert json.loads((out / "results.json").read_text()) == result
    assert sorted(result["killed"]) == [1, 3]
    assert result["joined"] == [4]
    assert result["max_coef_difference"] <= 1e-8
    assert abs(result["accuracy"] - result["sklearn_accuracy"]) <= 0.003
    return result


def test_on_made_up_data(tmp_path: Path) -> None:
    check(made_up(tmp_path), tmp_path / "out")


def test_on_the_reports_own_data(tmp_path: Path, data_folder: DataFolder) -> None:
    assert check(data_folder("credit_default"), tmp_path / "out")["accuracy"] >= 0.804


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match=r"credit_default/train\.svm\.gz"):
        reproduce.run("svm", tmp_path / "out", tmp_path, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(kofn.BadInput, match="is a file"):
        reproduce.run("svm", tmp_path / "file", tmp_path, quiet=True)
