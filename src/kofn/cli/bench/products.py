"""kofn bench products: X w, X.T z and X B against NumPy on all cores, for several codes.

The kinds take turns. NumPy's threads go on burning their cores for a while after a call (OpenBLAS:
2^28 ticks of the processor's clock, a tenth of a second), so nothing is measured until they rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...cluster import connect
from .bare import Floats
from .frame import Figure
from .turns import Turns, rest

COLUMNS, WIDTH = 2000, 32  # of X; of B
CODES = ((2, 2), (6, 4), (20, 10), (2, 1))
EACH = 3  # calls of a kind before the next has its turn; the first does not count
SETTLE = 1.5  # seconds without work after which workers have begun to put shares in huge pages
LARGE = 16e6  # bytes of a share from which on they do


def run(rows: int, times: int) -> dict[str, Any]:
    """For each code: the medians of both, and how the ratio of their turns spreads."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((rows, COLUMNS))
    w, z = rng.standard_normal(COLUMNS), rng.standard_normal(rows)
    B = rng.standard_normal((COLUMNS, WIDTH))
    calls: dict[str, Callable[[Any], Any]] = {
        "X w": lambda X: X @ w,
        "X.T z": lambda X: X.T @ z,
        "X B": lambda X: X @ B,
    }
    figures: dict[str, Figure] = {}
    for n, k in CODES:
        with connect("local", workers=n) as cluster:
            X = cluster.encode(A, k=k)
            for call in calls.values():  # right, and windows laid by speed
                for _ in range(EACH):
                    assert np.allclose(call(X), call(A))
            if A.nbytes / k > LARGE:
                time.sleep(SETTLE + n / k * A.nbytes / 1e9)
            turns = _measure(calls, A, X, times)
        for name in calls:
            one = turns.figure(f"kofn {name}", name, "NumPy, all cores", "ms")
            figures[f"{name}, ({n}, {k})"] = one
    return {"figures": figures, "columns": COLUMNS, "width": WIDTH}


def _measure(calls: Mapping[str, Callable[[Any], Any]], A: Floats, X: Any, times: int) -> Turns:
    turns = Turns(name for call in calls for name in (call, f"kofn {call}"))
    for _ in range(times):
        for name, call in calls.items():
            for kind, matrix in ((name, A), (f"kofn {name}", X)):
                seconds = []
                for _ in range(1 + EACH):
                    began = time.perf_counter()
                    call(matrix)
                    seconds.append(time.perf_counter() - began)
                turns.turns[kind].append(seconds[1:])
                rest()
    return turns
