"""Backup tasks and DSAG: right, and as late as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import until

import kofn
from kofn.delays import PerUnit
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.model import Lost, Reply, Send, Task
from kofn.rounds.stale import StaleRound
from kofn.sums.rivals import Backups, Stale
from kofn.testing import Faults

A = np.random.default_rng(0).standard_normal((48, 5))


def pulled(part: Any, x: Any) -> Any:
    """Gradient of half the squared distance of x to every row."""
    return len(part) * x - part.sum(axis=0)


def test_backups_are_exact_and_asked_at_three_times_the_median() -> None:
    delays = PerUnit(1.0, {2: 50.0})
    with kofn.connect(VirtualEngine(6, delays=delays)) as cluster:
        sums = Backups(cluster, A, parts=12)
        assert np.allclose(sums.sum(pulled, np.ones(5)), 48 - A.sum(axis=0))
        # Two parts each: half are there after 2 s, the backup is asked at 6 s and takes 2.
        assert cluster.engine.now() == pytest.approx(8.0)
        assert sums.asked_again == 1
        assert np.allclose(sums.sum(lambda part, x: part.sum(axis=0)), A.sum(axis=0))


@pytest.mark.engine
def test_backups_on_processes_through_a_kill() -> None:
    faults = Faults().slow(1, by=1e4, round=2).lose(1, round=2)
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        sums = Backups(cluster, (A, A[:, 0]), parts=8)
        for _ in range(4):
            found = sums.sum(lambda part, x: (part[0].sum(axis=0) * x, part[1].sum()), 2.0)
            assert np.allclose(found[0], 2 * A.sum(axis=0))
            assert np.isclose(found[1], A[:, 0].sum())
        until(lambda: len(cluster.workers) == 3, "the news of the losses")


def walk(
    engine: Any, fresh: int, steps: int, near: Any = None, **options: Any
) -> tuple[Any, list[float], Any]:
    """So many steps, or up to the one that comes `near`."""
    times: list[float] = []
    x = np.zeros(5)

    def advance(t: int, time: float, total: Any, covered: float) -> Any:
        nonlocal x
        times.append(time)
        x = x - 0.3 * total / (covered * len(A))
        there = near is not None and np.allclose(x, near, rtol=0, atol=1e-6)
        return None if t == steps or there else x

    with kofn.connect(engine) as cluster:
        round = Stale(cluster, A, parts=12).run(pulled, x, advance, fresh, **options)
    return x, times, round


@pytest.mark.parametrize("portion", [1.0, 0.5])
def test_stale_gradients_arrive_where_fresh_ones_do(portion: float) -> None:
    engine = VirtualEngine(6, delays=PerUnit(1.0, {0: 7.0}))
    x, times, round = walk(engine, fresh=4, steps=200, portion=portion, balance=False)
    assert np.allclose(x, A.mean(axis=0), atol=1e-6)
    assert round.stale > 0
    # The slow one costs no iteration anything: two parts (or one) at 1 s each, and the margin.
    assert max(np.diff(times)) <= 2.0 * portion * 1.02 + 1e-6


def test_loads_of_the_slow_shrink() -> None:
    engine = VirtualEngine(6, delays=PerUnit(1.0, {0: 2.0, 1: 2.0}))
    x, _, even = walk(engine, fresh=4, steps=60)
    assert np.allclose(x, A.mean(axis=0), atol=1e-4)
    assert even.loads == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}


@pytest.mark.engine
def test_dsag_on_processes_through_a_kill() -> None:
    engine = Faults().slow(1, by=1e5).lose(1, round=1).on(LocalEngine(4))
    # It never said anything: the rest agree among themselves. No iteration waited for it. How soon
    # all three have spoken is the machine's affair.
    rest = np.delete(A, range(12, 24), axis=0).mean(axis=0)
    x, _, round = walk(engine, fresh=2, steps=100_000, near=rest)
    assert round.live == 3
    assert np.allclose(x, rest, atol=1e-6)


def test_too_few_for_an_iteration() -> None:
    faults = Faults().lose(0, round=2).lose(1, round=2)
    with pytest.raises(kofn.TooFewWorkers):
        walk(faults.on(VirtualEngine(4)), fresh=3, steps=5)


class _Bare:
    def __init__(self) -> None:
        self.made = 0

    def task(self, round: int, worker: int, parts: Any, x: Any) -> Task:
        self.made += 1
        return Task(self.made, round, worker, lambda *_: (), (tuple(parts), x))


def test_commands_of_the_stale_round() -> None:
    ids = iter(range(1, 100))
    points: list[tuple[float, float]] = []

    def advance(t: int, time: float, total: Any, covered: float) -> Any:
        points.append((float(total[0]), covered))
        return t

    round = StaleRound(
        lambda: next(ids), {0: (0,), 1: (1,), 2: (2,)}, _Bare().task, 0, advance, 2, margin=0.0
    )
    sent = [c.task for c in round.start(0.0) if isinstance(c, Send)]
    assert [(t.round, t.worker) for t in sent] == [(1, 0), (1, 1), (1, 2)]

    def reply(task: Task, time: float, value: float) -> list[tuple[int, int, Any]]:
        part = task.args[0][0]
        event = Reply(
            time, task.worker, task.round, task.id, part, (np.float64(value),), 1, 1.0, True
        )
        found = [c.task for c in round.on(event) if isinstance(c, Send)]
        sent.extend(found)
        return [(t.round, t.worker, t.args[1]) for t in found]

    assert reply(sent[0], 1.0, 10.0) == []
    # The second answer ends the iteration; the two that are idle go on, the third is not bothered.
    assert reply(sent[1], 2.0, 20.0) == [(2, 0, 1), (2, 1, 1)]
    assert points == [(30.0, 2 / 3)]
    # A late answer counts, and its worker is given the newest point at once.
    assert reply(sent[2], 2.5, 100.0) == [(2, 2, 1)]
    assert reply(sent[3], 3.0, 11.0) == []
    assert round.on(Lost(3.1, 1)) == []
    assert reply(sent[5], 4.0, 101.0) == [(3, 0, 2), (3, 2, 2)]
    assert points[1] == (11.0 + 20.0 + 101.0, 1.0)
    assert round.stale == 1


def test_bad_input() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        with pytest.raises(kofn.BadInput, match="copies"):
            Backups(cluster, A, copies=5)
        with pytest.raises(kofn.BadInput, match="factor"):
            Backups(cluster, A, factor=1.0)
        with pytest.raises(kofn.BadInput, match="needs a part"):
            Stale(cluster, [A])
        with pytest.raises(kofn.BadInput, match="fresh"):
            Stale(cluster, A).run(pulled, np.zeros(5), lambda *_: None, 5)
        with pytest.raises(kofn.BadInput, match="portion"):
            Stale(cluster, A).run(pulled, np.zeros(5), lambda *_: None, 2, portion=0.0)


@pytest.mark.parametrize("kinds", [("i8", "f8"), ("f4", "f8", "c16"), ("c8", "u1", "f2")], ids=str)
def test_types_of_parts_may_differ_whoever_is_first(kinds: Any) -> None:
    for slow in range(3):
        with kofn.connect(VirtualEngine(3, delays=PerUnit(1.0, {slow: 2.0}))) as cluster:

            def made(part: Any, x: Any) -> Any:
                return np.full(3, part + 0.5, kinds[part % len(kinds)]), np.asarray(part)

            true = sum(made(part, None)[0].astype(complex) for part in range(3))
            backups = Backups(cluster, [0, 1, 2])
            found = backups.sum(made)
            assert found[0].dtype.kind == "fc"["c" in "".join(kinds)]
            np.testing.assert_array_equal(found[0], true)
            scattered = backups.sum(
                lambda part, x: kofn.Scattered(np.arange(3), made(part, x)[0], 3)
            )
            np.testing.assert_array_equal(scattered, true)

            def advance(t: int, time: float, total: Any, covered: float) -> Any:
                np.testing.assert_array_equal(total[0], true)  # noqa: B023 - called here
                return None

            Stale(cluster, [0, 1, 2]).run(made, 0.0, advance, 3)


def test_shapes_that_differ_are_refused() -> None:
    with kofn.connect(VirtualEngine(3, delays=PerUnit(1.0))) as cluster:
        with pytest.raises(kofn.BadInput, match="same shapes for every part"):
            Backups(cluster, [1, 2, 3]).sum(lambda part, x: np.ones((part - 1, 3)[:part]))
        with pytest.raises(kofn.BadInput, match="same shapes for every part"):
            Stale(cluster, [1, 3, 3]).run(lambda part, x: np.ones(part), 0.0, lambda *_: None, 3)
