"""The local engine: one process per worker on this machine."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from typing import Any, ClassVar

from .. import checks
from ..errors import EngineUnavailable, OutOfResources
from ..interrupts import held
from . import _wire as wire
from ._launcher import FAILED, Launcher
from ._peer import Peer
from ._processes import available_memory
from ._socket_worker import serve
from ._sockets import SocketTransport
from .base import Capabilities
from .memory import room_for
from .protocol import Message, WorkerDown
from .transport import TransportEngine

_START_LIMIT = 60.0  # seconds for the first workers to come
_DESCRIPTORS, _SPARE = 2, 16  # of the master: for each worker its socket and mailbox; for the rest
_MEMORY = 20 << 20  # bytes that a worker takes before it has any data; 3 to 17 MB were measured


class LocalEngine(TransportEngine):
    """Workers are processes of this machine, each with one BLAS thread.

    Nothing listens, nothing has a name: descriptors pass over socket pairs, memory is anonymous.
    Tasks are sent by the next call of `events`; an operand is written once for all workers.
    """

    name: ClassVar[str] = "local"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True, exchange=True)
    _transport: LocalTransport

    def __init__(self, workers: int | None = None) -> None:
        asked = os.cpu_count() or 1 if workers is None else workers
        workers = checks.whole(asked, "workers", 1, remedy="Leave it out for one per core.")
        what = f"LocalEngine({workers})"
        _check_room(what, workers)
        with held(), room_for(what), self._open(LocalTransport()) as transport:
            for _ in range(workers):
                transport.start(next(transport.ids))
            why = self._await(lambda: len(self.workers) == workers, _START_LIMIT)
            if why:
                raise EngineUnavailable(
                    f"LocalEngine starts all its workers within {_START_LIMIT:.0f} s; "
                    f"{len(self.workers)} of {workers} came ({why}). Start fewer."
                )
            transport.started = True


def _check_room(what: str, workers: int) -> None:
    """Refuse workers for which there are no descriptors or no memory, before any is started."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    need = workers * _DESCRIPTORS + _SPARE
    with suppress(OSError):  # where nobody tells, the system refuses what is too much
        need += len(os.listdir("/proc/self/fd"))
    if most != resource.RLIM_INFINITY and need > most:
        raise OutOfResources(what, f"{need} file descriptors are needed, and {most} are allowed")
    free = available_memory()
    if free is not None and workers * _MEMORY > free:
        mega = 1 << 20
        lacks = f"{workers * _MEMORY // mega} MB of memory are needed, and {free // mega} are free"
        raise OutOfResources(what, lacks)


class LocalTransport(SocketTransport):
    """Starts workers by a launcher, which holds no socket of theirs: a death is seen at once."""

    def __init__(self) -> None:
        super().__init__()
        self.launcher: Launcher | None = None
        self.started = False  # the first workers have come
        self._retried: set[int] = set()  # workers that were ordered a second time

    def start(self, worker: int) -> None:
        ours, theirs = wire.pair()
        with theirs, self._adding(worker, ours) as given:
            fds = [theirs.fileno(), *given]
            try:
                self._launcher().order(f"worker {worker}", fds=fds)
            except ConnectionError:  # it was killed since we looked
                self._drop_launcher()
                self._launcher().order(f"worker {worker}", fds=fds)

    def _launcher(self) -> Launcher:
        if self.launcher is None:
            self.launcher = Launcher(__name__)
            self._made.callback(self.launcher.close)  # waits until they are gone: milliseconds
            self._poll.register(self.launcher.control.fileno(), wire.IN)
        return self.launcher

    def _drop_launcher(self) -> None:
        launcher, self.launcher = self.launcher, None
        if launcher is not None:
            self._poll.unregister(launcher.control.fileno())
            launcher.close()

    def _ready(self, fd: int, arrived: list[tuple[int, Message]]) -> None:
        """Take in what the launcher says: who has died, and why one was not even forked.

        Usually a worker's end of file is seen first. It is not if a process that the worker
        started holds its socket open.
        """
        for peer in self._dying():
            while self.peers.get(peer.fd) is peer and self._read(peer, arrived):
                pass
            if self.peers.get(peer.fd) is peer:
                self._ended(peer, arrived)

    def _dying(self) -> list[Peer]:
        dying: list[Peer] = []
        while self.launcher is not None:
            try:
                news = self.launcher.news(socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if news is None:
                self._drop_launcher()
            for kind, name, *reason in news or ():
                for peer in self.peers.values():
                    if name == f"worker {peer.id}":
                        dying.append(peer)
                        if kind == FAILED:
                            peer.reason = f"it could not be forked: {reason[0]}"
        return dying

    def _ended(self, peer: Peer, arrived: list[tuple[int, Message]]) -> None:
        if peer.process is None:
            self._dying()  # why it never came
            if self.started and not peer.reason and peer.id not in self._retried:
                # Its order may have died with a launcher. Try a new one once.
                self._drop(peer)
                self._retried.add(peer.id)
                try:
                    self.start(peer.id)
                except OSError as error:
                    peer.reason = f"it could not be started: {error}"
                    arrived.append((peer.id, WorkerDown(peer.reason)))
                return
        super()._ended(peer, arrived)

    def abandon(self) -> None:
        super().abandon()
        if self.launcher is not None:
            self.launcher.control.close()


def begin(order: list[Any], fds: list[int], control: socket.socket) -> None:
    """Be a worker: what the launcher's child runs."""
    control.close()
    serve(fds)
    # No clean-up to wait for: everything the worker holds is its own anonymous memory.
    os._exit(0)
