"""The report's own way: each worker chooses settings on its own rows, and weights are averaged.

A linear SVM by subgradient descent without an intercept: row after row, in random order, with the
step r / (1 + t) at step t. What is chosen by cross-validation is r, the learning rate, and C, the
trade-off.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..cluster import Cluster
from ..codes.repetition import Uncoded

Floats = NDArray[np.float64]

# Twelve numbers, as the report says: six learning rates and six trade-offs, in all 36 pairs.
RATES = TRADE_OFFS = tuple(10.0**e for e in (1, 0, -1, -2, -3, -4))
EPOCHS, FOLDS = 5, 5


class Trained(NamedTuple):
    """What one worker trained: weights (d,), and the settings that it chose."""

    weights: Floats
    rate: float
    trade_off: float


def train(X: Any, y: Floats, seed: int) -> Trained:
    """Choose the settings by the mean F1 of five folds, over all epochs; then train on all rows.

    All pairs and folds are trained in one pass over the rows, a column each.
    """
    with threadpool_limits(1):  # products this small are slower with more
        return _train(X, y, seed)


def _train(X: Any, y: Floats, seed: int) -> Trained:
    rates, trade_offs = (each.ravel() for each in np.meshgrid(RATES, TRADE_OFFS, indexing="ij"))
    pairs, rows = len(rates), X.shape[0]
    fold_of_row = np.arange(rows) * FOLDS // rows  # consecutive, as in the report's files
    fold_of_column = np.tile(np.arange(FOLDS), pairs)
    used = fold_of_row[:, None] != fold_of_column
    scores = np.zeros(pairs * FOLDS)

    def add(W: Floats) -> None:
        nonlocal scores
        scores += f1(y, X @ W, ~used)

    _descend(X, y, np.repeat(rates, FOLDS), np.repeat(trade_offs, FOLDS), used, seed, add)
    means = scores.reshape(pairs, FOLDS).mean(axis=1)
    best = int(np.flatnonzero(means == means.max())[-1])
    chosen = slice(best, best + 1)
    everything = np.ones((rows, 1), dtype=bool)
    W = _descend(X, y, rates[chosen], trade_offs[chosen], everything, seed, lambda W: None)
    return Trained(W[:, 0], float(rates[best]), float(trade_offs[best]))


def cut(X: Any, y: Floats, count: int) -> list[tuple[int, Any, Floats]]:
    """The rows of each of so many workers, consecutive and equally many: number, X and y."""
    bounds = [X.shape[0] * i // count for i in range(count + 1)]
    return [(i, X[a:b], y[a:b]) for i, (a, b) in enumerate(pairwise(bounds))]


def on_workers(cluster: Cluster, X: Any, y: Floats) -> list[Trained]:
    """Let each worker train on rows of its own."""
    count = len(cluster.workers)
    rows = cluster.parts(cut(X, y, count), Uncoded()).sum(_row, count).value
    return [Trained(row[:-2], float(row[-2]), float(row[-1])) for row in rows]


def _row(part: tuple[int, Any, Floats], count: int) -> Floats:
    """What one worker trained, as a row of a table: the sum of these tables has all rows."""
    number, X, y = part
    trained = train(X, y, number)
    table = np.zeros((count, X.shape[1] + 2))
    table[number] = [*trained.weights, trained.rate, trained.trade_off]
    return table


def f1(y: Floats, scores: Floats, counted: NDArray[np.bool_]) -> Floats:
    """F1 of each column of scores, over the rows that are counted in it; 0 where nothing is hit."""
    chosen, true = (scores > 0) & counted, (y > 0)[:, None] & counted
    hit = (chosen & true).sum(axis=0)
    return np.asarray(2.0 * hit / np.maximum(chosen.sum(axis=0) + true.sum(axis=0), 1))


def _descend(
    X: Any,
    y: Floats,
    rates: Floats,
    trade_offs: Floats,
    used: NDArray[np.bool_],
    seed: int,
    on_epoch: Callable[[Floats], None],
) -> Floats:
    """Weights (d, columns); a column has its own settings, and steps on the rows that it uses."""
    rng = np.random.default_rng(seed)
    # The weights are W · scale: to shrink them all is to shrink the scale.
    W, scale, steps = np.zeros((X.shape[1], len(rates))), np.ones(len(rates)), np.ones(len(rates))
    for _ in range(EPOCHS):
        for row in rng.permutation(X.shape[0]):
            entries = slice(X.indptr[row], X.indptr[row + 1])
            at, x = X.indices[entries], y[row] * X.data[entries]
            step = rates * used[row] / steps
            inside = (x @ W[at]) * scale <= 1
            scale *= 1 - step
            if not scale.all():
                W[:, scale == 0] = 0.0
                scale[scale == 0] = 1.0
            W[at] += np.outer(x, step * trade_offs * inside / scale)
            steps += used[row]
        on_epoch(W * scale)
    return W * scale
