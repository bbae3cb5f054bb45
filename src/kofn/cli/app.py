"""The command line: options in, tables or JSON out. The work is in the modules beside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from .. import KofnError, __version__
from .logs import bench_page, export, report, watch
from .places import HOLDS
from .ranks import become_worker
from .running import Json, run_command
from .simulations import calibrate, plan, simulate, trace

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(help="Measure, against bare primitives in the same run.", no_args_is_help=True)
app.add_typer(bench, name="bench")
reproduce = typer.Typer(help="Measure the papers' figures again.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
app.add_typer(trace, name="trace")
trace.command()(export)
app.command()(simulate)
app.command()(plan)
app.command()(calibrate)
bench.command(name="page")(bench_page)
app.command()(watch)
app.command()(report)

Out = Annotated[Path, Option(help="The directory to write.")]
Page = Annotated[bool, Option("--page", help="Show the run on a page in the browser.")]
Price = Annotated[float | None, Option(min=0, help="--page: of a worker for an hour.")]
Log = Annotated[Path | None, Option(help="Write the event log here (JSON, a record a line).")]
Rounds = Annotated[int, Option(min=20, help="Rounds measured of each kind.")]


def main() -> None:
    """Entry point: an error is one line on stderr and exit code 1, never a traceback."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # while somebody can still be told that it does not go
    except KofnError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader of our output went away (`kofn demo | head`): nothing to say to anyone.
        _drop_output()
        sys.exit(141)
    except OSError as error:
        _drop_output()
        what = f"{error.filename}: " if error.filename else ""
        _fail(f"a file or the output cannot be read or written: {what}{error.strerror or error}.")
    except MemoryError:
        _fail("there is not enough memory for this. Use smaller data, or more workers and memory.")


def _fail(text: str) -> NoReturn:
    # Not through rich: it opens files of its own, and there may be no more to be had.
    red = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print("\033[1;31mkofn:\033[0m" if red else "kofn:", text, file=sys.stderr)
    sys.exit(1)


def _drop_output() -> None:
    """Let what is left of the output go nowhere: Python would try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _data(command: str) -> Any:
    """The option of a command that reads public data sets."""
    without = ("elastic", "fleet", "sequential", "sums")
    made_up = " (default: made-up data)" if command in without else ""
    return Option(envvar="KOFN_DATA", help=f"Directory that holds {HOLDS[command]}{made_up}.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kofn {__version__}")
        raise typer.Exit


Version = Option("--version", callback=_version, is_eager=True, help="Print the version.")


@app.callback()
def _root(version: Annotated[bool, Version] = False) -> None:
    """Coded computing: any k of n workers are enough."""


@app.command()
def demo(
    as_json: Json = False,
    plot: Annotated[Path | None, Option(help="Draw a timeline: .png, .svg or .pdf.")] = None,
    rounds: Annotated[int, Option(min=60, help="Rounds of power iteration.")] = 300,
    size: Annotated[int, Option(min=30, help="Rows and columns of the matrix.")] = 2000,
    seed: Annotated[int, Option(min=0, help="Seed of the matrix.")] = 0,
    page: Page = False,
    price: Price = None,
    log: Log = None,
) -> None:
    """Multiply through real kills: six workers, any three are enough."""
    from .show import Shown

    shown = Shown(page, price, log)
    run_command("demo", as_json, rounds, size, seed, plot, quiet=as_json, shown=shown)
    shown.stay()


@app.command()
def encode(
    source: Annotated[str, Argument(help=".npy, .npz, Zarr, Parquet or LIBSVM; path or URL.")],
    store: Annotated[str, Argument(help="The directory to write; path or URL.")],
    n: Annotated[int, Option("--n", help="Shares to write.")],
    k: Annotated[int, Option("--k", help="Shares that are enough.")],
    fmt: Annotated[str, Option("--format", help="npy or zarr.")] = "npy",
    dtype: Annotated[str | None, Option(help="float64 or float32 (default: as it is).")] = None,
    overwrite: Annotated[bool, Option(help="Begin anew, over what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a matrix as n coded shares, any k of which are enough; a stopped run goes on."""
    run_command("encode", as_json, source, store, n, k, fmt, dtype, overwrite, quiet=as_json)


