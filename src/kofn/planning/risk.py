"""How likely it is that too few workers are live."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..delays import SpotTrace
from ..simulation import Candidate


def need(n: int, candidate: Candidate) -> int:
    """The threshold: the fewest of n workers that are enough, whichever they are."""
    given: dict[str, Any] = dict(candidate.parameters)
    covered = _covered(candidate)
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


def shortages(trace: SpotTrace, n: int, candidate: Candidate) -> list[tuple[float, float]]:
    """The times (begin, end) in which the machines of a trace cannot do the work, in order.

    They cannot when they are fewer than the threshold or, under a repetition code, when all holders
    of too many parts are gone. A machine that comes takes the free slot whose parts have the fewest
    holders.
    """
    held = _held(n, candidate)
    fewest = need(n, candidate) if held is None else 0
    lacking = 0 if held is None else n - math.ceil(_covered(candidate) * n - 1e-9)
    holders, free, slots = [0] * n, list(range(n)), dict[str, int]()
    missing, live, below = n, 0, list[tuple[float, float]]()
    since: float | None = None
    events = trace.events
    for event, following in zip(
        events, [*(e.time for e in events[1:]), trace.seconds], strict=True
    ):
        live += 1 if event.added else -1
        if held is not None:
            if event.added and free:
                rare = 0 if event.time <= 0 else 1  # at the start each has its own
                slot = min(free, key=lambda one: (rare * min(holders[i] for i in held[one]), one))
                free.remove(slot)
                slots[event.node] = slot
            elif event.added or event.node not in slots:
                continue
            else:
                free.append(slot := slots.pop(event.node))
            for part in held[slot]:
                missing -= event.added and holders[part] == 0
                holders[part] += 1 if event.added else -1
                missing += holders[part] == 0
        if max(0.0, event.time) >= following:
            continue  # more happens at the same time
        short = live < fewest if held is None else missing > lacking
        if short and since is None:
            since = max(0.0, event.time)
        elif not short and since is not None:
            below.append((since, event.time))
            since = None
    return below if since is None else [*below, (since, trace.seconds)]


def _covered(candidate: Candidate) -> float:
    return float(dict(candidate.parameters).get("covered", 1.0))


def _held(n: int, candidate: Candidate) -> list[list[int]] | None:
    """The blocks of parts that each slot holds, if it is the coverage of these that counts."""
    c = int(dict(candidate.parameters).get("c", 1))
    if candidate.code == "fractional":
        return [[slot // c * c + i for i in range(c)] for slot in range(n)]
    if candidate.code == "cyclic":
        return [[(slot + i) % n for i in range(c)] for slot in range(n)]
    return None


def risk(below: list[tuple[float, float]], length: float, seconds: float) -> float:
    """The chance that a run of so many seconds, begun at any time, meets a shortage.

    Of all moments of a trace at which it could begin, the part from which it does.
    """
    latest = length - seconds  # to begin at
    if latest <= 0:
        return 1.0 if below else 0.0
    met, reached = 0.0, 0.0
    for first, last in below:
        begin, end = max(reached, first - seconds), min(last, latest)
        if end > begin:
            met, reached = met + end - begin, end
    return met / latest
