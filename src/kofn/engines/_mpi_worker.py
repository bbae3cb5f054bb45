"""What a worker rank does until the master ends it.

A rank on the master's machine connects to the master's Unix socket and is from then on a worker
like those of the local engine. One on another machine is sent messages by MPI.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

import threadpoolctl

from . import _wire as wire
from ._mpi_messages import Backoff, Stream
from ._socket_worker import SocketWorker
from ._socket_worker import serve as serve_near
from .memory import Packed, contiguous, pack, unpack
from .protocol import Cancel, Message, Values, WorkerProtocol, plain, typed

GREETING, HELLO, LEAVE = range(110, 113)  # frames besides the protocol's messages
KNOCK = struct.Struct("<32sq")  # the first bytes on the master's socket: the secret, the worker
_ROUND = struct.Struct("<q")  # an urgent word: the highest cancelled round; empty: leave
_LEAVE_LIMIT = 10  # seconds for MPI to let a spawned process go


def cancel_word(round: int) -> bytes:
    """Return the urgent word that cancels a round."""
    return _ROUND.pack(round)


def serve(MPI: Any, comm: Any) -> NoReturn:
    """Be a worker of rank 0 of `comm` until it says so or is gone; then end this process."""
    # Ctrl-C goes to the whole process group; only the master decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        # A killed worker flushes nothing; printed lines should be seen all the same.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    rank = _Rank(MPI, comm)
    with threadpoolctl.threadpool_limits(1):
        try:
            ((_, worker, address, secret, spin),) = wire.frames(rank.receive())
            if not address:
                leave(rank.spawned)  # more ranks than were asked for
            near = connect(worker, address, secret)
            if near is None:
                rank.spin = spin
                rank.work()
            serve_near(near, _NearWorker)
        except MPI.Exception:
            pass  # the master is gone
    end()


def connect(worker: int, address: bytes, secret: bytes) -> list[int] | None:
    """Connect to the master's socket; return descriptors for `serve_near`, None where it is far.

    The name of the socket means something on the master's machine only, and there only the master
    knows the secret.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address)
        sock.sendall(KNOCK.pack(secret, worker))
        fds = socket.recv_fds(sock, 1, 16, wire.FD_FLAGS)[1]
    except OSError:
        fds = []
    if not fds:
        sock.close()
        return None
    return [sock.detach(), *fds]


def end() -> NoReturn:
    """End this process, without MPI's own end: that would wait for everyone else's."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


class _NearWorker(SocketWorker):
    """A worker of the master's machine, which MPI only started."""

    def handle(self, fields: tuple[Any, ...]) -> None:
        if fields[0] == LEAVE:
            self.sock.close()  # the master knows by that
            leave(spawned=fields[1])
        super().handle(fields)


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
        self.MPI, self.stream = MPI, Stream(MPI, comm, 0)
        self.spawned = comm != MPI.COMM_WORLD
        self.spin = False
        self.parent = os.getppid()
        self.protocol = WorkerProtocol(self, self.look)

    def receive(self) -> Any:
        """Wait for a message."""
        backoff = Backoff(self.spin)
        while (data := self.stream.receive()) is None:
            self.stream.push()
            self.look()
            time.sleep(backoff.rest())
        return data

    def look(self) -> int:
        """Take in what the master says out of turn; return the highest cancelled round."""
        for word in self.stream.urged():
            if not word:
                leave(self.spawned)
            for _ in self.protocol.handle(Cancel(_ROUND.unpack(word)[0])):
                pass
        if os.getppid() != self.parent:  # the daemon is gone, and MPI would never tell
            end()
        return self.protocol.cancelled

    def work(self) -> NoReturn:
        """Say hello, then handle messages in order."""
        from .. import __version__  # not above: this module is imported by it

        versions = (*sys.version_info[:2], __version__)
        self.stream.send(wire.frame(HELLO, socket.gethostname(), versions))
        while True:
            for fields in wire.frames(self.receive()):
                for message in self.protocol.handle(typed(fields)):
                    self.send(message)

    def send(self, message: Message) -> None:
        """Send a message; wait only while many are on their way."""
        self.stream.send(wire.frame(*plain(message)))
        backoff = Backoff(self.spin)
        while not self.stream.push():
            time.sleep(backoff.rest())

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        return pack(contiguous(value))[0]

    def unpack(self, packed: Packed) -> Any:
        return unpack(packed, None)
