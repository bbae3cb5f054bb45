"""What workers do with a share. Runs where the share is; imports nothing heavy.

A share is a dense array or a scipy.sparse CSR matrix; slicing rows and `@` are all that is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Piece, Run

# Multiply-adds in a slice: about ten milliseconds of a product that is bound by memory.
SLICE_WORK = 10_000_000


def _step(share: Any, width: int) -> int:
    """Rows of a share in one slice, for an operand `width` wide."""
    rows, columns = share.shape
    per_row = columns if isinstance(share, np.ndarray) else 4 * share.nnz / max(1, rows)
    # A wide operand reuses each row from cache: about four of its columns cost as much as one.
    return max(1, int(SLICE_WORK / (max(1.0, per_row) * max(1.0, width / 4))))


def _slices(runs: Sequence[Run], step: int) -> Iterator[Run]:
    for first, last in runs:
        for a in range(first, last, step):
            yield a, min(a + step, last)


def _rows(runs: Sequence[Run]) -> int:
    return sum(last - first for first, last in runs)


def product(kept: Any, operand: NDArray[Any], key: str, runs: Sequence[Run]) -> Iterable[Piece]:
    """Rows `runs` of the share times the operand: one product a run, cut in slices if long."""
    share = kept[key]
    step = _step(share, 1 if operand.ndim == 1 else operand.shape[1])
    if _rows(runs) <= step:
        parts = [share[first:last] @ operand for first, last in runs]
        value = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return (Piece(runs, value, len(value)),)  # a known number of pieces: one message
    return (Piece(((a, b),), share[a:b] @ operand, b - a) for a, b in _slices(runs, step))


def adjoint(
    kept: Any, operand: None, key: str, item: int, runs: Sequence[Run], u: NDArray[Any]
) -> Iterable[Piece]:
    """Σ share[r]ᵀ u[r] over the rows of `runs`; u holds just those rows, in order."""
    share = kept[key]
    step = _step(share, 1 if u.ndim == 1 else u.shape[1])
    if _rows(runs) <= step:
        return (Piece(item, _adjoint(share, runs, u), _rows(runs)),)
    return _long_adjoint(share, item, runs, u, step)


def _adjoint(share: Any, runs: Sequence[Run], u: NDArray[Any]) -> NDArray[Any]:
    total: Any = None
    done = 0
    for first, last in runs:
        part = share[first:last].T @ u[done : done + last - first]
        total = part if total is None else total + part
        done += last - first
    return np.asarray(total)


def _long_adjoint(
    share: Any, item: int, runs: Sequence[Run], u: NDArray[Any], step: int
) -> Iterator[Piece]:
    total: Any = 0.0
    done = 0
    for a, b in _slices(runs, step):
        total = total + _adjoint(share, ((a, b),), u[done : done + b - a])
        done += b - a
        yield Piece(None, None, b - a)
    yield Piece(item, total, 0)


def fetch(kept: Any, operand: None, key: str, runs: Sequence[Run], offset: int) -> Iterator[Piece]:
    """The rows themselves, to rebuild a share that nobody holds; runs count from `offset`."""
    share = kept[key]
    for a, b in _slices(runs, max(1, 1_000_000 // max(1, share.shape[1]))):
        yield Piece(((a, b),), share[offset + a : offset + b], b - a)


def add_low_rank(share: NDArray[Any], U: NDArray[Any], V: NDArray[Any] | None) -> NDArray[Any]:
    """The share plus U Vᵀ (or plus U): in place once it is the worker's own memory."""
    if not share.flags.writeable:
        share = share.copy()
    if V is None:
        share += U
        return share
    for a in range(0, len(share), 1024):  # bounded temporary memory
        share[a : a + 1024] += U[a : a + 1024] @ V.T
    return share
