"""A few threads of the master's own, for what NumPy and the system do without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MOST = 8  # threads: memory is as fast as it gets with fewer


def each(work: Callable[..., Any], *items: Iterable[Any]) -> None:
    """Call `work` for every item, in several threads; raises what the first of them raised."""
    calls = list(zip(*items, strict=False))
    if min(cores(), len(calls)) <= 1:  # the start of a thread takes longer than many a call
        for call in calls:
            work(*call)
        return
    # They end with the work: a process has no threads of kofn's between two calls, and may fork.
    with ThreadPoolExecutor(min(cores(), len(calls)), "kofn") as pool:
        for _ in pool.map(work, *zip(*calls, strict=True)):
            pass


@cache
def cores() -> int:
    """How many cores this process may use, MOST at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST, usable or 1)
