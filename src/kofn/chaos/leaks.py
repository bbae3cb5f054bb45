"""What a run may leave behind: processes, descriptors, threads, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from ..engines._processes import Process, family, memory

SPARE = 48  # descriptors that pools may keep for reuse while a cluster is open
GROWTH = 64 << 20  # bytes: what allocators and pools may keep
RECORD = 250  # bytes of a record in a cluster's log, at most
OF_MPI = 1 << 17  # bytes that MPI keeps of each process that it has started, at most
_PATIENCE = 60.0  # seconds for what was ended to be gone


@dataclass(frozen=True)
class Footprint:
    """What this process holds."""

    descriptors: int
    threads: int
    memory: int  # bytes

    @classmethod
    def now(cls) -> Footprint:
        """Collect garbage, then look. Zeros where the system does not show such numbers."""
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        descriptors = 0
        with suppress(OSError):
            descriptors = len(os.listdir("/proc/self/fd"))
        return cls(descriptors, threading.active_count(), memory().get("VmRSS", 0))


def grown(before: Footprint, now: Footprint, records: int, started: int = 0) -> str:
    """Say what has grown while the cluster was open; or "".

    Beyond what pools may keep, its log, and MPI of processes that it has `started`.
    """
    if now.descriptors > before.descriptors + SPARE:
        return f"{now.descriptors} descriptors, after {before.descriptors}"
    allowed = GROWTH + records * RECORD + started * OF_MPI
    if now.memory > before.memory + allowed:
        sizes = [f"{size / 2**20:.0f} MB" for size in (now.memory, before.memory, allowed)]
        return f"{sizes[0]} of memory, after {sizes[1]}; {sizes[2]} more are allowed"
    return ""


def left(seen: Collection[Process], before: Footprint, spare: int) -> str:
    """Say what is left when the cluster is closed: workers, children, descriptors; or ""."""
    end = time.monotonic() + _PATIENCE
    while True:
        running = [p.pid for p in {*seen, *family([Process.of(os.getpid())])} if p.running()]
        running = [pid for pid in running if pid != os.getpid()]
        now = Footprint.now()
        problem = ""
        if running:
            problem = f"processes {sorted(running)} are left"
        elif now.descriptors > before.descriptors + spare:
            problem = f"{now.descriptors} descriptors are open, after {before.descriptors} before"
        elif now.threads > before.threads + spare:
            names = sorted(thread.name for thread in threading.enumerate())
            problem = f"threads are left: {names}"
        if not problem or time.monotonic() > end:
            return problem
        time.sleep(0.05)  # it is asked for again, up to the limit
