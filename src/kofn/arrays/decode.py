"""From replies to the product, and from an operand to what each share must be multiplied with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..codes.linear import Weights
from ..codes.mds import MDSCode
from ..codes.polydot import PolyDotCode, PolyDotPass
from ..model import RowRange
from ..rounds import Cover, Windows

# Multiply-adds in one product: below this OpenBLAS stays on one thread. Its others would go on
# burning cores for up to a tenth of a second after the call, which the workers need.
PRODUCT = 200_000
FEW = 1 << 14  # numbers that are decoded at once
MIXED = 1 << 17  # places of numbers, and weights, at most: beyond, to look them up takes longer
CERTAIN = ("auto", "haar", "trigonometric")  # constructions of which any k rows decode well
ETA_WANTED = 100.0  # above it, one more reply is worth its cost (docs/numerics.md)


DataCode = AnyKOfN | PolyDotCode  # makes the shares of a matrix
Code = DataCode | PolyDotPass  # has shares, and combines any k of the n replies


class Segment(NamedTuple):
    """Rows first..last come from the replies in `places`, combined by `weights`."""

    first: int
    last: int
    places: NDArray[np.intp]
    weights: Weights


def judged(code: Code, values: bool) -> bool:
    """Whether the weights of a code are looked at: not where values are skipped and it is certain.

    Any k shares of kofn's own code decode well, which need not be so for another one.
    """
    return values or type(code) is not MDSCode or code.construction not in CERTAIN


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


def covered(code: Code, cover: Cover) -> list[Segment]:
    """Return how to decode what a round has gathered."""
    return segments(code, cover.shares, cover.cuts, cover.have)


def worst(plan: Sequence[Segment]) -> float:
    """The largest η of these."""
    return max(s.weights.eta for s in plan)


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


def plain(code: Code, share: int) -> int | None:
    """The block that a share is, if it is one."""
    row = code.row(share)
    used = np.flatnonzero(row)
    return int(used[0]) if len(used) == 1 and row[used[0]] == 1.0 else None


class Mix(NamedTuple):
    """How to decode replies that are just what was planned, in a few calls.

    `numbers` are all replies, end to end, and behind them what is combined, piece by piece: those
    of piece p are weights[p] · numbers[at[p]]. The result is numbers[places].
    """

    size: int  # numbers of all replies
    at: NDArray[np.intp]  # (pieces, k, numbers of a piece)
    weights: NDArray[np.float64]  # (pieces, missing blocks, k)
    places: NDArray[np.intp]  # (k, rows x width)


def mix(code: Code, plan: Sequence[Segment], windows: Windows, width: int) -> Mix | None:
    """The Mix for replies of whole windows; None where it is none, or others are quicker."""
    k, rows = plan[0].weights.matrix.shape[0], windows.rows
    if 2 * k * rows * width > MIXED or any(s.weights.matrix.shape[1] != k for s in plan):
        return None
    where, size = np.zeros((len(windows.runs), rows), np.intp), 0
    for here, own in zip(where, windows.runs, strict=True):
        for first, last in own:
            here[first:last] = np.arange(size, size + last - first)
            size += last - first
    blocks = [plain(code, share) for share in windows.shares]
    step = min(-(-rows // len(plan)), PRODUCT // (k * k * width))  # rows of a piece
    if not step:
        return None
    pieces = [(s, a, min(a + step, s.last)) for s in plan for a in range(s.first, s.last, step)]
    most = max(k - sum(blocks[i] is not None for i in s.places.tolist()) for s in plan)
    if most * k * len(pieces) > MIXED or (not most and size * width > FEW):
        return None
    at, places = np.zeros((len(pieces), k, step), np.intp), np.empty((k, rows), np.intp)
    weights = np.zeros((len(pieces), most, k))
    for p, (segment, a, b) in enumerate(pieces):
        at[p, :, : b - a] = where[segment.places, a:b]
        place_of = {blocks[i]: i for i in segment.places.tolist()}
        made = 0
        for block in range(k):
            if (place := place_of.get(block)) is not None:
                places[block, a:b] = where[place, a:b]
            else:
                begin = size + (p * most + made) * step
                places[block, a:b] = np.arange(begin, begin + b - a)
                weights[p, made] = segment.weights.matrix[block]
                made += 1
    return Mix(size * width, _columns(at, width), weights, _columns(places, width))


def _columns(places: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """Places of numbers, from those of rows of so many."""
    every = places[..., None] * width + np.arange(width)
    return every.reshape(*places.shape[:-1], -1)


def combine_mixed(mix: Mix, replies: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The k blocks, (k, rows x width), from the replies in the order of the windows' shares."""
    size, at, weights, places = mix
    made = (*weights.shape[:2], at.shape[2])
    numbers = np.empty(size + math.prod(made), replies[0].dtype)
    np.concatenate(replies, axis=None, out=numbers[:size])
    np.matmul(weights, numbers.take(at), out=numbers[size:].reshape(made))
    return numbers.take(places)


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
