"""How far shares that were rebuilt are off: measured with a few known vectors.

A share that is rebuilt from others inherits their errors, and passes them on. After a hundred
losses and joins they are larger than the rounding of one product. The shares alone cannot show it:
they may agree, and all be off. So from the first rebuilding on, the master keeps a few products of
the matrix with random vectors, and updates them with every update of the matrix. A rebuilt share
times these vectors should be what the code makes of the products. How far it is off enters the
error bound of all later products.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .checking import Checked
from .scales import Growth

Floats = NDArray[np.float64]

COLUMNS = 8  # vectors: the error of a row is seen to a factor of 2, but for one row in a thousand
SAFE = 2.0


def vectors(length: int) -> Floats:
    """Random signs, (length, COLUMNS): the mean square of E v is the square of the length of E."""
    return np.random.default_rng(length).choice([-1.0, 1.0], (length, COLUMNS))


@dataclass(frozen=True, eq=False)
class Drift:
    """A few products of a matrix and its velocity, and how far the shares differ from them.

    `blocks`: the blocks times the vectors, (k, rows, COLUMNS), or None before the first rebuilding.
    `size`: the largest that each place has been, (rows,). `off`: by share, errors relative to that,
    of the share and of its velocity. `own`: the error of `blocks` itself. `moving`: whether shares
    carry a velocity. `growth`: what updates have done to rows that are scaled. `checked`: what
    replies are checked by.
    """

    moving: bool = False
    blocks: Floats | None = None
    velocity: Floats | None = None
    size: Floats | None = None
    own: float = 0.0
    off: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    growth: Growth | None = None
    checked: Checked = Checked(lambda: math.inf)  # noqa: RUF009 - frozen

    @property
    def share_errors(self) -> dict[int, float]:
        """By how much shares are off that were rebuilt, relative to their rows' lengths."""
        return {share: own for share, (own, _) in self.off.items()}

    def begun(self, seen: Floats, own: float) -> Drift:
        """With what the blocks, and their velocity if they have one, are times the vectors."""
        blocks, velocity = seen[..., :COLUMNS], seen[..., COLUMNS:] if self.moving else None
        return replace(self, blocks=blocks, velocity=velocity, size=_sizes(blocks), own=own)

    def after(self, change: Floats | None, momentum: float | None) -> Drift:
        """After an update, or a move with a momentum; `change`: its blocks times the vectors."""
        if change is None:
            return self if momentum is None else replace(self, moving=True)
        if momentum is None:
            return self._now(self._blocks + change)
        velocity = change if self.velocity is None else momentum * self.velocity + change
        off = {s: (x + momentum * v, momentum * v) for s, (x, v) in self.off.items()}
        return replace(self._now(self._blocks + velocity), moving=True, velocity=velocity, off=off)

    def measured(self, share: int, row: Floats, seen: Floats) -> Drift:
        """With a share of these coefficients that was rebuilt, times the vectors: (rows, …)."""
        off = [self._apart(seen[:, :COLUMNS], row, self._blocks), 0.0]
        if self.velocity is not None:
            off[1] = self._apart(seen[:, COLUMNS:], row, self.velocity)
        return replace(self, off={**self.off, share: (off[0], off[1])})

    def error(self, shares: Collection[int]) -> float:
        """Bound on √(Σ e²), e the errors of these shares, relative to their coefficients' length.

        Decoding makes at most η √k of it: Σ |W_s| |g_s| e_s, by Cauchy and Schwarz.
        """
        return math.hypot(*(self.off[s][0] for s in shares if s in self.off)) if self.off else 0.0

    def widened(
        self, bound: float, eta: float, rounding: float, k: int, shares: Collection[int]
    ) -> float:
        """An error bound, with the `rounding` of updates and the errors of rebuilt shares added."""
        if rounding or self.off:
            bound += eta * (rounding + math.sqrt(k) * self.error(shares))
        return bound if self.growth is None else bound * self.growth.factor

    @property
    def _blocks(self) -> Floats:
        assert self.blocks is not None
        return self.blocks

    def _now(self, blocks: Floats) -> Drift:
        assert self.size is not None
        return replace(self, blocks=blocks, size=np.maximum(self.size, _sizes(blocks)))

    def _apart(self, seen: Floats, row: Floats, blocks: Floats) -> float:
        """The largest error of a row, relative to its place."""
        assert self.size is not None
        apart = np.linalg.norm(seen - np.tensordot(row, blocks, 1), axis=1)
        size = self.size * np.linalg.norm(row)
        worst = np.divide(apart, size, out=np.zeros_like(apart), where=size > 0).max(initial=0.0)
        return SAFE * float(worst) + self.own


def _sizes(blocks: Floats) -> Floats:
    return np.asarray(np.linalg.norm(blocks, axis=(0, 2)))
