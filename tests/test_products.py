"""Every product, dense and sparse, both ways, whatever is lost, late or joins meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import ENGINES, examples, rested, until

import kofn
from kofn.arrays.grid import encode_grid
from kofn.arrays.plan import MEANINGFUL, Paces
from kofn.delays import Change, Delays, Exponential, PerUnit, Script
from kofn.engines.local import LocalEngine
from kofn.engines.paced import Paced
from kofn.engines.virtual import VirtualEngine
from kofn.testing import Faults

EPS = {np.dtype(np.float64): 2.0**-53, np.dtype(np.float32): 2.0**-24}


def matrix(rng: np.random.Generator, shape: tuple[int, int], kind: str, dtype: Any) -> Any:
    dense = rng.standard_normal(shape).astype(dtype)
    if kind == "dense":
        return dense
    return scipy.sparse.csr_array(np.where(rng.random(shape) < 0.3, dense, 0).astype(dtype))


def check(
    y: NDArray[Any], X: Any, A: Any, operand: NDArray[Any], updates: float = 0.0, slack: float = 1.0
) -> None:
    """Equal to NumPy to the stated bound, relative to the size of the terms.

    A share that was updated r times carries r more roundings of its own.
    """
    dense = (A if isinstance(A, np.ndarray) else A.toarray()).astype(np.float64)
    exact = dense @ operand.astype(np.float64)
    assert y.shape == exact.shape
    report = X.report
    assert report.error_bound is not None
    scale = float(np.linalg.norm(dense) * np.linalg.norm(operand)) or 1.0
    bound = report.error_bound * (slack + updates)
    assert float(np.linalg.norm(y - exact)) <= bound * scale
    assert not report.restarted


KINDS = ["X @ w", "X @ B", "X.T @ z", "X.T @ Z", "column-coded @ B", "column-coded.T @ z"]


def multiply(kind: str, cluster: kofn.Cluster, A: Any, k: int, rng: np.random.Generator) -> Any:
    """Return a function that does one product of this kind and checks it."""
    axis: Any = 1 if kind.startswith("column") else 0
    X = cluster.encode(A, k=k, axis=axis)
    Y = X.T if ".T" in kind else X
    target = A.T if ".T" in kind else A
    columns = () if kind[-1] in "wz" else (int(rng.integers(1, 40)),)

    def once() -> Any:
        operand = rng.standard_normal((target.shape[1], *columns)).astype(A.dtype)
        # Re-expressed work is combined twice: once more the bound at most for each loss.
        check(Y @ operand, Y, target, operand, slack=4.0)
        return Y.report

    return once


@pytest.mark.slow
@examples(200)
@given(st.data())
def test_every_product_of_every_shape_with_losses_and_joins(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 10))
    k = data.draw(st.integers(1, n))
    shape = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 70)))
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    what = data.draw(st.sampled_from(["dense", "sparse"]))
    kind = data.draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    faults, spare = Faults(), n - k
    for round in range(1, 4):
        while spare and data.draw(st.booleans()):
            faults = faults.lose(worker=data.draw(st.integers(0, n - 1)), round=round)
            spare -= 1
        if data.draw(st.booleans()):
            faults = faults.join(round=round)
    with kofn.connect(faults.on(VirtualEngine(n))) as cluster:
        once = multiply(kind, cluster, matrix(rng, shape, what, dtype), k, rng)
        for _ in range(5):
            once()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *((kind, "dense") for kind in KINDS),
        ("X.T @ Z", "sparse"),
        *(
            pytest.param(kind, "sparse", marks=pytest.mark.long)
            for kind in KINDS
            if kind != "X.T @ Z"
        ),
    ],
)
def test_a_kill_in_the_middle_of_every_product(kind: str, what: str) -> None:
    rng = np.random.default_rng(1)
    faults = Faults()
    for round, victim in ((2, 4), (3, 0)):
        faults = faults.slow(worker=victim, by=1e4, round=round).lose(worker=victim, round=round)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        once = multiply(kind, cluster, matrix(rng, (900, 301), what, np.float64), 3, rng)
        reports = []
        for _ in range(4):
            rested(cluster, *cluster.workers)
            reports.append(once())
        # Whether the loss or the delay was noticed first, others did the rows.
        assert all(r.rows_topped_up > 0 for r in reports[1:3])
        until(lambda: cluster.workers == (1, 2, 3, 5), "the news of both losses")
        cluster.join()
        for _ in range(3):
            once()


def test_below_the_threshold_a_transposed_product_says_so_and_waits_for_joiners() -> None:
    A = np.random.default_rng(2).standard_normal((40, 7))
    with kofn.connect("virtual", workers=3) as cluster:
        X = cluster.encode(A, k=3)
        cluster.lose(1)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X.T @ np.ones(40)
        cluster.join()
        np.testing.assert_allclose(X.T @ np.ones(40), A.T @ np.ones(40), rtol=1e-12)
    script = Script((Change(0.5e-5, 0), Change(5.0, None)))
    with kofn.connect(VirtualEngine(3, membership=script), wait=10.0) as cluster:
        X = cluster.encode(A, k=3)
        np.testing.assert_allclose(X.T @ np.ones(40), A.T @ np.ones(40), rtol=1e-12)
        assert X.report.lost == (0,)
        assert X.report.joined == (3,)


def test_a_late_worker_is_stood_in_for_in_a_transposed_product_too() -> None:
    A = np.random.default_rng(3).standard_normal((600, 7))
    with kofn.connect(VirtualEngine(6, delays=PerUnit(0.01, {2: 100.0}))) as cluster:
        X = cluster.encode(A, k=3)
        np.testing.assert_allclose(X.T @ np.ones(600), A.T @ np.ones(600), rtol=1e-11)
        assert X.report.late == (2,)
        assert X.report.seconds["total"] < 5


# Updates in place.


@pytest.mark.parametrize("name", ENGINES)
def test_low_rank_updates_in_place_through_losses_and_joins(name: str) -> None:
    rng = np.random.default_rng(4)
    A = rng.standard_normal((301, 40))
    with kofn.connect(name, workers=6) as cluster:
        X = cluster.encode(A, k=3)
        now = A.copy()
        for step in range(6):
            U, V = rng.standard_normal((301, 2)), rng.standard_normal((40, 2))
            X += kofn.low_rank(U, V)
            now = now + U @ V.T
            if step == 1:
                cluster.lose(2)
            if step == 3:
                cluster.join()  # its share is rebuilt from live ones: the source is outdated
            w, z = rng.standard_normal(40), rng.standard_normal(301)
            check(X @ w, X, now, w, updates=step + 1, slack=4)
            check(X.T @ z, X.T, now.T, z, updates=step + 1, slack=4)
        assert sorted(X.shares.values()) == [0, 1, 2, 3, 4, 5]
        X += np.ones((301, 40))  # a plain array is taken too
        now += 1
        w = rng.standard_normal(40)
        check(X @ w, X, now, w, updates=8, slack=4)
    np.testing.assert_array_equal(A, np.random.default_rng(4).standard_normal((301, 40)))


@pytest.mark.engine
def test_a_frozen_worker_never_answers_with_a_share_that_lacks_an_update() -> None:
    rng = np.random.default_rng(5)
    A = rng.standard_normal((200, 30))
    engine = Faults().freeze(worker=1, round=2, rounds=4).on(LocalEngine(4))
    with kofn.connect(engine) as cluster:
        X = cluster.encode(A, k=2)
        now = A.copy()
        for _ in range(12):
            w = rng.standard_normal(30)
            check(X @ w, X, now, w, updates=12)
            U, V = rng.standard_normal((200, 1)), rng.standard_normal((30, 1))
            X += kofn.low_rank(U, V)
            now = now + U @ V.T

        def back() -> bool:
            w = rng.standard_normal(30)
            check(X @ w, X, now, w, updates=12)
            return 1 in X.report.live

        until(back, "the worker that goes on")


@pytest.mark.parametrize("product", [lambda X: X @ np.ones(20), lambda X: X.T @ np.ones(100)])
def test_an_updated_matrix_that_lost_too_many_shares_is_told_at_once(product: Any) -> None:
    with kofn.connect("virtual", workers=5, wait=float("inf")) as cluster:
        X, Y = (cluster.encode(np.ones((100, 20)), k=3) for _ in range(2))
        X += np.ones((100, 20))
        for worker in (0, 1, 2):
            cluster.lose(worker)
        for _ in range(3):
            cluster.join()  # they get no share of X: its source is outdated, two shares too few
        for attempt in (product, lambda X: X.__iadd__(np.ones((100, 20))), lambda X: X.toarray()):
            with pytest.raises(kofn.SharesLost, match="any 3 of them bring it back; 2 are left"):
                attempt(X)
        np.testing.assert_allclose(product(Y), product(np.ones((100, 20))))


@pytest.mark.engine
@pytest.mark.parametrize("name", ENGINES)
def test_an_updated_matrix_lost_in_the_middle_of_a_product(name: str) -> None:
    engine = {"local": LocalEngine, "virtual": VirtualEngine}[name](4)
    faults = Faults()
    for worker in range(3):
        faults = faults.slow(worker, by=1e4, round=2).lose(worker, round=2)
    with kofn.connect(faults.on(engine), wait=float("inf")) as cluster:
        X = cluster.encode(np.ones((100, 20)), k=2)
        X @ np.ones(20)
        X += np.ones((100, 20))
        rested(cluster, 0, 1, 2)
        with pytest.raises(kofn.SharesLost):
            X @ np.ones(20)


def test_an_update_waits_for_shares_that_can_be_rebuilt() -> None:
    with kofn.connect("virtual", workers=6, wait=float("inf")) as cluster:
        X = encode_grid(cluster, np.ones((40, 20)), (2, 2))  # 4 bring it back, 6 multiply
        X += np.ones((40, 20))
        cluster.lose(0)
        cluster.lose(1)
        cluster.join()
        cluster.join()
        X += np.ones((40, 20))
        np.testing.assert_allclose(X @ np.ones(20), np.full(40, 60.0))


def test_column_coded_updates() -> None:
    A = np.random.default_rng(6).standard_normal((20, 50))
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(A, k=2, axis=1)
        U, V = np.ones((20, 1)), np.arange(50.0)
        X += kofn.low_rank(U, V)
        np.testing.assert_allclose(X @ np.ones(50), (A + U @ V[None]) @ np.ones(50), rtol=1e-10)


def test_bad_updates_and_bad_formats() -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        X = cluster.encode(np.ones((6, 4)), k=2)
        with pytest.raises(kofn.BadInput, match=r"shape \(6, 4\); got \(4, 6\)"):
            X += kofn.low_rank(np.ones((4, 2)), np.ones((6, 2)))
        with pytest.raises(kofn.BadInput, match=r"same r; got shapes"):
            kofn.low_rank(np.ones((6, 2)), np.ones((2, 4)))
        with pytest.raises(kofn.BadInput, match="must be finite"):
            X += kofn.low_rank(np.full(6, np.nan), np.ones(4))
        S = scipy.sparse.eye_array(6, format="csr")
        Y = cluster.encode(S, k=2)
        with pytest.raises(kofn.BadInput, match="sparse matrix cannot take"):
            Y += kofn.low_rank(np.ones(6), np.ones(6))
        for other in ("coo", "csc", "lil"):
            with pytest.raises(kofn.BadInput, match=r"CSR format.*Pass A\.tocsr\(\)"):
                cluster.encode(S.asformat(other), k=2)
        with pytest.raises(kofn.BadInput, match=r"z must have 6 rows; got shape \(4,\)"):
            X.T @ np.ones(4)
        with pytest.raises(kofn.BadInput, match=r"B?w must have 4 rows; got shape \(5, 2\)"):
            X @ np.ones((5, 2))
        with pytest.raises(kofn.BadInput, match="sparse w"):
            X @ scipy.sparse.eye_array(4, format="csr")
        wrong: list[dict[str, Any]] = [{"axis": 2}, {"margin": -1}, {"loads": "?"}, {"late": 0.5}]
        for options in wrong:
            with pytest.raises(kofn.BadInput, match=next(iter(options))):
                cluster.encode(np.ones((6, 4)), k=2, **options)
        anything: Any = X
        assert X.ndim == X.T.ndim == np.ndim(anything) == 2
        ones = np.ones((2, 6))
        uses: list[Callable[[Any], Any]] = [
            lambda X: np.dot(X, ones.T),
            lambda X: ones[0] + X,
            np.asarray,
            np.linalg.norm,
            lambda X: np.multiply(X, ones.T),
            list,
            lambda X: X[0],
        ]
        for use in uses:
            for one in (anything, anything.T):
                with pytest.raises(TypeError, match=r"takes products and \+= alone.*X\.toarray"):
                    use(one)


# Margin, speeds, and many scripts.


@pytest.mark.parametrize("margin", [1, 2])
def test_with_a_margin_that_many_stragglers_cost_nothing(margin: int) -> None:
    slow = dict.fromkeys(range(margin), 50.0)
    A = np.random.default_rng(7).standard_normal((1200, 5))
    with kofn.connect(VirtualEngine(12, delays=PerUnit(1e-3, slow))) as cluster:
        X = cluster.encode(A, k=8, margin=margin, late=None, loads="equal")
        for _ in range(3):
            w = np.random.default_rng(8).standard_normal(5)
            check(X @ w, X, A, w)
            # Each reads (8 + margin)/12 of a share of 150 rows; the slow ones are not awaited.
            assert X.report.seconds["total"] == pytest.approx(1e-3 * 12.5 * (8 + margin), rel=0.1)


def test_loads_follow_measured_speed() -> None:
    slow = {0: 4.0, 1: 4.0, 2: 2.0, 3: 2.0}  # speeds 1:1:2:2:4:4
    A = np.random.default_rng(9).standard_normal((4200, 5))
    times = {}
    for loads in ("equal", "measured"):
        with kofn.connect(VirtualEngine(6, delays=PerUnit(1e-3, slow))) as cluster:
            X = cluster.encode(A, k=3, loads=loads, late=None)
            for _ in range(10):
                w = np.random.default_rng(8).standard_normal(5)
                check(X @ w, X, A, w)
            times[loads] = X.report.seconds["total"]
            assert X.report.rows_wasted == 0
    # 700 rows at 4 ms against 4200 rows at 14 rows per 4 ms.
    assert times["equal"] / times["measured"] == pytest.approx(7 / 3, rel=0.02)


def test_a_worker_with_few_rows_is_measured_in_the_same_rounds_as_the_others() -> None:
    paces, holders = Paces(), {0: 0, 1: 1, 2: 2}
    for _ in range(8):  # for once it has to wait for a core
        paces.learn(dict.fromkeys(holders, 6000), {0: 6e-3, 1: 6e-3, 2: 18e-3})
    loads = paces.loads(holders, 2, ())
    assert loads is not None
    assert loads[2] < 0.5
    rows = {worker: round(9000 * load) for worker, load in enumerate(loads)}
    assert 1e-6 * rows[2] < MEANINGFUL
    for _ in range(16):
        paces.learn(rows, {worker: 1e-6 * count for worker, count in rows.items()})
    assert paces.loads(holders, 2, ()) is None


def test_rows_that_take_longer_in_another_kind_of_product_make_nobody_slow() -> None:
    paces, holders = Paces(), {0: 0, 1: 1, 2: 2}
    rows = dict.fromkeys(holders, 3000)
    for _ in range(8):
        paces.learn(rows, dict.fromkeys(holders, 40e-3))
        paces.learn(rows, {0: 2.9e-3, 1: 3.1e-3, 2: 3.0e-3})
        assert paces.loads(holders, 2, ()) is None


def test_workers_that_take_turns_on_the_same_cores_have_one_speed() -> None:
    paces, holders = Paces(), {0: 0, 1: 1, 2: 2, 3: 3}
    for _ in range(8):
        paces.learn(dict.fromkeys(holders, 3000), {0: 3e-3, 1: 9e-3, 2: 6e-3, 3: 24e-3})
    assert paces.loads(holders, 2, ()) is not None
    assert paces.loads(holders, 2, tuple(holders)) is None
    loads = paces.loads(holders, 2, (0, 1, 2))  # 3 is on a machine of its own
    assert loads is not None
    assert loads[0] == loads[1] == loads[2] == pytest.approx(4 * loads[3])


def test_loads_are_worked_out_anew_for_others_that_share_cores() -> None:
    paces, holders = Paces(), {0: 0, 1: 1, 2: 2, 3: 3}
    for _ in range(8):
        paces.learn(dict.fromkeys(holders, 10), {w: (1 + w) * MEANINGFUL for w in holders})
    first, last = (paces.loads(holders, 2, together) for together in ((0, 1), (2, 3)))
    assert first is not None
    assert last is not None
    assert first[0] == first[1]
    assert last[2] == last[3]
    assert last[0] > last[1]


@pytest.mark.engine
def test_who_shares_cores_with_more_workers_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.engines._sockets.usable", lambda: 2)
    with LocalEngine(2) as engine:
        assert not engine.crowded
        engine.join()
        while len(engine.workers) < 3:
            engine.events(1.0)
        assert sorted(engine.crowded) == [0, 1, 2]
        assert not Faults().slow(worker=0, by=3.0).on(engine).crowded
        assert sorted(Faults().lose(worker=0).on(engine).crowded) == [0, 1, 2]
        assert not Paced(engine, PerUnit(1e-3)).crowded


class Uneven(Delays):
    """Exponential delays, some workers ten times slower, some far beyond any patience."""

    def seconds(self, rng: np.random.Generator, worker: int, round: int, cost: float) -> float:
        slow = {1: 10.0, 4: 1e6}.get(worker % 7, 1.0)
        return slow * (1e-3 * cost + float(rng.exponential(0.05)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", [0, 1, *(pytest.param(batch, marks=pytest.mark.long) for batch in range(2, 10))]
)
def test_fifty_random_scripts(batch: int) -> None:
    for seed in range(50 * batch, 50 * batch + 50):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 10))
        k = int(rng.integers(1, n + 1))
        delays = [Uneven(), Exponential(1e-3, 0.2), PerUnit(1e-3, {0: 7.0})][seed % 3]
        changes = [
            Change(float(t), -1 if rng.random() < 0.5 else None)
            for t in rng.uniform(0, 3, int(rng.integers(0, 12)))
        ]
        # Whatever the script has done by then, enough workers come in the end.
        script = Script((*changes, *(Change(4.0 + i, None) for i in range(n))))
        engine = VirtualEngine(n, delays=delays, membership=script, seed=seed)
        A = matrix(rng, (int(rng.integers(1, 80)), 4), ["dense", "sparse"][seed % 2], np.float64)
        with kofn.connect(engine, wait=100.0, limit=1e8) as cluster:
            X = cluster.encode(A, k=k, n=n + 4, margin=int(rng.integers(0, 3)))
            for i in range(6):
                if i % 2:
                    z = rng.standard_normal(A.shape[0])
                    check(X.T @ z, X.T, A.T, z)
                else:
                    w = rng.standard_normal(4)
                    check(X @ w, X, A, w)
