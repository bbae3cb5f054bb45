"""Kernel ridge regression: trained through coded kernel products, predicting by coded sums."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin

from ..checks import convertible, is_sparse, number, one_of, whole
from ..codes.assignment import SumCode
from ..errors import BadInput
from ..sums.kernels import HISTOGRAMS, KERNELS, Kernel, OwnKernel, added, terms
from .base import CodedEstimator
from .clusters import CodedTerms, batches
from .saves import Saves
from .solvers import Floats, conjugate_gradients

NAMES = {"rbf": "gaussian", "poly": "polynomial"}
PARTS = 512  # that sparse training points are cut into at most
LEFT = 1e-6  # of the targets: a larger residual at the end is that of a singular matrix


@dataclass(repr=False, eq=False)
class KernelRidge(MultiOutputMixin, RegressorMixin, CodedTerms, CodedEstimator):
    """Kernel ridge regression, as scikit-learn's KernelRidge: (K + alpha) a = y.

    alpha: one number, or one a target. kernel: "linear", "rbf" (or "gaussian"), "laplacian", "poly"
    (or "polynomial"), "sigmoid", "cosine", "chi2", "additive_chi2", "precomputed" (X is then the
    kernel matrix), a function of two rows that returns a number, which gets `kernel_params`, or a
    kernel of sklearn.gaussian_process. gamma: 1 / features if None; 1 for "chi2". The rows may be
    sparse, but not for the two chi2.

    K is computed here. Training is conjugate gradients on K, coded: one product an iteration, any
    `k` of the workers are enough; where max_iter of them do not meet tol there is a
    ConvergenceWarning. Where K + alpha is not positive definite (of "sigmoid" and "additive_chi2"),
    or alpha is 0, the equations are solved here, as scikit-learn does. Prediction is the coded sum
    Σ aᵢ k(xᵢ, x) under `code` (default: kofn.RandomGroups, sized for the points): it comes without
    the slow and the lost. Of a precomputed kernel it is a product here. With an open cluster the
    training points stay on its workers; with an engine's name a cluster is opened for each fit and
    each predict.
    """

    alpha: Any = 1.0
    _: KW_ONLY
    kernel: Any = "linear"
    gamma: float | None = None
    degree: float = 3.0
    coef0: float = 1.0
    kernel_params: Mapping[str, Any] | None = None
    tol: float = 1e-10
    max_iter: int = 10_000
    code: SumCode | None = None
    X_fit_: Any = field(init=False)
    dual_coef_: NDArray[Any] = field(init=False)
    n_iter_: int = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d), an array or CSR matrix, and y (N,) or (N, t).

        checkpoint: a folder that the fit is saved in, and goes on from; see Ridge.fit.
        """
        self._check_parameters()
        convertible(X, "X")
        convertible(y, "y")
        options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
        X, y = self._valid(X, y, multi_output=True, y_numeric=True, **options)
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        alpha = self._penalties(targets.shape[1])
        root = np.sqrt(self._weight(sample_weight, X))
        saves = self._saves(checkpoint, X, None, targets, root)
        K = self._matrix(X)
        if sample_weight is not None:
            K *= root @ root.T
        dual = root * self._solve(K, root * targets, alpha, saves)
        self.X_fit_ = X
        dual = dual.astype(np.result_type(X, y) if y.dtype.kind == "f" else np.float64, copy=False)
        self.dual_coef_ = dual[:, 0] if np.ndim(y) == 1 else dual
        self.__dict__.pop("_kept", None)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predictions (N,) or (N, t): coded sums over the training points, on the workers."""
        X = self._rows(X, accept_sparse="csr", dtype=[np.float64, np.float32])
        points, dual = self.X_fit_, self.dual_coef_  # that may be edited in place
        kind = np.result_type(X, dual)
        if self.kernel == "precomputed":
            return np.asarray(X @ dual, kind)
        kernel, N = self._kernel(X), points.shape[0]
        inputs, sparse = ((rows, kernel) for rows in batches(X)), is_sparse(points)
        placed = (points,), lambda: (points, dual.reshape(N, -1)), min(N, PARTS) if sparse else N
        fn = added if sparse else terms
        out = self._predicted(fn, inputs, *placed, looked_at=dual, vectorised=not sparse)
        return (out[:, 0] if self.dual_coef_.ndim == 1 else out).astype(kind, copy=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.kernel not in HISTOGRAMS
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def _solve(self, K: Floats, y: Floats, alpha: Floats, saves: Saves) -> Floats:
        """(K + alpha) a = y: by products on the workers where the left side is definite."""
        dual, met = np.zeros_like(y), np.zeros(y.shape[1], np.bool_)
        self.n_iter_, rest = 0, ~met
        if alpha.all():
            dual, met = self._descend(K, y, alpha, saves)
            left = np.linalg.norm(y - K @ dual - alpha * dual, axis=0)
            rest = ~met & ~(left <= LEFT * np.linalg.norm(y, axis=0))
        if self.n_iter_ < self.max_iter:
            for target in np.flatnonzero(rest):
                dual[:, target] = _least_squares(K, alpha[target], y[:, target])
            met |= rest
        if unmet := int((~met).sum()):
            spent = self.n_iter_ >= self.max_iter
            why = f"max_iter={self.max_iter}" if spent else f"{self.n_iter_} (rounding)"
            self._unmet(why, self.tol, f" for {unmet} of the targets", "alpha or tol")
        return dual

    def _descend(
        self, K: Floats, y: Floats, alpha: Floats, saves: Saves
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Conjugate gradients, and which targets met `tol`: they may break down at another K."""
        # |K a - y|^2 + alpha a'K a of each target, at a = 0
        losses = saves.state.get("losses", (y**2).sum(axis=0))
        saves = saves.beside(losses=losses)
        nothing = np.zeros((0, 0))
        within = self.tol * np.linalg.norm(y, axis=0)
        with self._opened() as cluster, self._shown() as show:
            matrix = cluster.encode(K, self.k, check_finite=False)

            def apply(p: Floats, at: NDArray[np.intp]) -> tuple[Floats, Floats]:
                return np.asarray(matrix @ p) + alpha[at] * p, nothing

            def count(iteration: int, R: Floats, A: Floats) -> None:
                KA = y - R - alpha * A
                losses[:] = ((KA - y) ** 2 + alpha * A * KA).sum(axis=0)
                show(iteration, float(losses.sum()), A, matrix)

            solve = partial(conjugate_gradients, M=None, joint=False, on_step=count, saves=saves)
            solved = solve(apply, y, within, self.max_iter)
        self.n_iter_ = solved.iterations
        return solved.X, solved.met

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for value in np.atleast_1d(np.asarray(self.alpha, object)).ravel():
            number(value, "alpha", ">= 0")
        number(self.tol, "tol", ">= 0")
        whole(self.max_iter, "max_iter", 1)
        if self.gamma is not None:
            number(self.gamma, "gamma", "> 0")
        number(self.degree, "degree", ">= 0")
        number(self.coef0, "coef0", "that is finite")
        if not callable(self.kernel):
            one_of(self.kernel, "kernel", [*KERNELS, *NAMES, "precomputed"])
        if self.kernel_params is not None and not isinstance(self.kernel_params, Mapping):
            raise BadInput(
                f"kernel_params must be a dict for a kernel that is a function; got "
                f"{self.kernel_params!r}. Leave it out for the others."
            )

    def _penalties(self, targets: int) -> Floats:
        """The penalty of each target, (t,)."""
        alpha = np.asarray(self.alpha, np.float64)
        if alpha.size not in (1, targets) or alpha.ndim > 1:
            raise BadInput(
                f"alpha must be one number, or one for each of the {targets} targets; got shape "
                f"{alpha.shape}. Pass an array of shape ({targets},)."
            )
        return np.full(targets, alpha.ravel())

    def _matrix(self, X: Any) -> Floats:
        """The kernel of all rows with all of them, which the caller may change."""
        wide = X.astype(np.float64, copy=False)
        if self.kernel != "precomputed":
            return self._kernel(wide)(wide, wide)
        if X.shape[0] != X.shape[1]:
            raise BadInput(
                f"a precomputed kernel matrix must be square, the kernel of each row with each; "
                f"got shape {X.shape}. Pass the rows themselves for another kernel."
            )
        return wide.toarray() if is_sparse(wide) else np.array(wide)

    def _kernel(self, X: Any) -> Kernel | OwnKernel:
        """The kernel for such rows."""
        if callable(self.kernel):
            gaussian = sys.modules.get("sklearn.gaussian_process.kernels")
            matrices = gaussian is not None and isinstance(self.kernel, gaussian.Kernel)
            return OwnKernel(self.kernel, dict(self.kernel_params or {}), matrices)
        if self.kernel in HISTOGRAMS:
            if is_sparse(X):
                raise BadInput(
                    f"kernel {self.kernel!r} takes dense rows; got a sparse X. Pass X.toarray()."
                )
            if (X < 0.0).any():
                raise BadInput(
                    f"kernel {self.kernel!r} compares histograms; X contains negative values. Use "
                    f"another kernel, such as 'rbf'."
                )
        gamma = self.gamma
        if gamma is None:
            gamma = 1.0 if self.kernel == "chi2" else 1.0 / X.shape[1]
        name = NAMES.get(self.kernel, self.kernel)
        return Kernel(name, float(gamma), float(self.degree), float(self.coef0))


def _least_squares(K: Floats, alpha: float, y: Floats) -> Floats:
    """(K + alpha) a = y, solved here as scikit-learn does."""
    H = K + alpha * np.eye(len(K))
    try:
        return np.asarray(scipy.linalg.solve(H, y, assume_a="pos"))
    except np.linalg.LinAlgError:
        warnings.warn(
            "The kernel matrix plus alpha is not positive definite: the least-squares solution "
            "was taken.",
            stacklevel=4,
        )
        return np.asarray(scipy.linalg.lstsq(H, y)[0])
