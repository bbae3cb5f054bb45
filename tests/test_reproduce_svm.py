"""kofn reproduce svm, on rows of the real data if they are here, else on made-up ones."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from claimed import citing, holds_in
from rich.console import Console
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import f1_score
from support import DataFolder, unresolved

import kofn
from kofn.cli import reproduce
from kofn.reproduce import averaging
from kofn.reproduce.inventory import claims
from kofn.reproduce.svm import Settings

pytestmark = pytest.mark.papers


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


def first_rows(data: Path, where: Path) -> Path:
    """The first 3,000 rows to train with, of the report's own data, and all test rows."""
    (where / "credit_default").mkdir()
    for name, rows in (("train", 3000), ("test", None)):
        lines = gzip.decompress((data / f"credit_default/{name}.svm.gz").read_bytes()).split(b"\n")
        (where / f"credit_default/{name}.svm").write_bytes(b"\n".join(lines[:rows]) + b"\n")
    return where


@pytest.fixture(scope="module")
def out(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of one small run are: on the report's data if there are any."""
    where = tmp_path_factory.mktemp("svm")
    given: str | None = pytestconfig.getoption("--data")
    real = given is not None and Path(given, "credit_default").exists()
    data = first_rows(Path(given), where) if real and given else made_up(where)
    reproduce.run("svm", where / "out", data, quiet=True)
    return where / "out"


@pytest.fixture(scope="module")
def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.mark.parametrize(
    "claim",
    citing(
        "tests/test_reproduce_svm.py::"
        "test_two_are_killed_one_joins_and_the_fit_is_the_undisturbed_one"
    ),
)
def test_two_are_killed_one_joins_and_the_fit_is_the_undisturbed_one(
    claim: str, result: dict[str, Any]
) -> None:
    assert sorted(result["killed"]) == [1, 3]
    assert result["joined"] == [4]
    holds_in(claim, result)
    assert unresolved(claims("svm"), result) == []


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_svm.py::test_accuracies_on_the_reports_own_data")
)
def test_accuracies_on_the_reports_own_data(
    claim: str, data_folder: DataFolder, result: dict[str, Any]
) -> None:
    data_folder("credit_default")
    holds_in(claim, result)


def test_the_report_its_way_again_fits_without_coding_and_ours_are_in_one_table(
    result: dict[str, Any],
) -> None:
    console = Console(width=100, record=True)
    reproduce.table(console, result)
    text = console.export_text()
    for kind in ("reported", "repeated", "converged"):
        for scores in result[kind].values():
            assert all(f"{value:.2%}" in text for value in scores.values())
    assert set(result["converged"]) == {"four", "two"}


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


@pytest.mark.claim("svm: Twelve settings")
def test_the_best_of_36_pairs_of_twelve_numbers_is_chosen() -> None:
    rng = np.random.default_rng(5)
    dense = (rng.random((20, 8)) < 0.4).astype(float)
    X, y = scipy.sparse.csr_array(dense), np.where(dense @ rng.standard_normal(8) > 0, 1.0, -1.0)
    found = averaging.train(X, y, 6)
    powers = [10.0**e for e in (1, 0, -1, -2, -3, -4)]
    best: dict[tuple[float, float], float] = {}
    for rate, trade_off in itertools.product(powers, powers):
        scores = []
        for fold in range(5):
            held_out = np.arange(20) // 4 == fold
            epochs: list[Any] = []
            pair = (np.array([rate]), np.array([trade_off]))
            averaging._descend(X, y, *pair, ~held_out[:, None], 6, epochs.append)
            scores += [averaging.f1(y, X @ W, held_out[:, None])[0] for W in epochs]
        best[rate, trade_off] = float(np.mean(scores))
    chosen = best[found.rate, found.trade_off]
    assert chosen == pytest.approx(max(best.values()), rel=1e-12)
    assert chosen > min(best.values())


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
