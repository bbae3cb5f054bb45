"""kofn bench sums: a coded sum against a plain mpi4py loop, and the price of a wide model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ... import Cluster, FractionalRepetition, KofnError, Uncoded, connect
from ...engines._processes import memory
from ...engines.local import LocalEngine
from ...learn.losses import logistic
from ...learn.terms import Term, cut
from ...reproduce import datasets
from .. import places
from ..output import print_table, print_text, progress
from . import bare
from .bare import WORKERS, Floats
from .frame import Figure
from .turns import BLOCK, Block, OnStep, interleaved, timed

SHAPES = ((600, 20), (6000, 200))
WIDE = (26_215, 241_915, 44)  # Amazon's rows, columns and ones a row
PORTIONS = (64, 16, 4, 2, 1)  # of its rows: a 64th, ...
Function = Callable[[Any, Any], Any]


def run(rounds: int, data: Path | None, *, quiet: bool = True) -> dict[str, Any]:
    """Measure both; every figure is a median over rounds of one run, the kinds taking turns."""
    places.data(data, "sums")
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    few = max(10, rounds // 20)  # wide sums take long
    with progress("bench sums", len(SHAPES) * rounds + few, quiet, "what") as update:
        for rows, columns in SHAPES:
            update(what=f"rounds  {rows} x {columns}")
            try:
                figures |= _against_mpi(rows, columns, rounds, update)
            except KofnError as error:  # no MPI here: say so, and measure the rest
                problems.append(f"{rows} x {columns}: {error}")
        update(what="rounds  wide")
        more, wide = _wide(few, data, update)
    return {"figures": figures | more, "wide": wide, "problems": problems}


def functions() -> tuple[Function, Function]:
    """What workers evaluate: the gradient of ½‖part · w‖², and next to nothing.

    Made here, so that they travel by value: workers need not load this module for them.
    """

    def slope(part: Any, w: Any) -> Any:
        return part.T @ (part @ w)

    def nothing(part: Any, x: Any) -> Any:
        return float(x[0][part])

    return slope, nothing


def _against_mpi(rows: int, columns: int, rounds: int, on_step: OnStep) -> dict[str, Figure]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((rows, columns)), np.ones(columns)
    slope, _ = functions()
    codes = {"kofn": Uncoded("whole"), "kofn, c=2": FractionalRepetition(2, "whole")}
    with (
        connect(LocalEngine(WORKERS)) as cluster,
        bare.ranks("kofn.cli.bench.bare_mpi:sums", A, 0.0, ()) as ranks,
    ):
        parts = cluster.parts(A, codes["kofn"])
        plain, polling = ranks.by("collectives"), ranks.by("napping")
        for total in (plain(w), polling(w), parts.sum(slope, w).value):
            assert np.allclose(total, slope(A, w))
        kinds: dict[str, Block] = {"collectives": plain.block, "polling": polling.block}
        kinds |= {name: timed(partial(parts.sum, slope, w, code=c)) for name, c in codes.items()}
        turns = interleaved(kinds, rounds, BLOCK, on_step)
    pairs = (("kofn", "collectives"), ("kofn", "polling"), ("kofn, c=2", "collectives"))
    return {
        f"{rows} x {columns}, {ours}, against {theirs}": turns.figure(
            ours, theirs, f"mpi4py, {theirs}"
        )
        for ours, theirs in pairs
    }


def _wide(
    rounds: int, data: Path | None, on_step: OnStep
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Logistic gradients at Amazon's width: time against non-zeros, and memory of the workers."""
    X, y, name = _amazon(data)
    x = (np.zeros(X.shape[1]), 0)
    fn = Term(logistic, intercept=False)
    result: dict[str, Any] = {"data": name, "columns": int(X.shape[1])}
    with connect(LocalEngine(WORKERS)) as cluster:
        before = _memory(cluster)
        calls: dict[str, Callable[[], Any]] = {}
        nonzeros: dict[str, int] = {}
        held: dict[str, int] = {}  # columns that occur in a part, all parts: what replies carry
        for portion in PORTIONS:
            rows, key = max(WORKERS, X.shape[0] // portion), f"1/{portion}"
            pieces = cut(X[:rows], y[:rows, None], np.ones((rows, 1)), WORKERS)
            calls[key] = partial(cluster.parts(pieces, Uncoded("whole")).sum, fn, x)
            nonzeros[key] = int(X[:rows].nnz)
            edges = pairwise(i * rows // WORKERS for i in range(WORKERS + 1))  # as `cut` has them
            held[key] = sum(len(np.unique(X[a:b].indices)) for a, b in edges)
        calls["1/1"]()
        after = _memory(cluster)
        wide = (X, y[:, None], np.ones((len(y), 1)), np.arange(len(y)))
        calls["full_dense_replies"] = partial(cluster.parts(wide, Uncoded("whole")).sum, fn, x)
        empty = cluster.parts(list(range(WORKERS)), Uncoded())
        calls["broadcast_alone"] = partial(empty.sum, functions()[1], x)
        blocks = {key: timed(call) for key, call in calls.items()}
        turns = interleaved(blocks, rounds, 5, on_step)
    result |= {key: turns.row(key) for key in calls}
    alone = result["broadcast_alone"]["median_us"]
    over = {key: result[key]["median_us"] - alone for key in nonzeros}
    # All portions lie there at once.
    whole = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    parts = 1e-6 * sum(1 / portion for portion in PORTIONS) * whole / WORKERS
    model = 8e-6 * X.shape[1]
    name = f"{X.shape[0]} x {X.shape[1]}, {result['data']}"
    figure = turns.figure("1/1", "broadcast_alone", "a sum of nothing with the same x")
    return {name: figure}, result | {
        "nonzeros": nonzeros,
        "columns_held": held,
        "us_over_broadcast": over,
        "us_per_1000_nonzeros": {key: 1000 * over[key] / nonzeros[key] for key in over},
        "us_per_1000_columns_held": {key: 1000 * over[key] / held[key] for key in over},
        "worker_megabytes": {"parts": parts, "model": model, "before": before, "after": after},
    }


def _amazon(data: Path | None) -> tuple[Any, Floats, str]:
    if data is not None:
        loaded = datasets.load("amazon", data)
        return loaded.X, loaded.y, "amazon"
    rows, columns, each = WIDE
    rng = np.random.default_rng(0)
    # As there, few columns are in many rows and many in few.
    at = (columns * rng.random((rows, each)) ** 3).astype(np.int32)
    X = datasets.ones(np.sort(at, axis=1), columns)
    X.sum_duplicates()
    return X, np.where(rng.random(rows) < 0.5, 1.0, -1.0), "made up, of Amazon's size"


def _memory(cluster: Cluster) -> dict[str, float]:
    """Private and shared megabytes of the largest worker, where the system shows them."""
    known = [memory(cluster.engine.pid(worker)) for worker in cluster.workers]
    names = {"private": "RssAnon", "shared": "RssShmem"}
    if not all(known):
        return {}
    return {key: max(one.get(name, 0) for one in known) / 1e6 for key, name in names.items()}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    wide = result["wide"]
    each = [wide[f"us_per_1000_{name}"] for name in ("nonzeros", "columns_held")]
    lines = [
        (key, wide["nonzeros"][key], wide[key]["median_us"], over, *(per[key] for per in each))
        for key, over in wide["us_over_broadcast"].items()
    ]
    for key in ("full_dense_replies", "broadcast_alone"):
        lines.append((key.replace("_", " "), "", wide[key]["median_us"]))
    columns = {
        "rows": "",
        **dict.fromkeys(("non-zeros", "µs per sum", "over a broadcast of x"), ".0f"),
        **dict.fromkeys(("per 1000 non-zeros", "per 1000 columns of parts"), ".1f"),
    }
    print_table(console, f"{wide['columns']} columns ({wide['data']})", columns, lines)
    text = """The parts of a worker are {parts:.1f} MB, the model {model:.1f} MB; the largest worker
        has {before} MB before and {after} MB after."""
    print_text(console, text, wide["worker_megabytes"])
