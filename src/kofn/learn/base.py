"""What every estimator does before it solves: open a cluster, encode the data, show progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, validate_data

from ..arrays import CodedMatrix
from ..cluster import Cluster, connect
from ..errors import BadInput

# Called after every iteration with (iteration, loss, matrix).
Callback = Callable[[int, float, Any], None]


class CodedEstimator(BaseEstimator):
    """Common ground of the estimators in kofn.learn.

    cluster: an open Cluster, or the name of an engine to open one for the fit.
    workers, k: how many workers to start, and how many of them must be enough.
    """

    cluster: Cluster | str
    workers: int | None
    k: int | None
    callback: Callback | None

    def __getstate__(self) -> dict[str, Any]:
        # A fitted model travels; the cluster it was fitted on and who watched do not.
        state: dict[str, Any] = dict(super().__getstate__())
        if isinstance(state.get("cluster"), Cluster):
            state["cluster"] = state["cluster"].engine.name
        state["callback"] = None
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @contextmanager
    def _encoded(self, X: Any) -> Iterator[CodedMatrix]:
        """The data as a coded matrix, on a cluster that is open for as long as it takes."""
        if isinstance(X, CodedMatrix):
            yield X
        elif isinstance(self.cluster, Cluster):
            yield self.cluster.encode(X, self.k, check_finite=False)
        else:
            with connect(self.cluster, self.workers) as cluster:
                yield cluster.encode(X, self.k, check_finite=False)

    def _check(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        """Return the data as fit needs them; a coded matrix or a store stays as it is."""
        if isinstance(X, CodedMatrix):
            labels = np.asarray(y)
            if labels.shape[:1] != X.shape[:1]:
                raise BadInput(
                    f"X and y must have the same number of rows; got {X.shape[0]} and "
                    f"{len(labels) if labels.ndim else 'a scalar'}."
                )
            self.n_features_in_ = X.shape[1]
            return X, labels
        dtypes = [np.float64, np.float32]
        checked: tuple[Any, NDArray[Any]] = validate_data(
            self, X, y, accept_sparse="csr", dtype=dtypes, **options
        )
        return checked

    def _weight(self, sample_weight: Any, X: Any) -> NDArray[np.float64]:
        """Weights (N, 1); ones if there are none."""
        if isinstance(X, CodedMatrix):
            weight = np.ones(X.shape[0]) if sample_weight is None else np.asarray(sample_weight)
            if weight.shape != (X.shape[0],):
                raise BadInput(
                    f"sample_weight must have one entry per row, {X.shape[0]}; got shape "
                    f"{weight.shape}."
                )
        else:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        return np.asarray(weight, dtype=np.float64)[:, None]

    def _tell(self, X: CodedMatrix) -> Callable[[int, float], None]:
        callback = self.callback

        def tell(iteration: int, loss: float) -> None:
            if callback is not None:
                callback(iteration, loss, X)

        return tell
