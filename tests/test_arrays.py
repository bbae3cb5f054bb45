"""Coded matrices: products are right, rows are read once, bad input never reaches a worker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import ENGINES, driver_of, examples

import kofn
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.testing import Faults


def close(y: NDArray[Any], A: NDArray[Any], w: NDArray[Any], report: kofn.Report) -> bool:
    """Equal to NumPy to the stated bound, relative to the size of the terms of the product."""
    assert report.error_bound is not None
    exact = A.astype(np.float64) @ w.astype(np.float64)
    scale = float(np.linalg.norm(A) * np.linalg.norm(w)) or 1.0
    return float(np.linalg.norm(y - exact)) <= report.error_bound * scale


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest) -> Iterator[kofn.Cluster]:
    with kofn.connect(request.param, workers=6) as cluster:
        yield cluster


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(600, 20), (1, 1), (2, 3), (7, 50), (1003, 1), (3001, 40)])
def test_products_equal_numpy(cluster: kofn.Cluster, shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(1)
    A = rng.standard_normal(shape).astype(dtype)
    X = cluster.encode(A, k=3)
    for columns in ((), (1,), (4,), (0,)):
        w = rng.standard_normal((shape[1], *columns)).astype(dtype)
        y = X @ w
        assert y.shape == (shape[0], *columns)
        assert y.dtype == dtype
        assert close(y, A, w, X.report)


def test_other_layouts_and_numbers_are_taken(cluster: kofn.Cluster) -> None:
    A = np.arange(77).reshape(11, 7)
    for source in (A, np.asfortranarray(A), A[::-1], A.tolist(), A > 30, A.astype(">f8")):
        X = cluster.encode(source, k=2)
        w = [1, 2, 3, 4, 5, 6, 7]
        assert close(X @ w, np.asarray(source), np.asarray(w), X.report)
        assert X.dtype == np.float64
    big = np.arange(770.0).reshape(7, 110)
    X = cluster.encode(A.astype(float), k=4)
    np.testing.assert_allclose(X @ big[:, ::2], A @ big[:, ::2], rtol=1e-13)


@pytest.mark.parametrize("rows", [600, 601, 607, 1000, 13])
def test_every_worker_reads_its_part_and_no_more(cluster: kofn.Cluster, rows: int) -> None:
    A = np.random.default_rng(2).standard_normal((rows, 5))
    X = cluster.encode(A, k=3)
    X @ np.ones(5)
    report = X.report
    padded = 3 * -(-rows // 3)
    assert sum(report.rows_read.values()) == report.rows_used == padded
    for worker in report.live:  # N/n rows, ±1 row for each of the 3 groups
        assert abs(report.rows_read.get(worker, 0) - padded / 6) <= 3
    assert report.rows_wasted == report.rows_topped_up == 0


@pytest.mark.claim("elastic: Algorithm 1")
@pytest.mark.engine
def test_groups_of_the_paper_are_what_workers_really_read() -> None:
    with kofn.connect("local", workers=6) as cluster:
        X = cluster.encode(np.eye(18), k=3, late=None)  # share of 6 rows: one a group
        X @ np.ones(18)
        assert read_groups(X) == {
            1: {1, 2, 3},
            2: {2, 3, 4},
            3: {3, 4, 5},
            4: {4, 5, 6},
            5: {5, 6, 1},
            6: {6, 1, 2},
        }
        assert set(X.report.rows_read.values()) == {3}
        cluster.lose(1)
        cluster.lose(3)  # machines 2 and 4, counted from 1
        settled(cluster, 4)
        Y = cluster.encode(np.eye(12), k=3)
        # A matrix encoded before the loss keeps its shares; 12 rows of 6 now make 4 groups.
        X @ np.ones(18)
        assert {w + 1 for w in X.windows()} == {1, 3, 5, 6}
        X = cluster.encode(np.eye(12), k=3)
        assert list(read_groups(X)) == [1, 3, 5, 6]
        assert read_groups(Y)[1] == {1, 2, 3}
        assert read_groups(Y)[3] == {2, 3, 4}
        sets = {g: {m for m, mine in read_groups(Y).items() if g in mine} for g in (1, 2, 3, 4)}
        assert sets == {1: {1, 5, 6}, 2: {1, 3, 6}, 3: {1, 3, 5}, 4: {3, 5, 6}}


def read_groups(X: kofn.CodedMatrix) -> dict[int, set[int]]:
    return {
        worker + 1: {row + 1 for first, last in runs for row in range(first, last)}
        for worker, runs in X.windows().items()
    }


def settled(cluster: kofn.Cluster, live: int) -> None:
    """Wait until so many workers are live: membership comes by events, not by the clock."""
    for _ in range(600):
        if len(cluster.workers) == live:
            return
        driver_of(cluster).settle(0.05)
    raise AssertionError(f"{len(cluster.workers)} live, not {live}")


@pytest.mark.claim("elastic: Properties 1, 2")
@examples(150)
@given(st.data())
def test_any_shape_and_any_losses_while_k_live(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, n))
    rows, columns = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 9))
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    A = rng.standard_normal((rows, columns)).astype(dtype)
    faults = Faults()
    spare = n - k
    for round in range(1, 5):
        if spare and data.draw(st.booleans()):
            victim = data.draw(st.integers(0, n - 1))
            faults = faults.lose(worker=victim, round=round)
            spare -= 1
        elif data.draw(st.booleans()):
            faults = faults.join(round=round)
    with kofn.connect(faults.on(VirtualEngine(n))) as cluster:
        X = cluster.encode(A, k=k, n=n + 4)
        for _ in range(6):
            w = rng.standard_normal(columns).astype(dtype)
            assert close(X @ w, A, w, X.report)
            assert not X.report.restarted


@pytest.mark.claim("elastic: Property 3")
def test_the_report_tells_what_a_loss_cost() -> None:
    engine = Faults().lose(worker=2, round=3).on(VirtualEngine(6))
    with kofn.connect(engine) as cluster:
        A = np.random.default_rng(3).standard_normal((600, 4))
        X = cluster.encode(A, k=3)
        for round in range(1, 6):
            X @ np.ones(4)
            report = X.report
            assert report.lost == ((2,) if round == 3 else ())
            assert report.rows_topped_up == (100 if round == 3 else 0)
            assert sum(report.rows_read.values()) == 600
            assert len(report.live) == (6 if round <= 3 else 5)
        assert {r.kind for r in cluster.log} >= {"round", "send", "reply", "lost", "done"}


def test_a_joiner_takes_the_free_share_and_its_part_of_the_rows() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        A = np.random.default_rng(4).standard_normal((120, 4))
        X = cluster.encode(A, k=2)
        cluster.lose(1)
        X @ np.ones(4)
        assert X.shares == {0: 0, 2: 2, 3: 3}
        assert cluster.join() == 4
        X @ np.ones(4)
        X @ np.ones(4)
        assert X.shares == {0: 0, 4: 1, 2: 2, 3: 3}
        assert X.report.rows_read == {0: 30, 4: 30, 2: 30, 3: 30}
        cluster.join()  # no share is left for it: it stands by
        X @ np.ones(4)
        X @ np.ones(4)
        assert sorted(X.report.live) == [0, 2, 3, 4]
        cluster.lose(0)  # and takes the next one that falls free
        X @ np.ones(4)
        X @ np.ones(4)
        assert X.shares[5] == 0


@pytest.mark.parametrize(
    "engine", [VirtualEngine, pytest.param(LocalEngine, marks=pytest.mark.engine)]
)
def test_one_who_stands_by_saves_the_round_in_which_somebody_is_lost(engine: Any) -> None:
    faults = Faults()
    for round, victim in ((1, 0), (2, 1)):  # slow, or it may be done before it is killed
        faults = faults.slow(worker=victim, by=1e4, round=round).lose(worker=victim, round=round)
    A = np.random.default_rng(4).standard_normal((400, 40))
    with kofn.connect(faults.on(engine(2))) as cluster:
        X = cluster.encode(A, k=2, late=None)
        cluster.join()
        cluster.join()  # no share is left for them: they stand by
        np.testing.assert_allclose(X @ A.T, A @ A.T, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(X.T @ A, A.T @ A, rtol=1e-12, atol=1e-12)
        assert cluster.workers == (2, 3)
        cluster.lose(2)
        with pytest.raises(kofn.TooFewWorkers, match=r"1 missing after waiting 0\.0 s"):
            X @ np.ones(40)  # nobody stands by any more


def test_a_share_that_does_not_arrive_is_waited_for_up_to_the_limit() -> None:
    class Mute(VirtualEngine):
        def put(self, worker: int, key: str, value: Any) -> None:
            if worker != 2:
                super().put(worker, key, value)

    engine = Faults().lose(worker=0, round=1).on(Mute(2))
    with kofn.connect(engine, limit=7.0) as cluster:
        X = cluster.encode(np.ones((400, 4)), k=2)
        cluster.join()
        began = engine.now()
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X @ np.ones(4)
        assert began + 7 <= engine.now() < began + 8


def test_below_the_threshold_one_clear_error_and_then_it_goes_on() -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        A = np.random.default_rng(5).standard_normal((30, 4))
        X = cluster.encode(A, k=3)
        cluster.lose(0)
        cluster.lose(1)
        with pytest.raises(
            kofn.TooFewWorkers, match=r"needs 3 live workers; 1 are live.*2 missing"
        ) as e:
            X @ np.ones(4)
        assert e.value.missing == 2
        assert pickle.loads(pickle.dumps(e.value)).missing == 2
        cluster.join()
        cluster.join()
        np.testing.assert_allclose(X @ np.ones(4), A @ np.ones(4), rtol=1e-13)


def test_with_a_wait_limit_a_joiner_in_time_saves_the_round() -> None:
    from kofn.delays import Change, Script

    late = Script((Change(5.0, 0), Change(8.0, None)))
    with kofn.connect(VirtualEngine(3, membership=late), wait=10.0) as cluster:
        A = np.random.default_rng(6).standard_normal((30, 4))
        X = cluster.encode(A, k=3)
        while cluster.engine.now() < 7:
            np.testing.assert_allclose(X @ np.ones(4), A @ np.ones(4), rtol=1e-13)
            if cluster.engine.now() < 5:
                driver_of(cluster).settle(1.0)  # time passes between rounds
        assert cluster.engine.now() >= 8
        assert X.report.joined == (3,)
    too_late = Script((Change(5.0, 0), Change(80.0, None)))
    with kofn.connect(VirtualEngine(3, membership=too_late), wait=10.0) as cluster:
        X = cluster.encode(A, k=3)
        driver_of(cluster).settle(6.0)
        with pytest.raises(kofn.TooFewWorkers, match=r"1 missing after waiting 10\.0 s"):
            X @ np.ones(4)


def test_a_late_worker_is_topped_up_and_not_waited_for() -> None:
    from kofn.delays import PerUnit

    with kofn.connect(VirtualEngine(6, delays=PerUnit(0.01, {4: 100.0}))) as cluster:
        A = np.random.default_rng(7).standard_normal((600, 4))
        X = cluster.encode(A, k=3)
        X @ np.ones(4)
        report = X.report
        assert report.late == (4,)
        assert report.seconds["total"] < 5  # alone, worker 4 takes 100 s for its rows
        X @ np.ones(4)


def test_several_matrices_live_on_one_cluster(cluster: kofn.Cluster) -> None:
    rng = np.random.default_rng(8)
    A, B = rng.standard_normal((50, 9)), rng.standard_normal((9, 31))
    X, Y = cluster.encode(A, k=2), cluster.encode(B, k=5)
    w = rng.standard_normal(31)
    np.testing.assert_allclose(X @ (Y @ w), A @ (B @ w), rtol=1e-10)


BAD_MATRICES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": (None, {}, r"2 dimensions; got a NoneType\. Pass an array\."),
    "ragged": ([[1.0], [1.0, 2.0]], {}, r"[^.]\. Check the lengths of its rows\."),
    "one dimension": (np.ones(5), {}, r"2 dimensions; got 1 .*reshape\(-1, 1\) for a single"),
    "three dimensions": (np.ones((2, 2, 2)), {}, r"2 dimensions; got 3"),
    "no rows": (np.ones((0, 3)), {}, r"at least one row"),
    "no columns": (np.ones((3, 0)), {}, r"at least one row and one column"),
    "objects": (np.array([[object()]]), {}, r"real numbers.*dtype object"),
    "text": (np.array([["a"]]), {}, r"real numbers"),
    "complex": (np.ones((2, 2)) * 1j, {}, r"real numbers.*complex128"),
    "NaN": (np.array([[1.0, 2.0], [np.nan, 3.0]]), {}, r"must be finite.*Entry \[1, 0\] is nan"),
    "infinity": (np.array([[1.0, np.inf]]), {}, r"must be finite.*Entry \[0, 1\] is inf"),
    "k too large": (np.ones((4, 4)), {"k": 7}, r"k=7 and n=6"),
    "k too small": (np.ones((4, 4)), {"k": 0}, r"whole number >= 1; got 0"),
    "k not whole": (np.ones((4, 4)), {"k": 2.5}, r"whole number >= 1; got 2\.5"),
    "n too small": (np.ones((4, 4)), {"k": 2, "n": 3}, r"n=3 and 6 live\. Give 6 or more \(n="),
    "a code too small": (
        np.eye(4),
        {"code": kofn.codes.MDSCode(4, 3)},
        r"Give 6.*, the n of a code,",
    ),
    "axis": (np.eye(4), {"axis": 2}, r"got 2\. 0 cuts by rows"),
    "loads": (np.eye(4), {"loads": "no"}, r"got 'no'\. Leave it out for the default\."),
    "tolerance": (np.ones((4, 4)), {"tolerance": -1}, r"tolerance"),
}


@pytest.mark.parametrize("case", BAD_MATRICES)
def test_a_bad_matrix_is_refused_before_any_worker_is_touched(
    cluster: kofn.Cluster, case: str
) -> None:
    A, options, message = BAD_MATRICES[case]
    before = len(cluster.log)
    with pytest.raises(kofn.BadInput, match=message):
        cluster.encode(A, **options)
    assert len(cluster.log) == before


BAD_OPERANDS: dict[str, tuple[Any, str]] = {
    "inner dimension": (
        np.ones(6),
        r"X has 5 columns, so w must have 5 rows; got shape \(6,\)\. Pass 5",
    ),
    "transposed": (np.ones((3, 5)), r"Did you mean w\.T\?"),
    "scalar": (np.float64(3.0), r"0 dimensions"),
    "three dimensions": (np.ones((5, 1, 1)), r"3 dimensions"),
    "NaN": (
        np.array([1, 2, np.nan, 4, 5]),
        r"w must be finite.*Entry \[2\] is nan.*check_finite=False of cluster\.encode",
    ),
    "infinity": (np.full((5, 2), -np.inf), r"w must be finite.*Entry \[0, 0\] is -inf"),
    "objects": (np.array([None] * 5), r"w must hold real numbers"),
}


@pytest.mark.parametrize("case", BAD_OPERANDS)
def test_a_bad_operand_is_refused_before_any_worker_is_touched(
    cluster: kofn.Cluster, case: str
) -> None:
    X = cluster.encode(np.ones((4, 5)), k=2)
    operand, message = BAD_OPERANDS[case]
    before = len(cluster.log)
    with pytest.raises(kofn.BadInput, match=message):
        X @ operand
    assert len(cluster.log) == before


def test_check_finite_can_be_turned_off(cluster: kofn.Cluster) -> None:
    A = np.ones((4, 2))
    A[0, 0] = np.nan
    X = cluster.encode(A, k=1, check_finite=False)
    assert np.isnan((X @ np.ones(2))[0])
    assert np.isnan(X @ np.array([np.nan, 1.0])).all()


def test_large_but_finite_numbers_pass_the_check(cluster: kofn.Cluster) -> None:
    A = np.full((4, 3), 1e308)
    X = cluster.encode(A, k=1)
    np.testing.assert_allclose(X @ np.array([1e-5, 1e-5, 1e-5]), A @ np.full(3, 1e-5))


@pytest.mark.parametrize("name", ENGINES)
def test_a_closed_cluster_says_so(name: str) -> None:
    cluster = kofn.connect(name, workers=2)
    X = cluster.encode(np.ones((4, 4)), k=2)
    cluster.close()
    cluster.close()
    for call in (
        lambda: X @ np.ones(4),
        lambda: cluster.encode(np.ones((4, 4)), k=2),
        lambda: cluster.workers,
        cluster.join,
        lambda: cluster.lose(0),
    ):
        with pytest.raises(kofn.Closed, match="closed"):
            call()


def test_connect_refuses_nonsense() -> None:
    with pytest.raises(kofn.EngineUnavailable, match=r"no 'nonsense'\. Use .*local, "):
        kofn.connect("nonsense")
    for workers in (0, -1, 2.5, True):
        with pytest.raises(kofn.BadInput, match="workers"):
            kofn.connect("local", workers=workers)  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="wait"):
        kofn.connect("local", workers=2, wait=float("nan"))
    with VirtualEngine(2) as engine, pytest.raises(kofn.BadInput, match="Leave them out"):
        kofn.connect(engine, workers=3)


def test_losing_a_worker_that_is_not_there(cluster: kofn.Cluster) -> None:
    with pytest.raises(kofn.UnknownWorker, match=r"worker 99 is not live\. Use one that is: "):
        cluster.lose(99)


def test_a_tolerance_that_cannot_be_met_raises_instead_of_returning_noise(
    cluster: kofn.Cluster,
) -> None:
    X = cluster.encode(np.ones((12, 4)), k=3, tolerance=1e-18)
    with pytest.raises(kofn.Inaccurate, match="larger tolerance"):
        X @ np.ones(4)
