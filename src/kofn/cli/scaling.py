"""kofn fit --standardise: fit to columns of mean 0 and deviation 1, keep a model of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.sparsefuncs import mean_variance_axis


@dataclass(frozen=True, eq=False)
class Columns:
    """The mean and the deviation of each column, None for as they are.

    A sparse matrix is not shifted, nor one that is fitted without an intercept: it would have to
    make up for it.
    """

    mean: NDArray[np.float64] | None = None
    deviation: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, X: Any, model: Any, wanted: bool) -> Self:
        """Those of X, if they are wanted."""
        if not wanted:
            return cls()
        if isinstance(X, np.ndarray):
            mean, deviation = X.mean(axis=0, dtype=np.float64), X.std(axis=0, dtype=np.float64)
        else:
            mean, variance = mean_variance_axis(X.astype(np.float64), axis=0)
            deviation = np.sqrt(variance)
        # A column that does not vary, but for rounding, stays as it is.
        still = deviation <= 1e-12 * np.abs(mean)
        shifted = isinstance(X, np.ndarray) and getattr(model, "fit_intercept", True)
        return cls(mean if shifted else np.zeros_like(mean), np.where(still, 1.0, deviation))

    def scaled(self, X: Any) -> Any:
        """X with its columns shifted and divided."""
        if self.mean is None or self.deviation is None:
            return X
        if isinstance(X, np.ndarray):
            return (X - self.mean) / self.deviation
        X = X.astype(np.float64).copy()
        X.data /= self.deviation[X.indices]
        return X

    def unscale(self, model: Any) -> None:
        """Change a model that was fitted to scaled columns to one of the columns as they are."""
        if self.mean is None or self.deviation is None:
            return
        if hasattr(model, "coefs_"):
            model.coefs_[0] = model.coefs_[0] / self.deviation[:, None]
            model.intercepts_[0] = model.intercepts_[0] - self.mean @ model.coefs_[0]
            return
        model.coef_ = model.coef_ / self.deviation
        if self.mean.any():
            model.intercept_ = model.intercept_ - model.coef_ @ self.mean
