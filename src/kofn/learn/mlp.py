"""A neural network trained with coded layers: it goes on while workers are lost and join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from numbers import Integral
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state

from ..arrays import CodedMatrix, low_rank
from ..arrays.grid import encode_grid
from ..arrays.shares import resolve_source
from ..checks import number, one_of, whole
from ..cluster import Cluster
from ..errors import BadInput
from ..model import Report
from .base import CodedEstimator, note_loss
from .network import Floats, Ints, scores
from .products import Encoded
from .progress import progress
from .saves import Saves
from .solvers import check_finite

Encode = Callable[[Floats], CodedMatrix]


@dataclass(eq=False)
class Layer:
    """W a + b: W (out, in) coded, on the workers; b and its velocity (out,) here."""

    matrix: CodedMatrix
    bias: Floats
    velocity: Floats

    @classmethod
    def begun(cls, W: Floats, encode: Encode) -> Layer:
        """A layer with these weights, before any step."""
        zeros = np.zeros(len(W))
        return cls(encode(W), zeros, zeros)

    @classmethod
    def saved(cls, state: Mapping[str, Any], encode: Encode) -> Layer:
        """A layer from a `__checkpoint__`: its first move gives it its velocity."""
        W, V = state["weights"], state["moving"]
        matrix = encode(W if V is None else W - V)
        if V is not None:
            matrix.move(V, 0.0)
        return cls(matrix, state["bias"], state["velocity"])

    def __checkpoint__(self) -> dict[str, Any]:
        W, V = self.matrix.toarray(), self.matrix.velocity()
        return {"weights": W, "moving": V, "bias": self.bias, "velocity": self.velocity}

    def forward(self, a: Floats) -> Floats:
        """W a + b for a batch a (in, rows): one coded product."""
        return np.asarray(self.matrix @ a + self.bias[:, None])

    def descend(self, delta: Floats, a: Floats, rate: float, momentum: float) -> None:
        """Step along -rate · delta aᵀ with momentum: one coded update of rank `rows`."""
        change = low_rank(-rate * delta, a)
        if momentum:
            self.matrix.move(change, momentum)
        else:
            self.matrix += change
        self.velocity = momentum * self.velocity - rate * delta.sum(axis=1)
        self.bias = self.bias + self.velocity


class CodedNetwork:
    """Layers with ReLU between them and a softmax at the end, trained batch by batch.

    The argument of a callback: `report` is of the last product, `coefs()` reads the weights.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)

    @property
    def report(self) -> Report:
        """The report of the last product with the last layer's weights."""
        return self.layers[-1].matrix.report

    def learn(self, a: Floats, target: Floats, rate: float, momentum: float) -> float:
        """One step on a batch a (features, rows), target (classes, rows) one-hot; its mean loss.

        A product a layer forward, one a layer but the first backward; then an update a layer.
        """
        inputs = [a]
        for layer in self.layers[:-1]:
            inputs.append(np.maximum(layer.forward(inputs[-1]), 0.0))
        scores = self.layers[-1].forward(inputs[-1])
        loss = float((logsumexp(scores, axis=0) - (scores * target).sum(axis=0)).mean())
        delta = (softmax(scores, axis=0) - target) / a.shape[1]
        deltas = [delta]
        for layer, seen in zip(self.layers[:0:-1], inputs[:0:-1], strict=True):
            delta = (layer.matrix.T @ delta) * (seen > 0.0)
            deltas.append(delta)
        for layer, delta, seen in zip(self.layers, deltas[::-1], inputs, strict=True):
            layer.descend(delta, seen, rate, momentum)
        return loss

    def coefs(self) -> list[Floats]:
        """The weights as they are now, (in, out) a layer as scikit-learn has them: read back."""
        return [np.ascontiguousarray(layer.matrix.toarray().T) for layer in self.layers]

    def intercepts(self) -> list[Floats]:
        """The biases as they are now, (out,) a layer."""
        return [layer.bias.copy() for layer in self.layers]


