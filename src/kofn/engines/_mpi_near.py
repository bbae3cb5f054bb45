"""What makes MPI better on one machine: shared memory for large values, bells for who waits.

MPI would copy a large value for each worker, and lets nobody sleep until a message comes. Here a
value is written once, to memory without a name that the workers map, and a pipe wakes who waits.
Workers get at both by the descriptors that rank 0 holds, which they find under /proc. Where they
cannot (another machine, another container), bytes are sent like any message, and waiting is
looking again and again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
from typing import Any

from . import _wire as wire
from .memory import LARGE, Segment, attach, large, pack, unpack

Place = tuple[int, int, int]  # process, descriptor, inode

_NUMBER = struct.Struct("i")
_MANY = 4096  # rings that may lie in a pipe


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


class Bell:
    """One end of a pipe that wakes who rests at its other end, and tells who rang."""

    __slots__ = ("_leaving", "_number", "fd")

    def __init__(self, fd: int, number: int = 0) -> None:
        self.fd = fd
        self._number, self._leaving = _NUMBER.pack(number), _NUMBER.pack(~number)
        os.set_blocking(fd, False)

    def ring(self, leaving: bool = False) -> None:
        """Wake the other end; it may be awake, or gone. It gets our number, turned if we leave."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.fd, self._leaving if leaving else self._number)

    def rest(self, seconds: float, *others: Any) -> set[int]:
        """Rest until somebody rings, or one of the others can be read; return who rang."""
        if self.fd not in select.select([self.fd, *others], [], [], seconds)[0]:
            return set()
        return set(memoryview(os.read(self.fd, 4096)).cast("i"))

    def close(self) -> None:
        """Close this end."""
        os.close(self.fd)


class Tower:
    """The bell for everybody: one write wakes all who rest at it.

    To ring six bells takes six system calls, and after each of them the one who was woken may take
    the core from the one who rings. Here both ends are the ringer's own. Who rests is told of each
    write (an edge) and never reads; what lies in the pipe is taken out by the ringer.
    """

    def __init__(self) -> None:
        self.fd, self._rings = os.pipe()
        for end in (self.fd, self._rings):
            os.set_blocking(end, False)
        self._written = 0

    def ring(self) -> None:
        """Wake everybody."""
        if self._written == _MANY:
            os.read(self.fd, _MANY)
            self._written = 0
        os.write(self._rings, b"!")
        self._written += 1

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self._rings)


class Ear:
    """Where a worker rests: at its own bell and at the bell for everybody."""

    def __init__(self, own: int, all: int) -> None:
        self._own = own
        self._poll = select.epoll()
        self._poll.register(own, select.EPOLLIN)
        self._poll.register(all, select.EPOLLIN | select.EPOLLET)

    def rest(self, seconds: float) -> bool:
        """Rest until one of the bells rings; say if one did."""
        found = self._poll.poll(seconds)
        for fd, _ in found:
            if fd == self._own:
                os.read(fd, 4096)
        return bool(found)


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
        self._packed, self.segment = pack(value, _take if share else _no)
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
            self._far = wire.frame(*self._title, pack(value, _no)[0], None)
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


def _no(size: int) -> None:
    return None
