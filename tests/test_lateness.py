"""Who is late where rounds are short: judged by how long such rounds usually take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

import kofn
from kofn.delays import Change, Delays, Script
from kofn.engines.virtual import VirtualEngine
from kofn.rounds.lateness import ENOUGH, LAST, SOON, Late, UsualHalf

UNIT = 2e-6  # seconds a row, or a part, takes
A = np.random.default_rng(0).standard_normal((600, 4))


@dataclass(frozen=True)
class Stalls(Delays):
    """Equal workers, but one that takes longer in the rounds that are named."""

    rounds: set[int] = field(default_factory=set)
    unit: float = UNIT
    more: float = 0.01

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return self.unit * cost + self.more * (worker == 1 and round in self.rounds)


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


def run(cluster: kofn.Cluster, kind: str, n: int | None = None) -> Callable[[], Any]:
    """What does a round of this kind, and returns its report."""
    if kind == "sum":
        parts = cluster.parts(A)

        def again() -> Any:
            return parts.sum(total).report

        return again
    X = cluster.encode(A, k=3, n=n)

    def product() -> Any:
        value = X @ np.ones(4) if kind == "X @ w" else X.T @ np.ones(600)
        np.testing.assert_allclose(value, A @ np.ones(4) if kind == "X @ w" else A.T @ np.ones(600))
        return X.report

    return product


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z", "sum"])
def test_short_rounds_wait_for_a_stall_as_long_as_they_usually_take(kind: str) -> None:
    """Of 0.2 ms each: 20 ms for a late worker would be a hundred of them."""
    delays = Stalls(set(range(7, 1000, 7)))
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        again = run(cluster, kind)
        reports = [again() for _ in range(60)]
    late = [i for i, report in enumerate(reports) if 1 in report.late]
    assert len([i for i in late if i > 8]) >= 1
    assert max(report.seconds["total"] for report in reports[8:]) < 2 * SOON
    assert all(not report.late for i, report in enumerate(reports) if i not in late)


@pytest.mark.parametrize("more", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_who_is_late_in_every_round_is_not_what_is_usual(kind: str, more: float) -> None:
    """Its answer is waited for a few times; then others stand in, and it rests until it answers."""
    delays = Stalls(set(range(10_000)), more=more)
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        again = run(cluster, kind)
        seconds = [again().seconds["total"] for _ in range(100)]
    assert max(seconds[8:]) < 2 * SOON
    assert np.mean(seconds[8:]) < SOON / 2


def test_what_is_not_known_is_given_the_most() -> None:
    """One operand's rounds say nothing of a wider one's."""
    delays = Stalls(set())
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        X = cluster.encode(A, k=3)
        for _ in range(20):
            X @ np.ones(4)
        delays.rounds.update(range(10_000))
        X @ np.ones((4, 2))
        assert X.report.seconds["total"] == pytest.approx(0.01, rel=0.1)  # it was waited for
        X @ np.ones(4)
        assert X.report.seconds["total"] < 2 * SOON


def test_who_is_back_has_the_window_that_it_had() -> None:
    """Nothing is planned anew for those that were late and are back."""
    delays = Stalls(set(range(20, 24)))
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        X = cluster.encode(A, k=3)
        again = 0
        before = X.windows()
        seen = []
        while again < 60:
            again += 1
            X @ np.ones(4)
            seen.append(set(X.report.live))
        assert {0, 2, 3, 4, 5} in seen  # left out for a while
        assert seen[-1] == set(range(6))
        assert X.windows() == before


def test_the_rule_knows_a_usual_round() -> None:
    rule = Late()
    assert rule.knowing(None) == rule
    assert rule.knowing(0.0).least == SOON
    assert rule.knowing(0.001).least == 0.004
    assert rule.knowing(0.01) == rule
    assert rule.knowing(0.001).allowed(0.0001) == 0.004
    assert Late(least=0.0).knowing(0.001).least == 0.0  # what a user allows stays
    assert Late.of(3.0) is not None
    assert Late(factor=3.0).knowing(0.001).allowed(0.1) == pytest.approx(0.3)


def test_what_is_usual_is_the_median_of_the_last_few() -> None:
    usual = UsualHalf()
    usual.learn(None)
    for i in range(ENOUGH):
        assert usual.seconds is None
        usual.learn(float(i == 0))
    assert usual.seconds == 0.0
    for _ in range(LAST):
        usual.learn(2.0)
    assert usual.seconds == 2.0


@dataclass(frozen=True)
class Frozen(Delays):
    """Tasks take so many seconds more, by worker, as it is said before a round."""

    more: dict[int, float] = field(default_factory=dict)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return UNIT * cost + self.more.get(worker, 0.0)


@pytest.mark.parametrize("answers", [0, 1])
@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_those_that_are_back_stand_in_for_those_that_fall_silent(kind: str, answers: int) -> None:
    """Nobody is late by the answers of others, where fewer than enough come at all."""
    delays = Frozen()
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        again = run(cluster, kind)
        again()
        delays.more.update({3: 1.0, 4: 1.0, 5: 1.0})
        assert set(again().late) == {3, 4, 5}
        delays.more.update({0: 1e4, 1: 1e4, 2: 1e4, 3: 0.0, 4: 0.0, 5: 0.0})
        for worker in range(answers):
            delays.more[worker] = 0.0
        report = again()
    assert set(range(answers, 3)) <= set(report.late)
    # A second until they are back, and at most half a second until the others are given up.
    assert report.seconds["total"] < 1.5


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_newcomers_stand_in_for_those_that_fall_silent(kind: str) -> None:
    delays, joins = Frozen(), Script(tuple(Change(1.0, None) for _ in range(3)))
    with kofn.connect(VirtualEngine(3, delays=delays, membership=joins)) as cluster:
        again = run(cluster, kind, n=6)
        again()
        delays.more.update(dict.fromkeys(range(3), 1e4))
        report = again()
    assert set(report.late) == {0, 1, 2}
    assert set(report.joined) == {3, 4, 5}
    assert report.seconds["total"] < 1.5  # half a second after they have come


def test_a_sum_is_asked_of_the_few_that_answer() -> None:
    """Three copies of everything, and one of each left: fewer than half of the workers."""
    frozen = Frozen({worker: 1e4 for worker in range(18) if worker % 3})
    data = np.arange(36.0).reshape(18, 2)
    with kofn.connect(VirtualEngine(18, delays=frozen)) as cluster:
        parts = cluster.parts(data, parts=18)
        assert parts._tuner is not None
        parts._tuner.at_once = False  # as it may learn: each is asked for its own part first
        result = parts.sum(total)
        np.testing.assert_array_equal(result.value, data.sum(axis=0))
        assert set(result.report.late) == set(frozen.more)
        assert result.report.seconds["total"] < 1.0
