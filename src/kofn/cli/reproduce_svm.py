"""kofn reproduce svm: what is printed and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..reproduce import svm as paper
from . import places


def run(out: Path, data: Path, *, quiet: bool) -> dict[str, Any]:
    """Measure, write results.json into `out`, return the results."""
    places.directory(out)
    console = Console(stderr=True)
    with console.status("reading") as status:
        if quiet or not console.is_terminal:
            status.stop()
        result = paper.measure(data, lambda what: status.update(f"fitting: {what}"))
    places.results(out, result)
    return result


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the report's table beside ours."""
    out = Table(title=f"on {result['test_rows']} test rows", title_justify="left")
    for name in ("", "the report, one machine", "kofn, 2 killed and 1 joined"):
        out.add_column(name, justify="right" if name else "left")
    for name in ("precision", "recall", "f1", "accuracy"):
        out.add_row(name, f"{result['reported'][name]:.2%}", f"{result[name]:.2%}")
    console.print(out)
    console.print(
        f"Any {result['threshold']} of {result['workers']} workers are enough: {result['killed']} "
        f"were killed during the fit, and the coefficients differ from an undisturbed fit by at "
        f"most {result['max_coef_difference']:.1e}. scikit-learn's LinearSVC reaches "
        f"{result['sklearn_accuracy']:.2%}.",
        soft_wrap=True,
    )
