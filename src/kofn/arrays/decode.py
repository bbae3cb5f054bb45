"""From replies to the product, and from an operand to what each share must be multiplied with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..codes.linear import Weights
from ..codes.polydot import PolyDotCode, PolyDotPass
from ..model import RowRange

# Multiply-adds in one product: below this OpenBLAS stays on one thread. Its others would go on
# burning cores for up to a tenth of a second after the call, which the workers need.
PRODUCT = 200_000
FEW = 1 << 14  # numbers that are decoded at once
MIXED = 1 << 17  # multiply-adds at most that are not worth a product for each segment
ETA_WANTED = 100.0  # above it, one more reply is worth its cost (docs/numerics.md)


DataCode = AnyKOfN | PolyDotCode  # makes the shares of a matrix
Code = DataCode | PolyDotPass  # has shares, and combines any k of the n replies


class Segment(NamedTuple):
    """Rows first..last come from the replies in `places`, combined by `weights`."""

    first: int
    last: int
    places: NDArray[np.intp]
    weights: Weights


def segments(
    code: Code, shares: Sequence[int], cuts: NDArray[np.intp], have: NDArray[np.bool_]
) -> list[Segment]:
    """Return how to decode the replies in `have`, (shares, segments); equal neighbours join."""
    change = np.flatnonzero((have[:, 1:] != have[:, :-1]).any(axis=0)) + 1
    share = np.asarray(shares, dtype=np.intp)
    plan = []
    for a, b in pairwise([0, *change.tolist(), have.shape[1]]):
        places = np.flatnonzero(have[:, a])
        places = places[np.argsort(share[places])]
        weights = code.weights(tuple(share[places].tolist()))
        plan.append(Segment(int(cuts[a]), int(cuts[b]), places, weights))
    return plan


def weak(plan: Sequence[Segment], cuts: NDArray[np.intp], wanted: float = ETA_WANTED) -> list[int]:
    """Return which rows, numbered by their cut, amplify rounding more than is wanted."""
    poor = [s for s in plan if s.weights.eta > wanted]
    starts = enumerate(cuts[:-1].tolist())
    return [j for j, row in starts if any(s.first <= row < s.last for s in poor)]


def gather(
    values: Sequence[tuple[int, tuple[RowRange, ...], Any]],
    places: Mapping[int, int],
    shape: tuple[int, int, int],
) -> NDArray[Any]:
    """Lay replies out as `shape` (shares, rows, width) has it; `places`: where each share is."""
    gathered = np.zeros(shape, values[0][2].dtype)
    for share, runs, value in values:
        flat = value.reshape(len(value), shape[2])
        here, done = gathered[places[share]], 0
        for first, last in runs:
            here[first:last] = flat[done : done + last - first]
            done += last - first
    return gathered


def combine(
    plan: Sequence[Segment], gathered: NDArray[Any], row: NDArray[np.float64] | None = None
) -> NDArray[Any]:
    """Return the k decoded blocks, (k, rows, width): one (k, m) product per segment.

    With `row`, the coefficients of a share, return that share instead, (1, rows, width).
    """
    _, rows, width = gathered.shape
    k = plan[0].weights.matrix.shape[0] if row is None else 1
    out = np.empty((k, rows, width), gathered.dtype)
    for first, last, places, weights in plan:
        matrix = weights.matrix if row is None else row[None, :] @ weights.matrix
        stack = gathered[:, first:last].take(places, axis=0).reshape(len(places), -1)
        out[:, first:last] = matrix.dot(stack).reshape(k, last - first, width)
    return out


class Mix(NamedTuple):
    """How to decode replies that are just what was planned, laid end to end, in one product.

    Row r of block b, for one column of the operand, is Σ weights[b, i, r] · numbers[at[i, r]].
    """

    at: NDArray[np.intp]  # (k, rows x width)
    weights: NDArray[np.float64]  # (k, k, rows x width)


def mix(
    plan: Sequence[Segment], runs: Sequence[Sequence[RowRange]], rows: int, width: int
) -> Mix | None:
    """The Mix for these `runs` of the shares; None where it is none, or `combine` is quicker."""
    k = plan[0].weights.matrix.shape[0]
    few = len(runs) * rows * width <= FEW and k * k * rows * width <= MIXED
    if not few or any(s.weights.matrix.shape[1] != k for s in plan):
        return None
    where, begin = np.zeros((len(runs), rows), np.intp), 0
    for here, own in zip(where, runs, strict=True):
        for first, last in own:
            here[first:last] = range(begin, begin + last - first)
            begin += last - first
    at, weights = np.empty((k, rows), np.intp), np.empty((k, k, rows))
    for first, last, places, of in plan:
        at[:, first:last] = where[places, first:last]
        weights[:, :, first:last] = of.matrix[:, :, None]
    columns = at[:, :, None] * width + np.arange(width)
    return Mix(columns.reshape(k, -1), weights.repeat(width, axis=2))


def combine_mixed(mix: Mix, numbers: NDArray[Any]) -> NDArray[Any]:
    """The k blocks, (k, rows x width): what `combine` does, for few numbers without its steps."""
    out: NDArray[Any] = np.einsum("bir,ir->br", mix.weights, numbers.take(mix.at))
    return out.astype(numbers.dtype, copy=False)


def recode(plan: Sequence[Segment], shares: int, z: NDArray[Any]) -> NDArray[Any]:
    """Return what each share's rows must be multiplied with for a product with the transpose.

    z: (k, rows, width), the operand by blocks. With W the weights of a segment, Σ sharesᵀ (Wᵀ z)
    is the blocks' own Σ Xᵢᵀ zᵢ. Returns (shares, rows, width), zero where a share is not asked.
    """
    k, rows, width = z.shape
    out = np.zeros((shares, rows, width), z.dtype)
    for first, last, places, weights in plan:
        for a, b in steps(first, last, k * len(places) * width):
            part = weights.matrix.T @ z[:, a:b].reshape(k, -1)
            out[places, a:b] = part.reshape(len(places), b - a, width)
    return out


def steps(first: int, last: int, work: int) -> Iterator[RowRange]:
    """Rows in steps of at most PRODUCT multiply-adds, of which each takes `work`."""
    step = max(1, PRODUCT // max(1, work))
    for a in range(first, last, step):
        yield a, min(a + step, last)
