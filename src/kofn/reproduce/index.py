"""One page for all papers: each claim with what was obtained, the paper's value and its test."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ..files import save
from .inventory import COMMANDS, Entry, Line, claims, lines
from .page import STYLE

SOURCE = "https://github.com/kofn/kofn/blob/main/"
TABLE = """
table { border-collapse: collapse; width: 100%; font-size: .85rem } th { text-align: left }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .5rem; vertical-align: top }
td.number { text-align: right; white-space: nowrap }
th:nth-child(n+3):nth-child(-n+5) { text-align: right } td.reason { color: #444 }
td:last-child { overflow-wrap: anywhere; width: 17rem; font-size: .75rem }
body { max-width: 75rem }
"""

Outcome = Mapping[str, Any] | str | None  # results; why there are none; or not run yet


def write(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write index.html into `out`; the papers' own pages are in folders beside it."""
    extra = [name for name in outcomes if name not in COMMANDS]
    parts = [section(out, name, outcomes.get(name)) for name in COMMANDS]
    parts += [_pointer(name, outcomes[name]) for name in extra]
    quick = any(isinstance(one, Mapping) and one.get("quick") for one in outcomes.values())
    warning = '<p class="quick">Quick runs are among these; their numbers are rough.</p>'
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The papers, measured again</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}{TABLE}</style></head><body>
<h1>The papers, measured again</h1>
{warning if quick else ""}
<p>Every theorem, table and figure of five papers. <b>Obtained</b> is what this run measured;
<b>held against</b> is the paper's number, what a formula or another method gave in this run, or a
number from elsewhere, with its source; ≤ and ≥ mark bounds. Where there is no number there is a
reason. The last column names the test that asserts the claim at a small size, or says why the full
run alone measures it.</p>
{"".join(parts)}
</body></html>
"""
    save(out / "index.html", page.encode())


def section(out: Path, name: str, outcome: Outcome) -> str:
    """The table and the figures of one paper."""
    paper = claims(name)
    results = outcome if isinstance(outcome, Mapping) else None
    rows = "\n".join(_row(line) for line in lines(paper, results))
    note = ""
    if isinstance(outcome, str):
        note = f'<p class="quick">Not measured: {escape(outcome)}</p>'
    elif outcome is None:
        note = '<p class="quick">Not run yet.</p>'
    else:
        took = outcome.get("took_seconds")
        text = f" The run took {took / 60:.1f} minutes." if isinstance(took, int | float) else ""
        flag = " <b>Quick run.</b>" if outcome.get("quick") else ""
        # What has no page of its own (a table alone) has its results.
        own = "index.html" if (out / name / "index.html").exists() else "results.json"
        note = f'<p><a href="{name}/{own}">Its page and settings</a>.{text}{flag}</p>'
    return f"""<h2 id="{name}">{escape(paper.title)}</h2>
{note}
<p class="small"><code>kofn reproduce {name}</code>; more in
<a href="{SOURCE}{paper.docs}">{escape(paper.docs)}</a></p>
<table><tr><th>claim</th><th>what</th><th>obtained</th><th>held against</th><th>ratio</th>
<th>held by</th></tr>
{rows}
</table>
{_figures(out / name) if results is not None else ""}"""


def _row(line: Line) -> str:
    entry = line.entry
    head = f"<tr><td>{escape(entry.item)}</td><td>{escape(entry.says)}</td>"
    if line.obtained is None:
        middle = f'<td class="reason" colspan="3">{escape(line.reason)}</td>'
    else:
        ratio = "" if line.ratio is None else f"{line.ratio:.3g}"
        cells = (shown(line.obtained, entry.unit), held_against(entry, line.against), ratio)
        middle = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
    file, _, test = entry.test.partition("::")
    held = escape(f"the full run alone: {entry.full_run}" if entry.full_run else test)
    if test:
        held = f'<a href="{SOURCE}{file}">{held}</a>'
    return f"{head}{middle}<td>{held}</td></tr>"


def held_against(entry: Entry, number: float | None) -> str:
    """A number that a claim is held against: with ≤ or ≥, and where it comes from."""
    if number is None:
        return ""
    sign = {"below": "≤ ", "above": "≥ "}.get(entry.kind, "")
    source = f" ({entry.source})" if entry.source else ""
    return f"{sign}{shown(number, entry.unit)}{source}"


def shown(value: float | str, unit: str = "") -> str:
    """A number as the page has it: four digits, large and whole numbers whole."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, int) or 1e4 <= abs(value) < 1e9
    text = f"{value:,.0f}" if whole else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def _figures(folder: Path) -> str:
    """The pictures of a paper, in the page itself."""
    figures = []
    for path in sorted(folder.glob("*.png")):
        picture = b64encode(path.read_bytes()).decode()
        name = escape(path.stem.replace("_", " "))
        figures.append(
            f'<details><summary>{name}</summary><img alt="{name}" loading="lazy" '
            f'src="data:image/png;base64,{picture}"></details>'
        )
    return "\n".join(figures)


def _pointer(name: str, outcome: Outcome) -> str:
    """What is no paper, but is measured with them."""
    text = f"Not measured: {outcome}" if isinstance(outcome, str) else "Not run yet."
    if isinstance(outcome, Mapping):
        return f'<h2>{escape(name)}</h2><p><a href="{name}/index.html">Its page</a></p>'
    return f"<h2>{escape(name)}</h2><p>{escape(text)}</p>"
