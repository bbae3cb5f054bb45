"""Decoding without a detour: replies that are blocks go where they belong, the rest is combined.

A reply of a share that is a plain block needs no decoding. It is copied into the result at once.
Only blocks that are missing are combined, a few thousand numbers at a time, so that they stay in
cache, and by several threads where there is much to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..model import RowRange
from ..threads import each
from .decode import Segment, plain, steps

MUCH = 1 << 22  # numbers of a result from which on several threads make it: below, one is as quick

Stretches = list[tuple[int, int, NDArray[Any]]]  # rows of a share that have come
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
    run = each if out.size >= MUCH else _one_by_one
    block_of = {share: block for share in shares if (block := plain(code, share)) is not None}
    inputs: dict[int, Stretches] = {share: [] for share in shares}
    to: list[NDArray[Any]] = []
    values: list[NDArray[Any]] = []
    for share, runs, value in replies:
        block = block_of.get(share)
        flat, done = value.reshape(len(value), width), 0
        for first, last in runs:
            here = flat[done : done + last - first]
            done += last - first
            inputs[share].append((first, last, here))
            if block is not None:
                to.append(out[block, first:last])
                values.append(here)
    run(np.copyto, to, values)
    calls = [
        (out, [inputs[shares[i]] for i in places], wanted, matrix, a, b)
        for first, last, places, weights in plan
        for wanted, matrix in [
            _missing(code, [shares[i] for i in places], weights.matrix, block_of)
        ]
        if len(wanted)
        for a, b in steps(first, last, width * (len(wanted) * len(places)))
    ]
    run(lambda call: _combine(*call), calls)
    return out


def _one_by_one(work: Callable[..., Any], *items: Iterable[Any]) -> None:
    for _ in map(work, *items):
        pass


def _missing(
    code: AnyKOfN, shares: Sequence[int], matrix: NDArray[np.float64], block_of: Mapping[int, int]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The blocks that must be combined from these replies, and the rows of weights for them."""
    if len(shares) > code.k:  # more than is needed: each block is better for all of them
        return np.arange(code.k), matrix
    here = {block_of[share] for share in shares if share in block_of}
    wanted = np.array([block for block in range(code.k) if block not in here], np.intp)
    return wanted, matrix[wanted]


def _combine(
    out: NDArray[Any],
    inputs: Sequence[Stretches],
    wanted: NDArray[np.intp],
    matrix: NDArray[np.float64],
    a: int,
    b: int,
) -> None:
    stack = np.empty((len(inputs), b - a, out.shape[2]), out.dtype)
    for row, stretches in zip(stack, inputs, strict=True):
        for first, last, value in stretches:
            if first < b and a < last:
                start, end = max(a, first), min(b, last)
                row[start - a : end - a] = value[start - first : end - first]
    for block, made in zip(wanted, matrix.dot(stack.reshape(len(stack), -1)), strict=True):
        out[block, a:b] = made.reshape(b - a, -1)
