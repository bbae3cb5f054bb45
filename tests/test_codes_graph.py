"""Graph codes decode as well as least squares; unequal workers get weights that suit them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

import kofn
from kofn.codes.graph import GraphCode, optimal_weights, regular_graph
from kofn.codes.reliable import ReliableRepetition, grouped
from kofn.delays import Exponential
from kofn.engines.virtual import VirtualEngine
from kofn.sums.tally import tally_of


def at_vertices(edges: dict[int, tuple[int, int]], vertices: int) -> np.ndarray:
    found = np.zeros(vertices)
    for key, weight in optimal_weights(edges).items():
        found[list(edges[key])] += weight
    return found


@examples(200)
@given(st.data())
def test_optimal_weights_are_those_of_least_squares(data: st.DataObject) -> None:
    vertices = data.draw(st.integers(2, 9))
    pairs = [(a, b) for a in range(vertices) for b in range(a + 1, vertices)]
    drawn = data.draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    A = np.zeros((len(drawn), vertices))
    for i, edge in enumerate(drawn):
        A[i, list(edge)] = 1.0
    lam = np.linalg.lstsq(A.T, np.ones(vertices), rcond=None)[0]
    # Weights differ where cycles leave a choice; what reaches each vertex does not.
    found = at_vertices(dict(enumerate(drawn)), vertices)
    # Small 0/1 matrices: singular values above 0.1, numbers below 10.
    np.testing.assert_allclose(found, lam @ A, atol=1e-11)
    # The error can be read off the weights: ‖α − 1‖² = vertices − Σα.
    assert np.square(found - 1).sum() == pytest.approx(vertices - found.sum(), abs=1e-10)


@pytest.mark.parametrize(("vertices", "d"), [(16, 3), (12, 4), (5, 4)])
def test_graphs_are_regular_and_simple(vertices: int, d: int) -> None:
    edges = regular_graph(vertices, d)
    assert len(set(edges)) == len(edges) == vertices * d // 2
    assert all(a < b for a, b in edges)
    assert (np.bincount(np.ravel(edges)) == d).all()


def test_errors_under_random_losses() -> None:
    """As published: 24 workers, d = 3, of which each is missing with probability 0.2."""
    edges = dict(enumerate(regular_graph(16, 3)))
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(2000):
        kept = {key: edge for key, edge in edges.items() if rng.random() > 0.2}
        errors.append(np.square(at_vertices(kept, 16) - 1).mean())
    mean, off = np.mean(errors), 5 * np.std(errors) / np.sqrt(len(errors))
    # The graph is another; fractional repetition has 0.2³ = 0.0080, and none is below that.
    assert 0.008 - off < mean < 0.0095 + off


def test_a_few_bad_losses_cost_a_graph_code_half() -> None:
    """Three workers lost at worst: fractional repetition loses a block of 8, a graph one of 16."""
    edges = dict(enumerate(regular_graph(16, 3)))
    around = [key for key, edge in edges.items() if 0 in edge]
    kept = {key: edge for key, edge in edges.items() if key not in around}
    graph = np.square(at_vertices(kept, 16) - 1).sum() / 16
    assert graph == pytest.approx(1 / 16, abs=1e-12)  # one of 16 groups
    made = kofn.FractionalRepetition(3, "whole").assign(24, 24)
    missing = {part for part in range(24) if part in made.parts(0)}
    assert len(missing) / 24 == 1 / 8


def test_a_graph_code_through_a_cluster() -> None:
    X = np.random.default_rng(1).standard_normal((48, 3))
    with kofn.connect(VirtualEngine(24, delays=Exponential(mean=1.0))) as cluster:
        parts = cluster.parts(X, GraphCode(3), parts=16)
        assert parts.assignment.k == 23  # whichever one is missing
        whole = parts.sum(lambda part, x: part.sum(axis=0))
        assert whole.exact
        # Weights are sums along paths of at most 16 edges.
        np.testing.assert_allclose(whole.value, X.sum(axis=0), atol=1e-12)
        near = parts.sum(lambda part, x: part.sum(axis=0), stop=kofn.first(12))
        ones = parts.sum(lambda part, x: float(len(part)), stop=kofn.first(12))
        assert ones.value == pytest.approx(48.0, rel=1e-12)  # covered: alike parts are right
        assert near.covered < 1 or near.exact


def test_bad_graphs_are_refused() -> None:
    with pytest.raises(kofn.BadInput, match="divide 2n"):
        GraphCode(3).assign(20, 10)
    with pytest.raises(kofn.BadInput, match="above d"):
        GraphCode(4).assign(20, 6)
    with pytest.raises(kofn.BadInput, match="16 groups"):
        GraphCode(3).assign(8, 24)
    with pytest.raises(kofn.BadInput, match="d"):
        GraphCode(1)


P = (0.05, 0.5, 0.2, 0.3, 0.6, 0.1)


def test_unbiased_weights_of_unequal_workers_have_the_sum_as_their_mean() -> None:
    code = ReliableRepetition(P, 2).assign(6, 6)
    terms = np.arange(1.0, 7.0)[:, None]
    mean = 0.0
    for here in product((False, True), repeat=6):
        chance = float(np.prod([1 - p if yes else p for p, yes in zip(P, here, strict=True)]))
        tally = tally_of(code)
        for slot in np.flatnonzero(here).tolist():
            row = code.symbols(slot)[0].dense(6)
            tally.take(slot, 0, 1, row[None] @ terms)
        if any(here):
            value, _ = tally.value("unbiased", sum(here))
            assert value is not None
            mean += chance * float(value[0][0])
    assert mean == pytest.approx(21.0, rel=1e-12)


def test_groups_are_equally_likely_to_be_missing() -> None:
    groups = grouped(P, 2)
    assert sorted(slot for group in groups for slot in group) == list(range(6))
    gone = [P[a] * P[b] for a, b in groups]
    assert max(gone) / min(gone) < 2.5

    assert max(gone) < 0.07


def test_a_cluster_of_unequal_workers() -> None:
    with kofn.connect("virtual", workers=6) as cluster:
        parts = cluster.parts(np.ones(12), ReliableRepetition(P, 2))
        cluster.lose(1)
        assert parts.sum(lambda part, x: part.sum()).value == pytest.approx(12.0, rel=1e-12)
        found = parts.sum(lambda part, x: part.sum(), stop=kofn.first(1), weights="unbiased")
        assert not found.exact
        with pytest.raises(kofn.BadInput, match="a chance for each"):
            cluster.parts(np.ones(12), ReliableRepetition((0.1, 0.2), 2))
        with pytest.raises(kofn.BadInput, match="missing"):
            ReliableRepetition((0.1, 1.0))
