"""What workers do with a share. Runs where the share is; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Piece, Run

# Multiply-adds in a slice: about ten milliseconds of a product that is bound by memory.
SLICE_WORK = 10_000_000


def slice_rows(columns: int, width: int) -> int:
    """Rows of a share with `columns` columns in one slice, for an operand `width` wide."""
    # A wide operand reuses each row from cache: about four of its columns cost as much as one.
    return max(1, int(SLICE_WORK / (max(1, columns) * max(1.0, width / 4))))


def product(
    kept: Mapping[str, NDArray[Any]], operand: NDArray[Any], key: str, runs: Sequence[Run]
) -> Iterable[Piece]:
    """Rows `runs` of the share times the operand: one product a run, cut in slices if long."""
    share = kept[key]
    step = slice_rows(share.shape[1], 1 if operand.ndim == 1 else operand.shape[1])
    if sum(last - first for first, last in runs) <= step:
        parts = [share[first:last] @ operand for first, last in runs]
        value = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return (Piece(runs, value, len(value)),)  # a known number of pieces: one message
    return _slices(share, operand, runs, step)


def _slices(
    share: NDArray[Any], operand: NDArray[Any], runs: Sequence[Run], step: int
) -> Iterator[Piece]:
    for first, last in runs:
        for a in range(first, last, step):
            value = share[a : min(a + step, last)] @ operand
            yield Piece(((a, a + len(value)),), value, len(value))
