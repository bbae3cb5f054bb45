"""kofn reproduce: measure the papers' figures again, write them down and print them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import BadInput
from ..reproduce import (
    elastic,
    elastic_page,
    erasurehead,
    erasurehead_page,
    figures,
    page,
    rateless,
    rateless_page,
    sequential,
    sequential_page,
    svm,
)
from . import places
from .output import print_table, progress

# What measures (`measure`, `QUICK`, `FULL`), and what shows (`draw`, `sentences`, `tables`).
PAPERS: dict[str, tuple[Any, Any]] = {
    "elastic": (elastic, elastic_page),
    "erasurehead": (erasurehead, erasurehead_page),
    "rateless": (rateless, rateless_page),
    "sequential": (sequential, sequential_page),
}
HOLDS = {"sequential": "holds mnist/", "rateless": "holds straggler_traces/"}  # of --data


def run(
    name: str,
    out: Path,
    data: Path | None,
    quick: bool,
    time_scale: float | None = None,
    *,
    quiet: bool,
    settings: Any = None,
) -> dict[str, Any]:
    """Measure, write results.json, the figures and index.html into `out`, return the results.

    All that can be wrong with the arguments is found before the run.
    """
    paper, shown = PAPERS[name]
    if data is not None and not data.is_dir():
        holds = HOLDS.get(name, "exists")
        raise BadInput(f"--data must be a directory that {holds}; {data} is not there.")
    settings = settings or (paper.QUICK if quick else paper.FULL)
    if time_scale is not None:
        if not time_scale > 0:
            raise BadInput(f"--time-scale must be > 0; got {time_scale!r}.")
        settings = replace(settings, time_scale=float(time_scale))
    getattr(paper, "check", lambda data: None)(data)
    figures.sheet(1, 1)
    places.directory(out)
    with progress(f"reproduce {name}", settings.progress_steps, quiet, "what") as update:
        results = paper.measure(data, settings, lambda what: update(advance=1, what=what))
    return publish(out, results, quick, shown)


def publish(out: Path, results: dict[str, Any], quick: bool, shown: Any) -> dict[str, Any]:
    """Write results.json, the figures and index.html into `out`; return the results."""
    results = results | {"quick": page.QUICK if quick else None}
    places.results(out, results)
    page.publish(shown, results, out)
    return results


def table(name: str, console: Console, result: dict[str, Any]) -> None:
    """Print the tables and the sentences, and that a quick run was quick."""
    shown = PAPERS[name][1]
    for printed in shown.tables(result):
        if isinstance(printed, str):
            console.print(printed, highlight=False)
        else:
            print_table(console, *printed)
    for text in (*shown.sentences(result).values(), *filter(None, [result.get("quick")])):
        console.print(f"- {text}", soft_wrap=True, highlight=False)


def run_svm(out: Path, data: Path, *, quiet: bool) -> dict[str, Any]:
    """Measure, write results.json into `out`, return the results."""
    places.directory(out)
    with progress("reproduce svm", 3, quiet, "what") as update:
        result = svm.measure(data, lambda what: update(advance=1, what=what))
    places.results(out, result)
    return result


def table_svm(console: Console, result: dict[str, Any]) -> None:
    """Print the report's table beside ours."""
    columns = {"": "", "the report, one machine": ".2%", "kofn, 2 killed and 1 joined": ".2%"}
    names = ("precision", "recall", "f1", "accuracy")
    rows = [(name, result["reported"][name], result[name]) for name in names]
    print_table(console, f"on {result['test_rows']} test rows", columns, rows)
    console.print(
        f"Any {result['threshold']} of {result['workers']} workers are enough: {result['killed']} "
        f"were killed during the fit, and the coefficients differ from an undisturbed fit by at "
        f"most {result['max_coef_difference']:.1e}. scikit-learn's LinearSVC reaches "
        f"{result['sklearn_accuracy']:.2%}.",
        soft_wrap=True,
    )
