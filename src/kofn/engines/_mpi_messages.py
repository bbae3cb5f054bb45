"""Messages between two processes by MPI, in order, by nonblocking calls that are tested later.

A small message is sent as it is; a large one is announced by its length alone (no frame is that
short) and follows in pieces under a tag of its own. MPI counts in 32 bits, which pieces lift, and a
standing receive of SMALL bytes is enough for everything else.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

SMALL = 1 << 16  # bytes
PIECE = 1 << 20  # bytes; the same on both sides
FLIGHT = 8  # messages or pieces on their way to one process, which may be slow to take them
_DATA, _LARGE, URGENT = 1, 2, 3  # tags
_LENGTH = struct.Struct("<Q")


def rest(waited: float, spin: float) -> float:
    """Return the seconds to rest before looking again, after having waited so long.

    MPI cannot wait without burning a core. Looking costs microseconds, so a rest of a twentieth of
    the time waited so far keeps both the delay and the burning below some percent. In the first
    `spin` seconds there is no rest, and none is longer than 5 ms.
    """
    return min(waited / 20, 0.005) if waited > spin else 0.0


class Stream:
    """Both directions between this process and one other. Nothing here waits.

    What MPI may still read or write is held here. `moved` tells that something was sent or received
    since the last `push` began. `push`, `receive` and `urged` raise MPI's exception when the other
    process is gone.
    """

    def __init__(self, MPI: Any, comm: Any, rank: int) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.moved = False
        self._MPI, self._comm, self._rank = MPI, comm, rank
        self._queue: deque[tuple[int, bytes | memoryview]] = deque()  # waits for what is sent
        self._sending: deque[tuple[Any, bytes | memoryview]] = deque()
        self._buffer = bytearray(SMALL)
        self._receiving: deque[Any] = deque()  # requests, in order
        self._large: memoryview | None = None  # announced, being received
        self._status = MPI.Status()

    def ended(self) -> bool:
        """Receive no more; return whether MPI has let go of all that is held here."""
        for request in self._receiving:
            with suppress(self._MPI.Exception):
                request.Cancel()
        self._sending.extend((request, b"") for request in self._receiving)
        self._receiving.clear()
        while self._sending:
            with suppress(self._MPI.Exception):  # the other's death ends it, too
                if not self._sending[0][0].Test():
                    return False
            self._sending.popleft()
        return True

    # Sending.

    def send(self, data: bytes) -> bool:
        """Send a message after those before it, now or by a later `push`; return as that does."""
        if len(data) <= SMALL:
            self._queue.append((_DATA, data))
        else:
            view = memoryview(data)
            self._queue.append((_DATA, _LENGTH.pack(len(data))))
            self._queue.extend((_LARGE, view[i : i + PIECE]) for i in range(0, len(data), PIECE))
        with suppress(self._MPI.Exception):
            return self.push()
        return False

    def push(self) -> bool:
        """Send what is queued, as far as the other process keeps up; return whether all is."""
        self.moved = False
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()
            self.moved = True
        while self._queue and len(self._sending) < FLIGHT:
            self._isend(*self._queue.popleft())
        return not self._queue

    def urge(self, word: bytes) -> None:
        """Send a word ahead of what is queued."""
        with suppress(self._MPI.Exception):
            self._isend(URGENT, word)

    def _isend(self, tag: int, data: bytes | memoryview) -> None:
        request = self._comm.Isend([data, self._MPI.BYTE], self._rank, tag)
        self._sending.append((request, data))

    # Receiving.

    def receive(self) -> bytes | memoryview | None:
        """Return the next message, if it has arrived."""
        if not self._receiving:
            self._irecv(self._buffer, _DATA)
        while self._receiving and self._receiving[0].Test(self._status):
            self._receiving.popleft()
            self.moved = True
            if self._large is None:
                size = self._status.Get_count(self._MPI.BYTE)
                if size != _LENGTH.size:
                    return bytes(memoryview(self._buffer)[:size])
                self._large = np.empty(_LENGTH.unpack_from(self._buffer)[0], np.uint8).data
                for i in range(0, len(self._large), PIECE):
                    self._irecv(self._large[i : i + PIECE], _LARGE)
            elif not self._receiving:
                whole, self._large = self._large, None
                return whole
        return None

    def _irecv(self, room: bytearray | memoryview, tag: int) -> None:
        self._receiving.append(self._comm.Irecv([room, self._MPI.BYTE], self._rank, tag))

    def urged(self) -> Iterator[bytes]:
        """Return the words that have come ahead of messages."""
        while self._comm.Iprobe(self._rank, URGENT, self._status):
            word = bytearray(self._status.Get_count(self._MPI.BYTE))
            self._comm.Recv([word, self._MPI.BYTE], self._rank, URGENT)
            yield bytes(word)
