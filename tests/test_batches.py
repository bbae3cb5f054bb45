"""Products with some rows of a coded matrix, and stochastic descent by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from support import examples

import kofn
from kofn.arrays.grid import encode_grid
from kofn.engines.virtual import VirtualEngine
from kofn.testing import Faults


@examples(60)
@given(st.data())
def test_rows_multiply_through_losses_and_joins(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 4))
    n = k + data.draw(st.integers(1, 3))
    N, d = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    faults, spare = Faults(), n - k
    for round in range(1, 6):
        if spare and data.draw(st.booleans()):
            faults = faults.lose(worker=data.draw(st.integers(0, n - 1)), round=round)
            spare -= 1
        if data.draw(st.booleans()):
            faults = faults.join(round=round)
    A: Any = rng.standard_normal((N, d)) * 10.0 ** rng.integers(-8, 8, (N, 1))
    given_as = scipy.sparse.csr_array(A) if data.draw(st.booleans()) else A
    width = () if data.draw(st.booleans()) else (3,)
    with kofn.connect(faults.on(VirtualEngine(n))) as cluster:
        X = cluster.encode(given_as, k=k)
        for _ in range(4):
            index = rng.integers(0, N, data.draw(st.integers(0, 2 * N)))
            w, z = rng.standard_normal((d, *width)), rng.standard_normal((len(index), *width))
            some = X.rows(index)
            assert some.shape == (len(index), d)
            y, back = some @ w, some.T @ z
            # Each row to the bound of its own length; a sum to that of all its terms.
            rows = np.linalg.norm(A[index], axis=1)
            error = np.abs(y - A[index] @ w)
            error = error if width else error[:, None]
            assert (error <= 1e-9 * (rows * np.linalg.norm(w))[:, None]).all()
            terms = np.abs(A[index]).T @ np.abs(z)
            assert (np.abs(back - A[index].T @ z) <= 1e-9 * terms.max(initial=0.0)).all()
            np.testing.assert_allclose(X @ w, A @ w, rtol=0, atol=1e-9 * np.abs(A @ w).max())


def test_batches_are_every_row_once_and_nothing_is_read_in_vain() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((103, 5))
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A, k=4)
        batches = list(X.batches(20, seed=1))
        assert sorted(np.concatenate(batches).tolist()) == list(range(103))
        for index in batches:
            np.testing.assert_allclose(X.rows(index) @ np.ones(5), A[index].sum(axis=1))
            assert X.report.rows_used <= len(index) + 4  # zeros fill up the last block
        X.rows([0, 1, 2]) @ np.ones(5)
        assert X.report.rows_used == 3 * 4  # three places of four shares, for three rows


def test_stochastic_descent_on_coded_rows_is_that_on_plain_rows() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((240, 8))
    truth = rng.standard_normal(8)
    y = A @ truth

    def descend(rows: Any) -> np.ndarray:
        w = np.zeros(8)
        for epoch in range(30):
            for index in X.batches(24, seed=epoch):
                some = rows(index)
                w = w - 0.3 / len(index) * (some.T @ (some @ w - y[index]))
        return w

    with kofn.connect("virtual", workers=5) as cluster:
        X = cluster.encode(A, k=3)
        coded = descend(X.rows)
        plain = descend(lambda index: A[index])
    np.testing.assert_allclose(coded, plain, atol=1e-12)
    np.testing.assert_allclose(coded, truth, atol=1e-6)


def test_what_cannot_be_is_said() -> None:
    A = np.arange(40.0).reshape(10, 4)
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        with pytest.raises(kofn.BadInput, match="row numbers are below 10"):
            X.rows([3, 10])
        with pytest.raises(kofn.BadInput, match=r"row numbers must be .* rows of equal length"):
            X.rows([[1, 2], [3]])
        with pytest.raises(kofn.BadInput, match="whole numbers, or 10 booleans"):
            X.rows([0.5])
        np.testing.assert_allclose(X.rows([-1, 2]) @ np.ones(4), A[[-1, 2]].sum(axis=1))
        chosen = np.arange(10) % 3 == 0
        np.testing.assert_allclose(X.rows(chosen).T @ np.ones(4), A[chosen].sum(axis=0))
        with pytest.raises(kofn.CannotDo, match="verify"):
            cluster.encode(A, k=2, verify="probe").rows([0])
        with pytest.raises(kofn.CannotDo, match="grid"):
            encode_grid(cluster, A, (1, 2)).rows([0])
