"""kofn reproduce sequential: what is printed and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import BadInput
from ..reproduce import figures
from ..reproduce import sequential as paper
from ..reproduce import sequential_page as page
from . import places
from .reproduce import _progress, publish, say


def run(
    out: Path,
    data: Path | None,
    quick: bool,
    *,
    quiet: bool,
    settings: paper.Settings | None = None,
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results.

    Without `data` the networks are trained on made-up images.
    """
    if data is not None and not data.is_dir():
        raise BadInput(f"--data must be a directory that holds mnist/; {data} is not there.")
    figures.sheet(1, 1)  # says so before the run, not after it, when nothing can be drawn
    places.directory(out)
    settings = settings or (paper.QUICK if quick else paper.FULL)
    with _progress(settings.tells, quiet, "sequential") as tell:
        results = paper.measure(data, settings, tell)
    title = "Coded sequential matrix multiplication, measured again"
    return publish(out, title, results, quick, page.draw, page.sentences)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the results for a person."""
    out = Table(title="time per job / polynomial code", title_justify="left")
    for name in ("stragglers", "μ", "clock", *page.NAMES.values()):
        out.add_column(name, justify="left" if name in ("stragglers", "clock") else "right")
    for model, title in page.MODELS.items():
        for mu in ("0", "0.25"):
            for clock, side in (("virtual", result[model]), ("wall", result["wall"][model])):
                row = side if mu == "0" else side["mu_0.25"]
                ratios = [f"{row['over_poly'][kind]:.3f}" for kind in page.NAMES]
                out.add_row(title, mu, clock, *ratios)
    console.print(out)
    say(console, result, page.sentences(result))
