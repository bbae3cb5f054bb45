"""kofn bench overhead: what coding and the runtime cost on top of bare pipes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from rich.console import Console

from ..cluster import connect
from ..engines.local import LocalEngine
from .bare import WORKERS, pipes
from .interleaved import broadcast, interleaved, ratio, timed
from .output import print_table

ROWS, COLUMNS, THRESHOLD = 600, 20, 3
MANY = 20  # workers that get a large operand


def run(rounds: int) -> dict[str, Any]:
    """Measure both; every figure is a median over rounds of one run, the kinds in turn."""
    tiny = _tiny(rounds)
    with LocalEngine(MANY) as engine:
        cast = broadcast(engine, max(20, rounds // 5))
    cast["extra_us"] = cast["800_KB"]["median_us"] - cast["8_B"]["median_us"]
    return {"tiny_round": tiny, "broadcast": cast}


def _tiny(rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    with pipes(A, 0.0) as bare, connect("local", workers=WORKERS) as cluster:
        X = cluster.encode(A, k=THRESHOLD)
        times = interleaved({"bare": timed(bare, w), "kofn": timed(lambda: X @ w)}, rounds)
        assert np.allclose(bare(w), X @ w)
        rows_read = sorted(X.report.rows_read.values())
    sizes = {"rows": ROWS, "columns": COLUMNS, "workers": WORKERS, "threshold": THRESHOLD}
    more = {"ratio": ratio(times, "kofn", "bare"), "rows_read_per_worker": rows_read}
    return {**times, **sizes, **more}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    columns = {"what": "", "bare / 8 B (µs)": ".0f", "kofn / 800 KB (µs)": ".0f", "ratio": ".2f"}
    coded = f"{ROWS} x {COLUMNS} on {WORKERS} workers: coded against a bare pipe loop"
    cast = f"operand to {MANY} workers: 800 KB against 8 B"
    rows = [
        (what, times[one]["median_us"], times[other]["median_us"], times["ratio"])
        for what, times, one, other in (
            (coded, result["tiny_round"], "bare", "kofn"),
            (cast, result["broadcast"], "8_B", "800_KB"),
        )
    ]
    print_table(console, f"median time per round, {os.cpu_count()} cores", columns, rows)
