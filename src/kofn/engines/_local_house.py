"""What the master of the local engine holds: a peer for each worker, and all to be let go."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from . import _forks
from . import _wire as wire
from ._bells import BOXES, Box, Tower
from ._forks import Lifeline
from ._processes import Process
from .exchange import Exchange
from .memory import Pool, Segment
from .worker import Launcher


class Operand:
    """A round's broadcast: the frame every worker gets, and where its arrays lie."""

    __slots__ = ("frame", "pending", "segment")

    def __init__(self, frame: bytes, segment: Segment | None) -> None:
        self.frame, self.segment, self.pending = frame, segment, 0


class Open:
    """A task that has not ended."""

    __slots__ = ("muted", "operand", "round", "segment")

    def __init__(self, round: int, operand: Operand | None, segment: Segment | None) -> None:
        self.round, self.operand, self.segment = round, operand, segment
        self.muted = False  # its Failed was told, the worker goes on


class Peer(wire.Channel):
    """What the master knows of one worker."""

    def __init__(self, id: int, sock: socket.socket, poll: Any, retried: bool) -> None:
        self.box = Box() if BOXES else None  # first: it may fail
        super().__init__(sock, poll)
        self.id, self.retried = id, retried
        self.process: Process | None = None  # until hello
        self.reason = ""  # why it never came
        self.tasks: dict[int, Open] = {}
        self.functions: set[int] = set()
        self.rounds: set[int] = set()  # whose operands it has
        self.segments: set[int] = set()  # of our pool, that it has mapped
        self.maps: dict[int, Any] = {}  # its reply segments, mapped here
        self.posted = 0  # bytes
        self.unsent: list[bytes] = []  # tasks, until somebody asks for events

    def note(self, data: bytes) -> None:
        """Have a frame go with the next message, but after those unsent."""
        (self.unsent or self.notes).append(data)

    def send(self, data: bytes, fds: list[int] | None = None, own: Segment | None = None) -> None:
        """Send frames, after those unsent."""
        if self.unsent:
            data = b"".join((*self.unsent, data))
            self.unsent.clear()
        super().send(data, fds, own)

    def post(self) -> bool:
        """Lay what is unsent into the box, if there is room; it is to be rung for."""
        if self.box is None or self.outbox or self.broken:
            return False
        data = b"".join((*self.notes, *self.unsent))
        if not self.box.post(data, self.sent):
            return False
        self.unsent.clear()
        self.notes.clear()
        self.posted += len(data)
        return True

    def close(self) -> None:
        super().close()
        self.broken = True
        if self.box is not None:
            self.box.close()
        for mapped in self.maps.values():
            mapped.close()
        self.maps.clear()


class Handle(Segment):
    """A second descriptor of a segment, to be closed once it has been passed."""

    __slots__ = ()

    def __init__(self, segment: Segment) -> None:
        self.fd = os.dup(segment.fd)

    def close(self) -> None:
        os.close(self.fd)


class House:
    """All that must be let go at the end; apart from the engine, so a finaliser can hold it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        with contextlib.ExitStack() as made:
            self.poll: Any = made.enter_context(contextlib.closing(wire.poller()))
            self.word = made.enter_context(contextlib.closing(Segment(8)))
            self.lifeline = made.enter_context(contextlib.closing(Lifeline()))
            self.tower = made.enter_context(contextlib.closing(Tower())) if BOXES else None
            made.pop_all()
        self.pool = Pool()
        self.cancelled = memoryview(self.word.map).cast("q")  # [0]: the highest cancelled round
        self.cancelled[0] = -(2**63)
        self.exchanges: list[Exchange] = []
        self.launcher: Launcher | None = None
        self.peers: dict[int, Peer] = {}  # by descriptor, the joining ones too
        _forks.watch(self)

    def close(self) -> None:
        """Kill the workers, wait for the launcher, close descriptors and maps."""
        if os.getpid() != self.owner:
            return  # a forked child must not end its parent's workers
        for peer in self.peers.values():
            if peer.process is not None:
                with contextlib.suppress(OSError):  # the lifeline's end does it too
                    peer.process.kill()
            peer.close()
        self.peers.clear()
        self.lifeline.close()
        if self.launcher is not None:
            self.launcher.close()
        self.poll.close()
        self.pool.close()
        for exchange in self.exchanges:
            exchange.close()
        self.cancelled.release()
        self.word.close()
        if self.tower is not None:
            self.tower.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets, so that its death is still seen."""
        self.lifeline.abandon()
        for peer in self.peers.values():
            peer.sock.close()  # and nothing else: the parent's epoll is this one's too
        if self.launcher is not None:
            self.launcher.control.close()
