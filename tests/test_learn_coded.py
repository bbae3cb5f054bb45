"""Descent by coded sums of gradients: against single-process descent, and against scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as theirs
import sklearn.svm
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.base import clone
from support import until

import kofn
from kofn.delays import Exponential
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import (
    SVRG,
    CodedGradient,
    Constant,
    Decay,
    GradientDescent,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    Nesterov,
    Ridge,
)
from kofn.learn.descent import descend
from kofn.testing import Faults

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 6))
SCORES = X @ RNG.standard_normal(6) + RNG.standard_normal(240)
LABELS = np.where(SCORES > 0.3, "yes", "no")
MANY = np.digitize(SCORES, [-1.0, 1.0])


def virtual(workers: int = 6, **options: Any) -> kofn.Cluster:
    return kofn.connect(VirtualEngine(workers, **options))


@pytest.mark.parametrize("data", [X, csr_array(np.where(np.abs(X) > 0.5, X, 0.0))])
@pytest.mark.parametrize("labels", [LABELS, MANY])
def test_logistic_regression_is_scikit_learns(data: Any, labels: Any) -> None:
    with virtual() as cluster:
        ours = LogisticRegression(
            solver="coded-gradient", tol=1e-9, max_iter=5000, cluster=cluster
        ).fit(data, labels)
    best = theirs.LogisticRegression(tol=1e-10, max_iter=10_000).fit(data, labels)
    # Strongly convex with modulus 1: the distance is at most the gradient's norm.
    assert np.abs(ours.coef_ - best.coef_).max() < 1e-4
    assert (ours.predict(data) == best.predict(data)).all()


def least_squares(A: Any, y: Any, weight: Any = None) -> tuple[Any, float]:
    """The solution by SVD. scikit-learn's for sparse data is iterative, and only as good as its
    default tolerance."""
    dense = A if isinstance(A, np.ndarray) else A.toarray()
    share = np.full(len(y), 1 / len(y)) if weight is None else weight / weight.sum()
    mean, root = share @ dense, np.sqrt(share)
    coef = np.linalg.lstsq(root[:, None] * (dense - mean), root * (y - share @ y), rcond=None)[0]
    return coef, float(share @ y - mean @ coef)


def test_least_squares_and_hinge_are_scikit_learns() -> None:
    targets = np.stack([SCORES, 2 * SCORES + 1], axis=1)
    with virtual() as cluster:
        options: dict[str, Any] = {"solver": "coded-gradient", "cluster": cluster}
        line = LinearRegression(tol=1e-9, **options).fit(X, SCORES)
        ridge = Ridge(3.0, tol=1e-9, **options).fit(X, targets)
        svc = LinearSVC(tol=1e-8, max_iter=20_000, **options).fit(X, LABELS)
    assert np.allclose(line.coef_, least_squares(X, SCORES)[0], atol=1e-8)
    best = theirs.Ridge(3.0).fit(X, targets)
    assert np.allclose(ridge.coef_, best.coef_, atol=1e-8)
    assert np.allclose(ridge.intercept_, best.intercept_, atol=1e-8)
    hinge = sklearn.svm.LinearSVC(dual=False, tol=1e-12, max_iter=100_000).fit(X, LABELS)
    assert np.allclose(svc.coef_, hinge.coef_, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["as it is", "shifted", "scaled", "weighted", "collinear", "sparse"]
)
def test_least_squares_whatever_the_columns_are_like(kind: str) -> None:
    A: Any = X
    weight = None
    if kind == "shifted":
        A = X + 1e4
    elif kind == "scaled":
        A = X * np.logspace(-2, 3, X.shape[1])
    elif kind == "weighted":
        weight = np.arange(float(len(X)))
    elif kind == "collinear":
        A = np.hstack([X, X[:, :2] @ np.array([[1.0, 2.0], [0.5, -1.0]])])
    elif kind == "sparse":
        A = csr_array(np.where(np.abs(X) > 0.5, X, 0.0) * np.logspace(0, 3, X.shape[1]))
    with virtual() as cluster, warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = LinearRegression(solver="coded-gradient", cluster=cluster).fit(A, SCORES, weight)
    coef, intercept = least_squares(A, SCORES, weight)
    size = np.abs(coef).max()
    assert np.abs(ours.coef_ - coef).max() < 1e-8 * size
    assert abs(ours.intercept_ - intercept) < 1e-6 * max(1.0, abs(intercept))


def mean_slope(w: Any) -> Any:
    y = np.where(LABELS == "yes", 1.0, -1.0)
    return (-X.T @ (y * expit(-y * (X @ w))) + w) / len(y)


@pytest.mark.parametrize(
    "optimiser",
    [
        GradientDescent(Constant(0.5)),
        GradientDescent(Decay(0.5, 0.99)),
        Nesterov(Constant(0.5)),
        Nesterov(Decay(), momentum=0.9),
    ],
)
def test_each_optimiser_walks_as_it_does_alone(optimiser: Nesterov) -> None:
    with virtual(delays=Exponential(mean=1.0)) as cluster:
        how = CodedGradient(kofn.FractionalRepetition(3), optimiser=optimiser)
        ours = LogisticRegression(
            solver=how, fit_intercept=False, max_iter=40, tol=0.0, cluster=cluster
        ).fit(X, LABELS)
    alone = descend(lambda w, t: (mean_slope(w), True), np.zeros(6), optimiser, 40)
    # Sums in another order: the rounding of 240 terms, carried through 40 steps.
    assert np.abs(ours.coef_[0] - alone.x).max() < 1e-12
    assert ours.n_iter_ == 40


def test_schedules() -> None:
    assert Decay()(1) == pytest.approx(0.099)
    assert Decay()(100) == pytest.approx(0.1 * 0.99**100)
    assert Constant(0.5)(7) == 0.5
    assert Decay(1.0, 0.5)(2) == 0.25
    for bad in (-1.0, 0.0, float("nan"), float("inf"), True, "0.1"):
        with pytest.raises(kofn.BadInput, match="step size"):
            Constant(bad)  # type: ignore[arg-type]
    for rate, factor in ((0.1, 2.0), (0.1, 0.0), (-0.1, 0.9), (0.1, float("nan"))):
        with pytest.raises(kofn.BadInput, match=r"rate|factor"):
            Decay(rate, factor)
    with pytest.raises(kofn.BadInput, match=r"Constant\(0\.1\)"):
        GradientDescent(0.1)  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="momentum"):
        Nesterov(Constant(0.1), momentum=1.5)


def test_a_descent_that_leaves_the_numbers_says_so() -> None:
    with pytest.raises(kofn.NotFinite, match="smaller steps") as told:
        descend(lambda x, t: (x, True), np.ones(2), GradientDescent(Constant(1e100)), 50)
    assert told.value.iteration == 4


def test_nesterov_is_faster_than_descent_on_a_narrow_valley() -> None:
    curve = np.array([1.0, 1e-3])
    start = np.ones(2)

    def slope(x: Any, t: int) -> Any:
        return curve * x, True

    plain = descend(slope, start, GradientDescent(Constant(1.0)), 400).x
    fast = descend(slope, start, Nesterov(Constant(1.0), restart=True), 400).x
    assert curve @ fast**2 < 0.01 * (curve @ plain**2)


def test_descent_may_be_stopped() -> None:
    found = descend(
        lambda x, t: (x, True),
        np.ones(1),
        GradientDescent(Constant(0.5)),
        100,
        on_step=lambda t, x: t == 3,
    )
    assert (found.iterations, found.converged) == (3, True)
    assert found.x[0] == 0.125


def test_approximate_gradients_come_near() -> None:
    stop = kofn.first(3) | kofn.exact()
    how = CodedGradient(
        kofn.FractionalRepetition(2), stop, optimiser=GradientDescent(Constant(1.0))
    )
    with virtual(delays=Exponential(mean=1.0)) as cluster:
        ours = LogisticRegression(solver=how, max_iter=300, cluster=cluster).fit(X, LABELS)
        seconds = cluster.engine.now()
    best = theirs.LogisticRegression().fit(X, LABELS)
    assert (ours.predict(X) == best.predict(X)).mean() > 0.95
    # The third of six answers: 1/6 + 1/5 + 1/4 in the mean, not the 2.45 of all six.
    assert seconds / 300 < 1.0


def test_batches_are_the_same_wherever_a_part_lies() -> None:
    def fit(code: kofn.SumCode, batch: float | None) -> Any:
        how = CodedGradient(code, optimiser=GradientDescent(Constant(0.5)), parts=6, batch=batch)
        with virtual(delays=Exponential(mean=1.0)) as cluster:
            return LogisticRegression(solver=how, max_iter=30, cluster=cluster).fit(X, LABELS).coef_

    drawn = fit(kofn.Uncoded(), 0.25)
    assert np.allclose(drawn, fit(kofn.FractionalRepetition(3), 0.25), atol=1e-13)
    assert np.abs(drawn - fit(kofn.Uncoded(), None)).max() > 1e-3
    assert np.allclose(fit(kofn.Uncoded(), 1.0), fit(kofn.Uncoded(), None), atol=1e-12)


@pytest.mark.slow
@pytest.mark.claim("erasurehead: Future work, SVRG")
def test_svrg_comes_nearer_than_batches_alone() -> None:
    """The same batches and step size: how far the coefficients end from the optimum."""
    best = theirs.LogisticRegression(tol=1e-10).fit(X, LABELS)

    def off(optimiser: Nesterov, code: kofn.SumCode, data: Any = X) -> float:
        how = CodedGradient(code, optimiser=optimiser, parts=6, batch=0.2)
        with virtual(delays=Exponential(mean=1.0)) as cluster:
            ours = LogisticRegression(solver=how, max_iter=300, cluster=cluster).fit(data, LABELS)
        return float(np.abs(ours.coef_ - best.coef_).max())

    code = kofn.FractionalRepetition(2)
    plain = off(GradientDescent(Constant(0.5)), code)
    reduced = off(SVRG(Constant(0.5), every=10), code)
    assert reduced < plain / 20
    # Whoever holds a part draws the same batch; sparse data change alike.
    assert off(SVRG(Constant(0.5), every=10), kofn.Uncoded()) == pytest.approx(reduced, rel=1e-3)
    sparse = csr_array(X)
    assert off(SVRG(Constant(0.5), every=10), code, sparse) == pytest.approx(reduced, rel=1e-3)
    with pytest.raises(kofn.BadInput, match="batch="):
        CodedGradient(code, optimiser=SVRG(Constant(0.5)))
    with pytest.raises(kofn.BadInput, match="every"):
        SVRG(Constant(0.5), every=0)


@pytest.mark.engine
def test_through_kills_on_processes() -> None:
    faults = Faults()
    for worker, round in ((1, 2), (4, 1)):  # in rounds in which each is surely asked
        faults = faults.slow(worker, by=1e4, round=round).lose(worker, round=round)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        how = CodedGradient(optimiser=Nesterov(Constant(1.0)))
        seen: list[int] = []
        ours = LogisticRegression(
            solver=how,
            max_iter=30,
            cluster=cluster,
            callback=lambda t, loss, parts: seen.append(len(parts.report.live)),
        ).fit(X, LABELS)
        until(lambda: len(cluster.workers) == 4, "the news of the losses")
    with virtual() as calm:
        same = LogisticRegression(solver=how, max_iter=30, cluster=calm).fit(X, LABELS)
    assert np.allclose(ours.coef_, same.coef_, atol=1e-12)
    assert len(seen) == 30


def test_it_travels_and_clones() -> None:
    how = CodedGradient(kofn.FractionalRepetition(2), optimiser=Nesterov(Constant(1.0)))
    model = LogisticRegression(solver=how, max_iter=5, cluster="virtual", workers=4)
    again = pickle.loads(pickle.dumps(clone(model).fit(X, LABELS)))
    assert (again.predict(X) == LABELS).mean() > 0.7


def test_bad_input() -> None:
    with virtual() as cluster:
        with pytest.raises(kofn.BadInput, match="coded-gradient"):
            LogisticRegression(solver="sgd", cluster=cluster).fit(X, LABELS)
        with pytest.raises(kofn.BadInput, match="products= and k="):
            LogisticRegression(solver="coded-gradient", k=3, cluster=cluster).fit(X, LABELS)
        coded = cluster.encode(X, k=3)
        with pytest.raises(kofn.BadInput, match="matrix in memory"):
            LogisticRegression(solver="coded-gradient", cluster=cluster).fit(coded, LABELS)
    with pytest.raises(kofn.BadInput, match="fraction"):
        CodedGradient(batch=0.0)
    with pytest.raises(kofn.BadInput, match="optimiser"):
        CodedGradient(optimiser=0.1)  # type: ignore[arg-type]
