"""The other side of the local engine: a launcher that forks workers, and what a worker does.

The launcher is a fresh interpreter with a single thread, so forking it is safe and takes a few
milliseconds, whatever threads the user's own process has. It holds no worker's socket, so a
worker's death is an end of file at the master at once.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

from . import _wire as wire
from ._bells import Box
from ._forks import reseed, tie
from ._processes import Process
from .exchange import Exchange, Shape
from .memory import ReplyPool, Segment, attach, no_segment, pack, solid, unpack
from .running import keep, run, story

ORDER = struct.Struct("<q")  # to the launcher: fork a worker of this id
NEWS = struct.Struct("<qq")  # from it: this one died, or was not forked, and the error's number

_BOOT = (
    "import sys; fd = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from kofn.engines.worker import launch; launch(fd)"
)
_ONE_THREAD = ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR", "BLIS")
_IN, _OUT = select.POLLIN, select.POLLOUT


class Launcher:
    """The master's hold on the process that forks workers."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        threads = {f"{name}_NUM_THREADS": "1" for name in _ONE_THREAD}
        try:
            # Ctrl-C goes to it too, before it can say that it does not want it.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **threads, "VECLIB_MAXIMUM_THREADS": "1"},
                )
        except BaseException:
            self.control.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def fork(self, worker: int, fds: Iterable[int]) -> None:
        """Order a worker that serves on these descriptors."""
        self.control.sendmsg([ORDER.pack(worker)], wire.with_fds(fds))

    def close(self) -> None:
        """Make it kill and reap its workers and end."""
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # somebody stopped it
            self.process.kill()
            self.process.wait()


def launch(fd: int) -> None:
    """Fork a worker per order on socket `fd`; at its end kill and reap them all.

    The end comes when the master closes or dies, be it by kill -9.
    """
    # Ctrl-C goes to the whole process group; only the master decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (sys.stdout, sys.stderr):
        # A killed worker flushes nothing; printed lines should be seen all the same.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    control = socket.socket(fileno=fd)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # their workers, by pid
    try:
        while True:
            ready = select.select([fd, bell], [], [])[0]
            if bell in ready:
                os.read(bell, 4096)
                dead = [children.pop(p) for p in list(children) if os.waitpid(p, os.WNOHANG)[0]]
                for worker in dead:
                    # The socket says so too, unless a grandchild holds it open.
                    control.send(NEWS.pack(worker, 0))
            if fd in ready:
                order, ancillary, flags, _ = control.recvmsg(ORDER.size, socket.CMSG_SPACE(64))
                fds = wire.take_fds(ancillary)
                if not order:
                    return
                worker = ORDER.unpack(order)[0]
                try:
                    if flags & socket.MSG_CTRUNC:
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    children[_fork(fds, (fd, bell, ring))] = worker
                except OSError as error:  # no room for one more; the others go on
                    control.send(NEWS.pack(worker, error.errno or errno.EAGAIN))
                for passed in fds:
                    os.close(passed)
    except ConnectionError:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _fork(fds: list[int], inherited: tuple[int, ...]) -> int:
    """Fork a worker and return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work(fds, inherited)
        except OSError as error:
            print(f"kofn: a worker cannot go on and ends: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def work(fds: list[int], inherited: tuple[int, ...]) -> NoReturn:
    """Serve the master on socket `fds[0]` until it goes away.

    `fds[1]` holds the cancel word, `fds[2]` is the master's lifeline. Where there is a box, it is
    `fds[3]`, and `fds[4]` the tower that rings for it.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in inherited:
        os.close(fd)
    tie(fds[2])
    reseed()
    Worker(socket.socket(fileno=fds[0]), attach(fds[1]), *fds[3:]).serve()
    # No clean-up to wait for: everything the worker holds is its own anonymous memory.
    os._exit(0)


