"""Sums of values that are mostly zero: the same as of arrays, for less."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kofn
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn import LogisticRegression
from kofn.learn.losses import logistic, multinomial, squared
from kofn.learn.terms import Narrow, Term, cut, narrow
from kofn.sums.rivals import Backups, Stale
from kofn.sums.scattered import Scattered

whole = st.integers(-9, 9).map(float)  # sums of these are exact
rows = arrays(np.float64, (3, 7), elements=whole)


def scattered(row: Any) -> Scattered:
    at = np.flatnonzero(row)
    return Scattered(at, row[at], len(row))


@given(rows)
def test_it_adds_as_the_array_it_stands_for(made: Any) -> None:
    a, b, c = (scattered(row) for row in made)
    assert np.array_equal(np.asarray(a), made[0])
    assert np.array_equal(np.asarray(a + b), made[0] + made[1])
    assert np.array_equal(np.asarray(2.0 * a + b), 2 * made[0] + made[1])
    total = made[2].copy()
    total += a + b
    assert np.array_equal(total, made.sum(axis=0))
    total -= a
    assert np.array_equal(total, made[1] + made[2])
    assert np.array_equal(np.add(made[0], c), made[0] + made[2])
    stack: Any = np.stack([a, b])
    assert stack.shape == (2, 7)
    assert np.array_equal(np.asarray(stack[1]), made[1])
    again = pickle.loads(pickle.dumps(a + b))
    assert np.array_equal(np.asarray(again), made[0] + made[1])
    assert again.dtype == np.float64


def repeated(part: Any, x: Any) -> Scattered:
    return Scattered(np.array([2, 0, 2, 2]), np.array([1, 2, 3, 4]), 4)


def test_where_an_index_repeats_its_values_add_up() -> None:
    one = repeated(None, None)
    assert np.asarray(one).tolist() == [2, 0, 8, 0]
    assert np.asarray(one + one).tolist() == [4, 0, 16, 0]
    with kofn.connect("virtual", workers=4) as cluster:
        assert cluster.parts([0] * 4).sum(repeated).value.tolist() == [8, 0, 32, 0]


def places(part: Any, x: Any) -> Any:
    return scattered(part[0] * x), np.asarray(part.sum())


@pytest.mark.parametrize(
    "code",
    [
        kofn.Uncoded(),
        kofn.FractionalRepetition(2),
        kofn.FractionalRepetition(3, "whole"),
        kofn.CyclicRepetition(2),
        kofn.CyclicRepetition(2, "whole"),
        kofn.CyclicRepetition(2, "whole", "random"),
    ],
)
def test_every_code_sums_them(code: kofn.SumCode) -> None:
    data = np.where(np.random.default_rng(0).random((6, 50)) < 0.1, 1.5, 0.0)
    with kofn.connect(VirtualEngine(6)) as cluster:
        found = cluster.parts(data, code).sum(places, 2.0)
    # Random coefficients lose digits: see numerics.
    assert np.allclose(found.value[0], 2 * data.sum(axis=0), atol=1e-9)
    assert np.isclose(found.value[1], data.sum())


@pytest.mark.engine
def test_on_processes_and_by_rivals() -> None:
    data = np.where(np.random.default_rng(0).random((8, 50)) < 0.1, 1.5, 0.0)
    with kofn.connect(LocalEngine(4)) as cluster:
        found = cluster.parts(data, kofn.FractionalRepetition(2), parts=8).sum(places, 2.0)
        assert np.allclose(found.value[0], 2 * data.sum(axis=0))
        assert np.allclose(Backups(cluster, data, parts=8).sum(places, 1.0)[0], data.sum(axis=0))
        seen: list[Any] = []

        def advance(t: int, time: float, total: Any, covered: float) -> Any:
            seen.append(total[0].copy())
            return None if t == 3 else 2.0

        Stale(cluster, data, parts=8).run(places, 1.0, advance, 4)
    assert np.allclose(seen[0], data.sum(axis=0))
    assert np.allclose(seen[-1], 2 * data.sum(axis=0))


@pytest.mark.parametrize(("loss", "m"), [(squared, 2), (logistic, 1), (multinomial, 3)])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("batch", [None, 0.5])
def test_narrow_parts_have_the_same_gradients(
    loss: Any, m: int, intercept: bool, batch: float | None
) -> None:
    rng = np.random.default_rng(0)
    X: Any = scipy.sparse.random_array((12, 40), density=0.05, format="csr", random_state=rng)
    y = np.eye(m)[rng.integers(0, m, 12)] if m > 1 else np.where(rng.random((12, 1)) < 0.5, 1.0, -1)
    weight, x = rng.random((12, 1)), rng.standard_normal((40 + intercept) * m)
    term = Term(loss, intercept, batch)
    wide = term((X, y, weight, np.arange(12)), (x, 3))
    slim = term((narrow(X), y, weight, np.arange(12)), (x, 3))
    assert isinstance(slim[0], Scattered)
    assert np.allclose(np.asarray(slim[0]), wide[0], rtol=1e-13, atol=1e-15)
    assert np.isclose(slim[1], wide[1])


def test_wide_sparse_data_are_kept_narrow_and_fitted_alike() -> None:
    rng = np.random.default_rng(0)
    X: Any = scipy.sparse.random_array((60, 400), density=0.02, format="csr", random_state=rng)
    y = np.where(X @ rng.standard_normal(400) > 0, 1, -1)
    parts = cut(X, y[:, None], np.ones((60, 1)), 4)
    assert [type(part[0]) for part in parts] == [Narrow] * 4
    assert sum(part[0].X.nnz for part in parts) == X.nnz
    dense = cut(X.toarray(), y[:, None], np.ones((60, 1)), 4)
    assert isinstance(dense, tuple)
    options: dict[str, Any] = {"solver": "coded-gradient", "tol": 1e-5, "max_iter": 5000}
    with kofn.connect("virtual", workers=4) as cluster:
        slim = LogisticRegression(cluster=cluster, **options).fit(X, y)
        wide = LogisticRegression(cluster=cluster, **options).fit(X.toarray(), y)
    assert np.allclose(slim.coef_, wide.coef_, atol=1e-4)


def test_bad_input() -> None:
    with pytest.raises(kofn.BadInput, match="as many"):
        Scattered(np.arange(3), np.zeros(2), 5)
    with pytest.raises(kofn.BadInput, match="as many"):
        Scattered(np.zeros(2), np.zeros(2), 5)
    with pytest.raises(kofn.BadInput, match="from 0 to 4"):
        Scattered(np.array([5]), np.zeros(1), 5)


@pytest.mark.slow
def test_no_type_is_cut_off() -> None:
    halves = kofn.Scattered(np.zeros(3000, int), np.ones(3000, np.float16), 2)
    assert np.asarray(halves)[0] == 3000.0  # above 2048 a half counts by twos
    total = np.zeros(2)
    with pytest.raises(TypeError, match="complex128 values cannot be added to an array of float64"):
        kofn.Scattered(np.arange(2), np.ones(2) * 1j, 2).add_to(total)
    with pytest.raises(TypeError, match="float64 values cannot be added to an array of int64"):
        kofn.Scattered(np.arange(2), np.full(2, 0.5), 2).add_to(total.astype(int))
    with kofn.connect("virtual", workers=2) as cluster:
        parts = cluster.parts([1, 2] * 3000, kofn.Uncoded())
        for kind in (np.float16, np.uint8, np.bool_, np.complex64):
            one = np.ones(1, kind)
            found = parts.sum(lambda part, x, one=one: kofn.Scattered(np.arange(1), one, 1))  # type: ignore[misc]
            assert found.value[0] == 6000
