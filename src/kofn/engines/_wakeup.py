"""Between processes of one machine: one write that wakes all, and mailboxes without a call."""

from __future__ import annotations

import os
import platform

from .memory import Segment, attach


class Waker:
    """A counter of the kernel's: one write wakes all who wait at it.

    To wake six workers one by one takes six system calls, and after each of them the woken worker
    may take the core from the master. Workers are told of each write (an edge) and never read. The
    master, which workers wake, reads before it looks into their mailboxes.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def wake(self) -> None:
        os.eventfd_write(self.fd, 1)

    def read(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


_WORDS = 4  # of each place of a mailbox: posted, taken, length, order
_SIZE = 100_000  # bytes at least: a segment has a power of two
# A mailbox needs Linux, and a processor on which stores are seen in the order they were made in.
MAILBOXES = hasattr(os, "eventfd") and platform.machine() in ("x86_64", "AMD64", "i686")


class Mailbox:
    """Shared memory beside a stream, for one message at a time each way: no system call for it.

    Who posts wakes the other side afterwards. `order`: the message belongs after so many bytes of
    the stream. While the other side has not taken it, nothing more can be posted.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = -1  # what the other side needs, until it has it
        if fd is None:
            made = Segment(_SIZE)
            self.fd, memory = made.fd, made.map
        else:
            memory = attach(fd, write=True)
        half, view = len(memory) // 2, memoryview(memory)
        places = (view[:half], view[half:]) if fd is None else (view[half:], view[:half])
        self._out, self._in = (place[: 8 * _WORDS].cast("q") for place in places)
        self._sent, self._got = (place[8 * _WORDS :] for place in places)

    def post(self, data: bytes, order: int) -> bool:
        """Put a message in, if there is room; return whether there was."""
        words, size = self._out, len(data)
        if words[0] != words[1] or size > len(self._sent):
            return False
        self._sent[:size] = data
        words[2], words[3] = size, order
        words[0] += 1  # from now on it is there
        return True

    def take(self, position: int) -> bytes | None:
        """Return what was posted, if so much of the stream is all that comes before it."""
        words = self._in
        if words[0] == words[1] or words[3] > position:
            return None
        data = bytes(self._got[: words[2]])
        words[1] = words[0]
        return data

    def given(self) -> None:
        """Let go of the descriptor: the other side has it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
