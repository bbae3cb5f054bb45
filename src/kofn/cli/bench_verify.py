"""kofn bench verify: what checking every reply costs, in one run."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from rich.console import Console

from ..arrays import CodedMatrix
from ..cluster import connect
from .interleaved import interleaved, ratio, timed
from .output import print_table

COLUMNS, WORKERS, THRESHOLD, MARGIN = 2000, 6, 4, 2
TINY = (600, 20)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "probe": {"verify": "probe"},
    "parity": {"verify": "parity", "margin": MARGIN},
}


def run(rounds: int, rows: int) -> dict[str, Any]:
    """Measure products of one matrix under each kind of check, in turn; medians of one run."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((rows, COLUMNS))
    w, z = rng.standard_normal(COLUMNS), rng.standard_normal(rows)
    small, v = rng.standard_normal(TINY), rng.standard_normal(TINY[1])
    with connect("local", workers=WORKERS) as cluster:
        coded: dict[str, CodedMatrix] = {}
        seconds: dict[str, float] = {}
        for kind, options in KINDS.items():
            began = time.perf_counter()
            coded[kind] = cluster.encode(A, k=THRESHOLD, **options)
            seconds[kind] = time.perf_counter() - began
        tiny = {kind: cluster.encode(small, k=THRESHOLD, **o) for kind, o in KINDS.items()}
        times = {
            "X @ w": _measured(coded, w, rounds, back=False),
            "X.T @ z": _measured(coded, z, rounds, back=True),
            "X @ w, tiny": _measured(tiny, v, 20 * rounds, back=False),
        }
        assert np.allclose(coded["probe"] @ w, A @ w)
        unseen = {}
        for kind in ("probe", "parity"):
            coded[kind] @ w
            unseen[kind] = coded[kind].report.unseen
            assert coded[kind].report.wrong == ()
        kept = {kind: _kept(X) / A.nbytes for kind, X in coded.items()}
    sizes = {"rows": rows, "columns": COLUMNS, "workers": WORKERS, "threshold": THRESHOLD}
    more = {"encode_seconds": seconds, "kept_of_matrix": kept, "unseen": unseen}
    return {**sizes, "margin": MARGIN, "times": times, **more}


def _measured(
    coded: dict[str, CodedMatrix], operand: Any, rounds: int, back: bool
) -> dict[str, Any]:
    # Others of the machine are at work, too: one round of each in turn, and the median.
    kinds = {
        kind: timed((lambda X=X: X.T @ operand) if back else (lambda X=X: X @ operand))
        for kind, X in coded.items()
    }
    times = interleaved(kinds, rounds, most=2)
    for kind in ("probe", "parity"):
        times[kind]["ratio"] = ratio(times, kind, "plain")
    for kind, block in kinds.items():  # what is the master's own does not depend on others
        began = time.process_time()
        block(rounds)
        times[kind]["master_us"] = 1e6 * (time.process_time() - began) / rounds
    return times


def _kept(X: CodedMatrix) -> int:
    """Bytes that the master keeps for checks."""
    probes = X._drift.checked.probes
    return 0 if probes is None else probes.nbytes


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    columns = {"what": "", "plain (µs)": ".0f", "probe": ".3f", "parity": ".3f"}
    rows: list[tuple[Any, ...]] = []
    for what, times in result["times"].items():
        plain, probe, parity = (times[kind] for kind in KINDS)
        rows.append((what, plain["median_us"], probe["ratio"], parity["ratio"]))
        own = [one["master_us"] / plain["master_us"] for one in (probe, parity)]
        rows.append(("  CPU time of the master", plain["master_us"], *own))
    rows.append(("kept here, of the matrix", "", *list(result["kept_of_matrix"].values())[1:]))
    n, k, r = result["workers"], result["threshold"], result["margin"]
    title = (
        f"{result['rows']} x {result['columns']} on {n} workers, k = {k}, {os.cpu_count()} cores: "
        f"ratios to plain; parity with margin {r} does {(k + r) / k:.2f} times the work of X @ w"
    )
    print_table(console, title, columns, rows)
