"""The pieces of work: what every peer computes, on the same data, to the same result.

A work is a generator: it yields an operand and is sent the combined value, round after round. What
a round computes is a function of one block of rows and the operand; six blocks make the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORKERS = 6
COMPONENTS, POWERS = 32, 6  # columns of an SVD's subspace, and how often it is multiplied
TARGET = 1.001  # times the least loss
Floats = NDArray[np.float64]
Steps = Generator[Any, Any, None]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data of all works."""

    rows: int
    columns: int
    cases: int  # of the logistic regression, where it is made up
    job: tuple[int, int, int]  # a product of the sequence
    inputs: int  # that the kernels are evaluated at


FULL = Sizes(20_000, 2_000, 495_141, (600, 400, 400), 256)
QUICK = Sizes(4_000, 500, 40_000, (240, 200, 200), 64)


def product(block: Floats, w: Floats) -> Floats:
    """Of the rows and a vector."""
    return np.asarray(block @ w)


def gram(block: Floats, Q: Floats) -> Floats:
    """Xᵀ X Q of the rows."""
    return np.asarray(block.T @ (block @ Q))


def logistic(block: Floats, w: Floats) -> Floats:
    """Gradient and loss of logistic regression; the block's last column is ±1."""
    X, y = block[:, :-1], block[:, -1]
    margin = y * (X @ w)
    slope = -y / (1.0 + np.exp(np.minimum(margin, 500.0)))
    return np.append(X.T @ slope, np.logaddexp(0.0, -margin).sum())


def kernels(block: Floats, inputs: Floats) -> Floats:
    """The sum of the kernels around the block's rows, at each input."""
    return np.asarray(each_kernel(block, inputs).sum(axis=0))


def each_kernel(rows: Floats, inputs: Floats) -> Floats:
    """One row for each kernel."""
    squares = (rows**2).sum(1)[:, None] + (inputs**2).sum(1) - 2 * rows @ inputs.T
    return np.asarray(np.exp(-squares / rows.shape[1]))


def pair(block: None, both: tuple[Floats, Floats]) -> Floats:
    """Of two matrices that are both sent."""
    return np.asarray(both[0] @ both[1])


def paused(fn: Callable[[Any, Any], Floats], block: Any, operand: Any, seconds: float) -> Floats:
    """The same after a pause, which the setting has drawn."""
    if seconds > 0:
        time.sleep(seconds)
    return fn(block, operand)


def products(data: Data, rounds: int) -> Steps:
    """X @ w again and again."""
    w = data.vector
    for _ in range(rounds):
        yield w


