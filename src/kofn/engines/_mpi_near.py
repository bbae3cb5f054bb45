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
import select
import signal
from contextlib import suppress
from typing import Any

from . import _wire as wire
from ._mpi_pieces import Bytes
from .memory import LARGE, Segment, attach, large, pack, unpack

Place = tuple[int, int, int]  # process, descriptor, inode
Mark = tuple[int, int, int, str]  # a place, and what is written there


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


class Sample(Segment):
    """A little memory, by which another process finds out whether it is on our machine.

    Two machines may have equal names, equal process numbers and equal inodes; nobody else has these
    random bytes. The first word is free for use.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__(32)
        written = os.urandom(16)
        self.map[16:32] = written
        self.mark: Mark = (*place(self.fd), written.hex())


def recognised(mark: Mark, write: bool = False) -> mmap.mmap:
    """Map the sample of a process of this machine; OSError where it is of another one."""
    *at, written = mark
    found = mapped((at[0], at[1], at[2]), write)
    if found[16:32].hex() != written:
        found.close()
        raise FileNotFoundError("it is another machine's")
    return found


class Process:
    """A process of this machine, by a descriptor: its number may be somebody else's tomorrow."""

    __slots__ = ("fd", "pid")

    def __init__(self, pid: int) -> None:
        if not hasattr(os, "pidfd_open"):
            raise OSError("this system has no descriptors of processes")
        self.pid, self.fd = pid, os.pidfd_open(pid)

    def alive(self) -> bool:
        """Tell whether it has not ended."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return not poll.poll(0)

    def kill(self) -> None:
        """Kill it, if it is there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def close(self) -> None:
        """Let the descriptor go."""
        os.close(self.fd)


def neighbour(mark: Mark) -> Process:
    """Return the process that made this mark; OSError where it is on another machine."""
    process = Process(mark[0])  # first: who has such a sample afterwards is the one that is held
    try:
        recognised(mark, write=True).close()
    except BaseException:
        process.close()
        raise
    return process


class Handle:
    """A second descriptor of what is shared, held until a worker has mapped it."""

    __slots__ = ("_fd", "at")

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self.at = place(self._fd)

    def close(self) -> None:
        """Let it go."""
        os.close(self._fd)


def fetch(packed: Any, at: Place | memoryview | None) -> Any:
    """Return a value that was sent, or that lies there."""
    return unpack(packed, mapped(at) if isinstance(at, tuple) else at)


def bulk(segment: Segment, packed: Any) -> memoryview:
    """Return the bytes of a packed value that lie in a segment, for as long as they are held."""
    parts = (packed[0], *packed[1])
    size = max(part[0] + part[1] for part in parts if type(part) is tuple and len(part) == 2)
    return memoryview(attach(os.dup(segment.fd)))[:size]


class Parcel:
    """A value packed once: a message for those near, two for those far, if there are any.

    `pending` counts those who may still need it; close it then. `large` are the bytes that lie in
    shared memory.
    """

    __slots__ = ("_far", "_near", "_packed", "_title", "large", "pending", "segment")

    def __init__(self, kind: int, name: Any, value: Any) -> None:
        self.pending = 0
        self.segment: Segment | None = None
        self._title = (kind, name)
        self._packed, self.segment = pack(value, take)
        at = None if self.segment is None else place(self.segment.fd)
        self.large = large(self._packed)
        self._near = (wire.frame(kind, name, self._packed, at),)
        self._far: tuple[Bytes, ...] = self._near if self.segment is None else ()

    def messages(self, near: bool) -> tuple[Bytes, ...]:
        """Return what to send; always the same objects.

        To those far goes what lies in the segment, after a frame that says how much it is.
        """
        if near:
            return self._near
        if not self._far:
            assert self.segment is not None
            content = bulk(self.segment, self._packed)
            self._far = (wire.frame(*self._title, self._packed, len(content)), content)
        return self._far

    def close(self) -> None:
        """Let the memory go; it stays where it is mapped, and until MPI has sent it."""
        if self.segment is not None:
            self.segment.close()
            self.segment, self._far = None, ()


def take(size: int) -> Segment | None:
    """Return memory for what is larger than a small message; None if it is not."""
    try:
        return Segment(size) if size >= 2 * LARGE else None
    except OSError:  # out of descriptors or of memory: messages still work
        return None
