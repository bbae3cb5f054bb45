"""PolyDot: a matrix cut both ways, whose shares multiply from either side.

W is cut in an m x p grid of blocks W_ij, and worker s holds S_s = Σ_ij u_s^i v_s^j W_ij at its own
point (u_s, v_s). Only what is sent with a product says which product it is:

forward W x: x_s = Σ_l v_s^(p-1-l) x_l. Then S_s x_s = Σ_i Σ_e u_s^i v_s^e C_ie, e = 0 … 2p-2, with
C_ie = Σ W_ij x_l over j - l = e - (p-1). In C_i,p-1 the indices meet: it is Σ_j W_ij x_j.

backward Wᵀ z: z_s = Σ_l u_s^(m-1-l) z_l. Then S_sᵀ z_s = Σ_e Σ_j u_s^e v_s^j D_ej, e = 0 … 2m-2;
D_m-1,j is Σ_i W_ijᵀ z_i.

Forward has m(2p-1) unknowns, backward p(2m-1): these are the thresholds. The monomials are
independent functions, so at points in general position any so many replies determine them, and
fewer do not reach the wanted ones.

A change U Vᵀ of W changes S_s by (Σ_i u_s^i U_i)(Σ_j v_s^j V_j)ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import whole_fields
from ..errors import BadInput
from .linear import Floats, Weights
from .threshold import ThresholdCode, check_share, mix

Kind = Literal["forward", "backward", "stored"]
TRIALS, FINALISTS = 256, 8  # sets of points tried; those looked at closely


@dataclass(frozen=True)
class PolyDotCode:
    """Shares of an m x p grid for n workers; `k` of them are enough for either product.

    A share is 1/(mp) of the matrix. k = max(m(2p-1), p(2m-1)); any mp shares give the matrix back.
    `seed` draws the points: of 256 sets the one that decodes best in the worst window.
    Monomials at real points: for small grids (η below 20 for 2 x 2 up to n = 10; 3 x 3 needs an
    extra reply here and there, and larger ones lose digits).
    """

    n: int
    m: int
    p: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole_fields(self, n=1, m=1, p=1, seed=0)
        if self.n < self.k:
            raise BadInput(
                f"a {self.m} x {self.p} grid needs {self.k} workers: {self.forward.k} forward, "
                f"{self.backward.k} backward; got n={self.n}. Use more workers or a smaller grid."
            )

    @property
    def k(self) -> int:
        """Workers that are enough for both products."""
        return max(self.forward.k, self.backward.k)

    @property
    def forward(self) -> PolyDotPass:
        """W x: threshold m(2p-1)."""
        return PolyDotPass(self, "forward")

    @property
    def backward(self) -> PolyDotPass:
        """Wᵀ z: threshold p(2m-1)."""
        return PolyDotPass(self, "backward")

    @property
    def stored(self) -> PolyDotPass:
        """The shares as they are: threshold mp."""
        return PolyDotPass(self, "stored")

    @property
    def name(self) -> str:
        """The code in a few words, for messages."""
        return f"PolyDotCode(n={self.n}, m={self.m}, p={self.p})"

    @property
    def points(self) -> tuple[Floats, Floats]:
        """u and v, (n,) each, in [-1, 1]; read-only and kept."""
        return place(self.n, self.m, self.p, self.seed)

    def row(self, share: int) -> Floats:
        """The mp coefficients u^i v^j of one share."""
        return self.stored.row(share)

    def weights(self, shares: tuple[int, ...]) -> Weights:
        """How to get the mp blocks back from at least mp shares."""
        return self.stored.weights(shares)

    def block_rows(self, N: int) -> int:
        """Rows of a share of a matrix with N rows."""
        return -(-N // self.m)

    def block_columns(self, d: int) -> int:
        """Columns of a share of a matrix with d columns."""
        return -(-d // self.p)

    def encode_rows(self, share: int, A: NDArray[Any]) -> NDArray[Any]:
        """Σ_i u^i A_i, (ceil(N / m), ...), for A (N, ...)."""
        return mix(powers(self.points[0][share], self.m), A)

    def encode_columns(self, share: int, A: NDArray[Any]) -> NDArray[Any]:
        """Σ_j v^j A_j, (ceil(d / p), ...), for A (d, ...)."""
        return mix(powers(self.points[1][share], self.p), A)

    def encode_share(self, share: int, A: NDArray[Any]) -> NDArray[Any]:
        """Share of A (N, d): (ceil(N / m), ceil(d / p)), C-contiguous. One pass over A."""
        return np.ascontiguousarray(self.encode_columns(share, self.encode_rows(share, A).T).T)


@dataclass(frozen=True)
class PolyDotPass(ThresholdCode):
    """One use of the shares: `k` unknowns and replies, of which the aligned ones are wanted."""

    code: PolyDotCode
    kind: Kind

    @property
    def n(self) -> int:
        """Shares."""
        return self.code.n

    @property
    def _degrees(self) -> tuple[int, int]:
        m, p = self.code.m, self.code.p
        if self.kind == "stored":
            return m, p
        return (m, 2 * p - 1) if self.kind == "forward" else (2 * m - 1, p)

    @property
    def k(self) -> int:
        """The threshold: how many coefficients there are."""
        a, b = self._degrees
        return a * b

    @property
    def name(self) -> str:
        """The pass in a few words, for messages."""
        return f"{self.code.name} {self.kind}"

    @property
    def wanted(self) -> tuple[int, ...]:
        """Places of the aligned coefficients: m of them forward, p backward, all if stored."""
        m, p = self.code.m, self.code.p
        if self.kind == "forward":
            return tuple(i * (2 * p - 1) + p - 1 for i in range(m))
        if self.kind == "backward":
            return tuple((m - 1) * p + j for j in range(p))
        return tuple(range(m * p))

    def row(self, share: int) -> Floats:
        """The k coefficients of one reply: u^a v^b, b running fastest."""
        check_share(self.code.name, self.n, share)
        u, v = self.code.points
        a, b = self._degrees
        return np.outer(powers(u[share], a), powers(v[share], b)).ravel()

    def operand(self, share: int) -> Floats:
        """What the blocks of the operand are added up with for one share: (p,) or (m,)."""
        u, v = self.code.points
        x, count = (v, self.code.p) if self.kind == "forward" else (u, self.code.m)
        return powers(x[share], count)[::-1].copy()

    def _wanted(self, every: Weights) -> Weights:
        """The weights (wanted, replies) of what is wanted.

        η counts the wanted rows alone, and the size of the numbers a worker adds up: its share's
        and its operand's coefficients.
        """
        shares = every.keys
        matrix = every.matrix[list(self.wanted)]
        matrix.flags.writeable = False
        size = sizes(*self.code.points, self.code, self.kind)[list(shares)]
        return Weights(shares, matrix, float(np.linalg.norm(matrix * size) / len(matrix) ** 0.5))


def powers(x: float, count: int) -> Floats:
    """1, x, x², …: (count,)."""
    return np.asarray(float(x) ** np.arange(count))


def sizes(u: Floats, v: Floats, code: PolyDotCode, kind: Kind) -> Floats:
    """How large the numbers of each reply are, (n,): the lengths of its coefficients multiplied."""
    lengths = [
        np.linalg.norm(x[:, None] ** np.arange(count), axis=1)
        for x, count in ((u, code.m), (v, code.p))
    ]
    again = {"forward": lengths[1], "backward": lengths[0], "stored": np.ones(len(u))}[kind]
    return np.asarray(lengths[0] * lengths[1] * again)


@lru_cache(maxsize=64)
def place(n: int, m: int, p: int, seed: int) -> tuple[Floats, Floats]:
    """Return points u and v, (n,) each, of which windows of neighbours decode well.

    Of random sets, spread as Chebyshev's nodes are, the one whose worst cyclic window has the
    smallest η forward and backward; the best few are judged after the loss of any worker as well.
    """
    code, every = PolyDotCode(n, m, p, seed), np.arange(n)
    tried = np.cos(np.pi * np.random.default_rng(seed).random((TRIALS, 2, n)))
    first = [_worst(u, v, code, [every]) for u, v in tried]
    best = np.argsort(first)[:FINALISTS].tolist()
    losses = [np.delete(every, s) for s in range(n)] if n > code.k else []
    score = {t: max(first[t], _worst(tried[t, 0], tried[t, 1], code, losses)) for t in best}
    u, v = tried[min(score, key=lambda t: score[t])]
    u.flags.writeable = v.flags.writeable = False
    return u, v


def _worst(u: Floats, v: Floats, code: PolyDotCode, live: list[NDArray[np.intp]]) -> float:
    """The largest η over the cyclic windows of each live set, forward and backward."""
    worst = 0.0
    for one in (code.forward, code.backward) if live else ():
        (a, b), size = one._degrees, sizes(u, v, code, one.kind)
        powers_u, powers_v = u[:, None] ** np.arange(a), v[:, None] ** np.arange(b)
        rows = (powers_u[:, :, None] * powers_v[:, None, :]).reshape(len(u), -1)
        sets = np.concatenate(
            [who[(np.arange(len(who))[:, None] + np.arange(one.k)) % len(who)] for who in live]
        )
        inverse = np.linalg.inv(rows[sets])[:, list(one.wanted)]
        squares = (inverse**2 * size[sets][:, None, :] ** 2).sum(axis=(1, 2))
        worst = max(worst, float(np.sqrt(squares.max() / len(one.wanted))))
    return worst
