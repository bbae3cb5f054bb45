"""A worker at the other end of a Unix socket: see _sockets.py."""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..exchange import Exchange, ExchangeLayout
from . import _wire as wire
from ._forks import reseed, tie
from ._pages import Gathering
from ._processes import Process
from ._sockets import EXCHANGE, GONE, HELLO, UNMAP, UNPASS, VALUE_AT, Shared
from ._wakeup import Mailbox, Waker
from .memory import OWN, Memory, Packed, Pool, Segment, attach, attach_own, large, pack, unpack
from .protocol import Message, Values, WorkerProtocol, plain, typed
from .protocol.messages import TaskReply

IDLE = 1.0  # seconds without a message, after which a worker does what can wait


def serve(fds: list[int]) -> None:
    """Serve the master on socket `fds[0]` until it goes away.

    `fds[1]` holds the cancelled word, `fds[2]` is the master's lifeline. Where there is a mailbox,
    it is `fds[3]`; `fds[4]` wakes those who wait for theirs, `fds[5]` the master.
    """
    tie(fds[2])
    reseed()
    SocketWorker(wire.adopt(fds[0]), attach(fds[1]), *fds[3:]).serve()


class SocketWorker(Values):
    """Carries messages between a socket, a mailbox and the protocol."""

    def __init__(self, sock: socket.socket, cancelled: mmap.mmap, *mailbox: int) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.mailbox: Mailbox | None = None
        if mailbox:
            self.mailbox, self.poll = Mailbox(mailbox[0]), select.epoll()
            self.master_waker = Waker(mailbox[2])
            self.poll.register(self.fd, select.EPOLLIN)
            self.poll.register(mailbox[1], select.EPOLLIN | select.EPOLLET)
        self.position = 0  # bytes of the socket's stream that have been handled
        self.sent = 0  # bytes by the socket
        self.reader = wire.Reader(sock)
        self.word = memoryview(cancelled).cast("q")  # [0]: the highest cancelled round
        self.protocol = WorkerProtocol(self, lambda: self.word[0], self.outlet)
        self.maps: dict[int, mmap.mmap] = {}
        self.pool = Pool(keep=64 << 20)
        self.passed: set[int] = set()  # segments of the pool that the master has mapped
        self.gathering = Gathering()
        self.taken: list[Segment] = []  # segments that the next message is about

    def serve(self) -> None:
        self.stream(wire.frame(HELLO, *Process.of(os.getpid())))
        while (frames := self.receive()) is not None:
            self.take(frames)

    def take(self, frames: list[Any]) -> None:
        """Handle frames of the socket, and those of the mailbox each in its turn."""
        for fields, size in zip(frames, self.reader.sizes, strict=True):
            self.open_mailbox()
            self.handle(fields)
            self.position += size

    def receive(self) -> list[Any] | None:
        """Wait for frames of the socket, handling those of the mailbox meanwhile."""
        while self.mailbox is not None:
            self.open_mailbox()
            ready = self.poll.poll(IDLE if self.gathering.left else None)
            while not ready and self.gathering.left:
                self.gathering.step()
                ready = self.poll.poll(0)
            if self.fd in dict(ready):
                break
        return self.reader.receive()

    def open_mailbox(self) -> None:
        """Handle what lies in the mailbox, if its turn has come."""
        if self.mailbox is not None and (data := self.mailbox.take(self.position)) is not None:
            for fields in wire.frames(data):
                self.handle(fields)

    def handle(self, fields: tuple[Any, ...]) -> None:
        kind = fields[0]
        if (at := VALUE_AT.get(kind)) is not None:
            if (packed := fields[at])[2] is not None:
                # Also if the task is stale: its descriptor has come.
                value = Shared(packed, self.memory(packed))
                fields = (*fields[:at], value, *fields[at + 1 :])
        elif kind == UNMAP:
            # Dropped, not closed: an array that a body hid away keeps its memory.
            self.maps.pop(fields[1], None)
            return
        elif kind == UNPASS:
            # The master could not map it, so it has to be passed again, and it is free.
            self.passed.discard(fields[1])
            if fields[1] in self.pool.used:
                self.pool.used[fields[1]].map[0] = 0
            return
        for message in self.protocol.handle(typed(fields)):
            self.reply(message)

    def memory(self, packed: Packed) -> Memory:
        # An OSError here ends the worker: the two sides would disagree on what is mapped.
        segment: Any = packed[2]
        if segment == OWN:
            fd = self.reader.fds.popleft()
            if packed[0] == EXCHANGE:
                return attach(fd, write=True)
            own = attach_own(fd)
            if isinstance(own, memoryview):
                self.gathering.add(own, large(packed))
            return own
        if segment not in self.maps:
            self.maps[segment] = attach(self.reader.fds.popleft())
        return self.maps[segment]

    def unpack(self, packed: Any) -> Any:
        if type(packed) is not Shared:
            return packed[1][0] if packed[0] is None else unpack(packed)
        content, memory, _ = packed
        if content[0] == EXCHANGE:
            # Dropped with its mapping when it is forgotten and no body is at it any more.
            return Exchange(memory, ExchangeLayout(*content[1]))
        return unpack(content, memory)

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        """Write large buffers to memory that the master reads."""
        if self.pool.used:
            for old in self.pool.reclaim():
                self.passed.discard(old)
                self.send(wire.frame(GONE, old))
        packed, segment = pack(value, self.pool.take, tidy=True)
        if segment is not None:
            self.taken.append(segment)
        return packed

    def reply(self, message: Message) -> None:
        """Send a message, and the descriptors of segments that it is the first to use."""
        fds: list[int] = []
        while self.taken:
            segment = self.taken.pop(0)
            if type(message) is not TaskReply:
                segment.map[0] = 0  # it failed: nobody will read it
            elif segment.id not in self.passed:
                self.passed.add(segment.id)
                fds.append(segment.fd)
        self.send(wire.frame(*plain(message)), fds)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a frame: by the mailbox if it fits in there now, by the socket otherwise."""
        if not fds and self.mailbox is not None and self.mailbox.post(data, self.sent):
            self.master_waker.wake()
        else:
            self.stream(data, fds)

    def stream(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a frame by the socket, and descriptors with it."""
        self.sent += len(data)
        try:
            if fds:
                data = data[socket.send_fds(self.sock, [data], fds) :]
            self.sock.sendall(data)
        except ConnectionError:
            os._exit(0)  # the master is gone; an exception would look like the body's own

    def outlet(self) -> Callable[[Message], None]:
        """Let other threads send too, from now on under a lock."""
        lock, send = threading.Lock(), self.send

        def locked(data: bytes, fds: Sequence[int] = ()) -> None:
            with lock:
                send(data, fds)

        self.send = locked  # type: ignore[method-assign]
        return lambda message: locked(wire.frame(*plain(message)))
