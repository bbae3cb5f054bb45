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
from kofn.learn import PCA, Ridge, TruncatedSVD, components, load, save
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
    options["svd_solver"] = "randomized"
    faults = Faults().lose(worker=1, round=3).lose(worker=4, round=6).join(round=9)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        ours = PCA(**options, cluster=cluster, k=3)
        scores = ours.fit_transform(data if data is not SPARSE else cluster.encode(data, k=3))
        assert {1, 4}.isdisjoint(cluster.workers)
    dense: Any = data if data is not SPARSE else SPARSE.toarray()
    theirs = sklearn.decomposition.PCA(**options)
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
        randomized: dict[str, Any] = {"svd_solver": "randomized", "random_state": 3}
        ours = PCA(4, **randomized, cluster=cluster).fit(X)
        svd = TruncatedSVD(4, random_state=3, cluster=cluster).fit(X)
        assert {0, 3}.isdisjoint(cluster.workers)
    theirs = sklearn.decomposition.PCA(4, **randomized).fit(TALL)
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
        if kind is PCA:
            model.set_params(svd_solver="randomized")
        model.set_params(callback=lambda *step: seen.append(step[0])).fit(TALL)
        save(model, tmp_path / "model")
        assert np.array_equal(load(tmp_path / "model").transform(TALL), model.transform(TALL))
    assert seen == [*range(1, 5), *range(1, 6)]


# Exact solvers: by one pass, here or on workers, or by Lanczos steps.

ALL = (*FITTED, "mean_", "noise_variance_", "n_components_", "n_samples_")
HERE: dict[str, Any] = {"cluster": "virtual"}  # no workers are given: one pass in this process
V: dict[str, Any] = {"cluster": "virtual", "workers": 4}
PLACES = pytest.mark.parametrize("on", [HERE, V], ids=["here", "workers"])
FEWER = [(TALL, n) for n in (3, 0.95, "mle", None)] + [(WIDE, n) for n in (3, 0.95, None)]


@PLACES
@pytest.mark.parametrize("solver", ["auto", "full", "covariance_eigh"])
@pytest.mark.parametrize(("data", "n_components"), FEWER)
def test_exact_solvers_are_scikit_learns(
    data: Any, n_components: Any, solver: str, on: dict[str, Any]
) -> None:
    ours = PCA(n_components, svd_solver=solver, **on)
    # Not "covariance_eigh" of scikit-learn for the wide: it has more values than there are rows.
    theirs = sklearn.decomposition.PCA(n_components, svd_solver="full")
    scores, expected = ours.fit_transform(data), theirs.fit_transform(data)
    assert ours.where_ == ("here" if on is HERE else "workers")
    least = theirs.singular_values_[-1] / theirs.singular_values_[0]
    known = slice(None, -1 if least < 1e-9 else None)  # centred wide data lack a direction
    size = np.abs(expected).max()
    np.testing.assert_allclose(scores[:, known], expected[:, known], rtol=0, atol=NEAR * size)
    for name in ALL:
        found, wanted = getattr(ours, name), getattr(theirs, name)
        if name == "components_":
            found, wanted = found[known], wanted[known]
        size = float(np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=NEAR * size, err_msg=name)
    named = sklearn.decomposition.PCA(n_components, svd_solver=solver).fit(data)
    assert ours._fit_svd_solver == named._fit_svd_solver


@PLACES
def test_a_flat_spectrum_is_as_exact_as_scikit_learn_s_default(on: dict[str, Any]) -> None:
    data = scipy.sparse.random(1000, 300, density=0.01, format="csr", random_state=0)
    ours = PCA(10, **on).fit(data)
    same(ours, sklearn.decomposition.PCA(10).fit(data), ALL)
    svd = TruncatedSVD(10, algorithm="arpack", **on).fit(data)
    same(svd, sklearn.decomposition.TruncatedSVD(10, algorithm="arpack").fit(data), FITTED)


@PLACES
def test_small_singular_values_keep_their_digits(on: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 6)))[0] for n in (200, 6))
    left = np.linalg.qr(left - left.mean(axis=0))[0]  # and centred
    values = 10.0 ** -np.arange(0, 12, 2)
    data = left * values @ right.T
    # Lanczos steps, which wide data on workers take, lose what is below 1e-8, as scikit-learn's.
    for rows in (data, data.T) if on is HERE else (data,):
        svd = TruncatedSVD(5, algorithm="arpack", **on).fit(rows)
        # Data themselves are rounded, to about 1e-16 of the largest value, as LAPACK's results.
        np.testing.assert_allclose(svd.singular_values_, values[:5], rtol=1e-9, atol=1e-14)
    pca = PCA(svd_solver="full", **on).fit(data)
    np.testing.assert_allclose(pca.singular_values_, values, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(np.abs(pca.components_ @ right), np.eye(6), atol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "far from zero", "sparse"])
