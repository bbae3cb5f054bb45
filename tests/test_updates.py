"""Updates: all of one or none, whatever strikes; shares that are rebuilt; who is waited for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import driver_of

import kofn
import kofn.model
from kofn.arrays import fetching, work
from kofn.arrays.grid import encode_grid
from kofn.delays import PerUnit
from kofn.engines.base import Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Stored
from kofn.testing import Faults

Floats = NDArray[np.float64]
# Where a strike may come: in rounds.driver interrupts wait until its books are in order.
MASTER = tuple(str(Path(kofn.__file__).parent / name) for name in ("arrays", "rounds/holders"))


class Struck(KeyboardInterrupt):
    """What the tests raise in the middle of things."""


@contextmanager
def struck_at(line: int) -> Iterator[list[int]]:
    """Raise Struck before the `line`-th line that the master runs; count them in what is given."""
    count = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(MASTER) or file == work.__file__:  # that runs on workers
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                raise Struck
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


A = np.random.default_rng(0).standard_normal((9, 5))
U, V = np.random.default_rng(1).standard_normal((9, 2)), np.ones((5, 2))
CHANGE = kofn.low_rank(U, V)


def rows(cluster: kofn.Cluster) -> kofn.CodedMatrix:
    return cluster.encode(A, k=2)


def grid(cluster: kofn.Cluster) -> kofn.CodedMatrix:
    return encode_grid(cluster, A, (1, 2))  # any 2 of 4 bring it back


def add(X: kofn.CodedMatrix) -> None:
    X += CHANGE


def move(X: kofn.CodedMatrix) -> None:
    X.move(CHANGE, 0.5)


def state(X: kofn.CodedMatrix, states: list[Floats]) -> int:
    """Which of these matrices X is, by all that can be asked of it."""
    forward, backward, whole = X @ np.eye(5), (X.T @ np.eye(9)).T, X.toarray()
    near = [i for i, M in enumerate(states) if np.allclose(forward, M, rtol=0, atol=1e-12)]
    assert len(near) == 1, "half updated"
    np.testing.assert_allclose(backward, states[near[0]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(whole, states[near[0]], rtol=0, atol=1e-12)
    return near[0]


@pytest.mark.slow
@pytest.mark.parametrize("make", [rows, grid])
@pytest.mark.parametrize("update", [add, move])
def test_an_update_that_is_struck_at_any_line_is_all_there_or_not_begun(
    make: Callable[[kofn.Cluster], kofn.CodedMatrix], update: Callable[[kofn.CodedMatrix], None]
) -> None:
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    found, line, done = [], 0, False
    step = 1 if (make, update) == (rows, add) else 3  # seconds
    while not done:
        line += step
        with kofn.connect("virtual", workers=4) as cluster:
            X = make(cluster)
            try:
                with struck_at(line) as count:
                    update(X)
                done = True
            except Struck:
                # No interrupt comes between a lock and what gives it back; these strikes do.
                while driver_of(cluster).lock._before:
                    driver_of(cluster).lock.release()
            before = X.updates
            found.append(state(X, [A, A + U @ V.T]))
            assert found[-1] == before == X.updates  # what it says it is
            # Those that were told first and those that were told last agree.
            for worker in pairs[line % 6] if make is rows else (line % 4,):
                cluster.lose(worker)
                cluster.join()
                assert state(X, [A, A + U @ V.T]) == found[-1]
            update(X)  # and it goes on from there
            once = [A, A + U @ V.T, A + 2 * U @ V.T, A + 2.5 * U @ V.T]
            assert state(X, once) == (2 if update is add and found[-1] else 1 + 2 * found[-1])
    assert count[0] < line
    assert found == sorted(found)  # one moment at which it is decided
    assert set(found) == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("ask", [lambda X: X @ np.eye(5), lambda X: X.toarray()])
def test_what_is_struck_while_shares_are_rebuilt_leaves_the_matrix_as_it_was(
    ask: Callable[[kofn.CodedMatrix], object],
) -> None:
    line, done = 0, False
    while not done:
        line += 7
        with kofn.connect("virtual", workers=4) as cluster:
            X = rows(cluster)
            move(X)
            cluster.lose(line % 4)
            cluster.join()
            try:
                with struck_at(line):
                    ask(X)
                done = True
            except Struck:
                while driver_of(cluster).lock._before:
                    driver_of(cluster).lock.release()
            assert state(X, [A, A + U @ V.T]) == 1
            assert len(X.shares) == 4
            cluster.lose((line + 1) % 4)
            cluster.lose((line + 2) % 4)
            move(X)
            assert state(X, [A, A + U @ V.T, A + 2.5 * U @ V.T]) == 2
    assert line > 200


@pytest.mark.skipif(sys.gettrace() is not None, reason="a traced signal may leave a lock held")
@pytest.mark.engine
@pytest.mark.parametrize("update", [add, move])
def test_updates_under_a_timer_that_strikes_after_10_microseconds_to_1_millisecond(
    update: Callable[[kofn.CodedMatrix], None],
) -> None:
    def strike(*_: Any) -> None:
        raise Struck

    old = signal.signal(signal.SIGALRM, strike)
    try:
        with kofn.connect("local", workers=4) as cluster:
            for seconds in np.geomspace(1e-5, 1e-3, 60):
                X = rows(cluster)
                X @ np.ones(5)
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, float(seconds))
                        update(X)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0.0)
                except Struck:
                    pass
                assert state(X, [A, A + U @ V.T]) == X.updates
    finally:
        signal.signal(signal.SIGALRM, old)


def test_an_update_that_fails_on_a_worker_leaves_it_without_a_share_until_it_is_rebuilt() -> None:
    class Once(VirtualEngine):
        """Its worker 2 is out of memory at one update, after some of its rows have changed."""

        spoil = True

        def put(self, worker: int, key: str, value: Any) -> None:
            share = [v for k, v in self._workers[worker].kept.items() if k.startswith("share")]
            if worker == 2 and share and self.spoil:
                type(self).spoil = False
                broken = kofn.model.Update(value.of, _half, value.args)
                return super().put(worker, key, broken)
            return super().put(worker, key, value)

    with kofn.connect(Once(4)) as cluster:
        X = rows(cluster)
        X += CHANGE
        assert not Once.spoil
        assert state(X, [A, A + U @ V.T]) == X.updates == 1
        X += CHANGE
        assert state(X, [A, A + U @ V.T, A + 2 * U @ V.T]) == X.updates == 2
        assert sorted(X.shares) == [0, 1, 2, 3]


def _half(share: Floats, *args: Any) -> Floats:
    share = share.copy()
    share[0] += 1e6
    raise MemoryError


def test_the_transpose_takes_updates_under_its_own_name() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        X = rows(cluster)
        X.T += kofn.low_rank(V, U)
        assert state(X, [A, A + U @ V.T]) == 1
        X.T += (U @ V.T).T
        assert state(X, [A, A + 2 * U @ V.T]) == 1
        Y = cluster.encode(A, k=2, axis=1)
        Y.T += kofn.low_rank(V, U)
        np.testing.assert_allclose(Y @ np.eye(5), A + U @ V.T, rtol=0, atol=1e-12)
        anything: Any = X
        with pytest.raises(kofn.BadInput, match=r"X\.T is X seen from its other side"):
            anything.T = A.T
        masked = np.ma.masked_array(A.T, A.T > 0)
        with pytest.raises(kofn.BadInput, match="masked"):
            X.T += masked
        assert X.updates == 2


# Who is waited for.


def test_a_silent_worker_keeps_neither_toarray_nor_a_rebuilt_share_waiting() -> None:
    engine = VirtualEngine(4, delays=PerUnit(1e-6, slow={1: 1e15}))
    with kofn.connect(engine) as cluster:
        X = rows(cluster)
        np.testing.assert_allclose(X.toarray(), A, rtol=0, atol=1e-12)
        X += CHANGE
        cluster.lose(0)
        cluster.join()
        for _ in range(4):
            np.testing.assert_allclose(X @ np.eye(5), A + U @ V.T, rtol=0, atol=1e-12)
            np.testing.assert_allclose(X.toarray(), A + U @ V.T, rtol=0, atol=1e-12)
        assert 4 in X.shares
        assert cluster.engine.now() < 10.0


@pytest.mark.engine
def test_a_stopped_worker_and_one_that_joins_do_not_stall_an_updated_matrix() -> None:
    engine = LocalEngine(4)
    with kofn.connect(engine) as cluster:
        X = rows(cluster)
        X += CHANGE
        X @ np.ones(5)
        pid = engine.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        cluster.lose(0)
        cluster.join()
        for _ in range(3):
            np.testing.assert_allclose(X @ np.eye(5), A + U @ V.T, rtol=0, atol=1e-12)
        np.testing.assert_allclose(X.toarray(), A + U @ V.T, rtol=0, atol=1e-12)
        os.kill(pid, signal.SIGCONT)


def test_a_worker_lost_while_rows_are_fetched_is_not_asked_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "FETCH", 2 * 5 * 8)  # two rows at a time
    for round in (1, 2, 3):
        engine = Faults().lose(worker=1, round=round).on(VirtualEngine(4))
        with kofn.connect(engine) as cluster:
            np.testing.assert_allclose(rows(cluster).toarray(), A, rtol=0, atol=1e-12)
        faults = Faults().lose(worker=1, round=round).lose(worker=2, round=round)
        with kofn.connect(faults.on(VirtualEngine(5))) as cluster:
            X = rows(cluster)
            X += CHANGE
            cluster.lose(0)
            cluster.join()
            np.testing.assert_allclose(X @ np.eye(5), A + U @ V.T, rtol=0, atol=1e-12)


def test_toarray_waits_for_joiners_as_products_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH", 2 * 5 * 8)
    engine = Faults().lose(worker=1, round=2).join(round=2).on(VirtualEngine(2))
    with kofn.connect(engine, wait=60.0) as cluster:
        X = rows(cluster)
        np.testing.assert_allclose(X.toarray(), A, rtol=0, atol=1e-12)
        assert sorted(X.shares) == [0, 2]


class Withheld(Wrapped):
    """An engine some of whose workers say that they have stored something later, or never."""

    name = "withheld"

    def __init__(self, engine: VirtualEngine, until: dict[int, float]) -> None:
        super().__init__(engine)
        self.until: dict[int, float] = {}
        self.due, self._held = until, list[Event]()

    def events(self, timeout: float) -> list[Event]:
        events, self._held = self._held + self.engine.events(timeout), []
        found: list[Event] = []
        for event in events:
            late = type(event) is Stored and self.now() < self.until.get(event.worker, 0.0)
            (self._held if late else found).append(event)
        return found


def test_a_product_waits_for_k_shares_and_not_for_all() -> None:
    engine = Withheld(VirtualEngine(4), {1: 5.0, 2: 10.0, 3: float("inf")})
    with kofn.connect(engine) as cluster:
        X = rows(cluster)
        engine.until = engine.due
        X += CHANGE  # there with workers 0 and 1
        cluster.lose(0)
        np.testing.assert_allclose(X @ np.eye(5), A + U @ V.T, rtol=0, atol=1e-12)
        assert 10.0 <= engine.now() < 60.0
        assert sorted(X.shares) == [1, 2]


# What rebuilt shares are off by.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "k", "left"), [(6, 3, 5), (8, 4, 4), (12, 6, 7)])
def test_the_bound_holds_after_hundreds_of_shares_rebuilt_from_rebuilt_ones(
    n: int, k: int, left: int, dtype: Any
) -> None:
    rng = np.random.default_rng(n)
    M = rng.standard_normal((60, 20)).astype(dtype)
    with kofn.connect("virtual", workers=n) as cluster:
        X = cluster.encode(M, k=k, tolerance=1.0)
        now = M.astype(np.float64)
        for step in range(120):
            if step % 40 == 0:
                u, v = (rng.standard_normal((size, 1)).astype(dtype) for size in (60, 20))
                X += kofn.low_rank(u, v)
                now = now + u.astype(np.float64) @ v.T
            for worker in rng.choice(cluster.workers, n - left, replace=False).tolist():
                cluster.lose(worker)
                cluster.join()
            W = rng.standard_normal((20, 5)).astype(dtype)
            assert place_by_place(X @ W, now, W, k) <= bound(X)
            Z = rng.standard_normal((60, 5)).astype(dtype)
            off = np.linalg.norm(X.T @ Z - now.T @ Z.astype(np.float64))
            assert off <= bound(X) * np.linalg.norm(now) * np.linalg.norm(Z)
        assert bound(X) < 1e6 * np.finfo(dtype).eps


def place_by_place(y: NDArray[Any], A: Floats, W: NDArray[Any], k: int) -> float:
    """The largest relative error of the k rows of a place."""
    off = (y - A @ W.astype(np.float64)).reshape(k, -1, W.shape[1])
    size = np.linalg.norm(A.reshape(k, -1, A.shape[1]), axis=(0, 2)) * np.linalg.norm(W)
    return float((np.linalg.norm(off, axis=(0, 2)) / size).max())


def bound(X: kofn.CodedMatrix) -> float:
    assert X.report.error_bound is not None
    return X.report.error_bound


@pytest.mark.parametrize("make", ["rows", "grid"])
def test_the_bound_holds_with_a_velocity_that_is_rebuilt(make: str) -> None:
    rng = np.random.default_rng(5)
    M: Floats = rng.standard_normal((41, 11))
    with kofn.connect("virtual", workers=7) as cluster:
        X = cluster.encode(M, k=3) if make == "rows" else encode_grid(cluster, M, (2, 2))
        now, velocity = M.copy(), np.zeros_like(M)
        for step in range(60):
            u, v = rng.standard_normal((41, 1)), rng.standard_normal((11, 1))
            X.move(kofn.low_rank(u, v) if step % 3 else u @ v.T, 0.9)
            velocity = 0.9 * velocity + u @ v.T
            now = now + velocity
            cluster.lose(int(rng.choice(cluster.workers)))
            cluster.join()
            W, Z = rng.standard_normal((11, 3)), rng.standard_normal((41, 3))
            off = np.linalg.norm(X @ W - now @ W)
            assert off <= bound(X) * np.linalg.norm(now) * np.linalg.norm(W)
            off = np.linalg.norm(X.T @ Z - now.T @ Z)
            assert off <= bound(X) * np.linalg.norm(now) * np.linalg.norm(Z)
        assert X._drift.off  # shares were rebuilt, and looked at
        known = X._drift.blocks
        assert known is not None
        np.testing.assert_allclose(X.toarray(), now, rtol=0, atol=1e-9)
        exact = fetching.change_seen(X, now, None)
        assert exact is not None
        assert np.allclose(known, exact, rtol=0, atol=1e-9)
