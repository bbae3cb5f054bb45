"""Wrong replies: what is caught, who is named, and that right ones never are (docs/verify.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from bodies import gradient
from numpy.typing import NDArray
from support import LOCAL, driver_of, seeds, until

import kofn
from kofn.arrays.checking import begun
from kofn.arrays.probes import group_count
from kofn.arrays.reduce import Item
from kofn.arrays.scales import scales_of
from kofn.arrays.shares import shares_of
from kofn.arrays.verify import Finite, Parity, ProbedProduct, ProbedSum
from kofn.codes.mds import MDSCode
from kofn.codes.syndrome import Syndrome
from kofn.delays import PerUnit
from kofn.engines.base import Engine, Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Reply
from kofn.rounds import Cover, Layout
from kofn.testing import Faults
from kofn.testing.corrupt import KINDS, Kind, corrupted

pytestmark = pytest.mark.slow  # together they take seconds

Floats = NDArray[Any]
MODES: list[tuple[Any, int]] = [("probe", 0), ("parity", 1), ("parity", 2)]


class Liar(Wrapped):
    """Corrupts one reply of a round, when told to, and notes what it was and became."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.capabilities = engine.capabilities
        self.plan: tuple[int, Kind, np.random.Generator] | None = None
        self.done: tuple[Reply, Any] | None = None
        self._others: list[Any] = []

    def tell(self, worker: int, kind: Kind, rng: np.random.Generator) -> None:
        self.plan, self.done, self._others = (worker, kind, rng), None, []

    def events(self, timeout: float) -> list[Event]:
        return [self._spoilt(event) for event in super().events(timeout)]

    def _spoilt(self, event: Event) -> Event:
        if type(event) is not Reply or event.value is None or self.plan is None:
            return event
        worker, kind, rng = self.plan
        if event.worker != worker:
            self._others.append(event.value)
            return event
        other = self._others[-1] if self._others else np.roll(event.value, 1, axis=0)
        wrong = corrupted(event.value, kind, rng, other)
        self.done, self.plan = (event, wrong), None
        return event._replace(value=wrong)


WAYS: list[Callable[[Any], Any]] = [
    lambda X: X @ np.ones(2),
    lambda X: X @ np.ones((2, 3)),
    lambda X: X.T @ np.ones(X.shape[0]),
    lambda X: X.rows(range(50)) @ np.ones(2) if isinstance(X, kofn.CodedMatrix) else X[:50].sum(1),
]


# What is caught.


def matrix_of(rng: np.random.Generator) -> Floats:
    N, d = int(rng.integers(20, 300)), int(rng.integers(1, 60))
    A = rng.standard_normal((N, d)) * 10.0 ** rng.uniform(-6, 6)
    if rng.random() < 0.3:
        A *= 10.0 ** rng.uniform(-5, 5, (N, 1))  # rows of different size
    return np.asarray(A, np.float32 if rng.random() < 0.2 else float)


def row_sets(X: kofn.CodedMatrix, A: Floats) -> Floats:
    """The length of the k rows of each place, divided as the shares are."""
    blocks = np.zeros((X.code.k * X._rows, A.shape[1]))
    blocks[: len(A)] = X._scaled(A.astype(float))
    return np.asarray(np.linalg.norm(blocks.reshape(X.code.k, X._rows, -1), axis=(0, 2)))


def moved(X: kofn.CodedMatrix, margin: int, reply: Reply, wrong: Floats) -> Floats:
    """By how much each place of the result would move if a wrong reply were used, (rows, width)."""
    plan = X._planner._plans[X.code, margin, X._rows][-1]
    share = plan.holders[reply.worker]
    error = np.zeros((X._rows, *wrong.shape[1:]))
    with np.errstate(over="ignore", invalid="ignore"):
        apart, done = np.abs(wrong.astype(float) - reply.value.astype(float)), 0
    for first, last in reply.what:
        error[first:last] = apart[done : done + last - first]
        done += last - first
    for first, last, places, weights in plan.segments:
        here = [i for i, place in enumerate(places) if plan.windows.shares[place] == share]
        factor = np.linalg.norm(weights.matrix[:, here]) if here else 0.0
        error[first:last] *= factor
    return error.reshape(X._rows, -1)


def stated(X: kofn.CodedMatrix, margin: int, w: Floats) -> float:
    """The bound of a product by parity, where it raised and has no report."""
    probes, plan = X._drift.checked.probes, X._planner._plans[X.code, margin, X._rows][-1]
    assert probes is not None
    assert plan.eta is not None
    parity = Parity(probes.sizes, X.code, {}, Finite(lambda share: 1.0, w, ()), w)
    for _, _, places, _ in plan.segments:
        parity.look(tuple(plan.windows.shares[place] for place in places))
    return parity.unseen(plan.eta)


