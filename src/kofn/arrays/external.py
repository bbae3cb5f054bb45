"""Shares of a matrix that is not in memory here: from a store, or coded from a file."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from ..checks import finite
from ..codes import AnyKOfN
from ..errors import StoreWarning
from ..model import Build
from .coding import BUDGET, make_share
from .opened import Store, is_store, open_store
from .rebuild import enough, spoiled_text
from .scales import ZERO, lengths, scales
from .shares import Shares
from .sources import Source, open_source


def resolve_source(A: object) -> Store | Source | None:
    """Return the store or source that A names, None for a matrix in memory.

    A may be a path, a URL, a Store, a Source or a Zarr array.
    """
    if isinstance(A, Store | Source):
        return A
    if isinstance(A, str | os.PathLike):
        return open_store(A) if is_store(A) else open_source(A)
    return open_source(A) if type(A).__module__.split(".")[0] == "zarr" else None


def shares_from(data: Store | Source, code: AnyKOfN, check_finite: bool = True) -> Shares:
    """Return the shares of a store, or those of a source under a code.

    A store's workers load their share, or rebuild it from others if its file is gone or spoiled;
    the files are looked at here first, with a StoreWarning for such. Of a file whose rows
    are cheap to reach, each worker codes its own share (one pass over the file); of others they
    are made here. A source is read once here, for the scales of its rows and for `check_finite`; a
    store was when it was written.
    """
    if isinstance(data, Store):
        spoiled = data.spoiled()  # better said here than by every worker
        enough(data, spoiled)
        if spoiled:
            text = spoiled_text(spoiled, "rebuilt from others where needed; repair the store")
            warnings.warn(text, StoreWarning, stacklevel=3)
        build, scaled = data.held_build, data.scales()
        return Shares(data.code, data.shape, data.dtype, build, data.sparse, scaled)
    step = rows_at_once(data)
    source = data.ready(step)
    N = source.shape[0]
    places = np.full((code.k, code.block_rows(N)), ZERO, np.int16)
    for first in range(0, N, step):
        rows = source.rows(first, min(first + step, N))
        if check_finite:
            finite(rows, "the matrix to encode", first)
        places.reshape(-1)[first : first + step][: rows.shape[0]] = lengths(rows)
    found = scales(places, N, source.dtype)
    path = source.path if source is data and source.kind in ("npy", "zarr") else None

    def share_of(share: int) -> Any:
        if path is not None:
            return Build(make_share, (path, code, share, False, found))
        return make_share(source, code, share, scales=found)

    return Shares(code, source.shape, source.dtype, share_of, source.sparse, found)


def rows_at_once(source: Source) -> int:
    """Rows of a source that fit in a chunk."""
    N, d = source.shape
    row = 16 * (1 + source.nnz / N) if source.sparse else d * source.dtype.itemsize
    return max(1, int(BUDGET / row))
