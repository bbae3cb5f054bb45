"""What coding is compared with, through the same estimators: the optimum of the rows that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from sklearn.datasets import make_regression
from support import ENGINES, until

import kofn
from kofn.arrays.baselines import Replicated
from kofn.arrays.store import write_store
from kofn.codes import MDSCode
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import CodedMLPClassifier, LinearSVC, LogisticRegression, Ridge
from kofn.learn.products import KINDS
from kofn.testing import Faults

X, Y = make_regression(300, 12, noise=5.0, random_state=0)
BEST = sklearn.linear_model.Ridge(2.0).fit(X, Y).coef_
SCALE = float(np.abs(BEST).max())


def descent(**options: Any) -> Ridge:
    return Ridge(2.0, solver="gd", tol=1e-10, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_loss_they_all_agree(kind: str) -> None:
    model = descent(products=kind, cluster="virtual", workers=6).fit(X, Y)
    np.testing.assert_allclose(model.coef_, BEST, atol=1e-7 * SCALE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_the_end_is_found_where_the_loss_is_rounded(kind: str, far: float) -> None:
    """Without an intercept the loss stays large, and its last digits show no way down."""
    best = sklearn.linear_model.Ridge(2.0, fit_intercept=False).fit(X, Y + far).coef_
    model = descent(products=kind, cluster="virtual", workers=6, fit_intercept=False)
    model.fit(X, Y + far)
    # The gradient's largest entry is 1e-10 of the first one's, and the curvature is 175 to 383.
    near = X.shape[1] * 383 / 175 * 1e-10 * np.abs(best).max()
    np.testing.assert_allclose(model.coef_, best, rtol=0, atol=near)


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["coded", "replication"])
def test_coded_and_replicated_fits_do_not_notice_a_kill(kind: str) -> None:
    faults = Faults().slow(worker=2, by=1e4, round=9).lose(worker=2, round=9)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        model = descent(products=kind, cluster=cluster).fit(X, Y)
        until(lambda: cluster.workers == (0, 1, 3), "the news of the losses")
    np.testing.assert_allclose(model.coef_, BEST, atol=1e-7 * SCALE)


def test_ignoring_finds_the_optimum_of_the_rows_that_are_left() -> None:
    faults = Faults().lose(worker=1, round=9)
    with kofn.connect(faults.on(VirtualEngine(3))) as cluster:
        model = descent(products="ignore", cluster=cluster).fit(X, Y)
    left = np.r_[:100, 200:300]
    expected = sklearn.linear_model.Ridge(2.0).fit(X[left], Y[left])
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6 * SCALE)
    assert np.abs(model.coef_ - BEST).max() > 1e-3 * SCALE


@pytest.mark.claim("elastic: Figure 2(c, d), Distr-BGD")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_lost_workers_last_gradient_is_kept_and_leads_astray() -> None:
    losses: list[float] = []
    faults = Faults().lose(worker=1, round=6)
    with kofn.connect(faults.on(VirtualEngine(3))) as cluster:
        model = descent(products="stale", cluster=cluster, max_iter=60)
        model.set_params(callback=lambda i, loss, matrix: losses.append(loss)).fit(X, Y)
    assert len(losses) == model.n_iter_ == 60  # it never thinks that it has arrived
    assert np.abs(model.coef_ - BEST).max() > 1e-2 * SCALE
    faults = Faults().lose(worker=1, round=6).join(round=40)
    with kofn.connect(faults.on(VirtualEngine(3))) as cluster:
        again = descent(products="stale", cluster=cluster, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(again.coef_, BEST, atol=1e-6 * SCALE)  # a newcomer mends it


def test_noiseless_needs_everyone() -> None:
    faults = Faults().lose(worker=1, round=9)
    with (
        kofn.connect(faults.on(VirtualEngine(3))) as cluster,
        pytest.raises(kofn.TooFewWorkers),
    ):
        descent(products="noiseless", cluster=cluster).fit(X, Y)


def test_copies_that_are_on_the_workers_already() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        copies = Replicated(cluster, X, 2)
        model = Ridge(2.0).fit(copies, Y)
        np.testing.assert_allclose(model.coef_, BEST, atol=1e-7 * SCALE)
        wide = cluster.encode(X, k=2, axis=1)
        np.testing.assert_allclose(Ridge(2.0).fit(wide, Y).coef_, BEST, atol=1e-7 * SCALE)


def test_bad_choices_get_one_clear_error(tmp_path: Path) -> None:
    for options, problem in (
        ({"products": "magic"}, "products must be one of coded, noiseless"),
        ({"products": "ignore"}, "Use solver='gd'"),
        ({"products": "replication", "k": 2}, "k is the threshold of coded"),
    ):
        with pytest.raises(kofn.BadInput, match=problem):
            Ridge(cluster="virtual", **options).fit(X, Y)
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(kofn.BadInput, match="takes a matrix in memory"):
        descent(cluster="virtual", products="ignore").fit(str(tmp_path / "X.npy"), Y)
    with kofn.connect("virtual", workers=3) as cluster:
        stale = Replicated(cluster, X, 1, lost="stale")
        with pytest.raises(kofn.BadInput, match="counts on exact products"):
            LogisticRegression().fit(stale, Y > 0)
        with pytest.raises(
            kofn.BadInput, match=r"got n=2 and 3 live\. Give 3 .*workers= of an est"
        ):
            Ridge(cluster=cluster, workers=2).fit(X, Y)


# A store, or a file, instead of an array.


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_and_a_file_are_fitted_by_path(tmp_path: Path, engine: str) -> None:
    np.save(tmp_path / "X.npy", X)
    write_store(tmp_path / "X.npy", tmp_path / "store", MDSCode(4, 2))
    c = (Y > 0).astype(int)
    with kofn.connect(engine, workers=4) as cluster:
        for data in (tmp_path / "store", str(tmp_path / "store"), tmp_path / "X.npy"):
            model = Ridge(2.0, cluster=cluster).fit(data, Y)
            np.testing.assert_allclose(model.coef_, BEST, atol=1e-7 * SCALE)
        for kind in (LogisticRegression, LinearSVC):
            by_path = kind(cluster=cluster).fit(tmp_path / "store", c)
            plain = kind(cluster="virtual", workers=4).fit(X, c)
            np.testing.assert_allclose(by_path.coef_, plain.coef_, rtol=1e-6)
            assert by_path.score(X, c) > 0.9


def test_bad_labels_and_weights_beside_a_store(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    write_store(tmp_path / "X.npy", tmp_path / "store", MDSCode(4, 2))
    model = Ridge(cluster="virtual", workers=4)
    with pytest.raises(kofn.BadInput, match="got 300 and 5"):
        model.fit(tmp_path / "store", Y[:5])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(tmp_path / "store", np.where(Y > 0, np.nan, Y))
    # scikit-learn's own words where it has some
    with pytest.raises(ValueError, match=r"add up to more than 0|at least one non-zero"):
        model.fit(X, Y, sample_weight=np.zeros(300))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(tmp_path / "store", Y, sample_weight=np.full(300, np.nan))
    with pytest.raises(kofn.KofnError, match="nowhere"):
        model.fit(tmp_path / "nowhere", Y)
    with pytest.raises(kofn.BadInput, match="weights coded, not the data"):
        CodedMLPClassifier(cluster="virtual").fit(tmp_path / "store", Y > 0)


# A progress bar.


def test_verbose_shows_a_bar_on_a_terminal_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = (
        LinearSVC(cluster="virtual", workers=3, verbose=True),
        CodedMLPClassifier((5,), max_epochs=2, cluster="virtual", workers=3, verbose=True),
    )
    for model in models:
        model.fit(X, Y > 0)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    for model, what in zip(models, ("iteration", "epoch"), strict=True):
        model.fit(X, Y > 0)
        out, shown = capfd.readouterr()
        assert out == ""
        assert what in shown
        assert "3 workers live" in shown
