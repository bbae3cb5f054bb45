"""MPI at the master: one stream of messages to and from each worker, and nothing that blocks.

Everything is a nonblocking call that is tested later: a frozen worker costs memory, never time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from ..interrupts import opened
from . import _wire as wire
from ._bells import BOXES, Bell, Box, Tower
from ._mpi_near import Mark, Process, neighbour, place
from ._mpi_pieces import CONTROL, DATA, FLIGHT, HEAD, LARGE, SMALL, Arriving, Bytes, bulky, cut
from ._mpi_worker import FLOOR, LINGER, MASTER, SPIN, Patience

# What a link tells: data from a worker; None when the worker is gone; a text when it never came.
News = tuple[int, Bytes | str | None]

_END = 0.5  # seconds for workers to begin to end
_LEAVE = 10.0  # seconds for MPI to let one go that says it leaves
_LOOK = 0.02  # seconds between two looks at MPI where everybody rings
_BURST = 16  # messages taken from one worker before the others get their turn


class _Peer:
    """One worker: where it is, what is on its way to it and from it."""

    __slots__ = (
        "bell",
        "box",
        "buffer",
        "comm",
        "greeted",
        "inbox",
        "large",
        "near",
        "notes",
        "process",
        "queue",
        "rank",
        "received",
        "request",
        "sending",
        "sent",
        "theirs",
        "unsent",
    )

    def __init__(self, comm: Any, rank: int) -> None:
        self.comm, self.rank = comm, rank
        self.greeted = False  # it has said hello; until then nothing is known of these
        self.process: Process | None = None  # if it runs on this machine
        self.near = False  # it rings, and hears our bell
        self.theirs, ours = os.pipe()  # their end is closed here once they have it
        self.bell = Bell(ours)
        self.box: Box | None = Box() if BOXES else None  # for small messages
        self.inbox: Box | None = Box() if BOXES else None
        self.sent = self.received = 0  # messages, besides those
        self.unsent: list[Bytes] = []  # frames, until the next flush
        self.buffer = bytearray(SMALL)
        self.request: Any = None  # the standing receive
        self.large: Arriving | None = None  # announced, being received
        self.queue: deque[tuple[int, Bytes]] = deque()  # waits for what is being sent
        self.sending: deque[tuple[Any, Bytes]] = deque()  # MPI may still read these bytes
        self.notes: deque[tuple[Any, Bytes]] = deque()  # the same, out of turn

    def post(self) -> bool:
        """Lay what is unsent into the box, if there is room; it is to be rung for."""
        if not self.near or self.box is None or self.queue:
            return False
        if not self.box.post(b"".join(self.unsent), self.sent):
            return False
        self.unsent.clear()
        return True

    def close(self) -> None:
        """Let go of what is held here for it."""
        self.bell.close()
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1
        if self.box is not None and self.inbox is not None:
            self.box.close()
            self.inbox.close()
        if self.process is not None:
            self.process.close()

    def held(self) -> list[tuple[Any, Bytes | bytearray]]:
        """Return the requests under way, with the memory that MPI may read or write for them."""
        held: list[tuple[Any, Bytes | bytearray]] = [*self.sending, *self.notes]
        if self.large is None:
            return [*held, (self.request, self.buffer)]
        return held + [(request, self.large.whole) for request in self.large.requests]

    def untold(self) -> bool:
        """Tell whether something may move on without a ring."""
        return not self.near or self.large is not None or bulky(self.sending)


class Link:
    """The master's hold on MPI. One caller; only `Spawn` runs in a thread of its own."""

    def __init__(self, MPI: Any, command: list[str], mark: Mark) -> None:
        self.MPI = MPI
        self.mark = mark  # for workers to try whether they can map what the master holds
        self.moved = False  # something has been sent or received since this was last asked
        self._gong, self._rings = map(Bell, os.pipe())
        self.ear = wire.poller()  # what may end a rest
        self.ear.register(self._gong.fd, wire.IN)
        self._ends: dict[int, int] = {}  # descriptors that can be read when a worker has ended
        self._ended: list[int] = []  # workers that have
        self._tower = Tower()
        self._rung: Counter[int] = Counter()  # who has said something, and how often
        self._untold: set[int] = set()  # workers for whose messages MPI must be called
        self._leaving: set[int] = set()  # workers whose MPI is about to end
        self._due = 0.0  # when to look at somebody, whoever rang
        self._turn = 0  # at whom
        self._linger = 0.0
        self.command = command  # what a spawned worker runs
        self.closed = False
        crowd = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0))
        self.spin = SPIN if crowd <= len(os.sched_getaffinity(0)) else 0.0
        self._peers: dict[int, _Peer] = {}
        self._behind: set[int] = set()  # workers with something queued
        self._unrung: list[_Peer] = []  # who were sent something since we rang
        self._unsent: dict[int, _Peer] = {}  # who have something to be sent
        self._dead: list[tuple[Any, Bytes | bytearray]] = []  # requests whose worker is gone
        self._status = MPI.Status()
        self._orders: deque[int] = deque()
        self._spawned: deque[tuple[int, Any]] = deque()
        self._spawner: threading.Thread | None = None
        self._news: list[News] = []
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.Set_errhandler(MPI.ERRORS_RETURN)

    def add(self, worker: int, comm: Any, rank: int) -> None:
        """Take a process in as this worker; it is there once it says hello."""
        peer = self._peers[worker] = _Peer(comm, rank)
        self._untold.add(worker)
        if comm != self.MPI.COMM_WORLD:
            self._linger = LINGER
        shared = [peer.theirs, self._tower.fd, self._rings.fd]
        if peer.box is not None and peer.inbox is not None:
            shared += [peer.box.fd, peer.inbox.fd]
        greeting = (worker, os.getpid(), self.spin, self.mark, *map(place, shared))
        self.send(worker, wire.frame(MASTER, greeting))
        try:
            self._listen(peer)
        except self.MPI.Exception:
            self._lost(worker)

    def spawn(self, worker: int) -> None:
        """Order one more process; it is started in the background."""
        self._orders.append(worker)
        if self._spawner is None or not self._spawner.is_alive():
            self._spawner = threading.Thread(target=self._spawn, name="kofn-spawn", daemon=True)
            self._spawner.start()

    def _spawn(self) -> None:
        # One Spawn per worker: those spawned together die together.
        MPI = self.MPI
        while self._orders:
            worker, comm = self._orders.popleft(), None
            try:
                info = MPI.Info.Create({"map_by": "slot:OVERSUBSCRIBE", "bind_to": "none"})
                comm = MPI.COMM_SELF.Spawn(self.command[0], self.command[1:], 1, info)
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                self._spawned.append((worker, comm))
            except MPI.Exception as error:
                self._spawned.append((worker, f"MPI_Comm_spawn failed: {error}"))
            self._rings.ring()

    # Sending.

    def send(self, worker: int, data: Bytes) -> None:
        """Send frames, or a large value, after what was sent before; see `flush`."""
        for tag, part in cut(data):
            self.carry(worker, tag, part)

    def carry(self, worker: int, tag: int, data: Bytes) -> None:
        """Send a part of what was cut."""
        peer = self._peers.get(worker)
        if peer is None:
            return  # gone; its news is on the way
        if peer.near and tag == DATA and len(data) > HEAD.size:
            peer.unsent.append(data)
            self._unsent[worker] = peer
        else:
            self._unbundle(worker, peer)
            peer.queue.append((tag, data))
            self._push(worker, peer)

    def _unbundle(self, worker: int, peer: _Peer) -> None:
        """Put what is unsent into the queue."""
        peer.queue.extend((DATA, data) for data in peer.unsent)
        peer.unsent.clear()
        self._unsent.pop(worker, None)

    def control(self, worker: int, round: int | None) -> None:
        """Tell a worker that a round is cancelled, or (None) to end, ahead of what is queued."""
        peer = self._peers.get(worker)
        if peer is None:
            return
        word = b"" if round is None else FLOOR.pack(round)
        with contextlib.suppress(self.MPI.Exception):  # gone: the standing receive will tell
            self._reap(peer.notes)
            peer.notes.append((self._isend(peer, word, CONTROL), word))

    def _push(self, worker: int, peer: _Peer) -> None:
        """Send what is queued, as far as the worker keeps up."""
        queue = peer.queue
        try:
            self._reap(peer.sending)
            while queue and len(peer.sending) < FLIGHT:
                tag, data = queue.popleft()
                if tag == DATA:
                    data = b"".join((data, *_more(queue, len(data))))
                    peer.sent += 1
                else:
                    self._untold.add(worker)
                peer.sending.append((self._isend(peer, data, tag), data))
                self._unrung.append(peer)
        except self.MPI.Exception:
            queue.clear()  # gone: the standing receive will tell
        if queue or bulky(peer.sending):
            self._behind.add(worker)
        else:
            self._behind.discard(worker)

    def _isend(self, peer: _Peer, data: Bytes, tag: int) -> Any:
        return peer.comm.Isend([data, self.MPI.BYTE], peer.rank, tag)

    def _reap(self, sending: deque[tuple[Any, Bytes]]) -> None:
        """Let go of what has been sent."""
        while sending and sending[0][0].Test():
            sending.popleft()
            self.moved = True

    # Receiving.

    def receive(self, timeout: float) -> list[News]:
        """Return what has arrived, waiting at most `timeout` seconds for the first."""
        self.flush()
        self._hear(0)
        if self._look() or timeout <= 0:
            return self._take()
        patience, end = Patience(self.spin), time.perf_counter() + timeout
        while not self._look():
            left = end - time.perf_counter()
            if left <= 0:
                break
            patience = self.rest(patience, left)
        return self._take()

    def active(self) -> bool:
        """Tell whether anything has moved since this was last asked."""
        moved, self.moved = self.moved, False
        return moved

    def rest(self, patience: Patience, limit: float) -> Patience:
        """Rest, where it is time to, until a worker rings or ends, or what else `ear` watches."""
        if self.active():
            return Patience(self.spin)
        rest = patience.rest()
        if rest and self._hear(min(_LOOK if self._told() else rest, limit)):
            return Patience(max(self.spin, self._linger))
        return patience

    def _hear(self, seconds: float) -> bool:
        """Take in who rings and who ends, waiting for it at most so long; whether anybody did."""
        if seconds <= 0 or self.closed:  # who closes is not interrupted
            found = self.ear.poll(seconds)
        else:
            with opened():
                found = self.ear.poll(seconds)
        for fd, _ in found:
            if fd == self._gong.fd:
                self._rung.update(self._gong.heard())
            elif fd in self._ends:
                self._ended.append(self._ends[fd])
                self._unwatch(fd)
        return bool(self._rung or self._ended)

    def _unwatch(self, fd: int) -> None:
        if self._ends.pop(fd, None) is not None:
            self.ear.unregister(fd)

    def _told(self) -> bool:
        """Tell whether everybody rings for all that is there to be received.

        Whoever is far has no bell, and large messages move on only when MPI is called.
        """
        self._untold = {w for w in self._untold if w in self._peers and self._peers[w].untold()}
        return not self._untold

    def flush(self) -> None:
        """Send what is unsent and wake those who were sent something, all of them at once.

        A worker that nobody rings for looks by itself after 5 ms.
        """
        unrung = self._unrung
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            for worker, peer in unsent.items():
                if peer.post():
                    unrung.append(peer)
                else:
                    self._unbundle(worker, peer)
                    self._push(worker, peer)
        if 2 * len(unrung) > len(self._peers):
            self._tower.ring()
        else:
            for peer in unrung:
                peer.bell.ring()
        unrung.clear()

    def _take(self) -> list[News]:
        news, self._news = self._news, []
        return news

    def _look(self) -> bool:
        """Look once at who rang, now and then at everybody; return whether there are news."""
        while self._spawned:
            worker, comm = self._spawned.popleft()
            if isinstance(comm, str):
                self._news.append((worker, comm))
            else:
                self.add(worker, comm, 0)
        if self._behind:
            for worker in tuple(self._behind):
                self._push(worker, self._peers[worker])
            self.flush()
        rung, self._rung = self._rung, Counter()
        over, self._ended = self._ended, []
        rung.update(dict.fromkeys(over, 2 * _BURST))  # all that it has said comes first
        self._leaving |= {~number for number in rung if number < 0}
        now = time.perf_counter()
        # To look in vain is not cheap: MPI gives up the core where cores are few. To one at a time,
        # for it is only to hear of the dead, and the engine has other means for that too.
        if self._linger or self.spin or not self._told():
            rung = Counter(dict.fromkeys(self._peers, 2 * _BURST))
        elif now >= self._due and self._peers:
            self._due = now + _LOOK
            self._turn = (self._turn + 1) % len(self._peers)
            rung[list(self._peers)[self._turn]] += 1
        for worker, rings in rung.items():
            peer = self._peers.get(worker)
            if peer is None:
                continue
            rings -= self._unbox(worker, peer)
            try:
                for _ in range(min(rings, _BURST)):
                    if not peer.request.Test(self._status):
                        break
                    self._unbox(worker, peer)  # it may have been posted before this was sent
                    self._arrived(worker, peer)
                    self._unbox(worker, peer)
                else:
                    if rings >= _BURST:
                        self._rung[worker] += rings - _BURST + 1
            except self.MPI.Exception:
                self._unbox(worker, peer)
                self._lost(worker)
        for worker in over:
            if worker in self._rung:
                self._ended.append(worker)
            elif worker in self._peers:
                self._lost(worker)
        return bool(self._news)

    def _unbox(self, worker: int, peer: _Peer) -> int:
        """Take what lies in a worker's box, if its turn has come; how many messages that was."""
        if peer.inbox is None or (data := peer.inbox.take(peer.received)) is None:
            return 0
        self._news.append((worker, data))
        return 1

    def _arrived(self, worker: int, peer: _Peer) -> None:
        count = self._status.Get_count(self.MPI.BYTE)
        self.moved = True
        if peer.large is not None:
            if not peer.large.arrived():
                peer.request = peer.large.requests[0]
                return
            self._news.append((worker, peer.large.whole))
            peer.received += 1
            peer.large = None
            self._listen(peer)
        elif count == HEAD.size:
            size = HEAD.unpack_from(peer.buffer)[0]
            peer.large = Arriving(
                size, lambda view: peer.comm.Irecv([view, self.MPI.BYTE], peer.rank, LARGE)
            )
            peer.request = peer.large.requests[0]
            self._untold.add(worker)
        else:
            data = bytes(memoryview(peer.buffer)[:count])
            if not peer.greeted:
                self._on_hello(worker, peer, wire.frames(data)[0][-1])
            peer.received += 1
            self._news.append((worker, data))
            self._listen(peer)

    def _on_hello(self, worker: int, peer: _Peer, mark: Mark | None) -> None:
        peer.greeted, peer.near = True, mark is not None
        os.close(peer.theirs)
        peer.theirs = -1
        if peer.box is not None and peer.inbox is not None:
            peer.box.given()
            peer.inbox.given()
        if mark is not None:
            with contextlib.suppress(OSError):  # gone already, or an old kernel: MPI will tell
                peer.process = neighbour(mark)
                # So its end is heard of when it ends, and not when MPI tells.
                self._ends[peer.process.fd] = worker
                self.ear.register(peer.process.fd, wire.IN)

    def _listen(self, peer: _Peer) -> None:
        peer.request = peer.comm.Irecv([peer.buffer, self.MPI.BYTE], peer.rank, DATA)

    def _lost(self, worker: int) -> None:
        self.drop(worker)
        self._news.append((worker, None))

    def drop(self, worker: int) -> None:
        """Forget a worker. What MPI may still read or write is kept until it is done with it."""
        peer = self._peers.pop(worker, None)
        self._behind.discard(worker)
        self._unsent.pop(worker, None)
        if peer is not None:
            self._unrung = [other for other in self._unrung if other is not peer]
            if peer.process is not None:
                self._unwatch(peer.process.fd)
            peer.close()
            self._dead += peer.held()
        self._dead = [pair for pair in self._dead if not self._over(pair[0])]

    def _over(self, request: Any) -> bool:
        try:
            return request is None or bool(request.Test())
        except self.MPI.Exception:
            return True

    def close(self) -> None:
        """End every worker: they are told, and killed if that takes long.

        Those of other machines are only told. Who is being spawned comes first: without us it would
        wait in MPI's start for ever, and mpiexec for it.
        """
        self.closed = True
        self._orders.clear()
        self._run(_LEAVE, self._coming)
        for worker in tuple(self._peers):
            self.control(worker, None)
            self._peers[worker].bell.ring()
        here: dict[int, Process] = {}
        for worker, peer in self._peers.items():
            if peer.process is not None:  # held here, for MPI may tell of its end before it ends
                here[worker], peer.process = peer.process, None
        self._run(_END, lambda: any(process.alive() for process in here.values()))
        # Stopped, or deep in a body. But who is killed on its way out counts as a failed job.
        stuck = [p for worker, p in here.items() if p.alive() and worker not in self._leaving]
        for process in stuck:
            process.kill()
        leaving = [here[worker] for worker in here.keys() & self._leaving]
        self._run(_LEAVE, lambda: any(process.alive() for process in leaving))
        for process in leaving:
            process.kill()
        # Until MPI knows: its own end, where the user's script asks for it, would wait for them.
        self._run(2 * _END, lambda: bool(stuck and self._peers))
        for worker in tuple(self._peers):
            self.drop(worker)
        self.ear.close()
        for process in here.values():
            process.close()
        self._tower.close()
        self._gong.close()
        self._rings.close()

    def _coming(self) -> bool:
        """Tell whether somebody is about to join."""
        if self._spawned or (self._spawner is not None and self._spawner.is_alive()):
            return True
        world = self.MPI.COMM_WORLD
        return any(not peer.greeted and peer.comm != world for peer in self._peers.values())

    def _run(self, seconds: float, go_on: Callable[[], bool]) -> None:
        limit = time.monotonic() + seconds
        while go_on() and time.monotonic() < limit:
            self.receive(0.005)


def _more(queue: deque[tuple[int, Bytes]], size: int) -> Iterator[Bytes]:
    """Take out of a queue the frames that go into the same small message."""
    if size == HEAD.size:
        return  # an announcement goes alone
    while queue and queue[0][0] == DATA and HEAD.size < len(queue[0][1]) <= SMALL - size:
        data = queue.popleft()[1]
        size += len(data)
        yield data