def svd(data: Data, rounds: int) -> Steps:
    """The largest singular values by subspace iteration; a round is one Xᵀ X Q."""
    columns = data.array("X").shape[1]
    for _ in range(rounds // POWERS):
        Q = np.linalg.qr(np.random.default_rng(1).standard_normal((columns, COMPONENTS)))[0]
        for _ in range(POWERS):
            Q = np.linalg.qr((yield Q))[0]


def sums(data: Data, rounds: int) -> Steps:
    """The sum of 1,000 kernels at a batch of inputs."""
    inputs = data.array("inputs")
    for _ in range(rounds):
        yield inputs


def sequence(data: Data, rounds: int) -> Steps:
    """Products of which both factors are new each time."""
    X, Y = data.array("left"), data.array("right")
    for i in range(rounds):
        yield X[i % len(X)], Y[i % len(Y)]


def regression(data: Data, rounds: int) -> Steps:
    """L-BFGS from zero until the loss is at most 0.1 % above the least."""
    goal = data.target
    x = np.zeros(data.array("cases").shape[1] - 1)
    pairs: list[tuple[Floats, Floats]] = []
    value = yield x
    gradient, loss, evaluated = value[:-1], value[-1], 1
    while loss > goal and evaluated < rounds:
        direction = -_two_loops(gradient, pairs) if pairs else -gradient / np.linalg.norm(gradient)
        step, slope = 1.0, float(gradient @ direction)
        while True:
            value = yield x + step * direction
            evaluated += 1
            if value[-1] <= loss + 1e-4 * step * slope or step < 1e-6:
                break
            step /= 2
        moved, change = step * direction, value[:-1] - gradient
        if moved @ change > 0:
            pairs = [*pairs[-9:], (moved, change)]
        x, gradient, loss = x + moved, value[:-1], value[-1]


def _two_loops(gradient: Floats, pairs: list[tuple[Floats, Floats]]) -> Floats:
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (y @ s))
        q -= alphas[-1] * y
    s, y = pairs[-1]
    q *= (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q += s * (alpha - y @ q / (y @ s))
    return q


@dataclass(frozen=True)
class Work:
    """What is computed, of which array, and how the replies of the blocks are put together."""

    steps: Callable[[Data, int], Steps]
    fn: Callable[[Any, Any], Floats]
    array: str | None
    adds: bool
    rounds: int

    def combine(self, replies: list[Floats]) -> Floats:
        """The whole value."""
        return np.asarray(sum(replies)) if self.adds else np.concatenate(replies)

    def operands(self, operand: Any) -> list[Any]:
        """For each block; where no array is kept, the left factor is cut."""
        if self.array is not None:
            return [operand] * WORKERS
        X, Y = operand
        return [(part, Y) for part in np.array_split(X, WORKERS)]


WORKS = {
    "products": Work(products, product, "X", False, 300),
    "logistic": Work(regression, logistic, "cases", True, 200),
    "sequence": Work(sequence, pair, None, False, 200),
    "sums": Work(sums, kernels, "centres", True, 300),
    "svd": Work(svd, gram, "X", True, 10 * POWERS),
}


class Data:
    """The arrays of a run, in a folder that all processes map."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def array(self, name: str) -> Floats:
        """One of them, mapped."""
        array: Floats = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return array

    @property
    def vector(self) -> Floats:
        """The operand that X is multiplied with."""
        return np.ones(self.array("X").shape[1])

    @property
    def target(self) -> float:
        """The loss that the logistic regression must reach."""
        return float(self.array("target")[0])

    def blocks(self, work: Work) -> list[Any]:
        """Six blocks of rows, or None for each."""
        if work.array is None:
            return [None] * WORKERS
        return list(np.array_split(self.array(work.array), WORKERS))


def evaluations(data: Data) -> int:
    """How many rounds the logistic regression takes."""
    work, cases = WORKS["logistic"], data.array("cases")
    steps = work.steps(data, work.rounds)
    rounds, w = 0, next(steps)
    with suppress(StopIteration):
        while True:
            rounds += 1
            w = steps.send(work.fn(cases, w))
    return rounds


def make(folder: Path, sizes: Sizes, cases: Floats | None) -> Data:
    """Write the arrays; `cases` are those of the logistic regression, or made up."""
    rng = np.random.default_rng(0)
    if cases is None:
        X = rng.standard_normal((sizes.cases, 54))
        X[:, -1] = 1.0
        y = np.where(X @ rng.standard_normal(54) + 4 * rng.standard_normal(len(X)) > 0, 1.0, -1.0)
        cases = np.column_stack([X, y])
    m, n, p = sizes.job
    arrays = {
        "X": rng.standard_normal((sizes.rows, sizes.columns)),
        "cases": cases,
        "centres": rng.standard_normal((1000, 50)),
        "inputs": rng.standard_normal((sizes.inputs, 50)),
        "left": rng.standard_normal((8, m, n)),
        "right": rng.standard_normal((8, n, p)),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "target.npy", [TARGET * _least(cases)])
    return Data(folder)


def _least(cases: Floats) -> float:
    """The least loss, by Newton's method."""
    X, y = cases[:, :-1], cases[:, -1]
    w = np.zeros(X.shape[1])
    loss = np.inf
    for _ in range(30):
        value = logistic(cases, w)
        if value[-1] > loss * (1 - 1e-9):
            break
        loss = float(value[-1])
        p = 1.0 / (1.0 + np.exp(-y * (X @ w)))
        curvature = X.T @ (X * (p * (1 - p))[:, None])
        w -= np.linalg.lstsq(curvature, value[:-1], rcond=1e-10)[0]
    return loss
