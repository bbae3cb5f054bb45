"""Principal components: scikit-learn's own checks, its results, and workers killed on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.decomposition
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import kofn
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import PCA, Ridge, TruncatedSVD, load, save
from kofn.testing import Faults

RNG = np.random.default_rng(0)
TALL = RNG.standard_normal((600, 30)) * np.geomspace(5.0, 0.5, 30) + RNG.standard_normal(30)
WIDE = RNG.standard_normal((40, 90)) * np.geomspace(5.0, 0.5, 90)
SPARSE = scipy.sparse.csr_matrix(np.where(np.abs(TALL) > 1.5, TALL, 0.0))
# Singular vectors turn by the error of a product over the gap between singular values: those of
# random data are some thousandths of the largest apart. Six products in a row, each rounds.
NEAR = 1e-9


def same(ours: Any, theirs: Any, names: tuple[str, ...]) -> None:
    for name in names:
        found, expected = getattr(ours, name), getattr(theirs, name)
        size = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR * size, err_msg=name)


FITTED = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [PCA(1, cluster="virtual", workers=2), TruncatedSVD(1, cluster="virtual", workers=2)]
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("data", [TALL, WIDE, SPARSE], ids=["tall", "wide", "sparse"])
def test_pca_is_scikit_learns(data: Any, whiten: bool) -> None:
    options: dict[str, Any] = {"n_components": 4, "whiten": whiten, "random_state": 3}
    faults = Faults().lose(worker=1, round=3).lose(worker=4, round=6).join(round=9)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        ours = PCA(**options, cluster=cluster, k=3)
        scores = ours.fit_transform(data)
        assert {1, 4}.isdisjoint(cluster.workers)
    dense: Any = data if data is not SPARSE else SPARSE.toarray()
    theirs = sklearn.decomposition.PCA(**options, svd_solver="randomized")
    size = np.abs(expected := theirs.fit_transform(dense)).max()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=NEAR * size)
    same(ours, theirs, (*FITTED, "mean_", "noise_variance_", "n_components_", "n_samples_"))
    np.testing.assert_allclose(ours.transform(dense), theirs.transform(dense), atol=NEAR * size)
    back = (ours.inverse_transform(scores), theirs.inverse_transform(expected))
    np.testing.assert_allclose(*back, atol=NEAR * size)
    assert ours.score(dense) == pytest.approx(theirs.score(dense), rel=NEAR)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=NEAR * size**2)


@pytest.mark.parametrize("data", [TALL, WIDE, SPARSE], ids=["tall", "wide", "sparse"])
def test_truncated_svd_is_scikit_learns(data: Any) -> None:
    faults = Faults().lose(worker=1, round=3).lose(worker=4, round=6)
    theirs = sklearn.decomposition.TruncatedSVD(3, random_state=0)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        ours = TruncatedSVD(3, random_state=0, cluster=cluster, k=3)
        scores, expected = ours.fit_transform(data), theirs.fit_transform(data)
        size = np.abs(expected).max()
        np.testing.assert_allclose(scores, expected, rtol=0, atol=NEAR * size)
        same(ours, theirs, FITTED)
        assert {1, 4}.isdisjoint(cluster.workers)


@pytest.mark.engine
def test_data_on_workers_are_fitted_where_they_are_and_kills_change_nothing() -> None:
    faults = Faults().lose(worker=0, round=4).lose(worker=3, round=9)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        X = cluster.encode(TALL, k=2)
        ours = PCA(4, random_state=3, cluster=cluster).fit(X)
        svd = TruncatedSVD(4, random_state=3, cluster=cluster).fit(X)
        assert {0, 3}.isdisjoint(cluster.workers)
    theirs = sklearn.decomposition.PCA(4, svd_solver="randomized", random_state=3).fit(TALL)
    same(ours, theirs, (*FITTED, "mean_", "noise_variance_"))
    same(svd, sklearn.decomposition.TruncatedSVD(4, random_state=3).fit(TALL), FITTED)


def test_float32_stays_float32_and_names_go_on_in_a_pipeline() -> None:
    data = TALL.astype(np.float32)
    with kofn.connect("virtual", workers=4) as cluster:
        pca = PCA(3, random_state=0, cluster=cluster)
        assert pca.fit_transform(data).dtype == pca.components_.dtype == np.float32
        line = make_pipeline(pca, Ridge(cluster=cluster)).fit(TALL, TALL[:, 0])
        assert line.score(TALL, TALL[:, 0]) > 0.9
    assert list(pca.get_feature_names_out()) == ["pca0", "pca1", "pca2"]


def test_a_fit_can_be_saved_and_watched(tmp_path: Any) -> None:
    seen = []
    for kind in (PCA, TruncatedSVD):
        model = kind(3, random_state=0, cluster="virtual", workers=2)
        model.set_params(callback=lambda *step: seen.append(step[0])).fit(TALL)
        save(model, tmp_path / "model")
        assert np.array_equal(load(tmp_path / "model").transform(TALL), model.transform(TALL))
    assert seen == [*range(1, 5), *range(1, 6)]


def test_what_cannot_be_meant_is_refused() -> None:
    for wrong in ({"n_components": 31}, {"n_components": 0.5}, {"n_oversamples": 0}):
        with pytest.raises(kofn.BadInput, match=next(iter(wrong))):
            PCA(**wrong, cluster="virtual", workers=2).fit(TALL)
    with pytest.raises(kofn.BadInput, match="iterated_power"):
        PCA(2, iterated_power="some", cluster="virtual", workers=2).fit(TALL)
    with pytest.raises(kofn.BadInput, match="all rows of these data are the same"):
        PCA(2, cluster="virtual", workers=2).fit(np.ones((9, 4)))
