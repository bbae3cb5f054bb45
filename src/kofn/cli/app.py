"""The command line: options in, tables or JSON out. The work is in the modules beside."""

from __future__ import annotations

import io
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
from .papers import papers
from .ranks import become_worker
from .running import Json, run_command
from .simulations import calibrate, plan, simulate, trace

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(many.bench, name="bench")
app.add_typer(papers, name="reproduce")
app.add_typer(trace, name="trace")
trace.command()(export)
app.command()(encode)
app.command()(fit)
app.command()(predict)
app.command()(simulate)
app.command()(plan)
app.command()(calibrate)
app.command()(watch)
app.command()(report)


def main() -> None:
    """Entry point: an error is one line on stderr and exit code 1, never a traceback."""
    _watch_output()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # while somebody can still be told that it does not go
    except KofnError as error:
        _fail(str(error))
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


class _Output(io.FileIO):
    """The output. Where its reader goes away (`kofn demo | head -1`) the command ends quietly.

    Its exit code is then that of a program that SIGPIPE ends. The signal itself would also be that
    of a lost worker, and typer and rich turn Python's error into code 1, as of a failure.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _drop_output()
            sys.exit(141)


def _watch_output() -> None:
    """Have what is printed go through `_Output`, but where a test or a notebook takes it.

    Where an output is closed (`kofn demo >&-`), what goes there is dropped.
    """
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # python -u: there is no buffer
    if type(raw) is io.FileIO:
        now, output = sys.stdout, _Output(raw.fileno(), "w", closefd=False)
        lines = raw is buffer or bool(now.line_buffering)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(output), now.encoding, now.errors, line_buffering=lines
        )
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, open(nowhere, "w", closefd=False))  # noqa: SIM115


def _drop_output() -> None:
    """Let what is left of the output go nowhere: Python would try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
