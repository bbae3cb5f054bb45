"""What workers do for a sequence. Runs where the operands are; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Piece

# Multiply-adds in a slice: about ten milliseconds of a product of matrices on one core.
SLICE_WORK = 50_000_000


def multiply(
    kept: Any, operand: None, mini: tuple[int, int], key: str | None, *pair: NDArray[Any]
) -> Iterable[Piece]:
    """The product of two matrices, given or kept under `key`, in slices of rows."""
    A, B = kept[key] if key is not None else pair
    per_row = A.shape[1] * B.shape[1]
    step = max(1, SLICE_WORK // max(1, per_row))
    with np.errstate(over="ignore", invalid="ignore"):  # the master looks at the result
        if len(A) <= step:
            return (Piece(mini, A @ B, len(A) * per_row),)
    return _sliced(A, B, mini, step, per_row)


def _sliced(
    A: NDArray[Any], B: NDArray[Any], mini: tuple[int, int], step: int, per_row: int
) -> Iterator[Piece]:
    out = np.empty((len(A), B.shape[1]), np.result_type(A, B))
    for first in range(0, len(A), step):
        part = A[first : first + step]
        with np.errstate(over="ignore", invalid="ignore"):
            np.matmul(part, B, out=out[first : first + step])
        last = first + step >= len(A)
        yield Piece(mini if last else None, out if last else None, len(part) * per_row)
