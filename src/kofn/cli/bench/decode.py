"""kofn bench decode: what decoding costs the master, of products and of rateless sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from threadpoolctl import threadpool_limits

from ...codes import MDSCode
from ...reproduce import decoding
from ..output import print_table, print_text
from .frame import Figure
from .turns import interleaved, timed

PAPER = {"lt1": 55.0, "lt2": 29.0}  # ms, on another machine
NAMES = {"lt1": "LT-1 1000", "lt2": "LT-2 1000", "lt1_10000": "LT-1 10,000"}
CODES = ((6, 4), (20, 10))
WIDTH = 32  # columns of a wide product


def run(times: int, rows: int) -> dict[str, Any]:
    """Measure with one BLAS thread."""
    figures: dict[str, Figure] = {}
    with threadpool_limits(1):
        for n, k in CODES:
            figures[f"({n}, {k}), {rows} x {WIDTH}, all coded"] = _product(n, k, rows, times)
        cases = decoding.bench(times)
        precoded = decoding.precodes(times, max(times, 3))
    for case, kinds in cases.items():
        for kind, one in kinds.items():
            paper = PAPER.get(case) if kind == "peeling" else None
            of = "the paper, another machine" if paper else ""
            figures[f"{NAMES[case]}, {kind}"] = Figure(one["median"], "ms", paper, of)
    return {"figures": figures, **decoding.decode_ms(cases), "decode": cases, "precoded": precoded}


def _product(n: int, k: int, rows: int, times: int) -> Figure:
    """The last k shares, so that as few as possible are uncoded; beside it the one gemm."""
    rng = np.random.default_rng(0)
    code = MDSCode(n, k)
    blocks = rng.standard_normal((k, rows // k * WIDTH))
    replies = {i: code.generator[i] @ blocks for i in range(n - k, n)}
    inverse = np.linalg.inv(code.generator[n - k :])
    stacked, out = np.stack(list(replies.values())), np.empty_like(blocks)
    turns = interleaved(
        {
            "kofn": timed(code.decode, replies),
            "gemm": timed(lambda: np.matmul(inverse, stacked, out=out)),
        },
        times,
    )
    assert np.allclose(code.decode(replies), blocks)
    return turns.figure("kofn", "gemm", "one gemm of the same shares, in place", "ms")


def table(console: Console, result: dict[str, Any]) -> None:
    """Print where the time of a rateless decode goes."""
    columns = {"code": "", "decoder": "", "symbols": ".0f"}
    columns |= dict.fromkeys((*decoding.STEPS, "CPU"), ".1f")
    rows = [
        (
            NAMES[case],
            f"{kind}*" if one["default"] else kind,
            one["symbols"],
            *(one["steps"][step] for step in decoding.STEPS),
            one["cpu_median"],
        )
        for case, kinds in result["decode"].items()
        for kind, one in kinds.items()
    ]
    title = "rateless sums: ms of each step by the wall clock"
    print_table(console, title, columns, rows, box=SIMPLE, padding=(0, 1, 0, 0))
    columns = {"code": "", "symbols": ".0f", "99 %": "d", "terms each": ".1f"}
    columns |= {"wall": ".2f", "CPU": ".2f"}
    keys = ("code", "symbols_median", "symbols_99", "terms_a_symbol", "wall_ms", "cpu_ms")
    rows = [tuple(row[key] for key in keys) for row in result["precoded"]["rows"]]
    title = f"with and without a precode, m = {result['precoded']['m']}"
    print_table(console, title, columns, rows)
    print_text(console, "CPU: the master's own time. *: what LT does by default.")
