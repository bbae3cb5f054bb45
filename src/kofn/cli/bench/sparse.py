"""kofn bench sparse: products with a sparse matrix, before and after its first two shares are lost.

Of an MDSCode these are plain blocks, and a mixed share has the entries of all k; of a LowWeightCode
all shares mix few, and none is plain.
Twenty workers share the cores here, so what counts is the work of all of them. Where each has a
machine of its own the slowest counts: how much it reads is shown too, in entries of a plain block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import matmul
from pathlib import Path
from typing import Any

import numpy as np

from ...arrays.coding import make_share
from ...cluster import connect
from ...codes import AnyKOfN, LowWeightCode, MDSCode
from ...reproduce import datasets
from .. import places
from .frame import Figure
from .turns import Turns, timed

N, K = 20, 18
ROWS, FIELDS = 396_112, 55  # of Covertype, one-hot: each field is one 1
WIDE, NARROW = 10, 2  # fields with many values, of which it has ten; how many have others
VALUES = 1_546  # of a wide field
WARM, EACH = 4, 5  # products that do not count; those of a turn
QUIET, LOST = "undisturbed", "two plain shares lost"


def run(times: int, portion: int, data: Path | None) -> dict[str, Any]:
    """Products with both codes: after the loss beside before, and the slowest worker's work."""
    places.data(data, "sparse")
    A = _matrix(data, portion)
    w = np.random.default_rng(0).standard_normal(A.shape[1])
    exact = A @ w
    codes: tuple[AnyKOfN, ...] = (LowWeightCode(N, K), MDSCode(N, K))
    figures: dict[str, Figure] = {}
    reads: dict[str, float] = {}
    for code in codes:
        entries = {share: int(make_share(A, code, share).nnz) for share in range(code.n)}
        turns = Turns((QUIET, LOST))
        name = type(code).__name__
        with connect("local", workers=N) as cluster:
            X = cluster.encode(A, code=code)
            for state in (QUIET, LOST):
                if state == LOST:
                    for worker in [worker for worker, share in X.shares.items() if share < 2]:
                        cluster.lose(worker)
                for _ in range(WARM):
                    assert np.allclose(X @ w, exact)
                block = timed(partial(matmul, X, w))
                turns.turns[state] += [block(EACH) for _ in range(times)]
                reads[f"{name}, {state}"] = _most(X, entries) * K / A.nnz
        figures[f"{name}, {LOST}"] = turns.figure(LOST, QUIET, f"the same, {QUIET}", "ms")
    blocks = {name: Figure(value, "blocks", 1.0, "a plain block") for name, value in reads.items()}
    figures |= {f"{name}: slowest worker": one for name, one in blocks.items()}
    return {"figures": figures, "rows": A.shape[0], "columns": A.shape[1], "entries": int(A.nnz)}


def _most(X: Any, entries: Mapping[int, int]) -> float:
    """The entries that the worker read in the last product that read most."""
    shares, rows = X.shares, X.code.block_rows(X.shape[0])
    read = X.report.rows_read
    most: float = max(entries[shares[worker]] * n / rows for worker, n in read.items())
    return most


def _matrix(data: Path | None, portion: int) -> Any:
    if data is not None:
        return datasets.load("covtype", data).X[::portion]
    rng, rows = np.random.default_rng(0), ROWS // portion
    wide = rng.integers(0, VALUES, (rows, WIDE))
    narrow = rng.integers(0, NARROW, (rows, FIELDS - WIDE))
    offsets = np.array([VALUES] * WIDE + [NARROW] * (FIELDS - WIDE)).cumsum()
    at = np.hstack([wide, narrow]) + np.concatenate([[0], offsets[:-1]])
    return datasets.ones(at.astype(np.int32), int(offsets[-1]))
