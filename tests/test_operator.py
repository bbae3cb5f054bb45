"""A coded matrix is a linear operator: SciPy's solvers take it as it is, through kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg as sla
from numpy.typing import NDArray
from support import SOAK, until

import kofn
from kofn.arrays.baselines import Replicated, uncoded
from kofn.arrays.grid import encode_grid
from kofn.arrays.rateless import Rateless
from kofn.arrays.store import write_store
from kofn.codes import LowWeightCode
from kofn.codes.mds import MDSCode
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.testing import Faults

EPS = float(np.finfo(np.float64).eps)
COND = 20.0  # of the data: the largest singular value is 1, and all are well apart


def made(rows: int, columns: int) -> NDArray[np.float64]:
    """A matrix with singular values from 1 down to 1 / COND, at equal distances."""
    rng = np.random.default_rng(0)
    U, _ = np.linalg.qr(rng.standard_normal((rows, columns)))
    V, _ = np.linalg.qr(rng.standard_normal((columns, columns)))
    return np.asarray((U * np.linspace(1.0, 1 / COND, columns)) @ V.T)


def svd(A: Any, k: int = 10) -> NDArray[Any]:
    """The best approximation of rank k, which has no signs to choose."""
    v0 = np.random.default_rng(1).standard_normal(min(A.shape))
    U, s, Vt = sla.svds(A, k, v0=v0)
    return np.concatenate([np.ravel((U * s) @ Vt), np.sort(s)])


B = np.random.default_rng(2).standard_normal
SOLVERS: dict[str, Callable[[Any], Any]] = {
    "svds": lambda A: svd(A, 3),
    "svds, lobpcg": lambda A: np.sort(
        sla.svds(A, 3, solver="lobpcg", v0=B(A.shape[1]), tol=1e-9, return_singular_vectors=False)
    ),
    "eigsh": lambda A: sla.eigsh(A.T @ A, 3, v0=np.ones(A.shape[1]), return_eigenvectors=False),
    "lsqr": lambda A: sla.lsqr(A, np.arange(A.shape[0]), atol=1e-14, btol=1e-14)[0],
    "lsmr": lambda A: sla.lsmr(A, np.arange(A.shape[0]), atol=1e-14, btol=1e-14, maxiter=99)[0],
    "cg": lambda A: sla.cg(A.T @ A, A.T @ np.arange(float(A.shape[0])), rtol=1e-14)[0],
    "lobpcg": lambda A: sla.lobpcg(A.T @ A, np.eye(A.shape[1])[:, :2], tol=1e-12, maxiter=200)[0],
    "lsq_linear": lambda A: (
        scipy.optimize.lsq_linear(
            A, np.arange(A.shape[0]), lsq_solver="lsmr", lsmr_tol=1e-14, lsmr_maxiter=99
        ).x
    ),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.filterwarnings("ignore:Exited:UserWarning")  # lobpcg, of what rounding leaves
def test_a_solver_gives_the_same_while_workers_are_lost_and_join(solver: str) -> None:
    A = made(300, 20)
    faults = Faults().lose(worker=2, round=2).lose(worker=0, round=5).join(round=8)
    with kofn.connect(faults.on(VirtualEngine(6))) as cluster:
        X = cluster.encode(A, k=3)
        found = SOLVERS[solver](X)
        assert {0, 2}.isdisjoint(cluster.workers)
    expected = SOLVERS[solver](A)
    # A solution is off by the error of a product times the square of the condition, an eigenvalue
    # that lobpcg was told to find to 1e-9 by that, squared or not.
    within = 1e-8 if "lobpcg" in solver else 1e3 * EPS * COND**2
    np.testing.assert_allclose(found, expected, rtol=0, atol=within * np.abs(expected).max())


@pytest.mark.engine
def test_svds_and_lsqr_with_workers_killed_are_scipys_to_1e_8() -> None:
    rows, columns = (50_000, 500) if SOAK > 1 else (4000, 60)
    A = made(rows, columns)
    b = np.random.default_rng(3).standard_normal(rows)

    def solved(M: Any) -> Any:
        return sla.lsqr(M, b, atol=1e-13, btol=1e-13)[0]

    faults = Faults()
    for worker, round in ((1, 4), (4, 11), (5, 70), (0, 90)):
        faults = faults.lose(worker=worker, round=round)
    faults = faults.join(round=80)
    with kofn.connect(faults.on(LocalEngine(6)), wait=300.0) as cluster:
        X = cluster.encode(A, k=3)
        values = svd(X)
        solution = solved(X)
        until(lambda: {0, 1, 4, 5}.isdisjoint(cluster.workers), "the news of the losses")
        assert X.report.round > 90
    for found, expected in ((values, svd(A)), (solution, solved(A))):
        apart = float(np.abs(found - expected).max() / np.abs(expected).max())
        print(f"{rows} x {columns}: {apart:.1e} apart")
        assert apart < 1e-8


def test_it_is_an_operator_with_all_its_products() -> None:
    rng = np.random.default_rng(4)
    A = rng.standard_normal((40, 6))
    v, z, V, Z = (rng.standard_normal(shape) for shape in (6, 40, (6, 3), (40, 3)))
    with kofn.connect("virtual", workers=4) as cluster:
        wide = cluster.encode(A.T, k=2, axis=1)
        X: Any
        for X in (cluster.encode(A, k=2), Replicated(cluster, A, 2), wide.T):
            same: Any = sla.aslinearoperator(X)
            assert same is X
            assert X.shape == (40, 6) == X.T.shape[::-1]
            assert X.dtype == X.T.dtype == np.float64
            near = 100 * EPS * float(np.linalg.norm(A)) ** 2 * 40
            for found, expected in (
                (X.matvec(v), A @ v),
                (X.rmatvec(z), A.T @ z),
                (X.matmat(V), A @ V),
                (X.rmatmat(Z), A.T @ Z),
                (X.matvec(v[:, None]), (A @ v)[:, None]),
                (z @ X, z @ A),
                (Z.T @ X, Z.T @ A),
                (z * X, z @ A),
                (Z.T * X, Z.T @ A),
                (z.tolist() * X, z @ A),
                (v * X.T, A @ v),
                (X * v, A @ v),
                (np.matmul(X, v), A @ v),
                ((X.T @ X) @ v, A.T @ (A @ v)),
                ((X @ X.T) @ z, A @ (A.T @ z)),
                ((2 * X) @ v, 2 * A @ v),
                ((np.float64(2.0) * X) @ v, 2 * A @ v),
                ((X - X / 2).T @ z, A.T @ z / 2),
                (X.H @ z, A.T @ z),
                (X(v), A @ v),
            ):
                np.testing.assert_allclose(found, expected, rtol=0, atol=near)
            with pytest.raises(ValueError, match="dimension mismatch"):
                X.matvec(z)
            with pytest.raises(ValueError, match="takes a vector or a matrix"):
                X @ 2
            assert X.args == ()


def numbers(shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    """Random numbers of a type; complex ones have two parts."""
    rng = np.random.default_rng(5)
    real = rng.integers(0, 9, shape) if kind in "?bhil" else rng.standard_normal(shape)
    return np.asarray(real + 1j * rng.standard_normal(shape) if kind in "FD" else real).astype(kind)


@pytest.mark.parametrize("held", ["f", "d"])
def test_results_have_the_type_that_numpy_gives_them(held: str) -> None:
    A = numbers((40, 6), held)
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        for one, M in (
            (X, A),
            (X.rows([7, 30]), A[[7, 30]]),
            (cluster.encode(scipy.sparse.csr_array(A), k=2), A),
            (Replicated(cluster, A, 2), A),
            (encode_grid(cluster, A[:, :1], grid=(2, 1)), A[:, :1]),
        ):
            for kind in "?bilefdFD":
                w, Z = numbers(M.shape[1:], kind), numbers((len(M), 2), kind)
                for found, expected in ((one @ w, M @ w), (one.T @ Z, M.T @ Z)):
                    assert found.dtype == expected.dtype, kind
                    # Up to 40 terms of at most 36 each, and an η below 3.
                    off = 40 * 36 * 3 * np.finfo(expected.dtype).eps
                    np.testing.assert_allclose(found, expected, rtol=0, atol=off)
        assert (X @ np.ones(6, np.longdouble)).dtype == np.float64  # there is none larger
        with pytest.raises(kofn.BadInput, match=r"w must hold real numbers.*or complex ones"):
            X @ np.array(["1"] * 6)


def test_few_rows_come_from_plain_blocks_to_the_last_bit() -> None:
    A = np.array([[1, 2, 3], [4, 5, 6]])
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A, k=3)
        assert (X @ [1, 2, 3]).tolist() == [14, 32]
        assert (X.T @ np.array([1, 2j])).tolist() == [1 + 8j, 2 + 10j, 3 + 12j]


HELD: dict[str, Callable[[kofn.Cluster, Any, Path], Any]] = {
    "dense": lambda c, A, _: c.encode(A, k=3),
    "sparse": lambda c, A, _: c.encode(scipy.sparse.csr_array(A), k=3),
    "low weight": lambda c, A, _: c.encode(A, code=LowWeightCode(6, 3)),
    "columns": lambda c, A, _: c.encode(A.T, k=3, axis=1).T,
    "probe": lambda c, A, _: c.encode(A, k=3, verify="probe"),
    "parity": lambda c, A, _: c.encode(A, k=3, margin=1, verify="parity"),
    "grid": lambda c, A, _: encode_grid(c, A, grid=(2, 1)),
    "file": lambda c, A, folder: c.encode(saved(folder / "A.npy", A), k=3),
    "replicated": lambda c, A, _: Replicated(c, A, 3),
}


def saved(path: Path, A: NDArray[Any]) -> Path:
    np.save(path, A)
    return path


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_float64_operand_keeps_its_digits_beside_a_float32_matrix(
    kind: str, scaled: bool, tmp_path: Path
) -> None:
    A, w, z = numbers((50, 6), "f"), numbers((6,), "d"), numbers((50,), "d")
    if scaled:
        A *= np.float32(10.0) ** np.arange(-2, 3, dtype=np.float32).repeat(10)[:, None]
    wide = A.astype(float)
    with kofn.connect("virtual", workers=6) as cluster:
        X = HELD[kind](cluster, A, tmp_path)
        for lost in (0, 1, 2):
            for worker in cluster.workers[: lost > 0]:
                cluster.lose(worker)
            for found, expected, size in (
                (X @ w, wide @ w, np.linalg.norm(A, axis=1).max() * np.linalg.norm(w)),
                (X.T @ z, wide.T @ z, np.linalg.norm(A, axis=1) @ np.abs(z)),
            ):
                bound = X.report.error_bound
                assert bound < 1e-13
                assert np.linalg.norm(found - expected) <= bound * size * np.sqrt(50)
        cluster.join()
        cluster.join()
        cluster.lose(cluster.workers[0])  # who joined has such a share too
        np.testing.assert_allclose(X @ w, wide @ w, rtol=0, atol=1e-13 * np.abs(A).max())
        single = X @ w.astype("f")
        assert single.dtype == np.float32
        assert X.report.error_bound > 1e-7
        np.testing.assert_allclose(single, wide @ w, rtol=0, atol=1e-5 * np.abs(A).max())


def test_coded_shares_of_float32_are_made_again_once_and_for_fewer_workers_too() -> None:
    A, w = numbers((60, 6), "f"), numbers((6,), "d")
    with kofn.connect("virtual", workers=8) as cluster:
        X = cluster.encode(A)
        X @ w.astype("f")
        assert not X.report.tuned
        X @ w
        assert "coded shares in float64" in X.report.tuned[0]
        X @ w
        assert not X.report.tuned
        for worker in cluster.workers[:6]:  # fewer than k are left
            cluster.lose(worker)
        np.testing.assert_allclose(X @ w, A.astype(float) @ w, rtol=0, atol=1e-14)
        assert X.code.k < 4
        plain = uncoded(cluster, A)  # every share is a block
        plain @ w
        assert not plain.report.tuned
        assert (plain.report.error_bound or 1.0) < 1e-13


@pytest.mark.parametrize("how", ["store", "update"])
def test_the_bound_knows_that_float32_shares_cannot_be_made_again(how: str, tmp_path: Path) -> None:
    A, w = numbers((60, 6), "f"), numbers((6,), "d")
    with kofn.connect("virtual", workers=5) as cluster:
        X: Any = cluster.encode(A, k=3)
        if how == "store":
            write_store(A, tmp_path / "store", MDSCode(5, 3))
            X = cluster.encode(tmp_path / "store")
        else:
            X += np.zeros_like(A)
        result = X @ w
        assert result.dtype == np.float64
        assert X.report.error_bound > 1e-7
        off = np.linalg.norm(result - A.astype(float) @ w)
        assert off <= X.report.error_bound * np.linalg.norm(A) * np.linalg.norm(w)


def test_cg_on_a_float32_matrix_meets_its_tolerance() -> None:
    A, b = numbers((40, 40), "f"), np.arange(40.0)
    A = A @ A.T + 40 * np.eye(40, dtype="f")
    with kofn.connect("virtual", workers=5) as cluster:
        x, failed = sla.cg(cluster.encode(A, k=3), b, rtol=1e-8)
    assert failed == 0
    # What the recurrence and the residual drift apart by is the square root of that, at most.
    assert np.linalg.norm(A.astype(float) @ x - b) <= 1e-8 * np.linalg.norm(b) * (1 + 1e-6)


@pytest.mark.parametrize("held", ["f", "d"])
def test_complex_numbers_are_two_columns_of_one_round(held: str) -> None:
    A = numbers((40, 6), held)
    v, z, V, Z = (numbers(shape, "D") for shape in ((6,), (40,), (6, 3), (40, 3)))
    with kofn.connect("virtual", workers=5) as cluster:
        X: Any = cluster.encode(A, k=3)
        X @ np.ones(6)  # what float32 needs beside a float64 operand is there
        rounds = X.report.round
        for found, expected in (
            (X @ v, A @ v),
            (X.T @ z, A.T @ z),
            (X @ V, A @ V),
            (X.rows([3, 30]) @ V[:, ::2], A[[3, 30]] @ V[:, ::2]),
            (X.H @ Z, A.T @ Z),
            (X.rmatvec(z), A.T @ z),
            (Z.T @ X, Z.T @ A),
            ((2j * X).rmatvec(z), -2j * (A.T @ z)),
            ((X.T @ X) @ v, A.T @ (A @ v)),
            (Rateless(cluster, A.astype(float)) @ v, A @ v),
        ):
            assert found.dtype == np.complex128
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert X.report.round == rounds + 10  # that of two operators takes two
        assert (X @ V.astype("F")).dtype == (np.complex64 if held == "f" else np.complex128)
        assert (X @ V[:, :0]).shape == (40, 0)
        with pytest.raises(kofn.BadInput, match="vector of real numbers"):
            cluster.encode(np.eye(4), k=2).iterate(lambda y: y, np.ones(4) * 1j, 1)
