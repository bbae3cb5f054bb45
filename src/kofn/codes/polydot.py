"""PolyDot: a matrix cut both ways, whose shares multiply from either side.

W is cut in an m x p grid of blocks W_ij, and worker s holds S_s = Σ_ij f_i(u_s) g_j(v_s) W_ij at
its own point (u_s, v_s) of a torus. f_0 … f_(m-1) are the first m functions of a real Fourier
series, g_0 … g_(p-1) the first p. Only what is sent with a product says which product it is:

forward W x: x_s = Σ_l g_l(v_s) x_l. Then S_s x_s = Σ_i f_i(u_s) Σ_jl g_j(v_s) g_l(v_s) W_ij x_l.
The products g_j g_l are Fourier series of 2p-1 terms, and the mean of g_j g_l over the circle is 1
where j = l and 0 elsewhere. So the constant term of each i is Σ_j W_ij x_j.

backward Wᵀ z: z_s = Σ_l f_l(u_s) z_l, and the constant term of each j is Σ_i W_ijᵀ z_i.

Forward has m(2p-1) unknowns, backward p(2m-1): these are the thresholds. The functions are
independent, so at points in general position any so many replies determine them, and fewer do not
reach the wanted ones.

With powers of u and v instead of the series, and one column of blocks in the operand,
this is PolyDot (Dutta et al., 2020), whose thresholds are the same. Powers lose digits:
the worst window of a 4 x 4 grid on 30 workers has η = 11,000 with them, and 34 here.
Generalized PolyDot (Dutta et al., 2018) has one variable: W(v) = Σ_ij W_ij v^(pi+j) and
x(v) = Σ_l x_l v^(p-1-l). Forward it needs fewer replies, mp + p - 1, and backward as
many, p(2m-1). It is not built here: on a square grid both passes need as many workers
as here, its real points lose digits, and for forward products alone a cut by rows needs
only mp (docs/arrays.md).

A change U Vᵀ of W changes S_s by (Σ_i f_i(u_s) U_i)(Σ_j g_j(v_s) V_j)ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import whole_fields
from ..errors import BadInput
from .generators import golden_order
from .linear import Floats, Weights
from .threshold import ThresholdCode, check_share, mix

Kind = Literal["forward", "backward", "stored"]
TRIALS, FINALISTS = 256, 8  # sets of points tried; those looked at closely
LARGE = 16  # unknowns from which on a quarter of both: judging a set costs O(k³)
MOVES = (0.1, 0.25, 0.5, 1.0)  # how far points are moved, as parts of the lattice's spacing


@dataclass(frozen=True)
class PolyDotCode:
    """Shares of an m x p grid for n workers; `k` of them are enough for either product.

    A share is 1/(mp) of the matrix. k = max(m(2p-1), p(2m-1)); any mp shares give the matrix back.
    `seed` draws the points: of many sets the one that decodes best in the worst window. Up to 4 x 4
    an extra reply is needed here and there, where those at hand decode poorly (η above 100).
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
        """u and v, (n,) each, in turns, from 0 to 1; read-only and kept."""
        return place(self.n, self.m, self.p, self.seed)

    def row(self, share: int) -> Floats:
        """The mp coefficients f_i(u) g_j(v) of one share."""
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

    def encode_rows(self, share: int, A: NDArray[Any], doubled: bool = False) -> NDArray[Any]:
        """Σ_i f_i(u) A_i, (ceil(N / m), ...), for A (N, ...); `doubled`: as in `mix`."""
        return mix(fourier(self.points[0][share], self.m), A, doubled)

    def encode_columns(self, share: int, A: NDArray[Any]) -> NDArray[Any]:
        """Σ_j g_j(v) A_j, (ceil(d / p), ...), for A (d, ...)."""
        return mix(fourier(self.points[1][share], self.p), A)

    def encode_share(self, share: int, A: NDArray[Any], doubled: bool = False) -> NDArray[Any]:
        """Share of A (N, d): (ceil(N / m), ceil(d / p)), C-contiguous. One pass over A.

        `doubled`: in double precision where A is float32.
        """
        rows = self.encode_rows(share, A, doubled)
        return np.ascontiguousarray(self.encode_columns(share, rows.T).T)


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
        """Places of the constant terms: m of them forward, p backward, all if stored."""
        m, p = self.code.m, self.code.p
        if self.kind == "forward":
            return tuple(i * (2 * p - 1) for i in range(m))
        if self.kind == "backward":
            return tuple(range(p))
        return tuple(range(m * p))

    def row(self, share: int) -> Floats:
        """The k coefficients of one reply: f_a(u) g_b(v), b running fastest."""
        check_share(self.code.name, self.n, share)
        u, v = self.code.points
        a, b = self._degrees
        return np.outer(fourier(u[share], a), fourier(v[share], b)).ravel()

    def operand(self, share: int) -> Floats:
        """The coefficients of the operand's blocks in one share: (p,) or (m,)."""
        u, v = self.code.points
        x, count = (v, self.code.p) if self.kind == "forward" else (u, self.code.m)
        return fourier(x[share], count)

    def _wanted(self, every: Weights) -> Weights:
        """The weights (wanted, replies) of what is wanted.

        η counts the wanted rows alone, and the size of the numbers a worker adds up: its share's
        and its operand's coefficients.
        """
        shares = every.keys
        matrix = every.matrix[list(self.wanted)]
        matrix.flags.writeable = False
        eta = float(np.linalg.norm(matrix) / len(matrix) ** 0.5) * size(self.code, self.kind)
        return Weights(shares, matrix, eta)


