"""Data cut into parts: arrays by rows, several of them alongside, or a list as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..checks import indexed, is_sparse, plain, whole
from ..errors import BadInput


def cut(data: Any, parts: int | None, usual: int) -> tuple[int, Callable[[int], Any]]:
    """Return how many parts there are, and how to get each. Nothing is copied here.

    A list is its parts. An array, frame or sparse matrix is cut by rows into `parts` (default:
    `usual`, or as many as there are rows) of nearly equal length; a tuple of such, of equal length,
    is cut alongside, each part a tuple.
    """
    if isinstance(data, list):
        if parts is not None and parts != len(data):
            raise BadInput(
                f"a list is its parts: {len(data)} here; got parts={parts}. Leave parts out, or "
                f"pass arrays to be cut."
            )
        if not data:
            raise BadInput("a sum needs at least one part; got an empty list.")
        return len(data), data.__getitem__
    given = data if isinstance(data, tuple) else (data,)
    arrays = [_rows(one, i, isinstance(data, tuple)) for i, one in enumerate(given)]
    lengths = [one.shape[0] for one in arrays]
    if len(set(lengths)) != 1:
        raise BadInput(
            f"arrays that are cut alongside have equally many rows; got {lengths}. Pass arrays of "
            f"one length, or a list of parts."
        )
    m = min(usual, lengths[0]) if parts is None else parts
    m = whole(m, "parts", 1, lengths[0], "A part has a row or more: pass fewer, or more rows.")
    edges = [i * lengths[0] // m for i in range(m + 1)]

    def part(i: int) -> Any:
        slices = tuple(one[edges[i] : edges[i + 1]] for one in arrays)
        return slices if isinstance(data, tuple) else slices[0]

    return m, part


FINER, LEAST = 4, 64 << 10  # parts for each worker at most, and bytes of one at least


def finer(data: Any, n: int) -> int | None:
    """How many parts to cut arrays into for n workers, if more than one each; else None.

    What half a task has delivered then counts. Parts stay equally long where n equal ones were.
    """
    if isinstance(data, list):
        return None
    arrays = data if isinstance(data, tuple) else (data,)
    shapes = [getattr(one, "shape", None) or (0,) for one in arrays]
    rows, size = shapes[0][0], sum(getattr(one, "nbytes", 0) for one in arrays)
    each = min(FINER, size // (n * LEAST), rows // n)
    while each > 1 and rows % n == 0 and rows % (n * each):
        each -= 1
    return n * each if each > 1 else None


def _rows(one: Any, i: int, several: bool) -> Any:
    """An array or sparse matrix whose rows can be cut."""
    name = f"array {i} of data" if several else "data"
    if is_sparse(one):
        return indexed(one, name).tocsr()
    if isinstance(one, str | bytes) or not (
        isinstance(one, np.ndarray | Sequence) or hasattr(one, "__array__")
    ):
        raise BadInput(
            f"data must be an array, a frame, a sparse matrix, a tuple of those, or a list of "
            f"parts; {name} is {type(one).__name__}."
        )
    if isinstance(one, np.ma.MaskedArray) and np.ma.is_masked(one):
        raise BadInput(
            f"parts of an array would lose its mask; {name} is masked. Fill it (one.filled(0)), or "
            f"pass a list of parts."
        )
    array = plain(one, name)
    if array.ndim == 0 or array.dtype == object or not len(array):
        raise BadInput(
            f"an array is cut into parts by rows, so it needs some; {name} has shape "
            f"{array.shape} and type {array.dtype}. Pass a list to name the parts yourself."
        )
    return array
