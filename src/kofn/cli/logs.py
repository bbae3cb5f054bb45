"""Commands about the log of a run: watch it, write its page, or a file for another tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ..errors import BadInput
from ..files import Place, check_file
from ..report.logs import read_log
from ..report.perfetto import trace as perfetto_trace
from . import places


def export(
    log: Annotated[Path, Argument(help="A log that connect(..., log=...) has written.")],
    perfetto: Annotated[
        bool, Option("--perfetto", help="For Perfetto and chrome://tracing.")
    ] = False,
    out: Annotated[Path | None, Option(help="The file to write (default: beside the log).")] = None,
) -> None:
    """Write a log in the format of another tool."""
    if not perfetto:
        raise BadInput("say which format to write: --perfetto is the one there is.")
    target = log.with_suffix(".perfetto.json") if out is None else out
    check_file(target, "--out")
    data = json.dumps(perfetto_trace(read_log(log))).encode()
    places.save(target, data)
    typer.echo(f"wrote {Place.of(target).url}: open it at ui.perfetto.dev or chrome://tracing")


def watch(
    log: Annotated[Path, Argument(help="A log that connect(..., log=...) writes.")],
    once: Annotated[bool, Option("--once", help="Print it as it is now, and end.")] = False,
    price: Annotated[float | None, Option(min=0, help="Of a worker for an hour.")] = None,
) -> None:
    """Watch a run in the terminal, by its log; also a copy of the log that is made anew."""
    from .watch import run as watch_log

    watch_log(log, once, price)


def report(
    log: Annotated[Path, Argument(help="A log that connect(..., log=...) has written.")],
    out: Annotated[Path | None, Option(help="The page to write (default: beside the log).")] = None,
    price: Annotated[float | None, Option(min=0, help="Of a worker for an hour.")] = None,
) -> None:
    """Write the page of a run as one file that any browser opens."""
    from .show import save_page

    print(f"wrote {save_page(log, out, price)}")
