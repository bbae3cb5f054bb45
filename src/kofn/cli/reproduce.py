"""kofn reproduce: measure the papers' figures again, write them down and print them."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import BadInput
from ..reproduce import figures, page
from ..reproduce.kept import Kept
from . import places
from .output import print_sentences, print_table, progress


def _modules(name: str, shows: str) -> tuple[Any, Any]:
    return import_module(f"kofn.reproduce.{name}"), import_module(f"kofn.reproduce.{shows}")


# What measures (`measure`, `QUICK`, `FULL`), and what shows (`sentences`, `tables`, figures).
PAPERS = {"svm": _modules("svm", "svm")} | {
    name: _modules(name, f"{name}_page")
    for name in ("elastic", "erasurehead", "plan", "rateless", "sequential")
}


def run(
    name: str,
    out: Path,
    data: Path | None,
    quick: bool = False,
    time_scale: float | None = None,
    *,
    quiet: bool,
    settings: Any = None,
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results.

    All that can be wrong with the arguments is found before the run. What an earlier one that was
    ended has left in `out` is not measured again, under the same settings.
    """
    paper, shown = PAPERS[name]
    places.data(data, name)
    settings = settings or (paper.QUICK if quick else paper.FULL)
    if time_scale is not None:
        if not time_scale > 0:
            raise BadInput(f"--time-scale must be > 0; got {time_scale!r}.")
        settings = replace(settings, time_scale=float(time_scale))
    getattr(paper, "check", lambda data: None)(data)
    if hasattr(shown, "TITLE"):
        figures.sheet(1, 1)
    places.directory(out)
    kept = Kept(out, asdict(settings) | {"data": data and str(data.resolve())})
    with progress(f"reproduce {name}", settings.progress_steps, quiet, "what") as update:
        results = paper.measure(data, settings, lambda what: update(advance=1, what=what), kept)
    results = {"paper": name, **results, "took_seconds": kept.seconds}
    results = publish(out, results, quick, shown)
    kept.over()
    return results


def publish(out: Path, results: dict[str, Any], quick: bool, shown: Any) -> dict[str, Any]:
    """Write results.json, the figures and index.html into `out`; return the results."""
    foreign = getattr(shown, "foreign", lambda results: None)(results)
    results = results | {"quick": page.QUICK if quick else None, "foreign": foreign}
    if hasattr(shown, "TITLE"):
        page.publish(shown, results, out)
    places.results(out, results)  # last: who finds it takes the rest for done
    return results


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the tables and the sentences, and which data they are not of, and of a quick run."""
    shown = PAPERS[result["paper"]][1]
    if result.get("foreign"):
        print_sentences(console, result["foreign"])
    for printed in shown.tables(result):
        if isinstance(printed, str):
            print_sentences(console, printed)
        else:
            print_table(console, *printed)
    for text in (
        *shown.sentences(result).values(),
        *filter(None, [result.get("quick"), result.get("foreign")]),
    ):
        print_sentences(console, f"- {text}")
