"""Messages between two processes by MPI, in order, by nonblocking calls that are tested later.

A small message is sent as it is; a large one is announced by its length alone (no frame is that
short) and follows in pieces under a tag of its own. MPI counts in 32 bits, which pieces lift, and a
standing receive of SMALL bytes is enough for everything else.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

SMALL = 1 << 16  # bytes
PIECE = 1 << 20  # bytes; the same on both sides
FLIGHT = 8  # messages or pieces on their way to one process; its end of them may be slow
_DATA, _LARGE, _URGENT = 1, 2, 3  # tags
_LENGTH = struct.Struct("<Q")
_SPIN = 0.0005  # seconds of looking without a pause, where each process has a core
_REST, _PART = 0.005, 20  # the longest rest; a rest is this part of the time waited


class Backoff:
    """When to look again: at once while spinning pays, then ever later, at most 5 ms.

    MPI cannot wait without burning a core. Looking costs microseconds, so a rest of a twentieth of
    the time waited so far keeps both the delay and the burning below some percent. With more
    processes than cores, who spins takes the core from the one waited for: there `spin` is False.
    """

    __slots__ = ("_began", "_spin")

    def __init__(self, spin: bool) -> None:
        self._began, self._spin = time.perf_counter(), _SPIN if spin else 0.0

    def rest(self) -> float:
        """Return the seconds to rest now; 0 to look again at once."""
        waited = time.perf_counter() - self._began
        return min(waited / _PART, _REST) if waited > self._spin else 0.0


class Stream:
    """Both directions between this process and one other. Nothing here waits.

    What MPI may still read or write is held here. `moved` tells that something was sent or received
    since it was last set to False. Methods raise MPI's exception when the other process is gone.
    """

    def __init__(self, MPI: Any, comm: Any, rank: int) -> None:
        self.comm, self.moved = comm, False
        self._MPI, self._rank = MPI, rank
        self._queue: deque[tuple[int, bytes | memoryview]] = deque()  # waits for what is sent
        self._sending: deque[tuple[Any, bytes | memoryview]] = deque()
        self._urgent: deque[tuple[Any, bytes]] = deque()
        self._buffer = bytearray(SMALL)
        self._receiving: deque[Any] = deque()  # requests, in order
        self._large: memoryview | None = None  # announced, being received
        self._asked = 0  # bytes of it for which there is a request
        self._status = MPI.Status()

    # Sending.

    def send(self, data: bytes) -> None:
        """Send a message after those before it, now or by a later `push`."""
        if len(data) <= SMALL:
            self._queue.append((_DATA, data))
        else:
            view = memoryview(data)
            self._queue.append((_DATA, _LENGTH.pack(len(data))))
            self._queue.extend((_LARGE, view[i : i + PIECE]) for i in range(0, len(data), PIECE))
        self.push()

    def push(self) -> bool:
        """Send what is queued, as far as the other process keeps up; return whether all is."""
        self._let_go(self._sending)
        while self._queue and len(self._sending) < FLIGHT:
            tag, data = self._queue.popleft()
            self._sending.append((self._isend(data, tag), data))
        return not self._queue

    def urge(self, data: bytes) -> None:
        """Send a word ahead of what is queued."""
        self._let_go(self._urgent)
        self._urgent.append((self._isend(data, _URGENT), data))

    def _isend(self, data: bytes | memoryview, tag: int) -> Any:
        return self.comm.Isend([data, self._MPI.BYTE], self._rank, tag)

    def _let_go(self, sending: deque[Any]) -> None:
        while sending and sending[0][0].Test():
            sending.popleft()
            self.moved = True

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
                self._asked = 0
            while len(self._receiving) < FLIGHT and self._asked < len(self._large):
                self._irecv(self._large[self._asked : self._asked + PIECE], _LARGE)
                self._asked += PIECE
            if not self._receiving:
                whole, self._large = self._large, None
                return whole
        return None

    def _irecv(self, room: bytearray | memoryview, tag: int) -> None:
        self._receiving.append(self.comm.Irecv([room, self._MPI.BYTE], self._rank, tag))

    def urged(self) -> Iterator[bytes]:
        """Return the words that have come ahead of messages."""
        while self.comm.Iprobe(self._rank, _URGENT, self._status):
            word = bytearray(self._status.Get_count(self._MPI.BYTE))
            self.comm.Recv([word, self._MPI.BYTE], self._rank, _URGENT)
            yield bytes(word)