class Worker:
    """Runs one task after the other, streams the pieces, looks at the cancel word in between."""

    def __init__(
        self, sock: socket.socket, cancelled: mmap.mmap, box: int = -1, tower: int = -1
    ) -> None:
        self.sock = sock
        self.box: Box | None = None
        if box >= 0:
            self.box, self.poll = Box(box), select.epoll()
            self.poll.register(sock.fileno(), select.EPOLLIN)
            self.poll.register(tower, select.EPOLLIN | select.EPOLLET)
        self.position = 0  # bytes of the socket's stream that have been handled
        self.reader = wire.Reader(sock)
        self.cancelled = memoryview(cancelled).cast("q")  # [0]: the highest cancelled round
        self.kept: dict[str, Any] = {}
        self.operands: dict[int, Any] = {}
        self.functions: dict[int, Any] = {}
        self.maps: dict[int, mmap.mmap] = {}
        self.pool = ReplyPool(keep=64 << 20)
        self.passed: set[int] = set()  # segments of the pool that the master has mapped

    def serve(self) -> None:
        """Handle messages in order until the master goes away."""
        process = Process.of(os.getpid())
        self.send(wire.frame(wire.HELLO, process.pid, process.began))
        while (messages := self.receive()) is not None:
            self.take(messages)

    def take(self, messages: list[Any]) -> None:
        """Handle messages of the socket, and each of the box in its turn."""
        for message, size in zip(messages, self.reader.sizes, strict=True):
            self.open_box()
            self.handle(message)
            self.position += size

    def receive(self) -> list[Any] | None:
        """Wait for messages of the socket, handling those of the box meanwhile."""
        while self.box is not None:
            self.open_box()
            if any(fd == self.sock.fileno() for fd, _ in self.poll.poll()):
                break
        return self.reader.receive()

    def open_box(self) -> None:
        """Handle what lies in the box, if its turn has come."""
        if self.box is not None and (data := self.box.take(self.position)) is not None:
            for message in wire.frames(data):
                self.handle(message)

    def handle(self, message: Any) -> None:
        """Do what a message says."""
        if message[0] == wire.TASK:
            self.task(*message[1:])
        else:
            self.other(*message)

    def other(self, kind: int, name: Any, content: Any = None) -> None:
        """Handle everything but a task."""
        if kind == wire.FUNCTION:
            self.functions[name] = content
        elif kind == wire.OPERAND:
            # Unpacked when a task needs it: what goes wrong is then that task's failure.
            self.operands[name] = (content, self.memory(content))
        elif kind == wire.PUT:
            self.put(name, content)
        elif kind == wire.EXCHANGE:
            # Dropped with its mapping when it is forgotten and no body is at it any more.
            memory = attach(self.reader.fds.popleft(), write=True)
            self.kept[name] = Exchange(memory, Shape(*content))
            self.send(wire.frame(wire.STORED, name))
        elif kind == wire.FORGET:
            self.kept.pop(name, None)
        elif kind == wire.DROP:
            self.operands.pop(name, None)
        elif kind == wire.UNMAP:
            # Dropped, not closed: an array that a body hid away keeps its memory.
            self.maps.pop(name, None)
        elif kind == wire.UNPASS:
            # The master could not map it, so it has to be passed again, and it is free.
            self.passed.discard(name)
            if name in self.pool.used:
                self.pool.used[name].map[0] = 0
        elif kind == wire.CLEAR:
            self.functions.clear()

    def memory(self, packed: Any) -> mmap.mmap | None:
        """Return the mapping a packed value lies in; made once per segment.

        An OSError here ends the worker: the two sides would disagree on what is mapped.
        """
        segment = packed[2]
        if segment is None:
            return None
        if segment == -1:
            return attach(self.reader.fds.popleft())
        if segment not in self.maps:
            self.maps[segment] = attach(self.reader.fds.popleft())
        return self.maps[segment]

    def put(self, key: str, packed: Any) -> None:
        """Keep a value, build it here, or change what is kept."""
        memory = self.memory(packed)
        try:
            keep(self.kept, key, unpack(packed, memory))
        except BaseException as error:
            self.send(wire.frame(wire.UNPUT, key, *story(error)))
        else:
            self.send(wire.frame(wire.STORED, key))

    def task(self, task: int, round: int, function: int, packed: Any) -> None:
        """Run one task: each piece is sent when it is finished, the end with it where known."""
        memory = self.memory(packed)  # even if stale: its descriptor has come
        cancelled = self.cancelled
        if round <= cancelled[0]:
            self.send(wire.frame(wire.DROPPED, task))
            return
        try:
            body, args = self.body(function), unpack(packed, memory)
            ended = run(
                body,
                self.kept,
                self.operand(round),
                args,
                lambda: round <= cancelled[0],
                partial(self.reply, task),
            )
        except BaseException as error:
            self.send(wire.frame(wire.FAILED, task, *story(error)))
            return
        if not ended:
            self.send(wire.frame(wire.DROPPED, task))

    def reply(
        self, task: int, what: Any, value: Any, read: int, seconds: float, last: bool
    ) -> None:
        """Send one piece; large arrays through memory that the master copies out of."""
        for old in self.pool.reclaim() if self.pool.used else ():
            self.passed.discard(old)
            self.send(wire.frame(wire.GONE, old))
        name, _ = pack(what, no_segment)
        packed, segment = pack(solid(value), self.pool.take)
        self.send(wire.frame(wire.REPLY, task, name, packed, int(read), seconds, last), segment)

    def send(self, data: bytes, segment: Segment | None = None) -> None:
        """Send a frame and, with its first byte, the descriptor of a segment not passed before."""
        try:
            if segment is not None and segment.id not in self.passed:
                self.passed.add(segment.id)
                sent = self.sock.sendmsg([data], wire.with_fds([segment.fd]))
                data = data[sent:]
            self.sock.sendall(data)
        except ConnectionError:
            os._exit(0)  # the master is gone; an exception would look like the body's own

    def body(self, number: int) -> Any:
        """Return a function by its number, unpickled at first use."""
        function = self.functions[number]
        if type(function) is bytes:
            function = self.functions[number] = pickle.loads(function)
        return function

    def operand(self, round: int) -> Any:
        """Return the operand of a round, unpacked at first use, None if it has none."""
        found = self.operands.get(round)
        if type(found) is tuple:
            found = self.operands[round] = [unpack(*found)]
        return found[0] if found else None