def fourier(turns: float | Floats, count: int) -> Floats:
    """The first `count` functions of a real Fourier series at points in turns: (..., count).

    Whole frequencies with a constant in front for an odd count, half ones for an even count. Their
    squares add up to `count` at every point.
    """
    f = np.arange(count // 2) + (1.0 if count % 2 else 0.5)
    at = np.asarray(turns, np.float64)[..., None]
    constant, angle = np.ones((*at.shape[:-1], count % 2)), 2 * np.pi * at * f
    return np.concatenate([constant, 2**0.5 * np.cos(angle), 2**0.5 * np.sin(angle)], axis=-1)


def size(code: PolyDotCode, kind: Kind) -> float:
    """How large the numbers of a reply are: the lengths of its coefficients multiplied."""
    again = {"forward": code.p, "backward": code.m, "stored": 1}[kind]
    return float((code.m * code.p * again) ** 0.5)


@lru_cache(maxsize=64)
def place(n: int, m: int, p: int, seed: int) -> tuple[Floats, Floats]:
    """Return points u and v in turns, (n,) each, of which windows of neighbours decode well.

    Of lattices on the torus, neighbours far apart, each point moved a little at random (a lattice
    itself has sets of points that do not decode), the one whose worst cyclic window has the
    smallest η forward and backward; the best few are judged after the loss of any worker as well.
    """
    code, every, rng = PolyDotCode(n, m, p, seed), np.arange(n), np.random.default_rng(seed)
    trials, finalists = (TRIALS, FINALISTS) if code.k < LARGE else (TRIALS // 4, FINALISTS // 4)
    order, steps = np.array(golden_order(n)), rng.integers(1, max(2, n), (trials, 2, 1))
    moved = rng.choice(MOVES, (trials, 1, 1)) * (rng.random((trials, 2, n)) - 0.5)
    tried = ((order * steps + moved) / n) % 1.0
    first = [_worst(u, v, code, [every]) for u, v in tried]
    best = np.argsort(first)[:finalists].tolist()
    losses = [np.delete(every, s) for s in range(n)] if n > code.k else []
    score = {t: max(first[t], _worst(tried[t, 0], tried[t, 1], code, losses)) for t in best}
    u, v = tried[min(score, key=lambda t: score[t])]
    u.flags.writeable = v.flags.writeable = False
    return u, v


def _worst(u: Floats, v: Floats, code: PolyDotCode, live: list[NDArray[np.intp]]) -> float:
    """The largest η over the cyclic windows of each live set, forward and backward."""
    worst = 0.0
    for one in (code.forward, code.backward) if live else ():
        a, b = one._degrees
        rows = (fourier(u, a)[:, :, None] * fourier(v, b)[:, None, :]).reshape(len(u), -1)
        sets = np.concatenate(
            [who[(np.arange(len(who))[:, None] + np.arange(one.k)) % len(who)] for who in live]
        )
        inverse = np.linalg.inv(rows[sets])[:, list(one.wanted)]
        most = float((inverse**2).sum(axis=(1, 2)).max())
        worst = max(worst, (most / len(one.wanted)) ** 0.5 * size(code, one.kind))
    return worst
