"""Kernels and weighted terms αᵢ k(xᵢ, x) for coded sums. NumPy alone: workers import this.

Rows are arrays or CSR matrices. Nothing here imports SciPy: whoever has a CSR matrix has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Kernel(NamedTuple):
    """A kernel of scikit-learn's, by its name, and the parameters that it may use.

    exp(-γ|x-y|²) "gaussian", exp(-γ|x-y|₁) "laplacian", (γ x·y + c)^d "polynomial", x·y "linear",
    tanh(γ x·y + c) "sigmoid", x·y / |x||y| "cosine", -χ² "additive_chi2" and exp(-γ χ²) "chi2" with
    χ² = Σ (x-y)² / (x+y), of dense rows that are nowhere negative.
    """

    name: str
    gamma: float
    degree: float = 3.0
    coef0: float = 1.0

    def __call__(self, rows: Any, inputs: Any) -> Floats:
        """The kernel of every row (E, d) with every input (b, d): (E, b)."""
        return KERNELS[self.name](rows, inputs, self)


@dataclass(frozen=True)
class OwnKernel:
    """A function of two rows, given as (input, row) with `options`; or of two matrices."""

    fn: Callable[..., Any]
    options: Mapping[str, Any]
    matrices: bool = False

    def __call__(self, rows: Any, inputs: Any) -> Floats:
        """The kernel of every row (E, d) with every input (b, d): (E, b)."""
        if self.matrices:
            return np.asarray(self.fn(inputs, rows)).T
        those, these = _each(rows), _each(inputs)
        if rows is not inputs:
            values = [[self.fn(x, row, **self.options) for x in these] for row in those]
            return np.asarray(values, np.float64)
        out = np.empty((len(those), len(those)))
        for i, x in enumerate(those):
            for j, row in enumerate(those[i:], i):
                out[i, j] = out[j, i] = self.fn(x, row, **self.options)
        return out


def _each(rows: Any) -> list[Any]:
    """Rows one by one: vectors, or CSR matrices of one row."""
    sparse = hasattr(rows, "toarray")
    return [rows[[i]] for i in range(rows.shape[0])] if sparse else list(rows)


def _products(rows: Any, inputs: Any) -> Floats:
    found = rows @ inputs.T
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def _lengths(rows: Any) -> Floats:
    """|x|² of every row."""
    if hasattr(rows, "toarray"):
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", rows, rows))  # no temporary array as large as the rows


def _gaussian(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    squares = _lengths(rows)[:, None] + _lengths(inputs) - 2.0 * _products(rows, inputs)
    return np.asarray(np.exp(-kernel.gamma * np.maximum(squares, 0.0)))


def _laplacian(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    out = np.empty((rows.shape[0], inputs.shape[0]))
    for i, row in enumerate(_each(rows)):  # bounded temporary memory
        dense = row.toarray()[0] if hasattr(row, "toarray") else row
        out[i] = _taxicab(inputs, dense)
    return np.asarray(np.exp(-kernel.gamma * out))


def _taxicab(inputs: Any, row: Floats) -> Floats:
    """|x - row|₁ of every input."""
    if not hasattr(inputs, "toarray"):
        return np.asarray(np.abs(inputs - row).sum(axis=1))
    there = row[inputs.indices]
    more = np.abs(inputs.data - there) - np.abs(there)
    owner = np.repeat(np.arange(inputs.shape[0]), np.diff(inputs.indptr))
    return np.asarray(np.abs(row).sum() + np.bincount(owner, more, minlength=inputs.shape[0]))


def _polynomial(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    return np.asarray((kernel.gamma * _products(rows, inputs) + kernel.coef0) ** kernel.degree)


def _linear(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    return _products(rows, inputs)


def _sigmoid(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    return np.asarray(np.tanh(kernel.gamma * _products(rows, inputs) + kernel.coef0))


def _cosine(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    sizes = np.outer(np.sqrt(_lengths(rows)), np.sqrt(_lengths(inputs)))
    return _products(rows, inputs) / np.where(sizes > 0.0, sizes, 1.0)


def _additive_chi2(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    out = np.empty((len(rows), len(inputs)))
    for i, row in enumerate(rows):
        both = inputs + row
        out[i] = -((inputs - row) ** 2 / np.where(both > 0.0, both, 1.0)).sum(axis=1)
    return out


def _chi2(rows: Any, inputs: Any, kernel: Kernel) -> Floats:
    return np.asarray(np.exp(kernel.gamma * _additive_chi2(rows, inputs, kernel)))


KERNELS: dict[str, Callable[[Any, Any, Kernel], Floats]] = {
    "gaussian": _gaussian,
    "laplacian": _laplacian,
    "polynomial": _polynomial,
    "linear": _linear,
    "sigmoid": _sigmoid,
    "cosine": _cosine,
    "additive_chi2": _additive_chi2,
    "chi2": _chi2,
}
HISTOGRAMS = ("additive_chi2", "chi2")  # of dense rows, nowhere negative


def values(rows: Floats, x: tuple[Floats, Kernel]) -> Any:
    """A stack of k(xᵢ, x) for rows (E, d) and one input (1, d): (E,)."""
    inputs, kernel = x
    return kernel(rows, inputs)[:, 0]


def terms(part: tuple[Floats, Floats], x: tuple[Any, Kernel | OwnKernel]) -> Any:
    """A stack of αᵢ k(xᵢ, x) for rows (E, d), weights (E, t) and inputs (b, d): (E, b, t)."""
    (rows, alpha), (inputs, kernel) = part, x
    return kernel(rows, inputs)[:, :, None] * alpha[:, None, :]


def added(part: tuple[Any, Floats], x: tuple[Any, Kernel | OwnKernel]) -> Any:
    """The sum of the terms of some rows, CSR: (b, t)."""
    (rows, alpha), (inputs, kernel) = part, x
    return kernel(rows, inputs).T @ alpha
