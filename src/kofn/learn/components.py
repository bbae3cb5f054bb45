"""Principal components and truncated SVD: scikit-learn's results, from data on workers.

Solvers have scikit-learn's names, and are chosen as there. The randomised one uses the same random
numbers, so a fit equals scikit-learn's, except for rounding, whoever is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse
import sklearn.decomposition
from numpy.typing import NDArray
from sklearn.decomposition._pca import _infer_dimension
from sklearn.utils import check_random_state
from sklearn.utils.extmath import svd_flip
from sklearn.utils.sparsefuncs import mean_variance_axis

from ..checks import convertible, is_sparse, number, one_of, whole
from ..errors import BadInput, CannotDo
from .base import CodedEstimator
from .normal import COLUMNS
from .products import Encoded
from .spectra import AT_ONCE, Floats, Shifted, Show, Spectrum, exact, lanczos, randomised

Array = NDArray[Any]
WHOLE = ("full", "covariance_eigh")  # solvers that find all singular values
SOLVERS = ("auto", *WHOLE, "arpack", "randomized")
NORMALIZERS = ("auto", "QR", "LU", "none")
SMALL = 1000  # rows or columns: with so many, "arpack" finds all singular values, too
WORK = 1e9  # products of two entries of a sparse matrix that this process makes itself


@dataclass(frozen=True, eq=False)
class _Seen:
    """X, centred if asked; the mean of its columns; whether all singular values are found; and what
    is called after every step.
    """

    M: Shifted
    mean: Array
    exactly: bool
    show: Show


@dataclass(repr=False, eq=False)
class _Components(CodedEstimator):
    """Fitting that both kinds share."""

    _: KW_ONLY
    n_oversamples: int = 10
    power_iteration_normalizer: str = "auto"
    random_state: Any = None
    tol: float = 0.0
    components_: Array = field(init=False)
    explained_variance_: Array = field(init=False)
    explained_variance_ratio_: Array = field(init=False)
    singular_values_: Array = field(init=False)
    where_: str = field(init=False)

    def transform(self, X: Any) -> Any:
        """As scikit-learn's own, on rows in memory."""
        convertible(X, "X")
        base: Any = super()
        return base.transform(X)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        whole(self.n_oversamples, "n_oversamples", 1)
        one_of(self.power_iteration_normalizer, "power_iteration_normalizer", NORMALIZERS)
        number(self.tol, "tol", ">= 0")

    @contextmanager
    def _seen(self, X: Any, solver: str, centre: bool) -> Iterator[_Seen]:
        """X as products see it, centred if asked, and how this solver goes about it."""
        dense, sparse = isinstance(X, np.ndarray), _is_sparse(X)
        few = solver in WHOLE or (solver == "arpack" and min(X.shape) <= SMALL)
        here = few and not self._workers_given and _stays(X)
        # On workers one pass serves dense rows; of others it takes products with every column.
        exactly = few and (solver in WHOLE or here or (X.shape[0] >= X.shape[1] and not sparse))
        none = np.zeros(X.shape[1], X.dtype)
        mean = X.mean(axis=0) if centre and dense else none
        data = X - mean if centre and dense and not here else X
        with self._placed(data, "here" if here else "coded") as matrix:
            if centre and not dense:
                mean = _mean(X, matrix)
            self.where_ = "here" if here else "workers"
            M = Shifted(X if here else matrix, mean if data is X else none)
            yield _Seen(M, mean, exactly, partial(_show, self.callback, matrix))

    def _spectrum(
        self, seen: _Seen, solver: str, choose: Callable[[Floats], int], passes: Any
    ) -> Spectrum:
        """The largest singular values and vectors, by this solver."""
        M, show = seen.M, seen.show
        if seen.exactly:
            found = exact(M, choose)
            show(1)
            return found
        rng, count = check_random_state(self.random_state), choose(np.zeros(0))
        if solver == "arpack":
            return lanczos(M, count, self.tol, rng, show)
        if passes == "auto":  # as scikit-learn chooses
            passes = 7 if count < 0.1 * min(M.shape) else 4
        normalizer = self.power_iteration_normalizer
        return randomised(M, count, self.n_oversamples, passes, normalizer, rng, show)


