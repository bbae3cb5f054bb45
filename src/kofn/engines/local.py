"""The local engine: one process per worker on this machine, sockets and shared memory between."""

from __future__ import annotations

import os
import socket
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, ClassVar

import cloudpickle

from ..errors import BadInput, Closed, EngineUnavailable, OutOfResources, UnknownWorker
from ..interrupts import held, opened
from ..model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task
from . import _wire as wire
from ._local_house import Handle, House, Open, Operand, Peer
from ._processes import Process
from .base import Capabilities, Engine
from .exchange import Exchange, Shape
from .memory import Packed, Segment, attach, large, pack, private, room_for, unpack
from .worker import NEWS, Launcher

_START_LIMIT = 60.0  # seconds for the first workers to say hello
_FUNCTIONS = 256  # bodies remembered; beyond, all are forgotten and sent again as needed
_OPERANDS = 64  # operands kept of rounds that nobody cancelled and that have no task


class LocalEngine(Engine):
    """Workers are processes of this machine, each with one BLAS thread.

    Nothing listens, nothing has a name: descriptors pass over socket pairs, memory is anonymous.
    Tasks are sent by the next call of `events`, those for most workers by one system call; an
    operand is written once for all of them. Arrays that reach a worker are read-only; those in
    events are private and writable. A body is sent to a worker once: what it closes over is what it
    was then.
    """

    name: ClassVar[str] = "local"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True, exchange=True)

    def __init__(self, workers: int | None = None) -> None:
        if workers is None:
            workers = os.cpu_count() or 1
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise BadInput(
                f"LocalEngine needs a whole number of workers, at least 1; got {workers!r}. "
                f"Leave it out for one per core."
            )
        with held():
            self._start(workers)

    def _start(self, workers: int) -> None:
        with room_for(f"LocalEngine({workers})"):
            self._house = house = House()
        self._finalize = weakref.finalize(self, house.close)
        self._word = house.cancelled
        self._poll, self._pool = house.poll, house.pool
        self._live: dict[int, Peer] = {}
        self._workers: tuple[int, ...] = ()
        self._next = 0
        self._functions: dict[int, tuple[Body, int, bytes]] = {}
        self._numbers = 0
        self._operands: dict[int, Operand] = {}
        self._gone: set[int] = set()  # rounds never cancelled whose operand had to make room
        self._ready: list[Event] = []
        self._unsent: dict[int, Peer] = {}  # who have tasks to be sent
        self._dying: list[Peer] = []  # of whose death the launcher has told
        self._copied = 0  # bytes through memory that one worker and the master share
        self._before = 0  # bytes through the sockets of workers that are gone
        self._started = False
        try:
            with room_for(f"LocalEngine({workers})"):
                for _ in range(workers):
                    self._join()
            self._wait_for(workers)
        except BaseException:
            self.close()
            raise

    def _wait_for(self, workers: int) -> None:
        limit = time.monotonic() + _START_LIMIT
        while len(self._live) < workers:
            left = limit - time.monotonic()
            # These are there at once for the caller: their Joined are not told.
            events = self.events(left) if left > 0 else []
            lost = [event for event in events if isinstance(event, Lost)]
            if left <= 0 or lost:
                why = lost[0].reason if lost and lost[0].reason else "see the messages above"
                raise EngineUnavailable(
                    f"LocalEngine starts all its workers within {_START_LIMIT:.0f} s; "
                    f"{len(self._live)} of {workers} came ({why}). Start fewer."
                )
        self._started = True

    # Membership.

    @property
    def workers(self) -> tuple[int, ...]:
        """Ids of the live workers, sorted."""
        return self._workers

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def join(self) -> int:
        """Order one more worker and return its id at once; it takes some milliseconds to come."""
        self._check()
        with room_for("one more worker"):
            return self._join()

    def _join(self) -> int:
        self._fork(self._next, retried=False)
        self._next += 1
        return self._next - 1

    def lose(self, worker: int) -> None:
        """Kill a worker with SIGKILL."""
        process = self._peer(worker).process
        assert process is not None  # it said hello
        with room_for("ending a worker"):
            process.kill()

    def pid(self, worker: int) -> int | None:
        """Return the worker's process id."""
        process = self._peer(worker).process
        return None if process is None else process.pid

    def close(self) -> None:
        """Kill the workers and wait until they and the launcher are gone: milliseconds."""
        with held():
            if self._finalize.alive:
                self._live, self._workers = {}, ()
                self._finalize()

    def _check(self) -> None:
        if not self._finalize.alive:
            raise Closed("this LocalEngine was closed; make a new one.")

    def _peer(self, worker: int) -> Peer:
        peer = self._live.get(worker)
        if peer is None:
            self._check()
            raise UnknownWorker(worker, self._workers)
        return peer

    def _fork(self, worker: int, retried: bool) -> None:
        ours, theirs = socket.socketpair()
        house = self._house
        try:
            peer = Peer(worker, ours, house.poll, retried)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        try:
            with theirs:
                fds = [theirs.fileno(), house.word.fd, house.lifeline.fd]
                if peer.box is not None and house.tower is not None:
                    fds += [peer.box.fd, house.tower.fd]
                try:
                    self._launcher().fork(worker, fds)
                except ConnectionError:  # it was killed since we looked
                    self._drop_launcher()
                    self._launcher().fork(worker, fds)
        except BaseException:
            peer.close()
            raise
        if peer.box is not None:
            peer.box.given()
        house.peers[peer.fd] = peer

    def _launcher(self) -> Launcher:
        house = self._house
        if house.launcher is None:
            house.launcher = Launcher()
            self._poll.register(house.launcher.control.fileno(), wire.IN)
        return house.launcher

    def _drop_launcher(self) -> None:
        launcher, self._house.launcher = self._house.launcher, None
        if launcher is not None:
            self._poll.unregister(launcher.control.fileno())
            launcher.close()

    # Commands.

    def put(self, worker: int, key: str, value: Any) -> None:
        """Send a value for the worker to keep: one copy, into memory that only it will hold."""
        peer = self._peer(worker)
        with room_for("a value for a worker to keep"):
            self._put(peer, key, value)

    def _put(self, peer: Peer, key: str, value: Any) -> None:
        if isinstance(value, Exchange):
            handle = Handle(value.owner)
            frame = wire.frame(wire.EXCHANGE, key, astuple(value.shape))
            peer.send(frame, [handle.fd], handle)
            return
        packed, own = pack(value, private)
        self._copied += large(packed)
        data = wire.frame(wire.PUT, key, packed)
        peer.send(data, [] if own is None else [own.fd], own)

    def forget(self, key: str) -> None:
        """Tell every worker to drop a kept value."""
        self._check()
        for peer in self._live.values():
            peer.send(wire.frame(wire.FORGET, key))

    def exchange(self, shape: Shape) -> Exchange:
        """Make anonymous memory that all workers may map, those that join later too."""
        self._check()
        with room_for("memory that workers exchange"):
            segment = Segment(shape.size)
        exchange = Exchange(segment.map, shape)
        exchange.owner = segment
        open_ = [old for old in self._house.exchanges if old.owner is not None]
        self._house.exchanges = [*open_, exchange]
        return exchange

    @property
    def traffic(self) -> int | None:
        """Bytes over the sockets, and those that lay in shared memory for or from the master."""
        now = sum(p.sent + p.posted + p.received for p in self._house.peers.values())
        return now + self._before + self._copied + self._pool.written

    def broadcast(self, round: int, value: Any) -> None:
        """Write the operand once; each worker gets its place with its first task of the round."""
        self._check()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        if len(self._operands) >= _OPERANDS:
            idle = [r for r, o in self._operands.items() if not o.pending]
            for old in idle[: len(self._operands) - _OPERANDS + 1]:
                self._release(old)
                self._gone.add(old)
        with room_for("an operand"):
            packed, segment = pack(value, self._pool.take)
            frame = wire.frame(wire.OPERAND, round, packed)
        self._operands[round] = Operand(frame, segment)

    def submit(self, task: Task) -> None:
        """Have a task sent by the next call of `events`."""
        peer = self._live.get(task.worker)
        if peer is None:
            peer = self._peer(task.worker)
        known = self._functions.get(id(task.body))
        if known is None:
            known = self._register(task.body)
        number, round = known[1], task.round
        operand = self._operands.get(round)
        if operand is None and round in self._gone and round > self._word[0]:
            raise BadInput(
                f"at most {_OPERANDS} rounds are open at a time; the operand of round {round} has "
                f"made room for later ones. Cancel rounds that are over."
            )
        packed, segment = pack(task.args, self._pool.take)
        data = wire.frame(wire.TASK, task.id, round, number, packed)
        fds: list[int] = []
        if operand is not None:
            operand.pending += 1
            if round not in peer.rounds:
                data = operand.frame + data
                self._pass(peer, operand.segment, fds)
        if number not in peer.functions:
            data = wire.frame(wire.FUNCTION, number, known[2]) + data
        self._pass(peer, segment, fds)
        peer.tasks[task.id] = Open(round, operand, segment)
        if fds:  # they go with the first byte
            peer.send(data, fds)
        else:
            self._unsent[peer.id] = peer
            peer.unsent.append(data)
        # What it is told once is noted last: if Ctrl-C comes before, it is told again.
        peer.functions.add(number)
        if operand is not None:
            peer.rounds.add(round)

    def cancel(self, round: int) -> None:
        """Write one word that the workers look at; operands go when their last task has ended."""
        self._check()
        if round > self._word[0]:
            self._word[0] = round
            for r in [r for r, o in self._operands.items() if r <= round and not o.pending]:
                self._release(r)

    def _register(self, body: Body) -> tuple[Body, int, bytes]:
        if len(self._functions) >= _FUNCTIONS:
            self._functions.clear()
            for peer in self._live.values():
                peer.functions.clear()
                peer.note(wire.frame(wire.CLEAR, None))
        # The body itself is held, so that its id stays its own.
        known = (body, self._numbers, cloudpickle.dumps(body, 5))
        self._numbers += 1
        self._functions[id(body)] = known
        return known

    @staticmethod
    def _pass(peer: Peer, segment: Segment | None, fds: list[int]) -> None:
        if segment is not None and segment.id not in peer.segments:
            peer.segments.add(segment.id)
            fds.append(segment.fd)

    # Events.

    def events(self, timeout: float) -> list[Event]:
        """Send what was submitted, and return what has arrived; waits in one system call."""
        self._check()
        if self._unsent:
            self._send()
        wait: float | None = max(0.0, timeout) if timeout < 1e9 else None
        deadline = time.monotonic() + wait if wait else 0.0
        while True:
            if wait == 0 or self._ready:
                found = self._poll.poll(0)
            else:
                with opened():
                    found = self._poll.poll(wait)
            for fd, mask in found:
                peer = self._house.peers.get(fd)
                if peer is None:
                    self._hear()
                    continue
                if mask & wire.OUT and peer.outbox:
                    peer.flush()
                if mask & ~wire.OUT:
                    self._read(peer)
            while self._dying:
                self._bury(self._dying.pop())
            if self._ready:
                out, self._ready = self._ready, []
                return out
            if wait is not None:
                wait = deadline - time.monotonic()
                if wait <= 0:
                    return []

    def _send(self) -> None:
        """Send the tasks. Where they are for most, one ring wakes all: six calls would cost six
        times as much, and after each the worker may take the core from us."""
        # Ctrl-C may come anywhere. What is posted but still unsent by our lists is posted again:
        # workers do not mind, and we do not mind their second answers.
        waiting = [peer for peer in self._unsent.values() if peer.unsent]
        self._unsent.clear()
        tower = self._house.tower if 2 * len(waiting) > len(self._live) else None
        late = waiting if tower is None else [peer for peer in waiting if not peer.post()]
        for peer in late:
            peer.send(b"")
        if tower is not None and len(late) < len(waiting):
            tower.ring()

    def _read(self, peer: Peer) -> bool:
        """Handle what a worker sent; return whether there may be more."""
        try:
            messages = peer.receive()
        except BlockingIOError:
            return False
        now = time.monotonic()  # stamped on receipt: worker clocks disagree
        if messages is None:
            self._on_end(peer, now)
            return False
        for message in messages:
            _HANDLERS[message[0]](self, peer, now, *message[1:])
        return True

    def _on_hello(self, peer: Peer, now: float, pid: int, began: str) -> None:
        peer.process = Process(pid, began)
        self._live[peer.id] = peer
        self._workers = tuple(sorted(self._live))
        self._ready.append(Joined(now, peer.id))

    def _on_reply(
        self,
        peer: Peer,
        now: float,
        task: int,
        name: Packed,
        packed: Packed,
        read: int,
        seconds: float,
        last: bool,
    ) -> None:
        open_ = peer.tasks.get(task)
        self._copied += large(packed)
        memory = None
        if packed[2] is not None:
            memory = peer.maps.get(packed[2])
            if memory is None:
                try:
                    memory = peer.maps[packed[2]] = attach(peer.fds.popleft(), write=True)
                except OSError as error:
                    peer.note(wire.frame(wire.UNPASS, packed[2]))
                    self._fail(peer, now, task, _no_room(error), "")
                    if last:
                        self._close_task(peer, task)
                    return
        try:
            what, value = unpack(name, None), unpack(packed, memory, copy=True)
        except MemoryError as error:
            self._fail(peer, now, task, _no_room(error), "")
        except Exception as error:
            # The reply cannot be read here: the task failed, even if its worker goes on with it.
            self._fail(peer, now, task, repr(error), traceback.format_exc())
        else:
            if open_ is not None and not open_.muted:
                self._ready.append(
                    Reply(now, peer.id, open_.round, task, what, value, read, seconds, last)
                )
        finally:
            if memory is not None:
                memory[0] = 0  # free: the worker may write to it again
        if last:
            self._close_task(peer, task)

    def _fail(self, peer: Peer, now: float, task: int, error: str, trace: str) -> None:
        open_ = peer.tasks.get(task)
        if open_ is not None and not open_.muted:
            open_.muted = True
            self._ready.append(Failed(now, peer.id, open_.round, task, error, trace))

    def _on_failed(self, peer: Peer, now: float, task: int, error: str, trace: str) -> None:
        self._fail(peer, now, task, error, trace)
        self._close_task(peer, task)

    def _on_dropped(self, peer: Peer, now: float, task: int) -> None:
        open_ = peer.tasks.get(task)
        if open_ is not None and not open_.muted:
            self._ready.append(Dropped(now, peer.id, open_.round, task))
        self._close_task(peer, task)

    def _on_stored(self, peer: Peer, now: float, key: str) -> None:
        self._ready.append(Stored(now, peer.id, key))

    def _on_unput(self, peer: Peer, now: float, key: str, error: str, trace: str) -> None:
        self._ready.append(Failed(now, peer.id, -1, None, error, trace, key))

    def _on_gone(self, peer: Peer, now: float, segment: int) -> None:
        memory = peer.maps.pop(segment, None)
        if memory is not None:  # else there was no room for it
            memory.close()

    def _on_end(self, peer: Peer, now: float) -> None:
        """Handle a worker's death, after all that it had sent."""
        if peer.process is None:
            self._hear()  # why it never came
        del self._house.peers[peer.fd]
        self._before += peer.sent + peer.posted + peer.received
        peer.close()
        if peer.process is None and not (peer.reason or peer.retried) and self._started:
            # Its order may have died with a launcher. Try a new one once.
            try:
                self._fork(peer.id, retried=True)
            except OSError as error:
                peer.reason = f"it could not be started: {error}"
            else:
                return
        if self._live.pop(peer.id, None) is not None:
            self._workers = tuple(sorted(self._live))
        tasks = sorted(t for t, o in peer.tasks.items() if not o.muted)
        for task in list(peer.tasks):
            self._close_task(peer, task)
        self._ready.append(Lost(now, peer.id, tuple(tasks), peer.reason))

    def _hear(self) -> None:
        """Take in what the launcher says: who has died, and why one was not even forked."""
        while (launcher := self._house.launcher) is not None:
            try:
                news = launcher.control.recv(NEWS.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                news = b""
            if not news:
                self._drop_launcher()
                return
            worker, error = NEWS.unpack(news)
            for peer in self._house.peers.values():
                if peer.id == worker:
                    self._dying.append(peer)
                    if error:
                        peer.reason = f"it could not be forked: {os.strerror(error)}"

    def _bury(self, peer: Peer) -> None:
        """Handle a death of which the launcher told.

        Usually the worker's end of file was seen first. It was not if a process that the worker
        started holds its socket open.
        """
        if self._house.peers.get(peer.fd) is peer:
            while self._read(peer):
                pass
        if self._house.peers.get(peer.fd) is peer:
            self._on_end(peer, time.monotonic())

    # The end of tasks and operands.

    def _close_task(self, peer: Peer, task: int) -> None:
        open_ = peer.tasks.pop(task, None)
        if open_ is None:
            return  # answered before, see _send
        if open_.segment is not None:
            self._give(open_.segment)
        operand = open_.operand
        if operand is not None:
            operand.pending -= 1
            if not operand.pending and open_.round <= self._word[0]:
                self._release(open_.round)

    def _release(self, round: int) -> None:
        operand = self._operands.pop(round)
        note = wire.frame(wire.DROP, round)
        for peer in self._live.values():
            if round in peer.rounds:
                peer.rounds.remove(round)
                peer.note(note)
        if operand.segment is not None:
            self._give(operand.segment)

    def _give(self, segment: Segment) -> None:
        for closed in self._pool.give(segment):
            for peer in self._live.values():
                if closed in peer.segments:
                    peer.segments.remove(closed)
                    peer.note(wire.frame(wire.UNMAP, closed))


def _no_room(error: Exception) -> str:
    return f"OutOfResources: {OutOfResources('its reply', str(error) or 'out of memory')}"


# Not a table of bound methods in the engine: that would be a cycle, and an engine that the user
# drops should close at once.
_HANDLERS: dict[int, Callable[..., None]] = {
    wire.HELLO: LocalEngine._on_hello,
    wire.REPLY: LocalEngine._on_reply,
    wire.DROPPED: LocalEngine._on_dropped,
    wire.FAILED: LocalEngine._on_failed,
    wire.STORED: LocalEngine._on_stored,
    wire.UNPUT: LocalEngine._on_unput,
    wire.GONE: LocalEngine._on_gone,
}