@pytest.mark.parametrize(("verify", "margin"), MODES)
def test_every_wrong_reply_that_matters_is_found_and_its_worker_named(
    verify: Any, margin: int
) -> None:
    caught = tried = 0
    for seed in seeds(40):
        rng = np.random.default_rng([seed, margin])
        k = int(rng.integers(1, 5))
        n = k + 2 + int(rng.integers(0, 3))
        A, liar = matrix_of(rng), Liar(VirtualEngine(n))
        with kofn.connect(liar) as cluster:
            X = cluster.encode(A, k=k, verify=verify, margin=margin)
            sets = row_sets(X, A)
            for turn in range(9):
                driver_of(cluster).trust.caught.clear()
                shape = (A.shape[1],) if turn % 2 else (A.shape[1], 3)
                w = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3)).astype(A.dtype)
                worker = int(rng.integers(n))
                liar.tell(worker, KINDS[turn % len(KINDS)], rng)
                lengths = np.linalg.norm(w.astype(float).reshape(len(w), -1), axis=0)
                size = np.outer(sets, lengths)
                try:
                    y = X @ w
                except kofn.WrongReplies:
                    # Where all have been asked, replies to spare may show an error that is too
                    # small to say whose it is.
                    assert verify == "parity"
                    assert liar.done is not None
                    move = moved(X, margin, *liar.done)
                    assert margin == 1 or (move <= stated(X, margin, w) * size).all(), (seed, turn)
                    continue
                if liar.done is None:
                    continue  # it had no window
                tried += 1
                reply, wrong = liar.done
                report = X.report
                assert report.unseen is not None
                assert report.error_bound is not None
                move = moved(X, margin, reply, wrong)
                matters = ~np.isfinite(wrong).all() or (move > report.unseen * size).any()
                assert set(report.wrong) <= {worker}
                if matters:
                    assert report.wrong == (worker,), (seed, turn)
                    caught += 1
                exact = X._scaled(A.astype(float) @ w.astype(float)).reshape(len(A), -1)
                apart = np.zeros((k * X._rows, len(lengths)))
                apart[: len(A)] = np.abs(X._scaled(y.astype(float)).reshape(len(A), -1) - exact)
                off = np.linalg.norm(apart.reshape(k, X._rows, -1), axis=0)
                assert (off <= (report.error_bound + report.unseen) * size).all(), (seed, turn)
    print(tried, "wrong replies", caught, "that matter, all found")
    assert tried > 300
    assert caught > 0.6 * tried


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("verify", "margin"), [("probe", 0), ("parity", 2)])
def test_of_zeros_only_what_underflow_makes_is_not_seen(
    verify: Any, margin: int, dtype: Any
) -> None:
    d, rng, unseen, liar = 50, np.random.default_rng(0), 0, Liar(VirtualEngine(5))
    least = 3e-308 if dtype is np.float64 else 3e-39 * d  # as docs/verify.md has it
    with kofn.connect(liar) as cluster:
        X = cluster.encode(np.zeros((900, d), dtype), k=3, verify=verify, margin=margin)
        for flipped in range(100):
            driver_of(cluster).trust.caught.clear()
            liar.tell(flipped % 5, "bit", rng)
            Y = X.T if flipped % 2 else X
            try:
                Y @ np.ones(Y.shape[1], dtype)
            except kofn.WrongReplies:
                assert verify == "parity"  # seen, but too small to say whose it is
                continue
            assert liar.done is not None
            if not Y.report.wrong:
                unseen += 1
                assert np.abs(liar.done[1]).max() <= least
    assert 0 < unseen < 100


