"""A coded matrix is a linear operator: SciPy's solvers take it as it is, through kills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg as sla
from numpy.typing import NDArray
from support import SOAK

import kofn
from kofn.arrays.baselines import Replicated
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
    with kofn.connect(faults.on(LocalEngine(6)), wait=60.0) as cluster:
        X = cluster.encode(A, k=3)
        values = svd(X)
        solution = solved(X)
        assert {0, 1, 4, 5}.isdisjoint(cluster.workers)
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


def test_float32_stays_float32() -> None:
    A = np.ones((40, 6), np.float32)
    with kofn.connect("virtual", workers=4) as cluster:
        X = cluster.encode(A, k=2)
        assert X.matvec(np.ones(6)).dtype == X.rmatmat(np.ones((40, 2))).dtype == np.float32
