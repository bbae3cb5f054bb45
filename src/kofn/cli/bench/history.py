"""The history of figures: read back, drawn on a page, and compared with what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ...report import save
from .frame import COLUMNS, cells
from .systems.grid import grid

WORSE = 1.2  # times the recorded ratio
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 2em } th { text-align: left }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd } td.n { text-align: right }
svg { vertical-align: middle } .bad { color: #b3261e } .best { font-weight: 700 }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd } td, th { border-color: #3a3d44 }
  .bad { color: #ff8a80 } }
"""


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All results that are kept in a folder, by benchmark, oldest first."""
    if not folder.is_dir():
        raise BadInput(
            f"the history is a folder that `kofn bench NAME --out` wrote to; got {folder}."
        )
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            runs.setdefault(result["bench"], []).append(result)
            assert isinstance(result["figures"], dict)
        except (ValueError, KeyError, TypeError, AssertionError):
            raise BadInput(f"{path} is not a result of `kofn bench`. Move it elsewhere.") from None
    for results in runs.values():
        results.sort(key=lambda result: str(result["when"]))
    return runs


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last result; of `peers` with the cells of those before that it has not measured."""
    last = dict(results[-1])
    for part in ("cells", "figures") if "cells" in last else ():
        last[part] = {key: one for result in results for key, one in result.get(part, {}).items()}
    return last


def page(runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """One HTML file: the last result of each benchmark, and how its ratios went over time."""
    parts = [_section(name, results) for name, results in sorted(runs.items())]
    head = f"<!doctype html><meta charset=utf-8><title>kofn: figures</title><style>{STYLE}</style>"
    text = (
        "<p>Each figure has its limit beside it, measured in the same run: 1 is as good as the "
        "limit, more is worse. Lines: the ratio of each kept run, oldest first.</p>"
    )
    return f"{head}<h1>kofn bench</h1>{text}{''.join(parts)}\n"


def _section(name: str, results: list[dict[str, Any]]) -> str:
    last = merged(results)
    at = last["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in at["versions"].items())
    facts = f"{at['processor']}, {at['cores']} cores, load {at['load_before']:.1f} before; "
    facts += f"Python {at['python']}, {versions}; {last['when']}; {len(results)} kept"
    head = "".join(f"<th>{title}" for title in ("", *COLUMNS, "ratios"))
    body = "".join(
        f"<tr><td>{escape(key)}{''.join(_cell(text) for text in cells(row))}"
        f"<td>{_line(key, results)}"
        for key, row in last["figures"].items()
    )
    tables = f"<table><tr>{head}{body}</table>" if last["figures"] else ""
    grid = _grid(last["cells"]) if "cells" in last else ""
    return f"<h2>{escape(name)}</h2><p>{escape(facts)}</p>{grid}{tables}"


def _cell(text: str) -> str:
    return f"<td class=n>{escape(text)}" if text[:1].isdigit() else f"<td>{escape(text)}"


def _line(key: str, results: list[dict[str, Any]]) -> str:
    ratios = [r["figures"][key]["ratio"] for r in results if r["figures"].get(key, {}).get("ratio")]
    if len(ratios) < 2:
        return ""
    top, step = max(*ratios, 1.0), 120 / (len(ratios) - 1)
    points = " ".join(f"{4 + i * step:.1f},{28 - 24 * r / top:.1f}" for i, r in enumerate(ratios))
    one = f"{28 - 24 / top:.1f}"
    return (
        f'<svg width=128 height=32 role=img aria-label="{", ".join(f"{r:.2f}" for r in ratios)}">'
        f'<path d="M4 {one}h120" stroke="#999" stroke-dasharray="3"/>'
        f'<polyline points="{points}" fill=none stroke="#2b6cb0" stroke-width=2 /></svg>'
    )


def _grid(results: Mapping[str, Any]) -> str:
    """Of `kofn bench peers`: a table for each piece of work, a row for each peer."""
    tables = []
    for work, (settings, rows) in grid(results).items():
        head = "".join(f"<th>{escape(s)}" for s in ("", *settings))
        body = "".join(
            f"<tr><td>{escape(peer)}{''.join(_cell(text) for text in texts)}"
            for peer, texts in rows.items()
        )
        tables.append(f"<h3>{escape(work)}</h3><table><tr>{head}{body}</table>")
    return "".join(tables)


def markdown(runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """The last result of each benchmark as tables, for docs."""
    parts: list[str] = []
    for name, results in sorted(runs.items()):
        last = merged(results)
        parts.append(f"### {name}")
        if "cells" in last:
            for work, (settings, rows) in grid(last["cells"]).items():
                parts.append(_lines((work, *settings), rows.items()))
        parts.append(_lines(("", *COLUMNS), ((k, cells(r)) for k, r in last["figures"].items())))
    return "\n\n".join(parts) + "\n"


def _lines(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    lines = [head, ["---"] * len(head), *((name, *texts) for name, texts in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(runs: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the peers: seconds of each work in each setting; who died or hangs has no bar."""
    from matplotlib.figure import Figure as Canvas

    if "peers" not in runs:
        raise BadInput("the picture is of `kofn bench peers`; there is no result of it here.")
    results = merged(runs["peers"])["cells"]
    works = list(grid(results))
    canvas = Canvas(figsize=(11, 2.6 * len(works)), layout="constrained", dpi=110)
    for axes, work in zip(canvas.subplots(len(works), squeeze=False)[:, 0], works, strict=True):
        settings, rows = grid(results)[work]
        for i, peer in enumerate(rows):
            cells_of = [results.get(f"{peer}, {work}, {setting}", {}) for setting in settings]
            at = [j + (i - len(rows) / 2 + 0.5) * 0.8 / len(rows) for j in range(len(settings))]
            heights = [cell.get("total", float("nan")) for cell in cells_of]
            axes.bar(at, heights, 0.8 / len(rows), label=peer)
            for x, cell in zip(at, cells_of, strict=True):
                if "died" in cell or "hangs" in cell:
                    axes.text(x, 0.02, "x", ha="center", transform=axes.get_xaxis_transform())
        axes.set(yscale="log", ylabel=f"{work}: s", xticks=range(len(settings)))
        axes.set_xticklabels(settings)
        axes.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(canvas, path)


def worse(
    recorded: Mapping[str, float], figures: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Figures whose ratio is more than 20 % above the recorded one: recorded, and measured."""
    return {
        name: (was, figures[name]["ratio"])
        for name, was in recorded.items()
        if name in figures and (figures[name]["ratio"] or float("inf")) > WORSE * was
    }


def ratios(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What `kofn bench check --record` writes: the ratios by benchmark and figure."""
    return {
        result["bench"]: {
            name: round(row["ratio"], 3)
            for name, row in result["figures"].items()
            if row["ratio"] is not None
        }
        for result in results
    }
