"""Workers of this machine, each at the other end of a Unix socket, and shared memory between.

Shares, operands and large replies lie in shared memory; an operand is written once, however many
workers there are. The cancelled round is one shared word. Tasks are sent by the next `poll`; those
for most workers go through mailboxes, and one system call wakes all. Small replies come by them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..exchange import Exchange, ExchangeLayout
from ..interrupts import opened
from ..model import Room
from ..threads import usable
from . import _wire as wire
from ._forks import Lifeline, watched
from ._peer import Peer
from ._processes import Process, where_pids_count
from ._spares import Handle, Spares
from ._wakeup import MAILBOXES, Waker
from .memory import (
    OWN,
    Packed,
    Pool,
    Reserved,
    Segment,
    attach,
    borrowed,
    fresh,
    inline,
    large,
    pack,
    unpack,
)
from .protocol import KINDS, NEVER, Cancel, Message, WorkerDown, WorkerUp, plain, typed
from .protocol.messages import AddBody, AddOperand, DropOperand, Forget, Put, RunTask, TaskReply
from .transport import Transport

# Frames besides the protocol's messages. From a worker: it is there (its process); a segment of its
# pool is closed. To a worker: a segment of the master's pool is closed; the master could not map
# one of the worker's.
HELLO, GONE, UNMAP, UNPASS = range(100, 104)
EXCHANGE = "exchange"  # in place of a packed value's head: memory to be mapped as an Exchange
_WAIT = frozenset({AddBody, AddOperand, DropOperand})  # sent with the next message
_NONE: tuple[Message, bytes, Segment | None] = ((), b"", None)  # a message, its frame and segment
_FDS = 12  # descriptors that go with one frame
_FIXED = 1000  # arguments of tasks, of which it is kept how they are packed
VALUE_AT = {  # where in a frame to a worker the packed value is, by the number of its kind
    number: 1 + kind._fields.index(name)
    for number, kind in enumerate(KINDS)
    for name in ("args", "value")
    if name in kind._fields
}


class Shared(NamedTuple):
    """A packed value and its memory: a Segment to be sent, an mmap received, or why it was not.

    `lent` has what of the worker's memory is in use here, and not copied.
    """

    packed: Packed
    memory: Any
    lent: set[int] | None = None


class SocketTransport(Transport):
    """The master's side; subclasses say how workers are started."""

    def __init__(self) -> None:
        super().__init__()
        self._host, self._cores = " ".join(where_pids_count()), usable()
        with contextlib.ExitStack() as made:
            self._poll: Any = made.enter_context(contextlib.closing(wire.poller()))
            self.word = made.enter_context(contextlib.closing(Segment(8)))
            # [0]: the highest cancelled round, which the workers look at.
            self._cancelled = made.enter_context(memoryview(self.word.map).cast("q"))
            self._cancelled[0] = NEVER
            self.lifeline = made.enter_context(contextlib.closing(Lifeline()))
            self.waker = self.master_waker = None  # wakes the workers; is how they wake us
            if MAILBOXES:
                self.waker = made.enter_context(contextlib.closing(Waker()))
                self.master_waker = made.enter_context(contextlib.closing(Waker()))
                self._poll.register(self.master_waker.fd, wire.IN)
            self.pool = made.enter_context(contextlib.closing(Pool()))
            self.spares = made.enter_context(contextlib.closing(Spares()))
            self._made = made.pop_all()
        self._exchanges: list[Exchange] = []
        self._lasting: set[Segment] = set()  # on their way to workers that will keep them
        self.peers: dict[int, Peer] = {}  # by descriptor, the joining ones too
        self._live: dict[int, Peer] = {}  # by worker
        self._unsent: dict[int, Peer] = {}  # who have frames to be sent
        # The last operand that was sent; by whether all of it is in the frame.
        self._framed = {False: _NONE, True: _NONE}
        self._fixed: dict[int, tuple[Any, Packed]] = {}  # arguments that nobody can change, by id
        self._before = 0  # bytes to and from workers that are gone
        watched.add(self)

    # Workers.

    @contextlib.contextmanager
    def _adding(self, worker: int, sock: socket.socket) -> Iterator[list[int]]:
        """Take in a worker at the other end of a socket; it is to be given what this yields."""
        try:
            peer = self.peers[sock.fileno()] = Peer(worker, sock, self._poll)
        except BaseException:
            sock.close()
            raise
        fds = [self.word.fd, self.lifeline.fd]
        if peer.mailbox is not None and self.waker is not None and self.master_waker is not None:
            fds += [peer.mailbox.fd, self.waker.fd, self.master_waker.fd]
        try:
            yield fds
        except BaseException:
            self._drop(peer)
            raise
        if peer.mailbox is not None:
            peer.mailbox.given()

    def _drop(self, peer: Peer) -> None:
        del self.peers[peer.fd]
        self._live.pop(peer.id, None)
        self._unsent.pop(peer.id, None)
        self._before += peer.moved
        self.spares.lost(peer.id)
        peer.close()

    def end(self, worker: int) -> None:
        self._live[worker].process.kill()

    def pid(self, worker: int) -> int | None:
        peer = self._live.get(worker)
        return peer.process.pid if peer is not None else None

    def moved(self, worker: int) -> int | None:
        peer = self._live.get(worker)
        return None if peer is None else peer.moved

    # Values.

    def pack(self, value: Any, lasting: bool = False) -> Packed | Shared:
        """Write large buffers to a segment; `lasting`: to one that only its worker will hold."""
        if not lasting:
            if (known := self._fixed.get(id(value))) is not None:
                return known[1]  # tasks have the same arguments in every round
            packed, segment = pack(value, self.pool.take)
            if packed[0] is None and type(value) is tuple:
                if len(self._fixed) >= _FIXED:
                    self._fixed.clear()
                self._fixed[id(value)] = value, packed
        elif isinstance(value, Exchange):
            packed, segment = (EXCHANGE, astuple(value.layout), OWN), Handle(value.owner)
        elif isinstance(value, Reserved):
            packed, segment = value.packed, value
        else:
            packed, segment = pack(value, lambda size: fresh(size, OWN))
        if segment is None:
            return packed
        if lasting:
            self._lasting.add(segment)
        return Shared(packed, segment)

    def room(self, shape: tuple[int, ...], dtype: DTypeLike) -> Room | None:
        return self.spares.room(shape, np.dtype(dtype))

    def own(self, packed: Packed | Shared) -> Packed | Shared:
        if type(packed) is Shared or packed[0] is None:
            return packed
        return packed[0], tuple(map(bytes, packed[1])), None

    def unpack(self, packed: Any) -> Any:
        if type(packed) is not Shared:
            return packed[1][0] if packed[0] is None else unpack(packed, None, copy=True)
        packed, memory, _ = packed
        if isinstance(memory, OSError):
            raise memory
        try:
            return unpack(packed, memory, copy=True)
        finally:
            memory[0] = 0  # free: the worker may write to it again

    def borrow(self, packed: Any) -> Any:
        if type(packed) is not Shared:
            return unpack(packed)
        if packed.lent is not None:
            array = borrowed(packed.packed, packed.memory, packed.lent)
            if array is not None:
                return array
        return self.unpack(packed)

    def release(self, packed: Packed | Shared) -> None:
        if type(packed) is not Shared:
            return
        segment = packed.memory
        if segment.id == OWN:
            if segment in self._lasting:
                self._lasting.remove(segment)
                segment.close()
            return
        for closed in self.pool.give(segment):
            for peer in self._live.values():
                if closed in peer.segments:
                    peer.segments.remove(closed)
                    peer.unsent.append(wire.frame(UNMAP, closed))  # it can wait

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        segment = Segment(layout.size)
        exchange = Exchange(segment.map, layout)
        exchange.owner = segment
        self._exchanges = [*(old for old in self._exchanges if old.owner is not None), exchange]
        return exchange

    @property
    def traffic(self) -> int | None:
        """Bytes over the sockets, and those that lay in shared memory for or from the master."""
        return sum(p.moved for p in self.peers.values()) + self._before + self.pool.written

    @property
    def crowded(self) -> Collection[int]:
        return self._live.keys() if len(self._live) > self._cores else ()

    # Messages.

    def cancelled(self, round: int) -> None:
        self._cancelled[0] = round
        self._framed = {False: _NONE, True: _NONE}

    def send(self, worker: int, message: Message) -> None:
        peer = self._live.get(worker)
        kind = type(message)
        if peer is None or kind is Cancel:
            return  # it is gone, and its end will be told; or it sees the cancelled word
        framed, data, segment = self._framed[False]
        if framed is not message:
            data, segment = self._frame(message)
        peer.unsent.append(data)
        if segment is not None and (segment.id == OWN or segment.id not in peer.segments):
            peer.segments.add(segment.id)
            peer.unsent_fds.append(segment.fd)
            if segment.id == OWN and kind is Put:
                peer.copied += large(message[1].packed)
                self.spares.lend(worker, message[0], segment)
        if kind is Forget:
            self.spares.forgotten(worker, message[0])
        if kind is RunTask and len(peer.unsent_fds) < _FDS:
            self._unsent[worker] = peer
        elif kind not in _WAIT:
            peer.send()
            if type(message) is Put and not peer.outbox:  # the descriptor is the worker's
                self.release(message.value)

    def _frame(self, message: Message, whole: bool = False) -> tuple[bytes, Segment | None]:
        """Return a message as a frame, and the segment that goes with it; `whole`: without one."""
        fields, segment = plain(message), None
        at = VALUE_AT.get(fields[0])
        if at is not None and type(fields[at]) is Shared:
            packed, segment, _ = fields[at]
            if whole:
                packed, segment = inline(packed, segment), None
            fields = (*fields[:at], packed, *fields[at + 1 :])
        data = wire.frame(*fields)
        if type(message) is AddOperand:  # the same for every worker
            self._framed[whole] = message, data, segment
        return data, segment

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        if self._unsent:
            self._flush()
        if self.spares.lent or self.spares.going:
            self.spares.trim()
        if timeout <= 0:
            ready = self._poll.poll(0)
        else:
            with opened():
                ready = self._poll.poll(timeout if timeout < 1e9 else None)
        arrived: list[tuple[int, Message]] = []
        for fd, mask in ready:
            peer = self.peers.get(fd)
            if peer is None:
                if self.master_waker is not None and fd == self.master_waker.fd:
                    self.master_waker.read()  # first: who posts later wakes us again
                    for one in self.peers.values():
                        self._open(one, arrived)
                else:
                    self._ready(fd, arrived)
                continue
            if mask & wire.OUT and peer.outbox:
                peer.flush()
            if mask & ~wire.OUT:
                self._read(peer, arrived)
        return arrived

    def _flush(self) -> None:
        """Send the tasks; where they are for most workers, by mailboxes and one write."""
        waiting = [peer for peer in self._unsent.values() if peer.unsent]
        self._unsent.clear()
        waker = self.waker if 2 * len(waiting) > len(self._live) else None
        late = waiting if waker is None else [peer for peer in waiting if not peer.post()]
        for peer in late:
            peer.send()
        if waker is not None and len(late) < len(waiting):
            waker.wake()

    def _ready(self, fd: int, arrived: list[tuple[int, Message]]) -> None:
        """Handle a descriptor of the poller that is no worker's."""

    def _read(self, peer: Peer, arrived: list[tuple[int, Message]]) -> bool:
        """Take in what a worker sent; return whether there may be more."""
        try:
            frames = peer.receive()
        except BlockingIOError:
            return False
        if frames is None:
            self._ended(peer, arrived)
            return False
        for fields, size in zip(frames, peer.sizes, strict=True):
            self._open(peer, arrived)
            self._take(peer, fields, arrived)
            peer.position += size
        self._open(peer, arrived)
        return True

    def _open(self, peer: Peer, arrived: list[tuple[int, Message]]) -> None:
        """Take in what a worker has put into its mailbox, if its turn has come."""
        if peer.mailbox is not None and (data := peer.mailbox.take(peer.position)) is not None:
            peer.received += len(data)
            for fields in wire.frames(data):
                self._take(peer, fields, arrived)

    def _take(self, peer: Peer, fields: Any, arrived: list[tuple[int, Message]]) -> None:
        """Take in a frame."""
        if fields[0] < HELLO:
            message = typed(fields)
            if type(message) is TaskReply:  # both, in the order of their descriptors
                if message[1][2] is not None:
                    message = message._replace(what=self._locate(peer, message[1]))
                if message[2][2] is not None:
                    message = message._replace(value=self._locate(peer, message[2]))
            arrived.append((peer.id, message))
        elif fields[0] == GONE:
            peer.maps.pop(fields[1], None)
        else:
            peer.process = Process(*fields[1:])
            self._live[peer.id] = peer
            arrived.append((peer.id, WorkerUp(self._host)))

    def _locate(self, peer: Peer, packed: Packed) -> Shared:
        segment: Any = packed[2]
        if segment not in peer.maps:
            try:
                peer.maps[segment] = attach(peer.fds.popleft(), write=True)
            except OSError as error:
                peer.unsent.append(wire.frame(UNPASS, segment))
                return Shared(packed, error)
        peer.copied += large(packed)
        return Shared(packed, peer.maps[segment], peer.lent)

    def _ended(self, peer: Peer, arrived: list[tuple[int, Message]]) -> None:
        """Handle a worker's death, after all that it had sent."""
        self._open(peer, arrived)
        self._drop(peer)
        arrived.append((peer.id, WorkerDown(peer.reason)))

    def close(self) -> None:
        for peer in self.peers.values():
            if peer.process is not None:
                with contextlib.suppress(OSError):  # the lifeline's end does it too
                    peer.process.kill()
            peer.close()
        self.peers.clear()
        memories: list[Segment | Exchange] = [*self._lasting, *self._exchanges]
        for memory in memories:
            memory.close()
        self._made.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets, so that its death is still seen."""
        self.lifeline.held.close()
        for peer in self.peers.values():
            peer.sock.close()  # and nothing else: the parent's epoll is this one's too
