"""What a worker rank does until the master ends it.

A rank on the master's machine sends the master one end of a socket pair, and is from then on a
worker like those of the local engine. One on another machine is sent messages by MPI.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import Any, NoReturn

import threadpoolctl

from .. import __version__
from . import _wire as wire
from ._forks import serve_a_master
from ._mpi_messages import Stream, rest
from ._mpi_setup import greeted
from ._processes import where_pids_count
from ._socket_worker import serve as serve_socket
from .memory import Packed, framed, pack, unpack
from .protocol import Cancel, Message, Values, WorkerProtocol, plain, typed

KNOCK = struct.Struct("<32sq")  # what comes with the end of a socket pair: the secret, the worker
ROUND = struct.Struct("<q")  # an urgent word: the highest cancelled round
LEAVE = b""  # an urgent word
AFRESH = "afresh"  # a message: the master has given this worker up, and wants it as another one
_LEAVE_LIMIT = 10  # seconds for MPI to let a spawned process go
VERSIONS = f"Python {sys.version_info[0]}.{sys.version_info[1]} and kofn {__version__}"


def serve(MPI: Any, comm: Any) -> NoReturn:
    """Be a worker of rank 0 of `comm` until it says so or is gone; then end this process."""
    serve_a_master()
    rank = _Rank(MPI, comm)
    with threadpoolctl.threadpool_limits(1), contextlib.suppress(MPI.Exception):
        ((worker, address, secret, rank.spin),) = wire.frames(rank.receive())
        greeted()
        sock, fds = connect(worker, address, secret)
        if not fds:
            rank.work()
        serve_socket([os.dup(sock.fileno()), *fds])
        sock.shutdown(socket.SHUT_RDWR)  # the master knows by that
        leave(rank.spawned)
    end()  # the master is gone


def connect(worker: int, address: bytes, secret: bytes) -> tuple[socket.socket, list[int]]:
    """Return a socket to the master and descriptors for `serve_socket`; none on another machine.

    The address is of use on the master's machine only, and there only the master knows the secret.
    """
    ours, theirs = wire.pair()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with door, theirs, contextlib.suppress(OSError):
        door.connect(address)
        socket.send_fds(door, [KNOCK.pack(secret, worker)], [theirs.fileno()])
    return ours, socket.recv_fds(ours, 1, 16, wire.FD_FLAGS)[1]


def end() -> NoReturn:
    """End this process, without MPI's own end: that would wait for everyone else's."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def leave(spawned: bool) -> NoReturn:
    """End because the master says so."""
    if spawned:
        # A spawned process is a job of its own: without this it would count as failed. Where others
        # are in the job it would wait for them. It takes a while on a busy machine.
        MPI: Any = sys.modules["mpi4py.MPI"]
        signal.alarm(_LEAVE_LIMIT)
        with contextlib.suppress(MPI.Exception):
            MPI.Finalize()
    end()


class _Rank(Values):
    """A worker of another machine. Whatever MPI raises here means that the master is gone."""

    def __init__(self, MPI: Any, comm: Any) -> None:
        self.stream = Stream(MPI, comm, 0)
        self.spawned = comm != MPI.COMM_WORLD
        self.spin = 0.0  # seconds of looking without a rest
        self.parent = os.getppid()
        self.outgoing: deque[Message] = deque()  # by other threads: MPI is this one's
        self.protocol = self._protocol()

    def _protocol(self) -> WorkerProtocol:
        return WorkerProtocol(self, self.look, lambda: self.outgoing.append)

    def receive(self) -> Any:
        """Wait for a message."""
        began = time.perf_counter()
        while (data := self.stream.receive()) is None:
            self.stream.push()
            self.look()
            time.sleep(rest(time.perf_counter() - began, self.spin))
        return data

    def look(self) -> int:
        """Take in what the master says out of turn; return the highest cancelled round."""
        for word in self.stream.urged():
            if word == LEAVE:
                leave(self.spawned)
            for _ in self.protocol.handle(Cancel(ROUND.unpack(word)[0])):
                pass
        if os.getppid() != self.parent:  # the daemon is gone, and MPI would never tell
            end()
        while self.outgoing:
            self.send(self.outgoing.popleft())
        return self.protocol.cancelled

    def work(self) -> NoReturn:
        """Say hello, then handle messages in order."""
        hello = wire.frame(" ".join(where_pids_count()), VERSIONS)
        self.stream.send(hello)
        while True:
            for fields in wire.frames(self.receive()):
                if fields[0] == AFRESH:
                    self.protocol = self._protocol()
                    self.stream.send(hello)
                    continue
                for message in self.protocol.handle(typed(fields)):
                    self.send(message)

    def send(self, message: Message) -> None:
        """Send a message; wait only while many are on their way."""
        began, sent = time.perf_counter(), self.stream.send(wire.frame(*plain(message)))
        while not sent:
            time.sleep(rest(time.perf_counter() - began, self.spin))
            sent = self.stream.push()

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        packed = pack(value, tidy=True)[0]
        return packed if packed[0] is None else framed(packed)

    def unpack(self, packed: Packed) -> Any:
        return unpack(packed, None)
