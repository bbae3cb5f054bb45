"""The MPI engine: one rank per worker, under mpiexec."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from .. import checks
from ..errors import CannotDo, EngineUnavailable
from ..exchange import Exchange, ExchangeLayout
from ..interrupts import held, opened
from ..threads import usable
from . import _wire as wire
from ._mpi_messages import URGENT, Stream, rest
from ._mpi_setup import AGAIN, command, problem, start, unname_memory
from ._mpi_worker import AFRESH, KNOCK, LEAVE, ROUND, VERSIONS, serve
from ._sockets import EXCHANGE, Shared, SocketTransport
from .base import Capabilities
from .protocol import Cancel, Message, WorkerDown, WorkerUp, typed
from .protocol.messages import PutFailed
from .transport import TransportEngine

_START = 60.0  # seconds for workers to come
_LEAVE = 10.0  # seconds for MPI to let spawned workers go
_END = 2.0  # seconds for workers to begin to end
_SPIN = 0.0005  # seconds of looking without a rest, where each process has a core

# The ranks of an mpiexec serve one engine and end with it; MPI's world is one per process.
ranks_taken = False


class MPIEngine(TransportEngine):
    """Workers are MPI processes, each with one BLAS thread; a lost one is Open MPI's ULFM news.

    Under ``mpiexec --with-ft ulfm -n 7 python script.py`` rank 0 is the master, and the other
    ranks become its workers: there this call does not return, it serves until the master closes
    and then ends the process. So a script written for one master just works. Once closed, the
    ranks are gone: a second engine in the same run starts its workers by Spawn. `join` is one
    MPI_Comm_spawn in the background.

    Workers on the master's machine are spoken to as those of the local engine are, by sockets and
    shared memory; those of other machines by MPI's messages, one a task, an operand once a round.
    """

    name: ClassVar[str] = "mpi"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True, exchange=True)
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
        global ranks_taken
        MPI = start()
        world = MPI.COMM_WORLD
        size, rank = world.Get_size(), world.Get_rank()
        wrong = problem(MPI, size, None if ranks_taken else workers)
        if rank:
            if wrong is None:
                with opened(foreign=True):  # handlers that the script has set are its own
                    serve(MPI, world)
            raise SystemExit(0)  # rank 0 tells the problem, once
        if wrong is not None:
            raise EngineUnavailable(wrong)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:  # Spawn would have to block the master
            self.capabilities = replace(self.capabilities, can_join=False)
        count = workers or size - 1
        with self._open(MPITransport(MPI)) as transport:
            if ranks_taken:
                for _ in range(count):
                    self.join()
            else:
                ranks_taken = True
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
            if count == size - 1:  # else MPI may still start in one that nobody waits for
                unname_memory()
        self.capabilities = replace(self.capabilities, copies=bool(transport.remote))

    def join(self) -> int:
        if not self.capabilities.can_join:
            raise CannotDo(
                "engine 'mpi' starts workers in a thread; MPI was started here without "
                "MPI_THREAD_MULTIPLE. Call kofn.connect before importing mpi4py.MPI."
            )
        return super().join()


class MPITransport(SocketTransport):
    """Sockets for workers of this machine, streams of MPI for the others; see _mpi_worker."""

    def __init__(self, MPI: Any) -> None:
        super().__init__()
        self._MPI, self._command = MPI, command(self.lifeline.fd)
        # Where processes share a core, who spins takes it from the one waited for.
        crowd = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0))
        self._spin = _SPIN if crowd <= usable() else 0.0
        self.remote: dict[int, Stream] = {}  # live workers of other machines
        self._expected: dict[int, tuple[Any, float]] = {}  # spawned, not heard of; until when
        self._greeted: dict[int, Stream] = {}  # who have not answered yet
        self._again: set[int] = set()  # of these and others, who had been given up; nobody asked
        self._streamed: Counter[int] = Counter()  # bytes to and from each of them
        self._streams: list[Stream] = []  # MPI may still write to what they hold
        self._dead: list[tuple[int, Message]] = []  # ends that were seen while sending
        self._secret = secrets.token_bytes(32)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._door.bind(b"\0kofn-" + secrets.token_hex(16).encode())  # no file
        self._door.setblocking(False)
        self._poll.register(self._door.fileno(), wire.IN)
        self._spawning: set[int] = set()  # who have not come yet
        self._come: deque[tuple[int, Any]] = deque()  # what the threads of `start` have got
        self._turn = threading.Lock()  # one Spawn at a time
        self._closing = False
        MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)

    # Workers.

    def greet(self, worker: int | None, comm: Any, rank: int) -> None:
        """Tell a process which worker it is; None: it is not needed."""
        stream = Stream(self._MPI, comm, rank)
        used = {*self.remote.values(), *self._greeted.values()}
        self._streams = [s for s in self._streams if s in used or not s.ended()] + [stream]
        if worker is None:
            stream.urge(LEAVE)
        else:
            self._greeted[worker] = stream
            stream.send(wire.frame(worker, self._door.getsockname(), self._secret, self._spin))

    def start(self, worker: int) -> None:
        """Spawn a process in the background: 1 to 2 seconds."""
        # One Spawn per worker: those spawned together die together.
        threading.Thread(target=self._spawn, args=(worker,), daemon=True).start()
        self._spawning.add(worker)

    def _spawn(self, worker: int) -> None:
        MPI, come = self._MPI, None
        with self._turn:
            try:
                if not self._closing:
                    info = MPI.Info.Create({"map_by": "slot:OVERSUBSCRIBE", "bind_to": "none"})
                    come = MPI.COMM_SELF.Spawn(self._command[0], self._command[1:], 1, info)
            except MPI.Exception as error:
                come = f"MPI_Comm_spawn failed: {error}"
        self._come.append((worker, come))

    def end(self, worker: int) -> None:
        """Kill a worker of this machine; tell one of another machine to end, and give it up."""
        stream = self.remote.pop(worker, None)
        if stream is None:
            super().end(worker)
        else:
            stream.urge(LEAVE)
            self._dead.append((worker, WorkerDown()))

    def give_up(self, worker: int) -> None:
        """As `end`; but one of another machine, should it answer again, is a worker again."""
        stream = self.remote.get(worker)
        if stream is None:
            super().end(worker)
        else:
            del self.remote[worker]
            self._dead.append((worker, WorkerDown()))
            other = next(self.ids)
            self._greeted[other] = stream
            self._again.add(other)
            stream.send(wire.frame(AFRESH))

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        return None if self.remote else super().exchange(layout)

    def moved(self, worker: int) -> int | None:
        return self._streamed[worker] if worker in self.remote else super().moved(worker)

    @property
    def traffic(self) -> int | None:
        return (super().traffic or 0) + self._streamed.total()

    # Messages.

    def send(self, worker: int, message: Message) -> None:
        stream = self.remote.get(worker)
        if stream is None:
            super().send(worker, message)
            return
        value = getattr(message, "value", None)
        if isinstance(message, Cancel):
            stream.urge(ROUND.pack(message.round))
        elif isinstance(value, Shared) and value.packed[0] == EXCHANGE:
            error = CannotDo(
                f"workers of engine 'mpi' exchange pieces through memory that all of them map; "
                f"worker {worker} cannot map this machine's. Go round by round: w = f(X @ w)."
            )
            self._dead.append((worker, PutFailed(message[0], repr(error), "")))
        else:
            known, data, _ = self._framed[True]
            if known is not message:
                data, _ = self._frame(message, whole=True)
            stream.send(data)
            self._streamed[worker] += len(data)

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        """Return what has arrived. MPI cannot wait: where it is needed, this looks and rests."""
        began = time.perf_counter()
        end = began + timeout
        while True:
            dead, self._dead = self._dead, []
            arrived = dead + self._look()
            now = time.perf_counter()
            if any(stream.moved for stream in self.remote.values()):
                began = now  # something large is flowing: there is more to do soon
            left = wait = end - now
            if self.remote or self._greeted or self._spawning:  # the expected are among the last
                wait = min(left, rest(now - began, self._spin))
            arrived += super().poll(0.0 if arrived else max(0.0, wait))
            if arrived and self._spawning:
                self._spawning.difference_update(worker for worker, _ in arrived)
            if arrived or left <= 0:
                return arrived

    def _look(self) -> list[tuple[int, Message]]:
        """Look once at every worker that MPI reaches."""
        arrived: list[tuple[int, Message]] = []
        while self._come:
            worker, come = self._come.popleft()
            if come is None or isinstance(come, str):
                arrived.append((worker, WorkerDown(come or "")))
            else:
                come.Set_errhandler(self._MPI.ERRORS_RETURN)
                self._expected[worker] = come, time.perf_counter() + _START
        arrived += self._greet_spawned()
        for worker, stream in [*self._greeted.items(), *self.remote.items()]:
            try:
                stream.push()
                while (data := stream.receive()) is not None:
                    self._streamed[worker] += len(data)
                    for fields in wire.frames(data):
                        if worker in self.remote:
                            arrived.append((worker, typed(fields)))
                        elif isinstance(fields[0], str):  # else it is of before it was given up
                            arrived.append((worker, self._answered(worker, *fields)))
            except self._MPI.Exception:
                greeted = self._greeted.pop(worker, None)
                if self.remote.pop(worker, None) or (greeted and worker not in self._again):
                    arrived.append((worker, WorkerDown()))
        return arrived

    def _greet_spawned(self) -> list[tuple[int, Message]]:
        """Greet the spawned workers that have sent something.

        To send to a process that never sent anything, MPI first asks its daemon for the address. If
        that process has ended meanwhile, the call never returns. So the other side begins.
        """
        lost: list[tuple[int, Message]] = []
        for worker, (comm, limit) in list(self._expected.items()):
            try:
                if comm.Iprobe(0, URGENT):
                    comm.Recv([bytearray(), self._MPI.BYTE], 0, URGENT)
                    del self._expected[worker]
                    self.greet(worker, comm, 0)
                elif time.perf_counter() > limit:
                    lost.append((worker, WorkerDown(f"nothing was heard of it for {_START:.0f} s")))
            except self._MPI.Exception:
                lost.append((worker, WorkerDown()))
        for worker, _ in lost:
            del self._expected[worker]
        return lost

    def _answered(self, worker: int, host: str, versions: str) -> Message:
        """Take in a worker of another machine."""
        stream = self._greeted.pop(worker)
        if versions == VERSIONS:
            self.remote[worker] = stream
            return WorkerUp(host)
        stream.urge(LEAVE)
        where = host.partition(" ")[0]
        return WorkerDown(f"all ranks need {VERSIONS}; on {where} there are {versions}")

    def _ready(self, fd: int, arrived: list[tuple[int, Message]]) -> None:
        """Take in a worker of this machine that knows the secret."""
        with contextlib.suppress(OSError):
            knock, fds, _, _ = socket.recv_fds(self._door, KNOCK.size, 1, wire.FD_FLAGS)
            secret, worker = KNOCK.unpack(knock.ljust(KNOCK.size, b"\0"))
            known = secrets.compare_digest(secret, self._secret) and worker in self._greeted
            for end in fds:
                if not known:
                    os.close(end)
                else:
                    sock = socket.socket(fileno=end)
                    with self._adding(worker, sock) as given:
                        socket.send_fds(sock, [b"!"], given)
                    del self._greeted[worker]

    # The end.

    def close(self) -> None:
        """End every worker: they are told, and killed if that takes long.

        Those of other machines are only told. Who is being spawned comes first: without us it would
        wait in MPI's start for ever, and mpiexec for it.
        """
        self._closing = True
        self._run(_LEAVE, lambda: bool(self._spawning))
        self.cancelled((1 << 63) - 1)  # nobody goes on with a task
        processes = [peer.process for peer in self.peers.values() if peer.process]
        for peer in self.peers.values():
            peer.sock.shutdown(socket.SHUT_WR)
        for stream in (*self.remote.values(), *self._greeted.values()):
            stream.urge(LEAVE)
        self._greeted.clear()  # nobody is let in any more
        self._run(_END, lambda: bool(self.peers))
        # A worker that still has its socket is stopped, or deep in a body. A spawned worker closes
        # it, then takes a while to leave; killed on its way out, it would count as a failed job.
        for process in [peer.process for peer in self.peers.values() if peer.process]:
            process.kill()
        self._run(_LEAVE, lambda: any(process.running() for process in processes))
        super().close()
        self._door.close()

    def _run(self, seconds: float, go_on: Callable[[], bool]) -> None:
        """Go on with MPI for at most so long: without that, nobody's end comes to an end."""
        limit = time.monotonic() + seconds
        while go_on() and time.monotonic() < limit:
            self.poll(0.0)
            time.sleep(0.002)
