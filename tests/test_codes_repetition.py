"""Repetition codes: exact from whom, near the sum otherwise, with the moments of Lemma 2."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from kofn import BadInput, CyclicRepetition, FractionalRepetition, SumCode, Uncoded
from kofn.codes.assignment import Assignment, uncovered
from kofn.codes.erasurehead import moments
from kofn.codes.linear import EliminationDecoder
from kofn.sums.tally import Tally, tally_of


def deliver(code: Assignment, slots: Any, terms: np.ndarray[Any, Any]) -> Tally:
    """What the tally has when these slots have done all their symbols, in this order."""
    tally = tally_of(code)
    for slot in slots:
        for i, row in enumerate(code.symbols(slot)):
            tally.take(slot, i, i + 1, row.dense(code.m)[None] @ terms)
    return tally


FRACTIONAL: list[Any] = [(2, 4, "parts"), (2, 6, "whole"), (3, 6, "parts"), (3, 6, "whole")]
CYCLIC: list[Any] = [
    (2, 5, "parts", "ones"),
    (2, 6, "whole", "ones"),
    (3, 6, "whole", "ones"),
    (3, 7, "whole", "random"),
]
SMALL: list[tuple[SumCode, int, int]] = [
    *(
        (FractionalRepetition(c, s), m, n)
        for c, n, s in FRACTIONAL
        for m in (n // c, n - 1, n, n + 3)
    ),
    *((CyclicRepetition(c, s, kind), m, n) for c, n, s, kind in CYCLIC for m in (n, n + 4)),
]


@pytest.mark.parametrize(("code", "m", "n"), SMALL, ids=str)
def test_exact_from_any_n_minus_c_plus_1_workers(code: SumCode, m: int, n: int) -> None:
    made = code.assign(m, n)
    terms = np.random.default_rng(0).standard_normal((m, 3))
    for slots in combinations(range(n), made.k):
        tally = deliver(made, slots, terms)
        assert tally.exact
        assert tally.covered == 1.0
        assert tally.missing == ()
        value, eta = tally.value("plain", len(slots))
        assert value is not None
        # Random coefficients are poor: what they lose is theirs, and eta says how much.
        bound = 1e-14 * m * max(1.0, eta or 1.0) ** 2
        assert np.abs(value[0] - terms.sum(axis=0)).max() <= bound


@pytest.mark.parametrize(("c", "n"), [(2, 6), (3, 6), (2, 8), (4, 8)])
@pytest.mark.parametrize("stream", ["parts", "whole"])
def test_fractional_is_exact_just_when_every_group_is_covered(c: int, n: int, stream: Any) -> None:
    made = FractionalRepetition(c, stream).assign(n, n)
    terms = np.arange(1.0, n + 1)[:, None]
    for here in product((False, True), repeat=n):
        slots = np.flatnonzero(here).tolist()
        groups = {slot // c for slot in slots}
        tally = deliver(made, slots, terms)
        assert tally.exact == (len(groups) == n // c)
        assert tally.covered == pytest.approx(len(groups) * c / n, abs=1e-15)
        assert len(tally.missing) == n - c * len(groups)


@pytest.mark.parametrize(("n", "c"), [(6, 2), (6, 3), (8, 2)])
def test_approximate_sums_have_exactly_the_moments_of_lemma_2(n: int, c: int) -> None:
    made = FractionalRepetition(c, "whole").assign(n, n)
    terms = np.eye(n)  # the value then says how often each part is in it
    for r in range(1, n + 1):
        p, q = moments(n, n, c, r)
        sets = list(combinations(range(n), r))
        plain, unbiased = np.zeros(n), np.zeros(n)
        joint = np.zeros((n, n))
        for slots in sets:
            tally = deliver(made, slots, terms)
            value = tally.value("plain", r)[0]
            scaled = tally.value("unbiased", r)[0]
            assert value is not None
            assert scaled is not None
            plain += value[0] / len(sets)
            unbiased += scaled[0] / len(sets)
            joint += np.outer(value[0], value[0]) / len(sets)
        np.testing.assert_allclose(plain, 1 - p, atol=1e-12)
        np.testing.assert_allclose(unbiased, 1.0, atol=1e-12)
        blocks = np.arange(n) // c
        apart = blocks[:, None] != blocks[None, :]
        np.testing.assert_allclose(joint[apart], 1 - q, atol=1e-12)
        np.testing.assert_allclose(joint[~apart], 1 - p, atol=1e-12)
        assert uncovered(n, c, r) == pytest.approx(p, abs=1e-15)


@examples(150)
@given(st.data())
def test_covering_agrees_with_general_elimination(data: st.DataObject) -> None:
    c = data.draw(st.integers(1, 4))
    n = c * data.draw(st.integers(1, 5))
    m = data.draw(st.integers(n, 3 * n))
    stream: Any = data.draw(st.sampled_from(["parts", "whole"]))
    kind = data.draw(st.sampled_from([FractionalRepetition, CyclicRepetition]))
    made = kind(c, stream).assign(m, n)
    everything = [(s, i) for s in range(n) for i in range(len(made.symbols(s)))]
    arrived = data.draw(st.permutations(everything))[: data.draw(st.integers(1, len(everything)))]
    terms = np.random.default_rng(0).standard_normal((m, 2))
    tally, general = tally_of(made), EliminationDecoder(m, "sum")
    for slot, i in arrived:
        row = made.symbols(slot)[i].dense(m)
        tally.take(slot, i, i + 1, row[None] @ terms)
        tally.take(slot, i, i + 1, row[None] @ terms)  # twice counts once
        general.offer(i * n + slot, row)
        assert tally.exact == general.ready
    value, _ = tally.value("covered", 1)
    assert value is not None
    if tally.exact:
        np.testing.assert_allclose(value[0], terms.sum(axis=0), atol=1e-11)
    assert tally.missing == () or not tally.exact


def test_covered_weights_are_right_when_all_parts_are_alike() -> None:
    for code in (FractionalRepetition(2), CyclicRepetition(2, "whole"), CyclicRepetition(3)):
        made = code.assign(12, 12)
        tally = deliver(made, [0, 1, 5, 6], np.ones((12, 1)))
        value, _ = tally.value("covered", 4)
        assert value is not None
        assert value[0][0] == pytest.approx(12.0, rel=1e-12)


def test_a_straggler_of_a_group_begins_elsewhere() -> None:
    made = FractionalRepetition(2).assign(8, 4)
    first = [made.symbols(slot)[0].parts for slot in range(4)]
    assert first == [(0,), (2,), (4,), (6,)]
    halves = tally_of(made)
    for slot in range(4):  # each has done half of its work: together they have it all
        for i in range(2):
            halves.take(slot, i, i + 1, None)
    assert halves.exact


@pytest.mark.parametrize(
    ("code", "m", "n", "words"),
    [
        (FractionalRepetition(4), 6, 6, r"c to divide.*c=4 and 6.*c=1 or 2 or 3 or 6"),
        (FractionalRepetition(7), 6, 6, r"from 1 to 6; got 7"),
        (FractionalRepetition(2), 2, 6, "a part for each of the 3 groups of 2 workers; got 2"),
        (Uncoded(), 3, 6, "a part for each of the 6 workers; got 3 parts"),
        (CyclicRepetition(2), 3, 6, "a part for each of the 6"),
        (CyclicRepetition(4, "whole"), 6, 6, r"c=1 or 2 or 3 or 6, or stream='parts'"),
        (CyclicRepetition(2, "parts", "random"), 6, 6, "cannot be sent one by one"),
    ],
)
def test_what_cannot_be_assigned_is_one_clear_error(
    code: SumCode, m: int, n: int, words: str
) -> None:
    with pytest.raises(BadInput, match=f"(?s){words}"):
        code.assign(m, n)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (
            FractionalRepetition,
            (0,),
            "c of FractionalRepetition must be a whole number >= 1; got 0",
        ),
        (FractionalRepetition, (2, "rows"), "stream must be"),
        (CyclicRepetition, (0,), "c of CyclicRepetition must be a whole number >= 1; got 0"),
        (CyclicRepetition, (2, "rows"), "stream must be"),
        (CyclicRepetition, (2, "parts", "ten"), "coefficients must"),
        (Uncoded, ("rows",), "stream must be one of parts, whole; got 'rows'. Leave it out"),
    ],
)
def test_what_can_be_no_code_is_refused_when_it_is_made(
    kind: type[SumCode], options: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        kind(*options)
