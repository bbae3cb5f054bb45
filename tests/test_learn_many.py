"""Networks and linear systems, several at once through one coded sequence."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support import DataFolder

import kofn
from kofn.delays import Independent, Slowed
from kofn.engines.local import LocalEngine
from kofn.engines.paced import Paced
from kofn.learn import Network, solve_many, train_many
from kofn.learn.many import alone
from kofn.reproduce.datasets import read_mnist

RATES = (0.1, 0.15, 0.2, 0.25, 0.3)


def blobs(rows: int = 300) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, rows)
    return rng.standard_normal((rows, 12)) + 2.0 * y[:, None], y.astype(np.intp)


@pytest.mark.engine
def test_five_networks_have_the_losses_of_plain_training_and_never_stall() -> None:
    X, y = blobs()
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 3, delay=3, lam=1))
        nets = [Network((12, 16, 8, 3), rate / 10, seed) for seed, rate in enumerate(RATES)]
        told: list[tuple[int, int]] = []
        train_many(
            stream, nets, X, y, steps=6, batch=50, callback=lambda n, s, loss: told.append((n, s))
        )
        rounds = stream.report.rounds
    plain = [Network((12, 16, 8, 3), rate / 10, seed) for seed, rate in enumerate(RATES)]
    for net in plain:
        alone(net.train(X, y, 6, 50))
    for ours, theirs in zip(nets, plain, strict=True):
        assert len(ours.losses) == 6
        assert np.abs(np.array(ours.losses) - theirs.losses).max() <= 1e-6
        assert theirs.losses[-1] < theirs.losses[0]
    assert sorted(told) == [(n, s) for n in range(5) for s in range(1, 7)]
    # Eight products a step; job i belongs to network i mod 5, and every round had a new job.
    assert stream.report.jobs == 5 * 6 * 8
    assert all(r.began is not None for r in rounds[: 5 * 6 * 8])


def test_a_delay_of_more_than_m_minus_2_stalls_but_is_right() -> None:
    X, y = blobs(60)
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(3, 4, delay=3, lam=4))
        nets = [Network((12, 5, 3), 0.01, seed) for seed in range(2)]
        train_many(stream, nets, X, y, steps=2, batch=30)
        assert any(r.began is None for r in stream.report.rounds[:10])
    plain = Network((12, 5, 3), 0.01, 1)
    alone(plain.train(X, y, 2, 30))
    assert np.allclose(nets[1].losses, plain.losses, atol=1e-9)


def test_linear_systems_are_solved_through_losses() -> None:
    rng = np.random.default_rng(1)
    systems = []
    for n in (20, 30, 25, 20):
        A = rng.standard_normal((n, n))
        A += np.diag(np.abs(A).sum(axis=1) + 1)
        systems.append((A, rng.standard_normal((n, 3) if n == 30 else n)))
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(6, 1, delay=2, lam=2))
        cluster.lose(1)
        found = solve_many(stream, systems)
        assert 1 in stream.report.rounds[-1].stragglers
    for (A, b), x in zip(systems, found, strict=True):
        assert x.shape == b.shape
        assert np.linalg.norm(A @ x - b) <= 2e-8 * np.linalg.norm(b)


def test_what_cannot_be_trained_or_solved_is_refused() -> None:
    X, y = blobs(20)
    with kofn.connect("virtual", workers=4) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 2, delay=1, lam=2))
        net = Network((12, 4, 3), 0.1)
        for call, word in (
            (lambda: train_many(stream, [], X, y, steps=1), "at least one network"),
            (lambda: train_many(stream, [net], X, y[:-1], steps=1), "class numbers"),
            (lambda: train_many(stream, [net], X[:, :5], y, steps=1), "5 columns"),
            (lambda: train_many(stream, [net], X, y + 5, steps=1), "classes 5 to 7"),
            (lambda: solve_many(stream, [(np.ones((2, 3)), np.ones(2))]), "square"),
            (lambda: solve_many(stream, [(np.zeros((2, 2)), np.ones(2))]), "diagonal"),
            (
                lambda: solve_many(stream, [(np.eye(2) + 2.0, np.ones(2))], max_iterations=5),
                "another solver",
            ),
        ):
            with pytest.raises(kofn.BadInput, match=word):
                call()


@pytest.mark.engine
def test_five_networks_on_mnist_with_delays_have_plain_losses(data_folder: DataFolder) -> None:
    """Four local workers, stragglers five times slower, one killed on the way."""
    X, y = read_mnist(data_folder("mnist"), "train")
    X, y = X[:1024], y[:1024]
    widths, steps = (784, 60, 30, 10), 3
    unit = 0.02 / (256 * 784 * 60)  # the largest product takes one worker 20 ms
    with kofn.connect(Paced(LocalEngine(4), Slowed(Independent(0.3), 5.0, unit))) as cluster:
        stream = cluster.sequence(kofn.DIP(2, 3, delay=3, lam=1))
        nets = [Network(widths, rate, seed) for seed, rate in enumerate(RATES)]

        def kill(network: int, step: int, loss: float) -> None:
            if (network, step) == (2, 1):
                cluster.lose(3)

        train_many(stream, nets, X, y, steps=steps, batch=256, callback=kill)
        assert stream.report.overdue == ()
        assert len(cluster.workers) == 3
    for seed, (net, rate) in enumerate(zip(nets, RATES, strict=True)):
        plain = Network(widths, rate, seed)
        alone(plain.train(X, y, steps, 256))
        assert np.abs(np.array(net.losses) - plain.losses).max() <= 1e-6
