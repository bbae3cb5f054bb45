"""Commands about data and models in files: what they take. The work is in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .ranks import become_worker
from .running import Json, run_command

Page = Annotated[bool, Option("--page", help="Show the run on a page in the browser.")]
Price = Annotated[float | None, Option(min=0, help="--page: of a worker for an hour.")]
Log = Annotated[Path | None, Option(help="Write the event log here (JSON, a record a line).")]
Target = Annotated[str | None, Option(help="Column to predict (default: last).")]
Labels = Annotated[Path | None, Option(help="y.npy, beside X.npy or a table.")]


def encode(
    source: Annotated[str, Argument(help=".npy, .npz, Zarr, Parquet, LIBSVM, CSV; path or URL.")],
    store: Annotated[str, Argument(help="The directory to write; path or URL.")],
    n: Annotated[int, Option("--n", help="Shares to write.")],
    k: Annotated[int, Option("--k", help="Shares that are enough.")],
    fmt: Annotated[str, Option("--format", help="npy or zarr.")] = "npy",
    dtype: Annotated[str | None, Option(help="float64 or float32 (default: as it is).")] = None,
    target: Annotated[str | None, Option(help="CSV: a column to leave out.")] = None,
    labels: Annotated[Path | None, Option(help="CSV: write that column here, as .npy.")] = None,
    axis: Annotated[int, Option(min=0, max=1, help="0: cut by rows; 1: by columns.")] = 0,
    overwrite: Annotated[bool, Option(help="Begin anew, over what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a matrix as n coded shares, any k of which are enough; a stopped run goes on."""
    args = (source, store, n, k, fmt, dtype, overwrite)
    more = {"target": target, "labels": labels, "axis": axis, "quiet": as_json}
    run_command("encode", as_json, *args, **more)


def fit(
    data: Annotated[
        Path, Argument(help="CSV (first line: names), Parquet, .npy or LIBSVM; .gz is fine.")
    ],
    model: Annotated[str, Option(help="ridge, logistic, svm or mlp.")],
    workers: Annotated[int, Option(min=1, help="Shares, and workers at most.")] = 4,
    k: Annotated[int | None, Option(help="How many workers must be enough.")] = None,
    engine: Annotated[str, Option(help="Where the workers are.")] = "local",
    target: Target = None,
    labels: Labels = None,
    C: Annotated[float | None, Option("--C", help="logistic, svm: weight of the loss.")] = None,
    alpha: Annotated[float | None, Option(help="ridge: weight of the penalty.")] = None,
    max_iter: Annotated[int | None, Option(min=1, help="Iterations, at most.")] = None,
    tol: Annotated[float | None, Option(help="When to stop: see the model's docstring.")] = None,
    standardise: Annotated[
        bool, Option("--standardise", help="Columns of mean 0 and deviation 1 for the fit.")
    ] = False,
    spot: Annotated[
        str | None, Option(help="FILE or FILE:NAME of who comes and goes: it kills workers.")
    ] = None,
    at_most: Annotated[int | None, Option(min=1, help="--spot: want no more workers.")] = None,
    scale: Annotated[float, Option(help="Trace seconds per second.")] = 600.0,
    out: Annotated[
        Path | None, Option(help="Save the model here; kofn predict and kofn.learn.load read it.")
    ] = None,
    hidden: Annotated[str, Option(help="mlp: widths of the hidden layers.")] = "100",
    epochs: Annotated[int, Option(min=1, help="mlp: passes over the data.")] = 20,
    seed: Annotated[int, Option(min=0, help="Of folds, and of an mlp's first weights.")] = 0,
    search: Annotated[
        list[str] | None,
        Option(help="Values to choose from by cross-validation, as C=0.01,0.1,1; repeatable."),
    ] = None,
    folds: Annotated[int, Option(min=2, help="Folds of the cross-validation.")] = 5,
    test: Annotated[Path | None, Option(help="More data, which the model is tested on.")] = None,
    test_labels: Annotated[Path | None, Option(help="y.npy of --test.")] = None,
    hold_out: Annotated[
        float | None, Option(help="Without --test: keep this part of the rows to test on.")
    ] = None,
    keep: Annotated[int | None, Option(min=1, help="Keep so many workers live.")] = None,
    notices: Annotated[
        list[str] | None,
        Option(help="Where it is said that machines will go: aws, slurm, auto, …; repeatable."),
    ] = None,
    checkpoint: Annotated[
        str | None, Option(help="Save the fit in this folder now and then; path or URL.")
    ] = None,
    resume: Annotated[bool, Option(help="Go on from the folder, if it has a checkpoint.")] = False,
    address: Annotated[str | None, Option(help="Of a running cluster.")] = None,
    page: Page = False,
    price: Price = None,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Train a model; workers may come and go."""
    become_worker(engine)
    from .fit import Fit
    from .show import Shown

    shown = Shown(page, price, log, f"kofn fit {data}")
    asked = Fit(
        *(data, model, workers, k, engine, target, labels, spot, scale, out, hidden, epochs, seed),
        *(tuple(search or ()), folds, test, test_labels, keep, tuple(notices or ())),
        *(checkpoint, resume, address),
        given={"C": C, "alpha": alpha, "max_iter": max_iter, "tol": tol},
        standardise=standardise,
        hold_out=hold_out,
        at_most=at_most,
    )
    run_command("fit", as_json, asked, quiet=as_json, shown=shown)
    shown.stay()


def predict(
    model: Annotated[Path, Argument(help="What `kofn fit --out` has saved.")],
    data: Annotated[Path, Argument(help="Rows, in a format that `kofn fit` takes.")],
    out: Annotated[Path | None, Option(help="Write predictions here: .csv or .npy.")] = None,
    target: Annotated[str | None, Option(help="The column that is no feature, if any.")] = None,
    labels: Labels = None,
    as_json: Json = False,
) -> None:
    """Predict with a saved model; where the data have the target as well, score it."""
    run_command("predict", as_json, model, data, out, target, labels)
