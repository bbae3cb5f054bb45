"""The real master on the virtual engine: losses, freezes and joins, one by one.

Random scripts of them are in search.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from acting import Act, Acting
from numpy.typing import NDArray
from support import driver_of

import kofn
from kofn.arrays.baselines import Replicated
from kofn.arrays.plan import Plan
from kofn.codes.mds import MDSCode
from kofn.delays import PerUnit
from kofn.engines.base import Wrapped
from kofn.engines.virtual import VirtualEngine
from kofn.model import ProductReport
from kofn.rounds import Layout

LIMIT = 40.0  # virtual seconds; far more than any patience in these scripts


def right(X: Any, A: NDArray[Any], kind: str = "X @ w") -> ProductReport:
    """Multiply, and check against the bound of the report, which is returned."""
    Y, target = (X.T, A.T) if ".T" in kind else (X, A)
    w = np.ones(target.shape[1])
    error = float(np.linalg.norm(Y @ w - target @ w))
    report: ProductReport = X.report
    assert report.error_bound is not None
    assert error <= report.error_bound * float(np.linalg.norm(A) * np.linalg.norm(w))
    return report


def test_the_extra_reply_of_a_poor_set_is_a_wish() -> None:
    """k + 1 live, all asked because k of them decode poorly: one of them is lost, or frozen."""
    affected = tried = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shares = sorted(rng.permutation(20)[:11].tolist())
        windows = Plan(MDSCode(20, 10), {s: s for s in shares}, Layout(10), 40).windows
        if windows.need.max() == 10:
            continue
        affected += 1
        for what in ("lose", "freeze"):
            engine = Acting(VirtualEngine(20, delays=PerUnit(1e-3)), [])
            with kofn.connect(engine, limit=LIMIT) as cluster:
                A = rng.standard_normal((400, 3))
                X = cluster.encode(A, k=10)
                for worker in set(range(20)) - set(shares):
                    cluster.lose(worker)
                engine.acts = [Act(engine.now() + 1e-3, what, int(rng.integers(11)))]
                tried += 1
                report = right(X, A)
                assert report.lost if what == "lose" else report.late
                assert len(report.live) == 11
    assert affected > 3, tried


def test_a_frozen_holder_does_not_promise_the_extra_reply() -> None:
    """(20, 10), k + 3 live, one frozen: nobody waits for it, however poorly the others decode."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        engine = Acting(VirtualEngine(20, delays=PerUnit(1e-3)), [])
        with kofn.connect(engine, limit=LIMIT) as cluster:
            A = rng.standard_normal((400, 3))
            X = cluster.encode(A, k=10)
            for worker in rng.permutation(20)[:7].tolist():
                cluster.lose(worker)
            now = engine.now()
            engine.acts = [
                Act(now + 1e-3, "freeze", int(rng.integers(13))),
                Act(now + 2e-3, "lose", int(rng.integers(13))),
                Act(now + 3e-3, "lose", int(rng.integers(12))),
            ]
            right(X, A)


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
@pytest.mark.parametrize("back", [False, True])
def test_who_was_left_out_is_asked_when_nobody_else_can_stand_in(kind: str, back: bool) -> None:
    """Worker 0 is frozen in one round and left out of the next, in which another is lost."""
    engine = Acting(VirtualEngine(4, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((300, 3))
        X = cluster.encode(A, k=3)
        engine.frozen[0] = []
        assert right(X, A, kind).late == (0,)
        now = engine.now()
        # It is back before the other is lost, or only after that.
        engine.acts = [Act(now + 1e-3, "lose", 1), Act(now + 2e-3, "thaw")]
        if back:
            engine.acts = [Act(now + 1e-3, "thaw"), Act(now + 2e-3, "lose", 1)]
        report = right(X, A, kind)
        assert report.live == (1, 2, 3)
        assert report.lost == (1,)
        assert report.rows_read[0] > 0


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_joiners_stand_in_for_frozen_workers(kind: str) -> None:
    """Four workers, any three are enough; two are stopped and two join."""
    engine = Acting(VirtualEngine(4, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((300, 3))
        X = cluster.encode(A, k=3, n=6)
        engine.frozen |= {0: [], 1: []}
        engine.acts = [Act(engine.now() + 5.0 + i, "join") for i in range(2)]
        report = right(X, A, kind)
        assert report.late == (0, 1)
        assert 0 < len(report.joined) <= 2


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_more_than_half_are_frozen(kind: str) -> None:
    """Fewer than half reply: no time of half of them to judge the others by."""
    engine = Acting(VirtualEngine(8, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((300, 3))
        X = cluster.encode(A, k=2)
        engine.frozen |= {worker: [] for worker in range(6)}
        report = right(X, A, kind)
        assert set(report.late) == set(range(6))
        assert report.seconds["wait"] < LIMIT / 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "k", "times"), [(12, 6, 40), (20, 10, 30), (60, 40, 8)])
def test_the_bound_of_a_transposed_product_holds_after_losses(
    n: int, k: int, times: int, dtype: Any
) -> None:
    """Against long doubles: the teams that stand in are chosen, and their η is in the bound."""
    for seed in range(times):
        rng = np.random.default_rng(seed)
        engine = Acting(VirtualEngine(n, delays=PerUnit(1e-3)), [])
        with kofn.connect(engine, limit=LIMIT) as cluster:
            A = rng.standard_normal((8 * k, 3)).astype(dtype)
            X = cluster.encode(A, k=k)
            for worker in rng.permutation(n)[: (n - k) // 2].tolist():
                cluster.lose(worker)
            now, losses = engine.now(), int(rng.integers(1, n - k - (n - k) // 2 + 1))
            engine.acts = [
                Act(now + 1e-3 * (1 + i % 3), "lose", int(rng.integers(1 << 30)))
                for i in range(losses)
            ]
            engine.acts.sort(key=lambda act: act.time)
            z = rng.standard_normal(8 * k).astype(dtype)
            result = X.T @ z
            report = X.report
            assert len(report.lost) == losses
            assert report.error_bound is not None
            wide = [a.astype(np.longdouble) for a in (result, A.T, z)]
            error = float(np.linalg.norm(wide[0] - wide[1] @ wide[2]))
            size = float(np.linalg.norm(wide[1]) * np.linalg.norm(wide[2]))
            assert error <= report.error_bound * size, (seed, report.eta)


def test_who_stands_in_again_and_again_is_given_one_task_each_time() -> None:
    """Ten losses, one after another: tasks add up, they do not multiply."""
    engine = Acting(VirtualEngine(20, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((4000, 3))
        X = cluster.encode(A, k=10)
        now = engine.now()
        engine.acts = [Act(now + 0.01 * i, "lose", i) for i in range(1, 11)]
        assert len(right(X, A, "X.T @ z").lost) == 10
        sent = sum(record.kind == "send" for record in cluster.log)
        assert sent <= 20 + 10 * 19


@pytest.mark.parametrize("backup", [None, 2.0])
def test_a_joiner_is_asked_for_the_block_of_a_frozen_holder(backup: float | None) -> None:
    engine = Acting(VirtualEngine(4, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((300, 3))
        X = Replicated(cluster, A, 2, n=5, backup=backup)
        shares = X._holders.shares
        (free,) = set(range(5)) - set(shares.values())
        block = X.slots[free][0]
        engine.frozen |= {w: [] for w, slot in shares.items() if block in X.slots[slot]}
        engine.acts = [Act(engine.now() + 5.0, "join")]
        report = right(X, A)
        assert report.joined == (4,)
        assert report.rows_read[4] > 0


def test_who_was_behind_takes_part_in_a_sum_as_soon_as_it_answers() -> None:
    """Worker 0 is left out of a sum, in which the other holder of its parts is frozen."""
    engine = Acting(VirtualEngine(4, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        parts = cluster.parts(
            [0.0, 1.0, 2.0, 3.0], kofn.FractionalRepetition(2)
        )  # 0, 1 hold the same
        engine.frozen[0] = []
        for _ in range(5):
            found = parts.sum(lambda part, x: part)
        assert found.report.live == (1, 2, 3)
        engine.frozen[1] = []
        engine.acts = [Act(engine.now() + 5.0, "thaw", 0)]
        found = parts.sum(lambda part, x: part)
        assert found.exact
        assert found.value == 6.0
        assert found.report.parts_read[0] == 2


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z", "sum"])
def test_who_joins_while_another_is_given_its_share_is_given_one_too(kind: str) -> None:
    """Two are needed and none is waited for: the second comes while the first stores its share."""

    class Meanwhile(Wrapped):
        joins = 0

        def put(self, worker: int, key: str, value: Any) -> None:
            if self.joins:
                self.joins -= 1
                self.engine.join()
            self.engine.put(worker, key, value)

    engine = Meanwhile(VirtualEngine(2))
    with kofn.connect(engine) as cluster:
        A = np.random.default_rng(0).standard_normal((6, 3))
        X, parts = cluster.encode(A, k=2, n=4), cluster.parts(list(A), kofn.Uncoded())
        for worker in cluster.workers:
            cluster.lose(worker)
        cluster.join()
        engine.joins = 1
        if kind == "sum":
            assert parts.sum(lambda part, x: part).report.live == (2, 3)
        else:
            assert right(X, A, kind).live == (2, 3)


def test_who_waited_for_the_lock_looks_again_before_it_waits_for_events() -> None:
    """The thread that had it may have heard the news: else it holds up rounds, for nothing."""
    with kofn.connect(VirtualEngine(2)) as cluster:
        driver = driver_of(cluster)
        acquire = driver.lock.acquire

        def after_another(blocking: bool = True, timeout: float = -1) -> bool:
            driver.lock.acquire = acquire  # type: ignore[method-assign]
            driver.settle()
            return acquire(blocking, timeout)

        cluster.engine.lose(1)
        driver.lock.acquire = after_another  # type: ignore[method-assign]
        driver.await_lost(1)
        assert driver.roster.workers == (0,)
        assert cluster.engine.now() == 0.0


def test_an_update_ends_with_enough_holders_also_if_they_were_behind() -> None:
    """Any two of four. Two are stopped in one update, and back in the next, in which the two that

    were ready are stopped: those that nobody waited for are enough.
    """
    engine = Acting(VirtualEngine(4, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((6, 3))
        X = cluster.encode(A.copy(), k=2)
        change = kofn.low_rank(np.ones((6, 1)), np.ones((3, 1)))
        engine.frozen |= {0: [], 1: []}
        X += change
        now = engine.now()
        engine.frozen |= {2: [], 3: []}  # they have the first, and not the second
        engine.acts = [Act(now + 1.0, "thaw", 0), Act(now + 1.0, "thaw", 0)]
        X += change
        assert engine.now() < now + LIMIT / 2
        right(X, A + 2)


def test_who_is_late_with_an_update_that_enough_have_is_no_reason_to_stall() -> None:
    """One is enough, and comes late; the other is then waited for, but not up to the limit."""
    engine = Acting(VirtualEngine(2, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, limit=LIMIT) as cluster:
        A = np.random.default_rng(0).standard_normal((6, 3))
        X = cluster.encode(A.copy(), k=1)
        engine.frozen |= {0: [], 1: []}
        engine.acts = [Act(engine.now() + 0.75 * LIMIT, "thaw", 0)]
        X += kofn.low_rank(np.ones((6, 1)), np.ones((3, 1)))
        right(X, A + 1)


@pytest.mark.parametrize("kind", ["X @ w", "X.T @ z"])
def test_a_share_that_one_could_not_keep_is_given_to_another(kind: str) -> None:
    """Both of two are needed. One is lost, who stood by cannot keep its share; then one joins."""
    engine = Acting(VirtualEngine(2, delays=PerUnit(1e-3)), [])
    with kofn.connect(engine, wait=10.0) as cluster:
        A = np.random.default_rng(0).standard_normal((6, 3))
        X = cluster.encode(A, k=2)
        cluster.join()
        engine.refuse(2)
        now = engine.now()
        engine.acts = [Act(now + 1e-3, "lose", 0), Act(now + 1.0, "join")]
        assert right(X, A, kind).joined == (3,)
        assert right(X, A, kind).error_bound is not None  # and again, with all that are there
