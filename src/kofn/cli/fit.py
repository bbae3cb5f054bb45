"""kofn fit: train a model on data from a file, through kills if a spot trace says so."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import type_of_target

from .. import BadInput, CannotWrite, Checkpoint, connect
from ..arrays.shares import threshold
from ..delays import SpotTrace, read_membership, read_spot_trace
from ..files import check_file
from ..learn import CodedMLPClassifier, LinearSVC, LogisticRegression, Ridge, saving
from ..market import Market, check
from ..model import Record
from ..notices import resolve
from ..simulation.timings import market_of
from . import places, scaling, search, tables
from .output import print_pairs
from .show import NOT_SHOWN, Shown

LINEAR: dict[str, Any] = {"ridge": Ridge, "logistic": LogisticRegression, "svm": LinearSVC}
MODELS = (*LINEAR, "mlp")
Names = tuple[str, ...] | None  # of the columns


@dataclass(frozen=True)
class Fit:
    """The options of `kofn fit`."""

    data: Path
    model: str
    workers: int
    k: int | None = None
    engine: str = "local"
    target: str | None = None
    labels: Path | None = None
    spot: str | Path | None = None  # FILE, or FILE:NAME
    scale: float = 600.0
    out: Path | None = None
    hidden: str = "100"
    epochs: int = 20
    seed: int = 0
    search: tuple[str, ...] = ()
    folds: int = 5
    test: Path | None = None
    test_labels: Path | None = None
    keep: int | None = None
    notices: tuple[str, ...] = ()
    checkpoint: str | Path | None = None  # a Path would spoil a URL
    resume: bool = False
    address: str | None = None  # of a running cluster
    given: Mapping[str, float | None] = field(default_factory=dict)  # C, alpha, max_iter, tol
    standardise: bool = False
    hold_out: float | None = None
    at_most: int | None = None

    @property
    def classes(self) -> bool:
        """Whether the model predicts classes."""
        return self.model != "ridge"


def run(fit: Fit, *, quiet: bool, shown: Shown = NOT_SHOWN) -> dict[str, Any]:
    """Fit, save, and return what happened."""
    if fit.model not in MODELS:
        raise BadInput(f"--model must be one of {', '.join(MODELS)}; got {fit.model!r}.")
    if fit.keep is not None and (fit.spot is not None or fit.keep > fit.workers):
        raise BadInput(
            f"--keep is at most --workers, and not for --spot, whose market orders workers; got "
            f"--keep {fit.keep}, --workers {fit.workers}, --spot {fit.spot}. Leave --keep out."
        )
    resolve(fit.notices)  # raises for a wrong name
    _check_folder(fit)
    if fit.out is not None:
        check_file(fit.out, "--out")  # before the data are read: that may take long
    k = threshold((fit.workers + 1) // 2 if fit.k is None else fit.k, fit.workers).k
    trace = _market(fit)
    if trace is not None:
        check(trace, fit.workers, k, fit.scale)
    seen: list[tuple[float, Any]] = []  # loss and report after each iteration
    first: list[int] = []  # the iteration that came first: where it went on, if it did

    def watch(iteration: int, loss: float, fitted: Any) -> None:
        first[:] = first or [iteration]
        seen.append((loss, fitted.report))

    model = _model(fit, k).set_params(callback=watch, verbose=not quiet)
    values = search.grid(fit.search, fit.model, model)
    X, y, names = tables.read(fit.data, fit.target, fit.labels, classes=fit.classes)
    _check_data(fit, X, y)
    if values:
        search.check(fit.folds, y, fit.classes)
    X, y, held_out = _divided(fit, X, y, names)
    columns = scaling.Columns.of(X, model, fit.standardise)
    with nullcontext() if fit.out is None else places.room(fit.out, _size(fit, X, y, names)):
        began = time.perf_counter()
        log, events, searched = _fit(fit, k, trace, model, values, columns.scaled(X), y, shown)
    columns.unscale(model)
    seconds = time.perf_counter() - began
    result = {
        "model": fit.model,
        "rows": int(X.shape[0]),
        "columns": int(X.shape[1]),
        "workers": fit.workers,
        "k": k,
        "engine": fit.engine,
        "search": searched,
        "score": float(model.score(X, y)),
        "test_score": None if held_out is None else float(model.score(*held_out)),
        "test": None if fit.test is None else str(fit.test),
        "test_rows": 0 if held_out is None else int(held_out[0].shape[0]),
        "iterations": int(np.max(model.n_iter_)),
        "resumed": first[0] - 1 if first and fit.resume else 0,
        "rounds": seen[-1][1].round if seen else 0,
        "killed": [] if events is None else events.killed,
        "joined": [] if events is None else events.added,
        "market_played": None if events is None else events.played,
        "market_seconds": None if trace is None else trace.seconds,
        "lost": sum(record.kind == "lost" for record in log),
        "losses": [loss for loss, _ in seen],
        "live": [len(report.live) for _, report in seen],
        "seconds": seconds,
        "out": None if fit.out is None else str(fit.out),
    }
    if names is not None:  # as a fit to a frame has it; the scores above are of arrays
        model.feature_names_in_ = np.array(names, dtype=object)
    if fit.out is not None:
        result["trouble"] = _save(fit.out, model, result)
    return result


def _fit(
    fit: Fit,
    k: int,
    trace: SpotTrace | None,
    model: Any,
    values: search.Grid,
    X: Any,
    y: Any,
    shown: Shown,
) -> tuple[list[Record], Market | None, dict[str, Any] | None]:
    """Fit the model on workers of its own; return their log, what the market did, and the search.

    Where there are values to choose from, the best are searched first, on the same workers.
    """
    choice = None
    start = fit.workers if trace is None else trace.at_start
    how: dict[str, Any] = {"keep": fit.keep, "notices": fit.notices, "log": shown.log}
    with connect(fit.engine, start, address=fit.address, wait=300.0, **how) as cluster:
        shown.open(cluster)
        model.set_params(cluster=cluster)
        market = None if trace is None else Market(cluster, trace, fit.scale, fit.workers, need=k)
        with market or nullcontext():
            if values:
                plain = clone(model).set_params(callback=None, k=k, workers=fit.workers)
                choice = search.choose(plain, values, fit.folds, fit.seed, X, y)
                model.set_params(**choice["chosen"])
            data = X if fit.model == "mlp" else cluster.encode(X, k, n=fit.workers)
            model.fit(data, y, checkpoint=fit.checkpoint)
        return cluster.log, market, choice


def _market(fit: Fit) -> SpotTrace | None:
    """The trace of --spot: as it is, or what it offers to somebody who wants so many workers."""
    if fit.spot is None:
        if fit.at_most is not None:
            raise BadInput(
                f"--at-most limits the machines of --spot; got --at-most {fit.at_most} and no "
                f"trace. Use --workers."
            )
        return None
    if fit.at_most is None and Path(fit.spot).is_file():
        traces = list(read_membership(fit.spot).values())
        if len(traces) == 1 and isinstance(traces[0], SpotTrace):
            return read_spot_trace(fit.spot)
    return market_of(str(fit.spot), min(fit.at_most or fit.workers, fit.workers), fit.seed)


def _divided(
    fit: Fit, X: Any, y: NDArray[Any], names: Names
) -> tuple[Any, NDArray[Any], tuple[Any, NDArray[Any]] | None]:
    """The rows to fit to, and those to test on: of --test, or held out of the data."""
    if fit.hold_out is None:
        return X, y, None if fit.test is None else _held_out(fit, X, y, names)
    if fit.test is not None or not 0.0 < fit.hold_out < 1.0:
        raise BadInput(
            f"--hold-out is a part of the rows between 0 and 1, and stands in for --test; got "
            f"{fit.hold_out:g}{' and --test' if fit.test is not None else ''}. Try 0.2, alone."
        )
    try:
        parts = train_test_split(
            X, y, test_size=fit.hold_out, random_state=fit.seed, stratify=y if fit.classes else None
        )
    except ValueError as error:
        raise BadInput(f"--hold-out {fit.hold_out:g} leaves too few rows: {error}") from None
    X, test, y, labels = parts
    return X, y, (test, labels)


def _check_folder(fit: Fit) -> None:
    """Refuse a folder of checkpoints that would be overwritten, or that is not there to resume."""
    if fit.checkpoint is None:
        if fit.resume:
            raise BadInput(
                "--resume goes on from a folder of checkpoints; none was named. Add --checkpoint."
            )
    elif (there := Checkpoint(fit.checkpoint).numbers()) and not fit.resume:
        raise BadInput(
            f"--checkpoint begins in a folder without checkpoints; {fit.checkpoint} has number "
            f"{there[-1]}. Add --resume to go on from there, or name another folder."
        )


def _held_out(fit: Fit, X: Any, y: NDArray[Any], names: Names) -> tuple[Any, NDArray[Any]]:
    """Return the rows and labels of --test, which must go with those of the data."""
    assert fit.test is not None
    rows, labels, _ = tables.read(
        fit.test, fit.target, fit.test_labels, classes=fit.classes, like=names
    )
    _check_rows(fit.test, rows, labels)
    if hasattr(rows, "indptr") and rows.shape[1] < X.shape[1]:
        rows.resize((rows.shape[0], X.shape[1]))  # LIBSVM text: the last columns are all zeros
    if rows.shape[1] != X.shape[1]:
        raise BadInput(
            f"--test must have the columns of the data, {X.shape[1]}; {fit.test.name} has "
            f"{rows.shape[1]}. Check that the files belong together."
        )
    if fit.classes and not np.isin(labels, y).any():
        raise BadInput(
            f"--test must have labels that the data have; {fit.test.name} has "
            f"{tables.plain(labels[0])!r}, the data {tables.plain(y[0])!r}. Write them alike."
        )
    return rows, labels


def _size(fit: Fit, X: Any, y: NDArray[Any], names: Names) -> int:
    """About how many bytes the model and its report take, and not less."""
    classes = len(np.unique(y)) if fit.classes else 1
    widths = [X.shape[1], *(_hidden(fit) if fit.model == "mlp" else ()), classes]
    numbers = sum((a + 1) * b for a, b in pairwise(widths))
    # As doubles, with names of classes and columns, the report of each epoch, and the file's own.
    named = y.itemsize * classes + (np.array(names).nbytes if names else 0)
    return int(8 * numbers + named + 100 * fit.epochs + (1 << 18))


def _model(fit: Fit, k: int) -> Any:
    given = {name: value for name, value in fit.given.items() if value is not None}
    if fit.model in LINEAR:
        known = LINEAR[fit.model]().get_params()
        for name in given:
            if name not in known:
                right = "ridge" if name == "alpha" else "logistic and svm"
                raise BadInput(f"--{name} is for {right}; got it with --model {fit.model}.")
        model = LINEAR[fit.model](**given)
        model._check_parameters()
        return model
    if given:
        name = next(iter(given)).replace("_", "-")
        raise BadInput(
            f"--{name} is for linear models; got it with --model mlp. Use --epochs, or --search "
            f"learning_rate=0.1."
        )
    return CodedMLPClassifier(
        _hidden(fit), max_epochs=fit.epochs, random_state=fit.seed, k=k, workers=fit.workers
    )


def _hidden(fit: Fit) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in fit.hidden.split(","))
    except ValueError:
        raise BadInput(
            f"--hidden is the widths of the hidden layers, such as 300,100; got {fit.hidden!r}."
        ) from None


def _check_rows(path: Path, X: Any, y: NDArray[Any]) -> None:
    """Refuse what is not a matrix of finite numbers with a label a row."""
    if X.ndim != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise BadInput(
            f"the data must be numbers in rows and columns; {path.name} has shape {X.shape} "
            f"of {X.dtype}. Save it anew."
        )
    if np.ndim(y) != 1 or len(y) != X.shape[0]:
        raise BadInput(
            f"there must be one label a row; got {X.shape[0]} rows and labels of shape "
            f"{np.shape(y)}. Check that the files belong together."
        )
    numbers = X.data if hasattr(X, "indptr") else X
    if not np.isfinite(numbers).all():
        raise BadInput(
            f"every number in {path.name} must be finite; "
            f"{int((~np.isfinite(numbers)).sum())} are NaN or infinite. Fill or drop them."
        )
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise BadInput(
            f"every label must be finite; {int((~np.isfinite(y)).sum())} of {len(y)} are NaN or "
            f"infinite. Fill or drop these rows."
        )


def _check_data(fit: Fit, X: Any, y: NDArray[Any]) -> None:
    """Refuse data that cannot be fitted, before any worker is started."""
    _check_rows(fit.data, X, y)
    if y.dtype.kind not in "fiubUS":
        raise BadInput(
            f"labels must be numbers or text; these are of dtype {y.dtype}. Turn them into numbers."
        )
    if not fit.classes and y.dtype.kind not in "fiub":
        raise BadInput(
            f"--model ridge predicts numbers; the target has {tables.plain(y[0])!r}. Choose "
            f"another --target, or a classifier."
        )
    if fit.classes and type_of_target(y) == "continuous":
        raise BadInput(
            f"--model {fit.model} takes classes; the target has {len(np.unique(y))} different "
            f"numbers with fractions, such as {tables.plain(y[0])!r}. Choose another --target, or "
            f"--model ridge."
        )
    if fit.classes and len(np.unique(y)) < 2:
        raise BadInput(
            f"--model {fit.model} needs at least 2 classes; all labels are "
            f"{tables.plain(y[0])!r}. Check how they were read."
        )


def _save(path: Path, model: Any, result: dict[str, Any]) -> tuple[str, str] | None:
    """Write the model and its report; return what went wrong: path and problem."""
    trouble = None
    report = (json.dumps(result, indent=2) + "\n").encode()
    beside = path.with_name(path.name + ".report.json")
    for at, data in ((path, saving.pack(model)), (beside, report)):
        try:
            places.save(at, data)
        except CannotWrite as error:
            trouble = trouble or (error.path, error.problem)  # of the model, rather
    return trouble


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the fit for a person."""
    if result["search"] is not None:
        search.table(console, result["search"])
    what = "epochs" if result["model"] == "mlp" else "iterations"
    pairs = {
        "model": f"{result['model']} on {result['rows']} x {result['columns']}",
        "workers": f"any {result['k']} of {result['workers']} ({result['engine']})",
        "score on these data": f"{result['score']:.4f}",
        f"{what}, rounds": f"{result['iterations']}, {result['rounds']}",
        "workers killed, joined": f"{len(result['killed'])}, {len(result['joined'])}",
        "seconds": f"{result['seconds']:.1f}",
    }
    if result["market_played"] is not None:
        played, whole = result["market_played"], result["market_seconds"]
        none = "" if result["killed"] else "; nobody was killed"
        pairs["played of the market"] = f"{played:,.0f} of {whole:,.0f} s{none} (see --scale)"
    if result["resumed"]:
        pairs["went on after"] = f"{result['resumed']} {what}, from a checkpoint"
    if result["test_score"] is not None:
        rows = result["test_rows"]
        where = "--test" if result["test"] else "rows held out"
        pairs[f"score on {where}"] = f"{result['test_score']:.4f} ({rows} rows)"
    if result["out"] is not None and not result["trouble"]:
        pairs["saved"] = f"{result['out']} (and .report.json)"
    print_pairs(console, pairs)
