"""Between processes of one machine: one write that wakes all, and mailboxes without a call."""

from __future__ import annotations

import os
import platform
import select

from .memory import Segment, attach


class BroadcastWaker:
    """A pipe of which one write wakes all who wait at it.

    To wake six workers one by one takes six system calls, and after each of them the woken worker
    may take the core from the master. Here the master owns both ends. A waiting worker is told of
    each write (an edge) and never reads; one byte always lies in the pipe.
    """

    def __init__(self) -> None:
        self.fd, self._end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._end, b"!")

    def wake(self) -> None:
        os.read(self.fd, 1)  # Linux 5.5 to 5.13 tells of a write only where the pipe was empty
        os.write(self._end, b"!")

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._end)


_WORDS = 4  # of a mailbox: posted, taken, length, order
_SIZE = 50_000  # bytes at least: a segment has a power of two
# A mailbox needs epoll, and a processor on which stores are seen in the order they were made in.
MAILBOXES = hasattr(select, "epoll") and platform.machine() in ("x86_64", "AMD64", "i686")


class Mailbox:
    """A place in shared memory beside a stream, for one message at a time: no system call for it.

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
        self._words = memoryview(memory)[: 8 * _WORDS].cast("q")
        self._bytes = memoryview(memory)[8 * _WORDS :]

    def post(self, data: bytes, order: int) -> bool:
        """Put a message in, if there is room; return whether there was."""
        words, size = self._words, len(data)
        if words[0] != words[1] or size > len(self._bytes):
            return False
        self._bytes[:size] = data
        words[2], words[3] = size, order
        words[0] += 1  # from now on it is there
        return True

    def take(self, position: int) -> bytes | None:
        """Return what was posted, if so much of the stream is all that comes before it."""
        words = self._words
        if words[0] == words[1] or words[3] > position:
            return None
        data = bytes(self._bytes[: words[2]])
        words[1] = words[0]
        return data

    def given(self) -> None:
        """Let go of the descriptor: the other side has it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
