"""kofn reproduce: measure the papers' figures again, and write them down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import BadInput
from ..reproduce import elastic as paper
from ..reproduce import figures, page
from . import places


def elastic(
    out: Path, data: Path | None, quick: bool, *, quiet: bool, settings: Any = None
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results."""
    if data is not None and not data.is_dir():
        raise BadInput(f"--data must be a directory that exists; {data} does not.")
    figures.sheet(1, 1)  # says so before the run, not after it, when nothing can be drawn
    places.directory(out)
    settings = settings or (paper.QUICK if quick else paper.FULL)
    with _progress(settings.steps, quiet) as tell:
        results = paper.measure(settings, tell, data)
    title = "Coded elastic computing, measured again"
    return publish(out, title, results, quick, figures.draw, page.sentences)


def publish(
    out: Path,
    title: str,
    results: dict[str, Any],
    quick: bool,
    draw: Callable[[dict[str, Any]], Mapping[str, Any]],
    sentences: Callable[[dict[str, Any]], Mapping[str, str]],
) -> dict[str, Any]:
    """Write results.json, the figures and index.html into `out`; return the results."""
    results = results | {"quick": page.QUICK if quick else None}
    places.results(out, results)
    page.publish(title, results, draw(results), sentences(results), out)
    return results


def say(console: Console, result: dict[str, Any], sentences: Mapping[str, str]) -> None:
    """Print the sentences, and that a quick run was quick."""
    for text in (*sentences.values(), *filter(None, [result.get("quick")])):
        console.print(f"- {text}", soft_wrap=True, highlight=False)


@contextmanager
def _progress(steps: int, quiet: bool, name: str = "elastic") -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(f"[bold]reproduce {name}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        task = bar.add_task("steps", total=steps, what="")
        yield lambda what: bar.update(task, advance=1, what=what)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the results for a person."""
    out = Table(title="time per adaptive round / non-adaptive", title_justify="left")
    for name in ("machines live", "measured", "simulated, full size"):
        out.add_column(name, justify="right")
    virtual = result["virtual_adaptive_over_nonadaptive"]
    for n, ratio in result["adaptive_over_nonadaptive"].items():
        out.add_row(n, f"{ratio:.3f}", f"{virtual[n]:.3f}")
    console.print(out)
    moved = Table(title="rows moved, % of N", title_justify="left")
    for name in ("transition", "plain cyclic", "ours"):
        moved.add_column(name, justify="right")
    total = result["rows_moved_total"]
    for step, row in [*result["rows_moved"].items(), *total.items()]:
        name = f"[bold]{step}[/] in all" if step in total else step
        moved.add_row(name, f"{100 * row['cyclic']:.2f}", f"{100 * row['ours']:.2f}")
    console.print(moved)
    runs = Table(title=f"gradient descent, {result['linear_data']}", title_justify="left")
    for name in ("method", "loss", "test error", "killed", "joined", "restarted"):
        runs.add_column(name, justify="left" if name == "method" else "right")
    for name, run in result["linear_runs"].items():
        figures_of = (run[key] for key in ("final_loss", "final_test_error"))
        numbers = [f"{value:.6f}" for value in figures_of]
        counts = [str(run[key]) for key in ("killed", "added", "restarted")]
        runs.add_row(name, *numbers, *counts)
    console.print(runs)
    say(console, result, page.sentences(result))