@dataclass(repr=False, eq=False)
class CodedMLPClassifier(ClassifierMixin, CodedEstimator):
    """Multi-layer perceptron: ReLU, softmax cross-entropy, mini-batch SGD with momentum.

    This is not scikit-learn's MLPClassifier, and its parameters have other names: Adam, the default
    there, divides by the roots of squared gradients, entry by entry. Coded shares of the weights
    take linear updates only.

    The weights, and their velocity, live only as coded shares on the workers (model parallel); a
    forward pass is W a, a backward pass Wᵀ δ, a step a coded low-rank update. The batches and the
    biases stay here. At the end of fit the weights are read back: `coefs_`, `intercepts_`.

    hidden: widths of the hidden layers, or the width of the only one. partition: "rows" cuts each
    W by rows, and any `k` workers are enough (default: half of them, rounded up); "grid" cuts it in
    `grid` = (m, p) blocks, a share being 1/(mp) of it, and the larger of m(2p-1) and p(2m-1)
    workers are enough.
    A worker that joins has its share of the weights rebuilt from live ones.

    Drawn from `random_state`, in this order: the weights, layer by layer, normal with deviation
    sqrt(2 / in) as an (out, in) matrix; then one permutation of the rows an epoch. All is done in
    float64. cluster, workers: an open Cluster, or an engine's name to open one.
    callback(epoch, loss, network) is called after every epoch, from 1, with its mean loss;
    `network.coefs()` and `network.intercepts()` are the parameters so far. `verbose` shows a
    progress bar on a terminal.
    """

    hidden: int | Sequence[int] = (300, 100)
    _: KW_ONLY
    parallel: str = "model"
    partition: str = "rows"
    grid: tuple[int, int] = (2, 2)
    learning_rate: float = 0.05
    momentum: float = 0.9
    batch_size: int = 200
    max_epochs: int = 20
    random_state: Any = None
    classes_: NDArray[Any] = field(init=False)
    coefs_: list[Floats] = field(init=False)
    intercepts_: list[Floats] = field(init=False)
    loss_curve_: list[float] = field(init=False)
    n_iter_: int = field(init=False)

    def fit(self, X: Any, y: Any, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d), an array or CSR matrix, and labels y (N,).

        checkpoint: a folder that the fit is saved in at the end of an epoch, the weights read back,
        and goes on from; see Ridge.fit.
        """
        self._check_parameters()
        if isinstance(X, Encoded) or resolve_source(X) is not None:
            raise BadInput(
                f"CodedMLPClassifier keeps its weights coded, not the data; got a "
                f"{type(X).__name__}. Pass the array or the CSR matrix itself."
            )
        X, y = self._check(X, y)
        self.classes_, codes = self._classes(y)
        self._last: dict[str, Any] | None = None
        return self._train(X, codes, int(self.max_epochs), self._saves(checkpoint, X, None, codes))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on for one epoch over these rows: from the weights and their velocity as they are.

        classes: all labels that will ever come, in the first call (default: those of its y). So
        many calls with the same rows are a fit of so many epochs.
        """
        first = not hasattr(self, "classes_")
        if not first and classes is not None and not np.array_equal(classes, self.classes_):
            raise BadInput(
                f"classes stay as the first call of partial_fit had them, "
                f"{self.classes_.tolist()}; got {np.asarray(classes).tolist()}. Leave them out."
            )
        self._check_parameters()
        if isinstance(X, Encoded) or resolve_source(X) is not None:
            raise BadInput(f"partial_fit takes rows in memory; got {X!r}. Load them first.")
        names = None if first else vars(self).get("feature_names_in_")
        width = None if first else self.n_features_in_
        X, y = self._check(X, y)
        if width is not None and X.shape[1] != width:
            raise BadInput(  # the words of scikit-learn
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {width} "
                f"features as input. Pass the columns of the first call."
            )
        if names is not None:
            self.feature_names_in_ = names
        if first:
            self.classes_ = self._classes(y if classes is None else np.asarray(classes))[0]
        if not np.isin(y, self.classes_).all():
            strange = y[~np.isin(y, self.classes_)][0]
            raise BadInput(
                f"labels are among the classes, {self.classes_.tolist()}; got {strange!r}. Name "
                f"all of them in the first call: partial_fit(X, y, classes=...)."
            )
        codes = np.searchsorted(self.classes_, y)
        state: Mapping[str, Any] = {} if first else (vars(self).get("_last") or self._known())
        return self._train(X, codes, len(state.get("losses", ())) + 1, Saves(state))

    def _known(self) -> dict[str, Any]:
        """The start of a model that was saved or pickled: its weights, without velocity."""
        layers = [
            {"weights": W.T, "moving": None, "bias": b, "velocity": np.zeros_like(b)}
            for W, b in zip(self.coefs_, self.intercepts_, strict=True)
        ]
        random = check_random_state(self.random_state).get_state(legacy=False)
        return {"layers": layers, "losses": self.loss_curve_, "random": random}

    def _train(self, X: Any, codes: Ints, epochs: int, saves: Saves) -> Self:
        state = saves.state
        rng = check_random_state(0 if state else self.random_state)
        if state:
            rng.set_state(state["random"])
        self.loss_curve_ = list(state.get("losses", ()))
        shown = progress(bool(self.verbose), "epoch", epochs)
        with self._opened() as cluster, shown as show:
            encode = self._encoder(cluster)
            if state:
                network = CodedNetwork([Layer.saved(layer, encode) for layer in state["layers"]])
            else:
                network = CodedNetwork([Layer.begun(W, encode) for W in self._drawn(X, rng)])
            for epoch in range(len(self.loss_curve_) + 1, epochs + 1):
                order = rng.permutation(X.shape[0])
                loss = self._epoch(network, X, codes, order, epoch)
                self.loss_curve_.append(loss)
                show(epoch, loss, network.report)
                note_loss(network.layers[-1].matrix, epoch, loss)
                if self.callback is not None:
                    self.callback(epoch, loss, network)
                random = rng.get_state(legacy=False)
                saves.offer(losses=self.loss_curve_, layers=network.layers, random=random)
            layers = [layer.__checkpoint__() for layer in network.layers]
        random = rng.get_state(legacy=False)
        self._last = {"layers": layers, "losses": list(self.loss_curve_), "random": random}
        self.coefs_ = [np.ascontiguousarray(layer["weights"].T) for layer in layers]
        self.intercepts_ = [layer["bias"].copy() for layer in layers]
        self.n_iter_ = len(self.loss_curve_)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (N, classes), computed here."""
        return softmax(self._scores(X), axis=1)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities, (N, classes)."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> Any:
        """Return the most likely classes, computed here."""
        best = self._scores(X).argmax(axis=1)
        return self.classes_[best]

    def _scores(self, X: Any) -> Floats:
        X = self._rows(X, accept_sparse="csr", dtype=np.float64)
        return scores(X, self.coefs_, self.intercepts_)

    def _epoch(self, network: CodedNetwork, X: Any, codes: Ints, order: Ints, epoch: int) -> float:
        """One pass over the rows in the given order; the mean loss of its batches, by rows."""
        total, size, sparse = 0.0, int(self.batch_size), bool(scipy.sparse.issparse(X))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            batch = X[rows].toarray() if sparse else X[rows]
            a = np.ascontiguousarray(batch.T, dtype=np.float64)
            target = (codes[rows] == np.arange(len(self.classes_))[:, None]).astype(np.float64)
            loss = network.learn(a, target, float(self.learning_rate), float(self.momentum))
            check_finite(epoch, loss)
            total += loss * len(rows)
        return total / len(order)

    def _drawn(self, X: Any, rng: Any) -> Iterator[Floats]:
        """The first weights, layer by layer."""
        widths = [X.shape[1], *(int(width) for width in self._widths), len(self.classes_)]
        for into, out in pairwise(widths):
            yield rng.standard_normal((out, into)) * np.sqrt(2.0 / into)

    def _encoder(self, cluster: Cluster) -> Encode:
        """The function that puts the weights of a layer on the workers."""
        if self.partition == "grid":
            m, p = self.grid
            return lambda W: encode_grid(cluster, W, (m, p))
        return lambda W: cluster.encode(W, self.k, n=self._most)

    @property
    def _widths(self) -> Sequence[Any]:
        """Widths of the hidden layers."""
        if isinstance(self.hidden, Integral):
            return (self.hidden,)
        if not isinstance(self.hidden, Sequence | np.ndarray) or isinstance(self.hidden, str):
            raise BadInput(
                f"hidden is the widths of the hidden layers, such as (300, 100); got "
                f"{self.hidden!r}."
            )
        return tuple(self.hidden)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.parallel != "model":
            raise BadInput(
                f"parallel must be 'model': the weights are spread over the workers; got "
                f"{self.parallel!r}."
            )
        one_of(self.partition, "partition", ("rows", "grid"))
        if self.partition == "grid" and self.k is not None:
            raise BadInput(
                f"with partition='grid' the grid decides how many workers are enough; got "
                f"k={self.k!r} as well. Leave k out, or choose another grid=(m, p)."
            )
        sizes = {"batch_size": self.batch_size, "max_epochs": self.max_epochs}
        sizes |= {f"hidden[{i}]": width for i, width in enumerate(self._widths)}
        for name, value in sizes.items():
            whole(value, name, 1)
        number(self.learning_rate, "learning_rate", "> 0")
        number(self.momentum, "momentum", "in [0, 1)")
