"""A progress bar for a fit: iteration, loss, workers and rounds; on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..model import Report

Show = Callable[[int, float, Report], None]  # iteration (or epoch), loss, the last product's report


@contextmanager
def progress(wanted: bool, what: str = "iteration", total: int | None = None) -> Iterator[Show]:
    """Yield what to call after every iteration; nothing is shown unless stderr is a terminal."""
    if not wanted:
        yield lambda iteration, loss, report: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn(f"[bold]{what} {{task.completed}}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.6g}"),
        TextColumn("{task.fields[live]} workers live"),
        TextColumn("round {task.fields[round]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("fit", total=total, loss=float("nan"), live=0, round=0)
        yield lambda iteration, loss, report: bar.update(
            task, completed=iteration, loss=loss, live=len(report.live), round=report.round
        )
