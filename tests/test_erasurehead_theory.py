"""The lemmas and theorems of Wang et al., 2019, corrected, against counting and against chance."""

from __future__ import annotations

from itertools import combinations
from typing import Any, get_args

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


def estimates(gradients: np.ndarray, c: int, r: int, draws: int, seed: int) -> np.ndarray:
    """The published estimate g, (draws, d), when r of as many workers as parts have replied."""
    n = len(gradients)
    rng = np.random.default_rng(seed)
    here = rng.random((draws, n)).argsort(axis=1)[:, :r] // c
    covered = (here[:, None] == np.arange(n // c)[None, :, None]).any(axis=2)
    return np.asarray(covered @ gradients.reshape(n // c, c, -1).sum(axis=1) / n)


@pytest.mark.parametrize(("n", "c", "r"), [(30, 2, 11), (30, 3, 11), (12, 2, 3)])
def test_lemmas_3_and_4(n: int, c: int, r: int) -> None:
    gradients = np.random.default_rng(1).standard_normal((n, 4)) + 0.5
    drawn = np.square(estimates(gradients, c, r, DRAWS, 2)).sum(axis=1)
    stated = theory.second_moment(n, c, r, gradients)
    agree(drawn, stated)
    assert drawn.mean() == pytest.approx(stated, rel=0.03)
    norm = float(np.linalg.norm(gradients.mean(axis=0)))
    sigma = float(np.linalg.norm(gradients, axis=1).max())
    assert stated <= theory.second_moment_bound(n, n, c, r, norm, sigma)
    # Equal gradients of length σ are what Lemma 4 is tight for.
    alike = np.ones((n, 4))
    bound = theory.second_moment_bound(n, n, c, r, 2.0, 2.0)
    assert theory.second_moment(n, c, r, alike) == pytest.approx(bound, rel=1e-12)


@given(codes(), st.data())
def test_lemma_5_bounds_lemma_2(code: tuple[int, int, int], data: st.DataObject) -> None:
    n, k, c = code
    r = data.draw(st.integers(0, k))
    # With more workers than parts, r may be above n: the exponent has ℓ/k = c/n.
    assert theory.moments(n, k, c, r).p <= theory.missing_bound(n, k, c, r) * (1 + 1e-12)
    assert theory.missing_bound(n, k, c, r) == pytest.approx(np.exp(-c * r / n), rel=1e-15)


@pytest.mark.parametrize("step", ["long", "short"])
def test_theorem_1_by_descents(step: Any) -> None:
    n, c, r, rounds, draws = 12, 2, 5, 6, 20_000
    centres = np.random.default_rng(3).standard_normal((n, 8))
    mean, start = centres.mean(axis=0), centres[0] + 3.0
    gap = 0.5 * float(np.square(start - mean).sum())
    p, _ = theory.moments(n, n, c, r)
    size = 1.0 if step == "long" else 1 - p
    x, gaps, sigma = np.tile(start, (draws, 1)), [gap], 0.0
    for t in range(rounds):
        here = np.random.default_rng((4, t)).random((draws, n)).argsort(axis=1)[:, :r] // c
        seen = np.repeat((here[:, None] == np.arange(n // c)[None, :, None]).any(axis=2), c, axis=1)
        sigma = max(sigma, float(np.sqrt(np.square(x[:, None] - centres).sum(axis=2)).max()))
        x = x - size / (1 - p) * (seen.sum(axis=1)[:, None] * x - seen @ centres) / n
        gaps.append(0.5 * float(np.square(x - mean).sum(axis=1).mean()))
    for t, found in enumerate(gaps):
        stated = theory.isotropic_gap(n, c, r, centres, t, gap, size)
        assert found == pytest.approx(stated, rel=0.03)
    on = theory.Objective(1.0, 1.0, sigma, gap)
    one, two = theory.theorem_1(n, n, c, r, on, step), theory.theorem_2(n, n, c, r, on, step)
    for t, found in enumerate(gaps):
        assert found <= one.after(t, gap) <= two.after(t, gap) * (1 + 1e-12)


@given(codes(), st.floats(0.05, 0.95), st.floats(0.01, 1), st.sampled_from(get_args(theory.Step)))
def test_theorem_2_bounds_theorem_1(
    code: tuple[int, int, int], delta: float, kappa: float, step: theory.Step
) -> None:
    n, k, c = code
    r = max(1, round(delta * k))
    on = theory.Objective(2.0, 2.0 * kappa, 3.0, 5.0)
    if c < n * np.log(2) / r:
        with pytest.raises(kofn.BadInput, match="Theorem 2 needs"):
            theory.theorem_2(n, k, c, r, on, step)
        return
    one, two = theory.theorem_1(n, k, c, r, on, step), theory.theorem_2(n, k, c, r, on, step)
    for T in (0, 1, 5, 50):
        assert one.after(T, on.gap) <= two.after(T, on.gap) * (1 + 1e-12)
    assert theory.gradient_descent(on).rate <= one.rate


def test_theorem_3_is_iterations_times_seconds() -> None:
    on = theory.Objective(1.0, 0.2, 1.0, 10.0)
    within = 1.0
    steps, seconds = theory.iterations_to(6, 0.8, on, within), theory.factors(30, 6, 0.8)
    found = theory.theorem_3(30, 6, 0.8, on, within)
    assert found == pytest.approx([a * b for a, b in zip(steps, seconds, strict=True)])
    assert theory.noise_floor(30, 6, 0.8, on) < within
    # After as many iterations as are stated the bounds are at ε: Lemma 1 just so, Theorem 2 below.
    exactly, two = theory.gradient_descent(on), theory.theorem_2(30, 30, 6, 24, on)
    assert on.gap * exactly.rate**steps.exact == pytest.approx(within)
    assert on.gap * two.rate**steps.approximate + two.floor <= within
    assert theory.theorem_3(30, 6, 0.8, on, 1e-3).approximate == np.inf
    assert exactly.iterations(on.gap, within) == pytest.approx(steps.exact)
    assert two.iterations(on.gap, two.floor / 2) == np.inf
    with pytest.raises(kofn.BadInput, match="below the gap"):
        theory.iterations_to(6, 0.8, on, 20.0)
    with pytest.raises(kofn.BadInput, match="Theorem 3 rests on Theorem 2"):
        theory.theorem_3(30, 2, 0.3, on, within)


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
