"""Rows of very different size: every row is right to its own size, by every way in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import examples

import kofn
from kofn.arrays import store as stores
from kofn.arrays.grid import encode_grid
from kofn.arrays.scales import SPREAD, ZERO, lengths, scales_of
from kofn.arrays.store import open_store, write_store
from kofn.codes.mds import MDSCode
from kofn.codes.polydot import PolyDotCode
from kofn.engines.virtual import VirtualEngine

Array = NDArray[Any]


def dense(A: Any) -> Array:
    return np.asarray(A if isinstance(A, np.ndarray) else A.toarray())


def sizes(A: Any, k: int) -> Array:
    """The length of every row, (N,); one of zeros counts as the smallest of its place."""
    length: Array = np.linalg.norm(dense(A).astype(np.longdouble), axis=1)
    B = -(-len(length) // k)
    for r in range(B):
        mine = length[r::B]
        mine[mine == 0] = mine[mine > 0].min(initial=np.inf) if mine.any() else 0.0
    return length


def row_by_row(y: Array, A: Any, w: Array, X: Any, times: float = 1.0) -> None:
    """Every row is right to 2^(SPREAD+1) √k times the bound, relative to its own length.

    The k rows of a place are within that factor of each other, or are scaled to be.
    """
    M = dense(A).astype(np.longdouble)
    exact = (M @ w.astype(np.longdouble)).reshape(len(y), -1)
    blocks = X.code.m if isinstance(X.code, PolyDotCode) else X.code.k
    size = sizes(A, blocks)[:, None] * np.linalg.norm(w.reshape(len(w), -1), axis=0)
    bound = X.report.error_bound * 2.0 ** (SPREAD + 1) * np.sqrt(X.code.k) * times
    least = len(w) * float(np.finfo(y.dtype).smallest_subnormal)  # below it there are no numbers
    off = np.abs(y.reshape(len(y), -1) - exact)
    assert (off <= bound * size + least).all(), (off / (size + least)).max()


def by_terms(y: Array, A: Any, z: Array, X: Any, times: float = 1.0) -> None:
    """Aᵀ z is right relative to Σ |row| |z|, the terms that it is the sum of."""
    M = dense(A).astype(np.longdouble)
    exact = M.T @ z.astype(np.longdouble)
    size = float(sizes(A, X.code.k) @ np.abs(z))
    bound = X.report.error_bound * 2.0 ** (SPREAD + 1) * X.code.k * times
    least = len(z) * float(np.finfo(y.dtype).smallest_subnormal)
    assert float(np.linalg.norm(y - exact)) <= bound * size + least


def uneven(rng: np.random.Generator, shape: tuple[int, int], most: float, dtype: Any) -> Array:
    A = rng.standard_normal(shape) * 10.0 ** rng.uniform(-most, most, (shape[0], 1))
    A[rng.random(shape[0]) < 0.1] = 0.0
    return A.astype(dtype)


def test_one_row_of_1e20_among_ones() -> None:
    A = np.ones((400, 10))
    A[0] *= 1e20
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        y = X @ np.ones(10)
        assert abs(y[200] - 10) <= 1e-13
        row_by_row(y, A, np.ones(10), X)
        np.testing.assert_allclose(X.toarray()[200], 1.0, rtol=1e-14)
        np.testing.assert_allclose(X.T @ np.eye(400)[200], 1.0, rtol=1e-14)


@pytest.mark.parametrize("side", ["X @ W", "X.T @ Z"])
def test_the_bound_holds_where_the_longest_row_of_a_set_is_decoded_worst(side: str) -> None:
    """One row set of 70 rows: its error may be all in the one row that counts."""
    n, k, rng = 100, 70, np.random.default_rng(0)
    with kofn.connect(VirtualEngine(n)) as cluster:
        for worker in rng.permutation(n)[: n - k - 1].tolist():
            cluster.lose(worker)
        A = rng.standard_normal((k, 2))
        X = cluster.encode(A, k=k)
        windows = X.windows()
        asked = tuple(sorted(share for worker, share in X.shares.items() if windows[worker]))
        lengths = [np.linalg.norm(X.code.row(share)) for share in asked]
        each = np.linalg.norm(X.code.weights(asked).matrix * lengths, axis=1)
        A[each.argmax()] *= 1e6
        X, wide = cluster.encode(A, k=k), A.astype(np.longdouble)
        B = rng.standard_normal((2 if side == "X @ W" else k, 200))
        if side == "X @ W":
            off = np.linalg.norm(X @ B - wide @ B, axis=0)
            size = np.linalg.norm(A) * np.linalg.norm(B, axis=0)
        else:
            off = np.linalg.norm(X.T @ B - wide.T @ B, axis=0)
            size = np.linalg.norm(A, axis=1) @ np.abs(B)
        assert (off <= (X.report.error_bound or 0.0) * size).all()


@pytest.mark.slow
@examples(150)
@given(st.data())
def test_rows_of_any_size_by_every_product(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    k = data.draw(st.integers(1, n))
    N, d = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 9))
    dtype, most = data.draw(st.sampled_from([(np.float64, 150.0), (np.float32, 15.0)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    axis: Any = data.draw(st.sampled_from([0, 1]))
    M = uneven(rng, (N, d), most, dtype)
    A: Any = M if data.draw(st.booleans()) else scipy.sparse.csr_array(M)
    w, z = rng.standard_normal(d).astype(dtype), rng.standard_normal(N).astype(dtype)
    with kofn.connect("virtual", workers=n) as cluster:
        X = cluster.encode(A if axis == 0 else A.T if A is M else A.T.tocsr(), k=k, axis=axis)
        X = X if axis == 0 else X.T  # cut by columns: the rows of its transpose are mixed
        assert isinstance(X, kofn.CodedMatrix)
        row_by_row(X @ w, M, w, X)
        by_terms(X.T @ z, M, z, X)
        for _ in range(n - k):
            cluster.lose(int(rng.choice(cluster.workers)))
        row_by_row(X @ w, M, w, X)
        W = rng.standard_normal((d, 3)).astype(dtype)
        row_by_row(X @ W, M, W, X)
        got = X.toarray()
        row_by_row(got, M, np.eye(d, dtype=dtype), X)


@pytest.mark.parametrize("make", ["rows", "grid"])
def test_updates_and_rebuilt_shares_of_scaled_rows(make: str) -> None:
    rng = np.random.default_rng(3)
    A = uneven(rng, (40, 7), 60.0, np.float64)
    with kofn.connect("virtual", workers=7) as cluster:
        X = cluster.encode(A, k=3) if make == "rows" else encode_grid(cluster, A, (2, 2))
        assert X._scales is not None
        now, velocity = A.astype(np.longdouble), np.zeros((40, 7), np.longdouble)
        size = np.linalg.norm(A, axis=1, keepdims=True)
        for step in range(3):
            # An update of each row's own size, or the row is another one afterwards.
            U, V = rng.standard_normal((40, 2)) * size, rng.standard_normal((7, 2))
            X += kofn.low_rank(U, V)
            now = now + U @ V.T
            X.move(kofn.low_rank(U, V), 0.5)
            velocity = 0.5 * velocity + U @ V.T
            now = now + velocity
            X += U @ V.T
            now = now + U @ V.T
            cluster.lose(step)
            cluster.join()
            w = rng.standard_normal(7)
            row_by_row(X @ w, now, w, X, times=20)  # as many roundings of each share
            if make == "rows":
                by_terms(X.T @ np.ones(40), now, np.ones(40), X, times=20)
        row_by_row(X.toarray(), now, np.eye(7), X, times=20)


def test_iterations_of_scaled_rows() -> None:
    rng = np.random.default_rng(4)
    A = uneven(rng, (24, 24), 20.0, np.float64)
    A[0] = 0.0
    scale = np.linalg.norm(A, axis=1)
    inverse = np.divide(1.0, scale, out=np.zeros(24), where=scale > 0)
    with kofn.connect("virtual", workers=5) as cluster:
        X = cluster.encode(A, k=3)
        assert X._scales is not None
        w = X.iterate(lambda y: inverse * y, np.ones(24), rounds=3)
        expected = np.ones(24)
        for _ in range(3):
            expected = inverse * (A @ expected)
        np.testing.assert_allclose(w, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["npy", "csr"])
def test_files_and_stores_of_scaled_rows(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    A = uneven(rng, (101, 6), 100.0, np.float64)
    w = rng.standard_normal(6)
    source: Any = str(tmp_path / "A.npy")
    np.save(source, A)
    if kind == "csr":
        source = scipy.sparse.csr_array(A)
    write_store(source, tmp_path / "store", MDSCode(5, 3))
    store = open_store(tmp_path / "store")
    store.verify()
    assert store.scales() is not None
    with kofn.connect("virtual", workers=5) as cluster:
        for given_ in (source, store):
            X = cluster.encode(given_, k=3)
            row_by_row(X @ w, A, w, X)
        cluster.lose(0)
        cluster.lose(1)
        row_by_row(X @ w, A, w, X)
    (tmp_path / "store" / "scales.npy").write_bytes(b"no")
    with pytest.raises(kofn.BadStore, match=r"scales\.npy"):
        store.verify()
    with kofn.connect("virtual", workers=5) as cluster, pytest.raises(kofn.BadStore):
        cluster.encode(store)
    if kind == "npy":  # the source is still there: it is written again
        with pytest.warns(kofn.errors.StoreWarning, match=r"scales\.npy"):
            write_store(source, tmp_path / "store", MDSCode(5, 3))
        open_store(tmp_path / "store").verify()


def test_a_store_that_was_stopped_goes_on_with_the_same_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kofn.arrays import coding

    A = uneven(np.random.default_rng(6), (90, 4), 100.0, np.float64)
    np.save(tmp_path / "A.npy", A)
    monkeypatch.setattr(coding, "BUDGET", 2000)  # a few rows at a time
    monkeypatch.setattr(stores, "MARK_BYTES", 1)

    def stop(done: int, rows: int) -> None:
        if done > rows / 2:
            raise KeyboardInterrupt

    code = MDSCode(4, 2)
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "A.npy", tmp_path / "one", code, progress=stop)
    (tmp_path / "one" / "share-0003.npy.part").unlink()  # written again from the beginning
    write_store(tmp_path / "A.npy", tmp_path / "one", code)
    write_store(tmp_path / "A.npy", tmp_path / "two", code)
    one, two = open_store(tmp_path / "one"), open_store(tmp_path / "two")
    assert one.manifest.scales == two.manifest.scales
    assert one.manifest.scales is not None
    for share in range(4):  # one of them added up in another order
        np.testing.assert_allclose(one.share(share), two.share(share), rtol=0, atol=1e-15)


def test_even_rows_are_left_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for shape in ((600, 20), (4, 1000), (7, 50)):
        A = rng.standard_normal(shape)
        assert scales_of(A, 3) is None
        assert scales_of(np.zeros(shape), 3) is None
    A[::3] = 0.0
    assert scales_of(A, 3) is None  # zero rows fit any place
    assert scales_of(A * 1e300, 3) is None
    assert scales_of(A * 1e-310, 3) is None
    write_store(A, tmp_path / "store", MDSCode(4, 3))
    assert open_store(tmp_path / "store").manifest.scales is None
    assert not (tmp_path / "store" / "scales.npy").exists()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lengths_of_rows_of_every_size(dtype: Any, sparse: bool) -> None:
    info = np.finfo(dtype)
    sizes = [info.max / 4, 1e18, 3.0, 1.0, 1e-18, info.tiny, float(info.smallest_subnormal) * 9]
    A = np.array([[size, size, 0.0] for size in sizes] + [[0.0] * 3], dtype)
    found = lengths(scipy.sparse.csr_array(A) if sparse else A).astype(int)
    assert found[-1] == ZERO
    exact = np.sqrt(np.longdouble(2)) * A[:-1, 0].astype(np.longdouble)
    assert (exact < np.ldexp(np.longdouble(1), found[:-1])).all()
    assert (exact >= np.ldexp(np.longdouble(1), found[:-1] - 1)).all()
    A[0, 2] = np.nan
    A[1, 2] = np.inf
    found = lengths(scipy.sparse.csr_array(A) if sparse else A)
    assert (found[[0, 1, -1]] == ZERO).all()
    assert (found[2:-1] != ZERO).all()


def test_subnormal_rows_are_right_to_the_last_of_their_digits() -> None:
    A = np.full((4, 3), 1.0)
    A[2] = 5e-320
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(A, k=2)
        assert abs((X @ np.ones(3))[2] - 3 * 5e-320) <= 3 * 5e-324


def test_an_update_that_is_too_large_beside_a_scaled_row_is_refused() -> None:
    A = np.ones((4, 3))
    A[0] = 1e-250
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(A, k=2)
        with pytest.raises(kofn.errors.Overflowed, match="beside those that they are added to"):
            X += np.full((4, 3), 1e100)
        assert X.updates == 0


@pytest.mark.parametrize(
    ("rows", "size", "dtype", "refused"),
    [
        ((1e3, 1.0, 0.0), 100.0, np.float64, False),
        ((1e6, 1e-6, 0.0), 1.0, np.float64, False),
        ((1e6, 1e-6, 0.0), 1e7, np.float64, True),
        ((1e150, 1e-150, 0.0), 1.0, np.float64, True),
        ((1e10, 1e-20, 1.0), 1.0, np.float32, True),
    ],
)
@pytest.mark.parametrize("way", ["low rank", "array", "move"])
def test_the_bound_knows_what_updates_do_to_scaled_rows(
    rows: tuple[float, ...], size: float, dtype: Any, refused: bool, way: str
) -> None:
    rng = np.random.default_rng(0)
    A = (np.array(rows)[:, None] * rng.uniform(0.5, 1.0, (3, 4))).astype(dtype)
    U, V = np.full((3, 1), size, dtype), np.ones((4, 1), dtype)
    with kofn.connect("virtual", workers=5) as cluster:
        X = cluster.encode(A, k=3)
        cluster.lose(1)  # so that something is decoded
        if way == "move":
            X.move(kofn.low_rank(U, V), 0.5)
        else:
            X += kofn.low_rank(U, V) if way == "low rank" else U @ V.T
        if refused:
            with pytest.raises(kofn.Inaccurate, match="encode a matrix anew"):
                X @ V
            return
        y, z = X @ V, X.T @ np.ones(3, dtype)
        bound = X.report.error_bound
    whole = A.astype(np.longdouble) + U @ V.T
    most = np.maximum(np.abs(A), np.abs(U @ V.T))  # the largest that it has been
    size_of = float(np.linalg.norm(most))
    assert bound is not None
    assert float(np.linalg.norm(y - whole @ V)) <= bound * size_of * float(np.linalg.norm(V))
    assert float(np.linalg.norm(z - whole.sum(axis=0))) <= bound * size_of * np.sqrt(3)
    assert bound < 1e-6


@given(st.integers(0, 2**32))
@examples(40)
def test_the_bound_holds_after_updates_of_ordinary_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = [(6, 3), (16, 2), (5, 5)][seed % 3]
    A, U, V = (rng.standard_normal(shape) for shape in ((60, 1), (60, 1), (1, 1)))
    with kofn.connect("virtual", workers=n) as cluster:
        X = cluster.encode(A, k=k)
        if n > k:
            cluster.lose(0)
        X += kofn.low_rank(U, V)
        try:
            y, bound = X @ np.ones(1), X.report.error_bound
        except kofn.Inaccurate:
            return  # the update has cancelled too much of the rows: refused, and not wrong
    error = np.abs(y - (A + U @ V.T)[:, 0])
    B = -(-60 // k)
    places = np.zeros((2, k * B))
    places[:, :60] = error, np.maximum(np.abs(A), np.abs(U @ V.T))[:, 0]
    by_place = np.linalg.norm(places.reshape(2, k, B), axis=1)
    assert bound is not None
    assert (by_place[0] <= bound * by_place[1]).all()
