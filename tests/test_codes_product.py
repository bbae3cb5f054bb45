"""Product codes: any k results decode, how exactly, and which constructions do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import examples

from kofn.codes.linear import EliminationDecoder, error_bound
from kofn.codes.product import POOR, Points, ProductCode
from kofn.errors import BadInput, NotDecodable

SIZES = [(2, 1), (2, 2), (2, 3), (3, 4), (4, 4), (5, 5), (6, 6)]


def results(code: ProductCode, rows: list[int], X: NDArray, Y: NDArray) -> dict[int, NDArray]:  # type: ignore[type-arg]
    return {r: code.encode_left(r, X) @ code.encode_right(r, Y) for r in rows}


@examples(60)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
def test_results_of_any_k_rows_assemble_to_the_product(
    x: int, y: int, z: int, shape: tuple[int, int, int]
) -> None:
    if x * y * z > 12:
        z = 1
    code = ProductCode(x, y, z)
    m, n, p = shape
    rng = np.random.default_rng(m + 10 * n + 100 * p)
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))
    first = 0 if z == 1 else code.k
    rows = rng.choice(np.arange(first, code.k + 30), code.k + 1, replace=False).tolist()
    size = np.linalg.norm(X) * np.linalg.norm(Y)
    for some in (rows, rows[1:]):
        weights = code.weights(some)
        Z = code.assemble(code.blocks(weights, results(code, some, X, Y)), (m, p))
        bound = weights.error_bound(n, np.float64)
        assert np.linalg.norm(Z - X @ Y) <= bound * size


@pytest.mark.claim("sequential: Remark 2.2")
@pytest.mark.parametrize(("x", "y", "z"), [(2, 3, 1), (2, 2, 2), (1, 1, 3)])
def test_a_result_is_its_row_of_the_source_values(x: int, y: int, z: int) -> None:
    code = ProductCode(x, y, z)
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((2 * x, 2 * z)), rng.standard_normal((2 * z, 2 * y))
    first = 0 if z == 1 else code.k
    known = np.array([code.row(r) for r in range(first, code.k + 40)])
    values = [code.encode_left(r, X) @ code.encode_right(r, Y) for r in range(first, code.k + 40)]
    stacked = np.array(values).reshape(len(values), -1)
    # All results lie on one set of k source values: what rows predict, results have.
    fit, *_ = np.linalg.lstsq(known, stacked, rcond=None)
    assert np.allclose(known @ fit, stacked, atol=1e-9)
    assert np.linalg.matrix_rank(known) == code.k


def test_uncoded_rows_are_blocks_and_cost_no_digits() -> None:
    code = ProductCode(2, 2)
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((4, 3)), rng.standard_normal((3, 6))
    assert np.array_equal(code.encode_left(3, X), X[2:])
    assert np.array_equal(code.encode_right(2, Y), Y[:, :3])
    weights = code.weights([0, 1, 2, 3])
    assert weights.eta == pytest.approx(1.0)
    for rows in ([0, 1, 2, 3], [1, 2, 3, 7]):
        values = results(code, rows, X, Y)
        blocks = code.blocks(code.weights(rows), values)
        assert sorted(blocks) == [0, 1, 2, 3]
        assert all(blocks[row] is values[row] for row in rows if row < 4)


@pytest.mark.slow
@pytest.mark.parametrize(("x", "y"), SIZES)
def test_float64_products_are_exact_to_1e_9(x: int, y: int) -> None:
    """10,000 random arrival sets over all sizes; a set that decodes poorly takes one more."""
    code, n = ProductCode(x, y), 16
    rng = np.random.default_rng(x * 100 + y)
    X, Y = rng.standard_normal((x, n)), rng.standard_normal((n, y))
    pool = list(range(code.k, code.k + 5 * code.k))
    values = results(code, pool, X, Y)
    exact, worst, poor, sets = X @ Y, 0.0, 0, 10_000 // len(SIZES) + 1
    for _ in range(sets):
        order = rng.permutation(pool).tolist()
        take = code.k
        while (weights := code._solve(tuple(sorted(order[:take])))).eta > POOR:
            take += 1
        poor += take > code.k
        Z = code.assemble(code.blocks(weights, values), exact.shape)
        worst = max(worst, float(np.linalg.norm(Z - exact) / np.linalg.norm(exact)))
    assert worst <= 1e-9
    assert poor <= 0.12 * sets


@pytest.mark.parametrize(("x", "y"), [(2, 3), (4, 4), (6, 6)])
def test_float32_products_are_right_to_1e_2(x: int, y: int) -> None:
    code, n = ProductCode(x, y), 16
    rng = np.random.default_rng(1)
    X = rng.standard_normal((x, n)).astype(np.float32)
    Y = rng.standard_normal((n, y)).astype(np.float32)
    pool = list(range(code.k, 6 * code.k))
    values = results(code, pool, X, Y)
    assert all(value.dtype == np.float32 for value in values.values())
    exact = X.astype(float) @ Y.astype(float)
    for _ in range(300):
        order, take = rng.permutation(pool).tolist(), code.k
        while (weights := code.weights(order[:take])).eta > POOR:
            take += 1
        Z = code.assemble(code.blocks(weights, values), exact.shape)
        assert Z.dtype == np.float32
        assert np.linalg.norm(Z - exact) <= 1e-2 * np.linalg.norm(exact)


def worst_error(points: Points, x: int, y: int) -> float:
    code, n = ProductCode(x, y, points=points), 16
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((x, n)), rng.standard_normal((n, y))
    exact = X @ Y
    pool = list(range(code.k, 6 * code.k))
    values = results(code, pool, X, Y)
    worst = 0.0
    for _ in range(200):
        rows = rng.choice(pool, code.k, replace=False).tolist()
        try:
            Z = code.assemble(code.blocks(code.weights(rows), values), exact.shape)
        except NotDecodable:
            return float("inf")
        worst = max(worst, float(np.linalg.norm(Z - exact) / np.linalg.norm(exact)))
    return worst


def test_the_monomial_construction_fails_at_16() -> None:
    """Why it is not the default: no digit is left of some products, where ours has nine or more."""
    assert worst_error("monomial", 4, 4) > 0.1
    assert worst_error("khatri-rao", 4, 4) < 1e-9


def test_trig_is_good_for_small_k() -> None:
    assert worst_error("trig", 2, 3) < 1e-11
    assert worst_error("trig", 2, 2) < 1e-12


@pytest.mark.parametrize("points", ["khatri-rao", "trig"])
def test_the_fast_decoder_agrees_with_elimination(points: Points) -> None:
    code = ProductCode(2, 3, points=points)
    rng = np.random.default_rng(3)
    for _ in range(30):
        fast, general = code.decoder(), EliminationDecoder(code.k)
        for row in rng.choice(20, code.k, replace=False).tolist():
            assert fast.offer(row, code.row(row)) == general.offer(row, code.row(row))
        ours, theirs = fast.weights(), general.weights()
        order = [theirs.keys.index(key) for key in ours.keys]
        gap = np.linalg.norm(ours.matrix - theirs.matrix[:, order])
        assert gap <= error_bound(code.k, np.float64, ours.eta) * np.linalg.norm(ours.matrix) * 2


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(NotDecodable):
        ProductCode(2, 2).weights([4, 5, 6])


@pytest.mark.parametrize(
    "bad",
    [
        {"x": 0, "y": 1},
        {"x": 1, "y": True},
        {"x": 2, "y": 2, "points": "prime"},
        {"x": 2, "y": 2, "z": 2, "points": "trig"},
    ],
)
def test_bad_codes_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        ProductCode(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("points", "x", "y", "z"),
    [("monomial", 2, 3, 1), ("monomial", 4, 4, 1), ("monomial", 3, 2, 2), ("spread", 3, 3, 2)],
)
def test_the_error_bound_of_monomials_is_one(points: Points, x: int, y: int, z: int) -> None:
    """Of decodes with bounds up to 1e-5."""
    rng = np.random.default_rng(3)
    checked = 0
    for seed in range(200):
        code = ProductCode(x, y, z, points, seed)
        X, Y = rng.standard_normal((12, 8)), rng.standard_normal((8, 12))
        rows = (code.k + rng.choice(3 * code.k, code.k + 2, replace=False)).tolist()
        weights = code.weights(rows)
        bound = weights.error_bound(8, np.float64)
        if bound > 1e-5:
            continue
        checked += 1
        values = {r: code.encode_left(r, X) @ code.encode_right(r, Y) for r in rows}
        found = code.assemble(code.blocks(weights, values), (12, 12))
        error = np.linalg.norm(found - X @ Y)
        assert error <= bound * np.linalg.norm(X) * np.linalg.norm(Y)
    assert checked > 3
