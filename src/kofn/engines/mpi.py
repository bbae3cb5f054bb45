"""The MPI engine: one rank per worker, under mpiexec or under an mpiexec of its own."""

from __future__ import annotations

import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import astuple, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import cloudpickle

from ..errors import BadInput, CannotDo, Closed, EngineUnavailable, UnknownWorker
from ..interrupts import held, opened
from ..model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task
from . import _wire as wire
from ._mpi_bridge import Bridge
from ._mpi_house import NEVER, House, Peer
from ._mpi_link import Link
from ._mpi_near import Handle, Mark, Parcel, Place, neighbour
from ._mpi_pieces import SMALL, Bytes
from ._mpi_setup import ALWAYS, HERE, command, problem, start, unset
from ._mpi_worker import FAR, serve
from .base import Capabilities, Engine, Exchange, Shape
from .memory import Packed, Segment, large, no_segment, pack, unpack

if find_spec("mpi4py") is None:
    raise ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py")

_START = 60.0  # seconds for the first workers to say hello
_NOTICE = 0.5  # seconds for a worker to end, or for MPI to tell that it has
_WATCH = 0.1  # seconds between two looks at whether the processes of this machine are there
_FUNCTIONS = 256  # bodies remembered; beyond, all are forgotten and sent again as needed
_OPERANDS = 64  # operands kept of rounds that nobody cancelled


