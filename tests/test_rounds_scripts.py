"""The real master on the virtual engine, under random scripts of losses, freezes and joins.

Every product is right within the bound that it reports, or ends in an error that is true: too few
workers only where fewer than k hold shares, a stall only where fewer than k of them answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from support import seeds

import kofn
from kofn.arrays.baselines import Replicated
from kofn.arrays.grid import encode_grid
from kofn.arrays.plan import Plan
from kofn.codes.mds import MDSCode
from kofn.delays import Delays, Exponential, PerUnit
from kofn.engines.base import Wrapped
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Lost, ProductReport
from kofn.rounds import Layout

SCRIPTS = seeds(50)  # of each kind of product
LIMIT = 40.0  # virtual seconds; far more than any patience in these scripts


@dataclass(frozen=True)
class Act:
    """What happens when: to a worker picked from those it can happen to."""

    time: float
    what: Literal["lose", "freeze", "thaw", "join", "leave"]
    pick: int = 0
    seconds: float = 0.0  # until one that leaves is said to be gone


class Acting(Wrapped):
    """A virtual engine that plays acts. What a frozen worker says is heard when it thaws."""

    name = "acting"

    def __init__(self, engine: VirtualEngine, acts: list[Act]) -> None:
        super().__init__(engine)
        self.acts = sorted(acts, key=lambda act: act.time)
        self.frozen: dict[int, list[Event]] = {}

    def events(self, timeout: float) -> list[Event]:
        limit = self.now() + max(0.0, timeout)
        while True:
            due = self.acts[0].time if self.acts else float("inf")
            heard = self._heard(self.engine.events(min(limit, due) - self.now()))
            if not heard and self.now() >= due:
                heard = self._play(self.acts.pop(0))
            elif self.now() >= limit or heard:
                return heard
            if heard:
                return heard

    def _heard(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if type(event) is Lost:
                self.frozen.pop(event.worker, None)
            held = self.frozen.get(getattr(event, "worker", -1))
            (found if held is None else held).append(event)
        return found

    def _play(self, act: Act) -> list[Event]:
        frozen = sorted(self.frozen)
        there = frozen if act.what == "thaw" else [w for w in self.workers if w not in frozen]
        if act.what == "lose":
            there = list(self.workers)
        if act.what == "join":
            self.join()
        elif there:
            worker = there[act.pick % len(there)]
            if act.what == "lose":
                self.lose(worker)
            elif act.what == "freeze":
                self.frozen[worker] = []
            elif act.what == "leave":
                self.announce(worker, act.seconds)
            else:
                return self.frozen.pop(worker)
        return []


def acts(rng: np.random.Generator, until: float) -> list[Act]:
    kinds: list[Any] = ["lose", "freeze", "thaw", "join"]
    weights = rng.dirichlet([1, 1.5, 0.7, 1])
    return [
        Act(float(time), kinds[rng.choice(4, p=weights)], int(rng.integers(1 << 30)))
        for time in rng.uniform(0, until, int(rng.integers(1, 16)))
    ]


def notices(rng: np.random.Generator, until: float) -> list[Act]:
    """Some come true, some do not, and some are taken back."""
    ahead = [0.0, 0.01, 0.05, 0.2, 2.0, float("inf")]
    return [
        Act(float(time), "leave", int(rng.integers(1 << 30)), ahead[int(rng.integers(6))])
        for time in rng.uniform(0, until, int(rng.integers(1, 16)))
    ]


def delays(rng: np.random.Generator) -> Delays:
    slow = {int(w): float(rng.choice([1.5, 5, 30])) for w in rng.integers(0, 12, 2)}
    return [PerUnit(1e-3), PerUnit(1e-3, slow), Exponential(5e-4, 0.02)][int(rng.integers(3))]


Product = Callable[[], tuple[NDArray[Any], NDArray[Any], float]]  # result, exact, size of terms

KINDS = [
    *["X @ w", "X @ B", "X.T @ z", "X.T @ Z", "columns @ w", "columns.T @ z", "grid", "grid.T"],
    *["copies @ w", "copies.T @ z", "backups @ w", "backups.T @ z"],
]


def prepared(
    kind: str, cluster: kofn.Cluster, rng: np.random.Generator, n: int, k: int
) -> tuple[Any, Product]:
    """A coded matrix, and one product with it."""
    A = rng.standard_normal((int(rng.integers(1, 160)), int(rng.integers(1, 8))))
    if rng.random() < 0.2:
        A = A.astype(np.float32)
    options: dict[str, Any] = {"k": k, "n": n, "margin": min(n - k, int(rng.choice([0, 0, 0, 1])))}
    if kind.startswith("grid"):
        X: Any = encode_grid(cluster, A, (2, 2), n=max(n, 6))
    elif kind.startswith(("copies", "backups")):
        X = Replicated(cluster, A, min(n, 2), n=n, backup=2.0 if kind[0] == "b" else None)
    else:
        axis: Any = 1 if kind.startswith("columns") else 0
        X = cluster.encode(A, axis=axis, **options)
    flipped = ".T" in kind
    Y, target = (X.T, A.T) if flipped else (X, A)
    width = (int(rng.integers(1, 5)),) if kind[-1] in "BZ" else ()

    def once() -> tuple[NDArray[Any], NDArray[Any], float]:
        w = rng.standard_normal((target.shape[1], *width)).astype(A.dtype)
        result = Y @ w
        wide = target.astype(np.longdouble)
        size = float(np.linalg.norm(A.astype(float)) * np.linalg.norm(w.astype(float)))
        return result, wide @ w.astype(np.longdouble), size

    return Y, once


def enough(X: Any, workers: Iterable[int], k: int) -> bool:
    """Whether these are enough for a product."""
    if not isinstance(X, Replicated):
        return len(list(workers)) >= k
    held = {block for w in workers for block in X.slots[X._holders.shares[w]]}
    return len(held) == X.blocks


def play(kind: str, seed: int, announced: bool = False) -> dict[str, int]:
    """One script; how its products ended."""
    rng = np.random.default_rng((seed, KINDS.index(kind)))
    if rng.random() < 0.3:
        n, k = 20, 10
        workers = k + int(rng.integers(0, 5))
    else:
        n = int(rng.integers(1, 13))
        k = int(rng.integers(1, n + 1))
        workers = int(rng.integers(k, n + 1))
    if kind.startswith("grid"):
        n, k, workers = max(n, 6), 6, max(workers, 6)
    engine = Acting(VirtualEngine(workers, delays=delays(rng), seed=seed), [])
    ended = {"right": 0, "too few": 0, "stalled": 0, "inaccurate": 0}
    with kofn.connect(engine, limit=LIMIT) as cluster:
        Y, once = prepared(kind, cluster, rng, n, k)
        X: Any = Y if hasattr(Y, "_holders") else Y.T
        until = float(rng.choice([0.1, 0.5]))
        script = [*acts(rng, until), *(notices(rng, until) if announced else ())]
        engine.acts = sorted(script, key=lambda act: act.time)
        for _ in range(6):
            try:
                result, exact, size = once()
            except kofn.TooFewWorkers:
                ended["too few"] += 1
                ready = X._holders.ready().keys()
                assert not enough(X, ready, k), f"{len(ready)} hold shares, {k} are enough"
            except kofn.Stalled:
                ended["stalled"] += 1
                awake = X._holders.ready().keys() - engine.frozen.keys()
                assert not enough(X, awake, k), f"{len(awake)} answer, {k} are enough"
            except kofn.Inaccurate:
                ended["inaccurate"] += 1
                assert X.report.error_bound > X.tolerance
            else:
                ended["right"] += 1
                bound = Y.report.error_bound
                assert float(np.linalg.norm(result - exact)) <= bound * size
    return ended


@pytest.mark.parametrize("announced", [False, True], ids=["", "notices"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_within_its_bound_or_an_error_that_is_true(kind: str, announced: bool) -> None:
    total = {"right": 0, "too few": 0, "stalled": 0, "inaccurate": 0}
    for seed in SCRIPTS:
        try:
            for how, times in play(kind, seed, announced).items():
                total[how] += times
        except Exception as error:
            raise AssertionError(f"script {seed} of {kind!r}: {error}") from error
    assert total["right"] > 2 * len(SCRIPTS), total
    print(kind, total)


# One by one.


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
