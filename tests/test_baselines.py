"""What coding is compared with: right results, and what stragglers and losses do to each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from support import rested

import kofn
from kofn.arrays.baselines import Replicated, uncoded, whole_shares
from kofn.arrays.rateless import Rateless
from kofn.delays import Exponential, PerUnit
from kofn.engines.base import Engine, Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.paced import Paced
from kofn.engines.virtual import VirtualEngine
from kofn.model import Dropped, Lost, Reply, Send, Task, Tick
from kofn.rounds import Late
from kofn.rounds.replicated import ReplicatedRound
from kofn.testing import EngineChecks, Faults

N, D = 1200, 5
ROW = 1e-3  # simulated seconds a row


@pytest.fixture(scope="module")
def A() -> Any:
    return np.random.default_rng(0).standard_normal((N, D))


w = np.arange(1.0, D + 1)


def seconds(X: Any, A: Any) -> float:
    """Simulated seconds of one product, which is right."""
    assert np.allclose(X @ w, A @ w, rtol=1e-12)
    return float(X.report.seconds["total"])


def virtual(workers: int, slow: dict[int, float] | None = None, **more: Any) -> kofn.Cluster:
    return kofn.connect(VirtualEngine(workers, delays=PerUnit(ROW, slow or {})), **more)


# The time of each baseline, equal machines and one that is ten times slower.


def test_uncoded_reads_each_row_once_and_waits_for_the_slowest(A: Any) -> None:
    with virtual(6) as fine, virtual(6, {2: 10.0}) as slow:
        X, Y = uncoded(fine, A), uncoded(slow, A)
        assert seconds(X, A) == pytest.approx(N / 6 * ROW)
        assert sum(X.report.rows_read.values()) == N
        assert seconds(Y, A) == pytest.approx(10 * N / 6 * ROW)


def test_uncoded_needs_everyone(A: Any) -> None:
    with virtual(6) as cluster:
        X = uncoded(cluster, A)
        cluster.lose(4)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X @ w


def test_whole_shares_take_the_first_replies_whoever_is_slow(A: Any) -> None:
    with virtual(6, {0: 10.0, 5: 10.0, 1: 10.0}) as cluster:
        X = whole_shares(cluster, A, 3)
        assert seconds(X, A) == pytest.approx(N / 3 * ROW)
        cluster.lose(0)
        cluster.lose(5)
        assert seconds(X, A) == pytest.approx(N / 3 * ROW)
        cluster.lose(2)
        assert seconds(X, A) == pytest.approx(10 * N / 3 * ROW)  # the slow one is needed now


def test_replicas_hide_a_straggler_for_twice_the_work(A: Any) -> None:
    with virtual(6, {2: 10.0}) as cluster:
        X = Replicated(cluster, A, 2)
        assert X.blocks == 3
        assert seconds(X, A) == pytest.approx(N / 3 * ROW)
        assert X.report.rows_used == N
        assert X.report.late == (2,)  # the other holder of its block was enough


def test_a_backup_starts_at_three_times_the_median(A: Any) -> None:
    with virtual(6, {2: 10.0}) as cluster:
        X = Replicated(cluster, A, 2, backup=3.0)
        usual = N / 6 * ROW
        assert seconds(X, A) == pytest.approx(3 * usual + usual)
        assert X.report.late == (2,)
        assert X.report.rows_topped_up == N // 6
    with virtual(6) as cluster:
        X = Replicated(cluster, A, 2, backup=3.0)
        assert seconds(X, A) == pytest.approx(usual)
        assert X.report.rows_topped_up == 0
        assert sum(X.report.rows_read.values()) == N


# Losses.


@pytest.mark.parametrize("backup", [None, 3.0])
def test_lost_holders_are_fine_while_one_of_each_block_lives(A: Any, backup: float | None) -> None:
    with virtual(6) as cluster:
        X = Replicated(cluster, A, 2, backup=backup)
        for worker in (0, 2):
            cluster.lose(worker)
            seconds(X, A)
        cluster.lose(3)
        # Blocks lie on (0, 3), (1, 4), (2, 5); with backup, block 3 on 3 and 2.
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X @ w
        cluster.join()
        seconds(X, A)  # it has taken a lost one's place
        assert len(X.report.live) == 4


@pytest.mark.parametrize("backup", [None, 2.0])
def test_a_loss_in_mid_round_goes_to_the_other_holder(A: Any, backup: float | None) -> None:
    engine = VirtualEngine(6, delays=PerUnit(ROW, {1: 5.0}))
    with kofn.connect(Faults().lose(worker=1, round=2).on(engine)) as cluster:
        X = Replicated(cluster, A, 2, backup=backup)
        seconds(X, A)
        seconds(X, A)
        assert X.report.lost == (1,)


def test_random_scripts_give_right_results(A: Any) -> None:
    rng = np.random.default_rng(1)
    for seed in range(40):
        n = int(rng.integers(2, 9))
        r = int(rng.integers(1, n + 1))
        backup = [None, 1.5, 3.0][seed % 3]
        engine = VirtualEngine(n, delays=Exponential(1e-4, 0.1), seed=seed)
        victims = rng.permutation(n)[: int(rng.integers(0, r))].tolist()  # a holder is left
        faults = Faults()
        for victim in victims:
            faults = faults.lose(worker=victim, round=int(rng.integers(1, 4)))
        with kofn.connect(faults.join(round=3).on(engine)) as cluster:
            X = Replicated(cluster, A[: int(rng.integers(1, N))], r, backup=backup)
            for _ in range(5):
                assert np.allclose(X @ w, A[: X.shape[0]] @ w, rtol=1e-12)


def test_bad_input_is_told_before_a_worker_is_touched(A: Any) -> None:
    with virtual(4) as cluster:
        for r in (0, 5, 1.5):
            with pytest.raises(kofn.BadInput, match="r "):
                Replicated(cluster, A, r)  # type: ignore[arg-type]
        with pytest.raises(kofn.BadInput, match="backup"):
            Replicated(cluster, A, 2, backup=0.5)
        with pytest.raises(kofn.BadInput, match="lost must be one of"):
            Replicated(cluster, A, 2, lost="found")
        with pytest.raises(kofn.BadInput, match="n must be at least"):
            Replicated(cluster, A, 1, n=3)
        X = Replicated(cluster, A, 2)
        with pytest.raises(kofn.NothingYet):
            _ = X.report


# Both products, dense and sparse, and what becomes of a block that nobody holds.


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("r", "backup"), [(1, None), (2, None), (2, 3.0)])
def test_both_products_of_vectors_and_columns(
    A: Any, r: int, backup: float | None, sparse: bool
) -> None:
    rng = np.random.default_rng(2)
    with virtual(5) as cluster:
        data = scipy.sparse.csr_array(A) if sparse else A
        X = Replicated(cluster, data, r, backup=backup)
        for shape in ((), (3,)):
            v, z = rng.standard_normal((D, *shape)), rng.standard_normal((N, *shape))
            assert np.allclose(X @ v, A @ v, rtol=1e-12)
            assert np.allclose(X.T @ z, A.T @ z, rtol=1e-12, atol=1e-10)
        assert X.T.T is X
        assert X.T.report.extra["missing_rows"] == 0


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_lost_block_is_ignored_or_stale_until_one_joins(A: Any, engine: str) -> None:
    rows = slice(N // 4, N // 2)  # of worker 1
    z = np.arange(N) / N
    with kofn.connect(engine, workers=4) as cluster:
        ignoring, stale = (Replicated(cluster, A, 1, lost=lost) for lost in ("ignore", "stale"))
        for X in (ignoring, stale):
            assert not X.exact
            assert np.allclose(X @ w, A @ w)
            assert np.allclose(X.T @ z, A.T @ z)
        cluster.lose(1)
        there = np.ones(N, bool)
        there[rows] = False
        found = ignoring @ (2 * w)
        assert np.array_equal(np.isnan(found), ~there)
        assert np.allclose(found[there], (A @ (2 * w))[there])
        assert np.allclose(ignoring.T @ (2 * z), A[there].T @ (2 * z[there]))
        assert ignoring.report.extra["missing_rows"] == N // 4
        found = stale @ (2 * w)
        assert np.allclose(found[there], (A @ (2 * w))[there])
        assert np.allclose(found[rows], (A @ w)[rows])
        assert np.allclose(stale.T @ (2 * z), A.T @ np.where(there, 2 * z, z))
        cluster.join()
        for X in (ignoring, stale):
            assert np.allclose(X @ w, A @ w)
            assert np.allclose(X.T @ z, A.T @ z)


@pytest.mark.engine
@pytest.mark.parametrize("lost", ["ignore", "stale"])
def test_a_block_lost_in_mid_round_does_not_hold_the_round(A: Any, lost: str) -> None:
    faults = Faults().slow(worker=2, by=1e4, round=2).lose(worker=2, round=2)
    with kofn.connect(faults.on(LocalEngine(3))) as cluster:
        X = Replicated(cluster, A, 1, lost=lost)
        assert np.allclose(X @ w, A @ w)
        found = X @ (3 * w)
        assert X.report.lost == (2,)
        assert np.allclose(found[: 2 * N // 3], 3 * (A @ w)[: 2 * N // 3])
        end = found[2 * N // 3 :]
        assert np.isnan(end).all() if lost == "ignore" else np.allclose(end, (A @ w)[2 * N // 3 :])
        for worker in (0, 1):
            cluster.lose(worker)
        with pytest.raises(kofn.TooFewWorkers):  # nobody at all is not a product
            X @ w


# The master alone: events in, commands out.


class Work:
    key = "blocks"

    def __init__(self) -> None:
        self.tasks: list[tuple[int, int]] = []  # worker, block

    def task(self, round: int, worker: int, slot: int, block: int) -> Task:
        self.tasks.append((worker, block))
        return Task(len(self.tasks) - 1, round, worker, lambda kept, operand: (), what=block)


def reply(time: float, task: int, worker: int) -> Reply:
    return Reply(time, worker, 0, task, "rows", "value", 1, time, True)


def test_commands_of_a_round_with_backups() -> None:
    work = Work()
    slots = [(0, 1), (1, 2), (2, 0)]
    holders = {10: 0, 11: 1, 12: 2}
    round = ReplicatedRound(0, slots, holders, work, Late(factor=3.0, least=0.0))
    assert len(round.start(0.0)) == 3
    assert work.tasks == [(10, 0), (11, 1), (12, 2)]
    assert round.on(reply(1.0, 0, 10)) == ()
    assert round.on(reply(2.0, 1, 11)) == ()
    assert round.wake == 6.0
    assert round.owing == (12,)
    (send,) = round.on(Tick(6.0))
    assert isinstance(send, Send)
    assert work.tasks[-1] == (11, 2)
    assert round.on(Dropped(6.5, 12, 0, 2)) == ()
    assert not round.on(Lost(7.0, 11, (3,)))  # block 2 was asked of both: nobody is left
    assert not round.done
    assert round.missing == 0  # the one that is left still holds it
    assert not round.on(Lost(7.5, 12))
    assert round.missing == 1


# On real processes.


@pytest.mark.engine
def test_on_local_workers_with_a_straggler_and_a_loss(A: Any) -> None:
    def copies(cluster: kofn.Cluster) -> list[Any]:
        replicas = [Replicated(cluster, A, 2), Replicated(cluster, A, 2, backup=2.0)]
        return [*replicas, whole_shares(cluster, A, 2)]

    with kofn.connect(Paced(LocalEngine(4), PerUnit(1e-5, {1: 1e5}))) as cluster:
        for X in copies(cluster):
            seconds(X, A)  # five to ten minutes if the straggler were waited for
            assert X.report.rows_read.get(1, 0) == 0
    with kofn.connect("local", workers=4) as cluster:
        matrices = copies(cluster)
        cluster.lose(0)
        for X in matrices:
            seconds(X, A)


def test_a_wrapped_engine_passes_on_all_of_the_contract() -> None:
    contract = {name for name in vars(Engine) if not name.startswith("_")} - {"name"}
    assert contract <= vars(Wrapped).keys()


@pytest.mark.slow
class TestWrappedEngine(EngineChecks):
    """The contract holds around an engine, too."""

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with Wrapped(VirtualEngine(4)) as engine:
            yield engine


@pytest.mark.engine
def test_a_paced_task_takes_its_seconds_and_sees_a_cancel(A: Any) -> None:
    with kofn.connect(Paced(LocalEngine(2), PerUnit(0.3 / N))) as cluster:
        X = uncoded(cluster, A)
        for _ in range(2):
            assert seconds(X, A) >= 0.15
        assert X.report.rows_read == {0: N // 2, 1: N // 2}
    with kofn.connect(Paced(LocalEngine(2), PerUnit(1e-6, {0: 1e5}))) as cluster:
        Y = whole_shares(cluster, A, 1)
        for _ in range(5):  # 120 s each if the cancelled worker went on
            seconds(Y, A)
        rested(cluster)


def test_a_simulated_clock_cannot_be_paced() -> None:
    with pytest.raises(kofn.BadInput, match="VirtualEngine"):
        Paced(VirtualEngine(2), PerUnit())


# Rateless products.


@pytest.mark.parametrize(("rows", "blocks"), [(1, None), (7, 7), (300, None), (1003, 100)])
def test_rateless_products_are_right_while_workers_come_and_go(rows: int, blocks: int) -> None:
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((rows, D))
    B = rng.standard_normal((D, 3))
    for held in (A, scipy.sparse.csr_array(A), A.astype(np.float32)):
        engine = VirtualEngine(6, delays=Exponential(ROW, 0.5), seed=rows)
        with kofn.connect(engine) as cluster:
            X = Rateless(cluster, held, blocks=blocks)

            def right(w: Any, X: Any = X, held: Any = held) -> None:
                off = np.linalg.norm(X @ w - held @ w)
                assert off <= X.report.error_bound * np.linalg.norm(A) * np.linalg.norm(w)

            right(B)
            cluster.lose(0)
            right(w)
            cluster.lose(3)
            cluster.join()
            right(w[:, None])
            with pytest.raises(kofn.CannotDo, match="X @ w alone"):
                _ = X.T


def test_every_symbol_of_a_rateless_product_counts_whoever_is_slow(A: Any) -> None:
    with virtual(6, {2: 10.0}) as cluster:
        X = Rateless(cluster, A, blocks=600)
        # Five work at full speed and one at a tenth; a few symbols more than blocks are needed.
        symbols = X.code.needs + 2 * 6  # and those that come in the same moment
        assert seconds(X, A) <= symbols * (N // 600) * ROW / 5.1
        assert 600 <= X.report.extra["symbols"] <= symbols


def test_stacks_that_are_lost_are_named_as_too_few_workers(A: Any) -> None:
    with virtual(4) as cluster:
        X = Rateless(cluster, A, blocks=600)
        for worker in (0, 1, 2):
            cluster.lose(worker)
        with pytest.raises(kofn.TooFewWorkers, match="needs 2 live workers; 1 are live"):
            X @ w
        cluster.join()
        cluster.join()
        assert np.allclose(X @ w, A @ w, rtol=1e-9)
        with pytest.raises(kofn.BadInput, match=r"do not\. Use symbols="):
            Rateless(cluster, A, blocks=600, symbols=600)


def test_a_rateless_round_goes_on_where_the_lost_have_stopped(A: Any) -> None:
    faults = Faults().lose(worker=1, round=1).lose(worker=2, round=2)
    with kofn.connect(faults.on(VirtualEngine(6, delays=PerUnit(ROW)))) as cluster:
        X = Rateless(cluster, A)
        for lost in ((1,), (2,), ()):
            assert np.allclose(X @ w, A @ w, rtol=1e-9)
            assert X.report.lost == lost
