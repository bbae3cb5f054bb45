"""kofn bench engines: a round of kofn against the bare primitive of each engine, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ..cluster import connect, engines, find
from ..delays import PerUnit
from ..engines.base import Engine
from ..engines.paced import Paced
from ..errors import KofnError
from . import bare
from .bench_overhead import (
    BLOCK,
    COLUMNS,
    LARGE,
    ROWS,
    THRESHOLD,
    WORKERS,
    interleaved,
    summary,
    touch,
)

PACE = 5e-3  # seconds of a paced round
MANY = 12
Product = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def run(names: list[str], rounds: int) -> dict[str, Any]:
    """Measure each engine; one that cannot run here says why."""
    chosen = names or [name for name in sorted(engines()) if name in bare.PRIMITIVES]
    found: dict[str, Any] = {}
    for name in chosen:
        try:
            find(name)
            found[name] = _engine(name, rounds)
        except KofnError as error:
            found[name] = {"problem": str(error)}
    return {"engines": found, "rows": ROWS, "columns": COLUMNS, "workers": WORKERS}


def _engine(name: str, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    kind = find(name)
    with kind(WORKERS) as engine:
        with bare.PRIMITIVES[name](A, 0.0) as plain, _coded(engine, A) as coded:
            tiny = _against(plain, coded, w, rounds)
        pace = PerUnit(PACE / (ROWS / WORKERS))
        with bare.PRIMITIVES[name](A, PACE) as plain, _coded(Paced(engine, pace), A) as coded:
            paced = _against(plain, coded, w, max(20, rounds // 5))
    with kind(MANY) as engine:
        ids = count(1)
        large, small = np.ones(LARGE), np.ones(1)
        calls = {
            "800_KB": lambda: touch(engine, ids, large),
            "8_B": lambda: touch(engine, ids, small),
        }
        cast = summary(interleaved(calls, max(20, rounds // 5)))
    cast["ratio"] = cast["800_KB"]["median_us"] / cast["8_B"]["median_us"]
    return {"tiny": tiny, "5_ms": paced, "broadcast": {**cast, "workers": MANY}}


@contextmanager
def _coded(engine: Engine, A: NDArray[np.float64]) -> Iterator[Product]:
    X = connect(engine).encode(A, k=THRESHOLD)
    yield lambda w: X @ w


def _against(plain: Product, coded: Product, w: NDArray[np.float64], rounds: int) -> dict[str, Any]:
    assert np.allclose(plain(w), coded(w))
    # A primitive in a program of its own times itself: a question to it is not part of a round.
    kinds = {"bare": getattr(plain, "block", None) or timed(plain, w), "kofn": timed(coded, w)}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for block in kinds.values():
        block(BLOCK)
    while len(times["kofn"]) < rounds:
        for name, block in kinds.items():
            times[name] += block(BLOCK)
    result = summary({name: np.asarray(seconds) for name, seconds in times.items()})
    result["ratio"] = result["kofn"]["median_us"] / result["bare"]["median_us"]
    return result


def timed(product: Product, w: NDArray[np.float64]) -> Callable[[int], list[float]]:
    """Return how to time so many rounds of a product here."""

    def block(rounds: int) -> list[float]:
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            product(w)
            seconds.append(time.perf_counter() - start)
        return seconds

    return block


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    out = Table(title="median µs per round: bare, kofn, ratio", title_justify="left")
    for column in ("engine", "tiny rounds", "5 ms rounds", f"to {MANY} workers: 8 B, 800 KB"):
        out.add_column(column)
    for name, found in result["engines"].items():
        if "problem" in found:
            out.add_row(name, found["problem"], "", "")
            continue
        cells = [
            f"{part['bare']['median_us']:.0f}, {part['kofn']['median_us']:.0f}, {part['ratio']:.2f}"
            for part in (found["tiny"], found["5_ms"])
        ]
        cast = found["broadcast"]
        cells.append(
            f"{cast['8_B']['median_us']:.0f}, {cast['800_KB']['median_us']:.0f}, "
            f"{cast['ratio']:.2f}"
        )
        out.add_row(name, *cells)
    console.print(out)