@pytest.mark.parametrize("verify", ["probe", "parity"])
def test_wrong_replies_of_the_transpose_are_found_too(verify: Any) -> None:
    caught = tried = 0
    for seed in seeds(15):
        rng = np.random.default_rng([seed, 7])
        A, liar = matrix_of(rng), Liar(VirtualEngine(6))
        with kofn.connect(liar) as cluster:
            X = cluster.encode(A, k=3, verify=verify, margin=1 if verify == "parity" else 0)
            for turn in range(9):
                driver_of(cluster).trust.caught.clear()
                z = rng.standard_normal((len(A), 1 + turn % 3)).astype(A.dtype)
                worker = int(rng.integers(6))
                liar.tell(worker, KINDS[turn % len(KINDS)], rng)
                g = X.T @ z
                if liar.done is None:
                    continue
                tried += 1
                reply, wrong = liar.done
                report = X.report
                assert report.unseen is not None
                assert report.error_bound is not None
                size = np.linalg.norm(A.astype(float)) * np.linalg.norm(z.astype(float), axis=0)
                with np.errstate(over="ignore", invalid="ignore"):
                    move = np.linalg.norm(wrong.astype(float) - reply.value, axis=0)
                assert set(report.wrong) <= {worker}
                if not (move <= report.unseen * size).all():
                    assert report.wrong == (worker,), (seed, turn)
                    caught += 1
                off = np.linalg.norm(g - A.astype(float).T @ z.astype(float), axis=0)
                assert (off <= (report.error_bound + report.unseen) * size).all(), (seed, turn)
    print(tried, "wrong replies", caught, "that matter, all found")
    assert tried > 100
    assert caught > 0.6 * tried


# No false alarms.


def hard(rng: np.random.Generator, N: int, d: int) -> tuple[Floats, Floats]:
    """A matrix and an operand whose product rounds in one of many ways."""
    A, w = rng.standard_normal((N, d)), rng.standard_normal(d)
    match int(rng.integers(9)):
        case 0:
            A, w = rng.random((N, d)), rng.random(d)  # of one sign: sums grow
        case 1:
            A, w = np.full((N, d), 0.1), np.ones(d)  # each step rounds the same way
        case 2:
            A *= 10.0 ** rng.uniform(-12, 12, (N, 1))
        case 3:
            A *= 10.0 ** rng.uniform(-8, 8, (1, d))
        case 4:
            w -= A[0] * (A[0] @ w) / (A[0] @ A[0])  # products that cancel
            A[:] = A[0] + 1e-13 * A
        case 5:
            A, w = A * 1e-160, w * 1e-150  # numbers without all of their digits
        case 6:
            A, w = A * 1e150, w * 1e140
        case 7:
            A[rng.random(N) < 0.5] = 0.0
    return A, w


def operands(rng: np.random.Generator, w: Floats) -> Iterator[Floats]:
    """The operand itself, and others of its size."""
    yield w
    for _ in range(7):
        yield (w * rng.standard_normal(len(w))).astype(w.dtype)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_right_replies_pass() -> None:
    """Some 6,000 replies in `make test`; KOFN_SOAK=180 makes a million."""
    checked = 0
    for seed in seeds(18):
        rng = np.random.default_rng([seed, 11])
        k = int(rng.integers(1, 6))
        n, N, d = k + int(rng.integers(2, 5)), int(rng.integers(k, 500)), int(rng.integers(1, 400))
        A, w = hard(rng, N, d)
        large = max(np.abs(A).max(), np.abs(w).max()) > 1e30
        small = min(np.abs(A[A != 0]).min(initial=1.0), np.abs(w[w != 0]).min(initial=1.0)) < 1e-30
        dtype = np.float32 if rng.random() < 0.2 and not large and not small else np.float64
        A, w = A.astype(dtype), w.astype(dtype)
        code = MDSCode(n, k)
        rows = code.block_rows(N)
        made, groups = shares_of(A, code, scales_of(A, k)), group_count(rows, n)
        probes = begun("probe", made, (k, rows, d), groups).probes
        assert probes is not None
        shares = [made.share_of(s) for s in range(n)]
        edges = probes.edges.tolist()
        runs = list({(edges[i], edges[j]) for i in range(groups) for j in (i + 1, groups)})[:6]
        for x in operands(rng, w):
            first = Finite(lambda share: float("inf"), x, ())
            probe = ProbedProduct(probes, code, {}, first, x)
            for s, share in enumerate(shares):
                for a, b in runs:
                    assert probe.wrong(s, ((a, b),), share[a:b] @ x) is None, (seed, s, a, b)
                    checked += 1
            cover, whole = Cover(Layout(n).lay(range(n), rows)), ((0, rows),)
            values = [(s, whole, share @ x) for s, share in enumerate(shares)]
            for s in range(n):
                cover.deliver(s, whole)
            if all(np.isfinite(value).all() for _, _, value in values):
                judged = Parity(probes.sizes, code, {}, first, x).judge(cover, values)
                assert judged == ({}, []), seed
                checked += n
        summed = ProbedSum(probes, code, {}, _Any())
        for s, share in enumerate(shares):
            u = (rng.standard_normal((rows, 2)) * 10.0 ** rng.uniform(-5, 5)).astype(dtype)
            value = share.T @ u
            if np.isfinite(value).all():
                assert summed.wrong(s, Item(s, ((0, rows),), u), value) is None, (seed, s)
                checked += 1
    print(checked, "right replies")
    assert checked > 300 * len(seeds(18))


