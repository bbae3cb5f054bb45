"""Shares of a matrix that is not in memory here: from a store, or coded from a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codes.mds import MDSCode
from ..errors import StoreWarning
from ..model import Build
from .coding import BUDGET, finite, make_share
from .opened import Store, is_store, open_store
from .rebuild import enough, spoiled_text
from .sources import Source, open_source


@dataclass(frozen=True)
class Shares:
    """What a coded matrix must know of its shares, wherever they are.

    `share_of(s)` is share s, (ceil(N / k), d), or a Build that a worker runs to have it.
    """

    code: MDSCode
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    sparse: bool
    share_of: Callable[[int], Any]


def elsewhere(A: object) -> Store | Source | None:
    """Return the store or source that A names, None for a matrix in memory.

    A may be a path, a URL, a Store, a Source or a Zarr array.
    """
    if isinstance(A, Store | Source):
        return A
    if isinstance(A, str | os.PathLike):
        return open_store(A) if is_store(A) else open_source(A)
    return open_source(A) if type(A).__module__.split(".")[0] == "zarr" else None


def shares_from(data: Store | Source, code: MDSCode, check_finite: bool = True) -> Shares:
    """Return the shares of a store, or those of a source under a code.

    A store's workers load their share, or rebuild it from others if its file is gone or spoiled;
    the files are looked at here first, with a StoreWarning for such. Of a file whose rows
    are cheap to reach, each worker codes its own share (one pass over the file); of others they
    are made here. For a source, `check_finite` reads it once, here; a store was checked when it
    was written.
    """
    if isinstance(data, Store):
        spoiled = data.spoiled()  # better said here than by every worker
        enough(data, spoiled)
        if spoiled:
            text = spoiled_text(spoiled, "rebuilt from others where needed; repair the store")
            warnings.warn(text, StoreWarning, stacklevel=3)
        return Shares(data.code, data.shape, data.dtype, data.sparse, data.held_build)
    step = rows_at_once(data)
    source = data.ready(step)
    if check_finite:
        for first in range(0, source.shape[0], step):
            finite(source.rows(first, min(first + step, source.shape[0])), first)
    path = source.path if source is data and source.kind in ("npy", "zarr") else None

    def share_of(share: int) -> Any:
        if path is not None:
            return Build(make_share, (path, code, share))
        return make_share(source, code, share)

    return Shares(code, source.shape, source.dtype, source.sparse, share_of)


def rows_at_once(source: Source) -> int:
    """Rows of a source that fit in a chunk."""
    N, d = source.shape
    row = 16 * (1 + source.nnz / N) if source.sparse else d * source.dtype.itemsize
    return max(1, int(BUDGET / row))
