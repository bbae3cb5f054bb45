"""The solvers alone, where every product has a rounding of its own, as it has on workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kofn.learn.losses import FRESH, LinearObjective, Problem, squared
from kofn.learn.solvers import SOLVERS, Floats

ROUNDING = 1e-14  # of a product, relative: that of decoding


class Decoded:
    """A matrix whose products are off by ROUNDING, each in its own way."""

    def __init__(self, A: Floats, rng: np.random.Generator) -> None:
        self.A, self.shape, self.rng = A, A.shape, rng

    @property
    def T(self) -> Decoded:
        return Decoded(self.A.T, self.rng)

    def __matmul__(self, v: Floats) -> Floats:
        y = np.asarray(self.A @ v)
        noise = self.rng.standard_normal(len(y))
        return np.asarray(
            y + ROUNDING * np.linalg.norm(y) / np.linalg.norm(noise) * noise, dtype=np.float64
        )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("left", [1.0, 100.0])  # by the side of what the model explains
def test_the_end_is_as_exact_as_the_products(solver: str, left: float) -> None:
    """gd took the rounding of the loss for its end: half of the digits were lost."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((600, 40))
    y = A @ rng.standard_normal(40) + left * rng.standard_normal(600)
    H = A.T @ A + 2.0 * np.eye(40)
    exact = np.linalg.solve(H, A.T @ y)
    X: Any = Decoded(A, rng)
    f = LinearObjective(
        Problem(X, y[:, None], np.ones((600, 1)), squared, penalty=2.0, intercept=False)
    )
    found = SOLVERS[solver](f, np.zeros(40), 0.0, 1000, lambda *_: None)
    assert found.converged
    # Scores are off by FRESH products at most, and the gradient by what that makes of it.
    size, smallest = np.linalg.norm(A, 2), np.linalg.eigvalsh(H)[0]
    scores = FRESH * ROUNDING * np.linalg.norm(A @ exact)
    gradient = size * scores + ROUNDING * np.linalg.norm(A.T @ (A @ exact - y))
    assert np.linalg.norm(found.x - exact) <= gradient / smallest


@pytest.mark.parametrize("solver", SOLVERS)
def test_huge_data(solver: str) -> None:
    """gd stayed where it was, and said that it had converged."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, 5))
    y = A @ np.arange(1.0, 6.0) + rng.standard_normal(200)
    exact, *_ = np.linalg.lstsq(A, y, rcond=None)
    f = LinearObjective(Problem(1e20 * A, y[:, None], np.ones((200, 1)), squared, intercept=False))
    found = SOLVERS[solver](f, np.zeros(5), 0.0, 1000, lambda *_: None)
    # As above: what rounding, FRESH times, makes of the scores, and these of the coefficients.
    off = FRESH * np.sqrt(200) * np.finfo(float).eps * np.linalg.norm(y) * np.linalg.cond(A)
    assert np.linalg.norm(1e20 * found.x - exact) <= off / np.linalg.svd(A)[1][-1]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(4))
def test_whose_gradient_rises_and_falls_goes_on(solver: str, seed: int) -> None:
    """gd said that it had converged at 5e-5, as ten gradients in a row had been larger."""
    rng = np.random.default_rng(seed)
    U, V = (
        np.linalg.qr(rng.standard_normal((200, 12)))[0],
        np.linalg.qr(rng.standard_normal((12, 12)))[0],
    )
    A = U * np.geomspace(1.0, 10.0, 12) @ V.T
    y = A @ rng.standard_normal(12) + rng.standard_normal(200)
    f = LinearObjective(Problem(A, y[:, None], np.ones((200, 1)), squared, intercept=False))
    # What rounding, FRESH times, makes of the scores, and these of the gradient.
    tol = FRESH * float(np.finfo(float).eps * np.linalg.norm(A, 2) * np.linalg.norm(y))
    found = SOLVERS[solver](f, np.zeros(12), tol, 5000, lambda *_: None)
    assert found.converged
    _, gradient = f.value_and_gradient(found.x)
    assert np.abs(gradient).max() <= tol
