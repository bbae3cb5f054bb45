"""Rounds of `kofn bench overhead`, `engines` and `sums` by calls that older versions have too.

    python benchmarks/compare.py OLD/src NEW/src benchmarks/rounds.py -- overhead sums
    python benchmarks/compare.py OLD/src NEW/src benchmarks/rounds.py -- ray dask

What `kofn bench --json` prints changes between versions; this does not. Each figure is the median
of microseconds; kinds take turns. It also compares a version with one before `kofn bench` was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np

import kofn
from kofn.delays import PerUnit
from kofn.engines.paced import Paced
from kofn.model import Piece, Reply, Task

ROUNDS, BLOCK = 600, 50
ROWS, COLUMNS, WORKERS, THRESHOLD = 600, 20, 6, 3
PACE = 5e-3  # seconds of a paced round
LARGE = 100_000  # numbers, 800 KB


def medians(kinds: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds of each call, after some that are not counted."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for done in range(0, rounds + BLOCK, BLOCK):
        for name, call in kinds.items():
            for _ in range(BLOCK):
                start = time.perf_counter()
                call()
                times[name] += [time.perf_counter() - start] * bool(done)
    return {name: 1e6 * median(values) for name, values in times.items()}


def total(kept: Any, operand: Any) -> tuple[Piece]:
    """Body: read the whole operand."""
    return (Piece(None, float(operand.sum())),)


def touch(engine: Any, ids: Iterator[int], operand: Any) -> None:
    """One round: the operand to every worker, each replies with the sum of it."""
    round = next(ids)
    engine.broadcast(round, operand)
    for worker in engine.workers:
        engine.submit(Task(next(ids), round, worker, total))
    waiting = len(engine.workers)
    while waiting:
        replies = [event for event in engine.events(10.0) if isinstance(event, Reply)]
        waiting -= sum(reply.round == round for reply in replies)
    engine.cancel(round)


def to_all(name: str, workers: int) -> dict[str, float]:
    """An operand to so many workers: 8 B, 800 KB."""
    with kofn.connect(name, workers=workers) as cluster:
        ids, sizes = count(1_000_000), {"8 B": 1, "800 KB": LARGE}
        kinds = {
            f"{k}, {name}": partial(touch, cluster.engine, ids, np.ones(n))
            for k, n in sizes.items()
        }
        return medians(kinds, ROUNDS // 3)


def products(name: str) -> dict[str, float]:
    """A tiny coded product, and one that takes 5 ms."""
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    found: dict[str, float] = {}
    with kofn.connect(name, workers=WORKERS) as cluster:
        X = cluster.encode(A, k=THRESHOLD)
        found |= medians({f"X @ w, {name}": lambda: X @ w})
        paced = kofn.connect(Paced(cluster.engine, PerUnit(PACE / (ROWS / WORKERS))))
        Y = paced.encode(A, k=THRESHOLD)
        found |= medians({f"X @ w of 5 ms, {name}": lambda: Y @ w}, ROUNDS // 3)
    return found


def sums() -> dict[str, float]:
    """Coded sums of gradients, one part a worker and two."""

    def slope(part: Any, w: Any) -> Any:
        return part.T @ (part @ w)

    found: dict[str, float] = {}
    codes = {"": kofn.Uncoded("whole"), ", c=2": kofn.FractionalRepetition(2, "whole")}
    with kofn.connect("local", workers=WORKERS) as cluster:
        for rows, columns in ((600, 20), (6000, 200)):
            A, w = np.random.default_rng(0).standard_normal((rows, columns)), np.ones(columns)
            parts = cluster.parts(A, codes[""])
            assert np.allclose(parts.sum(slope, w).value, slope(A, w))
            found |= medians(
                {
                    f"sum of {rows} x {columns}{name}": partial(parts.sum, slope, w, code=code)
                    for name, code in codes.items()
                }
            )
    return found


def main(names: list[str]) -> None:
    """Print the figures of those named: overhead, sums, or an engine."""
    figures: dict[str, float] = {}
    for name in names:
        if name == "sums":
            figures |= sums()
        elif name == "overhead":
            figures |= products("local") | to_all("local", 20)
        else:
            figures |= products(name) | to_all(name, 12)
    print(json.dumps({"figures": figures}))


if __name__ == "__main__":
    main(sys.argv[1:] or ["overhead", "sums"])
