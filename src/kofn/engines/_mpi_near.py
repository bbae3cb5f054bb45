"""What makes MPI better on one machine: shared memory for large values, bells for who waits.

MPI would copy a large value for each worker, and lets nobody sleep until a message comes. Here a
value is written once, to memory without a name that the workers map, and bells (_bells.py) wake
who waits.
Workers get at both by the descriptors that rank 0 holds, which they find under /proc. Where they
cannot (another machine, another container), bytes are sent like any message, and waiting is
looking again and again.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from . import _wire as wire
from .memory import LARGE, Segment, attach, large, no_segment, pack, unpack

Place = tuple[int, int, int]  # process, descriptor, inode


def place(fd: int) -> Place:
    """Say where another process of this machine finds what this descriptor stands for."""
    return os.getpid(), fd, os.fstat(fd).st_ino


def opened(at: Place, flags: int) -> int:
    """Return a descriptor of what lies there; OSError where it cannot be had."""
    process, descriptor, inode = at
    fd = os.open(f"/proc/{process}/fd/{descriptor}", flags)
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        raise FileNotFoundError("it is something else by now")
    return fd


def mapped(at: Place, write: bool = False) -> mmap.mmap:
    """Map what lies there; OSError where it cannot be had."""
    return attach(opened(at, os.O_RDWR if write else os.O_RDONLY), write)


class Handle:
    """A second descriptor of what is shared, held until a worker has mapped it."""

    __slots__ = ("_fd", "at")

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self.at = place(self._fd)

    def close(self) -> None:
        """Let it go."""
        os.close(self._fd)


def fetch(packed: Any, at: Place | None) -> Any:
    """Return a value that was sent, or that lies there."""
    return unpack(packed, None if at is None else mapped(at))


class Parcel:
    """A value packed once: a frame for those near, another for those far, if there are any.

    `pending` counts those who may still need it; close it then. `large` are the bytes that lie in
    shared memory.
    """

    __slots__ = ("_far", "_near", "_packed", "_title", "large", "pending", "segment")

    def __init__(self, kind: int, name: Any, value: Any, share: bool) -> None:
        self.pending = 0
        self.segment: Segment | None = None
        self._title = (kind, name)
        self._packed, self.segment = pack(value, _take if share else no_segment)
        at = None if self.segment is None else place(self.segment.fd)
        self.large = large(self._packed)
        self._near = wire.frame(kind, name, self._packed, at)
        self._far = self._near if self.segment is None else b""

    def frame(self, near: bool) -> bytes:
        """Return what to send; always the same object."""
        if near:
            return self._near
        if not self._far:
            assert self.segment is not None
            value = unpack(self._packed, self.segment.map, copy=True)
            self._far = wire.frame(*self._title, pack(value, no_segment)[0], None)
        return self._far

    def close(self) -> None:
        """Let the memory go; it stays where it is mapped."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None


def _take(size: int) -> Segment | None:
    try:
        return Segment(size) if size >= 2 * LARGE else None
    except OSError:  # out of descriptors or of memory: messages still work
        return None
