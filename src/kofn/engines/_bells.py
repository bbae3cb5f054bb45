"""Between processes of one machine: bells that wake who waits, and boxes that need no call."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import struct

from .memory import anonymous, attach

_NUMBER = struct.Struct("i")


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

    def heard(self) -> list[int]:
        """Return who rang, once for each ring; there must be one."""
        return memoryview(os.read(self.fd, 4096)).cast("i").tolist()

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
        self._rung = False

    def ring(self) -> None:
        """Wake everybody."""
        if self._rung:
            # Linux 5.5 to 5.13 tells of a write only where the pipe was empty.
            os.read(self.fd, 1)
        os.write(self._rings, b"!")
        self._rung = True

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


_WORDS = 4  # of a box: posted, taken, length, order
_SIZE = 1 << 16  # bytes, with the words
# A box needs that stores are seen in the order in which they were made, and a tower.
BOXES = hasattr(select, "epoll") and platform.machine() in ("x86_64", "AMD64", "i686")


class Box:
    """A place in shared memory beside a stream, for one message at a time: no system call for it.

    Who posts rings a tower afterwards. `order`: the message belongs after so much of the stream, in
    bytes or in messages, as both sides count. While the other side has not taken it, nothing more
    can be posted.
    """

    __slots__ = ("_bytes", "_memory", "_most", "_words", "fd")

    def __init__(self, fd: int | None = None) -> None:
        self.fd = -1  # what the other side needs, until it has it
        if fd is None:
            self.fd = anonymous(_SIZE)
            try:
                self._memory = attach(os.dup(self.fd), write=True)
            except BaseException:
                self.given()
                raise
        else:
            self._memory = attach(fd, write=True)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes[: 8 * _WORDS].cast("q")
        self._most = len(self._bytes) - 8 * _WORDS

    def post(self, data: bytes, order: int) -> bool:
        """Lay a message in, if there is room."""
        words, size = self._words, len(data)
        if words[0] != words[1] or size > self._most:
            return False
        self._bytes[8 * _WORDS : 8 * _WORDS + size] = data
        words[2], words[3] = size, order
        words[0] += 1  # from now on it is there
        return True

    def take(self, position: int) -> bytes | None:
        """Return what was posted, if so much of the stream is all that comes before it."""
        if not self.due(position):
            return None
        words = self._words
        data = bytes(self._bytes[8 * _WORDS : 8 * _WORDS + words[2]])
        words[1] = words[0]
        return data

    def due(self, position: int) -> bool:
        """Tell whether `take` would return something."""
        words = self._words
        return words[0] != words[1] and words[3] <= position

    def given(self) -> None:
        """Let go of the descriptor: the other side has it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Let the memory go here."""
        self.given()
        self._words.release()
        self._bytes.release()
        self._memory.close()
