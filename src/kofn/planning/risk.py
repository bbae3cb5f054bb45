"""How likely it is that too few workers are live."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..delays import SpotTrace
from ..simulation import Candidate, Work


def need(work: Work, n: int, candidate: Candidate) -> int:
    """The threshold: the fewest of n workers that are enough, whichever they are."""
    given: dict[str, Any] = dict(candidate.parameters)
    covered = float(given.get("covered", 1.0))
    fewest: dict[str, Callable[[], int]] = {
        "mds": lambda: given["k"],
        "fractional": lambda: math.ceil(covered * n) - given["c"] + 1,
        "cyclic": lambda: math.ceil(covered * n) - given["c"] + 1,
        "backup": lambda: n - 1,
        "hedged": lambda: n - 1,
        "dsag": lambda: given["fresh"],
        "gc": lambda: n - given["s"],
        "sr_sgc": lambda: n - given["lam"],
        "m_sgc": lambda: n - given["lam"],
        "polynomial": lambda: given["x"] * given["y"],
        "dip": lambda: 1,  # the others are given more
        "idip": lambda: 1,
        "lt": lambda: 1,
        "groups": lambda: 1,
    }
    return max(1, fewest.get(candidate.code, lambda: math.ceil(covered * n))())


def risk(trace: SpotTrace, fewest: int, seconds: float) -> float:
    """The chance that a run of so many seconds, begun at any time, has fewer than so many workers.

    Of all moments of the trace at which it could begin, the part from which it meets such a time.
    """
    latest = trace.seconds - seconds  # to begin at
    below: list[tuple[float, float]] = []
    counts = trace.counts()
    for (time, live), end in zip(counts, [*(t for t, _ in counts[1:]), trace.seconds], strict=True):
        if live < fewest and end > time:
            below.append((time, end))
    if latest <= 0:
        return 1.0 if below else 0.0
    met, reached = 0.0, 0.0
    for first, last in below:
        begin, end = max(reached, first - seconds), min(last, latest)
        if end > begin:
            met, reached = met + end - begin, end
    return met / latest
