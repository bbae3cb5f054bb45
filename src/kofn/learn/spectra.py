"""Singular values and vectors: by a few products, by Lanczos steps, or by one pass for XᵀX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, svds

from ..arrays import CodedMatrix
from ..arrays.gram import gram, gram_here
from ..checks import is_sparse
from ..errors import BadInput
from .normal import CLEAR
from .products import Encoded

Array = NDArray[Any]
Floats = NDArray[np.float64]
Show = Callable[[int], None]  # is called with the number of each step

AT_ONCE = 1 << 23  # numbers of a product that has many columns
TAIL = 1e-2  # of the largest singular value: XᵀX loses digits of smaller ones
FAINT = 1e-10  # of the largest square: a mean of the others that may be rounding


@dataclass(frozen=True, eq=False)
class Shifted:
    """X − 1 meanᵀ, seen through products with X, which lies on workers or here, as it is."""

    X: Any
    mean: Array
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as this is turned."""
        rows, columns = self.X.shape
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def T(self) -> Shifted:
        """The transpose."""
        return Shifted(self.X, self.mean, not self.turned)

    def __matmul__(self, W: Array) -> Array:
        # In one piece: the columns of what LAPACK returns are not. Single precision stays so.
        W = np.ascontiguousarray(W, self.X.dtype if isinstance(self.X, Encoded) else None)
        if self.turned:
            return np.asarray((self.X.T @ W) - np.outer(self.mean, W.sum(axis=0)))
        return np.asarray((self.X @ W) - self.mean @ W)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest singular values s, and their right vectors Vᵀ (count, d).

    `scores`: U s, where the method finds it. `squares` of all singular values, where it does.
    """

    Vt: Array
    s: Array
    scores: Array | None
    squares: Floats | None = None


def randomised(
    M: Shifted,
    count: int,
    extra: int,
    passes: int,
    normalizer: str,
    random_state: Any,
    show: Show,
) -> Spectrum:
    """2 · passes + 2 products, each with count + extra columns, with random numbers at the start.

    As scikit-learn's randomized_svd (Halko et al., 2009), without its choice of signs.
    """
    flat = M.shape[0] < M.shape[1]
    if flat:
        M = M.T
    if normalizer == "auto":
        normalizer = "none" if passes <= 2 else "LU"
    Q = random_state.normal(size=(M.shape[1], count + extra))
    for done in range(1, passes + 1):
        for side in (M, M.T):
            Q = side @ Q
            if normalizer == "LU":
                Q = scipy.linalg.lu(Q, permute_l=True, check_finite=False)[0]
            elif normalizer == "QR":
                Q = scipy.linalg.qr(Q, mode="economic", check_finite=False)[0]
        show(done)
    Q = scipy.linalg.qr(M @ Q, mode="economic", check_finite=False)[0]
    small, s, Vt = scipy.linalg.svd((M.T @ Q).T, full_matrices=False)
    U = Q @ small[:, :count]
    s, Vt = s[:count], Vt[:count]
    return Spectrum(U.T, s, Vt.T * s) if flat else Spectrum(Vt, s, U * s)


def lanczos(M: Shifted, count: int, tol: float, random_state: Any, show: Show) -> Spectrum:
    """By ARPACK, as scikit-learn's solver of that name: two products with a vector a step."""
    steps = 0

    def forward(v: Array) -> Array:
        nonlocal steps
        steps += 1
        out = (M @ v.reshape(-1, 1)).ravel()
        show(steps)
        return out

    def backward(v: Array) -> Array:
        return (M.T @ v.reshape(-1, 1)).ravel()

    both = {"matmat": lambda V: M @ V, "rmatmat": lambda V: M.T @ V}
    operator = LinearOperator(M.shape, forward, backward, dtype=M.X.dtype, **both)
    start = random_state.uniform(-1, 1, min(M.shape)).astype(M.X.dtype, copy=False)
    U, s, Vt = svds(operator, k=count, tol=tol, v0=start)
    return Spectrum(Vt[::-1], s[::-1], U[:, ::-1] * s[::-1])


def exact(M: Shifted, choose: Callable[[Floats], int]) -> Spectrum:
    """All squares of singular values, and as many vectors as `choose` takes, given the squares.

    From the eigenvectors of MᵀM, or of MMᵀ where M has fewer rows than columns. Singular values far
    below the largest, which that squares away, are found by a product with their vectors.
    """
    flat = M.shape[0] < M.shape[1]
    tall = M.T if flat else M
    squares, V = scipy.linalg.eigh(squares_of(tall), overwrite_a=True, check_finite=False)
    squares, V = np.maximum(squares[::-1], 0.0), np.ascontiguousarray(V[:, ::-1])
    count = choose(squares)
    _refine(tall, squares, V, count)
    if not flat:
        return Spectrum(V[:, :count].T, np.sqrt(squares[:count]), None, squares)
    Q, s, Wt = scipy.linalg.svd(tall @ V[:, :count], full_matrices=False)
    squares[:count] = s**2
    return Spectrum(Q.T, s, V[:, :count] @ Wt.T * s, squares)


def _refine(tall: Shifted, squares: Floats, V: Floats, count: int) -> None:
    """The small singular values anew, in place, where they count: as squares they are rounding."""
    largest, rest = squares[0], squares[count:]
    first = int((squares >= TAIL**2 * largest).sum())
    noise = rest.mean() if rest.size else np.inf
    if not largest > 0.0 or (count <= first and noise > FAINT * largest):
        return
    R = scipy.linalg.qr(tall @ V[:, first:], mode="r", check_finite=False)[0]
    _, s, Wt = scipy.linalg.svd(R[: len(squares) - first])
    squares[first:], V[:, first:] = s**2, V[:, first:] @ Wt.T


def squares_of(M: Shifted) -> Floats:
    """MᵀM (d, d): from one pass over the rows where that is exact, else by products."""
    X, (rows, d) = M.X, M.shape
    ones = np.ones((rows, 1))
    if isinstance(X, np.ndarray):
        data = (X - M.mean).T if M.turned else X
        shift = None if M.turned or not M.mean.any() else np.asarray(M.mean, np.float64)
        known = gram_here(data, ones, shift)
        if known is None:
            raise BadInput(
                "principal components need sums of squares; some of these are too large for "
                "float64. Scale the data, with sklearn.preprocessing.StandardScaler, say."
            )
        return known.squares
    sums: Floats | None = None
    if not M.turned and is_sparse(X):
        wide = X.astype(np.float64)
        sums = np.asarray((wide.T @ wide).toarray())
    elif not M.turned and isinstance(X, CodedMatrix):
        known = gram(X, ones)
        sums = known.squares if known is not None and known.whole else None
    if sums is not None:
        centred = np.asarray(sums - rows * np.outer(M.mean, M.mean))
        if (centred.diagonal() >= CLEAR * sums.diagonal()).all():
            return centred
    out, step = np.empty((d, d)), max(1, AT_ONCE // rows)
    for first in range(0, d, step):
        some = np.eye(d, min(step, d - first), -first)
        out[:, first : first + step] = M.T @ (M @ some)
    return np.asarray(0.5 * (out + out.T))