@dataclass(repr=False, eq=False)
class TruncatedSVD(_Components, sklearn.decomposition.TruncatedSVD):
    """The largest singular vectors, as scikit-learn's TruncatedSVD.

    fit takes an array, a CSR matrix, a CodedMatrix or the path of a store. algorithm: "randomized"
    (the default) takes 2 · n_iter + 2 coded products, each with n_components + n_oversamples
    columns; "arpack" is exact. See PCA for the latter, for `where_` and the callback. One more
    product gives the scores of the rows. transform and inverse_transform are scikit-learn's, on
    rows in memory. See Ridge for cluster, workers and k.
    """

    n_components: int = 2
    _: KW_ONLY
    algorithm: str = "randomized"
    n_iter: int | str = 5

    def _check_parameters(self) -> None:
        super()._check_parameters()
        one_of(self.algorithm, "algorithm", ("arpack", "randomized"))
        _check_passes(self.n_iter, "n_iter")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to X (N, d); y is not used."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X (N, d), and return its scores (N, n_components)."""
        X, _ = self._check(X, "no_validation", ensure_min_features=2)
        solver, most = self.algorithm, min(X.shape) - (self.algorithm == "arpack")
        remedy = f"There are at most {most} in these data with algorithm={solver!r}."
        count = whole(self.n_components, "n_components", 1, most, remedy)
        with self._seen(X, solver, False) as seen:
            M, found = seen.M, self._spectrum(seen, solver, lambda _: count, self.n_iter)
            Vt = svd_flip(None, found.Vt, u_based_decision=False)[1]
            self.components_ = np.ascontiguousarray(Vt, X.dtype)
            # The best approximation of the rows by what was found, as scikit-learn has it.
            scores = np.asarray(M @ self.components_.T, X.dtype)
            total = _squares(X, M.X, _mean(X, M.X)) / X.shape[0]
        self.singular_values_ = found.s.astype(X.dtype)
        self.explained_variance_ = scores.var(axis=0)
        self.explained_variance_ratio_ = self.explained_variance_ / total
        return scores


