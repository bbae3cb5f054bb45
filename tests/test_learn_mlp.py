"""Coded neural networks: equal to plain NumPy after every epoch, whatever happens to workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.utils.estimator_checks import parametrize_with_checks
from support import DataFolder, spread, until

import kofn
from kofn.codes import error_bound
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import CodedMLPClassifier
from kofn.reproduce.datasets import read_mnist
from kofn.rounds import RoundDriver
from kofn.testing import Faults

Floats = NDArray[np.float64]
Epoch = tuple[list[Floats], list[Floats], float]  # weights (in, out), biases, mean loss


def plain_training(model: CodedMLPClassifier, X: Floats, y: NDArray[Any]) -> list[Epoch]:
    """The same training in plain NumPy: rows are samples here, and nothing is coded."""
    rng = np.random.RandomState(model.random_state)
    classes = np.unique(y)
    widths = [X.shape[1], *np.atleast_1d(model.hidden).tolist(), len(classes)]
    W = [(rng.standard_normal((b, a)) * np.sqrt(2 / a)).T for a, b in pairwise(widths)]
    b = [np.zeros(width) for width in widths[1:]]
    vW, vb = [np.zeros_like(w) for w in W], [np.zeros_like(c) for c in b]
    seen: list[Epoch] = []
    for _ in range(model.max_epochs):
        order, losses = rng.permutation(len(X)), []
        for first in range(0, len(X), model.batch_size):
            rows = order[first : first + model.batch_size]
            a = [X[rows]]
            for w, c in zip(W[:-1], b[:-1], strict=True):
                a.append(np.maximum(a[-1] @ w + c, 0))
            s = a[-1] @ W[-1] + b[-1]
            s -= s.max(axis=1, keepdims=True)
            p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
            right = y[rows][:, None] == classes
            losses += (-np.log(p[right])).tolist()
            delta = (p - right) / len(rows)
            for i in reversed(range(len(W))):
                gW, gb = a[i].T @ delta, delta.sum(axis=0)
                delta = (delta @ W[i].T) * (a[i] > 0)
                vW[i] = model.momentum * vW[i] - model.learning_rate * gW
                vb[i] = model.momentum * vb[i] - model.learning_rate * gb
                W[i], b[i] = W[i] + vW[i], b[i] + vb[i]
        seen.append((list(W), list(b), float(np.mean(losses))))
    return seen


def coded_training(model: CodedMLPClassifier, X: Floats, y: NDArray[Any]) -> list[Epoch]:
    """Train, and note the parameters after every epoch as they are on the workers."""
    seen: list[Epoch] = []

    def note(epoch: int, loss: float, network: Any) -> None:
        assert epoch == len(seen) + 1
        seen.append((network.coefs(), network.intercepts(), loss))

    model.set_params(callback=note).fit(X, y)
    assert [loss for _, _, loss in seen] == model.loss_curve_
    for mine, last in zip(model.coefs_, seen[-1][0], strict=True):
        # Read twice, and from other replies where somebody was late: right to rounding each time.
        np.testing.assert_allclose(mine, last, rtol=0, atol=2 * error_bound(24, np.float64, 20.0))
    return seen


def furthest(one: Sequence[Epoch], other: Sequence[Epoch]) -> float:
    """The largest difference of any weight or bias after any epoch."""
    assert len(one) == len(other)
    return max(
        float(np.abs(a - b).max())
        for (W1, b1, _), (W2, b2, _) in zip(one, other, strict=True)
        for a, b in zip([*W1, *b1], [*W2, *b2], strict=True)
    )


X, Y = make_classification(
    300, 24, n_informative=10, n_classes=3, class_sep=2.0, random_state=0, shuffle=True
)
SMALL = CodedMLPClassifier((20, 14), batch_size=50, max_epochs=3, random_state=7)
# 18 steps through 3 layers of at most 24 inputs, decoded with eta < 20; weights are below one.
ROUNDING = 18 * 3 * error_bound(24, np.float64, 20.0)


# Everything a worker can do in the middle of training. A step has 5 rounds, an epoch 30.
FAULTS: dict[str, Callable[[Faults], Faults]] = {
    "nothing happens": lambda f: f,
    "kills": lambda f: f.lose(worker=1, round=8).lose(worker=4, round=33).join(round=45),
    "kills and joins in turn": lambda f: (
        f.lose(worker=0, round=4).join(round=6).lose(worker=3, round=31).join(round=33)
    ),
}


def _changed(cluster: kofn.Cluster, workers: int, kills: int, joins: int) -> bool:
    """Whether all who were killed are gone, and all who were asked have come."""
    now = cluster.workers
    return len(now) == workers - kills + joins and sum(w >= workers for w in now) == joins


@pytest.mark.engine
@pytest.mark.parametrize(("faults", "momentum"), [*((f, 0.9) for f in FAULTS), ("kills", 0.0)])
@pytest.mark.parametrize(("partition", "workers"), [("rows", 6), ("grid", 8)])
def test_a_small_network_equals_numpy_through_kills_and_joins(
    partition: str, workers: int, faults: str, momentum: float
) -> None:
    model = clone(SMALL).set_params(partition=partition, momentum=momentum)
    if partition == "rows":
        model.set_params(k=4)
    expected = plain_training(model, X, Y)
    script = FAULTS[faults](Faults())
    joins, kills = (sum(what in line for line in script.script) for what in ("join", "lose"))

    def joined(cluster: kofn.Cluster) -> int:
        return len([worker for worker in cluster.workers if worker >= workers])

    for engine in (VirtualEngine(workers), LocalEngine(workers)):
        with kofn.connect(script.on(engine)) as cluster:
            found = coded_training(model.set_params(cluster=cluster), X, Y)
            news = partial(_changed, cluster, workers, kills, joins)
            until(news, "losses and newcomers")  # the last of them may be told after the end
        assert furthest(found, expected) < ROUNDING  # measured: 4e-15
        losses = [loss for _, _, loss in expected]
        assert model.loss_curve_ == pytest.approx(losses, abs=ROUNDING)
    assert model.score(X, Y) > 0.8


@pytest.mark.engine
def test_a_frozen_worker_is_not_waited_for_in_every_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[bool] = []  # for worker 2, by update
    wait = RoundDriver.await_stored

    def noted(
        driver: RoundDriver, key: str, workers: Sequence[int], enough: Callable[[float], bool]
    ) -> None:
        waited.append(2 in workers)
        wait(driver, key, workers, enough)

    monkeypatch.setattr(RoundDriver, "await_stored", noted)
    model = clone(SMALL).set_params(k=4)
    engine = Faults().freeze(worker=2, round=20, rounds=40).on(LocalEngine(6))
    with kofn.connect(engine) as cluster:
        found = coded_training(model.set_params(cluster=cluster), X, Y)
    assert furthest(found, plain_training(model, X, Y)) < ROUNDING
    # Frozen for 8 steps of 3 updates, it is waited for in the first of each layer.
    assert waited.count(False) >= 24 - 3


@pytest.mark.engine
def test_the_velocity_is_rebuilt_with_the_share() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((41, 9))
    with kofn.connect("local", workers=4) as cluster:
        M = cluster.encode(A, k=2)
        velocity = np.zeros_like(A)
        for step in range(9):
            U, V = rng.standard_normal((41, 2)), rng.standard_normal((9, 2))
            M.move(kofn.low_rank(U, V), 0.5)
            velocity = 0.5 * velocity + U @ V.T
            A = A + velocity
            if step in (1, 2):
                cluster.lose(step)
            if step in (4, 5):
                cluster.join()
            np.testing.assert_allclose(M @ np.eye(9), A, atol=1e-11)
            np.testing.assert_allclose(M.T @ np.eye(41), A.T, atol=1e-11)
        spread(cluster, M)
        # From here on those two shares are all there is.
        cluster.lose(0)
        cluster.lose(3)
        M.move(np.zeros((41, 9)), 0.5)
        np.testing.assert_allclose(M.toarray(), A + 0.5 * velocity, atol=1e-11)
        M += kofn.low_rank(np.ones(41), np.ones(9))  # leaves the velocity alone
        np.testing.assert_allclose(M.toarray(), A + 0.5 * velocity + 1, atol=1e-11)
        with pytest.raises(kofn.BadInput, match=r"momentum must be .* \[0, 1\); got 1.5"):
            M.move(np.zeros((41, 9)), 1.5)


@pytest.mark.engine
def test_mnist_784_300_100_10_with_two_kills_and_a_join(data_folder: DataFolder) -> None:
    folder = data_folder("mnist")
    data, labels = read_mnist(folder, "train")
    data, labels = data[:10_000], labels[:10_000]
    # 40 steps an epoch, 5 rounds a step.
    faults = Faults().lose(worker=1, round=60).lose(worker=4, round=160).join(round=220)
    model = CodedMLPClassifier(learning_rate=0.2, batch_size=250, max_epochs=2, random_state=0, k=4)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        found = coded_training(model.set_params(cluster=cluster), data, labels)
        assert cluster.workers == (0, 2, 3, 5, 6)
        replies = [r for r in cluster.log if r.kind == "reply" and r.worker == 6]
        assert len(replies) > 100  # the joiner, its share rebuilt, did its part of the products
    difference = furthest(found, plain_training(model, data, labels))
    accuracy = model.score(*read_mnist(folder, "test"))
    print(f"\nlargest difference {difference:.1e}, test accuracy {accuracy:.4f}")
    assert difference < 1e-6
    assert accuracy > 0.93


# "virtual" runs the very same master and products in this process: the checks are many. None is
# left out; scikit-learn itself skips those that need pandas or its array API.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [CodedMLPClassifier((10,), batch_size=20, max_epochs=8, random_state=0, cluster="virtual")]
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_fitted_network_travels_without_its_cluster() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        model = clone(SMALL).set_params(cluster=cluster, callback=lambda *_: None, k=2)
        model.fit(scipy.sparse.csr_array(X), Y)
        assert clone(model).get_params()["cluster"] is cluster
    again = pickle.loads(pickle.dumps(model))
    with pytest.raises(kofn.CannotDo, match="its cluster on engine 'virtual' was left behind"):
        again.fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    p = again.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(again.predict_log_proba(X)), p)
    assert [W.shape for W in again.coefs_] == [(24, 20), (20, 14), (14, 3)]
    dense = clone(SMALL).set_params(cluster="virtual", workers=4, k=2).fit(X, Y)
    np.testing.assert_allclose(dense.coefs_[0], model.coefs_[0], atol=1e-11)


def test_bad_input_gets_one_clear_error() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"parallel": "data"}, "parallel must be 'model'"),
        ({"partition": "columns"}, "partition must be one of rows, grid"),
        ({"partition": "grid", "k": 3}, "the grid decides how many workers"),
        ({"partition": "grid", "workers": 4}, "2 x 2 grid needs 6 workers.*got n=4"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1; got 0"),
        ({"hidden": (3, 0)}, r"hidden\[1\] must be a whole number >= 1; got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"k": 9, "workers": 3}, "k must be at most"),
    ]
    for options, message in wrong:
        with pytest.raises(kofn.BadInput, match=message):
            clone(SMALL).set_params(cluster="virtual", **options).fit(X, Y)
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class"):
        clone(SMALL).fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(SMALL).fit(X, Y[:5])
    with pytest.raises(ValueError, match="NaN"):
        clone(SMALL).fit(np.full((5, 2), np.nan), np.arange(5))
    with kofn.connect("virtual", workers=3) as cluster:
        coded = cluster.encode(X, k=2)
        with pytest.raises(kofn.BadInput, match="keeps its weights coded, not the data"):
            clone(SMALL).fit(coded, Y)


def test_one_number_is_one_hidden_layer() -> None:
    rows, labels = np.eye(6), np.arange(6) % 2
    widths: tuple[Any, ...] = (8, (8,), np.array([8]))
    nets = [
        CodedMLPClassifier(hidden, max_epochs=2, random_state=0, cluster="virtual").fit(
            rows, labels
        )
        for hidden in widths
    ]
    for net in nets[1:]:
        np.testing.assert_array_equal(net.coefs_[0], nets[0].coefs_[0])
    refused: tuple[Any, ...] = ("8", None, 8.0)
    for bad in refused:
        with pytest.raises(kofn.BadInput, match="hidden is the widths"):
            CodedMLPClassifier(bad, cluster="virtual").fit(rows, labels)
    with pytest.raises(kofn.BadInput, match="predicts from rows in memory"):
        nets[0].predict("X.npy")
