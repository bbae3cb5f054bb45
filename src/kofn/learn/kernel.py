"""Kernel ridge regression: trained through coded kernel products, predicting by coded sums."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin

from ..checks import convertible, number, one_of, whole
from ..codes.assignment import SumCode
from ..sums.kernels import KERNELS, Kernel, terms
from .base import CodedEstimator
from .clusters import CodedTerms, batches
from .saves import Saves
from .solvers import Floats, solve_columns


@dataclass(repr=False, eq=False)
class KernelRidge(MultiOutputMixin, RegressorMixin, CodedTerms, CodedEstimator):
    """Kernel ridge regression, as scikit-learn's KernelRidge: (K + alpha) a = y.

    kernel: "gaussian" (or "rbf"; the default, where scikit-learn's is "linear"), "laplacian",
    "polynomial" or "linear". gamma: 1 / features if None. Training is conjugate gradients on K,
    coded: one product an iteration, any `k` of the workers are enough; where max_iter of them do
    not meet tol there is a ConvergenceWarning. Prediction is the coded sum Σ aᵢ k(xᵢ, x) under
    `code` (default: kofn.RandomGroups, sized for the points): it comes without the slow and the
    lost. With an open cluster the training points stay on its workers; with an engine's name a
    cluster is opened for each fit and each predict.
    """

    alpha: float = 1.0
    _: KW_ONLY
    kernel: str = "gaussian"
    gamma: float | None = None
    degree: float = 3.0
    coef0: float = 1.0
    tol: float = 1e-10
    max_iter: int = 10_000
    code: SumCode | None = None
    X_fit_: NDArray[np.float64] = field(init=False)
    dual_coef_: NDArray[np.float64] = field(init=False)
    n_iter_: int = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d) and y (N,) or (N, t).

        checkpoint: a folder that the fit is saved in, and goes on from; see Ridge.fit.
        """
        self._check_parameters()
        convertible(X, "X")
        convertible(y, "y")
        X, y = self._valid(X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        kernel = self._kernel(X.shape[1])
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        root = np.sqrt(self._weight(sample_weight, X))
        saves = self._saves(checkpoint, X, None, targets, root)
        K = kernel(X, X)
        if sample_weight is not None:
            K *= root @ root.T
        with self._opened() as cluster:
            matrix = cluster.encode(K, self.k, check_finite=False)
            dual = root * self._solve(matrix, root * targets, saves)
        self.X_fit_ = X
        self.dual_coef_ = dual[:, 0] if np.ndim(y) == 1 else dual
        self.__dict__.pop("_kept", None)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predictions (N,) or (N, t): coded sums over the training points, on the workers."""
        X = self._rows(X, dtype=np.float64)
        points, dual = self.X_fit_, self.dual_coef_  # that may be edited in place
        kernel, N = self._kernel(X.shape[1]), len(points)
        inputs = ((rows, kernel) for rows in batches(X))
        placed = (points,), lambda: (points, dual.reshape(N, -1)), N
        out = self._predicted(terms, inputs, *placed, looked_at=dual)
        return out[:, 0] if self.dual_coef_.ndim == 1 else out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _solve(self, K: Any, y: Floats, saves: Saves) -> Floats:
        # |K a - y|^2 + alpha a'K a of each target, at a = 0
        losses = saves.state.get("losses", (y**2).sum(axis=0))
        saves = saves.beside(losses=losses)
        with self._shown() as show:

            def apply(p: Floats) -> Floats:
                return np.asarray(K @ p) + self.alpha * p

            def count(iteration: int, R: Floats, A: Floats) -> None:
                KA = y - R - self.alpha * A
                losses[:] = ((KA - y) ** 2 + self.alpha * A * KA).sum(axis=0)
                show(iteration, float(losses.sum()), A, K)

            dual, steps, unmet = solve_columns(apply, y, self.tol, self.max_iter, count, saves)
        if unmet:
            why = f"max_iter={self.max_iter}" if steps >= self.max_iter else f"{steps} (rounding)"
            self._unmet(why, self.tol, f" for {unmet} of the targets", "alpha or tol")
        self.n_iter_ = steps
        return dual

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.alpha, "alpha", "> 0")
        number(self.tol, "tol", ">= 0")
        whole(self.max_iter, "max_iter", 1)
        if self.gamma is not None:
            number(self.gamma, "gamma", "> 0")
        number(self.degree, "degree", ">= 0")
        number(self.coef0, "coef0", "that is finite")

    def _kernel(self, features: int) -> Kernel:
        name = "gaussian" if self.kernel == "rbf" else self.kernel
        one_of(name, "kernel", KERNELS)
        gamma = 1.0 / features if self.gamma is None else self.gamma
        return Kernel(name, float(gamma), float(self.degree), float(self.coef0))
