"""kofn reproduce all: each paper into a folder of its own, then one page; what is there stays.

A paper that has its results.json in the folder, of the same kind (quick or not), is not run again:
a run that was ended goes on with the next paper. What a paper lacks (data, torch) is told on the
page, and the others run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import KofnError
from ..reproduce import index
from ..reproduce.inventory import COMMANDS, claims, lines
from . import places, reproduce
from .output import print_table


def run(out: Path, data: Path, quick: bool, *, quiet: bool) -> dict[str, Any]:
    """Run what is missing; return by paper what was obtained, in short."""
    places.data(data, "all")
    places.directory(out)
    names = [*COMMANDS, *(name for name in reproduce.PAPERS if name not in COMMANDS)]
    outcomes: dict[str, index.Outcome] = {name: kept(out / name, quick) for name in names}
    for name in names:
        if outcomes[name] is None:
            outcomes[name] = _measure(name, out / name, data, quick, quiet)
        index.write(out, outcomes)
    return {"papers": {name: _summary(name, outcomes[name]) for name in COMMANDS}, "out": str(out)}


def kept(folder: Path, quick: bool) -> dict[str, Any] | None:
    """The results of an earlier run of the same kind, if they are there and whole."""
    try:
        results = json.loads((folder / "results.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(results, dict) and (results.get("quick") is not None) == quick
    return results if same else None


def _measure(name: str, folder: Path, data: Path, quick: bool, quiet: bool) -> index.Outcome:
    paper = reproduce.PAPERS[name][0]
    settings = getattr(paper, "QUICK", paper.FULL) if quick else paper.FULL
    try:
        return reproduce.run(name, folder, data, quick, quiet=quiet, settings=settings)
    except KofnError as error:
        return str(error)


def _summary(name: str, outcome: index.Outcome) -> dict[str, Any]:
    paper = claims(name)
    if not isinstance(outcome, Mapping):
        return {"claims": len(paper.entries), "problem": outcome}
    every = lines(paper, outcome)
    return {
        "claims": len(every),
        "with_a_value": sum(line.obtained is not None for line in every),
        "took_seconds": outcome.get("took_seconds"),
        "lines": [
            {
                "item": line.entry.item,
                "obtained": line.obtained,
                "against": line.against,
                "ratio": line.ratio,
                "reason": line.reason if line.obtained is None else "",
            }
            for line in every
        ],
    }


def table(console: Console, result: dict[str, Any]) -> None:
    """Print how many claims have a value, and where the page is."""
    rows = [
        (name, str(one["claims"]), str(one.get("with_a_value", 0)), one.get("problem") or "")
        for name, one in result["papers"].items()
    ]
    columns = {"paper": "", "claims": ">", "with a value": ">", "problem": ""}
    print_table(console, "the papers, measured again", columns, rows)
    console.print(f"The page: {result['out']}/index.html", soft_wrap=True, highlight=False)
