"""Codes over the blocks of one product X Y: every mini-task multiplies two sums of blocks.

X (m, n) is cut in x blocks of rows and Y (n, p) in y blocks of columns. The source values are the
xy products X_i Y_j; a mini-task multiplies Σ a_i X_i by Σ b_j Y_j, so its coefficient row is a ⊗ b.
Rows 0 … xy-1 are the source values themselves (uncoded mini-tasks), rows from xy on are coded and
there is no end of them: row r is drawn from the seed and r alone.

With z > 1 the inner dimension is cut in z as well (the entangled polynomial code):
X(θ) = Σ X_il θ^(l + zi), Y(θ) = Σ Y_lj θ^(z-1-l + zxj). In the product the coefficient of
θ^(z-1 + zi + zxj) is Σ_l X_il Y_lj. It has k = xyz + z - 1 coefficients, of which xy are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import pi, sqrt
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..checks import one_of, whole_fields
from ..errors import BadInput
from .linear import Floats, Weights
from .threshold import ThresholdCode

Blocks = dict[int, NDArray[Any]]
Points = Literal["khatri-rao", "trig", "monomial", "spread"]

GOLDEN = (sqrt(5) - 1) / 2
POOR = 100.0  # η above which one more reply is worth taking (numerics.md)
_CHUNK = 1 << 14  # numbers mixed at a time: they stay in the cache


@dataclass(frozen=True)
class ProductCode(ThresholdCode):
    """Any k results of mini-tasks decode X Y; k = xy, or xyz + z - 1 for z > 1.

    `points` says where coded rows come from:
    - "khatri-rao" (default): a and b drawn on spheres; good up to k = 36 and beyond.
    - "trig": trig(yθ) ⊗ trig(θ) at golden-ratio angles; better still for k <= 6.
    - "monomial": the random points of Krishnan et al., 2020. Loses all digits from k = 16 on; here
      for comparison only.
    - "spread": monomials at golden-ratio Chebyshev points; what z > 1 uses, up to about k = 20.
    """

    x: int
    y: int
    z: int = 1
    points: Points | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole_fields(self, x=1, y=1, z=1, seed=0)
        if self.points is None:
            object.__setattr__(self, "points", "khatri-rao" if self.z == 1 else "spread")
        one_of(self.points, "points", get_args(Points), "Leave it out for 'khatri-rao'.")
        if self.z > 1 and self.points in ("khatri-rao", "trig"):
            raise BadInput(
                f"z > 1 aligns the sums over the inner dimension in powers of one number, so its "
                f"points are 'spread' or 'monomial'; got z={self.z}, points={self.points!r}. Leave "
                f"points out."
            )

    @property
    def k(self) -> int:
        """The threshold: how many source values there are."""
        return self.x * self.y * self.z + self.z - 1

    @property
    def name(self) -> str:
        """The code in a few words, for messages."""
        last = f", z={self.z}" if self.z > 1 else ""
        return f"ProductCode(x={self.x}, y={self.y}{last}, points={self.points!r})"

    def coefficients(self, row: int) -> tuple[Floats, Floats]:
        """The coefficients of the blocks of X and of Y: (x, z) and (z, y); read-only."""
        if row < 0 or (row < self.k and self.z > 1):
            raise BadInput(
                f"{self.name} has coded rows from {self.k} on"
                + ("" if self.z > 1 else f" and uncoded ones from 0 to {self.k - 1}")
                + f"; row {row} was asked for."
            )
        return _coefficients(self, row)

    def row(self, row: int) -> Floats:
        """The k coefficients of one mini-task's result."""
        a, b = self.coefficients(row)
        if self.z == 1:
            return np.outer(a, b).ravel()
        # a is θ^(l + zi): its second entry is θ itself, whatever x is (z > 1).
        return np.asarray(float(a[0, 1]) ** np.arange(self.k))

    @property
    def wanted(self) -> tuple[int, ...]:
        """Places of the xy wanted source values, block (i, j) at iy + j."""
        if self.z == 1:
            return tuple(range(self.k))
        x, y, z = self.x, self.y, self.z
        return tuple(z - 1 + z * i + z * x * j for i in range(x) for j in range(y))

    def _wanted(self, every: Weights) -> Weights:
        """The weights of the xy blocks, in order; η counts what is wanted alone."""
        rows = every.keys
        # Many powers of one number are so near to singular that the rounding of the QR itself
        # shows, k^1.5 u in all. At spread points it does from about k = 19 on.
        shows = self.points == "monomial" or (self.points == "spread" and self.k >= 16)
        own = self.k**1.5 if shows else 1.0
        if self.z == 1:
            return Weights(rows, every.matrix, every.eta * own)
        matrix = every.matrix[list(self.wanted)]
        matrix.flags.writeable = False
        # A worker adds up numbers as large as its coefficients, not as its row.
        size = [np.prod([np.linalg.norm(c) for c in self.coefficients(r)]) for r in rows]
        eta = float(np.linalg.norm(matrix * size) / len(matrix) ** 0.5)
        return Weights(rows, matrix, eta * own)

    def cost(self, shape: tuple[int, int, int]) -> float:
        """Multiply-adds of one mini-task, for X (m, n) and Y (n, p) of shape m, n, p."""
        m, n, p = shape
        return float(-(-m // self.x) * -(-n // self.z) * -(-p // self.y))

    # Arrays.

    def encode_left(self, row: int, X: NDArray[Any]) -> NDArray[Any]:
        """Σ a_il X_il, (ceil(m / x), ceil(n / z)): one pass over X."""
        return _mix(self.coefficients(row)[0], X)

    def encode_right(self, row: int, Y: NDArray[Any]) -> NDArray[Any]:
        """Σ b_lj Y_lj, (ceil(n / z), ceil(p / y)): one pass over Y."""
        return _mix(self.coefficients(row)[1], Y)

    def blocks(self, weights: Weights, values: Mapping[int, NDArray[Any]]) -> Blocks:
        """The xy blocks, by number: uncoded results as they are, the others combined.

        Where there are more results than are needed, each block is better for all of them.
        """
        rows = weights.keys if self.z == 1 and len(weights.keys) == self.k else ()
        blocks = {row: values[row] for row in rows if row < self.k}
        if not blocks:
            return dict(enumerate(weights.combine(values)))
        if missing := [block for block in range(self.x * self.y) if block not in blocks]:
            made = replace(weights, matrix=weights.matrix[missing]).combine(values)
            blocks.update(zip(missing, made, strict=True))
        return blocks

    def assemble(self, blocks: Blocks, shape: tuple[int, int]) -> NDArray[Any]:
        """Put the xy blocks, (ceil(m / x), ceil(p / y)) each, in their places: (m, p)."""
        out = np.empty(shape, np.result_type(*blocks.values()))
        rows, columns = blocks[0].shape
        for i in range(self.x):
            for j in range(self.y):
                place = out[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                place[...] = blocks[i * self.y + j][: place.shape[0], : place.shape[1]]
        return out


@lru_cache(maxsize=1 << 14)
def _coefficients(code: ProductCode, row: int) -> tuple[Floats, Floats]:
    x, y, z, s = code.x, code.y, code.z, row - code.k
    a: Floats
    b: Floats
    if s < 0:
        a, b = np.zeros((x, 1)), np.zeros((1, y))
        a[row // y, 0] = b[0, row % y] = 1.0
    elif code.points == "khatri-rao":
        rng = np.random.default_rng((code.seed, s))
        a, b = rng.standard_normal((x, 1)), rng.standard_normal((1, y))
        a /= np.linalg.norm(a)
        b /= np.linalg.norm(b)
    elif code.points == "trig":
        theta = 2 * pi * ((code.seed + s + 1) * GOLDEN % 1.0)
        a, b = _trig(x, y * theta)[:, None], _trig(y, theta)[None, :]
    else:
        if code.points == "monomial":
            theta = float(np.random.default_rng((code.seed, s)).standard_normal()) or 1.0
        else:
            theta = float(np.cos(pi * ((code.seed + s + 1) * GOLDEN % 1.0)))
        if z == 1:
            a, b = _powers(theta, y * np.arange(x))[:, None], _powers(theta, np.arange(y))[None, :]
        else:
            i, j, inner = np.arange(x), np.arange(y), np.arange(z)
            a = _powers(theta, inner[None, :] + z * i[:, None])
            b = _powers(theta, z - 1 - inner[:, None] + z * x * j[None, :])
    for c in (a, b):
        c.flags.writeable = False
    return a, b


def _powers(theta: float, exponents: NDArray[np.intp]) -> Floats:
    return np.asarray(theta**exponents, dtype=np.float64)


def _trig(count: int, angle: float) -> Floats:
    """1 if `count` is odd, then √2 cos fθ and √2 sin fθ; f from 1 on, or from ½ if it is even."""
    first = [1.0] if count % 2 else []
    f = np.arange(count // 2) + (1.0 if count % 2 else 0.5)
    return np.concatenate([first, sqrt(2) * np.cos(f * angle), sqrt(2) * np.sin(f * angle)])


def _mix(c: Floats, A: NDArray[Any]) -> NDArray[Any]:
    """Cut A as c is cut, blocks of equal shape with zeros beyond the end; Σ c_ij A_ij.

    In A's own floating type and order. A coefficient of zero costs nothing, so an uncoded row is
    a copy.
    """
    if A.flags.f_contiguous and not A.flags.c_contiguous:
        return _mix(c.T, A.T).T
    rows, columns = -(-A.shape[0] // c.shape[0]), -(-A.shape[1] // c.shape[1])
    out = np.empty((rows, columns), A.dtype)
    step = max(1, _CHUNK // columns)
    spare = np.empty((min(step, rows), columns), A.dtype)
    parts = [
        (A.dtype.type(c[i, j]), A[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns])
        for i, j in zip(*np.nonzero(c), strict=True)
    ]
    for first in range(0, rows, step):
        to = out[first : first + step]
        begun = bool(parts) and parts[0][1][first : first + step].shape == to.shape
        if begun:
            np.multiply(parts[0][1][first : first + step], parts[0][0], out=to)
        else:
            to[...] = 0
        for weight, block in parts[begun:]:
            part = block[first : first + step]
            some = spare[: part.shape[0], : part.shape[1]]
            np.multiply(part, weight, out=some)
            to[: part.shape[0], : part.shape[1]] += some
    return out
