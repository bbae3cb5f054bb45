"""A node: listens, connects, sends and receives frames, and passes blobs on, in one thread."""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Condition, Thread, current_thread
from typing import Any

from .blobs import DATA, HAVE, MAP, PUSH, WANT, Blobs, Part, copied
from .keys import Keys
from .link import Link
from .place import LOOPBACK, Address, in_order, machine_name, own_addresses, socket_name
from .wire import NONCE, PROOF, Frame, Header, NotOurs, Reader, check, proof

_HANDSHAKE = 3.0  # seconds for a connection to be made and proven, with each address
_RETRY = 0.2  # seconds before a peer that could not be reached is tried again
_UNPROVEN = 1024  # connections at a time that have not proven anything


class Node:
    """One end of the data plane. Whoever opens it closes it.

    `everywhere`: listen on all addresses of this machine, not on the loopback alone. `listen`:
    whether at all; the master only connects. `same_host`: whether nodes of this machine may be
    reached in a shorter way. `keys`: connections over TCP are encrypted, and others refused.
    """

    def __init__(
        self,
        token: bytes,
        everywhere: bool = False,
        listen: bool = True,
        same_host: bool = True,
        keys: Keys | None = None,
    ) -> None:
        self._token, self._keys, self.id = token, keys, secrets.token_hex(8)
        self._mine = own_addresses() if everywhere or not listen else (LOOPBACK,)
        self.machine = machine_name() if same_host else ""
        self._blobs, self._inbox = Blobs(), list[Frame]()
        self._changed = Condition()  # holds for everything below, and for the blobs
        self._links: dict[str, Link] = {}  # those that we made, by the id of the other node
        self._failed: dict[str, float] = {}  # when it could last not be reached
        self._new: list[Link] = []  # for the thread to look after
        self._closed = False
        self.sent = 0  # bytes of payloads
        self._pid = os.getpid()
        self._thread = Thread(target=self._serve, name="kofn-peers", daemon=True)
        self._servers: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._woken = self._wake = -1
        try:
            self._woken, self._wake = os.pipe()
            for end in (self._woken, self._wake):
                os.set_blocking(end, False)
            self._selector.register(self._woken, selectors.EVENT_READ, None)
            port, name = 0, socket_name(self.id) if same_host else None
            if listen and name is not None:
                self._listen(socket.socket(socket.AF_UNIX), name)
            if listen and (everywhere or name is None):
                self._listen(socket.socket(), ("" if everywhere else LOOPBACK, 0))
                port = self._servers[-1].getsockname()[1]
            self.address = Address(self.id, self.machine, self._mine if port else (), port)
            self._thread.start()
        except BaseException:
            self._let_go()
            raise

    def _listen(self, server: socket.socket, where: Any) -> None:
        self._servers.append(server)
        server.bind(where)
        server.listen(_UNPROVEN)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, server)

    # For the thread that does the work.

    @staticmethod
    def now() -> float:
        """Seconds, on a clock that never runs backwards."""
        return time.monotonic()

    def send(self, to: Address, header: Header, payload: Any = None) -> None:
        """Send a frame. Never waits; it is lost where the other cannot be reached.

        The payload (a contiguous array, or bytes) must not be changed afterwards.
        """
        with self._changed:
            link = self._link(to)
            if link is not None:
                self._queue(link, header, payload)

    def take(self) -> list[Frame]:
        """All frames that have arrived since."""
        with self._changed:
            inbox, self._inbox = self._inbox, []
            return inbox

    def wait(self, seconds: float) -> None:
        """Wait for a frame or for the rest of a blob, at most so long."""
        with self._changed:
            if not self._inbox:
                self._changed.wait(seconds)

    def offer(self, name: str, payload: Any) -> None:
        """Let others fetch this; it must not be changed afterwards."""
        with self._changed:
            self._pass_on(self._blobs.offer(name, memoryview(payload).cast("B")))

    def push(self, name: str, payload: Any, to: Sequence[Address]) -> None:
        """Send a blob to nodes that have not asked for it; what is sent is a copy."""
        view = memoryview(payload).cast("B")
        blob = copied(view, any(one.machine == self.machine for one in to))
        with self._changed:
            self._pass_on(self._blobs.have(name, blob))
            for link in filter(None, map(self._link, to)):
                self._queue(link, {"k": PUSH, "name": name, "size": len(view)})
                self._pass_on(self._blobs.wanted(link, {"name": name, "at": 0}))

    def withdraw(self, name: str) -> None:
        """Have a blob no more."""
        with self._changed:
            self._blobs.drop(name)

    def fetch(self, name: str, size: int, source: Address) -> None:
        """Ask a node for a blob, or for the rest of it."""
        with self._changed:
            blob = self._blobs.begin(name, size)
            link = None if blob.complete else self._link(source)
            if link is not None:
                self._queue(link, {"k": WANT, "name": name, "at": blob.have})

    def fetched(self, name: str) -> tuple[int, memoryview | None]:
        """How much of a blob is here, and all of it when it is."""
        with self._changed:
            blob = self._blobs[name]
            if blob is None:
                return 0, None
            return blob.have, blob.buffer if blob.complete else None

    def blobs(self) -> list[str]:
        """The names of those that are here or coming, the oldest first."""
        with self._changed:
            return self._blobs.names()

    def keep_only(self, ids: Sequence[str]) -> None:
        """Close the connections that were made to others than these."""
        with self._changed:
            for link in [link for id, link in self._links.items() if id not in ids]:
                self._give_up(link)
            self._failed.clear()

    def close(self) -> None:
        """End the thread and all connections. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._notify_thread()
        if self._pid == os.getpid() and current_thread() is not self._thread:
            self._thread.join(5.0)

    # Both threads, with the lock held.

    def _link(self, to: Address) -> Link | None:
        """The connection to a node; makes one where there is none."""
        link = self._links.get(to.id)
        if link is None and not self._closed:
            if self.now() < self._failed.get(to.id, 0.0) + _RETRY:
                return None
            link = self._links[to.id] = Link(to, Reader(NONCE, self._blobs.room))
            link.hosts = [(host, to.port) for host in in_order(to.hosts, self._mine)]
            name = socket_name(to.id)
            if to.machine and to.machine == self.machine and name is not None:
                link.hosts.insert(0, name)
                link.same_host = True
            self._new.append(link)
            self._notify_thread()
        return link

    def _queue(
        self, link: Link, header: Header, payload: Any = None, fd: int | None = None
    ) -> None:
        if link.dead:
            return
        size = 0 if payload is None else memoryview(payload).nbytes
        link.queue(header, payload, size, fd)
        self.sent += size
        if link.proven and not link.writing:
            if not link.secured:
                self._flush(link)
            if link.out:
                self._new.append(link)
                self._notify_thread()

    def _pass_on(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._queue(*part)

    def _flush(self, link: Link) -> None:
        """Send as much as goes without waiting."""
        try:
            link.flush()
        except OSError:
            self._give_up(link)

    def _give_up(self, link: Link) -> None:
        """Use a connection no more; the thread closes it."""
        link.end()
        if link.address is not None and self._links.get(link.address.id) is link:
            del self._links[link.address.id]
        self._new.append(link)
        self._notify_thread()

    def _notify_thread(self) -> None:
        with suppress(OSError):  # it is full, or closed
            os.write(self._wake, b"1")

    # The thread.

    def _serve(self) -> None:
        unproven: set[Link] = set()
        try:
            while not self._closed:
                ready = self._selector.select(0.25 if unproven else None)
                for key, events in ready:
                    if key.data in self._servers:
                        self._accept(key.data, unproven)
                    elif key.data is None:
                        with suppress(BlockingIOError):
                            os.read(self._woken, 4096)
                    else:
                        self._attend(key.data, events)
                with self._changed:
                    new, self._new = self._new, []
                    for link in new:
                        self._look_after(link, unproven)
                for link in [link for link in unproven if link.proven or link.dead]:
                    unproven.discard(link)
                for link in [link for link in unproven if link.deadline < self.now()]:
                    self._next_host(link)
        finally:
            with self._changed:
                self._closed = True
                for link in list(self._links.values()):
                    self._give_up(link)
                self._blobs.clear()
                self._new.clear()
                self._let_go()
                self._changed.notify_all()

    def _let_go(self) -> None:
        """Close all that the system has given."""
        watched = [key.fileobj for key in self._selector.get_map().values()]
        for one in (*watched, *self._servers):  # a server may not be watched yet
            if isinstance(one, socket.socket):
                one.close()
        self._selector.close()
        for end in {self._wake, self._woken} - {-1}:
            os.close(end)
        self._wake = self._woken = -1

    def _look_after(self, link: Link, unproven: set[Link]) -> None:
        if link.dead:
            self._shut(link)
        elif link.sock is None:
            unproven.add(link)
            self._next_host(link)
        elif link.proven:
            self._watch(link)

    def _watch(self, link: Link) -> None:
        """Have the selector look for what this connection waits for."""
        link.writing = bool(link.out)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.writing else 0)
        assert link.sock is not None
        self._selector.modify(link.sock, events, link)

    def _accept(self, server: socket.socket, unproven: set[Link]) -> None:
        with suppress(OSError):
            sock, _ = server.accept()
            if len(unproven) >= _UNPROVEN:
                sock.close()
                return
            link = Link(None, Reader(NONCE + PROOF, self._blobs.room))
            link.nonce, link.deadline = secrets.token_bytes(NONCE), self.now() + _HANDSHAKE
            self._adopt(link, sock, selectors.EVENT_READ)
            unproven.add(link)
            sock.send(link.nonce)  # a new connection has room for so little

    def _adopt(self, link: Link, sock: socket.socket, events: int) -> None:
        link.adopt(sock)
        self._selector.register(sock, events, link)

    def _next_host(self, link: Link) -> None:
        """Try the next address of a node that we are to connect to; give up after the last."""
        self._shut(link)
        while link.address is not None and link.hosts:
            where = link.hosts.pop(0)
            sock = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
            sock.setblocking(False)
            link.deadline = self.now() + _HANDSHAKE
            link.reader = Reader(NONCE, self._blobs.room)
            link.nonce = b""
            if sock.connect_ex(where) in (0, errno.EINPROGRESS):
                self._adopt(link, sock, selectors.EVENT_READ)
                return
            sock.close()
        with self._changed:
            if link.address is not None:
                self._failed[link.address.id] = self.now()
            self._give_up(link)

    def _shut(self, link: Link) -> None:
        if link.sock is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(link.sock)
            link.sock.close()
            link.sock = None

    def _attend(self, link: Link, events: int) -> None:
        if link.sock is None:
            return
        try:
            if link.secured and not link.proven:
                self._secure(link)
                return
            if events & selectors.EVENT_WRITE:
                with self._changed:
                    self._flush(link)
                    if not link.out and not link.dead:
                        self._watch(link)
            if events & selectors.EVENT_READ:
                self._receive(link)
        except (OSError, NotOurs, KeyError, TypeError, ValueError):
            if link.proven or link.address is None:
                with self._changed:
                    self._give_up(link)
            else:
                self._next_host(link)

    def _receive(self, link: Link) -> None:
        turns = 64  # then others have theirs
        while turns > 0 or link.pending:
            turns -= 1
            sock = link.sock
            if sock is None or link.dead:
                return
            count = link.fill()
            if count is None:
                return
            if not count:
                raise ConnectionResetError
            if link.proven:
                # Blobs are written where they belong, so the reader asks about them.
                with self._changed:
                    frame = link.reader.filled(count)
                    if isinstance(frame, tuple):
                        self._frame(link, *frame)
            else:
                given = link.reader.filled(count)
                if isinstance(given, bytes):
                    self._prove(link, given)
                    if link.secured and not link.proven:
                        return

    def _prove(self, link: Link, given: bytes) -> None:
        """Go on with the handshake; `given` is what was awaited."""
        sock, token = link.sock, self._token
        assert sock is not None
        if link.address is None:
            theirs, ours = given[:NONCE], link.nonce
            check(given[NONCE:], proof(token, b"connector", ours, theirs, self.id))
            sock.send(proof(token, b"acceptor", theirs, ours, self.id))
        elif not link.nonce:
            link.nonce = secrets.token_bytes(NONCE)
            mine = proof(token, b"connector", given, link.nonce, link.address.id)
            sock.send(link.nonce + mine)
            link.reader.expect(PROOF)
            link.given = given
            return
        else:
            check(given, proof(token, b"acceptor", link.nonce, link.given, link.address.id))
        if self._keys is None or link.same_host:
            self._begin(link)
            return
        self._selector.unregister(sock)
        link.secure(self._keys)
        assert link.sock is not None
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        self._secure(link)

    def _secure(self, link: Link) -> None:
        """Go on with TLS. A flight of it fits into the buffer of a socket that has sent nothing."""
        if link.shake_hands():
            self._begin(link)

    def _begin(self, link: Link) -> None:
        """Exchange frames from now on."""
        link.reader.frames()
        with self._changed:
            link.proven = True
            self._flush(link)
            if link.out and not link.dead:
                self._watch(link)

    def _frame(self, link: Link, header: Header, payload: memoryview) -> None:
        kind, blobs = header.get("k"), self._blobs
        if kind == WANT:
            self._pass_on(blobs.wanted(link, header))
        elif kind == PUSH:
            blobs.begin(str(header["name"]), int(header["size"]))
        elif kind == MAP:
            blobs.mapped(header, link.fds.popleft())
        elif kind in (DATA, HAVE):
            more = blobs.came(header, payload) if kind == DATA else blobs.told(header)
            self._pass_on(more)
            blob = blobs[str(header["name"])]
            if blob is not None and blob.complete:
                self._changed.notify_all()
        else:
            self._inbox.append((header, payload))
            self._changed.notify_all()
