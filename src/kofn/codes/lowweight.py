"""A code for sparse matrices: every share mixes few blocks, so shares stay sparse.

Of an MDSCode k shares are plain blocks, and each of the others mixes all k: of a sparse matrix
these are up to k times as much work. Here all n shares mix ⌈k(n-k+1)/n⌉ blocks, the fewest with
which any k shares can be enough (Das et al., 2023, arXiv 2301.12685).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from ..checks import whole_fields
from ..errors import BadInput
from .linear import Floats, solve
from .threshold import AnyKOfN, check_threshold

DRAWS = 20  # of coefficients, of which the best are taken
SETS = 400  # sets of k shares by which they are judged


@dataclass(frozen=True)
class LowWeightCode(AnyKOfN):
    """Any `k` of `n` shares recover the `k` blocks; each share mixes `weight` of them.

    For sparse matrices: `cluster.encode(A, code=LowWeightCode(n, k))`. A product takes `weight`
    times as long as of a plain block, whoever is missing. With an MDSCode it is quicker while
    nobody is, and up to k times as long when a plain share is. Decoding amplifies rounding more
    than that of an MDSCode; the report of a product has the bound. `seed` fixes the coefficients.
    """

    n: int
    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole_fields(self, n=0, k=0, seed=0)
        check_threshold(self)

    @property
    def weight(self) -> int:
        """The blocks that each share mixes: every block must reach n - k + 1 shares."""
        return -(-self.k * (self.n - self.k + 1) // self.n)

    @property
    def generator(self) -> Floats:
        """The coefficient rows of all shares, shape (n, k), read-only and cached."""
        return _generator(self.n, self.k, self.weight, self.seed)


@lru_cache(maxsize=64)
def _generator(n: int, k: int, weight: int, seed: int) -> Floats:
    """The best of some draws: with the smallest η over sets of k shares."""
    if weight == 1:  # copies: k = 1, or all n are needed
        G = np.eye(k)[np.arange(n) % k]
        G.flags.writeable = False
        return G
    rng = np.random.default_rng(seed)
    first = np.array([i if i < k else i * weight for i in range(n)])
    blocks = (first[:, None] + np.arange(weight)) % k
    sets = list(_sets(n, k, rng))
    best, least = None, np.inf
    for _ in range(DRAWS):
        G = np.zeros((n, k))
        # Neither near zero nor of very different sizes: both would cost digits.
        values = rng.uniform(0.5, 1.5, (n, weight)) * rng.choice([-1.0, 1.0], (n, weight))
        np.put_along_axis(G, blocks, values, axis=1)
        eta = _worst(G, sets, least)
        if eta < least:
            best, least = G, eta
    if best is None:
        raise BadInput(
            f"no coefficients were found with which any {k} of {n} shares of weight {weight} are "
            f"enough. Try another seed, or use MDSCode({n}, {k})."
        )
    best.flags.writeable = False
    return best


def _sets(n: int, k: int, rng: np.random.Generator) -> Iterator[NDArray[np.intp]]:
    """All sets of k shares, or some where these are many: windows first."""
    if comb(n, k) <= SETS:
        yield from (np.array(some, np.intp) for some in combinations(range(n), k))
        return
    for start in range(n):
        yield np.sort((start + np.arange(k)) % n)
    for _ in range(SETS - n):
        yield np.sort(rng.permutation(n)[:k])


def _worst(G: Floats, sets: list[NDArray[np.intp]], least: float) -> float:
    worst = 0.0
    for some in sets:
        try:
            worst = max(worst, solve(G[some])[1])
        except np.linalg.LinAlgError:
            return np.inf
        if worst >= least:
            break
    return worst