@dataclass(repr=False, eq=False)
class PCA(_Components, sklearn.decomposition.PCA):
    """Principal components, as scikit-learn's PCA.

    fit takes an array, a CSR matrix, a CodedMatrix or the path of a store. svd_solver: "auto"
    chooses as scikit-learn does. "full" and "covariance_eigh" are one method, which is exact:
    XᵀX in one pass, and another product for singular values far below the largest. "arpack" is
    exact too: the same for up to 1,000 dense columns, else each of its steps is two coded products
    with a vector. "randomized" takes 2 · iterated_power + 2 coded products, each with
    n_components + n_oversamples columns: it is not exact where singular values hardly differ.

    n_components: a number, a fraction of the variance, "mle", or None for all. `where_`: "here" if
    an exact method made its pass in this process, because no workers were given (an open cluster,
    or workers= or k=), and to send the data takes as long: arrays of up to 256 columns or of more
    columns than rows, and sparse matrices. Else it is "workers". An array is centred before it is
    coded; all else is centred in the products. transform, inverse_transform, score and
    get_covariance are scikit-learn's, on rows in memory. See Ridge for cluster, workers and k;
    callback(step, nan, data) is called after every power iteration, step of Lanczos, or pass.
    """

    n_components: Any = None
    _: KW_ONLY
    copy: bool = True
    whiten: bool = False
    svd_solver: str = "auto"
    iterated_power: int | str = "auto"
    mean_: Array = field(init=False)
    noise_variance_: float = field(init=False)
    n_components_: int = field(init=False)
    n_samples_: int = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        one_of(self.svd_solver, "svd_solver", SOLVERS)
        _check_passes(self.iterated_power, "iterated_power")
        if isinstance(self.n_components, float):
            number(self.n_components, "n_components", "in (0, 1)", "Pass an int for so many.")
        elif self.n_components not in (None, "mle"):
            remedy = "Pass an int, a fraction of the variance, 'mle', or None for all."
            whole(self.n_components, "n_components", 0, remedy=remedy)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.svd_solver not in ("full", "randomized")
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to X (N, d); y is not used."""
        self._fitted(X, False)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X (N, d), and return its scores (N, n_components)."""
        scores = self._fitted(X, True)
        if not self.whiten:
            return scores
        deviations = np.sqrt(self.explained_variance_)
        return scores / np.maximum(deviations, np.finfo(deviations.dtype).eps)

    def _fitted(self, X: Any, scored: bool) -> Any:
        """Fit to X; its scores, if they are asked for."""
        X, _ = self._check(X, "no_validation", ensure_min_samples=2)
        rows, most = int(X.shape[0]), min(X.shape)
        solver = self._fit_svd_solver = self._solver(X)
        choose = self._chooser(solver, X.shape)
        with self._seen(X, solver, True) as seen:
            M, self.mean_ = seen.M, seen.mean
            found = self._spectrum(seen, solver, choose, self.iterated_power)
            scores, Vt = svd_flip(found.scores, found.Vt, u_based_decision=False)
            if scored and scores is None:
                scores = M @ Vt.T
            if found.squares is None:
                variances = found.s**2 / (rows - 1)
                total = _squares(X, M.X, self.mean_) / (rows - 1)
            else:
                variances = found.squares / (rows - 1)
                total = float(variances.sum())
        if not total > 0.0:
            raise BadInput(
                "principal components are directions in which rows differ; all rows of these data "
                "are the same. Check how they were read."
            )
        count = len(Vt)
        if self.n_components == "mle":
            count = int(_infer_dimension(variances, rows))
        left = variances[count:] if found.squares is not None else total - variances.sum()
        self.noise_variance_ = float(np.sum(left)) / (most - count) if count < most else 0.0
        self.n_samples_, self.n_components_ = rows, count
        self.components_ = np.array(Vt[:count], X.dtype, order="C")
        self.singular_values_ = np.array(found.s[:count], X.dtype)
        self.explained_variance_ = np.array(variances[:count], X.dtype)
        self.explained_variance_ratio_ = np.array(variances[:count] / total, X.dtype)
        return np.asarray(scores[:, :count], X.dtype) if scored else None

    def _solver(self, X: Any) -> str:
        """The solver that "auto" stands for, as in scikit-learn."""
        (rows, columns), asked = X.shape, self.svd_solver
        if is_sparse(X) and asked in ("full", "randomized"):
            raise CannotDo(  # the words of scikit-learn
                f'PCA only support sparse inputs with the "arpack" and "covariance_eigh" solvers, '
                f'while "{asked}" was passed. Use one of those, or fit to cluster.encode(X), which '
                f"takes all solvers."
            )
        if asked != "auto":
            return asked
        if _is_sparse(X):
            return "arpack"
        if columns <= SMALL and rows >= 10 * columns:
            return "covariance_eigh"
        if max(X.shape) <= 500 or self.n_components == "mle":
            return "full"
        count = min(X.shape) if self.n_components is None else self.n_components
        return "randomized" if 1 <= count < 0.8 * min(X.shape) else "full"

    def _chooser(self, solver: str, shape: tuple[int, int]) -> Callable[[Floats], int]:
        """How many components, once the squares of the singular values are known."""
        given, most, (rows, columns) = self.n_components, min(shape), shape
        if given == "mle" and solver not in WHOLE:
            raise BadInput(
                f"n_components='mle' cannot be a string with svd_solver={solver!r}. Use 'full'."
            )
        if given == "mle" and rows < columns:
            raise BadInput(
                f"n_components='mle' is only supported if n_samples >= n_features; got {rows} and "
                f"{columns}. Pass a number."
            )
        count = most - (solver == "arpack") if given in (None, "mle") else given
        least = 0 if solver in WHOLE else 1
        where = f"min(n_samples, n_features)={most} with svd_solver={solver!r}"
        if solver == "arpack" and count == most:
            raise BadInput(
                f"n_components={given} must be strictly less than {where}. Use 'full' for all."
            )
        if not least <= count <= most:
            raise BadInput(
                f"n_components={given} must be between {least} and {where}. Pass one of these."
            )

        def by_variance(squares: Floats) -> int:
            variances = squares / (rows - 1)
            ratios = variances / (variances.sum() or 1.0)
            return min(most, int(np.searchsorted(np.cumsum(ratios), count, side="right")) + 1)

        return by_variance if 0.0 < count < 1.0 else lambda _: int(count)


def _is_sparse(X: Any) -> bool:
    return is_sparse(X) or bool(getattr(X, "sparse", False))


def _stays(X: Any) -> bool:
    """Whether sums of squares are sooner formed in this process than X is on workers."""
    rows, columns = X.shape
    if isinstance(X, np.ndarray):
        return bool(rows < columns or columns <= COLUMNS)
    if not is_sparse(X):
        return False
    work = np.square(np.diff(X.indptr).astype(np.float64)).sum()
    return float(work if rows >= columns else 2.0 * X.nnz * rows) <= WORK


def _check_passes(given: object, name: str) -> None:
    if given != "auto":
        whole(given, name, 0, remedy='Pass an int, or "auto".')


def _show(callback: Any, data: Any, step: int) -> None:
    if callback is not None:
        callback(step, float("nan"), data)


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
