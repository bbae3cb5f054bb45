"""kofn reproduce rateless: what is printed and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..reproduce import figures
from ..reproduce import rateless as paper
from ..reproduce import rateless_page as page
from . import places
from .reproduce import _progress, publish, say

# Latencies without a mean where start-up is Pareto(1, 1): of one worker, or of the slowest of many.
ENDLESS = ("one", "uncoded")


def run(
    out: Path, data: Path, quick: bool, *, quiet: bool, settings: paper.Settings | None = None
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results."""
    waits = paper.check(data)
    figures.sheet(1, 1)  # says so before the run, not after it, when nothing can be drawn
    places.directory(out)
    settings = settings or (paper.QUICK if quick else paper.FULL)
    with _progress(settings.steps, quiet, "rateless") as tell:
        results = paper.measure(settings, waits, tell)
    title = "Rateless codes for sums of non-linear functions, measured again"
    return publish(out, title, results, quick, page.draw, page.sentences)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the results for a person."""
    out = Table(title="latency, seconds: mean / median / 99 %", title_justify="left")
    for name in ("", *page.MODELS.values()):
        out.add_column(name, justify="right" if name else "left")
    for kind, (label, _, _) in page.LOOKS.items():
        cells = []
        for model in page.MODELS:
            found = result[model][kind]
            mark = "*" if model == "pareto" and kind in ENDLESS else ""
            cells.append(f"{found['mean']:.3g}{mark} / {found['median']:.3g} / {found['p99']:.3g}")
        out.add_row(label, *cells)
    console.print(out)
    console.print(
        "* of this sample: the mean of what it is drawn from is infinite.", highlight=False
    )
    say(console, result, page.sentences(result))
