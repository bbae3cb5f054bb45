"""kofn bench calm: what `auto`, kofn's own choice, costs where nobody is slow or lost.

It codes, and it tries what may be better. Both are counted: seconds are those of all rounds from
the second on. No code is kofn's own too, so that nothing else differs; for products a loop over
bare pipes is beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from ... import Cluster, Uncoded, connect, sequence
from ...sums import Parts
from ..output import print_table
from .bare import WORKERS, pipes
from .frame import Figure
from .products import SETTLE
from .sums import functions
from .turns import Turns, interleaved, timed

COLUMNS = 1000
JOB = (600, 400, 400)  # rows, columns and width of a product of the sequence
MOST = 20  # rounds of a kind before the next has its turn
Calls = Mapping[str, Callable[[], Any]]


def run(rows: int, rounds: int) -> dict[str, Any]:
    """Each kind of work in turn, `auto` beside no code."""
    figures: dict[str, Figure] = {}
    kinds: dict[str, Any] = {}
    tuned: dict[str, list[str]] = {}
    for name, (work, unit) in WORK.items():
        with connect("local", workers=WORKERS) as cluster, work(cluster, rows) as calls:
            first = {kind: call() for kind, call in calls.items()}
            assert all(np.allclose(one, first["uncoded"]) for one in first.values())
            time.sleep(SETTLE)
            blocks = {kind: timed(call) for kind, call in calls.items()}
            turns = interleaved(blocks, rounds, MOST, warm=0)
            tuned[name] = [record.why for record in cluster.log if record.kind == "tuned"]
        figures[f"{name}, {unit}"] = _figure(turns, "uncoded", "no code")
        if "pipes" in calls:
            figures[f"{name}, against pipes"] = _figure(turns, "pipes", "a loop over bare pipes")
        kinds[name] = {kind: turns.row(kind) for kind in calls}
    return {"figures": figures, "kinds": kinds, "tuned": tuned}


def _figure(turns: Turns, than: str, of: str) -> Figure:
    """Seconds of all rounds: what is tried counts, however seldom it is."""
    spread = turns.figure("auto", than, of).spread
    ours, theirs = (float(turns.seconds(kind).sum()) for kind in ("auto", than))
    return Figure(ours, "s", theirs, of, spread)


@contextmanager
def _products(cluster: Cluster, rows: int) -> Iterator[Calls]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((rows, COLUMNS)), rng.standard_normal(COLUMNS)
    with pipes(A, 0.0) as bare:
        kept = {
            "uncoded": cluster.encode(A, k=WORKERS, late=None, loads="equal"),
            "auto": cluster.encode(A),
            "k fixed": cluster.encode(A, k=WORKERS // 2),
        }
        calls: dict[str, Callable[[], Any]] = {"pipes": lambda: bare(w)}
        yield calls | {name: partial(X.__matmul__, w) for name, X in kept.items()}


@contextmanager
def _sums(cluster: Cluster, rows: int) -> Iterator[Calls]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((rows, COLUMNS)), rng.standard_normal(COLUMNS)
    slope, _ = functions()
    kept = {"uncoded": cluster.parts(A, Uncoded()), "auto": cluster.parts(A)}

    def total(parts: Parts) -> Any:
        return parts.sum(slope, w).value

    yield {name: partial(total, parts) for name, parts in kept.items()}


@contextmanager
def _sequences(cluster: Cluster, rows: int) -> Iterator[Calls]:
    rng = np.random.default_rng(0)
    m, n, p = JOB
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))

    def jobs(code: sequence.SequenceCode | None) -> Callable[[], Any]:
        stream = cluster.sequence(code)
        waiting = [stream.submit(X, Y)]

        def next_job() -> Any:
            waiting.append(stream.submit(X, Y))  # the next one is at hand, as in a stream
            return waiting.pop(0).result()

        return next_job

    codes = {"uncoded": sequence.Uncoded(2, WORKERS // 2), "auto": None}
    yield {name: jobs(code) for name, code in codes.items()}


WORK = {
    "X @ w": (_products, "all rounds"),
    "sums of gradients": (_sums, "all rounds"),
    "X Y in a sequence": (_sequences, "all jobs"),
}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the median rounds, and what was tried."""
    rows = [
        (name, kind, row["median_us"] / 1e3, row["p90_us"] / 1e3)
        for name, kinds in result["kinds"].items()
        for kind, row in kinds.items()
    ]
    print_table(console, "a round", {"work": "", "": "", "ms": ".3f", "90 %": ".3f"}, rows)
    for name, changes in result["tuned"].items():
        for change in changes:
            console.print(f"{name}: {change}", markup=False)
