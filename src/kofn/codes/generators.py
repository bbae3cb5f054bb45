"""Generator matrices of any-k-of-n codes: the numbers that make one code better than another.

Measured in numerics.md. Rows are shares; n x k, and every k rows are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..errors import BadInput
from .linear import Floats

GOLDEN = (5**0.5 - 1) / 2


@lru_cache(maxsize=64)
def make_generator(n: int, k: int, construction: str, seed: int) -> Floats:
    """Return the generator (n, k), read-only. Identity when k == n."""
    G = np.eye(n) if k == n else CONSTRUCTIONS[construction](n, k, seed)
    if not np.all(np.isfinite(G)):
        raise BadInput(
            f"a generator must be finite; {construction!r} overflows at n={n}, k={k}. "
            f"Leave the construction out for the best one known."
        )
    G.flags.writeable = False
    return G


def golden_order(n: int) -> list[int]:
    """Node of each machine: machines next to each other get nodes far apart.

    The rank of the fractional part of i times the golden ratio. Of the golden-ratio orders tried
    (rank, its inverse, nearest coprime stride, nearest free node) the one with the smallest worst
    eta over windows, with all machines live (below 5 for every k < n <= 20) and after losses.
    """
    return [int(i) for i in np.argsort(np.argsort((np.arange(n) * GOLDEN) % 1.0))]


def fourier(nodes: list[int], k: int) -> Floats:
    """Real Fourier rows (n, k) at n even nodes in the given order; any k of them are independent.

    The determinant of k rows is a product of sin((theta_i - theta_j) / 2) for both parities of k:
    whole frequencies with a constant for odd k, half frequencies for even k.
    """
    theta = 2 * np.pi * np.array(nodes) / len(nodes)
    f = np.arange(1 + k % 2, k, 2) / 2  # 1/2, 3/2, .. or 1, 2, ..
    angle = theta[:, None] * f
    constant = np.ones((len(nodes), k % 2))
    return np.hstack([constant, np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])


def trigonometric(n: int, k: int, seed: int = 0) -> Floats:
    """Fourier rows, machines in golden-ratio order, the first k of them holding the blocks."""
    return systematic(fourier(golden_order(n), k))


def systematic(F: Floats) -> Floats:
    """Change the basis so that the first k shares are the blocks themselves, exactly."""
    k = F.shape[1]
    G = np.ascontiguousarray(np.linalg.solve(F[:k].T, F.T).T, np.float64)
    G[:k] = np.eye(k)
    return G


def haar(n: int, k: int, seed: int) -> Floats:
    """[I; Q], Q stacked Haar-orthogonal blocks; the best of 8 machine orders up to n = 200.

    Best is the smallest worst eta over the n cyclic windows of k machines.
    """
    rng = np.random.default_rng(seed)
    blocks = [np.eye(k)]
    for _ in range(-(-(n - k) // k)):
        q, r = np.linalg.qr(rng.standard_normal((k, k)))
        blocks.append(q * np.sign(np.diagonal(r)))  # the signs make it Haar
    G = np.vstack(blocks)[:n]
    orders = [rng.permutation(n) for _ in range(8)]
    if n > 200:  # scoring costs 8 n k^3
        return G[orders[0]]
    return G[min(orders, key=lambda order: worst_window(G[order]))]


def worst_window(G: Floats) -> float:
    """The largest eta over the n cyclic windows of k machines."""
    n, k = G.shape
    windows = G[(np.arange(n)[:, None] + np.arange(k)) % n]
    squares = (windows**2).sum(axis=2) * (np.linalg.inv(windows) ** 2).sum(axis=1)
    return float(np.sqrt(squares.sum(axis=1).max() / k))


def gaussian(n: int, k: int, seed: int) -> Floats:
    """Independent normal entries; shares are about as large as blocks."""
    G: Floats = np.random.default_rng(seed).standard_normal((n, k)) / np.sqrt(k)
    return G


def chebyshev(n: int, k: int, seed: int = 0) -> Floats:
    """Chebyshev polynomials at Chebyshev nodes, in golden-ratio order."""
    theta = (np.array(golden_order(n)) + 0.5) * np.pi / n
    G: Floats = np.sqrt(2) * np.cos(theta[:, None] * np.arange(k))
    G[:, 0] = 1.0
    return G


def vandermonde(n: int, k: int, seed: int = 0) -> Floats:
    """[I; V] with V[r, i] = (i + 1)^r, the example of Yang et al., 2019. Useless from n = 20."""
    with np.errstate(over="ignore"):
        parity = np.arange(1.0, k + 1) ** np.arange(n - k)[:, None]
    return np.vstack([np.eye(k), parity])


CONSTRUCTIONS: dict[str, Callable[[int, int, int], Floats]] = {
    "trigonometric": trigonometric,
    "haar": haar,
    "gaussian": gaussian,
    "chebyshev": chebyshev,
    "vandermonde": vandermonde,
}
