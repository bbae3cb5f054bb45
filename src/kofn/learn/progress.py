"""How far a fit is: a bar on a terminal, a line in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from ..model import Report

Show = Callable[[int, float, Report], None]  # iteration (or epoch), loss, the last product's report
EVERY = 0.2  # seconds between two changes of a line


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel."""
    there: Any = sys.modules.get("IPython")
    shell = None if there is None else there.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _in_place(what: str, total: int | None) -> Iterator[Show]:
    """A line in a notebook that is written over again and again, and stays as it was last."""
    display: Any = import_module("IPython.display").display

    class Line(str):
        def _repr_html_(self) -> str:
            return f"<pre>{self}</pre>"

    began, line = time.perf_counter(), Line(f"{what} 0")
    handle: Any = display(line, display_id=True)
    shown = 0.0

    def show(iteration: int, loss: float, report: Report) -> None:
        nonlocal line, shown
        now = time.perf_counter()
        of = f" of {total}" if total else ""
        line = Line(
            f"{what} {iteration}{of}  loss {loss:.6g}  {len(report.live)} workers live  "
            f"round {report.round}  {now - began:.1f} s"
        )
        if now - shown >= EVERY:
            shown = now
            handle.update(line)

    try:
        yield show
    finally:
        handle.update(line)


@contextmanager
def progress(wanted: bool, what: str = "iteration", total: int | None = None) -> Iterator[Show]:
    """Yield what to call after every iteration: on a terminal (stderr) a bar, in a notebook a line.

    Elsewhere nothing is shown.
    """
    if not wanted:
        yield lambda iteration, loss, report: None
        return
    if in_notebook():
        yield from _in_place(what, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    off = not console.is_terminal
    bar = Progress(
        SpinnerColumn(),
        TextColumn(f"[bold]{what} {{task.completed}}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.6g}"),
        TextColumn("{task.fields[live]} workers live"),
        TextColumn("round {task.fields[round]}"),
        TimeElapsedColumn(),
        console=console,
        disable=off,
    )
    with nullcontext() if off else bar:  # to begin and end one is a line, before rich 14.3
        task = bar.add_task("fit", total=total, loss=float("nan"), live=0, round=0)
        yield lambda iteration, loss, report: bar.update(
            task, completed=iteration, loss=loss, live=len(report.live), round=report.round
        )
