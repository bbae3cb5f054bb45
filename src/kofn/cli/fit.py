"""kofn fit: train a model on data from a file, through kills if a spot trace says so."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..cluster import connect
from ..delays.traces import read_spot_trace
from ..errors import BadInput
from ..learn import LinearSVC, LogisticRegression, Ridge
from ..market import Market, check
from . import tables

MODELS = ("ridge", "logistic", "svm")


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    data: Path
    model: str
    workers: int
    k: int | None = None
    engine: str = "local"
    target: str | None = None
    labels: Path | None = None
    spot: Path | None = None
    scale: float = 600.0
    out: Path | None = None


def run(job: Job, *, quiet: bool) -> dict[str, Any]:
    """Fit, save, and return what happened."""
    if job.model not in MODELS:
        raise BadInput(f"--model must be one of {', '.join(MODELS)}; got {job.model!r}.")
    if job.out is not None:
        _writable(job.out)
    trace = None
    if job.spot is not None:
        trace = read_spot_trace(job.spot)
        check(trace, job.workers)
    X, y = tables.load(job.data, job.target, job.labels)
    start = job.workers if trace is None else trace.at_start
    k = (job.workers + 1) // 2 if job.k is None else job.k
    rows: list[tuple[float, int]] = []
    began = time.perf_counter()
    with connect(job.engine, start, wait=300.0) as cluster, _progress(quiet) as tell:

        def watch(iteration: int, loss: float, matrix: Any) -> None:
            rows.append((loss, len(matrix.report.live)))
            tell(iteration, loss, len(matrix.report.live), matrix.report.round)

        model = _model(job.model, watch)
        coded = cluster.encode(X, k, n=job.workers)
        market = nullcontext() if trace is None else Market(cluster, trace, job.scale, job.workers)
        with market as events:
            model.fit(coded, y)
        log = cluster.log
        rounds = coded.report.round
    seconds = time.perf_counter() - began
    result = {
        "model": job.model,
        "rows": int(X.shape[0]),
        "columns": int(X.shape[1]),
        "workers": job.workers,
        "k": k,
        "engine": job.engine,
        "score": float(model.score(X, y)),
        "iterations": int(np.max(model.n_iter_)),
        "rounds": rounds,
        "killed": [] if events is None else events.killed,
        "joined": [] if events is None else events.added,
        "lost": sum(record.kind == "lost" for record in log),
        "losses": [loss for loss, _ in rows],
        "live": [live for _, live in rows],
        "seconds": seconds,
        "out": None if job.out is None else str(job.out),
    }
    if job.out is not None:
        _save(job.out, model, result)
    return result


def _model(name: str, callback: Any) -> Any:
    kinds: dict[str, Any] = {"ridge": Ridge, "logistic": LogisticRegression, "svm": LinearSVC}
    return kinds[name](callback=callback)


def _writable(path: Path) -> None:
    """Find out before the fit whether the model can be saved there."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise BadInput(
            f"--out must be a file in a directory that is there and can be written; {path} is not. "
            f"Make the directory first."
        )


def _save(path: Path, model: Any, result: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps(model))
    path.with_name(path.name + ".report.json").write_text(json.dumps(result, indent=2) + "\n")


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("[bold]iteration {task.fields[iteration]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.6g}"),
        TextColumn("{task.fields[live]} workers live"),
        TextColumn("round {task.fields[round]}"),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        task = bar.add_task("fit", total=None, iteration=0, loss=float("nan"), live=0, round=0)
        yield lambda iteration, loss, live, round: bar.update(
            task, iteration=iteration, loss=loss, live=live, round=round
        )


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the fit for a person."""
    out = Table(show_header=False, box=None, padding=(0, 2))
    out.add_row("model", f"{result['model']} on {result['rows']} x {result['columns']}")
    out.add_row("workers", f"any {result['k']} of {result['workers']} ({result['engine']})")
    out.add_row("score on these data", f"{result['score']:.4f}")
    out.add_row("iterations, rounds", f"{result['iterations']}, {result['rounds']}")
    out.add_row("workers killed, joined", f"{len(result['killed'])}, {len(result['joined'])}")
    out.add_row("seconds", f"{result['seconds']:.1f}")
    if result["out"] is not None:
        out.add_row("saved", f"{result['out']} (and .report.json)")
    console.print(out)
