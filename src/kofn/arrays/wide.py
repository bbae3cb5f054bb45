"""Decoding without a detour: replies that are blocks go where they belong, the rest is combined.

A reply of a share that is a plain block needs no decoding. It is copied into the result at once.
Only blocks that are missing are combined, a few thousand numbers at a time, so that they stay in
cache, and by several threads where there is much to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..model import RowRange
from ..threads import each
from .decode import Segment, steps

MUCH = 1 << 18  # numbers to be combined, from which on several threads do it

Replies = Sequence[tuple[int, tuple[RowRange, ...], Any]]  # share, its rows, their values


def decode(
    code: AnyKOfN,
    plan: Sequence[Segment],
    shares: Sequence[int],
    replies: Replies,
    shape: tuple[int, int],
) -> NDArray[Any]:
    """The k blocks, (k, rows, width), from replies; `shares` are those that a plan's places name.

    `shape` is (rows, width) of a block.
    """
    rows, width = shape
    out = np.empty((code.k, rows, width), replies[0][2].dtype)
    block_of = {share: block for share in shares if (block := plain(code, share)) is not None}
    others = {share: i for i, share in enumerate(s for s in shares if s not in block_of)}
    coded = np.empty((len(others), rows, width), out.dtype)
    for share, runs, value in replies:
        block = block_of.get(share)
        to = out[block] if block is not None else coded[others[share]]
        flat, done = value.reshape(len(value), width), 0
        for first, last in runs:
            to[first:last] = flat[done : done + last - first]
            done += last - first
    inputs = [out[block_of[s]] if s in block_of else coded[others[s]] for s in shares]
    jobs = [
        (places, wanted, matrix, a, b)
        for first, last, places, weights in plan
        for wanted, matrix in [
            _missing(code, [shares[i] for i in places], weights.matrix, block_of)
        ]
        if len(wanted)
        for a, b in steps(first, last, width * (len(wanted) * len(places)))
    ]
    much = sum(len(job[1]) * (job[4] - job[3]) for job in jobs) * width >= MUCH
    if much:
        each(lambda job: _combine(out, inputs, *job), jobs)
        return out
    for job in jobs:
        _combine(out, inputs, *job)
    return out


def plain(code: AnyKOfN, share: int) -> int | None:
    """The block that a share is, if it is one."""
    row = code.row(share)
    used = np.flatnonzero(row)
    return int(used[0]) if len(used) == 1 and row[used[0]] == 1.0 else None


def _missing(
    code: AnyKOfN, found: Sequence[int], matrix: NDArray[np.float64], block_of: Mapping[int, int]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The blocks that must be combined from these replies, and the rows of weights for them."""
    if len(found) > code.k:  # more than is needed: each block is better for all of them
        return np.arange(code.k), matrix
    here = {block_of[share] for share in found if share in block_of}
    wanted = np.array([block for block in range(code.k) if block not in here], np.intp)
    return wanted, matrix[wanted]


def _combine(
    out: NDArray[Any],
    inputs: Sequence[NDArray[Any]],
    places: NDArray[np.intp],
    wanted: NDArray[np.intp],
    matrix: NDArray[np.float64],
    a: int,
    b: int,
) -> None:
    stack = np.stack([inputs[i][a:b].reshape(-1) for i in places])
    for block, row in zip(wanted, matrix.dot(stack), strict=True):
        out[block, a:b] = row.reshape(b - a, -1)
