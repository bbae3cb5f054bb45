"""One connection of a node: what is to be sent, what has come, without ever waiting."""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from itertools import islice, takewhile
from typing import Any

from .keys import Keys
from .place import Address
from .wire import Header, Reader, pack

_SILENT = 15_000  # milliseconds without an answer to what was sent: the connection is given up
_AT_ONCE = 16  # buffers that one system call sends
_RIGHTS = socket.CMSG_SPACE(8 * 4)  # room for descriptors that come with one call


class Link:
    """A connection, made to the node at `address` or accepted. Nothing goes out before a proof."""

    def __init__(self, address: Address | None, reader: Reader) -> None:
        self.address, self.reader = address, reader
        self.sock: socket.socket | None = None
        self.same_host = False  # by a socket that passes descriptors
        self.hosts: list[Any] = []  # socket addresses still to be tried
        self.nonce = self.given = b""  # ours, and what the other has sent as its own
        self.proven = self.dead = self.writing = False
        self.secured = False  # by TLS: only the node's thread may send and receive then
        self._not_now: tuple[type[OSError], ...] = (BlockingIOError,)
        self.deadline = 0.0  # for the proof
        self.out: deque[tuple[memoryview, int | None]] = deque()  # with a descriptor, if any
        self.fds: deque[int] = deque()  # descriptors that have come

    def adopt(self, sock: socket.socket) -> None:
        """Use a socket."""
        self.secured, self._not_now = False, (BlockingIOError,)
        self.sock, self.same_host = sock, sock.family != socket.AF_INET
        sock.setblocking(False)
        if not self.same_host:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT)

    def secure(self, keys: Keys) -> None:
        """Encrypt all that follows; `shake_hands` comes next."""
        import ssl  # it is loaded already where there are keys

        sock, made = self.sock, self.address is not None
        assert sock is not None
        context = keys.connect if made else keys.accept
        self.sock = context.wrap_socket(sock, server_side=not made, do_handshake_on_connect=False)
        self.secured = True
        self._not_now = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def shake_hands(self) -> bool:
        """Go on with the handshake of TLS; whether it is over. OSError: the other is a stranger."""
        sock: Any = self.sock
        try:
            sock.do_handshake()
        except self._not_now:
            return False
        return True

    @property
    def pending(self) -> bool:
        """Whether bytes have come that no selector knows of."""
        sock: Any = self.sock
        return self.secured and sock.pending() > 0

    def queue(self, header: Header, payload: Any, size: int, fd: int | None) -> None:
        """Have a frame sent with `flush`, in order."""
        self.out.append((memoryview(pack(header, size)), None if fd is None else os.dup(fd)))
        if size:
            self.out.append((memoryview(payload).cast("B"), None))

    def flush(self) -> None:
        """Send as much as goes without waiting. Raises OSError where the connection is broken."""
        out, sock = self.out, self.sock
        assert sock is not None
        try:
            while out:
                view, fd = out[0]
                if self.secured:
                    sent = sock.send(view)
                elif fd is not None:
                    sent = socket.send_fds(sock, [view], [fd])
                    out[0] = view, None
                    os.close(fd)
                else:
                    plain = takewhile(lambda item: item[1] is None, islice(out, _AT_ONCE))
                    sent = sock.sendmsg([view for view, _ in plain])
                while sent:
                    view = out[0][0]
                    if sent < len(view):
                        out[0] = view[sent:], None
                        break
                    sent -= len(view)
                    out.popleft()
        except self._not_now:
            pass

    def fill(self) -> int | None:
        """Receive some of what the reader awaits; returns how many bytes, 0 at the end.

        None: nothing has come.
        """
        assert self.sock is not None
        try:
            return self._fill(self.sock)
        except self._not_now:
            return None

    def _fill(self, sock: socket.socket) -> int:
        if not self.same_host:
            return sock.recv_into(self.reader.target)
        count, rights, _, _ = sock.recvmsg_into([self.reader.target], _RIGHTS)
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors = array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                for fd in descriptors:
                    os.set_inheritable(fd, False)
                    self.fds.append(fd)
        return count

    def end(self) -> None:
        """Send and receive no more."""
        self.dead = True
        for fd in (*self.fds, *(fd for _, fd in self.out if fd is not None)):
            os.close(fd)
        self.out.clear()
        self.fds.clear()
