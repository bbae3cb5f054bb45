"""Sums of many small terms over rateless codes, on real processes and in simulated time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from bodies import gaussian, gaussians
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import examples, until

import kofn
from kofn.codes.rateless import LT, DenseMDS, RandomGroups
from kofn.delays import Change, Exponential, Pareto, Script
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput, OutOfSymbols, WorkerError
from kofn.testing import Faults

Floats = NDArray[np.float64]
CODES: tuple[Any, ...] = (
    LT(),
    LT(r=2),
    LT(r=3, systematic=True),
    LT(r=2, decoder="peeling", neighbours="uniform"),
    LT(r=20),
    RandomGroups(d=7),
    kofn.Raptor(),
    kofn.Raptor(r=2, systematic=True, seed=3),
    DenseMDS(k=3),
    kofn.Uncoded(),
)


@pytest.mark.engine
@pytest.mark.parametrize("code", CODES, ids=repr)
def test_a_batch_of_inputs_with_every_code_one_by_one_and_stacked(
    cluster: kofn.Cluster, code: Any
) -> None:
    rng = np.random.default_rng(0)
    X, x = rng.standard_normal((180, 3)), rng.standard_normal((5, 3))
    exact = gaussians(X, x).sum(axis=0)
    parts = cluster.parts(X, code, parts=180)
    one, stacked = parts.sum(gaussian, x), parts.sum(gaussians, x, vectorised=True)
    for found in (one, stacked):
        assert found.exact
        assert found.value.shape == (5,)
        assert found.covered == 1.0
        # Weights give the all-ones row to 1e-11; eta says how much rounding grows.
        assert found.report.eta is not None
        bound = 64 * np.finfo(float).eps * max(1.0, found.report.eta)
        assert np.abs(found.value - exact).max() <= bound * exact.max()


@pytest.mark.engine
def test_ten_thousand_cheap_terms_cost_few_messages(cluster: kofn.Cluster) -> None:
    rng = np.random.default_rng(1)
    X, x = rng.standard_normal((10_000, 2)), np.zeros((1, 2))
    parts = cluster.parts(X, RandomGroups(d=10), parts=10_000)
    parts.sum(gaussians, x, vectorised=True)  # stacks are made at the first
    before = len(cluster.log)
    found = parts.sum(gaussians, x, vectorised=True)
    messages = sum(record.kind in ("piece", "reply") for record in list(cluster.log)[before:])
    assert messages <= 120
    assert np.allclose(found.value, gaussians(X, x).sum(axis=0), rtol=1e-12)


@pytest.mark.engine
def test_parts_of_a_tuple_and_of_a_list_are_stacked_alike(cluster: kofn.Cluster) -> None:
    rng = np.random.default_rng(2)
    X, a = rng.standard_normal((90, 3)), rng.standard_normal(90)
    x = np.ones((2, 3))

    def weighted(parts: tuple[Floats, Floats], x: Floats) -> Floats:
        rows, alpha = parts
        return np.asarray(alpha[:, None] * gaussians(rows, x))

    exact = a @ gaussians(X, x)
    found = cluster.parts((X, a), LT(r=2), parts=90).sum(weighted, x, vectorised=True)
    assert np.allclose(found.value, exact, rtol=0, atol=1e-12)
    listed = cluster.parts([*X], LT(r=2)).sum(gaussians, x, vectorised=True)
    assert np.allclose(listed.value, gaussians(X, x).sum(axis=0), rtol=1e-12)
    objects = cluster.parts([{"v": float(v)} for v in a], RandomGroups(5))
    total = objects.sum(lambda parts, x: np.array([p["v"] for p in parts]), vectorised=True)
    assert float(total.value) == pytest.approx(float(a.sum()), abs=1e-12)

    def of_sparse(parts: tuple[list[Any], Floats], x: Floats) -> Floats:
        rows = np.vstack([row.toarray() for row in parts[0]])  # no arrays: a list
        return weighted((rows, parts[1]), x)

    sparse = cluster.parts((scipy.sparse.csr_array(X), a), LT(r=2), parts=90)
    found = sparse.sum(of_sparse, x, vectorised=True)
    assert np.allclose(found.value, exact, rtol=0, atol=1e-12)


@pytest.mark.engine
@pytest.mark.claim("rateless: Figure 1")
@pytest.mark.parametrize("code", [LT(r=2), RandomGroups(d=8)], ids=repr)
def test_the_sum_comes_without_the_killed_and_the_slow(code: Any) -> None:
    rng = np.random.default_rng(3)
    X, x = rng.standard_normal((200, 4)), rng.standard_normal((3, 4))
    faults = Faults().slow(0, by=1e4, round=1).lose(0, round=1)
    faults = faults.slow(1, by=1e4, round=1).lose(1, round=1).slow(2, by=1e4)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        parts = cluster.parts(X, code, parts=200)
        for _ in range(3):
            found = parts.sum(gaussians, x, vectorised=True)
            assert found.exact
            assert np.allclose(found.value, gaussians(X, x).sum(axis=0), rtol=1e-10)
        until(lambda: cluster.workers == (2, 3, 4, 5), "the news of both losses")


def test_pareto_waits_have_the_tail_they_say() -> None:
    rng = np.random.default_rng(0)
    model = Pareto(unit=0.5, shape=1.0, scale=2.0)
    waits = np.array([model.timing(rng, 0, 1, 4.0) for _ in range(4000)])
    assert np.all(waits[:, 1] == 2.0)
    assert waits[:, 0].min() >= 2.0
    assert abs(float((waits[:, 0] > 8.0).mean()) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)
    with pytest.raises(BadInput, match="shape > 0"):
        Pareto(shape=0.0)


# Bad input.


@pytest.mark.engine
def test_no_terms_are_refused(cluster: kofn.Cluster) -> None:
    with pytest.raises(BadInput, match="at least one part"):
        cluster.parts([], LT())


@pytest.mark.engine
def test_groups_larger_than_the_sum_are_refused(cluster: kofn.Cluster) -> None:
    with pytest.raises(BadInput, match="got r=11 and 10 terms"):
        cluster.parts([*range(10)], LT(r=11))


@pytest.mark.engine
def test_terms_of_different_shapes_are_refused(cluster: kofn.Cluster) -> None:
    ragged = cluster.parts([np.zeros(3), np.zeros(3), np.zeros(4), np.zeros(3)], RandomGroups(2))
    with pytest.raises(BadInput, match=r"part 0 has \(3,\), part 2 has \(4,\)"):
        ragged.sum(lambda part, x: part, vectorised=True)
    with pytest.raises(WorkerError, match="same shapes for every part"):
        ragged.sum(lambda part, x: part)


@pytest.mark.engine
def test_a_function_of_the_wrong_arity_is_refused_before_it_is_sent(cluster: kofn.Cluster) -> None:
    parts = cluster.parts([*range(8)], RandomGroups(2))
    before = len(cluster.log)
    wrongs: list[Any] = [lambda part: part, lambda a, b, c: a, lambda *, x: x]
    for wrong in wrongs:
        with pytest.raises(BadInput, match=r"called as fn\(part, x\)"):
            parts.sum(wrong)
    assert len(cluster.log) == before
    found = parts.sum(partial(lambda scale, part, x: scale * part, 2.0))
    assert float(found.value) == 56.0


@pytest.mark.engine
def test_a_stack_must_give_a_row_for_each_part(cluster: kofn.Cluster) -> None:
    parts = cluster.parts(np.ones((12, 2)), RandomGroups(3), parts=12)
    with pytest.raises(WorkerError, match="must return a row for each"):
        parts.sum(lambda rows, x: rows.sum(), vectorised=True)


@pytest.mark.engine
def test_running_out_of_symbols_says_how_many_are_enough(cluster: kofn.Cluster) -> None:
    few = LT(decoder="peeling", symbols=200)
    parts = cluster.parts([*range(200)], few)
    with pytest.raises(OutOfSymbols) as caught:
        parts.sum(lambda part, x: float(part))
    assert caught.value.held == 200
    assert caught.value.need == 369
    assert "Use symbols=369 (169 more)" in str(caught.value)


@examples(25)
@given(st.data())
def test_right_under_any_losses_joins_and_delays(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    code = data.draw(st.sampled_from(CODES[:6]))
    times = st.floats(0.0, 1.0)
    # Slot 0 stays; a code's symbols on one slot alone are not enough, so the lost come back.
    lost = data.draw(st.lists(st.tuples(times, st.integers(1, n - 1)), max_size=n, unique_by=_who))
    changes = [Change(t, worker) for t, worker in lost]
    changes += [Change(1.0 + t, None) for t, _ in lost]
    delays = data.draw(
        st.sampled_from([Exponential(unit=0.01, mean=0.3), Pareto(unit=0.01, scale=0.1)])
    )
    seed = data.draw(st.integers(0, 100))
    X = np.random.default_rng(seed).standard_normal((60, 2))
    engine = VirtualEngine(n, delays=delays, membership=Script(tuple(changes)), seed=seed)
    with kofn.connect(engine, wait=1e6, limit=1e9) as cluster:
        parts = cluster.parts(X, code, parts=60, n=n)
        for vectorised, fn in ((True, gaussians), (False, gaussian)):
            found = parts.sum(fn, np.zeros((1, 2)), vectorised=vectorised)
            assert found.exact
            exact = gaussians(X, np.zeros((1, 2))).sum(axis=0)
            eta = max(1.0, found.report.eta or 1.0)
            assert np.abs(found.value - exact).max() <= 64 * np.finfo(float).eps * eta * exact.max()


def _who(loss: tuple[float, int]) -> int:
    return loss[1]


@pytest.mark.engine
def test_plain_weights_never_count_a_part_twice(cluster: kofn.Cluster) -> None:
    terms = [1.0] * 200
    for code in (kofn.LT(), kofn.LT(r=4, neighbours="uniform")):
        with pytest.raises(kofn.BadInput, match="some are in more of what workers say"):
            cluster.parts(terms, code).sum(
                lambda part, x: part, stop=kofn.first(1), weights="plain"
            )
    for groups in (kofn.RandomGroups(10), kofn.RandomGroups(10, symbols=30)):
        found = cluster.parts(terms, groups).sum(
            lambda part, x: part, stop=kofn.first(1), weights="plain"
        )
        assert found.value == 200 - len(found.missing)


@pytest.mark.slow
def test_unbiased_weights_know_how_many_hold_a_group() -> None:
    terms = [1.0] * 20
    engine = VirtualEngine(6, delays=Exponential(0.0, 2.0), seed=5)
    with kofn.connect(engine) as cluster:
        # One group a slot; which, is drawn: by seed, some groups have more holders than others.
        equal = {}
        for seed in range(40):
            parts = cluster.parts(terms, kofn.RandomGroups(10, symbols=6, seed=seed))
            held = [parts.assignment.symbols(slot)[0].parts for slot in range(6)]
            counts = {held.count(group) for group in held} | ({0} if len({*held}) < 2 else set())
            equal[seed] = len(counts) == 1
            if not equal[seed]:
                assert parts.assignment.copies is None
                with pytest.raises(kofn.BadInput, match="some are in more of what workers say"):
                    parts.sum(lambda part, x: part, stop=kofn.first(2), weights="unbiased")
        assert {*equal.values()} == {True, False}
        seed = next(seed for seed, same in equal.items() if same)
        parts = cluster.parts(terms, kofn.RandomGroups(10, symbols=6, seed=seed))
        assert parts.assignment.copies == 3
        drawn = [
            parts.sum(lambda part, x: part, stop=kofn.first(2), weights="unbiased").value
            for _ in range(600)
        ]
        # Three standard errors of the mean, and a seed that does not change.
        assert abs(np.mean(drawn) - 20.0) <= 3 * np.std(drawn) / np.sqrt(len(drawn))
