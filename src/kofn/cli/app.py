"""The command line: options in, tables or JSON out. The work is in the modules beside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

from .. import KofnError, __version__
from .bench import many
from .fitting import Log, Page, Price, encode, fit, predict
from .logs import export, report, watch
from .papers import reproduce_all
from .places import HOLDS
from .ranks import become_worker
from .running import Json, run_command
from .simulations import calibrate, plan, reproduce_plan, simulate, trace

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(many.bench, name="bench")
reproduce = typer.Typer(help="Measure the papers' figures again.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
app.add_typer(trace, name="trace")
trace.command()(export)
app.command()(encode)
app.command()(fit)
app.command()(predict)
app.command()(simulate)
app.command()(plan)
app.command()(calibrate)
reproduce.command(name="plan")(reproduce_plan)
reproduce.command(name="all")(reproduce_all)
app.command()(watch)
app.command()(report)

Out = Annotated[Path, Option(help="The directory to write.")]


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
    without = ("elastic", "erasurehead", "fleet", "sequential", "sums")
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
    rounds: Annotated[int, Option(min=60, help="Rounds of power iteration.")] = 60,
    size: Annotated[int, Option(min=30, help="Rows and columns of the matrix.")] = 2000,
    seed: Annotated[int, Option(min=0, help="Seed of the matrix.")] = 0,
    pace: Annotated[float, Option(min=0, help="Seconds of a sixth of the rows.")] = 0.08,
    page: Page = False,
    price: Price = None,
    log: Log = None,
) -> None:
    """Multiply through real kills: six workers, any three are enough."""
    from .show import Shown

    title = f"kofn demo: {rounds} products, workers killed on purpose"
    shown = Shown(page, price, log, title)
    run_command("demo", as_json, rounds, size, seed, pace, plot, quiet=as_json, shown=shown)
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
    title = "kofn chaos: workers killed, frozen and interrupted"
    shown = Shown(page, None, log, title)
    run_command("chaos", as_json, settings, quiet=as_json, shown=shown)
    shown.stay()


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
    out: Out,
    data: Annotated[Path | None, _data("erasurehead")] = None,
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
