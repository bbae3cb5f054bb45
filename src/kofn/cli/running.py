"""How a command is run, and how its result is shown."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated, Any

from rich.console import Console
from typer import Exit, Option

from ..errors import CannotWrite

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]


def show(result: dict[str, Any], as_json: bool, table: Any) -> None:
    """Print a result for a machine or for a person; then raise what went wrong beside it.

    The exit code is 1 if the result says that what was asked for cannot be met.
    """
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        table(Console(), result)
    if trouble := result.get("trouble"):
        raise CannotWrite(*trouble)
    if result.get("met") is False:
        raise Exit(1)


def run_command(module: str, as_json: bool, *args: Any, **more: Any) -> None:
    """Call `run` of a module beside, which is loaded only now, and show what it returns."""
    command = import_module(f".{module}", __package__)
    show(command.run(*args, **more), as_json, command.table)
