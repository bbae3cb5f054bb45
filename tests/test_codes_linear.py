"""Decoders of any linear code."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from kofn.codes import CountingDecoder, EliminationDecoder, Weights, error_bound, solve
from kofn.errors import BadInput, NotDecodable

quick = examples(60)


def fractional_repetition(n: int, c: int) -> np.ndarray:
    """Rows of n workers in groups of c: each holds the c parts of its group."""
    rows = np.zeros((n, n))
    for worker in range(n):
        group = worker // c
        rows[worker, group * c : (group + 1) * c] = 1
    return rows


@quick
@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 2**31))
def test_solve_is_a_left_inverse_whose_eta_ignores_scaling(k: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((k + extra, k))
    matrix, eta = solve(rows)
    bound = error_bound(k, np.float64, eta)
    assert np.linalg.norm(matrix @ rows - np.eye(k)) <= bound * np.sqrt(k)
    _, scaled = solve(rows * 10.0 ** rng.uniform(-6, 6, (k + extra, 1)))
    assert abs(scaled - eta) <= 2 * bound * eta


@quick
@given(st.integers(1, 10), st.integers(0, 2**31))
def test_elimination_is_ready_exactly_at_full_rank(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (3 * k, k)).astype(float)
    decoder = EliminationDecoder(k, "all")
    for i, row in enumerate(rows):
        assert decoder.offer(i, row) == (np.linalg.matrix_rank(rows[: i + 1]) == k)
    if decoder.ready:
        weights = decoder.weights()
        values = rows @ np.arange(1.0, k + 1)
        got = weights.combine({i: values[i : i + 1] for i in range(len(rows))})
        size = np.linalg.norm(np.arange(1.0, k + 1))
        error = np.linalg.norm(got[:, 0] - np.arange(1.0, k + 1)) / size
        assert error <= weights.error_bound(k, np.float64)


@quick
@given(st.integers(1, 10), st.integers(0, 2**31))
def test_a_sum_is_ready_exactly_when_the_ones_are_in_the_span(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (k + 2, k)).astype(float)
    decoder = EliminationDecoder(k, "sum")
    for i, row in enumerate(rows):
        seen = rows[: i + 1]
        with_ones = np.linalg.matrix_rank(np.vstack([seen, np.ones(k)]))
        assert decoder.offer(i, row) == (np.linalg.matrix_rank(seen) == with_ones)
    if decoder.ready:
        weights = decoder.weights()
        assert weights.matrix.shape == (1, len(rows))
        miss = np.linalg.norm(weights.matrix @ rows - 1) / np.sqrt(k)
        assert miss <= weights.error_bound(k, np.float64)


@pytest.mark.parametrize(("n", "c"), [(4, 2), (6, 2), (6, 3), (8, 4)])
def test_repetition_sums_need_one_reply_per_group_and_no_more(n: int, c: int) -> None:
    rows = fractional_repetition(n, c)
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((n, 2, 3))
    values = {i: np.tensordot(rows[i], parts, 1) for i in range(n)}
    for size in range(1, n + 1):
        for keys in itertools.combinations(range(n), size):
            decoder = EliminationDecoder(n, "sum")
            for key in keys:
                decoder.offer(key, rows[key])
            assert decoder.ready == ({key // c for key in keys} == set(range(n // c)))
            if not decoder.ready:
                with pytest.raises(NotDecodable):
                    decoder.weights()
                continue
            weights = decoder.weights()
            # Shortest weights share a group evenly among those who answered for it.
            even = [1 / sum(other // c == key // c for other in keys) for key in keys]
            tolerance = weights.error_bound(n, np.float64)
            assert np.allclose(weights.matrix, even, rtol=0, atol=tolerance)
            assert weights.eta <= 1 + tolerance
            got = weights.combine(values)
            assert got.shape == (2, 3)
            error = np.linalg.norm(got - parts.sum(0))
            assert error <= tolerance * np.linalg.norm(parts) * np.sqrt(n)


def test_the_same_key_twice_counts_once() -> None:
    for decoder in (CountingDecoder(2), EliminationDecoder(2, "all")):
        assert not decoder.offer(7, [1, 0])
        assert not decoder.offer(7, [0, 1])
        assert list(decoder.arrived) == [7]
        assert decoder.offer(3, [1, 1])
        assert list(decoder.arrived) == [7, 3]
        assert np.allclose(decoder.weights().matrix @ [[1, 0], [1, 1]], np.eye(2), atol=1e-15)


def test_useless_rows_do_no_harm() -> None:
    decoder = EliminationDecoder(3, "sum")
    assert not decoder.offer(0, np.zeros(3))
    assert not decoder.offer(1, [1, 1, 0])
    assert not decoder.offer(2, [2, 2, 0])
    assert decoder.offer(3, [0, 0, 1e-8])
    weights = decoder.weights()
    values = {key: np.array(v) for key, v in enumerate([0.0, 5.0, 10.0, 2e-8])}
    assert abs(weights.combine(values) - 7) <= 7 * weights.error_bound(3, np.float64)
    assert not EliminationDecoder(3, "sum").ready


def test_dependent_rows_are_refused_by_the_counting_decoder() -> None:
    decoder = CountingDecoder(2, "doubtful")
    decoder.offer(0, [1, 0])
    assert decoder.offer(1, [2, 0])
    with pytest.raises(NotDecodable, match="doubtful needs 3 replies"):
        decoder.weights()


def test_wrong_rows_and_missing_values_are_named() -> None:
    with pytest.raises(BadInput, match="rows of 3 coefficients"):
        EliminationDecoder(3, "all").offer(0, [1, 2])
    weights = Weights((0, 1), np.eye(2), 1.0)
    with pytest.raises(BadInput, match="reply 1 is not among"):
        weights.combine({0: np.zeros(2)})


def test_values_keep_their_floating_type() -> None:
    weights = Weights((4, 2), np.array([[1.0, 1.0], [1.0, -1.0]]), 1.0)
    for given_type, expected in [("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("c16", "c16")]:
        values = {2: np.ones((2, 3), given_type), 4: np.full((2, 3), 3, given_type), 9: np.ones(1)}
        got = weights.combine(values)
        assert got.dtype == np.dtype(expected)
        assert got.shape == (2, 2, 3)
        assert np.all(got[0] == 4)
        assert np.all(got[1] == 2)
    assert weights.combine({2: np.ones((0, 3)), 4: np.ones((0, 3))}).shape == (2, 0, 3)


def test_error_bound_is_the_measured_rule() -> None:
    assert error_bound(10_000, np.float64, 3.0) == pytest.approx(3 * 66 * 2.0**-53)
    assert error_bound(0, np.float64, 0.1) == pytest.approx(16 * 2.0**-53)
    assert Weights((0,), np.eye(1), 2.0).error_bound(0, np.float32) == pytest.approx(32 * 2.0**-24)


def test_errors_pickle() -> None:
    with pytest.raises(NotDecodable) as caught:
        EliminationDecoder(4, "all", name="mine").weights()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.arrived, again.need) == ("mine", [], 4)
    assert str(again) == str(caught.value)