class MPIEngine(Engine):
    """Workers are MPI processes, each with one BLAS thread; a lost one is Open MPI's ULFM news.

    Under ``mpiexec --with-ft ulfm -n 7 python script.py`` rank 0 is the master, and the other
    ranks become its workers: there this call does not return, it serves until the master closes
    and then ends the process. So a script written for one master just works. Once closed, the
    ranks are gone: a second engine in the same run starts its workers by Spawn.

    In a plain process `workers` ranks are started on this machine, under an mpiexec of our own
    (default: one per core); this process does not start MPI itself. In both cases `join` is one
    MPI_Comm_spawn in the background.

    A submit costs one message. An operand is written once: workers of this machine map it, the
    others are sent the same bytes each.
    Arrays that reach a worker are read-only, those in events are private and writable. A body is
    sent to a worker once: what it closes over is what it was then.
    """

    name: ClassVar[str] = "mpi"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True)

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and (
            isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
        ):
            raise BadInput(
                f"MPIEngine needs a whole number of workers, at least 1; got {workers!r}. "
                f"Leave it out for all ranks of mpiexec, or else one per core."
            )
        with held():
            self._open(workers)

    def _open(self, workers: int | None) -> None:
        self._house = house = House()
        self._finalize = weakref.finalize(self, house.close)
        self._live: dict[int, Peer] = {}
        self._workers: tuple[int, ...] = ()
        self._next = 0
        self._functions: dict[int, tuple[Body, int, bytes]] = {}
        self._numbers = 0
        self._operands = house.operands
        self._gone: set[int] = set()  # rounds never cancelled whose operand had to make room
        self._floor = NEVER
        self._ended: dict[int, float] = {}  # workers that we ended -> when to stop asking MPI
        self._watched = 0.0  # when
        self._ready: list[Event] = []
        self._passed = 0  # bytes
        try:
            if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_RANK" in os.environ:
                count = self._under_mpiexec(workers)
            else:
                count = workers or os.cpu_count() or 1
                house.link = Bridge(count, house.sample.mark)
                for _ in range(count):
                    self._expect()
            self._wait_for(count)
            near = all(peer.near for peer in self._live.values())
            self.capabilities = replace(self.capabilities, exchange=near)
        except BaseException:
            self.close()
            raise

    def _under_mpiexec(self, workers: int | None) -> int:
        """Take in the other ranks, or become a worker oneself; return how many are to come."""
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
            self.capabilities = Capabilities(processes=True, can_lose=True, can_join=False)
        link = self._house.link = Link(MPI, command(settings), self._house.sample.mark)
        count = workers or size - 1
        if _ranks_taken:
            for _ in range(count):
                self.join()
            return count
        _ranks_taken = True
        for rank in range(1, size):
            worker = self._expect() if rank <= count else -rank
            link.add(worker, world, rank)
            if rank > count:  # more than were asked for
                link.control(worker, None)
                link.drop(worker)
        return count

    def _expect(self) -> int:
        worker, self._next = self._next, self._next + 1
        self._house.peers[worker] = Peer()
        return worker

    def _wait_for(self, workers: int) -> None:
        limit = time.monotonic() + _START
        while len(self._live) < workers:
            left = limit - time.monotonic()
            lost = [e for e in self.events(max(left, 0.0)) if isinstance(e, Lost)]
            # The others are there at once for the caller: their Joined are not told.
            if left <= 0 or lost:
                how = f"{len(lost)} ended first" if lost else f"no more within {_START:.0f} s"
                raise EngineUnavailable(
                    f"all {workers} workers of an MPIEngine must come; {len(self._live)} did, "
                    f"{how}. Each rank must be able to import kofn (pip install 'kofn[mpi]' on "
                    f"every machine) and call kofn.connect('mpi'); see the messages above."
                )

    # Membership.

    @property
    def workers(self) -> tuple[int, ...]:
        """Ids of the live workers, sorted."""
        return self._workers

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def join(self) -> int:
        """Spawn one more worker in the background and return its id at once."""
        link = self._check()
        if not self.capabilities.can_join:
            raise CannotDo(
                "engine 'mpi' starts workers in a thread; MPI was started here without "
                "MPI_THREAD_MULTIPLE. Call kofn.connect before importing mpi4py.MPI."
            )
        worker = self._expect()
        link.spawn(worker)
        return worker

    def lose(self, worker: int) -> None:
        """Kill a worker of this machine with SIGKILL; tell one of another machine to end.

        It is Lost in any case, at the latest half a second later.
        """
        peer = self._peer(worker)
        if peer.process is not None:
            peer.process.kill()
        else:
            self._check().control(worker, None)
        self._ended.setdefault(worker, time.monotonic() + _NOTICE)

    def pid(self, worker: int) -> int | None:
        """Return the worker's process id, None on another machine."""
        process = self._peer(worker).process
        return None if process is None else process.pid

    def close(self) -> None:
        """End the workers: they are gone when this returns, with what we started for them."""
        with held():
            if self._finalize.alive:
                self._live, self._workers = {}, ()
                self._finalize()

    def _check(self) -> Link | Bridge:
        link = self._house.link
        if link is None or not self._finalize.alive:
            raise Closed("this MPIEngine was closed; make a new one.")
        return link

    def _peer(self, worker: int) -> Peer:
        peer = self._live.get(worker)
        if peer is None:
            self._check()
            raise UnknownWorker(worker, self._workers)
        return peer

    # Commands.

    def put(self, worker: int, key: str, value: Any) -> None:
        """Send a value for the worker to keep: one copy, where it can map our memory."""
        peer = self._peer(worker)
        if isinstance(value, Exchange):
            self._put_exchange(worker, peer, key, value)
            return
        parcel = Parcel(wire.PUT, key, value)
        self._passed += parcel.large
        peer.gets(key, parcel)
        self._send(worker, peer, *parcel.messages(peer.near))
        self._check().flush()

    def _put_exchange(self, worker: int, peer: Peer, key: str, value: Exchange) -> None:
        if not peer.near:
            raise _apart([worker])
        handle = Handle(value.owner.fd)
        peer.gets(key, handle)
        self._send(worker, peer, wire.frame(wire.EXCHANGE, key, astuple(value.shape), handle.at))
        self._check().flush()

    def exchange(self, shape: Shape) -> Exchange:
        """Make anonymous memory that all workers may map, those that join later too.

        CannotDo where some worker cannot map our memory: it is on another machine.
        """
        self._check()
        if far := [worker for worker, peer in self._live.items() if not peer.near]:
            raise _apart(far)
        segment = Segment(shape.size)
        exchange = Exchange(segment.map, shape)
        exchange.owner = segment
        house = self._house
        house.exchanges = [*(old for old in house.exchanges if old.owner is not None), exchange]
        return exchange

    @property
    def traffic(self) -> int | None:
        """Bytes of messages, and those that lay in shared memory for or from the master."""
        return self._passed

    def forget(self, key: str) -> None:
        """Tell every worker to drop a kept value."""
        link = self._check()
        for worker, peer in self._live.items():
            self._send(worker, peer, wire.frame(wire.FORGET, key))
        link.flush()

    def broadcast(self, round: int, value: Any) -> None:
        """Write the operand once; each worker hears of it with its first task of the round."""
        self._check()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        if len(self._operands) >= _OPERANDS:
            idle = [r for r, parcel in self._operands.items() if not parcel.pending]
            for old in idle[: len(self._operands) - _OPERANDS + 1]:
                self._make_room(old)
        self._operands[round] = parcel = Parcel(wire.OPERAND, round, value)
        self._passed += parcel.large

    def submit(self, task: Task) -> None:
        """Send a task: one message, none while the worker is behind with receiving.

        The worker is woken by the next call of `events`, with all others at once.
        """
        peer = self._live.get(task.worker)
        if peer is None:
            peer = self._peer(task.worker)
        known = self._functions.get(id(task.body))
        if known is None:
            known = self._register(task.body)
        number, round = known[1], task.round
        operand = self._operands.get(round)
        if operand is None and round in self._gone and round > self._floor:
            raise BadInput(
                f"at most {_OPERANDS} rounds are open at a time; the operand of round {round} has "
                f"made room for later ones. Cancel rounds that are over."
            )
        packed = pack(task.args, no_segment)[0]
        data = wire.frame(wire.TASK, task.id, round, number, packed, self._floor)
        if number not in peer.functions:
            data = wire.frame(wire.FUNCTION, number, known[2]) + data
        if operand is not None:
            operand.pending += 1
            if round not in peer.rounds:
                frame, *bulk = operand.messages(peer.near)
                if bulk or len(frame) > SMALL:
                    self._send(task.worker, peer, frame, *bulk)  # the same bytes for all
                else:
                    data = b"".join((frame, data))
        peer.tasks[task.id] = round
        self._send(task.worker, peer, data)
        # What it is told once is noted last: if Ctrl-C comes before, it is told again.
        peer.functions.add(number)
        if operand is not None:
            peer.rounds.add(round)

    def cancel(self, round: int) -> None:
        """Write one word for those near; tell those far who work on it, the others with a task."""
        link = self._check()
        if round <= self._floor:
            return
        self._floor = self._house.floor[0] = round
        for worker, peer in self._live.items():
            if not peer.near and peer.tasks and min(peer.tasks.values()) <= round:
                link.control(worker, round)
            if peer.rounds:
                peer.rounds = {r for r in peer.rounds if r > round}
        for old in [r for r, o in self._operands.items() if r <= round and not o.pending]:
            self._operands.pop(old).close()
        if self._gone:
            self._gone = {r for r in self._gone if r > round}

    def _send(self, worker: int, peer: Peer, *messages: Bytes) -> None:
        link = self._house.link
        assert link is not None
        if peer.notes:
            link.send(worker, b"".join(peer.notes))
            peer.notes.clear()
        for data in messages:
            link.send(worker, data)
            self._passed += len(data)

    def _make_room(self, round: int) -> None:
        """Let go of the operand of a round that nobody cancelled."""
        self._operands.pop(round).close()
        self._gone.add(round)
        for peer in self._live.values():
            if round in peer.rounds:
                peer.rounds.remove(round)
                peer.notes.append(wire.frame(wire.DROP, round))

    def _close_task(self, peer: Peer, task: int) -> int | None:
        """Strike a task off; return its round, None if that was done before."""
        round = peer.tasks.pop(task, None)
        operand = None if round is None else self._operands.get(round)
        if round is not None and operand is not None:
            operand.pending -= 1
            if not operand.pending and round <= self._floor:
                self._operands.pop(round).close()
        return round

    def _register(self, body: Body) -> tuple[Body, int, bytes]:
        if len(self._functions) >= _FUNCTIONS:
            self._functions.clear()
            for peer in self._live.values():
                peer.functions.clear()
                peer.notes.append(wire.frame(wire.CLEAR, None))
        # The body itself is held, so that its id stays its own.
        known = (body, self._numbers, cloudpickle.dumps(body, 5))
        self._numbers += 1
        self._functions[id(body)] = known
        return known

    # Events.

    def events(self, timeout: float) -> list[Event]:
        """Return what has arrived. MPI cannot wait: this looks, and rests at most 5 ms between."""
        link = self._check()
        end = time.monotonic() + min(max(timeout, 0.0), 1e9)
        wait = 0.0 if self._ready else timeout
        while True:
            for worker, data in link.receive(min(wait, _WATCH)):
                self._hear(worker, data)
            now = time.monotonic()
            if now >= self._watched + _WATCH:
                self._watch(now)
            if self._ready:
                ready, self._ready = self._ready, []
                return ready
            if now >= end:
                return []
            wait = end - now

    def _watch(self, now: float) -> None:
        """Find who is gone without MPI telling: it does not when a process exits by itself."""
        self._watched = now
        for worker, peer in self._live.items():
            if peer.process is not None and not peer.process.alive():
                self._ended.setdefault(worker, now + _WATCH)
        for worker in [w for w, limit in self._ended.items() if limit <= now]:
            self._check().drop(worker)
            self._lost(worker, now)

    def _hear(self, worker: int, data: Any) -> None:
        now = time.monotonic()  # stamped on receipt: worker clocks disagree
        if worker == -1:  # rank 0 of our own mpiexec
            self._of_bridge(data, now)
            return
        peer = self._house.peers.get(worker)
        if peer is None:
            return  # ended by us, and told
        if data is None or isinstance(data, str):
            if data is not None:
                print(f"kofn: worker {worker} cannot join: {data}", file=sys.stderr)
            self._lost(worker, now)
            return
        self._passed += len(data)
        if peer.awaited is not None:
            messages, peer.awaited = [(*peer.awaited[:-1], data)], None
        else:
            messages = wire.frames(data)
        for message in messages:
            if message[0] == wire.REPLY and isinstance(message[-1], int):
                peer.awaited = message  # with as many bytes, which follow
            else:
                _HANDLERS[message[0]](self, worker, peer, now, *message[1:])

    def _of_bridge(self, mark: Mark | None, now: float) -> None:
        link = self._house.link
        assert isinstance(link, Bridge)
        if mark is not None:
            link.met(mark)
            return
        for worker, peer in list(self._house.peers.items()):  # nobody can be reached any more
            if peer.process is not None:
                peer.process.kill()
            self._lost(worker, now)

    def _lost(self, worker: int, now: float) -> None:
        self._ended.pop(worker, None)
        peer = self._house.peers.pop(worker, None)
        if peer is None:
            return
        if self._live.pop(worker, None) is not None:
            self._workers = tuple(sorted(self._live))
        tasks = tuple(sorted(peer.tasks))
        for task in tasks:
            self._close_task(peer, task)
        peer.close()
        self._ready.append(Lost(now, worker, tasks))

    def _on_hello(
        self,
        worker: int,
        peer: Peer,
        now: float,
        pid: int,
        host: str,
        python: Any,
        version: str,
        mark: Mark | None,
    ) -> None:
        from .. import __version__

        peer.near = mark is not None
        if (tuple(python), version) != (sys.version_info[:2], __version__):
            print(
                f"kofn: worker {worker} cannot join: all ranks need one version of Python and of "
                f"kofn; on {host} they are {python[0]}.{python[1]} and {version}.",
                file=sys.stderr,
            )
            self._check().control(worker, None)
            self._lost(worker, now)
            return
        self._live[worker] = peer
        self._workers = tuple(sorted(self._live))
        if mark is not None:
            try:
                peer.process = neighbour(mark)
            except OSError:  # it can map what we hold, but not the other way round
                self._send(worker, peer, wire.frame(FAR, None))
                self._check().flush()
        self._ready.append(Joined(now, worker))

    def _on_reply(
        self,
        worker: int,
        peer: Peer,
        now: float,
        task: int,
        name: Packed,
        packed: Packed,
        read: int,
        seconds: float,
        last: bool,
        at: Place | Bytes | None,
    ) -> None:
        round = peer.tasks.get(task)
        try:
            what = unpack(name, None)
            if isinstance(at, memoryview):
                value = unpack(packed, at)  # ours alone, as it was received
            elif isinstance(at, bytes):
                value = unpack(packed, at, copy=True)
            else:
                memory = None if at is None else peer.memory(packed[2], at)
                value = unpack(packed, memory, copy=True)
                if memory is not None:
                    memory[0] = 0  # free: the worker may write to it again
                    self._passed += large(packed)
            if round is None:
                return  # it failed here before, see below
        except Exception as error:
            if round is None:
                return
            # The reply cannot be read here: the task failed, even if its worker goes on with it.
            self._close_task(peer, task)
            trace = traceback.format_exc()
            self._ready.append(Failed(now, worker, round, task, repr(error), trace))
            return
        if last:
            self._close_task(peer, task)
        self._ready.append(Reply(now, worker, round, task, what, value, read, seconds, last))

    def _on_gone(self, worker: int, peer: Peer, now: float, segment: int) -> None:
        peer.unmap(segment)

    def _on_failed(
        self, worker: int, peer: Peer, now: float, task: int, error: str, trace: str
    ) -> None:
        round = self._close_task(peer, task)
        if round is not None:
            self._ready.append(Failed(now, worker, round, task, error, trace))

    def _on_dropped(self, worker: int, peer: Peer, now: float, task: int) -> None:
        round = self._close_task(peer, task)
        if round is not None:
            self._ready.append(Dropped(now, worker, round, task))

    def _on_stored(self, worker: int, peer: Peer, now: float, key: str) -> None:
        peer.has(key)
        self._ready.append(Stored(now, worker, key))

    def _on_unput(
        self, worker: int, peer: Peer, now: float, key: str, error: str, trace: str
    ) -> None:
        peer.has(key)
        self._ready.append(Failed(now, worker, -1, None, error, trace, key))


def _apart(workers: list[int]) -> CannotDo:
    return CannotDo(
        f"workers of engine 'mpi' exchange pieces through memory that all of them map; workers "
        f"{workers} cannot map this machine's. Go round by round: w = f(X @ w)."
    )


_HANDLERS: dict[int, Callable[..., None]] = {
    wire.HELLO: MPIEngine._on_hello,
    wire.REPLY: MPIEngine._on_reply,
    wire.DROPPED: MPIEngine._on_dropped,
    wire.FAILED: MPIEngine._on_failed,
    wire.STORED: MPIEngine._on_stored,
    wire.UNPUT: MPIEngine._on_unput,
    wire.GONE: MPIEngine._on_gone,
}

# The ranks of an mpiexec serve one engine and end with it; MPI's world is one per process.
_ranks_taken = False
