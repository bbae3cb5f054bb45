"""kofn reproduce all: the command; the work is in `reproduce_all`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from .running import Json, run_command


def reproduce_all(
    data: Annotated[Path, Option(envvar="KOFN_DATA", help="The directory that holds all data.")],
    out: Annotated[Path, Option(help="The directory to write; a run that was ended goes on.")],
    quick: Annotated[bool, Option(help="Everything small: some ten minutes.")] = False,
    as_json: Json = False,
) -> None:
    """All papers, one after the other, and one page with every claim and its value."""
    run_command("reproduce_all", as_json, out, data, quick, quiet=as_json)
