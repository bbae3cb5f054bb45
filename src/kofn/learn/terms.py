"""What workers evaluate on their parts for a linear model. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..sums.scattered import Scattered
from .losses import LossOf
from .solvers import Floats


@dataclass(frozen=True, eq=False)
class Narrow:
    """Rows of a wide sparse matrix, kept with only those of its `width` columns that occur."""

    X: Any  # CSR, (rows, len(columns))
    columns: NDArray[np.intp]
    width: int


def cut(X: Any, targets: Floats, weight: Floats, parts: int) -> Any:
    """The data of a linear model as `cluster.parts` takes them, for Term; of so many parts.

    A part with fewer entries than X has columns is Narrow: it costs in proportion to its entries.
    """
    rows = np.arange(X.shape[0])
    sparse: bool = scipy.sparse.issparse(X)
    if not sparse or X.nnz >= parts * X.shape[1] or parts > X.shape[0]:
        X = np.ascontiguousarray(X) if isinstance(X, np.ndarray) else X
        return X, targets, weight, rows
    edges = [i * int(X.shape[0]) // parts for i in range(parts + 1)]
    return [(narrow(X[a:b]), targets[a:b], weight[a:b], rows[a:b]) for a, b in pairwise(edges)]


def narrow(X: Any) -> Narrow:
    """Leave out the columns that do not occur."""
    columns, at = np.unique(X.indices, return_inverse=True)
    shape = (X.shape[0], len(columns))
    kept = type(X)((X.data, at.astype(X.indices.dtype), X.indptr), shape=shape)
    return Narrow(kept, columns.astype(np.intp), int(X.shape[1]))


def batch_of(batch: float, rows: NDArray[Any], t: int) -> NDArray[np.intp]:
    """A fraction of a part's rows, drawn by iteration and part: alike for every holder of it."""
    count = max(1, round(batch * len(rows)))
    return np.random.default_rng((t, int(rows[0]))).permutation(len(rows))[:count]


@dataclass(frozen=True)
class Term:
    """fn of a sum: gradient and loss of a linear model on one part (X, targets, weights, rows)."""

    loss: LossOf
    intercept: bool
    batch: float | None = None

    def __call__(self, part: Any, x: Any) -> tuple[Any, Floats]:
        X, y, weight, rows = part
        point, t = x
        columns, width = None, int(X.width if isinstance(X, Narrow) else X.shape[1])
        if isinstance(X, Narrow):
            X, columns = X.X, X.columns
        scale = 1.0
        if self.batch is not None:
            some = batch_of(self.batch, rows, t)
            X, y, weight, scale = X[some], y[some], weight[some], len(y) / len(some)
        m = y.shape[1]
        W = point[: width * m].reshape(width, m)
        W = W if columns is None else W[columns]
        # One column multiplies best as a vector.
        scores = (X @ W[:, 0])[:, None] if m == 1 else np.asarray(X @ W)
        if self.intercept:
            scores = scores + point[width * m :]
        loss = self.loss(y, weight)
        slope = scale * loss.slope(scores)
        gradient = X.T @ slope[:, 0] if m == 1 else np.asarray(X.T @ slope).ravel()
        if self.intercept:
            gradient = np.concatenate([gradient, slope.sum(axis=0)])
        value = np.asarray(scale * loss.rows(scores).sum())
        if columns is None:
            return gradient, value
        return Scattered(self._places(columns, width, m), gradient, len(point)), value

    def change(self, part: Any, x: Any) -> tuple[Any, Floats]:
        """By how much the gradient of the batch of iteration t differs between two points.

        x is (point, t, other point); the loss is that of the first.
        """
        point, t, other = x
        here, loss = self(part, (point, t))
        there, _ = self(part, (other, t))
        return here + (-1.0) * there, loss

    def _places(self, columns: NDArray[np.intp], width: int, m: int) -> NDArray[np.intp]:
        """Where in the flat parameters the entries of a Narrow part's gradient are."""
        at = columns if m == 1 else (columns[:, None] * m + np.arange(m)).ravel()
        return np.append(at, width * m + np.arange(m)) if self.intercept else at
