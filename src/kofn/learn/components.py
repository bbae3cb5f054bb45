"""Principal components by a few coded products, each with many columns: scikit-learn's results.

The method is scikit-learn's too (Halko et al., 2009), with the same random numbers. So a fit equals
that of scikit-learn's randomised solver, except for rounding, whoever is lost on the way.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
import scipy.sparse
import sklearn.decomposition
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.extmath import svd_flip
from sklearn.utils.sparsefuncs import mean_variance_axis

from ..checks import convertible, whole
from ..errors import BadInput
from .base import CodedEstimator
from .products import Encoded

Array = NDArray[Any]
AT_ONCE = 1 << 20  # numbers of a matrix that are looked at at a time


@dataclass(frozen=True, eq=False)
class Shifted:
    """X − 1 meanᵀ, seen through products with X: what lies on workers is never shifted itself."""

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
        # In one piece: the columns of what LAPACK returns are not.
        W = np.ascontiguousarray(W, self.X.dtype)
        if self.turned:
            return np.asarray((self.X.T @ W) - np.outer(self.mean, W.sum(axis=0)))
        return np.asarray((self.X @ W) - self.mean @ W)


def randomised_svd(
    M: Any, count: int, extra: int, passes: int, random_state: Any, callback: Any = None
) -> tuple[Array, Array, Array]:
    """U (N, count), s and Vᵀ (count, d): 2 · passes + 2 products, each with count + extra columns.

    As scikit-learn's randomized_svd, without its choice of signs.
    """
    flat = M.shape[0] < M.shape[1]
    if flat:
        M = M.T
    Q = random_state.normal(size=(M.shape[1], count + extra))
    for done in range(1, passes + 1):
        for side in (M, M.T):
            Q = side @ Q
            if passes > 2:
                Q = scipy.linalg.lu(Q, permute_l=True, check_finite=False)[0]
        if callback is not None:
            callback(done, float("nan"), M.X)
    Q = scipy.linalg.qr(M @ Q, mode="economic", check_finite=False)[0]
    small, s, Vt = scipy.linalg.svd((M.T @ Q).T, full_matrices=False)
    U = Q @ small[:, :count]
    s, Vt = s[:count], Vt[:count]
    return (Vt.T, s, U.T) if flat else (U, s, Vt)


@dataclass(repr=False, eq=False)
class _Components(CodedEstimator):
    """Fitting that both kinds share."""

    _: KW_ONLY
    n_oversamples: int = 10
    random_state: Any = None
    components_: Array = field(init=False)
    explained_variance_: Array = field(init=False)
    explained_variance_ratio_: Array = field(init=False)
    singular_values_: Array = field(init=False)

    def transform(self, X: Any) -> Any:
        """As scikit-learn's own, on rows in memory."""
        convertible(X, "X")
        base: Any = super()
        return base.transform(X)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        whole(self.n_oversamples, "n_oversamples", 1)

    def _count(self, given: int | None, most: int) -> int:
        """How many components, at most so many."""
        if given is None:
            return most
        remedy = f"There are at most {most} in these data."
        return whole(given, "n_components", 1, most, remedy)

    def _passes(self, given: object, name: str, count: int, shape: tuple[int, int]) -> int:
        """How many power iterations; "auto" is scikit-learn's choice."""
        if given == "auto":
            return 7 if count < 0.1 * min(shape) else 4
        return whole(given, name, 0, remedy='Pass an int, or "auto".')

    def _decompose(self, M: Shifted, count: int, passes: int) -> tuple[Array, Array]:
        """U · s and s; sets the components, with signs as scikit-learn chooses them."""
        rng, show = check_random_state(self.random_state), self.callback
        U, s, Vt = randomised_svd(M, count, self.n_oversamples, passes, rng, show)
        U, Vt = svd_flip(U, Vt, u_based_decision=False)
        dtype = M.X.dtype
        self.components_, self.singular_values_ = Vt.astype(dtype), s.astype(dtype)
        return np.asarray(U * s, dtype=dtype), s


