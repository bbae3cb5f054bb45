"""What every estimator does before it solves: open a cluster, place the data, show progress."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    validate_data,
)
from threadpoolctl import ThreadpoolController

from ..arrays import CodedTranspose
from ..arrays.shares import resolve_source
from ..arrays.sources import Source
from ..arrays.store import Store
from ..checks import column_names, convertible, is_sparse, plain
from ..cluster import Cluster
from ..engines.known import find
from ..errors import BadInput
from ..model import Record
from . import products
from .clusters import OnCluster
from .products import Encoded, Here
from .progress import progress
from .saves import Saves, saves

# Called after every iteration with (iteration, loss, matrix).
Callback = Callable[[int, float, Any], None]


@dataclass(repr=False, eq=False)
class CodedEstimator(OnCluster, BaseEstimator):
    """The base class of the estimators in kofn.learn.

    cluster: an open Cluster, or the name of an engine to open one for the fit.
    workers, k: how many workers to start, and how many of them must be enough. With an open cluster
    `workers` is how many there may be: newcomers up to it get a share (default: those live now).
    """

    _: KW_ONLY
    cluster: Any = "local"
    workers: int | None = None
    k: int | None = None
    callback: Callback | None = None
    verbose: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _most(self) -> int | None:
        """Workers that there may be, where that is not how many there are."""
        return self.workers if isinstance(self.cluster, Cluster) else None

    @property
    def _workers_given(self) -> bool:
        """Whether workers were given: an open cluster, or how many to start."""
        by_name = isinstance(self.cluster, str)
        return not by_name or self.workers is not None or self.k is not None

    @contextmanager
    def _placed(self, X: Any, kind: str) -> Iterator[Any]:
        """The data on workers, on a cluster that is open for as long as it takes.

        Of kind "here" they stay here, and no cluster is opened until they are needed
        there.
        """
        with ONE_THREAD, ExitStack() as stack:

            def place(kind: str) -> Encoded:
                cluster = stack.enter_context(self._opened())
                return products.place(kind, cluster, X, self.k, self._most)

            if isinstance(X, Encoded):
                yield X
            elif kind == "here":
                find(self.cluster)  # a name that is none is refused at once
                yield Here(X, partial(place, "coded"))
            else:
                yield place(kind)

    def _saves(
        self, checkpoint: object, X: Any, matrix: Any, targets: NDArray[Any], weight: Any = None
    ) -> Saves:
        """Where this fit is saved, and what it goes on from; `matrix` is X, on the workers."""
        data = matrix if isinstance(X, Encoded | Store | Source) else X
        return saves(checkpoint, self, data, targets, weight)

    def _check_parameters(self) -> None:
        """Refuse parameters that cannot be meant, before data or workers are touched."""
        if self.callback is not None and not callable(self.callback):
            raise BadInput(
                f"callback must be a function of (iteration, loss, data), or None; got "
                f"{self.callback!r}."
            )

    def _unmet(self, steps: str, tol: float, what: str, remedy: str) -> None:
        """Warn that a solver stopped too early."""
        warnings.warn(
            f"{type(self).__name__} stopped after {steps} iterations before it met "
            f"tol={tol:g}{what}. Raise max_iter, {remedy}.",
            ConvergenceWarning,
            stacklevel=4,
        )

    def _check(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        """Return the data as fit needs them; what is on workers, or in a store, stays there.

        y = "no_validation" where there is none, as scikit-learn has it.
        """
        alone = isinstance(y, str) and y == "no_validation"
        self._check_parameters()
        convertible(X, "X")
        convertible(y, "y")
        if is_sparse(y):
            raise BadInput(f"y must be a dense array; got {type(y).__name__}. Pass y.toarray().")
        if not isinstance(X, Encoded):
            source = resolve_source(X)
            if source is None:
                dtypes = [np.float64, np.float32]
                checked = self._valid(X, y, accept_sparse="csr", dtype=dtypes, **options)
                return (checked, y) if alone else checked
            X = source
        self._take_names(X)
        if alone:
            self.n_features_in_ = X.shape[1]
            return X, y
        labels = _check_y(y, **{"multi_output": False, **options}, estimator=self)
        if labels.shape[0] != X.shape[0]:
            raise BadInput(
                f"X and y must have the same number of rows; got {X.shape[0]} and "
                f"{labels.shape[0]}. Check that they belong together."
            )
        self.n_features_in_ = X.shape[1]
        return X, labels

    def _valid(self, X: Any, *y: Any, **options: Any) -> Any:
        """What scikit-learn makes of the data; where it cannot, the column that is to blame."""
        try:
            return validate_data(self, X, *y, **options)
        except ValueError:
            if column_names(X) is not None:
                plain(X, "X")
            raise

    def _take_names(self, X: Any) -> None:
        """The names of the features, if this matrix was encoded from a frame."""
        self.__dict__.pop("feature_names_in_", None)
        if isinstance(X, Encoded) and X.columns is not None:
            self.feature_names_in_ = np.array(X.columns, dtype=object)

    def _classes(self, y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """The classes in y, at least two, and which of them each label is."""
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise BadInput(
                f"a classifier needs at least 2 classes; got 1 class, {classes.tolist()[0]!r}. "
                f"Check how the labels were read."
            )
        return classes, codes

    def _rows(self, X: Any, **options: Any) -> Any:
        """Rows to predict for, as they are needed: scores are computed here, from rows here."""
        check_is_fitted(self)
        if isinstance(X, Encoded | Store | Source | str | os.PathLike):
            raise BadInput(
                f"a model predicts from rows in memory, an array or a CSR matrix; got {X!r}. Load "
                f"it first, in pieces if it is large."
            )
        convertible(X, "X")
        return self._valid(X, reset=False, **options)

    def _weight(self, sample_weight: Any, X: Any) -> NDArray[np.float64]:
        """Weights (N, 1), none negative; ones if there are none, or of one number for all."""
        rows = X.shape[0]
        given = None if sample_weight is None else plain(sample_weight, "sample_weight")
        if given is not None and given.ndim and given.shape != (rows,):
            rule = "sample_weight must have one entry per row"
            if given.ndim > 1:
                rule = "Sample weights must be 1D array or scalar, one entry per row"
            raise BadInput(f"{rule}, {rows}; got shape {given.shape}.")
        if given is not None and given.ndim == 0 and given.dtype.kind in "fiub":
            given = np.full(rows, given, dtype=np.float64)
        weight = _check_sample_weight(given, np.broadcast_to(0.0, (rows, 1)), dtype=np.float64)
        if float(weight.min()) < 0.0:
            raise BadInput(
                f"sample_weight must not be negative; got {float(weight.min()):g} for row "
                f"{int(weight.argmin())}. Use 0 to leave a row out."
            )
        if not float(weight.sum()) > 0.0:
            raise BadInput(
                f"sample_weight must add up to more than 0; got {float(weight.sum()):g}. Leave it "
                f"out for equal weights."
            )
        return np.asarray(weight, dtype=np.float64)[:, None]

    @contextmanager
    def _shown(self) -> Iterator[Callable[[int, float, NDArray[np.float64], Any], None]]:
        """Yield what is called after every iteration: it updates the bar, then calls back."""
        callback = self.callback
        with progress(bool(self.verbose)) as show:

            def on_step(iteration: int, loss: float, x: NDArray[np.float64], data: Any) -> None:
                show(iteration, loss, data.report)
                note_loss(data, iteration, loss)
                if callback is not None:
                    callback(iteration, loss, data)

            yield on_step


class _OneThread:
    """BLAS of this process at one thread, while any fit is going on.

    The cores are the workers'. What is left to do here is small, and threads that wait for one
    another by turning in a loop take the cores away from those that work.
    """

    def __init__(self) -> None:
        self._lock, self._fits = threading.Lock(), 0
        self._limit: Any = None
        self._libraries: Any = None  # looked for anew when modules have come: that takes 4 ms
        self._modules = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._fits == 0:
                if self._modules != len(sys.modules):
                    self._libraries, self._modules = ThreadpoolController(), len(sys.modules)
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._fits += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._fits -= 1
            if self._fits == 0:
                self._limit.restore_original_limits()


ONE_THREAD = _OneThread()


def note_loss(data: Any, iteration: int, loss: float) -> None:
    """Write the loss after an iteration into the event log of the cluster that the data are on."""
    if isinstance(data, Here):
        return
    driver = (data.T if isinstance(data, CodedTranspose) else data)._driver
    driver.log.append(Record.loss(driver.engine.now(), iteration, loss))
