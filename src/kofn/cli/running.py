"""How a command is run, and how its result is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

from rich.console import Console
from typer import Exit, Option

from ..errors import CannotWrite

Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]


def command(
    call: Callable[..., None], options: Mapping[str, tuple[Any, Any]], about: str
) -> Callable[..., None]:
    """`call` as Typer takes it: the type and the default of each option by name, and its help."""
    made: Any = call
    made.__signature__ = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
    )
    made.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    made.__doc__ = about
    return call


def show(result: dict[str, Any], as_json: bool, table: Any) -> None:
    """Print a result for a machine or for a person; then raise what went wrong beside it.

    The exit code is 1 if the result says that what was asked for cannot be met.
    """
    if as_json:
        print(json.dumps(_finite(result), indent=2))
    else:
        table(Console(), result)
    if trouble := result.get("trouble"):
        raise CannotWrite(*trouble)
    if result.get("met") is False:
        raise Exit(1)


def _finite(value: Any) -> Any:
    """The same, with null for infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_command(module: str, as_json: bool, *args: Any, **more: Any) -> None:
    """Call `run` of a module beside, which is loaded only now, and show what it returns."""
    loaded = import_module(f".{module}", __package__)
    show(loaded.run(*args, **more), as_json, loaded.table)
