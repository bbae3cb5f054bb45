"""Codes of which any k of n shares are enough: data blocks in, shares out, blocks back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, NotDecodable
from .generators import CONSTRUCTIONS, make_generator
from .linear import CountingDecoder, Floats, Weights, weigh
from .memo import Memo

# Numbers of A that are added up at a time: enough to keep the calls few, small enough for a cache.
CHUNK = 1 << 19

_weights: Memo[tuple[MDSCode, tuple[int, ...]]] = Memo(256 << 20)


@dataclass(frozen=True)
class MDSCode:
    """Any `k` of `n` shares recover the `k` blocks.

    The rows of a matrix are cut in k blocks of B = ceil(N / k) rows, padded with zeros at the end.
    Share s is sum_i generator[s, i] * block_i; some shares are plain blocks. `construction` names
    the generator: "auto" takes "trigonometric" up to n = 20 and "haar" beyond; "gaussian",
    "chebyshev" and "vandermonde" (the paper's figure) are for comparison. `seed` fixes what is
    drawn at random.
    """

    n: int
    k: int
    construction: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("n", "k", "seed"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise BadInput(
                    f"{field} of an MDSCode is a whole number; {value!r} was given. "
                    f"Pass an int, as in MDSCode(n=6, k=3)."
                )
            object.__setattr__(self, field, int(value))
        if not 1 <= self.k <= self.n:
            raise BadInput(
                f"an MDSCode needs 1 <= k <= n; k={self.k} and n={self.n} were given. "
                f"Choose k as the fewest workers that must be enough, at most all n of them."
            )
        if self.seed < 0:
            raise BadInput(f"a seed is at least 0; {self.seed} was given. Pass seed=0.")
        if self.construction not in ("auto", *CONSTRUCTIONS):
            raise BadInput(
                f"a construction is one of {['auto', *CONSTRUCTIONS]}; {self.construction!r} was "
                f"given. Leave it out for the best one known."
            )

    @property
    def name(self) -> str:
        """The code in a few words, for messages."""
        return f"MDSCode(n={self.n}, k={self.k})"

    @property
    def generator(self) -> Floats:
        """The coefficient rows of all shares, shape (n, k), read-only and cached."""
        kind = self.construction
        if kind == "auto":
            kind = "trigonometric" if self.n <= 20 else "haar"
        return make_generator(self.n, self.k, kind, self.seed)

    def row(self, share: int) -> Floats:
        """The k coefficients of one share."""
        if not 0 <= share < self.n:
            raise BadInput(
                f"{self.name} has shares 0 to {self.n - 1}; share {share} was asked for. "
                f"Plan with a larger n for more workers."
            )
        row: Floats = self.generator[share]
        return row

    def block_rows(self, N: int) -> int:
        """Rows of a block, and of a share, of a matrix with N rows."""
        return -(-N // self.k)

    def encode_share(
        self, share: int, A: NDArray[Any], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return one share of `A` (N, ...), shape (ceil(N / k), ...), C-contiguous.

        Reads A once, or only one block of it for a share that is a plain block; adds up in double
        precision over a few rows at a time, so that A is never copied whole. float32 stays
        float32, all else becomes float64.
        """
        B, g = self.block_rows(len(A)), self.row(share)
        if A.dtype.kind not in "fiub":
            raise BadInput(
                f"a matrix to encode holds real numbers; this one has dtype {A.dtype}. "
                f"Encode the real and the imaginary part apart, or convert with astype(float)."
            )
        shape = (B, *A.shape[1:])
        if out is None:
            out = np.empty(shape, np.float32 if A.dtype == np.float32 else np.float64)
        elif out.shape != shape:
            raise BadInput(
                f"a share of this matrix has shape {shape}; `out` has shape {out.shape}. "
                f"Leave `out` to be made."
            )
        used = np.flatnonzero(g)
        if len(used) == 1 and g[used[0]] == 1.0:
            block = A[used[0] * B : (used[0] + 1) * B]
            out[: len(block)] = block
            out[len(block) :] = 0
        elif B:
            _add_up(g, A, B, out)
        return out

    def weights(self, shares: tuple[int, ...]) -> Weights:
        """Return the weights that decode from these shares, at least k of them.

        One QR, O(m k^2), kept: thousands of sets are remembered, up to 256 MB in all.
        Raises NotDecodable below k.
        """
        return _weights.get((self, shares), self._solve)

    def _solve(self, key: tuple[MDSCode, tuple[int, ...]]) -> Weights:
        shares = tuple(sorted(set(key[1])))
        if len(shares) < self.k:
            raise NotDecodable(self.name, shares, self.k)
        self.row(shares[0]), self.row(shares[-1])
        return weigh(self.name, shares, self.generator[list(shares)])

    def eta(self, shares: tuple[int, ...]) -> float:
        """How much decoding from these shares may amplify rounding."""
        return self.weights(shares).eta

    def decoder(self) -> CountingDecoder:
        """Return a decoder that is ready at any k rows and shares the cached weights."""
        return CountingDecoder(self.k, self.name, self.weights)

    def decode(self, replies: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
        """Return the k blocks, shape (k, *block), from what arrived, by share.

        One (k, m) product with cached weights. Raises NotDecodable below k replies.
        """
        return self.weights(tuple(sorted(replies))).combine(replies)


def _add_up(g: Floats, A: NDArray[Any], B: int, out: NDArray[Any]) -> None:
    """Write sum_i g[i] * block_i to `out`; blocks have B rows, those beyond the end of A are 0."""
    full = len(A) // B  # blocks that A fills; the next one may be filled in part
    width = max(1, A[:1].size)
    step = max(1, CHUNK // (len(g) * width))
    # All full blocks side by side, without a copy where the memory allows it.
    flat = A[: full * B].reshape(full, -1) if A.flags.c_contiguous else None
    for first in range(0, B, step):
        last = min(first + step, B)
        if flat is not None:
            piece = flat[:, first * width : last * width]
        else:
            piece = np.stack([A[i * B + first : i * B + last].ravel() for i in range(full)])
        total = g[:full] @ piece
        rest = A[full * B + first : full * B + last].ravel()
        if len(rest):
            total[: len(rest)] += g[full] * rest
        out[first:last] = total.reshape(last - first, *out.shape[1:])
