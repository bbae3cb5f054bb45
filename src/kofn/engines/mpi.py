"""The MPI engine: one rank per worker, under mpiexec."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

from .. import checks
from ..errors import CannotDo, EngineUnavailable
from ..exchange import Exchange, ExchangeLayout
from ..interrupts import held, opened
from . import _wire as wire
from ._mpi_messages import Backoff, Stream
from ._mpi_setup import AGAIN, ALWAYS, HERE, command, problem, start, unset
from ._mpi_worker import GREETING, KNOCK, LEAVE, cancel_word, serve
from ._sockets import EXCHANGE, Shared, SocketTransport
from .base import Capabilities
from .protocol import Cancel, Message, WorkerDown, WorkerUp, typed
from .protocol.messages import Put, PutFailed
from .transport import TransportEngine

if find_spec("mpi4py") is None:
    raise ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py")

_START = 60.0  # seconds for the first workers to come
_LEAVE = 10.0  # seconds for MPI to let spawned workers go
_END = 2.0  # seconds for workers to begin to end

# The ranks of an mpiexec serve one engine and end with it; MPI's world is one per process.
_ranks_taken = False


class MPIEngine(TransportEngine):
    """Workers are MPI processes, each with one BLAS thread; a lost one is Open MPI's ULFM news.

    Under ``mpiexec --with-ft ulfm -n 7 python script.py`` rank 0 is the master, and the other
    ranks become its workers: there this call does not return, it serves until the master closes
    and then ends the process. So a script written for one master just works. Once closed, the
    ranks are gone: a second engine in the same run starts its workers by Spawn. `join` is one
    MPI_Comm_spawn in the background.

    Workers on the master's machine are spoken to as those of the local engine are, by sockets and
    shared memory; those of other machines by MPI's messages, one a task, an operand once a round.
    Arrays that reach a worker are read-only, those in events are private and writable. A body is
    sent to a worker once: what it closes over is what it was then.
    """

    name: ClassVar[str] = "mpi"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True)
    _transport: MPITransport

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None:
            remedy = "Leave it out for all ranks of mpiexec."
            workers = checks.whole(workers, "workers", 1, remedy=remedy)
        if "OMPI_COMM_WORLD_SIZE" not in os.environ and "PMIX_RANK" not in os.environ:
            raise EngineUnavailable(
                f"engine 'mpi' runs under mpiexec; this process was started without it. Start it "
                f"so: {AGAIN}. For workers on this machine alone: kofn.connect('local')."
            )
        with held():
            self._begin(workers)

    def _begin(self, workers: int | None) -> None:
        """Take in the other ranks, or become a worker oneself."""
        global _ranks_taken
        size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 0))
        alone = size and size == int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0))
        settings = unset({**ALWAYS, **(HERE if alone else {})})
        if "mpi4py.MPI" in sys.modules:
            settings = {}  # too late for this process, and joiners must agree with it
        os.environ.update(settings)  # Spawn does not pass them on
        MPI = start()
        world = MPI.COMM_WORLD
        size, rank = world.Get_size(), world.Get_rank()
        wrong = problem(MPI, size, None if _ranks_taken else workers)
        if rank:
            if wrong is None:
                with opened(foreign=True):  # handlers that the script has set are its own
                    serve(MPI, world)
            raise SystemExit(0)  # rank 0 tells the problem, once
        if wrong is not None:
            raise EngineUnavailable(wrong)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            # Spawn would have to block the master.
            self.capabilities = replace(self.capabilities, can_join=False)
        transport = MPITransport(MPI, command(settings))
        self._open(transport)
        count = workers or size - 1
        try:
            if _ranks_taken:
                for _ in range(count):
                    self.join()
            else:
                _ranks_taken = True
                for rank in range(1, size):
                    worker = next(transport.ids) if rank <= count else None
                    transport.greet(worker, world, rank)
            why = self._await(lambda: len(self.workers) == count, _START)
            if why:
                raise EngineUnavailable(
                    f"all {count} workers of an MPIEngine must come; {len(self.workers)} did "
                    f"({why}). Each rank must be able to import kofn (pip install 'kofn[mpi]' on "
                    f"every machine) and call kofn.connect('mpi'); see the messages above."
                )
        except BaseException:
            self.close()
            raise
        self.capabilities = replace(self.capabilities, exchange=not transport.far)

    def join(self) -> int:
        """Spawn one more worker in the background and return its id at once."""
        if not self.capabilities.can_join:
            raise CannotDo(
                "engine 'mpi' starts workers in a thread; MPI was started here without "
                "MPI_THREAD_MULTIPLE. Call kofn.connect before importing mpi4py.MPI."
            )
        return super().join()


class MPITransport(SocketTransport):
    """Sockets for workers of this machine, streams of MPI for the others.

    Every rank is greeted by MPI. One of this machine then knocks at our socket.
    """

    def __init__(self, MPI: Any, spawned: list[str]) -> None:
        super().__init__()
        self._MPI, self._command = MPI, spawned
        crowd = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0))
        self._spin = crowd <= len(os.sched_getaffinity(0))
        self.far: dict[int, Stream] = {}  # live workers of other machines
        self._greeted: dict[int, Stream] = {}  # who have not answered yet
        self._unused: list[Stream] = []  # MPI may still write to what these hold
        self._spawned: set[int] = set()
        self._dead: list[tuple[int, Message]] = []  # ends that were seen while sending
        self._secret = secrets.token_bytes(32)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(b"\0kofn-" + secrets.token_hex(16).encode())  # no file
        self._listener.listen(64)
        self._knocking: dict[int, socket.socket] = {}
        self._orders: deque[int] = deque()  # workers to spawn
        self._come: deque[tuple[int, Any]] = deque()  # what became of them
        self._spawner: threading.Thread | None = None
        self._wake, self._wake_end = os.pipe()
        for fd in (self._listener.fileno(), self._wake):
            os.set_blocking(fd, False)
            self._poll.register(fd, wire.IN)
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.Set_errhandler(MPI.ERRORS_RETURN)

    # Workers.

    def greet(self, worker: int | None, comm: Any, rank: int) -> None:
        """Tell a process which worker it is; None: it is not needed."""
        stream = Stream(self._MPI, comm, rank)
        address = b"" if worker is None else self._listener.getsockname()
        with contextlib.suppress(self._MPI.Exception):  # gone: receiving will tell
            stream.send(wire.frame(GREETING, worker, address, self._secret, self._spin))
        if worker is None:
            self._unused.append(stream)
        else:
            self._greeted[worker] = stream

    def start(self, worker: int) -> None:
        """Spawn a process in the background: 1 to 2 seconds."""
        self._orders.append(worker)
        self._spawned.add(worker)
        if self._spawner is None or not self._spawner.is_alive():
            self._spawner = threading.Thread(target=self._spawn, name="kofn-spawn", daemon=True)
            self._spawner.start()

    def _spawn(self) -> None:
        # One Spawn per worker: those spawned together die together.
        MPI = self._MPI
        while self._orders:
            worker = self._orders.popleft()
            try:
                info = MPI.Info.Create({"map_by": "slot:OVERSUBSCRIBE", "bind_to": "none"})
                comm = MPI.COMM_SELF.Spawn(self._command[0], self._command[1:], 1, info)
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                self._come.append((worker, comm))
            except MPI.Exception as error:
                self._come.append((worker, f"MPI_Comm_spawn failed: {error}"))
            os.write(self._wake_end, b"!")

    def end(self, worker: int) -> None:
        """Kill a worker of this machine; tell one of another machine to end, and give it up."""
        stream = self.far.pop(worker, None)
        if stream is None:
            super().end(worker)
        else:
            self._urge(stream, b"")
            self._unused.append(stream)
            self._dead.append((worker, WorkerDown()))

    def exchange(self, layout: ExchangeLayout) -> Exchange:
        if self.far:
            raise _apart(sorted(self.far))
        return super().exchange(layout)

    # Messages.

    def send(self, worker: int, message: Message) -> None:
        stream = self.far.get(worker)
        if stream is None:
            super().send(worker, message)
            return
        if isinstance(message, Cancel):
            self._urge(stream, cancel_word(message.round))
            return
        value = message.value if isinstance(message, Put) else None
        if isinstance(value, Shared) and value.packed[0] == EXCHANGE:
            self._dead.append((worker, PutFailed(message[0], repr(_apart([worker])), "")))
            return
        data, _ = self._frame(message, whole=True)
        with contextlib.suppress(self._MPI.Exception):  # gone: receiving will tell
            stream.send(data)
            self._copied += len(data)

    def _urge(self, stream: Stream, word: bytes) -> None:
        with contextlib.suppress(self._MPI.Exception):  # gone: receiving will tell
            stream.urge(word)

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        """Return what has arrived. MPI cannot wait: where it is needed, this looks and rests."""
        end, backoff = time.perf_counter() + timeout, Backoff(self._spin)
        while True:
            dead, self._dead = self._dead, []
            arrived = dead + self._look()
            moved = [stream for stream in self.far.values() if stream.moved]
            for stream in moved:
                stream.moved = False
            if moved:  # something large is flowing: there is more to do soon
                backoff = Backoff(self._spin)
            left = end - time.perf_counter()
            rest = min(left, backoff.rest()) if self.far or self._greeted else left
            arrived += super().poll(0.0 if arrived else max(0.0, rest))
            if arrived or left <= 0:
                return arrived

    def _look(self) -> list[tuple[int, Message]]:
        """Look once at everybody who is spoken to by MPI."""
        arrived: list[tuple[int, Message]] = []
        for worker, stream in [*self._greeted.items(), *self.far.items()]:
            try:
                stream.push()
                while (data := stream.receive()) is not None:
                    self._copied += len(data)
                    for fields in wire.frames(data):
                        known = worker in self.far
                        message = typed(fields) if known else self._answered(worker, *fields[1:])
                        arrived.append((worker, message))
            except self._MPI.Exception:
                self._unused.append(stream)
                if self._greeted.pop(worker, None) or self.far.pop(worker, None):
                    arrived.append((worker, WorkerDown()))
        return arrived

    def _answered(self, worker: int, host: str, versions: tuple[Any, ...]) -> Message:
        """Take in a worker of another machine."""
        from .. import __version__

        stream = self._greeted.pop(worker)
        if tuple(versions) == (*sys.version_info[:2], __version__):
            self.far[worker] = stream
            return WorkerUp()
        self._urge(stream, b"")
        self._unused.append(stream)
        return WorkerDown(
            f"all ranks need one version of Python and of kofn; on {host} they are "
            f"{versions[0]}.{versions[1]} and {versions[2]}"
        )

    def _ready(self, fd: int, arrived: list[tuple[int, Message]]) -> None:
        if fd == self._wake:
            os.read(fd, 4096)
            while self._come:
                worker, comm = self._come.popleft()
                if isinstance(comm, str):
                    arrived.append((worker, WorkerDown(comm)))
                else:
                    self.greet(worker, comm, 0)
        elif fd == self._listener.fileno():
            with contextlib.suppress(BlockingIOError):
                sock = self._listener.accept()[0]
                sock.setblocking(False)
                self._knocking[sock.fileno()] = sock
                self._poll.register(sock.fileno(), wire.IN)
        else:
            self._let_in(fd)

    def _let_in(self, fd: int) -> None:
        """Take in a worker of this machine that has connected and knows the secret."""
        self._poll.unregister(fd)
        sock = self._knocking.pop(fd)
        with contextlib.suppress(OSError):
            secret, worker = KNOCK.unpack(sock.recv(KNOCK.size).ljust(KNOCK.size, b"\0"))
            if secrets.compare_digest(secret, self._secret) and worker in self._greeted:
                self._unused.append(self._greeted.pop(worker))
                with self._adding(worker, sock) as fds:
                    socket.send_fds(sock, [b"!"], fds)
                return
        sock.close()

    # The end.

    def close(self) -> None:
        """End every worker: they are told, and killed if that takes long.

        Those of other machines are only told. Who is being spawned comes first: without us it would
        wait in MPI's start for ever, and mpiexec for it.
        """
        if os.getpid() != self.owner:
            return
        self._orders.clear()
        self._run(_LEAVE, lambda: bool(self._spawning() or self._greeted.keys() & self._spawned))
        self.cancelled((1 << 63) - 1)  # nobody goes on with a task
        near = list(self._live.values())
        for peer in near:
            peer.send(wire.frame(LEAVE, peer.id in self._spawned))
        for stream in (*self.far.values(), *self._greeted.values()):
            self._urge(stream, b"")
        self._run(_END, lambda: any(peer.fd in self.peers for peer in near))
        # Who still has its socket is stopped, or deep in a body. A spawned worker closes it, then
        # takes a while to leave; it would count as a failed job if it were killed on its way out.
        for process in [peer.process for peer in near if peer.fd in self.peers and peer.process]:
            process.kill()
        self._run(_LEAVE, lambda: any(peer.process.running() for peer in near if peer.process))
        super().close()
        for sock in (self._listener, *self._knocking.values()):
            sock.close()
        os.close(self._wake)
        os.close(self._wake_end)

    def _spawning(self) -> bool:
        return bool(self._come) or (self._spawner is not None and self._spawner.is_alive())

    def _run(self, seconds: float, go_on: Callable[[], bool]) -> None:
        """Go on with MPI for at most so long: without that, nobody's end comes to an end."""
        limit = time.monotonic() + seconds
        while go_on() and time.monotonic() < limit:
            self.poll(0.0)
            time.sleep(0.002)


def _apart(workers: list[int]) -> CannotDo:
    return CannotDo(
        f"workers of engine 'mpi' exchange pieces through memory that all of them map; workers "
        f"{workers} cannot map this machine's. Go round by round: w = f(X @ w)."
    )
