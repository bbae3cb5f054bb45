"""Rateless codes: what symbols are made of, how many are needed, and that all decoders agree."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from kofn.codes import inactivation
from kofn.codes.inactivation import InactivationDecoder
from kofn.codes.linear import CountingDecoder, Decoder, EliminationDecoder, Row, error_bound
from kofn.codes.peeling import PeelingDecoder, SparseDecoder
from kofn.codes.raptor import Raptor, check_members, checks_for
from kofn.codes.rateless import (
    LT,
    DenseMDS,
    LTAssignment,
    Neighbours,
    RandomGroups,
    TableElimination,
)
from kofn.codes.soliton import Table, deal, draw, mean_degree, robust_soliton
from kofn.errors import BadInput, NotDecodable, OutOfSymbols

quick = examples(40)


def table_of(k: int, n: int, rng: np.random.Generator, *, uniform: bool = False) -> Table:
    degrees = rng.choice(k, n, p=robust_soliton(k)) + 1
    return (draw if uniform else deal)(k, degrees, rng)


def assigned(code: LT, m: int, n: int) -> LTAssignment:
    found = code.assign(m, n)
    assert isinstance(found, LTAssignment)
    return found


def dense(table: Table, keys: tuple[int, ...]) -> np.ndarray:
    return np.array([Row(tuple(table.rows[key])).dense(table.k) for key in keys])


def needed(decoder: Decoder, order: list[int]) -> int:
    """How many symbols, in this order, it took."""
    for count, key in enumerate(order, 1):
        if decoder.offer(key, ()):
            return count
    raise AssertionError("never ready")


# Symbols.


def test_the_robust_soliton_is_the_paper_s() -> None:
    # R = c ln(k/δ) √k = 7.21 at k = 1000: the spike lies at 139. Average degrees by hand.
    p = robust_soliton(1000)
    assert p.sum() == pytest.approx(1.0)
    assert int(np.argmax(p[50:])) + 51 == 139
    R = 0.03 * np.log(2000) * np.sqrt(1000)
    beta = 1.0 + R / 1000 * (sum(1 / d for d in range(1, 139)) + np.log(R / 0.5))
    assert p[1] == pytest.approx((0.5 + R / 2000) / beta)
    assert mean_degree(1000) == pytest.approx(10.53, abs=0.01)
    assert mean_degree(500) == pytest.approx(9.36, abs=0.01)


@quick
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 2**31))
def test_no_symbol_has_a_neighbour_twice_and_decks_are_even(k: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for uniform in (False, True):
        table = table_of(k, n, rng, uniform=uniform)
        assert len(table) == n
        for row in table.rows:
            assert len(set(row)) == len(row) >= 1
            assert 0 <= min(row) <= max(row) < k
        if not uniform and k > 1:
            # Whole decks deal each card once; the last is cut, and a card may be put off to it.
            counts = np.bincount(table.where, minlength=k)
            assert counts.max() - counts.min() <= 2


@quick
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 9), st.booleans())
def test_lt_r_codes_groups_of_r_neighbouring_terms(m: int, r: int, n: int, own: bool) -> None:
    r = min(r, m)
    code = assigned(LT(r=r, systematic=own), m, n)
    groups = [tuple(range(g * r, min(g * r + r, m))) for g in range(code.groups)]
    for slot in range(n):
        assert len(code.symbols(slot)) == code.each
        for i, row in enumerate(code.symbols(slot)):
            key = i * n + slot
            assert code.row(key) == row
            assert row.coefficients is None
            expected = [t for g in code.table.rows[key] for t in groups[g]]
            assert list(row.parts) == expected
            if own and key < code.groups:
                assert row.parts == groups[key]
    assert pickle.loads(pickle.dumps(code)).symbols(0) == code.symbols(0)


def test_random_groups_part_the_terms_and_every_slot_walks_all() -> None:
    code = RandomGroups(d=10).assign(105, 4)
    walks = [[row.parts for row in code.symbols(slot)] for slot in range(4)]
    assert sorted(t for parts in walks[0] for t in parts) == list(range(105))
    assert sorted(len(parts) for parts in walks[0]) == [5] + [10] * 10
    for a, b in itertools.combinations(walks, 2):
        assert a != b
        assert sorted(a) == sorted(b)


# Decoding.


@quick
@given(st.integers(1, 12), st.integers(0, 20), st.integers(0, 2**31))
def test_inactivation_is_ready_exactly_at_full_rank(k: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(rng.random(k) < 0.4).tolist() or [0] for _ in range(k + extra)]
    table = Table.of(k, rows)
    decoder, peeling = InactivationDecoder(table), PeelingDecoder(table)
    A = dense(table, tuple(range(len(rows))))
    for key in range(len(rows)):
        full = np.linalg.matrix_rank(A[: key + 1]) == k
        assert decoder.offer(key) == full
        assert full or not peeling.offer(key)
        assert decoder.offer(key) == decoder.ready  # a second time changes nothing
    if decoder.ready:
        weights = decoder.weights()
        assert np.abs(weights.matrix @ dense(table, weights.keys) - 1).max() <= 1e-10


@pytest.mark.parametrize("kind", [PeelingDecoder, InactivationDecoder, TableElimination])
def test_too_few_rows_are_an_error_that_says_how_many(kind: Any) -> None:
    table = Table.of(3, [[0], [0, 1], [1], [2]])
    decoder = kind(table)
    for key in range(3):
        assert not decoder.offer(key, Row((0,)))
    with pytest.raises(NotDecodable) as caught:
        decoder.weights()
    assert caught.value.arrived == [0, 1, 2]
    assert caught.value.need == 4
    assert decoder.offer(3, Row((2,)))
    assert decoder.weights().combine(
        {0: np.array(1.0), 1: np.array(3.0), 2: np.array(2.0), 3: np.array(5.0)}
    ) == pytest.approx(8.0, rel=1e-15)


@pytest.mark.slow
def test_every_decoder_gives_the_same_sum_on_thousands_of_arrival_orders() -> None:
    # Errors are measured against the sum of magnitudes: the sum itself may cancel to nothing.
    rng = np.random.default_rng(0)
    cases = [(20, 1, 1500), (40, 1, 400), (100, 1, 120), (200, 2, 100)]
    worst, orders = 0.0, 0
    for m, r, times in cases:
        kinds: tuple[Neighbours, ...] = ("deck", "uniform")
        for neighbours in kinds:
            code = assigned(LT(r=r, neighbours=neighbours), m, 8)
            table, k = code.table, code.groups
            makers: list[Any] = [PeelingDecoder, InactivationDecoder, TableElimination]
            for _ in range(times // 2):
                values = rng.standard_normal(k) + 0.5
                symbols = np.add.reduceat(values[table.where], table.start[:-1])
                order = rng.permutation(len(table)).tolist()
                for make in makers if k <= 50 else makers[:2]:
                    decoder: Decoder = make(table)
                    arrived = iter(order)
                    while not decoder.good:
                        decoder.offer(next(arrived), ())
                    weights = decoder.weights()
                    got = weights.matrix[0] @ symbols[list(weights.keys)]
                    worst = max(worst, abs(got - values.sum()) / np.abs(values).sum())
                orders += 1
    assert orders > 2000
    assert worst <= 1e-12


def test_a_large_code_agrees_with_the_qr_of_all_rows() -> None:
    rng = np.random.default_rng(1)
    table = table_of(400, 600, rng)
    decoder = InactivationDecoder(table)
    count = needed(decoder, list(range(600)))
    reference = EliminationDecoder(400, "sum")
    for key in range(count):
        reference.offer(key, Row(tuple(table.rows[key])))
    assert reference.ready
    values = rng.standard_normal(400)
    symbols = {key: np.array(values[row].sum()) for key, row in enumerate(table.rows)}
    a, b = decoder.weights(), reference.weights()
    bound = error_bound(400, np.float64, max(a.eta, b.eta)) * np.abs(values).sum()
    assert abs(a.combine(symbols) - b.combine(symbols)) <= bound


@pytest.mark.slow
def test_symbols_needed_in_the_order_of_dealing() -> None:
    # `kofn reproduce rateless` measures the 99 % figures; here 40 runs must lie below them.
    rng = np.random.default_rng(2)
    for k, most in ((1000, 1020), (500, 515)):
        many = [
            needed(InactivationDecoder(table_of(k, 2 * k, rng)), list(range(2 * k)))
            for _ in range(40)
        ]
        assert min(many) >= k
        assert np.quantile(many, 0.9) <= most
        peeled = [
            needed(PeelingDecoder(table_of(k, 3 * k, rng, uniform=True)), list(range(3 * k)))
            for _ in range(40)
        ]
        assert 1.05 * k < np.median(peeled) < 1.3 * k


def test_a_large_code_waits_until_peeling_has_left_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inactivation, "OPEN", 60)
    rng = np.random.default_rng(3)
    table = table_of(300, 900, rng)
    patient, eager = InactivationDecoder(table), InactivationDecoder(table)
    late = needed(patient, list(range(900)))
    monkeypatch.setattr(inactivation, "OPEN", 1500)
    assert needed(eager, list(range(900))) < late
    weights = patient.weights()
    assert np.abs(weights.matrix @ dense(table, weights.keys) - 1).max() <= 1e-10


def test_a_poor_set_of_symbols_is_worth_one_more() -> None:
    rng = np.random.default_rng(4)
    seen = {"held back": 0, "at once": 0}
    for _ in range(60):
        table = table_of(120, 360, rng, uniform=True)
        decoder = InactivationDecoder(table)
        needed(decoder, rng.permutation(360).tolist())
        poor = decoder.weights().eta > inactivation.POOR
        assert decoder.good == (not poor)
        seen["held back" if poor else "at once"] += 1
        if poor:
            decoder.offer(next(key for key in range(360) if key not in decoder.arrived))
            assert decoder.good
    assert min(seen.values()) > 0


def test_rows_after_the_sum_is_there_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(120, 2000, np.random.default_rng(6))
    decoder = InactivationDecoder(table)
    count = needed(decoder, list(range(2000)))
    looks: list[int] = []
    solve = inactivation._Core.solve

    def counted(core: Any) -> Any:
        looks.append(1)
        return solve(core)

    monkeypatch.setattr(inactivation._Core, "solve", counted)
    for key in range(count, 2000):
        assert decoder.offer(key)
    assert len(looks) <= 1
    assert np.abs(decoder.weights().matrix.sum()) > 0


def test_dense_rows_of_any_k_workers_give_the_sum() -> None:
    rng = np.random.default_rng(5)
    code = DenseMDS(k=4).assign(10, 7)
    terms = rng.standard_normal(10)
    values = {
        slot: np.array(np.dot(code.symbols(slot)[0].coefficients or (), terms)) for slot in range(7)
    }
    for slots in itertools.combinations(range(7), 4):
        decoder = code.decoder()
        assert isinstance(decoder, CountingDecoder)
        assert [decoder.offer(s, code.symbols(s)[0]) for s in slots] == [False] * 3 + [True]
        weights = decoder.weights()
        bound = error_bound(4, np.float64, weights.eta) * np.abs(terms).sum()
        assert abs(weights.combine(values) - terms.sum()) <= bound


def test_small_codes_see_a_sum_that_comes_early() -> None:
    code = assigned(LT(r=5, soliton=(0.2, 0.1)), 20, 3)
    decoder = code.decoder()
    assert isinstance(decoder, TableElimination)
    whole = [key for key, row in enumerate(code.table.rows) if len(row) == code.groups]
    if whole:
        assert decoder.offer(whole[0], ())
    sparse = assigned(LT(), 65, 3).decoder()
    assert isinstance(sparse, SparseDecoder)


# Bad input.


@pytest.mark.parametrize(
    ("code", "m", "n", "words"),
    [
        (LT(), 0, 4, "m (the number of terms) must be a whole number >= 1; got 0"),
        (LT(r=11), 10, 4, "got r=11 and 10 terms"),
        (LT(r=2, symbols=300), 1000, 4, "takes 500 symbols at least"),
        (RandomGroups(d=11), 10, 4, "got d=11 and 10 terms. Use a smaller d, or cut"),
        (RandomGroups(), 4, 4, "parts=..."),
        (RandomGroups(), 0, 4, "must be a whole number >= 1; got 0"),
        (DenseMDS(k=5), 10, 4, "got k=5, 4 workers"),
    ],
)
def test_bad_codes_are_refused_with_the_rule(code: Any, m: int, n: int, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        code.assign(m, n)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (LT, {"r": 0}, "r (terms in a group) must be a whole number >= 1; got 0"),
        (LT, {"r": 1.5}, "r (terms in a group) must be a whole number"),
        (LT, {"decoder": "qr"}, "decoder must be one of inactivation, peeling, elimination"),
        (LT, {"neighbours": "near"}, "neighbours must be one of deck, uniform"),
        (LT, {"soliton": (0.03, 2.0)}, "0 < delta < 1"),
        (LT, {"soliton": 3}, "soliton must be two numbers, (c, delta); got 3"),
        (LT, {"soliton": ("a", 0.5)}, "soliton must be two numbers"),
        (LT, {"seed": -1}, "seed must be a whole number >= 0; got -1"),
        (LT, {"symbols": 0}, "symbols (in all) must be a whole number >= 1"),
        (RandomGroups, {"d": 0}, "d (terms in a group) must be a whole number >= 1; got 0"),
        (RandomGroups, {"seed": "x"}, "seed must be a whole number >= 0; got 'x'"),
        (DenseMDS, {"k": 0}, "k (replies that are enough) must be a whole number >= 1"),
        (DenseMDS, {"k": 2, "seed": -1}, "seed must be a whole number >= 0"),
    ],
)
def test_bad_arguments_are_refused_where_they_are_given(
    make: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput) as caught:
        make(**options)
    assert words in str(caught.value)


def test_what_numpy_counts_and_a_list_of_two_are_taken() -> None:
    code = LT(r=np.int64(2), soliton=[0.03, 0.5])  # type: ignore[arg-type]
    assert code == LT(r=2)
    assert hash(code) == hash(LT(r=2))
    assert RandomGroups(np.int64(3)).assign(10, 2).symbols(0)  # type: ignore[arg-type]


def test_running_out_advises_only_what_helps() -> None:
    assert "decoder='inactivation'" in str(OutOfSymbols(repr(LT(decoder="peeling")), 200, 369))
    for code in (LT(), LT(decoder="elimination"), RandomGroups(2, symbols=9)):
        text = str(OutOfSymbols(repr(code), 20, 36)).removeprefix(repr(code))
        assert "decoder=" not in text
        assert "Use symbols=36 (16 more)." in text


def test_too_few_symbols_says_how_many_are_missing() -> None:
    with pytest.raises(BadInput, match="200 too few"):
        LT(r=2, symbols=300).assign(1000, 4)


# Raptor.


@pytest.mark.parametrize("groups", [64, 200, 1000])
def test_every_group_is_in_three_checks(groups: int) -> None:
    members = check_members(groups)
    assert len(members) == checks_for(groups)
    held = np.zeros((len(members), groups), int)
    for check, those in enumerate(members):
        np.add.at(held[check], those, 1)
    assert held.max() == 1
    assert (held.sum(axis=0) == 3).all()
    assert (checks_for(200), checks_for(1000)) == (23, 59)


@quick
@given(st.integers(64, 300), st.integers(1, 3), st.booleans(), st.integers(0, 10**6))
def test_raptor_gives_the_sum_in_any_order(groups: int, r: int, own: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = groups * r - int(rng.integers(r))
    code = Raptor(r=r, systematic=own, symbols=3 * groups, seed=seed).assign(m, 4)
    rows = {key: code.row(key) for slot in range(4) for key in _keys(code, slot)}
    assert all(row.parts for row in rows.values())
    terms = rng.standard_normal(m) + 0.5
    values = {key: np.asarray(row.dense(m) @ terms) for key, row in rows.items()}
    decoder = code.decoder()
    count = needed(decoder, rng.permutation(sorted(rows)).tolist())
    assert count >= groups
    assert len(decoder.arrived) == count
    weights = decoder.weights()
    used = np.array([rows[key].dense(m) for key in weights.keys])
    np.testing.assert_allclose(weights.matrix @ used, np.ones((1, m)), atol=1e-9)
    error = abs(float(weights.combine(values)) - terms.sum())
    assert error <= error_bound(m, float, weights.eta) * np.abs(terms).sum()


def _keys(code: Any, slot: int) -> range:
    return range(slot, slot + len(code.symbols(slot)) * code.n, code.n)


def test_raptor_needs_hardly_a_symbol_more_than_terms() -> None:
    """And as many as terms, where the symbols of a systematic code come in order."""
    over = []
    for seed in range(12):
        code = Raptor(seed=seed).assign(500, 1)
        over.append(needed(code.decoder(), list(range(2000))) - 500)
    assert max(over) <= 5
    first = Raptor(systematic=True).assign(500, 1)
    assert needed(first.decoder(), list(range(2000))) == 500
    assert pickle.loads(pickle.dumps(first)).symbols(0) == first.symbols(0)


def test_raptor_says_what_is_wrong() -> None:
    with pytest.raises(BadInput, match="64 groups at least"):
        Raptor(r=2).assign(100, 4)
    with pytest.raises(BadInput, match="Use symbols=200"):
        Raptor(symbols=50).assign(100, 4)