class _Any(Finite):
    def __init__(self) -> None: ...

    def wrong(self, slot: int, what: Any, value: Any) -> str | None:
        return None


@pytest.mark.parametrize(("verify", "margin"), MODES)
def test_updated_moved_and_rebuilt_matrices_raise_no_false_alarm(verify: Any, margin: int) -> None:
    for seed in seeds(4):
        rng = np.random.default_rng([seed, 3])
        A = rng.random((120, 9))
        with kofn.connect(VirtualEngine(6)) as cluster:
            X = cluster.encode(A, k=3, verify=verify, margin=margin)
            V = rng.random((9, 2))
            for turn in range(40):
                U = rng.random((120, 2)) * 10.0 ** rng.uniform(-3, 3)
                if turn % 3:
                    X += kofn.low_rank(U, V)
                else:
                    X.move(kofn.low_rank(U, V), 0.5)
                if turn % 9 == 4:
                    cluster.lose(cluster.workers[0])
                    cluster.join()
                B = X.toarray()
                assert X.report.wrong == () if turn else True
                w, z = rng.random(9), rng.random(120)
                assert np.allclose(X @ w, B @ w, rtol=1e-9)
                assert X.report.wrong == ()
                assert np.allclose(X.T @ z, B.T @ z, rtol=1e-9)
                assert X.report.wrong == ()


# What is done about it.


