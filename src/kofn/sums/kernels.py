"""Kernels and weighted terms αᵢ k(xᵢ, x) for coded sums. NumPy alone: workers import this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Kernel(NamedTuple):
    """k(x, y): exp(-γ|x-y|²) "gaussian", exp(-γ|x-y|₁) "laplacian", (γ x·y + c)^d "polynomial".

    x·y "linear", which uses no parameter.
    """

    name: str
    gamma: float
    degree: float = 3.0
    coef0: float = 1.0

    def __call__(self, rows: Floats, inputs: Floats) -> Floats:
        """The kernel of every row (E, d) with every input (b, d): (E, b)."""
        return KERNELS[self.name](rows, inputs, self)


def _gaussian(rows: Floats, inputs: Floats, kernel: Kernel) -> Floats:
    lengths = np.einsum("ij,ij->i", rows, rows)  # no temporary array as large as the rows
    squares = lengths[:, None] + (inputs**2).sum(axis=1) - 2.0 * (rows @ inputs.T)
    return np.asarray(np.exp(-kernel.gamma * np.maximum(squares, 0.0)))


def _laplacian(rows: Floats, inputs: Floats, kernel: Kernel) -> Floats:
    out = np.empty((len(rows), len(inputs)))
    for i, row in enumerate(rows):  # bounded temporary memory
        out[i] = np.abs(inputs - row).sum(axis=1)
    return np.asarray(np.exp(-kernel.gamma * out))


def _polynomial(rows: Floats, inputs: Floats, kernel: Kernel) -> Floats:
    return np.asarray((kernel.gamma * (rows @ inputs.T) + kernel.coef0) ** kernel.degree)


def _linear(rows: Floats, inputs: Floats, kernel: Kernel) -> Floats:
    return np.asarray(rows @ inputs.T)


KERNELS: dict[str, Callable[[Floats, Floats, Kernel], Floats]] = {
    "gaussian": _gaussian,
    "laplacian": _laplacian,
    "polynomial": _polynomial,
    "linear": _linear,
}


def values(rows: Floats, x: tuple[Floats, Kernel]) -> Any:
    """A stack of k(xᵢ, x) for rows (E, d) and one input (1, d): (E,)."""
    inputs, kernel = x
    return kernel(rows, inputs)[:, 0]


def terms(part: tuple[Floats, Floats], x: tuple[Floats, Kernel]) -> Any:
    """A stack of αᵢ k(xᵢ, x) for rows (E, d), weights (E, t) and inputs (b, d): (E, b, t)."""
    (rows, alpha), (inputs, kernel) = part, x
    return kernel(rows, inputs)[:, :, None] * alpha[:, None, :]
