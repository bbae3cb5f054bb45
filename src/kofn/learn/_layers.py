"""A network whose weights live only as coded shares on workers; biases stay here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax

from ..arrays import CodedMatrix, low_rank
from ..model import Report
from .network import Floats


@dataclass(eq=False)
class Layer:
    """W a + b: W (out, in) coded, on the workers; b and its velocity (out,) here."""

    matrix: CodedMatrix
    bias: Floats
    velocity: Floats

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

    What a callback is given: `report` tells what the last product did, `coefs()` reads the weights.
    """

    def __init__(self, matrices: Sequence[CodedMatrix]) -> None:
        zeros = [np.zeros(matrix.shape[0]) for matrix in matrices]
        self.layers = [Layer(W, b, b) for W, b in zip(matrices, zeros, strict=True)]

    @property
    def report(self) -> Report:
        """What the last product with the last layer's weights did."""
        return self.layers[-1].matrix.report

    def learn(self, a: Floats, target: Floats, rate: float, momentum: float) -> float:
        """One step on a batch a (features, rows), target (classes, rows) one-hot; its mean loss.

        A product a layer forward, one a layer but the first backward, an update a layer. Every
        layer's delta is there before any weight changes.
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
