"""Lemma 2, Lemma 8 and Theorem 3, corrected, against counting and against chance."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kofn
from kofn.codes import erasurehead as theory

DRAWS = 40_000


@st.composite
def codes(draw: st.DrawFn) -> tuple[int, int, int]:
    """n, k, c with c | n and n | kc."""
    c, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    copies = draw(st.integers(1, 3))
    return c * blocks, blocks * copies, c


@given(codes(), st.data())
def test_lemma_2_counts_the_sets_of_replies(
    code: tuple[int, int, int], data: st.DataObject
) -> None:
    n, k, c = code
    r = data.draw(st.integers(0, k))
    copies = k * c // n
    sets = [{worker // copies for worker in seen} for seen in combinations(range(k), r)]
    p, q = theory.moments(n, k, c, r)
    # A ratio of counts: equal but for the rounding of one division.
    assert p == pytest.approx(np.mean([0 not in covered for covered in sets]), rel=1e-12, abs=1e-15)
    if n // c > 1:
        either = np.mean([not {0, 1} <= covered for covered in sets])
        assert q == pytest.approx(either, rel=1e-12, abs=1e-15)
        assert p <= q <= 2 * p


def test_the_papers_setting() -> None:
    # 2 of 30 hold a block: none of them among 11 has the chance 19/30 · 18/29, of 4 likewise.
    p, four = 19 * 18 / (30 * 29), 19 * 18 * 17 * 16 / (30 * 29 * 28 * 27)
    assert theory.moments(30, 30, 2, 11) == pytest.approx((p, 2 * p - four), rel=1e-12)


def times(n: int, c: int, r: int, draw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds until every block has a reply, and until the r-th reply; draw is (draws, n)."""
    first = draw.reshape(len(draw), n // c, c).min(axis=2)
    return first.max(axis=1), np.sort(draw, axis=1)[:, r - 1]


def agree(found: np.ndarray, stated: float) -> None:
    """A mean of independent draws lies within five standard errors of what is stated."""
    assert abs(found.mean() - stated) < 5 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize(("c", "rate"), [(2, 0.5), (3, 1 / 3), (5, 2.0)])
def test_lemma_8_by_chance(c: int, rate: float) -> None:
    n, r = 30, 11
    rng = np.random.default_rng(c)
    stated = theory.seconds_by_load(n, c, r, rate)
    alone = (1 + rng.standard_exponential((DRAWS, n)) / rate) / n
    coded = (1 + rng.standard_exponential((DRAWS, n)) / rate) * c / n
    exact, rth = times(n, c, r, coded)
    agree(alone.max(axis=1), stated.uncoded)
    agree(exact, stated.exact)
    agree(rth, stated.approximate)
    printed = c / n + (theory.harmonic(n) - theory.harmonic(c)) / (rate * n)
    assert printed < stated.exact  # what eq. (13) says is too low


@pytest.mark.parametrize("c", [2, 3])
def test_the_load_independent_model_by_chance(c: int) -> None:
    rng = np.random.default_rng(c)
    waits = 2.0 * rng.standard_exponential((DRAWS, 30))
    stated = theory.seconds_by_wait(30, c, 11, 2.0)
    exact, rth = times(30, c, 11, waits)
    agree(waits.max(axis=1), stated.uncoded)
    agree(exact, stated.exact)
    agree(rth, stated.approximate)


@given(st.integers(1, 12), st.integers(2, 40), st.floats(0.05, 0.95))
def test_theorem_3_bounds_lemma_8(c: int, blocks: int, delta: float) -> None:
    n = c * blocks
    r = int(delta * n)
    bound, mean = theory.factors(n, c, delta), theory.seconds_by_load(n, c, r, 1 / c)
    for name in theory.Times._fields:
        assert getattr(mean, name) <= getattr(bound, name) * (1 + 1e-12)


def test_as_printed_theorem_3_is_too_low() -> None:
    n, c = 30, 10
    printed = (c * np.log(n / c) + c + 1) / n
    assert theory.seconds_by_load(n, c, 11, 1 / c).exact > printed


def test_bad_input() -> None:
    with pytest.raises(kofn.BadInput, match="c to divide n"):
        theory.moments(10, 10, 3, 2)
    with pytest.raises(kofn.BadInput, match="n to divide k"):
        theory.moments(10, 3, 2, 2)
    with pytest.raises(kofn.BadInput, match="from 0 to 10"):
        theory.moments(10, 10, 2, 11)
    with pytest.raises(kofn.BadInput, match="λ"):
        theory.seconds_by_load(10, 2, 3, 0.0)
    with pytest.raises(kofn.BadInput, match="δ"):
        theory.factors(10, 2, 1.0)