@dataclass(repr=False, eq=False)
class TruncatedSVD(_Components, sklearn.decomposition.TruncatedSVD):
    """The largest singular vectors, as scikit-learn's TruncatedSVD (its randomised algorithm).

    fit takes an array, a CSR matrix, a CodedMatrix or the path of a store: 2 · n_iter + 2 coded
    products, and one more for the scores of the rows, each with n_components + n_oversamples
    columns. transform and inverse_transform are scikit-learn's, on rows in memory. See Ridge for
    cluster, workers and k; callback(pass, nan, matrix) is called after every power iteration.
    """

    algorithm: ClassVar[str] = "randomized"
    tol: ClassVar[float] = 0.0

    n_components: int = 2
    _: KW_ONLY
    n_iter: int | str = 5

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to X (N, d); y is not used."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X (N, d), and return its scores (N, n_components)."""
        X, _ = self._check(X, "no_validation", ensure_min_features=2)
        count = self._count(self.n_components, min(X.shape))
        passes = self._passes(self.n_iter, "n_iter", count, X.shape)
        with self._placed(X, "coded") as matrix:
            M = Shifted(matrix, np.zeros(X.shape[1]))
            self._decompose(M, count, passes)
            # The best approximation of the rows by what was found, as scikit-learn has it.
            scores = np.asarray(matrix @ np.ascontiguousarray(self.components_.T))
            total = _squares(X, matrix, _mean(X, matrix)) / X.shape[0]
        self.explained_variance_ = scores.var(axis=0)
        self.explained_variance_ratio_ = self.explained_variance_ / total
        return scores


@dataclass(repr=False, eq=False)
class PCA(_Components, sklearn.decomposition.PCA):
    """Principal components, as scikit-learn's PCA with svd_solver="randomized".

    fit takes an array, a CSR matrix, a CodedMatrix or the path of a store: 2 · iterated_power + 2
    coded products, each with n_components + n_oversamples columns. An array is centred before it is
    coded; all else is centred in the products. transform, inverse_transform, score and
    get_covariance are scikit-learn's, on rows in memory. See Ridge for cluster, workers and k;
    callback(pass, nan, matrix) is called after every power iteration.
    """

    svd_solver: ClassVar[str] = "randomized"
    power_iteration_normalizer: ClassVar[str] = "LU"

    n_components: int | None = None
    _: KW_ONLY
    whiten: bool = False
    iterated_power: int | str = "auto"
    mean_: Array = field(init=False)
    noise_variance_: float = field(init=False)
    n_components_: int = field(init=False)
    n_samples_: int = field(init=False)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to X (N, d); y is not used."""
        self._components(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X (N, d), and return its scores (N, n_components)."""
        scores = self._components(X)
        return scores / np.sqrt(self.explained_variance_) if self.whiten else scores

    def _components(self, X: Any) -> Array:
        X, _ = self._check(X, "no_validation", ensure_min_samples=2)
        rows, most = int(X.shape[0]), min(X.shape)
        count = self._count(self.n_components, most)
        passes = self._passes(self.iterated_power, "iterated_power", count, X.shape)
        if isinstance(X, np.ndarray):
            self.mean_ = X.mean(axis=0)
            X = X - self.mean_
        with self._placed(X, "coded") as matrix:
            inside = isinstance(X, np.ndarray)
            mean = np.zeros(X.shape[1], X.dtype) if inside else _mean(X, matrix)
            if not inside:
                self.mean_ = mean
            scores, s = self._decompose(Shifted(matrix, mean), count, passes)
            total = _squares(X, matrix, mean) / (rows - 1)
        if not total > 0.0:
            raise BadInput(
                "principal components are directions in which rows differ; all rows of these data "
                "are the same. Check how they were read."
            )
        self.n_samples_, self.n_components_ = rows, count
        self.explained_variance_ = np.asarray(s**2 / (rows - 1), dtype=X.dtype)
        self.explained_variance_ratio_ = self.explained_variance_ / X.dtype.type(total)
        left = total - float((s**2).sum()) / (rows - 1)
        self.noise_variance_ = left / (most - count) if count < most else 0.0
        return scores


def _mean(X: Any, matrix: Encoded) -> Array:
    """The mean of each column: here where the numbers are, else by a product."""
    if isinstance(X, np.ndarray):
        return np.asarray(X.mean(axis=0))
    if scipy.sparse.issparse(X):
        return np.asarray(mean_variance_axis(X, axis=0)[0])
    rows = int(X.shape[0])
    return np.asarray(matrix.T @ np.ones(rows, matrix.dtype)) / rows


def _squares(X: Any, matrix: Encoded, mean: Array) -> float:
    """Σ (X − mean)²: here where the numbers are, else by products with unit vectors."""
    rows, columns = X.shape
    if scipy.sparse.issparse(X):
        return float(mean_variance_axis(X, axis=0)[1].sum() * rows)
    total = 0.0
    if isinstance(X, np.ndarray):
        step = max(1, AT_ONCE // columns)
        for first in range(0, rows, step):
            part = X[first : first + step]
            part = part - mean if mean.any() else part
            total += float(np.einsum("ij,ij->", part, part, dtype=np.float64))
        return total
    step = max(1, AT_ONCE // rows)
    for first in range(0, columns, step):
        some = np.eye(columns, min(step, columns - first), -first, matrix.dtype)
        total += float(np.square(np.asarray(matrix @ some) - mean[first : first + step]).sum())
    return total
