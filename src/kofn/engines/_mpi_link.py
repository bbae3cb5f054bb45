"""MPI at the master: one stream of messages to and from each worker, and nothing that blocks.

Everything is a nonblocking call that is tested later: a frozen worker costs memory, never time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from ._mpi_worker import CONTROL, DATA, FLOOR, HEAD, LARGE, SMALL, Patience

# What a link tells: data from a worker; None when the worker is gone; a text when it never came.
News = tuple[int, bytes | bytearray | str | None]

_BURST = 16  # messages taken from one worker before the others get their turn


class _Peer:
    """One worker: where it is, what is on its way to it and from it."""

    __slots__ = ("buffer", "comm", "large", "notes", "queue", "rank", "request", "sending")

    def __init__(self, comm: Any, rank: int) -> None:
        self.comm, self.rank = comm, rank
        self.buffer = bytearray(SMALL)
        self.request: Any = None  # the standing receive
        self.large: bytearray | None = None  # announced, being received
        self.queue: deque[bytes] = deque()  # waits for what is being sent
        self.sending: list[tuple[Any, bytes]] = []  # MPI still reads these bytes
        self.notes: list[tuple[Any, bytes]] = []  # the same, out of turn


class Link:
    """The master's hold on MPI. One caller; only `Spawn` runs in a thread of its own."""

    def __init__(self, MPI: Any, command: list[str]) -> None:
        self.MPI = MPI
        self.command = command  # what a spawned worker runs
        self.closed = False
        self._peers: dict[int, _Peer] = {}
        self._busy: set[int] = set()  # workers with something not yet sent
        self._dead: list[tuple[Any, bytes]] = []  # requests whose worker is gone
        self._status = MPI.Status()
        self._orders: deque[int] = deque()
        self._spawned: deque[tuple[int, Any]] = deque()
        self._spawner: threading.Thread | None = None
        self._news: list[News] = []
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.Set_errhandler(MPI.ERRORS_RETURN)

    @property
    def live(self) -> int:
        """How many workers MPI has not told to be gone."""
        return len(self._peers)

    def add(self, worker: int, comm: Any, rank: int) -> None:
        """Take a process in as this worker; it is there once it says hello."""
        peer = self._peers[worker] = _Peer(comm, rank)
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
                if self.closed:
                    comm.Isend([b"", MPI.BYTE], 0, CONTROL)
                self._spawned.append((worker, comm))
            except MPI.Exception as error:
                self._spawned.append((worker, f"MPI_Comm_spawn failed: {error}"))

    # Sending.

    def send(self, worker: int, data: bytes) -> None:
        """Send frames, after those sent before; `data` may be the same object for many workers."""
        peer = self._peers.get(worker)
        if peer is None:
            return  # gone; its news is on the way
        peer.queue.append(data)
        if not peer.sending:
            self._push(worker, peer)

    def share(self, data: bytes) -> None:
        """Announce bytes that will be sent to many workers: MPI reads them where they are."""

    def unshare(self, data: bytes) -> None:
        """Take that back."""

    def control(self, worker: int, round: int | None) -> None:
        """Tell a worker that a round is cancelled, or (None) to end, ahead of what is queued."""
        peer = self._peers.get(worker)
        if peer is None:
            return
        word = b"" if round is None else FLOOR.pack(round)
        with contextlib.suppress(self.MPI.Exception):  # gone: the standing receive will tell
            self._sent(peer.notes)
            peer.notes.append((self._isend(peer, word, CONTROL), word))

    def _push(self, worker: int, peer: _Peer) -> None:
        """Send what is queued, one message at a time, while MPI takes it at once."""
        queue = peer.queue
        try:
            while self._sent(peer.sending) and queue:
                data = queue.popleft()
                while queue and len(data) + len(queue[0]) <= SMALL:
                    data += queue.popleft()
                if len(data) > SMALL:
                    head = HEAD.pack(len(data))
                    peer.sending.append((self._isend(peer, head, DATA), head))
                    peer.sending.append((self._isend(peer, data, LARGE), data))
                else:
                    peer.sending.append((self._isend(peer, data, DATA), data))
        except self.MPI.Exception:
            queue.clear()  # gone: the standing receive will tell
        if peer.sending:
            self._busy.add(worker)
        else:
            self._busy.discard(worker)

    def _isend(self, peer: _Peer, data: bytes, tag: int) -> Any:
        return peer.comm.Isend([data, self.MPI.BYTE], peer.rank, tag)

    def _sent(self, sending: list[tuple[Any, bytes]]) -> bool:
        """Let go of what has been sent; return whether that is all."""
        while sending:
            if not sending[0][0].Test():
                return False
            del sending[0]
        return True

    # Receiving.

    def receive(self, timeout: float) -> list[News]:
        """Return what has arrived, waiting at most `timeout` seconds for the first."""
        if self._look() or timeout <= 0:
            return self._take()
        patience, end = Patience(), time.perf_counter() + timeout
        while not self._look():
            left = end - time.perf_counter()
            if left <= 0:
                break
            pause = min(patience.rest(), left)
            if pause:
                time.sleep(pause)
            else:
                os.sched_yield()
        return self._take()

    def _take(self) -> list[News]:
        news, self._news = self._news, []
        return news

    def _look(self) -> bool:
        """Look once at everything; return whether there are news."""
        while self._spawned:
            worker, comm = self._spawned.popleft()
            if isinstance(comm, str):
                self._news.append((worker, comm))
            else:
                self.add(worker, comm, 0)
        for worker in tuple(self._busy):
            self._push(worker, self._peers[worker])
        for worker, peer in tuple(self._peers.items()):
            try:
                for _ in range(_BURST):
                    if not peer.request.Test(self._status):
                        break
                    self._arrived(worker, peer)
            except self.MPI.Exception:
                self._lost(worker)
        return bool(self._news)

    def _arrived(self, worker: int, peer: _Peer) -> None:
        count = self._status.Get_count(self.MPI.BYTE)
        if peer.large is not None:
            self._news.append((worker, peer.large))
            peer.large = None
            self._listen(peer)
        elif count == HEAD.size:
            peer.large = bytearray(HEAD.unpack_from(peer.buffer)[0])
            peer.request = peer.comm.Irecv([peer.large, self.MPI.BYTE], peer.rank, LARGE)
        else:
            self._news.append((worker, bytes(memoryview(peer.buffer)[:count])))
            self._listen(peer)

    def _listen(self, peer: _Peer) -> None:
        peer.request = peer.comm.Irecv([peer.buffer, self.MPI.BYTE], peer.rank, DATA)

    def _lost(self, worker: int) -> None:
        self.drop(worker)
        self._news.append((worker, None))

    def drop(self, worker: int) -> None:
        """Forget a worker. What MPI may still read or write is kept until it is done with it."""
        peer = self._peers.pop(worker, None)
        self._busy.discard(worker)
        if peer is not None:
            self._dead += [*peer.sending, *peer.notes, (peer.request, peer.large or peer.buffer)]
        self._dead = [pair for pair in self._dead if not self._over(pair[0])]

    def _over(self, request: Any) -> bool:
        try:
            return request is None or bool(request.Test())
        except self.MPI.Exception:
            return True

    def close(self) -> None:
        """Tell every worker to end. Those that a Spawn is about to bring are told then."""
        self.closed = True
        self._orders.clear()
        for worker in tuple(self._peers):
            self.control(worker, None)
