"""Where ignoring stragglers ends at a wrong point, and a code does not.

Amazon's rows are sorted by label. One row in seventeen is of the rare class, and all of those lie
on the first two of thirty machines. Six machines, the first one among them, are ten times slower
than the rest, or lost. A sum that is closed without them leaves out half of the rare class. Under a
code with two copies another machine has those rows. Time is simulated, values are real. The same is
done with the rows mixed, where ignoring does little harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import FractionalRepetition, TooFewWorkers, Uncoded, exact, first
from ..delays import Exponential, Scaled
from ..engines.virtual import VirtualEngine
from .datasets import Dataset
from .timing import OnStep
from .training import Method, simulate

MEAN = 2.0  # seconds of delay
SLOWER = 10.0
WAITS = (11 / 30, 2 / 3, 4 / 5)  # of the machines: replies that are waited for
# Of thirty, no two of a pair that holds the same parts.
SLOW = (0, 2, 13, 18, 22, 28)


def known(waits: Sequence[int]) -> dict[str, Method]:
    """Waiting for all, ignoring, and both kinds of code, at the same numbers of replies."""
    none, code = Uncoded("whole"), FractionalRepetition(2, "whole")
    return {
        "uncoded": Method(none, exact()),
        "egc2": Method(code, exact()),
        **{f"ignore_{wait}": Method(none, first(wait)) for wait in waits},
        **{f"agc2_{wait}": Method(code, first(wait) | exact()) for wait in waits},
    }


CASES = ("mixed_slow", "sorted_slow", "sorted_lost")
STEPS = len(CASES) * (2 + 2 * len(WAITS))


def table(data: Dataset, workers: int, iterations: int, on_step: OnStep) -> dict[str, Any]:
    """By case and method: the final metric, seconds an iteration, the part of the sum covered."""
    order = np.argsort(data.y, kind="stable")
    in_order = replace(data, X=data.X[order], y=data.y[order])
    waits = [round(fraction * workers) for fraction in WAITS]
    slow = tuple(worker for worker in SLOW if worker < workers)
    results: dict[str, Any] = {
        "data": data.name,
        "workers": workers,
        "iterations": iterations,
        "waits": waits,
        "slow_or_lost": list(slow),
        "means": "mixed, sorted: the order of the rows; slow: those machines are "
        f"{SLOWER:g} times slower in every round; lost: they are lost before the first. "
        "ignore_r, agc2_r: sums are closed at r replies. null: it cannot go on",
    }
    for case in CASES:
        rows = data if case.startswith("mixed") else in_order
        results[case] = {}
        for name, method in known(waits).items():
            engine = VirtualEngine(workers, delays=Scaled(Exponential(0.0, MEAN), SLOWER, slow))
            try:
                lost = slow if case.endswith("lost") else ()
                run = simulate(rows, method, iterations, engine, lost=lost)
                results[case][name] = run.summary(rows)
            except TooFewWorkers:
                results[case][name] = None
            on_step(f"unequal parts, {case}: {name}")
    return results
