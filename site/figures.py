"""Fill in the figures of pages from benchmarks/recorded.json: one current figure for a quantity.

    python site/figures.py            writes the pages anew
    python site/figures.py --check    fails if a page has another figure than is recorded

A page marks what is filled in. What stands between the marks is replaced:

    <!-- bench overhead -->                         a table of all figures of a benchmark
    <!-- /bench -->
    <!-- bench peers products: quiet, one killed --> a work of the peers, in these settings
    <!-- /bench -->
    <!-- figure overhead: NAME -->0.3 ms<!-- /figure -->             one value in a sentence
    <!-- ratio overhead: NAME -->1.1<!-- /ratio -->                  one ratio

`kofn bench NAME --out HISTORY`, then `kofn bench record HISTORY benchmarks/recorded.json`, records
new figures.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kofn.cli.bench.frame import COLUMNS, cells, number
from kofn.cli.bench.systems.grid import grid

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "benchmarks" / "recorded.json"
TABLE = re.compile(r"<!-- bench (?P<name>.+?) -->\n.*?<!-- /bench -->", re.DOTALL)
ONE = re.compile(r"<!-- (?P<kind>figure|ratio) (?P<name>.+?) -->[^<]*<!-- /(?P=kind) -->")


def pages() -> list[Path]:
    """The pages that may show figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, results: Mapping[str, Any]) -> str:
    """A page with the figures that are recorded."""
    text = TABLE.sub(
        lambda m: f"{_opening(m[0])}\n{table(m['name'], results)}\n<!-- /bench -->", text
    )

    def one(match: re.Match[str]) -> str:
        value = figure(match["kind"], match["name"], results)
        return f"{_opening(match[0])}{value}<!-- /{match['kind']} -->"

    return ONE.sub(one, text)


def table(name: str, results: Mapping[str, Any]) -> str:
    """The table that a mark asks for, with the machine and the day below it."""
    bench, _, wanted = name.partition(" ")
    result = results[bench]
    if wanted:
        work, _, chosen = wanted.partition(": ")
        settings, peers = grid(result["cells"])[work]
        shown = [s.strip() for s in chosen.split(",")] if chosen else settings
        rows = [
            (f"**{peer}**" if peer == "kofn" else peer, *(texts[settings.index(s)] for s in shown))
            for peer, texts in peers.items()
        ]
        head = (f"{work}: seconds in all (slowest round)", *shown)
    else:
        rows = [(key, *cells(row)) for key, row in result["figures"].items()]
        head = ("", *COLUMNS)
    lines = [head, ["---"] * len(head), *rows]
    at, day = result["machine"], result["when"][:10]
    note = f"*{at['processor']}, {at['cores']} cores, one run, {day}.*"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}\n"


def figure(kind: str, name: str, results: Mapping[str, Any]) -> str:
    """One figure as text, with its unit; or its ratio to its limit."""
    bench, _, key = name.partition(": ")
    row = results[bench]["figures"][key]
    return number(row["value"], row["unit"]) if kind == "figure" else f"{row['ratio']:.2f}"


def _opening(mark: str) -> str:
    return mark[: mark.index("-->") + 3]


def main() -> int:
    """Fill in all pages, or tell which of them are not as recorded."""
    results = json.loads(RECORDED.read_text())["results"]
    check, stale = "--check" in sys.argv, []
    for path in pages():
        before = path.read_text()
        after = filled(before, results)
        if before != after:
            stale.append(path)
            if not check:
                path.write_text(after)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not as recorded' if check else 'written anew'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