@pytest.mark.parametrize("engine", [LOCAL, "virtual"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_caught_twice_is_put_aside(
    engine: str, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    A, w = np.random.default_rng(0).standard_normal((400, 20)), np.linspace(0, 1, 20)
    inner = LocalEngine(5) if engine == "local" else VirtualEngine(5)
    faults = Faults().corrupt(2, kind)
    with caplog.at_level(logging.WARNING, "kofn"), kofn.connect(faults.on(inner)) as cluster:
        X = cluster.encode(A, k=2, verify="probe", loads="equal")

        def gone() -> bool:  # where it is late, a product does not hear of it
            assert np.allclose(X @ w, A @ w, rtol=1e-7, atol=1e-7)
            return 2 not in cluster.workers

        until(gone, "its loss")
        gone()  # and without it
        kinds = [record.kind for record in cluster.log if record.worker == 2]
        assert kinds.count("wrong") == 2
        assert kinds.count("aside") == 1
        assert "lost" in kinds[kinds.index("aside") :]
        assert 2 not in cluster.workers
        assert 2 not in X.shares
        why = next(record.why for record in cluster.log if record.kind == "aside")
        assert "fail a check" in why
    assert [r.levelname for r in caplog.records if "worker 2" in r.message] == ["WARNING"] * 3


def test_a_worker_that_cannot_be_ended_is_given_no_more_work() -> None:
    class Fixed(Liar):
        def lose(self, worker: int) -> None:
            raise AssertionError("it cannot")

    from dataclasses import replace

    A, liar = np.random.default_rng(0).standard_normal((90, 8)), Fixed(VirtualEngine(4))
    liar.capabilities = replace(liar.capabilities, can_lose=False)
    with kofn.connect(liar) as cluster:
        X = cluster.encode(A, k=2, verify="probe")
        for _ in range(2):
            liar.tell(1, "sign", np.random.default_rng(0))
            assert np.allclose(X @ np.ones(8), A.sum(axis=1))
            assert X.report.wrong == (1,)
        X @ np.ones(8)
        assert cluster.workers == (0, 2, 3)
        assert X.report.rows_read.keys() == {0, 2, 3}
        assert (X.T @ np.ones(90)).shape == (8,)


def test_where_replies_disagree_and_nobody_can_say_whose_an_error_says_so() -> None:
    faults = Faults().corrupt(1, "sign", round=1)
    with kofn.connect(faults.on(VirtualEngine(4))) as cluster:
        X = cluster.encode(np.arange(24.0).reshape(8, 3), k=3, margin=1, verify="parity")
        with pytest.raises(kofn.WrongReplies, match="do not, and it takes 1 more") as caught:
            X @ np.ones(3)
        assert caught.value.workers == {}
        assert np.allclose(X @ np.ones(3), np.arange(24.0).reshape(8, 3).sum(axis=1))


def test_where_too_few_others_are_left_an_error_says_who_was_wrong() -> None:
    faults = Faults().corrupt(1, "sign", round=1)
    with kofn.connect(faults.on(VirtualEngine(3))) as cluster:
        X = cluster.encode(np.arange(24.0).reshape(8, 3), k=3, verify="probe")
        with pytest.raises(kofn.WrongReplies, match="worker 1: rows") as caught:
            X @ np.ones(3)
        assert list(caught.value.workers) == [1]
        assert caught.value.missing == 1
        X @ np.ones(3)


def test_parity_needs_one_more_than_the_threshold() -> None:
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(np.eye(8), k=3, margin=1, verify="parity")
        cluster.lose(0)
        with pytest.raises(kofn.TooFewWorkers, match="4 live workers"):
            X @ np.ones(8)
        cluster.join()
        assert np.allclose(X @ np.ones(8), 1)


def test_two_wrong_workers_are_found_with_a_margin_of_four() -> None:
    faults = Faults().corrupt(1, "replaced").corrupt(4, "factor", seed=8)
    A = np.random.default_rng(0).standard_normal((120, 6))
    with kofn.connect(faults.on(VirtualEngine(8))) as cluster:
        X = cluster.encode(A, k=3, margin=4, verify="parity")
        assert np.allclose(X @ np.ones(6), A.sum(axis=1))
        assert sorted(X.report.wrong) == [1, 4]


def test_late_workers_and_losses_are_topped_up_in_whole_groups() -> None:
    A = np.random.default_rng(0).standard_normal((4000, 5))
    faults = Faults().lose(3, round=2).corrupt(5, "bit", seed=2).join(round=3)
    engine = VirtualEngine(7, delays=PerUnit(1e-4, slow={2: 30.0}))
    with kofn.connect(faults.on(engine)) as cluster:
        X = cluster.encode(A, k=4, n=8, verify="probe")
        for _ in range(6):
            assert np.allclose(X @ np.ones(5), A.sum(axis=1))
            assert set(X.report.wrong) <= {5}
            groups = set(X._planner.plan(X.code, X._rows, 0).windows.cuts.tolist())
            edges = X._drift.checked.probes.edges  # type: ignore[union-attr]
            assert groups <= set(edges.tolist())


# What is not finite.


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("way", ["forward", "back"])
def test_a_value_that_is_not_finite_is_its_workers_fault(bad: float, way: str) -> None:
    class Broken(Liar):
        def _spoilt(self, event: Event) -> Event:
            if type(event) is Reply and event.value is not None and event.worker == 3:
                event.value[0] = bad
            return event

    A = np.random.default_rng(0).standard_normal((90, 8))
    with kofn.connect(Broken(VirtualEngine(5))) as cluster:
        X = cluster.encode(A, k=3)
        if way == "forward":
            assert np.allclose(X @ np.ones(8), A.sum(axis=1))
        else:
            assert np.allclose(X.T @ np.ones(90), A.sum(axis=0))
        assert X.report.wrong == (3,)
        assert X.report.unseen is None
        record = next(record for record in cluster.log if record.kind == "wrong")
        assert "not finite" in record.why


@pytest.mark.parametrize("check_finite", [True, False])
@pytest.mark.parametrize("wrong", [{3: -1}, {3: 1}, {3: 1, 4: -1}])
@pytest.mark.parametrize("size", [90, 90_000])
def test_a_value_of_the_wrong_length_is_its_workers_fault(
    wrong: dict[int, int], size: int, check_finite: bool
) -> None:
    class Broken(Liar):
        def _spoilt(self, event: Event) -> Event:
            if type(event) is Reply and event.value is not None and event.worker in wrong:
                shape = (len(event.value) + wrong[event.worker], *event.value.shape[1:])
                return event._replace(value=np.resize(event.value, shape))
            return event

    A = np.random.default_rng(0).standard_normal((size, 2))
    for form, way in enumerate(WAYS):
        with kofn.connect(Broken(VirtualEngine(5))) as cluster:
            X = cluster.encode(A, k=3, check_finite=check_finite)
            assert np.allclose(way(X), way(A))
            assert X.report.wrong == tuple(wrong), form


def test_an_honest_overflow_is_nobodys_fault() -> None:
    with kofn.connect(VirtualEngine(5)) as cluster:
        for options in ({}, {"verify": "probe"}, {"verify": "parity", "margin": 1}):
            X = cluster.encode(np.full((50, 4), 1e200), k=3, **options)
            with pytest.raises(kofn.Overflowed):
                X @ np.full(4, 1e200)
            assert X.report.wrong == ()
            assert np.allclose(X @ np.ones(4), 4e200)
        assert not [record for record in cluster.log if record.kind == "wrong"]


def test_a_reply_of_the_wrong_shape_is_refused() -> None:
    class Short(Liar):
        def _spoilt(self, event: Event) -> Event:
            if type(event) is Reply and event.value is not None and event.worker == 3:
                return event._replace(value=event.value[1:])
            return event

    A = np.random.default_rng(0).standard_normal((90, 8))
    with kofn.connect(Short(VirtualEngine(5))) as cluster:
        X = cluster.encode(A, k=3, verify="probe")
        assert np.allclose(X @ np.ones(8), A.sum(axis=1))
        assert X.report.wrong == (3,)


# Every source.


def test_sparse_matrices_and_both_ways_to_cut_are_checked() -> None:
    rng = np.random.default_rng(0)
    S: Any = scipy.sparse.random_array((300, 40), density=0.1, format="csr", random_state=rng)
    for data, axis in ((S, 0), (S, 1), (S.toarray(), 1)):
        for verify, margin in MODES:
            faults = Faults().corrupt(2, "sign", round=2).corrupt(1, "sign", round=3)
            with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
                options: Any = {"verify": verify, "margin": margin, "axis": axis}
                X = cluster.encode(data, k=3, **options)
                for expected in ((), (2,)):
                    assert np.allclose(X @ np.ones(40), S.sum(axis=1))
                    assert X.report.wrong == expected
                assert np.allclose(X.T @ np.ones(300), S.sum(axis=0))
                assert X.report.wrong == (1,)


def test_files_and_stores_are_read_once_for_it(tmp_path: Any) -> None:
    from kofn.arrays.store import write_store

    A = np.random.default_rng(0).standard_normal((300, 7)) * np.logspace(-6, 6, 300)[:, None]
    np.save(tmp_path / "A.npy", A)
    write_store(tmp_path / "A.npy", tmp_path / "store", MDSCode(6, 3))
    for source in ("A.npy", "store"):
        for verify, margin in MODES:
            faults = Faults().corrupt(2, "sign", round=1).corrupt(4, "bit", round=2, seed=1)
            with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
                k = None if source == "store" else 3
                options: Any = {"verify": verify, "margin": margin}
                X = cluster.encode(str(tmp_path / source), k, **options)
                assert np.allclose(X @ np.ones(7), A.sum(axis=1))
                assert X.report.wrong == (2,)
                assert np.allclose(X.T @ np.ones(300), A.sum(axis=0))
                assert X.report.wrong == (4,)


def test_rows_that_are_fetched_are_checked() -> None:
    A = np.random.default_rng(0).standard_normal((300, 7))
    faults = Faults().corrupt(2, "sign", round=1, seed=3).corrupt(4, "factor", round=2)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        X = cluster.encode(A, k=3, verify="probe")
        assert np.allclose(X.toarray(), A)
        assert np.allclose(X.toarray(), A)
        wrong = [record.worker for record in cluster.log if record.kind == "wrong"]
        assert wrong == [2, 4]


@pytest.mark.parametrize("verify", ["probe", "parity"])
def test_a_wrong_copy_of_a_share_is_not_kept(verify: Any) -> None:
    rng = np.random.default_rng(0)
    A, U, V = rng.standard_normal((90, 6)), rng.standard_normal((90, 1)), rng.standard_normal(6)
    liar = Liar(VirtualEngine(5))
    with kofn.connect(liar) as cluster:
        X = cluster.encode(A, k=2, margin=1 if verify == "parity" else 0, verify=verify)
        X += kofn.low_rank(U, V[:, None])
        cluster.join()
        cluster.announce(3, 1000.0)  # its share is copied to the newcomer
        liar.tell(3, "sign", rng)
        for _ in range(3):
            assert np.allclose(X @ np.ones(6), (A + U @ V[None]).sum(axis=1))
            assert X.report.wrong == ()
        assert liar.done is not None
        reply, _ = liar.done
        assert reply.value.shape == (45, 6)  # the copy itself
        cluster.lose(3)
        assert np.allclose(X @ np.ones(6), (A + U @ V[None]).sum(axis=1))
        assert X.report.wrong == ()
        assert 5 in X.shares


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"verify": "both"}, "verify must be"),
        ({"verify": "parity"}, "margin=1 detects"),
        ({"verify": "probe", "check_finite": False}, "check_finite=False"),
    ],
)
def test_what_cannot_be_verified_is_refused(options: Any, match: str) -> None:
    with kofn.connect("virtual", workers=4) as cluster, pytest.raises(kofn.BadInput, match=match):
        cluster.encode(np.eye(8), k=2, **options)