@app.command()
def fit(
    data: Annotated[
        Path, Argument(help="CSV (first line: names), Parquet, .npy or LIBSVM; .gz is fine.")
    ],
    model: Annotated[str, Option(help="ridge, logistic, svm or mlp.")],
    workers: Annotated[int, Option(min=1, help="Shares, and workers at most.")] = 4,
    k: Annotated[int | None, Option(help="How many workers must be enough.")] = None,
    engine: Annotated[str, Option(help="Where the workers are.")] = "local",
    target: Annotated[str | None, Option(help="Column to predict (default: last).")] = None,
    labels: Annotated[Path | None, Option(help="y.npy, beside X.npy or a table.")] = None,
    spot: Annotated[Path | None, Option(help="Kill and add workers as this trace says.")] = None,
    scale: Annotated[float, Option(help="Trace seconds per second.")] = 600.0,
    out: Annotated[
        Path | None, Option(help="Save the model here; kofn.learn.load reads it.")
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
    keep: Annotated[int | None, Option(min=1, help="Keep so many workers live.")] = None,
    notices: Annotated[
        list[str] | None,
        Option(help="Where it is said that machines will go: aws, slurm, auto, …; repeatable."),
    ] = None,
    checkpoint: Annotated[
        str | None, Option(help="Save the fit in this folder now and then; path or URL.")
    ] = None,
    resume: Annotated[bool, Option(help="Go on from the folder, if it has a checkpoint.")] = False,
    page: Page = False,
    price: Price = None,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Train a model; workers may come and go."""
    become_worker(engine)
    from .fit import Job
    from .show import Shown

    shown = Shown(page, price, log)
    job = Job(
        *(data, model, workers, k, engine, target, labels, spot, scale, out, hidden, epochs, seed),
        *(tuple(search or ()), folds, test, test_labels, keep, tuple(notices or ())),
        *(checkpoint, resume),
    )
    run_command("fit", as_json, job, quiet=as_json, shown=shown)
    shown.stay()


@app.command()
def engines(as_json: Json = False) -> None:
    """List the engines: what is installed, and how to install the rest."""
    run_command("engines", as_json)


@app.command()
def chaos(
    minutes: Annotated[float, Option(min=0.02, help="How long.")] = 1.0,
    engine: Annotated[str, Option(help="Where the workers are.")] = "local",
    seed: Annotated[int | None, Option(min=0, help="Of operations and strikes.")] = None,
    workers: Annotated[int | None, Option(min=4, help="How many (default: 6, or all).")] = None,
    only: Annotated[list[str] | None, Option(help="kills, freezes, …; repeatable.")] = None,
    address: Annotated[str | None, Option(help="Of a running cluster.")] = None,
    page: Page = False,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Kill, freeze and interrupt at random; check every result; look for what is left."""
    become_worker(engine)
    from ..chaos.run import Settings
    from ..chaos.strikes import KINDS
    from .show import Shown

    if workers is None and address is None and engine != "mpi":
        workers = 6
    seed = int.from_bytes(os.urandom(3)) if seed is None else seed
    settings = Settings(engine, workers, minutes, seed, tuple(only or KINDS), address)
    shown = Shown(page, None, log)
    run_command("chaos", as_json, settings, quiet=as_json, shown=shown)
    shown.stay()


@bench.command()
def overhead(as_json: Json = False, rounds: Rounds = 2000) -> None:
    """Time per tiny coded round against a bare pipe loop, and the price of a large operand."""
    run_command("bench_overhead", as_json, rounds)


@bench.command()
def verify(
    as_json: Json = False,
    rounds: Annotated[int, Option(min=2, help="Products measured of each kind.")] = 30,
    rows: Annotated[int, Option(min=100, help="Rows of the matrix, of 2,000 columns.")] = 20_000,
) -> None:
    """What checking every reply costs: by probes and by parity, against products without."""
    run_command("bench_verify", as_json, rounds, rows)


@bench.command(name="engines")
def bench_engines(
    engine: Annotated[list[str] | None, Argument(help="Which (default: all installed).")] = None,
    as_json: Json = False,
    rounds: Annotated[int, Option(min=20, help="Tiny rounds measured of each kind.")] = 500,
) -> None:
    """Each engine: kofn's round against the engine's own fastest primitive, in the same run."""
    run_command("bench_engines", as_json, engine or [], rounds)


@bench.command()
def learn(
    as_json: Json = False,
    rows: Annotated[int, Option(min=100, help="Rows of the data.")] = 100_000,
    columns: Annotated[int, Option(min=2, help="Columns of the data.")] = 200,
    workers: Annotated[int, Option(min=1, help="Workers, and threads of the other.")] = 2,
    times: Annotated[int, Option(min=1, help="How often each is fitted.")] = 3,
) -> None:
    """Our estimators against scikit-learn's, no faults: seconds of a fit, and how right."""
    run_command("bench_learn", as_json, rows, columns, workers, times)


@bench.command(name="checkpoint")
def bench_checkpoint(
    as_json: Json = False,
    rows: Annotated[int, Option(min=100, help="Rows of the data.")] = 20_000,
    columns: Annotated[int, Option(min=2, help="Columns of the data.")] = 200,
    workers: Annotated[int, Option(min=1, help="Workers.")] = 4,
    seconds: Annotated[float, Option(min=1, help="How long each is fitted.")] = 20,
) -> None:
    """How much of a fit goes into its checkpoints, at the default interval."""
    run_command("bench_checkpoint", as_json, rows, columns, workers, seconds)


@bench.command()
def reaction(
    as_json: Json = False,
    times: Annotated[int, Option(min=3, help="How often each is measured.")] = 30,
) -> None:
    """How soon a cancelled worker is free, and how soon a kill -9 is noticed."""
    run_command("bench_reaction", as_json, times)


@bench.command()
def decode(
    as_json: Json = False,
    times: Annotated[int, Option(min=3, help="Decodes measured of each kind.")] = 100,
) -> None:
    """Rateless sums: milliseconds to decode from scratch, taken apart."""
    run_command("bench_decode", as_json, times)


@bench.command()
def scale(
    as_json: Json = False,
    most: Annotated[int, Option(min=10, help="Workers, at most.")] = 10_000,
) -> None:
    """A round with up to 10,000 workers: the real master, a simulated network."""
    run_command("bench_scale", as_json, most)


@bench.command(name="simulate")
def bench_simulate(
    as_json: Json = False,
    rounds: Annotated[int, Option(min=5, help="Rounds of each code.")] = 30,
    codes: Annotated[str | None, Option(help="Only codes whose name has this in it.")] = None,
    engine: Annotated[str, Option(help="Where the six workers are.")] = "local",
    address: Annotated[str | None, Option(help="Of a cluster that runs already.")] = None,
) -> None:
    """Simulated round times against the wall clock, with the same delays."""
    run_command("bench_simulate", as_json, rounds, codes, engine, address, quiet=as_json)


@bench.command()
def sums(
    data: Annotated[Path | None, _data("sums")] = None,
    as_json: Json = False,
    rounds: Rounds = 500,
) -> None:
    """A coded sum of gradients against a plain mpi4py loop, and the price of a wide model."""
    run_command("bench_sums", as_json, rounds, data, quiet=as_json)


@bench.command()
def fleet(
    data: Annotated[Path | None, _data("fleet")] = None,
    as_json: Json = False,
    seconds: Annotated[float, Option(min=5, help="How long the market takes, each time.")] = 240,
) -> None:
    """A spot market with and without notices, and what others do about losses."""
    run_command("bench_fleet", as_json, data, seconds, quiet=as_json)


@bench.command()
def rivals(
    data: Annotated[Path, _data("rivals")],
    as_json: Json = False,
    quick: Annotated[bool, Option(help="Two of the recordings: about a minute.")] = False,
) -> None:
    """Gradient codes, backup tasks and others on recorded times, each with its best settings."""
    run_command("bench_rivals", as_json, data, quick, quiet=as_json)


@reproduce.command()
def svm(
    data: Annotated[Path, _data("svm")],
    out: Out,
    engine: Annotated[str, Option(help="Where the four workers are.")] = "local",
    as_json: Json = False,
) -> None:
    """A linear SVM on four workers, two of them killed during the fit."""
    become_worker(engine)
    from ..reproduce.svm import Settings

    run_command("reproduce", as_json, "svm", out, data, quiet=as_json, settings=Settings(engine))


@reproduce.command()
def sequential(
    out: Out,
    data: Annotated[Path | None, _data("sequential")] = None,
    quick: Annotated[bool, Option(help="Fewer jobs: about two minutes.")] = False,
    as_json: Json = False,
) -> None:
    """Sequences of products with a deadline: Figures 1 and 2, Table 1."""
    run_command("reproduce", as_json, "sequential", out, data, quick, quiet=as_json)


@reproduce.command()
def erasurehead(
    data: Annotated[Path, _data("erasurehead")],
    out: Out,
    quick: Annotated[bool, Option(help="Few iterations: some minutes.")] = False,
    time_scale: Annotated[
        float | None, Option(help="Of the published delays of mean 2 s (default 0.075).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Approximate gradient coding: Figures 2, 3 and 4, the lemmas, and rivals without a code."""
    run_command("reproduce", as_json, "erasurehead", out, data, quick, time_scale, quiet=as_json)


@reproduce.command()
def elastic(
    out: Out,
    data: Annotated[Path | None, _data("elastic")] = None,
    quick: Annotated[bool, Option(help="Fewer rounds: about a minute.")] = False,
    as_json: Json = False,
) -> None:
    """Coded elastic computing: Figure 2, a straggler, unequal machines, rows moved."""
    run_command("reproduce", as_json, "elastic", out, data, quick, quiet=as_json)


@reproduce.command()
def rateless(
    data: Annotated[Path, _data("rateless")],
    out: Out,
    quick: Annotated[bool, Option(help="Few trials: about a minute.")] = False,
    as_json: Json = False,
) -> None:
    """Rateless sums of non-linear functions: Figure 2, symbols needed, decode times, wall clock."""
    run_command("reproduce", as_json, "rateless", out, data, quick, quiet=as_json)
