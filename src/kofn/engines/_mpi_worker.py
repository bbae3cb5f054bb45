"""The other side of the MPI engine: what a worker rank does until the master ends it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import threadpoolctl

from . import _wire as wire
from ._bells import Bell, Box, Ear
from ._mpi_near import (
    Mark,
    Place,
    Process,
    Sample,
    bulk,
    fetch,
    mapped,
    opened,
    place,
    recognised,
    take,
)
from ._mpi_pieces import CONTROL, DATA, FLIGHT, HEAD, LARGE, SMALL, Arriving, Bytes, bulky, cut
from .exchange import Exchange, Shape
from .memory import ReplyPool, contiguous, no_segment, pack, unpack
from .running import keep, run, story

FLOOR = struct.Struct("<q")  # on CONTROL: the highest cancelled round; an empty message is the end
MASTER = 100  # a frame, the first one, see Worker.greet
FAR = 101  # the answer to a hello, where the master cannot map what we hold

SPIN = 0.0005  # seconds of looking without a pause, where each process has a core
LINGER = 0.0001  # seconds of looking once a bell has rung: MPI looks at TCP every eighth time
REST = 0.005  # the longest rest
_LISTEN = 0.05  # seconds between two looks for a last word, where cancels are seen without
_PART = 20  # a rest is this part of the time waited: what it may add to it


class Patience:
    """When to look again: at once while spinning pays, then ever later, at most 5 ms.

    MPI cannot wait without burning a core. Looking costs microseconds, so a rest of a twentieth
    of the time waited so far keeps both the delay and the burning below some percent. With more
    processes than cores, who looks without a pause takes the core from the one waited for, and
    who gives it up is given it back late: there `spin` is 0.
    """

    __slots__ = ("began", "spin")

    def __init__(self, spin: float) -> None:
        self.began, self.spin = time.perf_counter(), spin

    def rest(self) -> float:
        """Return the seconds to rest now; 0 to look again at once."""
        waited = time.perf_counter() - self.began
        return min(waited / _PART, REST) if waited > self.spin else 0.0


class Worker:
    """Runs one task after the other, streams the pieces, looks for a cancel in between."""

    def __init__(self, MPI: Any, comm: Any, master: int) -> None:
        self.MPI, self.comm = MPI, comm
        self.parent = os.getppid()
        self.masters = _processes(master)  # whose end is ours, where they run on this machine
        self.spin = 0.0
        self.linger = 0.0 if comm == MPI.COMM_WORLD else LINGER
        self.calm = REST if self.linger else _LISTEN  # the longest rest where the master rings
        self.ear: Ear | None = None  # where it wakes us
        self.gong: Bell | None = None  # where we wake it
        self.buffer = bytearray(SMALL)
        self.status = MPI.Status()
        self.sending: deque[tuple[Any, Bytes]] = deque()
        self.box: Box | None = None  # what the master posts
        self.outbox: Box | None = None  # what it is posted
        self.sent = self.received = 0  # messages, besides those
        self.standing: Any = None  # the receive that is always there
        self.count = -1  # bytes of what it has received
        self.behind = False  # the last message was there before it was waited for
        self.floor = -(2**63)  # the highest cancelled round
        self.word: memoryview | None = None  # the same, where the master can write it here
        self.listened = 0.0  # when
        self.round = 0  # of the task at hand
        self.pool: ReplyPool | None = None  # for large replies, where the master can map them
        self.kept: dict[str, Any] = {}
        self.operands: dict[int, Any] = {}
        self.functions: dict[int, Any] = {}

    def serve(self) -> NoReturn:
        """Handle messages in order until the master says so or is gone."""
        while True:
            for message in wire.frames(self.receive()):
                if message[0] == wire.TASK:
                    self.task(*message[1:])
                else:
                    self.other(*message)

    def greet(self, number: int, pid: int, spin: float, mark: Mark, *places: Place) -> None:
        """Answer rank 0's first word: who we are, who it is, how long to spin, what it holds.

        That is the master's sample, with the word of its cancels, the two bells to wait at, the
        bell to ring, and two boxes where it has some.
        """
        from .. import __version__  # not above: this module is imported by it

        self.spin = spin
        ours = outbox = None
        with contextlib.suppress(OSError):
            masters = _processes(mark[0], pid)
            word = memoryview(recognised(mark)).cast("q")
            self.masters = masters  # for they are here
            ear = Ear(*(opened(at, os.O_RDONLY | os.O_NONBLOCK) for at in places[:2]))
            self.gong = Bell(opened(places[2], os.O_WRONLY | os.O_NONBLOCK), number)
            self.ear, self.word = ear, word
            if len(places) > 3:
                self.box, outbox = (Box(opened(at, os.O_RDWR)) for at in places[3:5])
        if self.ear is not None:
            self.pool = ReplyPool(keep=64 << 20)
            self.sample = Sample()
            ours = self.sample.mark
        host = socket.gethostname()
        self.send(wire.HELLO, os.getpid(), host, sys.version_info[:2], __version__, ours)
        self.outbox = outbox

    # Messages. Whatever MPI raises here means that the master is gone, and the worker with it: an
    # exception would look like the body's own.

    def receive(self) -> bytes | memoryview:
        """Wait for a message, of the box or by MPI."""
        self.behind = True
        try:
            while True:
                # What was posted before it was sent comes first.
                if self.box is not None and (data := self.box.take(self.received)) is not None:
                    return data
                if self.count >= 0:
                    break
                if self.standing is None:
                    self.standing = self.comm.Irecv([self.buffer, self.MPI.BYTE], 0, DATA)
                if self.wait(self.standing, told=True):
                    self.count = self.status.Get_count(self.MPI.BYTE)
            self.received += 1
            self.standing, count, self.count = None, self.count, -1
            if count != HEAD.size:
                return memoryview(self.buffer)[:count]
            large = Arriving(
                HEAD.unpack_from(self.buffer)[0],
                lambda view: self.comm.Irecv([view, self.MPI.BYTE], 0, LARGE),
            )
            self.wait(large.requests[0])
            while not large.arrived():
                self.wait(large.requests[0])
            return large.whole
        except self.MPI.Exception:
            end()

    def send(self, *message: Any) -> None:
        """Send a frame; wait only while many are on their way."""
        data = wire.frame(*message)
        if self.outbox is not None and self.outbox.post(data, self.sent):
            assert self.gong is not None
            self.gong.ring()
            return
        self.pass_on(data)

    def pass_on(self, data: Bytes) -> None:
        """Send a message by MPI, which reads these bytes until it is done."""
        self.sent += 1
        sending = self.sending
        try:
            for tag, part in cut(data):
                while sending and sending[0][0].Test():
                    sending.popleft()
                while len(sending) >= FLIGHT:
                    self.wait(sending.popleft()[0])
                sending.append((self.comm.Isend([part, self.MPI.BYTE], 0, tag), part))
                if self.gong is not None:
                    self.gong.ring()
        except self.MPI.Exception:
            end()

    def wait(self, request: Any, told: bool = False) -> bool:
        """Wait for a request; hear the master's last word meanwhile.

        `told`: the master rings when it is there, and for the box: False when that has something.
        Other requests, and large messages on their way, move on only when MPI is called.
        """
        # To look in vain is not cheap: MPI gives up the core where cores are few.
        if (not told or self.ear is None) and request.Test(self.status):
            return True
        self.behind = False
        patience = Patience(self.spin)
        while True:
            if rest := patience.rest():
                if self.ear is None:
                    time.sleep(rest)
                else:
                    rung = self.ear.rest(self.calm if told and not bulky(self.sending) else rest)
                    if told and self.box is not None and self.box.due(self.received):
                        return False
                    if rung:
                        patience = Patience(max(self.spin, self.linger))
            if request.Test(self.status):
                return True
            if rest:
                self.listen()

    def listen(self) -> None:
        """Take in what the master says out of turn, without waiting."""
        while self.comm.Iprobe(0, CONTROL, self.status):
            count = self.status.Get_count(self.MPI.BYTE)
            word = bytearray(count)
            self.comm.Recv([word, self.MPI.BYTE], 0, CONTROL)
            if not count:
                self.farewell()
            self.floor = max(self.floor, FLOOR.unpack(word)[0])
        # The daemon may go, or the master exit, and MPI would never tell.
        if os.getppid() != self.parent or not all(master.alive() for master in self.masters):
            end()

    def farewell(self) -> NoReturn:
        """End because the master says so."""
        if self.comm != self.MPI.COMM_WORLD:
            # A spawned process is a job of its own: without this it would count as failed. Where
            # others are in the job it would wait for them. It takes a while on a busy machine.
            if self.gong is not None:
                self.gong.ring(leaving=True)
            signal.alarm(10)
            with contextlib.suppress(self.MPI.Exception):
                self.MPI.Finalize()
        end()

    def stale(self) -> bool:
        """Tell whether the task at hand was cancelled: at most some microseconds."""
        now = time.perf_counter()
        if self.word is None or now >= self.listened + _LISTEN:
            self.listened = now
            try:
                self.listen()
            except self.MPI.Exception:
                end()
        return self.cancelled()

    def cancelled(self) -> bool:
        """Tell the same by what has been heard, or written where we see it."""
        if self.word is not None and self.word[0] > self.floor:
            self.floor = self.word[0]
        return self.round <= self.floor

    # What the messages ask for.

    def other(self, kind: int, name: Any, content: Any = None, at: Any = None) -> None:
        """Handle everything but a task."""
        if isinstance(at, int):  # so much follows
            at = memoryview(self.receive()).toreadonly()
        if kind == wire.FUNCTION:
            self.functions[name] = content
        elif kind == wire.OPERAND:
            # Fetched when a task needs it: what goes wrong is then that task's failure.
            self.operands[name] = (content, at)
        elif kind == wire.PUT:
            self.put(name, lambda: fetch(content, at))
        elif kind == wire.EXCHANGE and at is not None:
            # Dropped with its mapping when it is forgotten and no body is at it any more.
            self.put(name, lambda: Exchange(mapped(at, write=True), Shape(*content)))
        elif kind == wire.FORGET:
            self.kept.pop(name, None)
        elif kind == wire.DROP:
            self.operands.pop(name, None)
        elif kind == wire.CLEAR:
            self.functions.clear()
        elif kind == MASTER:
            self.greet(*name)
        elif kind == FAR:
            self.pool = None

    def put(self, key: str, get: Callable[[], Any]) -> None:
        """Keep a value, build it here, or change what is kept."""
        try:
            keep(self.kept, key, get())
        except BaseException as error:
            self.send(wire.UNPUT, key, *story(error))
        else:
            self.send(wire.STORED, key)

    def task(self, task: int, round: int, function: int, packed: Any, floor: int) -> None:
        """Run one task: each piece is sent when it is finished, the end with it where known."""
        if floor > self.floor:
            self.floor = floor
        for old in [r for r in self.operands if r <= self.floor]:
            del self.operands[old]
        self.round = round
        # A task that has waited here may have been cancelled meanwhile.
        if self.stale() if self.behind else self.cancelled():
            self.send(wire.DROPPED, task)
            return

        def say(what: Any, value: Any, read: int, seconds: float, last: bool) -> None:
            at: Place | int | None = None
            follows, pool = None, self.pool
            if pool is not None and pool.used:
                for old in pool.reclaim():
                    self.send(wire.GONE, old)
            packed, segment = pack(contiguous(value), take if pool is None else pool.take)
            if segment is not None and pool is None:
                follows = bulk(segment, packed)
                at = len(follows)
                segment.close()
            elif segment is not None:
                at = place(segment.fd)
            self.send(
                wire.REPLY, task, pack(what, no_segment)[0], packed, int(read), seconds, last, at
            )
            if follows is not None:
                self.pass_on(follows)

        try:
            operand = self.operand(round)
            ended = run(
                self.body(function), self.kept, operand, unpack(packed, None), self.stale, say
            )
        except BaseException as error:
            self.send(wire.FAILED, task, *story(error))
            return
        if not ended:
            self.send(wire.DROPPED, task)

    def body(self, number: int) -> Any:
        """Return a function by its number, unpickled at first use."""
        function = self.functions[number]
        if type(function) is bytes:
            function = self.functions[number] = pickle.loads(function)
        return function

    def operand(self, round: int) -> Any:
        """Return the operand of a round, fetched at first use, None if it has none."""
        found = self.operands.get(round)
        if type(found) is tuple:
            found = self.operands[round] = [fetch(*found)]
        return found[0] if found else None


def _processes(*pids: int) -> list[Process]:
    """Hold these processes of this machine; OSError if one is gone."""
    return [Process(pid) for pid in dict.fromkeys(pids) if pid]


def end() -> NoReturn:
    """End this process, without MPI's own end: that would wait for everyone else's."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def serve(MPI: Any, comm: Any, master: int = 0) -> NoReturn:
    """Be a worker of rank 0 of `comm` until it closes or process `master` ends; then end too."""
    # Ctrl-C goes to the whole process group; only the master decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        # A killed worker flushes nothing; printed lines should be seen all the same.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    with threadpoolctl.threadpool_limits(1):
        Worker(MPI, comm, master).serve()
