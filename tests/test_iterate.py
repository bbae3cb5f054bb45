"""w ← f(X w) without a master: right whoever is lost, late or joins; few bytes pass the master."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from acting import Acting
from bodies import same
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import ENGINES, Noting, driver_of, examples, held_back, spread, until

import kofn
from kofn import exchange
from kofn.costs import Costs
from kofn.delays import Change, Exponential, PerUnit, Script
from kofn.engines.base import Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.exchange import Exchange, ExchangeLayout
from kofn.model import Command, Event, Lost, Observe, Observed, Publish, Reply, Stored, Task
from kofn.rounds import Cover, Layout, Windows
from kofn.rounds.epochs import READY, EpochPlan
from kofn.rounds.iterate import IterateRound

EXAMPLES = Path(__file__).parent.parent / "examples"
Floats = NDArray[np.float64]
pagerank = runpy.run_path(str(EXAMPLES / "pagerank.py"))


def unit(y: Floats) -> Floats:
    return np.asarray(y / np.linalg.norm(y))


def rotation(rng: np.random.Generator, size: int) -> Floats:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


def kill(cluster: kofn.Cluster, worker: int) -> None:
    pid = cluster.engine.pid(worker)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: ended(pid), f"the end of worker {worker}")  # it takes a while on a busy machine


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# On processes.


@pytest.mark.engine
def test_pagerank_equals_scipys_while_two_of_eight_are_killed(tmp_path: Path) -> None:
    N = 10_000
    A, follow = pagerank["links"](N), pagerank["follow"]
    assert (np.bincount(A.indices, minlength=N) == 0).sum() >= 100  # pages that link nowhere
    start = np.full(N, 1.0 / N)
    with kofn.connect(Noting(LocalEngine(8), tmp_path)) as cluster:
        X = cluster.encode(A, k=4)
        spread(cluster, X)
        kills = [(9, 6), (5, 0)]  # worker 0 leads

        def on_round(round: int, change: float) -> None:
            # Not every round is told of: what the leader had not said is lost with it.
            noted = len(kills) == 2 or (tmp_path / "0").exists()
            if kills and noted and round >= kills[-1][0]:
                kill(cluster, kills.pop()[1])

        waiting = held_back(follow, tmp_path, times=2)
        ranks = X.iterate(waiting, start, tol=1e-12, on_round=on_round)
        report = X.report
        assert sorted(cluster.workers) == [1, 2, 3, 4, 5, 7]
    expected, rounds, change = start, 0, 1.0
    while change > 1e-12:
        after = follow(A @ expected)
        change, expected = float(np.linalg.norm(after - expected)), after
        rounds += 1
    assert report.extra["converged"]
    assert report.extra["rounds"] == rounds
    assert float(np.abs(ranks - expected).max()) <= 1e-10
    assert ranks.sum() == pytest.approx(1.0, abs=1e-12)
    assert set(report.lost) == {0, 6}
    assert report.extra["epochs"] >= 3
    assert not report.restarted


@pytest.mark.engine
def test_bytes_through_the_master_do_not_grow_with_the_vector(cluster: kofn.Cluster) -> None:
    per_round, in_all = {}, {}
    for N in (1_000, 20_000):
        X = cluster.encode(pagerank["links"](N), k=2, late=None)
        X.iterate(same, np.full(N, 1.0 / N), rounds=40)
        per_round[N] = X.report.extra["bytes_per_round"]
        in_all[N] = X.report.extra["bytes_through_master"]
        assert X.report.extra["bytes_of_vectors"] == 2 * 8 * N  # w0 and the result, once each
    # A notice a round; how they fall together with the last words differs a little.
    assert 20 < per_round[1_000] < 400
    assert abs(per_round[20_000] - per_round[1_000]) < 40
    assert in_all[20_000] < 20_000
    assert abs(in_all[20_000] - in_all[1_000]) < 2_000


@pytest.mark.engine
def test_the_engine_counts_all_that_passes(cluster: kofn.Cluster) -> None:
    def passed() -> int:
        found = cluster.engine.traffic
        assert found is not None
        return found

    start = passed()
    X = cluster.encode(np.ones((500, 500)), k=1)
    shares = passed()
    X @ np.ones(500)
    assert shares - start > 4 * 8 * 500 * 500
    # Unlike the rounds of an iteration, a product has its operand and its result pass.
    assert passed() - shares > 2 * 8 * 500


@pytest.mark.engine
def test_the_power_method_on_a_dense_symmetric_matrix(cluster: kofn.Cluster) -> None:
    rng = np.random.default_rng(3)
    Q = rotation(rng, 300)
    values = np.concatenate([[5.0, 3.0], rng.uniform(-2, 2, 298)])
    A = (Q * values) @ Q.T
    X = cluster.encode(A, k=3)
    v = X.iterate(unit, np.ones(300), tol=1e-13, report_every=10)
    extra = X.report.extra
    assert extra["converged"]
    assert extra["change"] <= 1e-13
    # (3/5)^t < 1e-13 by then, and rounding is all that is left.
    assert abs(abs(float(v @ Q[:, 0])) - 1.0) < 1e-12
    assert float(v @ (X @ v)) == pytest.approx(5.0, abs=1e-11)


@pytest.mark.engine
def test_f_may_take_w_too_and_float32_stays(cluster: kofn.Cluster) -> None:
    X = cluster.encode((np.eye(40) * 0.5).astype(np.float32), k=2)
    w = X.iterate(lambda y, w: y + 0.25 * w, np.ones(40, np.float32), rounds=3)
    assert w.dtype == np.float32
    np.testing.assert_allclose(w, np.full(40, 0.75**3), rtol=1e-6)
    w = X.iterate(lambda y, w: y / 3 + 0.25 * w, np.ones(40), rounds=3)
    assert w.dtype == np.float64
    np.testing.assert_allclose(w, (0.5 / 3 + 0.25) ** 3, rtol=1e-14)


@pytest.mark.engine
def test_a_joiner_is_taken_in_with_the_vector_of_the_others(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(0), 60)
    with kofn.connect("local", workers=3) as cluster:
        X = cluster.encode(A, k=2, n=4)
        others = {os.getpid(), *(cluster.engine.pid(worker) for worker in cluster.workers)}
        here = str(tmp_path / "here")

        def unhurried(y: Floats) -> Floats:
            """Rounds take their time until the joiner is in one: for two minutes, if need be."""
            if os.getpid() not in others:
                with open(here, "w"):
                    pass
            if not os.path.exists(here):
                sleep(0.04)
            return y

        def on_round(round: int, change: float) -> None:
            if round == 2:
                cluster.join()

        w = X.iterate(unhurried, np.ones(60), rounds=3_000, report_every=2, on_round=on_round)
        check_rotation(w, A, 3_000, X)
        assert X.report.joined == (3,)
        assert X.report.rows_read[3] > 0
        assert 3 in {*X.report.live, *X.report.late}


def check_rotation(w: Floats, A: Floats, rounds: int, X: kofn.CodedMatrix) -> None:
    """Rotations keep every error as large as it was, so those of the rounds add up."""
    expected = np.linalg.matrix_power(A, rounds) @ np.ones(len(A))
    bound = X.report.error_bound
    assert bound is not None
    scale = float(np.linalg.norm(A)) * np.sqrt(len(A))
    # The reference has errors too: of 2 log2(rounds) products of matrices, doubled each time.
    reference = 2 * rounds * len(A) * 2.0**-53 * np.sqrt(len(A))
    assert float(np.linalg.norm(w - expected)) <= rounds * bound * scale + reference


@pytest.mark.engine
def test_a_stopped_worker_is_left_out_and_comes_back(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(1), 60)
    with kofn.connect("local", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        pid = cluster.engine.pid(1)
        assert pid is not None
        X.iterate(same, np.ones(60), rounds=50)  # all are warm
        signals = [(300, signal.SIGCONT), (10, signal.SIGSTOP)]

        def on_round(round: int, change: float) -> None:
            if signals and round >= signals[-1][0]:
                os.kill(pid, signals.pop()[1])
                (tmp_path / str(1 - len(signals))).touch()

        f = held_back(same, tmp_path, times=2, each=200)
        try:
            w = X.iterate(f, np.ones(60), rounds=800, on_round=on_round)
        finally:
            os.kill(pid, signal.SIGCONT)
        check_rotation(w, A, 800, X)
        assert 1 in X.report.late
        assert not X.report.lost


@pytest.mark.engine
@pytest.mark.parametrize(("lost_after", "limit"), [(6.0, 60.0), (float("inf"), 3.0)])
def test_a_stopped_worker_that_is_needed_is_waited_for_up_to_a_limit(
    lost_after: float, limit: float
) -> None:
    with kofn.connect("local", workers=2) as cluster:
        X = cluster.encode(np.eye(10), k=2)
        pid = cluster.engine.pid(1)
        assert pid is not None
        driver = driver_of(cluster)

        def on_round(round: int, change: float) -> None:
            if round >= 5:
                os.kill(pid, signal.SIGSTOP)
                driver.limit, driver.lost_after = limit, lost_after  # not before: see below

        kind = kofn.TooFewWorkers if lost_after < limit else kofn.Stalled
        # The other one may be silent for as long, on a machine that stalls.
        message = "[12] missing" if lost_after < limit else r"workers \[(0, )?1\] still owe"
        with pytest.raises(kind, match=message) as caught:
            X.iterate(same, np.ones(10), rounds=10**6, on_round=on_round)
        assert caught.value.reached is not None
        round, w = caught.value.reached
        assert round >= 5
        np.testing.assert_allclose(w, np.ones(10))


@pytest.mark.engine
def test_below_the_threshold_a_joiner_in_time_saves_the_run(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(2), 30)
    with kofn.connect("local", workers=3, wait=300.0) as cluster:
        X = cluster.encode(A, k=3)
        victims = [0, 2]

        def on_round(round: int, change: float) -> None:
            while round >= 5 and victims:
                kill(cluster, victims.pop())
                cluster.engine.join()
            if not victims:
                (tmp_path / "0").touch()

        w = X.iterate(held_back(same, tmp_path), np.ones(30), rounds=100, on_round=on_round)
        check_rotation(w, A, 100, X)
        assert set(X.report.lost) == {0, 2}
        assert set(X.report.joined) == {3, 4}


@pytest.mark.engine
def test_one_who_stands_by_saves_the_run(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(2), 30)
    with kofn.connect("local", workers=2) as cluster:
        X = cluster.encode(A, k=2)
        cluster.join()  # no share is left for it
        victims = [0]

        def on_round(round: int, change: float) -> None:
            if round >= 5 and victims:
                kill(cluster, victims.pop())
                (tmp_path / "0").touch()

        w = X.iterate(held_back(same, tmp_path), np.ones(30), rounds=100, on_round=on_round)
        check_rotation(w, A, 100, X)
        assert X.report.lost == (0,)


def test_what_a_handler_raises_while_f_is_tried_is_not_laid_to_f() -> None:
    class Rung(Exception):
        pass

    def ring(signum: int, frame: Any) -> None:
        raise Rung

    def f(y: Floats) -> Floats:
        signal.raise_signal(signal.SIGUSR1)
        return y

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with kofn.connect("virtual", workers=2) as cluster:
            X = cluster.encode(np.eye(4), k=1)
            with pytest.raises(Rung):
                X.iterate(f, np.ones(4), rounds=2)
            assert signal.getsignal(signal.SIGUSR1) is ring
            with pytest.raises(kofn.BadInput, match="it raised ZeroDivisionError"):
                X.iterate(lambda y: 1 / 0, np.ones(4), rounds=2)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.engine
def test_every_last_worker_lost_the_vector_is_still_there(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(2), 30)
    with kofn.connect("local", workers=2, wait=300.0) as cluster:
        X = cluster.encode(A, k=2)
        victims = [0, 1]

        def on_round(round: int, change: float) -> None:
            while round >= 20 and victims:
                kill(cluster, victims.pop())
                cluster.engine.join()
            if not victims:
                (tmp_path / "0").touch()

        f = held_back(same, tmp_path, each=30)
        w = X.iterate(f, np.ones(30), rounds=100, on_round=on_round)
        check_rotation(w, A, 100, X)
        assert set(X.report.lost) == {0, 1}


@pytest.mark.engine
def test_nothing_is_kept_and_products_go_on_afterwards(cluster: kofn.Cluster) -> None:
    X = cluster.encode(np.eye(50), k=2)
    for _ in range(3):
        X.iterate(same, np.ones(50), rounds=5)
        np.testing.assert_allclose(X @ np.arange(50.0), np.arange(50.0), atol=1e-12)
    assert isinstance(cluster.engine, LocalEngine)
    assert [e for e in cluster.engine._transport._exchanges if e.owner is not None] == []


# Bad input.


@pytest.fixture(scope="module")
def small() -> Any:
    with kofn.connect("local", workers=2) as cluster:
        yield cluster, cluster.encode(np.eye(4), k=1)


def half(y: Floats) -> Floats:
    return y[:2]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X: X.iterate(same, np.ones(5), rounds=1), "must have 4 rows"),
        (lambda X: X.iterate(same, np.ones((4, 2)), rounds=1), "one vector w0 of length 4"),
        (lambda X: X.iterate(same, [1, 2, np.nan, 3], rounds=1), "must be finite"),
        (lambda X: X.iterate(same, np.ones(4)), "a rule to stop by"),
        (lambda X: X.iterate(same, np.ones(4), rounds=0), "rounds must be a whole number >= 1"),
        (lambda X: X.iterate(same, np.ones(4), rounds=2.5), "rounds must be"),
        (lambda X: X.iterate(same, np.ones(4), tol=0.0), "tol must be a number > 0"),
        (lambda X: X.iterate(same, np.ones(4), tol=float("nan")), "tol must be a number > 0"),
        (lambda X: X.iterate(same, np.ones(4), rounds=1, report_every=0), "report_every"),
        (lambda X: X.iterate("no", np.ones(4), rounds=1), "must be a function"),
        (lambda X: X.iterate(half, np.ones(4), rounds=1), r"shape of its vector, \(4,\)"),
        (lambda X: X.iterate(str, np.ones(4), rounds=1), "real numbers"),
        (lambda X: X.iterate(lambda y: y[9], np.ones(4), rounds=1), "IndexError"),
    ],
)
def test_bad_input_is_one_clear_error(
    small: Any, call: Callable[[kofn.CodedMatrix], object], message: str
) -> None:
    with pytest.raises(kofn.BadInput, match=message):
        call(small[1])


@pytest.mark.engine
def test_a_matrix_that_is_not_square(small: Any) -> None:
    X = small[0].encode(np.ones((4, 3)), k=1)
    with pytest.raises(kofn.BadInput, match=r"must be square; got shape \(4, 3\)"):
        X.iterate(same, np.ones(3), rounds=1)


@pytest.mark.engine
def test_a_vector_that_is_not_finite_ends_the_run(small: Any) -> None:
    X = small[0].encode(np.eye(4) * 1e200, k=1)
    with pytest.raises(kofn.Diverged, match=r"after round 2 entry \[0\] is inf") as caught:
        X.iterate(same, np.ones(4), rounds=50)
    assert (caught.value.round, caught.value.entry) == (2, 0)
    assert caught.value.reached is not None
    assert caught.value.reached[0] == 1
    np.testing.assert_allclose(X @ np.ones(4), np.full(4, 1e200))


@pytest.mark.engine
def test_f_that_raises_on_a_worker_comes_with_its_traceback(small: Any) -> None:
    def brittle(y: Floats) -> Floats:
        if y[0] > 5:
            raise ArithmeticError("too large for me")
        return 2 * y

    with pytest.raises(kofn.WorkerError, match="too large for me"):
        small[1].iterate(brittle, np.ones(4), rounds=50)


class Mute(Wrapped):
    """An engine whose workers cannot exchange."""

    name = "mute"

    def __init__(self) -> None:
        super().__init__(VirtualEngine(2))
        self.capabilities = replace(self.engine.capabilities, exchange=False)


def test_an_engine_that_cannot_says_so() -> None:
    with kofn.connect(Mute()) as cluster:
        X = cluster.encode(np.eye(4), k=1)
        with pytest.raises(kofn.CannotDo, match=r"'mute' cannot do that.*w = f\(X @ w\)"):
            X.iterate(same, np.ones(4), rounds=1)


# In simulated time: the same master and the same workers' code, losses at any piece of work.


@examples(80)
@given(st.data())
def test_right_under_any_losses_joins_and_delays(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    k = data.draw(st.integers(1, n))
    size, rounds = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 25))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    seconds = rounds * 2e-3
    when = st.floats(1e-6, seconds)  # once all have their shares
    changes = [Change(time, -1) for time in data.draw(st.lists(when, max_size=n + 3))]
    changes += [Change(time, None) for time in data.draw(st.lists(when, max_size=4))]
    told = st.tuples(st.integers(0, n), when, st.sampled_from([0.0, 1e-3, 0.02, float("inf")]))
    for worker, time, ahead in data.draw(st.lists(told, max_size=4)):
        changes.append(Change(time, worker, time + ahead))
    changes += [Change(seconds + i, None) for i in range(n)]  # in the end there are enough
    delays = data.draw(
        st.sampled_from(
            [PerUnit(1e-4), PerUnit(1e-4, {0: 1e3}), Exponential(1e-5, 1e-3), Exponential(0, 0.05)]
        )
    )
    engine = VirtualEngine(n, delays=delays, membership=Script(tuple(changes)), seed=1)
    A = rotation(rng, size)
    with kofn.connect(engine, wait=1e3) as cluster:
        X = cluster.encode(A, k=k, tolerance=1.0)
        w = X.iterate(same, np.ones(size), rounds=rounds)
        check_rotation(w, A, rounds, X)
        assert X.report.extra["rounds"] == rounds
        assert not X.report.restarted


def test_more_than_half_are_silent_and_the_others_are_enough() -> None:
    never = dict.fromkeys(range(4), 1e9)
    engine = VirtualEngine(6, delays=PerUnit(1e-4, never))
    A = rotation(np.random.default_rng(0), 40)
    with kofn.connect(engine, limit=100.0) as cluster:
        X = cluster.encode(A, k=2)
        began = engine.now()
        check_rotation(X.iterate(same, np.ones(40), rounds=20), A, 20, X)
        assert engine.now() - began < 100  # nobody waited until the limit
        assert X.report.late == (0, 1, 2, 3)


def test_those_who_go_on_are_all_new_and_take_the_vector_from_one_who_leaves() -> None:
    changes = (Change(1e-6, None), Change(6.1e-5, -1), Change(2e-3, None), Change(1.0, None))
    engine = VirtualEngine(2, delays=PerUnit(1e-4), membership=Script(changes), seed=1)
    with kofn.connect(engine) as cluster:
        X = cluster.encode(np.array([[0.5]]), k=1)
        assert X.iterate(same, np.ones(1), rounds=1) == 0.5


def test_a_worker_that_missed_a_leg_still_completes_the_round_before() -> None:
    """Worker 1 is slow: it stamps round 0, and has not heard of the plans under which the others

    completed it without those that were lost. Four of four are needed then, so all wait for it.
    """
    lost = {0.0042: 6, 0.0128: 3, 0.0155: 4, 0.0176: 5, 0.0257: 7}
    changes = [Change(time, worker) for time, worker in lost.items()]
    changes += [Change(0.0108, None), Change(0.078, None)]
    engine = VirtualEngine(
        7,
        delays=PerUnit(1e-4, {2: 30.0, 1: 50.0}),
        membership=Script(tuple(changes)),
        costs=Costs(1e-3, 1e6),
    )
    A = rotation(np.random.default_rng(0), 40)
    with kofn.connect(engine, wait=1e3) as cluster:
        X = cluster.encode(A, k=4, n=8, late=None, tolerance=1.0)
        check_rotation(X.iterate(same, np.ones(40), rounds=13), A, 13, X)
        assert X.report.lost == (6, 3, 4, 5, 7)


def chaos(y: Floats) -> Floats:
    return 1.0 - 2.0 * np.minimum(np.abs(y), 1.0)  # doubles every error: rounding is all in 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_all_workers_have_the_same_vector_to_the_last_bit(seed: int) -> None:
    """Else their pieces would not belong together, and the next vector would not be f(X w)."""

    def run(rounds: int) -> Floats:
        changes = tuple(Change(float(t), None if i % 2 else -1) for i, t in enumerate(times))
        delays = Exponential(1e-6, 1e-3)
        engine = VirtualEngine(6, delays=delays, membership=Script(changes), seed=seed)
        with kofn.connect(engine, wait=1e3) as cluster:
            X = cluster.encode(A, k=3)
            found: Floats = X.iterate(chaos, start, rounds=rounds)
            lost.append(len(X.report.lost))
            return found

    lost: list[int] = []
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 0.4, 12))
    A = rotation(rng, 40)[rng.permutation(40)]
    start = rng.uniform(-1, 1, 40)
    before, after = run(150), run(151)
    np.testing.assert_allclose(after, chaos(A @ before), atol=1e-12)
    assert max(lost) >= 3


def test_what_a_round_costs_on_the_virtual_engine() -> None:
    """Rows of the window, then a ring: (n - 1) (latency + bytes / bandwidth)."""
    n, k, N, unit_seconds = 10, 5, 1_000, 1e-4
    costs = Costs(latency=1e-3, bandwidth=1e6)
    engine = VirtualEngine(n, delays=PerUnit(unit_seconds), compute=False, costs=costs)
    with kofn.connect(engine) as cluster:
        X = cluster.encode(np.zeros((N, N)), k=k)
        X.iterate(same, np.zeros(N), rounds=20)
        window = N / n
        round_seconds = window * unit_seconds + 9 * (1e-3 + 8 * window / 1e6)
        assert X.report.seconds["total"] == pytest.approx(20 * round_seconds, rel=1e-9)
        assert X.report.rows_read == dict.fromkeys(range(n), 20 * window)
        assert X.report.extra["bytes_through_master"] is None  # nobody counts there


def test_a_loss_in_flight_costs_its_rows_only() -> None:
    """A worker is lost in round 4; the others do its rows of that round and go on."""
    delays = PerUnit(1e-3)
    engine = VirtualEngine(
        4,
        delays=delays,
        membership=Script((Change(0.33, 3),)),
        costs=Costs(0.0, float("inf")),
    )
    with kofn.connect(engine) as cluster:
        X = cluster.encode(np.eye(400), k=2)  # windows of 100 rows: rounds of 0.1 s
        X.iterate(same, np.ones(400), rounds=6)
        report = X.report
    assert report.lost == (3,)
    assert report.rows_topped_up == 100
    # Three rounds, one with half a window more for two of them, two of windows of 400 / 3 rows.
    assert report.seconds["total"] == pytest.approx(0.3 + 0.1 + 0.05 + 2 * 0.134, abs=2e-3)
    assert report.rows_read[3] == 300


# The master alone: words in, plans out.


class Plain:
    """Work without work."""

    key, threshold = "share", 2

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def task(self, round: int, worker: int, share: int) -> Task:
        return Task(worker, round, worker, lambda *_: ())

    def windows(self, shares: Sequence[int]) -> Windows:
        return Layout(2).lay(shares, 96)

    def weak(self, cover: Cover) -> Sequence[int]:
        return ()

    def on_round(self, round: int, change: float) -> None:
        self.rounds.append(round)


def master(shares: int) -> tuple[IterateRound, Exchange]:
    shape = ExchangeLayout(shares, 96, 192, "<f8", values=False)
    exchange = Exchange(bytearray(shape.size), shape, changed=lambda: None)
    exchange.offer(shares, 0, np.empty(0))
    holders = {share: share for share in range(shares)}
    work = Plain()
    round = IterateRound(1, work.windows(range(shares)), holders, work, exchange, None)
    obey(round, round.start(0.0))
    return round, exchange


def obey(round: IterateRound, commands: Sequence[Command]) -> None:
    """Carry out what concerns the exchange, as the driver does."""
    for command in commands:
        if type(command) is Observe:
            obey(round, round.on(Observed(0.0, command.read(), command.held)))
        elif type(command) is Publish:
            command.write(command.data)


def tell(round: IterateRound, event: Event) -> None:
    obey(round, round.on(event))


def newest(exchange: Exchange) -> EpochPlan:
    found = exchange.plan()
    assert found is not None
    return EpochPlan.loads(found[1])


def deliver(exchange: Exchange, shares: Sequence[int], epoch: int, round: int) -> None:
    for share in shares:
        exchange.offer(share, round, np.empty(0))
        exchange.stamp(share, epoch, round, 48 * (round + 1))


def test_the_first_leg_is_the_windows() -> None:
    _, exchange = master(4)
    plan = newest(exchange)
    assert (plan.epoch, plan.round, plan.leader) == (1, 0, 0)
    assert plan.steady == {0: ((0, 48),), 1: ((24, 72),), 2: ((48, 96),), 3: ((0, 24), (72, 96))}
    assert plan.first == {share: (1, runs) for share, runs in plan.steady.items()}


def test_a_lost_lane_that_had_stamped_is_used_and_not_asked_of_others() -> None:
    round, exchange = master(4)
    deliver(exchange, [0, 1, 2, 3], 1, 0)
    deliver(exchange, [1, 3], 1, 1)
    tell(round, Lost(1.0, 3))
    plan = newest(exchange)
    assert plan.round == 1
    assert plan.first == {share: (1, runs) for share, runs in round.plans[0].steady.items()}
    assert sorted(plan.steady) == [0, 1, 2]
    assert round.rows_topped_up == 0


def test_a_lost_lane_that_had_not_is_topped_up_by_others_on_top_of_their_own() -> None:
    round, exchange = master(4)
    deliver(exchange, [0, 1, 2, 3], 1, 0)
    deliver(exchange, [0, 1], 1, 1)
    tell(round, Lost(1.0, 3))
    plan = newest(exchange)
    assert (plan.epoch, plan.round) == (2, 1)
    assert 3 not in plan.first
    assert round.rows_topped_up == 48
    covered = np.zeros(96, int)
    for _, runs in plan.first.values():
        for a, b in runs:
            covered[a:b] += 1
    assert (covered == 2).all()
    before = round.plans[0].steady
    for share, (since, runs) in plan.first.items():
        assert since == (1 if runs == before[share] else 2)


def test_a_round_that_all_have_stamped_is_closed_whatever_happens_then() -> None:
    round, exchange = master(3)
    deliver(exchange, [0, 1, 2], 1, 0)
    tell(round, Lost(1.0, 0))
    plan = newest(exchange)
    assert plan.round == 1  # round 0 is decoded under the old plan, by everybody alike
    assert plan.leader == 1
    assert 0 not in plan.first


def test_a_newcomer_starts_with_the_round_after_the_one_in_flight() -> None:
    round, exchange = master(3)
    deliver(exchange, [0, 1, 2], 1, 0)
    tell(round, Lost(1.0, 2))
    deliver(exchange, [0, 1], 2, 1)
    tell(round, Stored(2.0, 7, "share", slot=2))
    tell(round, Reply(2.0, 7, 1, 7, READY, (READY, 0), 0, 0.0, False))
    plan = newest(exchange)
    assert plan.round == 2
    assert sorted(plan.first) == [0, 1]
    assert sorted(plan.steady) == [0, 1, 2]
    assert plan.entered == {0: 1, 1: 1, 2: 3}


def test_below_the_threshold_everybody_is_held() -> None:
    round, exchange = master(2)
    deliver(exchange, [0, 1], 1, 0)
    tell(round, Lost(1.0, 0))
    assert (round.missing, round.live) == (1, 1)
    assert exchange.control % 2 == 1
    assert exchange.plan() is None


def test_the_leaders_word_ends_the_run_even_if_it_is_its_last() -> None:
    round, exchange = master(3)
    deliver(exchange, [0, 1, 2], 1, 0)
    exchange.offer(0, 1, np.empty(0))
    exchange.stop(0, 1)
    tell(round, Lost(1.0, 0))
    assert round.done
    assert round.ended == (0, 1)


@pytest.mark.engine
def test_a_masked_vector_is_refused() -> None:
    with kofn.connect("local", workers=2) as cluster:
        X = cluster.encode(np.eye(4), k=1)
        with pytest.raises(kofn.BadInput, match="all count; it returned masked entries"):
            X.iterate(lambda y: np.ma.masked_less(y, 1.0), np.zeros(4), rounds=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_that_is_closed_meanwhile_ends_an_iteration(engine: str) -> None:
    ends: list[threading.Thread] = []

    def close(*_: object) -> None:
        if not ends:
            ends.append(threading.Thread(target=cluster.close))
            ends[0].start()

    cluster = kofn.connect(engine, workers=3)
    X = cluster.encode(np.eye(6), k=2)
    with pytest.raises(kofn.Closed, match="this cluster is closed"):
        X.iterate(same, np.ones(6), rounds=10**9, on_round=close)
    ends[0].join()


def test_an_iteration_leaves_nothing_behind() -> None:
    with kofn.connect(VirtualEngine(3)) as cluster:
        X = cluster.encode(np.eye(6), k=2)
        for _ in range(5):
            X.iterate(same, np.ones(6), rounds=2)
            X @ np.ones(6)
        driver_of(cluster).settle()
        assert {worker: len(keys) for worker, keys in driver_of(cluster).roster.kept.items()} == {
            0: 1,
            1: 1,
            2: 1,
        }
        assert len(driver_of(cluster).roster._wanted) == 1


def test_a_fence_takes_its_lock_again_after_giving_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # By the rules of ARM only a release that is followed by an acquire keeps both sides apart. No
    # test on x86 can see more than that it is asked for.
    steps: list[str] = []

    class Lock:
        def __enter__(self) -> None:
            steps.append("acquire")

        def __exit__(self, *_: object) -> None:
            steps.append("release")

    monkeypatch.setattr(exchange, "_lock", Lock())
    exchange.fence()
    assert ("release", "acquire") in itertools.pairwise(steps)


@pytest.mark.engine
def test_f_of_a_module_that_goes_by_value_is_what_it_is_here() -> None:
    library: Any = ModuleType("library")
    exec("by = 1.0\ndef f(y): return y * by", vars(library))
    sys.modules["library"] = library
    cloudpickle.register_pickle_by_value(library)
    try:
        with kofn.connect("local", workers=2) as cluster:
            X = cluster.encode(np.eye(4), k=1)
            for by in (1.0, 2.0, 1.0):
                library.by = by
                assert (X.iterate(library.f, np.ones(4), rounds=2) == by**2).all()
    finally:
        cloudpickle.unregister_pickle_by_value(library)
        del sys.modules["library"]


@pytest.mark.parametrize("usual", [1e-4, 1.0])
def test_silence_lasts_up_to_the_limit_however_often_the_master_looks(usual: float) -> None:
    """Both of two are needed, and one of them does not begin."""
    engine = Acting(VirtualEngine(2, delays=PerUnit(usual)), [])
    with kofn.connect(engine, limit=40.0) as cluster:
        X = cluster.encode(np.eye(4), k=2)
        X.iterate(same, np.ones(4), rounds=3)
        engine.refuse(1)
        engine.frozen[1] = []
        began = engine.now()
        with pytest.raises(kofn.Stalled, match=r"workers \[1\] still owe") as caught:
            X.iterate(same, np.ones(4), rounds=3)
        assert 40.0 <= caught.value.waited < 41.0
        assert engine.now() - began < 40.0 + 10 * usual + 1.0
        assert caught.value.reached is not None
        assert caught.value.reached[0] == 0
