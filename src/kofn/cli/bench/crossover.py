"""kofn bench crossover: from how many rows on our estimators take no longer than scikit-learn's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from ...cluster import connect
from ..output import print_text
from .frame import Figure
from .learn import PAIRS, compare, make_data

STEP, SMALLEST = 4, 300  # rows from size to size, and of the first one at least


def run(rows: int, columns: int, workers: int, times: int) -> dict[str, Any]:
    """Fit each pair at sizes up to so many rows, each STEP times the last."""
    sizes = [rows]
    while sizes[0] // STEP >= SMALLEST:
        sizes.insert(0, sizes[0] // STEP)
    figures: dict[str, Figure] = {}
    ratios: dict[str, list[float]] = {name: [] for name in PAIRS}
    with connect("local", workers=workers) as cluster:
        for size in sizes:
            X, y = make_data(size, columns)
            for name in PAIRS:
                target = y if name == "Ridge" else (y > 0).astype(np.intp)
                figure, _ = compare(name, cluster, X, target, times)
                figures[f"{name}, {size:,} rows"] = figure
                ratios[name].append(figure.ratio or np.nan)
    at = {name: equal_at(sizes, values) for name, values in ratios.items()}
    return {"figures": figures, "rows": sizes, "ratios": ratios, "equal_at": at}


def equal_at(sizes: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Rows from which on the ratio stays below 1, by interpolation of logarithms; None: never."""
    above = [i for i, ratio in enumerate(ratios) if ratio > 1.0]
    if not above:
        return float(sizes[0])
    i = above[-1]
    if i + 1 == len(sizes):
        return None
    high, low = np.log(ratios[i]), np.log(ratios[i + 1])
    part = high / (high - low)
    return float(np.exp(np.log(sizes[i]) + part * (np.log(sizes[i + 1]) - np.log(sizes[i]))))


def table(console: Console, result: dict[str, Any]) -> None:
    """Print where the two are equal."""
    for name, at in result["equal_at"].items():
        never = f"scikit-learn is faster up to {result['rows'][-1]:,} rows"
        known = f"equal at about {at or 0:,.0f} rows"
        if at == result["rows"][0]:
            known = f"kofn is as fast at all sizes, from {at:,.0f} rows on"
        print_text(console, f"{name}: {never if at is None else known}.")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        busy = f"The load of this machine is {load:.1f} on {cores} cores"
        print_text(console, f"{busy}: measure again when nothing else runs.")
