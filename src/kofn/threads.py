"""A few threads of the master's own, for what NumPy and the system do without Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MOST = 8  # threads: memory is as fast as it gets with fewer


def each(work: Callable[..., Any], *items: Iterable[Any]) -> None:
    """Call `work` for every item, in several threads; raises what the first of them raised.

    Where no thread can be had, this one does it all, and anew what others had begun: it must come
    to the same.
    """
    calls = list(zip(*items, strict=False))
    threads = min(cores(), len(calls))
    if threads > 1:  # to start one takes longer than many a call
        # They end with the work: between two calls a process has none of kofn's, and may fork.
        with ThreadPoolExecutor(threads, "kofn") as pool:
            try:
                results = pool.map(work, *zip(*calls, strict=True))
            except RuntimeError:  # a limit of processes, or of memory
                results = None
            if results is not None:
                deque(results, maxlen=0)
                return
    for call in calls:
        work(*call)


@cache
def cores() -> int:
    """How many cores this process may use, MOST at most."""
    return min(MOST, usable())


def usable() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
