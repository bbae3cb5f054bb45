"""Frames on a Unix socket: eight bytes of length, then a marshalled tuple; descriptors ride along.

Both ends are the same interpreter, started by one another: marshal is safe here and the fastest.
"""

from __future__ import annotations

import array
import marshal
import math
import os
import select
import socket
import struct
import time
from collections import deque
from typing import Any

IN, OUT = select.POLLIN, select.POLLOUT
_HEAD = struct.Struct("<Q")
_READ = 1 << 16
_SPACE = socket.CMSG_SPACE(64)
_NAP = 1e-3  # seconds between two attempts while the kernel lacks something
_TRUNCATED = int(socket.MSG_CTRUNC)  # a number: the arithmetic of enums takes microseconds
FD_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that block, whatever socket.setdefaulttimeout was told."""
    ends = socket.socketpair()
    try:
        for end in ends:
            end.setblocking(True)
    except BaseException:
        for end in ends:
            end.close()
        raise
    return ends


def adopt(fd: int) -> socket.socket:
    """The socket of a descriptor that this process alone reads; it blocks, as in `pair`."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    return sock


def frame(*message: Any) -> bytes:
    """Return a message as bytes to be sent."""
    body = marshal.dumps(message)
    return _HEAD.pack(len(body)) + body


def frames(data: Any, sizes: list[int] | None = None) -> list[Any]:
    """Return the messages at the beginning of these bytes; `sizes` gets the bytes of each."""
    messages, at, view, end = [], 0, memoryview(data), len(data)
    while end - at >= 8:
        upto = at + 8 + _HEAD.unpack_from(view, at)[0]
        if upto > end:
            break
        messages.append(marshal.loads(view[at + 8 : upto]))
        if sizes is not None:
            sizes.append(upto - at)
        at = upto
    return messages


class _Poll:
    """select.poll with the face of select.epoll, for where there is no epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        return self._poll.poll(None if timeout is None else math.ceil(timeout * 1000))

    def close(self) -> None: ...


def poller() -> Any:
    """Return an epoll, or what can stand in for it."""
    return select.epoll() if hasattr(select, "epoll") else _Poll()


class Reader:
    """Cuts what arrives on a socket into messages; `fds` are the descriptors not yet claimed."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fds: deque[int] = deque()
        self.received = 0  # bytes
        self.sizes: list[int] = []  # bytes of each message that was last returned
        self._rest = bytearray()

    def receive(self, flags: int = FD_FLAGS) -> list[Any] | None:
        """Read once; return the messages that are now whole, None at the end of the stream.

        May raise BlockingIOError. A message's descriptors are in `fds` before it is returned.
        """
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(_READ, _SPACE, flags)
        except ConnectionError:
            return None
        for level, kind, fds in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds.extend(array.array("i", fds[: len(fds) // 4 * 4]))
        if flags & _TRUNCATED:  # this process has no room for a descriptor that was passed
            self.fds.append(-1)
        size = len(data)
        if not size:
            return None
        self.received += size
        rest = self._rest
        if not rest and size >= 8 and size == 8 + _HEAD.unpack_from(data)[0]:
            self.sizes = [size]  # one whole frame, as almost always
            return [marshal.loads(data[8:])]
        self.sizes = []
        if rest:
            rest += data
            # A frame of many reads: do not look at it again before it can be whole.
            if len(rest) < 8 or len(rest) < 8 + _HEAD.unpack_from(rest)[0]:
                return []
            data = bytes(rest)
            rest.clear()
        messages = frames(data, self.sizes)
        if (used := sum(self.sizes)) < len(data):
            rest += memoryview(data)[used:]
        return messages


class Channel(Reader):
    """The master's end: never blocks, whatever the worker does with what is sent."""

    def __init__(self, sock: socket.socket, poll: Any) -> None:
        super().__init__(sock)
        self.fd, self.poll = sock.fileno(), poll
        self.outbox: deque[tuple[bytes | memoryview, list[int]]] = deque()
        self.unsent: list[bytes] = []  # frames for the next `send`
        self.unsent_fds: list[int] = []
        self.broken = False  # the other end is gone; receive() will say so
        self.behind = False  # the outbox waits until the socket can take more
        self.sent = 0  # bytes
        sock.setblocking(False)
        poll.register(self.fd, IN)

    def send(self, last: bytes = b"") -> None:
        """Send what is unsent and this frame: one system call, or none when behind."""
        self.outbox.append((b"".join((*self.unsent, last)), self.unsent_fds))
        self.unsent, self.unsent_fds = [], []
        if not self.behind:
            self.flush()

    def flush(self) -> None:
        """Send what waits, as much as the socket takes."""
        outbox = self.outbox
        while outbox and not self.broken:
            data, fds = outbox[0]
            sent = 0
            try:
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
            except BlockingIOError:
                pass
            except ConnectionError:
                self.broken = True
            except OSError:
                # Too many descriptors in flight, no memory: whatever it is, it may pass, and the
                # other end is there. The socket counts as writable, so do not ask all the time.
                time.sleep(_NAP)
            self.sent += sent
            if sent < len(data):
                outbox[0] = (memoryview(data)[sent:], [] if sent else fds)
                break
            outbox.popleft()
        if self.broken:
            outbox.clear()
        if self.behind != bool(outbox):
            self.behind = not self.behind
            self.poll.modify(self.fd, IN | OUT if self.behind else IN)

    def close(self) -> None:
        """Close the socket and the descriptors that nobody claimed."""
        self.poll.unregister(self.fd)
        self.sock.close()
        self.broken = True
        for fd in self.fds:
            if fd >= 0:
                os.close(fd)