@pytest.mark.parametrize("lost", [False, True], ids=["calm", "lost"])
def test_one_pass_on_the_workers_or_coded_products(kind: str, lost: bool) -> None:
    data: Any = {"dense": TALL, "far from zero": TALL + 1e6, "sparse": SPARSE}[kind]
    faults = Faults().lose(worker=0, round=2) if lost else Faults()
    with kofn.connect(faults.on(VirtualEngine(5))) as cluster:
        X = cluster.encode(data, k=3)
        ours = PCA(4, svd_solver="covariance_eigh", cluster=cluster).fit(X)
        assert ours.where_ == "workers"
        assert (0 not in cluster.workers) == lost
    dense = data.toarray() if kind == "sparse" else data
    theirs = sklearn.decomposition.PCA(4, svd_solver="full").fit(dense)
    near = 1e-6 if kind == "far from zero" else NEAR  # of digits 1e6 takes as many
    for name in ALL:
        found, expected = getattr(ours, name), getattr(theirs, name)
        size = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=near * size, err_msg=name)


@pytest.mark.parametrize("data", [TALL, WIDE, SPARSE], ids=["tall", "wide", "sparse"])
def test_lanczos_steps_where_both_sides_are_long(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "SMALL", 10)
    faults = Faults().lose(worker=1, round=3).lose(worker=4, round=6)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        on: dict[str, Any] = {"cluster": cluster, "k": 3, "random_state": 0}
        ours = PCA(4, svd_solver="arpack", **on)
        scores = ours.fit_transform(data)
        assert ours.where_ == "workers"
        assert {1, 4}.isdisjoint(cluster.workers)
        svd = TruncatedSVD(4, algorithm="arpack", **on).fit(data)
    arpack: dict[str, Any] = {"svd_solver": "arpack", "random_state": 0}
    theirs = sklearn.decomposition.PCA(4, **arpack)
    expected = theirs.fit_transform(data)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=NEAR * np.abs(expected).max())
    same(ours, theirs, ALL)
    same(svd, sklearn.decomposition.TruncatedSVD(4, algorithm="arpack").fit(data), FITTED)


@pytest.mark.parametrize("normalizer", ["auto", "QR", "LU", "none"])
def test_every_normalizer_is_scikit_learns(normalizer: str) -> None:
    options: dict[str, Any] = {"power_iteration_normalizer": normalizer, "random_state": 0}
    pca: dict[str, Any] = {**options, "svd_solver": "randomized", "iterated_power": 3}
    same(PCA(3, **pca, **V).fit(TALL), sklearn.decomposition.PCA(3, **pca).fit(TALL), FITTED)
    if normalizer == "QR":
        return  # scikit-learn's TruncatedSVD takes it from 1.8 on: before, it was misspelt "OR"
    svd = sklearn.decomposition.TruncatedSVD(3, n_iter=3, **options).fit(TALL)
    same(TruncatedSVD(3, n_iter=3, **options, **V).fit(TALL), svd, FITTED)


@pytest.mark.parametrize("theirs", [sklearn.decomposition.PCA, sklearn.decomposition.TruncatedSVD])
def test_every_parameter_of_scikit_learn_is_known(theirs: Any) -> None:
    ours = {"PCA": PCA, "TruncatedSVD": TruncatedSVD}[theirs.__name__]
    given = theirs(2).get_params()
    assert ours(**given).get_params().items() >= given.items()


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (PCA, {"n_components": 31}, "n_components=31 must be between 0 and"),
    (PCA, {"n_components": 1.5}, r"n_components must be a number in \(0, 1\)"),
    (PCA, {"n_components": "all"}, "n_components must be a whole number"),
    (PCA, {"n_components": 0.5, "svd_solver": "randomized"}, "n_components=0.5 must be between 1"),
    (PCA, {"n_components": 30, "svd_solver": "arpack"}, "n_components=30 must be strictly less"),
    (PCA, {"n_components": "mle", "svd_solver": "arpack"}, "cannot be a string with svd_solver"),
    (PCA, {"n_components": "mle", "X": WIDE}, "only supported if n_samples >= n_features"),
    (PCA, {"n_oversamples": 0}, "n_oversamples"),
    (PCA, {"iterated_power": "some"}, "iterated_power"),
    (PCA, {"svd_solver": "qr"}, "svd_solver must be one of auto, full"),
    (PCA, {"power_iteration_normalizer": None}, "power_iteration_normalizer must be one of"),
    (PCA, {"tol": -1.0}, "tol must be a number >= 0"),
    (TruncatedSVD, {"algorithm": "full"}, "algorithm must be one of arpack, randomized"),
    (TruncatedSVD, {"n_components": 30, "algorithm": "arpack"}, "n_components must be a whole"),
    (TruncatedSVD, {"n_iter": -1}, "n_iter"),
]


@pytest.mark.parametrize(("kind", "wrong", "words"), WRONG)
def test_what_cannot_be_meant_is_refused(kind: Any, wrong: dict[str, Any], words: str) -> None:
    options = dict(wrong)
    X = options.pop("X", TALL)
    with pytest.raises(kofn.BadInput, match=words):
        kind(**options, **HERE).fit(X)


def test_data_that_have_no_components_are_refused() -> None:
    with pytest.raises(kofn.BadInput, match="all rows of these data are the same"):
        PCA(2, cluster="virtual", workers=2).fit(np.ones((9, 4)))
    for solver in ("full", "randomized"):
        with pytest.raises(kofn.CannotDo, match=f'"{solver}" was passed. Use one of those'):
            PCA(2, svd_solver=solver, **HERE).fit(SPARSE)
