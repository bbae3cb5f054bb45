"""A small network as a generator: it asks for its products one by one; the caller has them done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from ..errors import Diverged

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
OnStep = Callable[[int, float], None]
T = TypeVar("T")

# Yields the operands X, Y of a product, is sent X Y; returns what it was run for.
Program = Generator[tuple[Floats, Floats], Floats, T]


@dataclass(eq=False)
class Network:
    """A perceptron with ReLU, softmax cross-entropy and plain SGD, whose products others compute.

    `widths`: of the input, the hidden layers and the classes. Weights (in, out) are drawn from
    `seed`, normal with deviation sqrt(2 / in); biases begin at zero.
    """

    widths: Sequence[int]
    learning_rate: float
    seed: int = 0
    weights: list[Floats] = field(init=False)
    biases: list[Floats] = field(init=False)
    losses: list[float] = field(init=False, default_factory=list)  # one a step

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shapes = list(pairwise(self.widths))
        self.weights = [rng.standard_normal(s) * np.sqrt(2.0 / s[0]) for s in shapes]
        self.biases = [np.zeros(out) for _, out in shapes]

    def step(self, rows: Floats, labels: NDArray[np.intp]) -> Program[None]:
        """One SGD step: a product a layer forward, two backward but one for the first layer."""
        inputs = [np.ascontiguousarray(rows, dtype=np.float64)]
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inputs.append(np.maximum((yield inputs[-1], W) + b, 0.0))
        scores = (yield inputs[-1], self.weights[-1]) + self.biases[-1]
        picked = np.arange(len(labels)), labels
        loss = float((logsumexp(scores, axis=1) - scores[picked]).mean())
        if not np.isfinite(loss):
            raise Diverged(len(self.losses) + 1, 0, loss)
        self.losses.append(loss)
        delta = softmax(scores, axis=1)
        delta[picked] -= 1.0
        delta /= len(labels)
        gradients: list[tuple[Floats, Floats]] = []
        for layer in range(len(self.weights) - 1, -1, -1):
            seen = inputs[layer]
            gradients.append(((yield seen.T, delta), delta.sum(axis=0)))
            if layer:
                delta = (yield delta, self.weights[layer].T) * (seen > 0.0)
        for layer, (dW, db) in enumerate(reversed(gradients)):
            self.weights[layer] -= self.learning_rate * dW
            self.biases[layer] -= self.learning_rate * db

    def train(
        self, X: Floats, y: Ints, steps: int, batch: int, on_step: OnStep | None = None
    ) -> Program[Network]:
        """So many steps on batches of consecutive rows; on_step(step, loss) comes after each."""
        size = min(batch, len(X))
        for step in range(steps):
            at = np.arange(step * size, (step + 1) * size) % len(X)
            yield from self.step(X[at], y[at])
            if on_step is not None:
                on_step(step + 1, self.losses[-1])
        return self

    def scores(self, X: Floats) -> Floats:
        """Scores of rows (N, classes), computed here."""
        return scores(X, self.weights, self.biases)

    def loss(self, X: Floats, y: NDArray[np.intp]) -> float:
        """Mean cross-entropy over rows, computed here."""
        logits = self.scores(X)
        return float((logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]).mean())


def scores(X: Floats, weights: Sequence[Floats], biases: Sequence[Floats]) -> Floats:
    """Scores of rows X (N, features) before the softmax, computed here: (N, classes)."""
    a = X
    for W, b in zip(weights[:-1], biases[:-1], strict=True):
        a = np.maximum(a @ W + b, 0.0)
    return np.asarray(a @ weights[-1] + biases[-1])
