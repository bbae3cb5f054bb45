"""kofn bench overhead: what coding and the runtime cost on top of bare pipes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ..cluster import connect
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..model import Piece, Reply, Task
from .bare import pipes

ROWS, COLUMNS, WORKERS, THRESHOLD = 600, 20, 6, 3
BLOCK = 50  # rounds of one kind before the other has its turn
LARGE, MANY = 100_000, 20  # an 800 KB vector, to 20 workers


def run(rounds: int) -> dict[str, Any]:
    """Measure both; every figure is a median over rounds of one run, the kinds interleaved."""
    return {"tiny_round": _tiny(rounds), "broadcast": _broadcast(max(20, rounds // 5))}


def _tiny(rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    with pipes(A, 0.0) as bare, connect("local", workers=WORKERS) as cluster:
        X = cluster.encode(A, k=THRESHOLD)
        times = interleaved({"bare": lambda: bare(w), "kofn": lambda: X @ w}, rounds)
        assert np.allclose(bare(w), X @ w)
        report = X.report
    result = summary(times)
    result |= {
        "rows": ROWS,
        "columns": COLUMNS,
        "workers": WORKERS,
        "threshold": THRESHOLD,
        "ratio": result["kofn"]["median_us"] / result["bare"]["median_us"],
        "rows_read_per_worker": sorted(report.rows_read.values()),
    }
    return result


def _broadcast(rounds: int) -> dict[str, Any]:
    with LocalEngine(MANY) as engine:
        ids = count()
        large, small = np.ones(LARGE), np.ones(1)
        kinds = {
            "800_KB": lambda: touch(engine, ids, large),
            "8_B": lambda: touch(engine, ids, small),
        }
        times = interleaved(kinds, rounds)
    result = summary(times)
    result |= {
        "workers": MANY,
        "ratio": result["800_KB"]["median_us"] / result["8_B"]["median_us"],
        "extra_us": result["800_KB"]["median_us"] - result["8_B"]["median_us"],
    }
    return result


def touch(engine: Engine, ids: Iterator[int], operand: NDArray[np.float64]) -> None:
    """One round: the operand to every worker, each adds it all up and replies with the sum."""
    round = next(ids)
    engine.broadcast(round, operand)
    for worker in engine.workers:
        engine.submit(Task(next(ids), round, worker, total))
    waiting = len(engine.workers)
    while waiting:
        for event in engine.events(10.0):
            if isinstance(event, Reply) and event.round == round:
                assert event.value == len(operand)
                waiting -= 1
    engine.cancel(round)


def total(kept: Mapping[str, Any], operand: NDArray[np.float64]) -> tuple[Piece]:
    """Body: read the whole operand."""
    return (Piece(None, float(operand.sum())),)


def interleaved(
    kinds: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, NDArray[np.float64]]:
    """Seconds of each call, the kinds taking turns, so that a noisy minute hits them all."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for call in kinds.values():  # warm caches, mappings and branch predictors
        for _ in range(BLOCK):
            call()
    while len(next(iter(times.values()))) < rounds:
        for name, call in kinds.items():
            for _ in range(BLOCK):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: np.asarray(values) for name, values in times.items()}


def summary(times: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Medians and tails, in microseconds."""
    return {
        name: {
            "median_us": 1e6 * float(np.median(values)),
            "p90_us": 1e6 * float(np.quantile(values, 0.9)),
            "rounds": len(values),
        }
        for name, values in times.items()
    }


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    out = Table(title=f"median time per round, {os.cpu_count()} cores", title_justify="left")
    for name in ("what", "bare / 8 B (µs)", "kofn / 800 KB (µs)", "ratio"):
        out.add_column(name, justify="left" if name == "what" else "right")
    tiny, cast = result["tiny_round"], result["broadcast"]
    out.add_row(
        f"{ROWS} x {COLUMNS} on {WORKERS} workers: coded against a bare pipe loop",
        f"{tiny['bare']['median_us']:.0f}",
        f"{tiny['kofn']['median_us']:.0f}",
        f"{tiny['ratio']:.2f}",
    )
    out.add_row(
        f"operand to {MANY} workers: 800 KB against 8 B",
        f"{cast['8_B']['median_us']:.0f}",
        f"{cast['800_KB']['median_us']:.0f}",
        f"{cast['ratio']:.2f}",
    )
    console.print(out)
