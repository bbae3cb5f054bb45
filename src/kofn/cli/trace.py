"""kofn trace export: the log of a run, for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ..errors import BadInput
from ..files import Place
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
    places.file(target)
    data = json.dumps(perfetto_trace(read_log(log))).encode()
    places.save(target, data)
    typer.echo(f"wrote {Place.of(target).url}: open it at ui.perfetto.dev or chrome://tracing")
