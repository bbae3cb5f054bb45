"""kofn reproduce erasurehead: what is printed and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import BadInput
from ..reproduce import erasurehead as paper
from ..reproduce import erasurehead_figures, figures
from . import places
from .reproduce import _progress, publish, say


def run(
    out: Path,
    data: Path | None,
    quick: bool,
    time_scale: float | None,
    *,
    quiet: bool,
    settings: paper.Settings | None = None,
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results."""
    if data is not None and not data.is_dir():
        raise BadInput(f"--data must be a directory that exists; {data} does not.")
    settings = settings or (paper.QUICK if quick else paper.FULL)
    if time_scale is not None:
        if not time_scale > 0:
            raise BadInput(f"--time-scale must be > 0; got {time_scale!r}.")
        settings = replace(settings, time_scale=float(time_scale))
    figures.sheet(1, 1)  # says so before the run, not after it, when nothing can be drawn
    places.directory(out)
    with _progress(settings.steps, quiet, "erasurehead") as tell:
        results = paper.measure(data, settings, tell)
    title, page = "ErasureHead, measured again", erasurehead_figures
    return publish(out, title, results, quick, page.draw, page.sentences)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the results for a person."""
    methods = list(result["virtual_seconds_per_iteration"])
    out = Table(title="seconds per iteration, and to the target", title_justify="left")
    for name in ("", *methods):
        out.add_column(name, justify="right" if name else "left")
    virtual = result["virtual_seconds_per_iteration"]
    out.add_row("simulated, mean 2 s", *(f"{virtual[m]:.3f}" for m in methods))
    for name, seconds in result["wall_seconds_per_iteration"].items():
        out.add_row(f"{name}, processes", *(f"{seconds[m]:.3f}" for m in methods))
        found = result["time_to_target"][name]
        out.add_row(f"{name}, to the target", *(_seconds(found[m]) for m in methods))
        plain = result["no_delay_seconds_per_iteration"][name]
        out.add_row(f"{name}, no delays", *(f"{plain[m]:.3f}" for m in methods))
    console.print(out)
    rivals = result["rivals"]
    if "problem" in rivals:
        console.print(rivals["problem"])
    else:
        _rivals(console, rivals)
    _unequal(console, result["unequal"])
    say(console, result, erasurehead_figures.sentences(result))


def _rivals(console: Console, rivals: dict[str, Any]) -> None:
    title = f"{rivals['data']}, {rivals['workers']} workers, recorded AWS Lambda delays (simulated)"
    out = Table(title=title, title_justify="left")
    for name in ("method", "s to target", "s per iteration", "covered", "final metric"):
        out.add_column(name, justify="left" if name == "method" else "right")
    best = {found["setting"] for found in rivals["best"].values() if found}
    for name, row in rivals["methods"].items():
        out.add_row(
            f"[bold]{name}[/]" if name in best else name,
            _seconds(row["seconds_to_target"]),
            f"{row['seconds_per_iteration']:.3f}",
            f"{row['mean_covered']:.2f}",
            f"{row['final_metric']:.4f}",
        )
    console.print(out)
    alike = Table(title="seconds to the target, best at the same portion", title_justify="left")
    kinds = ("kofn", "ignore", "dsag", "exact", "backups")
    for name in ("portion of a part", *kinds):
        alike.add_column(name, justify="right")
    for portion, found in rivals["by_portion"].items():
        alike.add_row(portion, *(_seconds(found[kind]) for kind in kinds))
    tried = rivals["tried"]
    alike.add_row("settings tried in all", *(str(tried[kind]) for kind in kinds))
    console.print(alike)


def _unequal(console: Console, found: dict[str, Any]) -> None:
    title = (
        f"{found['data']}, {len(found['slow_or_lost'])} of {found['workers']} machines slow or lost"
    )
    out = Table(title=f"{title}: final metric (s per iteration)", title_justify="left")
    cases = ("mixed_slow", "sorted_slow", "sorted_lost")
    for name in ("method", *(case.replace("_", " rows, ") for case in cases)):
        out.add_column(name, justify="left" if name == "method" else "right")
    for name in found[cases[0]]:
        rows = [found[case][name] for case in cases]
        cells = [
            f"{row['final_metric']:.4f} ({row['seconds_per_iteration']:.2f})" if row else "stops"
            for row in rows
        ]
        out.add_row(name, *cells)
    console.print(out)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
