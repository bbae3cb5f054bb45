"""Memory of shares that no worker reads any more, to be written again.

The system finds fresh memory page by page: to write 640 MB of it takes more than twice as long as
to write over them, and to free them takes as long again. So the master keeps a descriptor of large
shares' memory. The first byte of it is 1 as long as the worker has it; the worker makes it 0 when
it has let go (`_pages.free_when_gone`). To free it takes long, too (13 ms for 100 MB were
measured), so that is done a little at a time.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._pages import FREE
from .memory import OWN, Reserved, Segment, large, reserve

SHARE = 1 << 20  # bytes from which on memory is worth keeping
COUNT = 64  # descriptors that are kept
PART = 8  # all of it is at most so small a part of the machine's memory
LINGER = 5.0  # seconds after which memory that nobody wants is let go of, at the next look
STEP = 1 << 20  # bytes that are freed at a time
LEAVING = 0.02  # seconds that a worker is given to let go of what it was told to forget


@dataclass(eq=False)
class _Lent:
    """Memory at a worker: `size` bytes of it are written, `key` is what the share is called."""

    fd: int
    size: int
    worker: int
    key: str
    forgotten: float = float("inf")  # since when the worker is to let go of it
    seen: bool = False  # whether it was free at the last look

    @property
    def free(self) -> bool:
        return os.pread(self.fd, 1, 0) == FREE


class Handle(Segment):
    """A second descriptor of a segment, for the worker that will map it."""

    def __init__(self, segment: Segment) -> None:
        self.fd, self.id = os.dup(segment.fd), OWN

    def close(self) -> None:
        os.close(self.fd)


class Spares:
    """What is lent to workers, and what of it has come back; the oldest first."""

    def __init__(self) -> None:
        self.lent: list[_Lent] = []
        self.going: list[_Lent] = []  # is freed
        self._most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // PART
        self._look = 0.0

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Reserved | None:
        """Return memory for an array, written before if there is some; None without memory."""
        return reserve(shape, dtype, self.take)

    def lend(self, worker: int, key: str, segment: Segment) -> None:
        """Note that a worker is about to be sent this memory, if it can be written again."""
        if not isinstance(segment, Reserved) or not segment.alone:
            return
        size = large(segment.packed)
        if not SHARE <= size <= self._most:
            return
        with suppress(OSError):
            self.lent.append(_Lent(os.dup(segment.fd), size, worker, key))
            segment.map[0] = 1
        while len(self.lent) > COUNT or sum(lent.size for lent in self.lent) > self._most:
            self._drop(self.lent[:1])

    def forgotten(self, worker: int, key: str) -> None:
        """Note that a worker was told to let go of a share."""
        for lent in self.lent:
            if lent.worker == worker and lent.key == key:
                lent.forgotten = time.monotonic()

    def lost(self, worker: int) -> None:
        """Take back what a worker had that is gone: one that joins is likely to want as much."""
        for lent in self.lent:
            if lent.worker == worker:
                os.pwrite(lent.fd, FREE, 0)

    def take(self, size: int) -> int | None:
        """Return a descriptor of free memory that fits and is written already, to be owned.

        Where none fits, what is free makes room for fresh memory.
        """
        if not self.lent:
            return None
        fits = [lent for lent in self.lent if size <= lent.size <= 2 * size]
        due = max((lent.forgotten for lent in fits if lent.forgotten < float("inf")), default=0.0)
        while True:
            for lent in fits:
                if lent.free:
                    self.lent.remove(lent)
                    return lent.fd
            if time.monotonic() >= due + LEAVING:
                self._drop([lent for lent in self.lent if lent.free])
                return None
            os.sched_yield()  # to the workers, which may have this core

    def trim(self) -> None:
        """Free some of what nobody has wanted for a while. To be called often: it rarely looks."""
        if self.going:
            self._free_some(self.going[-1])
        if not self.lent or (now := time.monotonic()) < self._look:
            return
        self._look = now + LINGER
        self.going += [lent for lent in self.lent if lent.seen]
        self.lent = [lent for lent in self.lent if not lent.seen]
        for lent in self.lent:
            lent.seen = lent.free

    def close(self) -> None:
        self._drop(list(self.lent))
        while self.going:
            os.close(self.going.pop().fd)

    def _drop(self, some: list[_Lent]) -> None:
        for lent in some:
            self.lent.remove(lent)
            os.close(lent.fd)

    def _free_some(self, lent: _Lent) -> None:
        lent.size -= STEP
        if lent.size > 0:
            os.ftruncate(lent.fd, lent.size)
        else:
            os.close(self.going.pop().fd)
