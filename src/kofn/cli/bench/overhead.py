"""kofn bench overhead: what coding and the runtime cost on top of bare pipes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cluster import connect
from .bare import WORKERS, pipes
from .turns import interleaved, timed

ROWS, COLUMNS, THRESHOLD = 600, 20, 3


def run(rounds: int) -> dict[str, Any]:
    """Tiny rounds of both in turn; the figure is the median of one run."""
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    with pipes(A, 0.0) as bare, connect("local", workers=WORKERS) as cluster:
        X = cluster.encode(A, k=THRESHOLD)
        turns = interleaved({"bare": timed(bare, w), "kofn": timed(lambda: X @ w)}, rounds)
        assert np.allclose(bare(w), X @ w)
        rows_read = sorted(X.report.rows_read.values())
    name = f"X @ w, {ROWS} x {COLUMNS}, any {THRESHOLD} of {WORKERS} workers"
    figures = {name: turns.figure("kofn", "bare", "a loop over bare pipes, uncoded")}
    return {"figures": figures, "rows_read_per_worker": rows_read}