@pytest.mark.parametrize("verify", ["probe", "parity"])
def test_an_iteration_is_not_verified_and_says_so(verify: Any) -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(np.eye(6), k=2, margin=1, verify=verify)
        with pytest.raises(kofn.CannotDo, match=f"verify='{verify}'.* round by round"):
            X.iterate(abs, np.ones(6), rounds=3)


def test_a_grid_is_not_verified() -> None:
    from kofn.arrays.grid import encode_grid
    from kofn.arrays.options import Options

    options = Options(verify="probe")
    with kofn.connect("virtual", workers=8) as cluster, pytest.raises(kofn.CannotDo, match="cut"):
        encode_grid(cluster, np.eye(8), options=options)


def test_simulated_time_without_values_takes_the_options_too() -> None:
    with kofn.connect(VirtualEngine(6, compute=False)) as cluster:
        for verify, margin in MODES:
            X = cluster.encode(np.zeros((6000, 2)), k=3, verify=verify, margin=margin)
            X @ np.zeros(2)
            assert X.report.wrong == ()
            assert X.report.unseen is None


# Sums.


def many(stack: Any, w: Floats) -> tuple[Floats, Floats]:
    A, b = stack
    return A * (A @ w - b)[:, None], b


@pytest.mark.parametrize("engine", [LOCAL, "virtual"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_two_workers_say_of_a_part_is_compared(engine: str, kind: Kind) -> None:
    rng = np.random.default_rng(0)
    A, b, w = rng.standard_normal((120, 5)), rng.standard_normal(120), rng.standard_normal(5)
    inner = LocalEngine(6) if engine == "local" else VirtualEngine(6)
    with kofn.connect(Faults().corrupt(2, kind, seed=5).on(inner)) as cluster:
        parts = cluster.parts((A, b), kofn.FractionalRepetition(c=2), parts=12)
        want = gradient((A, b), w)

        def gone() -> bool:
            found = parts.sum(gradient, w, verify=1.0)
            near = float(np.sqrt(np.finfo(float).eps)) * np.abs(want).max() * 12
            assert found.exact
            assert np.abs(found.value - want).max() <= near
            assert set(found.report.wrong) <= {2}
            return 2 not in cluster.workers

        for _ in range(5):
            gone()
        if kind != "bit":  # most bits are too small to matter
            until(gone, "its loss")  # where it is late, a sum does not hear of it
            assert len([record for record in cluster.log if record.kind == "wrong"]) == 2


def test_vectorised_sums_of_several_arrays_are_compared_too() -> None:
    rng = np.random.default_rng(0)
    A, b, w = rng.standard_normal((60, 5)), rng.standard_normal(60), rng.standard_normal(5)
    with kofn.connect(Faults().corrupt(1, "sign").on(VirtualEngine(4))) as cluster:
        parts = cluster.parts((A, b), kofn.FractionalRepetition(c=2), parts=60)
        found = parts.sum(many, w, vectorised=True, verify=0.5)
        assert found.report.wrong == (1,)
        assert np.allclose(found.value[0], gradient((A, b), w))
        assert np.allclose(found.value[1], b.sum())


def test_right_sums_pass_also_when_workers_are_lost() -> None:
    rng = np.random.default_rng(0)
    A, b, w = rng.standard_normal((120, 5)), rng.standard_normal(120), rng.standard_normal(5)
    faults = Faults().lose(0, round=2).lose(4, round=3)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        parts = cluster.parts((A, b), kofn.FractionalRepetition(c=2))
        for _ in range(6):
            found = parts.sum(gradient, w, verify=0.5)
            assert found.exact
            assert found.report.wrong == ()
            assert np.allclose(found.value, gradient((A, b), w))


@pytest.mark.parametrize("copies", [2, 3])
def test_what_a_silent_worker_should_say_too_is_found_here(copies: int) -> None:
    """Its copies are enough for the sum, so they are enough for one that is verified."""
    rng = np.random.default_rng(0)
    A, b, w = rng.standard_normal((120, 5)), rng.standard_normal(120), rng.standard_normal(5)
    silent = dict.fromkeys((3, 4, 5)[: copies - 1], 1e9)
    engine = VirtualEngine(6, delays=PerUnit(1e-3, silent))
    with kofn.connect(engine, limit=100.0) as cluster:
        parts = cluster.parts((A, b), kofn.FractionalRepetition(c=copies), parts=12)
        began = engine.now()
        found = parts.sum(gradient, w, verify=1.0)
        assert engine.now() - began < 100  # nobody waited until the limit
        assert found.exact
        assert found.report.wrong == ()
        assert np.allclose(found.value, gradient((A, b), w))


def test_who_is_wrong_is_caught_also_where_the_other_is_late() -> None:
    rng = np.random.default_rng(0)
    A, b, w = rng.standard_normal((120, 5)), rng.standard_normal(120), rng.standard_normal(5)
    engine = VirtualEngine(2, delays=PerUnit(1e-3, {0: 1e3}))
    with kofn.connect(Faults().corrupt(1, "sign").on(engine)) as cluster:
        parts = cluster.parts((A, b), kofn.FractionalRepetition(c=2), parts=12)
        found = parts.sum(gradient, w, verify=1.0)
        assert [r.time < 1.0 for r in cluster.log if r.kind == "wrong"] == [True]
        assert found.report.wrong == (1,)
        assert np.allclose(found.value, gradient((A, b), w))


def test_sums_with_values_that_nobody_else_says_cannot_be_compared() -> None:
    with kofn.connect("virtual", workers=6) as cluster:
        parts = cluster.parts(np.eye(6), kofn.Uncoded())
        with pytest.raises(kofn.BadInput, match="6 of 6 values come from one worker alone"):
            parts.sum(lambda part, x: part.sum(), verify=0.1)
        # Some rows of such a code are there twice, by chance.
        with pytest.raises(kofn.BadInput, match="values come from one worker alone"):
            parts.sum(lambda part, x: part.sum(), code=kofn.LT(), verify=0.1)
        with pytest.raises(kofn.BadInput, match="fraction of the parts"):
            parts.sum(lambda part, x: part.sum(), verify=2.0)


def test_a_loss_in_a_transposed_product_of_uneven_rows_costs_no_digits() -> None:
    """What stands in for a worker is measured against operands as they meet the scaled rows."""
    rng = np.random.default_rng(0)
    A = (rng.standard_normal((90, 8)) * np.logspace(-6, 6, 90)[:, None]).astype(np.float32)
    z = rng.standard_normal(90).astype(np.float32)
    with kofn.connect(Faults().lose(1, round=1).on(VirtualEngine(5))) as cluster:
        X = cluster.encode(A, k=3)
        size = np.linalg.norm(A.astype(float)) * np.linalg.norm(z.astype(float))
        off = np.linalg.norm(X.T @ z - A.T.astype(float) @ z.astype(float))
        assert X.report.lost == (1,)
        assert X.report.error_bound is not None
        assert off <= X.report.error_bound * size
        assert X.report.error_bound < 1e-4


@pytest.mark.parametrize(("verify", "margin"), MODES)
def test_products_without_columns_or_with_zeros_are_checked_too(verify: Any, margin: int) -> None:
    with kofn.connect(VirtualEngine(5)) as cluster:
        X = cluster.encode(np.zeros((7, 3)), k=3, verify=verify, margin=margin)
        assert (X @ np.ones((3, 0))).shape == (7, 0)
        assert not (X @ np.zeros(3)).any()
        assert not (X.T @ np.ones(7)).any()
        assert (X.T @ np.ones((7, 0))).shape == (3, 0)


# The mathematics.


def test_a_syndrome_is_zero_for_right_replies_and_points_at_the_wrong_one() -> None:
    for seed in seeds(30):
        rng = np.random.default_rng(seed)
        k, r = int(rng.integers(1, 9)), int(rng.integers(2, 5))
        G = MDSCode(k + r, k).generator
        B = rng.standard_normal((k, 50))
        Y, noise = G @ B, 40 * np.finfo(float).eps * np.linalg.norm(B, axis=0)
        checks = Syndrome(G)
        assert checks.judge(Y, noise) is None
        j, size = int(rng.integers(k + r)), 10.0 ** rng.uniform(-8, 300)
        Y[j, 7] += size * np.linalg.norm(G[j])
        verdict = checks.judge(Y, noise)
        assert verdict is not None
        if size > 2 * np.sqrt(k + r) * noise[7] / checks.sight:
            assert verdict.guilty == (j,)
            assert not len(verdict.doubtful)


@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_copies_leave_the_original_alone(kind: Kind) -> None:
    rng = np.random.default_rng(0)
    value, other = rng.standard_normal(9), rng.standard_normal(4)
    before = value.copy()
    wrong = corrupted(value, kind, rng, other)
    assert wrong.shape == value.shape
    assert wrong.dtype == value.dtype
    assert (wrong != before).any()
    assert (value == before).all()

    def changed(pair: Any) -> int:
        return sum((a != b).any() for a, b in zip(*pair, strict=True))

    pair = corrupted((value, value), kind, rng, (other, other))
    assert changed((pair, (before, before))) == 1
    assert corrupted("text", kind, rng) == "text"
