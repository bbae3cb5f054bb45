"""Frames on a Unix socket: eight bytes of length, then a marshalled tuple; descriptors ride along.

Both ends are the same interpreter, started by one another: marshal is safe here and the fastest.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

# Master to worker.
TASK, FUNCTION, OPERAND, PUT, FORGET, DROP, UNMAP, CLEAR = range(8)
# Worker to master.
HELLO, REPLY, DROPPED, FAILED, STORED, UNPUT, GONE = range(8, 15)

_HEAD = struct.Struct("<Q")
_READ = 1 << 16
_SPACE = socket.CMSG_SPACE(64)
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def frame(*message: Any) -> bytes:
    """Return a message as bytes to be sent."""
    body = marshal.dumps(message)
    return _HEAD.pack(len(body)) + body


def with_fds(fds: Iterable[int]) -> list[tuple[int, int, Any]]:
    """Return what sendmsg needs to pass these descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def take_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that recvmsg brought."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


class Reader:
    """Cuts what arrives on a socket into messages; `fds` are the descriptors not yet claimed."""

    __slots__ = ("_rest", "fds", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fds: deque[int] = deque()
        self._rest = bytearray()

    def receive(self) -> list[Any] | None:
        """Read once; return the messages that are now whole, None at the end of the stream.

        May raise BlockingIOError. A message's descriptors are in `fds` before it is returned.
        """
        try:
            data, ancillary, _, _ = self.sock.recvmsg(_READ, _SPACE, _FLAGS)
        except ConnectionError:
            return None
        if ancillary:
            self.fds.extend(take_fds(ancillary))
        if not data:
            return None
        rest = self._rest
        if rest:
            rest += data
            # A frame of many reads: do not look at it again before it can be whole.
            if len(rest) < 8 or len(rest) < 8 + _HEAD.unpack_from(rest)[0]:
                return []
            data = bytes(rest)
            self._rest = rest = bytearray()
        messages, at, end = [], 0, len(data)
        while end - at >= 8:
            upto = at + 8 + _HEAD.unpack_from(data, at)[0]
            if upto > end:
                break
            messages.append(marshal.loads(memoryview(data)[at + 8 : upto]))
            at = upto
        if at < end:
            rest += memoryview(data)[at:]
        return messages

    def close(self) -> None:
        """Close the socket and the descriptors that nobody claimed."""
        self.sock.close()
        while self.fds:
            os.close(self.fds.popleft())
