"""kofn chaos: a live line of what is struck, and a table of it at the end."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from ..chaos.run import Settings
from ..chaos.run import run as play
from ..chaos.strikes import KINDS
from ..checks import one_of
from .output import print_pairs, print_table, print_text, progress
from .show import NOT_SHOWN, Shown

_SHOWN = 0.1  # seconds between two lines


def run(settings: Settings, *, quiet: bool, shown: Shown = NOT_SHOWN) -> dict[str, Any]:
    """Run it, and show the counts meanwhile."""
    for kind in settings.only:
        one_of(kind, "only", KINDS)
    total, last = int(60 * settings.minutes), 0.0
    with progress("chaos", total, quiet, "counts") as update:

        def show(left: float, counts: dict[str, int]) -> None:
            nonlocal last
            if time.monotonic() >= last + _SHOWN:
                last = time.monotonic()
                text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
                update(completed=int(total - left), counts=text)

        return play(settings, show, shown.log, shown.open)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the result for a person."""
    names = ["kills", "freezes", "interrupts", "joins", "notices", "killed for memory"]
    names += ["out of memory", "raised", "checked"]
    pairs = {name: f"{result[name]}" for name in names}
    pairs["processes that were workers"] = f"{result['processes']}"
    pairs["largest error, of what is promised"] = f"{result['worst']:.2f}"
    refused = ", ".join(f"{name} {count}" for name, count in result["refused"].items())
    pairs["errors that were true"] = refused or "none"
    print_pairs(console, pairs)
    rows = [
        (name, count, result["interrupted"].get(name, 0))
        for name, count in result["operations"].items()
    ]
    print_table(console, "", {"operation": "", "times": "d", "interrupted": "d"}, rows)
    columns = {"held by the master": "", "descriptors": "d", "threads": "d", "memory, MB": ".0f"}
    prints = result["footprints"].items()
    held = [(when, f["descriptors"], f["threads"], f["memory"] / 2**20) for when, f in prints]
    print_table(console, "", columns, held)
    text = "Every result was right, nothing hung, nothing is left. {command}"
    print_text(console, text, result)
