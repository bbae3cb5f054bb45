"""From replies to the product: weights for each segment, one matrix product each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes.linear import Weights
from ..codes.mds import MDSCode
from ..model import Run
from ..rounds import Cover

ETA_WANTED = 100.0  # above it, one more reply is worth its cost (numerics.md)


class Segment(NamedTuple):
    """Rows first..last come from the replies in `places`, combined by `weights`."""

    first: int
    last: int
    places: NDArray[np.intp]
    weights: Weights


def segments(code: MDSCode, cover: Cover) -> list[Segment]:
    """Return how to decode what a cover holds; neighbours with the same replies are joined."""
    have = cover.have
    change = np.flatnonzero((have[:, 1:] != have[:, :-1]).any(axis=0)) + 1
    starts = [0, *change.tolist()]
    ends = [*change.tolist(), have.shape[1]]
    share = np.asarray(cover.lanes, dtype=np.intp)
    found = []
    for a, b in zip(starts, ends, strict=True):
        places = np.flatnonzero(have[:, a])
        places = places[np.argsort(share[places])]
        weights = code.weights(tuple(share[places].tolist()))
        found.append(Segment(int(cover.cuts[a]), int(cover.cuts[b]), places, weights))
    return found


def weak(code: MDSCode, cover: Cover) -> list[int]:
    """Return the segments (by index) whose replies amplify rounding more than is wanted."""
    poor = [s for s in segments(code, cover) if s.weights.eta > ETA_WANTED]
    return [
        j
        for j, row in enumerate(cover.cuts[:-1].tolist())
        if any(s.first <= row < s.last for s in poor)
    ]


def assemble(
    plan: Sequence[Segment],
    places: Mapping[int, int],
    values: Sequence[tuple[int, tuple[Run, ...], Any]],
    shape: tuple[int, int, int],
    rows: int,
) -> NDArray[Any]:
    """Return the product, (rows, width): gather replies by share row, then combine.

    `places` gives the place of a lane in `shape` = (lanes, rows of a share, width). Cost: one copy
    of the replies and one (k, m) product per segment.
    """
    _, share_rows, width = shape
    dtype = values[0][2].dtype
    gathered = np.empty(shape, dtype)
    for lane, runs, value in values:
        flat = value.reshape(len(value), width)
        here, done = gathered[places[lane]], 0
        for first, last in runs:
            here[first:last] = flat[done : done + last - first]
            done += last - first
    k = plan[0].weights.matrix.shape[0]
    out = np.empty((k, share_rows, width), dtype)
    for first, last, found, weights in plan:
        stack = gathered[found, first:last].reshape(len(found), -1)
        out[:, first:last] = (weights.matrix @ stack).reshape(k, last - first, width)
    return out.reshape(k * share_rows, width)[:rows]
