"""kofn bench decode: what decoding a rateless sum costs the master."""

from __future__ import annotations

import os
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from threadpoolctl import threadpool_limits

from ..reproduce import decoding
from .output import print_table, print_text

PAPER = {"lt1": "55", "lt2": "29", "lt1_10000": ""}
NAMES = {"lt1": "LT-1 1000", "lt2": "LT-2 1000", "lt1_10000": "LT-1 10,000"}


def run(times: int) -> dict[str, Any]:
    """Measure; one BLAS thread."""
    with threadpool_limits(1):
        cases = decoding.bench(times)
    return {
        "unit": "ms",
        "median, best, steps": "by the wall clock",
        "cpu_median, cpu_best": "CPU time of the master",
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        **decoding.decode_ms(cases),
        "decode": cases,
    }


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    title = f"ms to decode from scratch, medians; load average {result['load_average']:.1f}"
    columns = {"code": "", "decoder": "", "symbols": ".0f", "steps": ">"}
    columns |= {"wall": ".2f", "CPU": ".2f", "paper": ">"}
    rows = [
        (
            NAMES[case],
            f"{kind}*" if times["default"] else kind,
            times["symbols"],
            "/".join(f"{times['steps'][step]:.1f}" for step in decoding.STEPS),
            times["median"],
            times["cpu_median"],
            PAPER[case] if kind == "peeling" else "",
        )
        for case, kinds in result["decode"].items()
        for kind, times in kinds.items()
    ]
    print_table(console, title, columns, rows, box=SIMPLE, padding=(0, 1, 0, 0))
    text = """Steps: {}, by the wall clock. CPU: the master's own time, whoever else is on the
        machine. *: what LT does by default; peeling is on uniform neighbours, as published."""
    print_text(console, text.format(", ".join(decoding.STEPS)))
