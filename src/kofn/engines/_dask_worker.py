"""The other side of the Dask engine: a session on a Dask worker, and the launcher of our own.

A session is one connection from a master, held open by Dask's own comm layer (so TLS and its
certificates are Dask's), and one thread that does the work. It ends with the connection, and
leaves the Dask worker as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import select
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NoReturn

import numpy as np

from .memory import LARGE, dumps, pack, solid, unpack
from .running import keep, run, story

PROTOCOL = 1  # of the messages below; master and workers must agree
_UNUSED = 60.0  # seconds after which an installed session that nobody opened is removed

# Master to worker.
TASK, FUNCTION, OPERAND, PUT, FORGET, DROP, CANCEL, CLEAR = range(8)
# Worker to master.
REPLY, DROPPED, FAILED, STORED, UNPUT = range(8, 13)

Wrapped = tuple[Any, tuple[Any, ...]]


def wrap(value: Any) -> Wrapped:
    """Pickle a value, and copy its arrays: it may lie in a buffer long after we return."""
    (head, parts, _), _ = pack(solid(value), lambda size: None)
    if type(head) is memoryview:
        head = bytes(head)
    return head, tuple(pickle.PickleBuffer(bytes(part)) for part in parts)


def unwrap(wrapped: Wrapped, private: bool = False) -> Any:
    """Return the value: arrays are read-only, or with `private` the caller's to write to."""
    head, parts = wrapped
    # What Dask reads need not be aligned, and a product of such arrays copies them each time.
    return unpack((head, parts if private else tuple(map(bytes, parts)), None), None, private)


def frame(messages: list[tuple[Any, ...]]) -> list[Any]:
    """Return messages in the form that a Dask comm writes best: large buffers are not copied."""
    to_serialize: Any = import_module("distributed.protocol").to_serialize
    large: list[Any] = []

    def small(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        large.append(to_serialize(view))
        return False

    return [pickle.dumps(messages, 5, buffer_callback=small), *large]


def unframe(parts: Any) -> list[tuple[Any, ...]]:
    """Return the messages of a frame."""
    return pickle.loads(parts[0], buffers=parts[1:])  # type: ignore[no-any-return]


def place() -> str:
    """Name the machine, or container, in which process ids mean the same."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {space}"


_sessions: dict[tuple[str, str], Session] = {}  # by worker and operation; see hold


def install(op: str, dask_worker: Any) -> dict[str, Any]:
    """Let this Dask worker open sessions under the name `op`; return what the master must know."""
    dont_reply = import_module("distributed.core").Status.dont_reply
    handlers = dask_worker.handlers
    begun = False

    async def serve(comm: Any) -> Any:
        nonlocal begun
        begun = True
        session = Session(comm, dask_worker.state.nthreads)
        _sessions[dask_worker.address, op] = session
        try:
            await session.serve()
        finally:
            if handlers.get(op) is serve:
                del handlers[op]
                _sessions.pop((dask_worker.address, op), None)
        return dont_reply

    def unused() -> None:
        if not begun and handlers.get(op) is serve:
            del handlers[op]

    handlers[op] = serve
    dask_worker.loop.call_later(_UNUSED, unused)
    return {
        "protocol": PROTOCOL,
        "name": str(dask_worker.name),
        "place": place(),
        "pid": os.getpid(),
    }


def hold(op: str) -> None:
    """Task: tell the scheduler that its worker is in use until the session ends.

    Dask would otherwise see an idle worker: fit to be retired, or its cluster to be shut down.
    """
    distributed = import_module("distributed")
    session = _sessions.get((distributed.get_worker().address, op))
    if session is not None:
        distributed.secede()
        session.ended.wait()


class Session:
    """One master's use of this worker: what it keeps here, and the thread that works for it."""

    def __init__(self, comm: Any, threads: int) -> None:
        self.comm, self.threads = comm, threads
        self.ended = Event()
        self.loop = asyncio.get_running_loop()
        self.inbox: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self.outbox: deque[tuple[Any, ...]] = deque()
        self.wake = asyncio.Event()
        self.cancelled: float = -(2**63)  # the highest cancelled round
        self.kept: dict[str, Any] = {}
        self.functions: dict[int, Any] = {}
        self.operands: dict[int, list[Any]] = {}  # still wrapped, or unwrapped at first use
        self.on: dict[int, Callable[..., Any]] = {
            TASK: self.task,
            PUT: self.put,
            FORGET: lambda key: self.kept.pop(key, None),
            FUNCTION: self.functions.__setitem__,
            CLEAR: self.functions.clear,
            OPERAND: lambda round, value: self.operands.__setitem__(round, [value, False]),
            DROP: lambda round: self.operands.pop(round, None),
        }

    # On the worker's event loop.

    async def serve(self) -> None:
        """Take messages until the connection ends."""
        Thread(target=self.work, name="kofn", daemon=True).start()
        writer = asyncio.create_task(self.write())
        try:
            await self.comm.write(frame([]))
            while True:
                for message in unframe(await self.comm.read()):
                    if message[0] == CANCEL:  # not in line: it is about what is in line
                        self.cancelled = max(self.cancelled, message[1])
                    else:
                        self.inbox.put(message)
        except OSError:
            pass  # the master is gone, or this worker is closing
        finally:
            self.cancelled = float("inf")
            self.inbox.put(None)
            writer.cancel()
            self.ended.set()

    async def write(self) -> None:
        """Send what the thread has said, all that there is at a time."""
        with contextlib.suppress(OSError):
            while True:
                await self.wake.wait()
                self.wake.clear()
                messages = [self.outbox.popleft() for _ in range(len(self.outbox))]
                if messages:
                    await self.comm.write(frame(messages))

    # On the session's thread.

    def work(self) -> None:
        """Do what arrives, in order, until the end of the session."""
        from threadpoolctl import threadpool_limits

        # As many BLAS threads as Dask gave the worker; set back for Dask's own tasks at the end.
        with threadpool_limits(self.threads):
            while (message := self.inbox.get()) is not None:
                self.on[message[0]](*message[1:])
                message = None
                for round in [r for r in self.operands if r <= self.cancelled]:
                    del self.operands[round]

    def say(self, *message: Any) -> None:
        """Send a message, without waiting."""
        self.outbox.append(message)
        if not self.ended.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has closed: the worker ends
                self.loop.call_soon_threadsafe(self.wake.set)

    def put(self, key: str, value: Wrapped) -> None:
        """Keep a value, or build it here."""
        try:
            keep(self.kept, key, unwrap(value))
        except BaseException as error:
            self.say(UNPUT, key, *story(error))
        else:
            self.say(STORED, key)

    def task(self, task: int, round: int, number: int, args: Wrapped) -> None:
        """Run one task."""
        if round <= self.cancelled:
            self.say(DROPPED, task)
            return
        try:
            body, operand = self.body(number), self.operand(round)
            ended = run(
                body,
                self.kept,
                operand,
                unwrap(args),
                lambda: round <= self.cancelled,
                partial(self.reply, task),
            )
        except BaseException as error:
            self.say(FAILED, task, *story(error))
        else:
            if not ended:
                self.say(DROPPED, task)

    def reply(
        self, task: int, what: Any, value: Any, read: int, seconds: float, last: bool
    ) -> None:
        """Send one piece."""
        self.say(REPLY, task, dumps(what)[0], wrap(value), int(read), seconds, last)

    def body(self, number: int) -> Any:
        """Return a function by its number, unpickled at first use."""
        function = self.functions[number]
        if type(function) is bytes:
            function = self.functions[number] = pickle.loads(function)
        return function

    def operand(self, round: int) -> Any:
        """Return the operand of a round, None if it has none."""
        found = self.operands.get(round)
        if found is None:
            return None
        if not found[1]:
            found[:] = unwrap(found[0]), True
        return found[0]


# Our own scheduler and workers: processes forked by a launcher. A fresh interpreter with a single
# thread imports Dask once, so a worker takes a fifth of the time of a `dask worker` command.

BOOT = (
    "import sys; fd, directory = int(sys.argv[1]), sys.argv[2]; sys.path[:] = sys.argv[3:]; "
    "from kofn.engines._dask_worker import launch; launch(fd, directory)"
)
_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.worker-ttl": None,  # a silent worker is a straggler, not a loss
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


def launch(fd: int, directory: str) -> None:
    """Fork a process per order on socket `fd`; at its end kill and reap them all.

    The end comes when the master closes or dies, be it by kill -9. Orders and news are lines of
    JSON: ["scheduler"] and ["worker", name, scheduler]; ["at", address] of the scheduler, ["up",
    address] of a worker and ["died", name].
    """
    import_module("distributed")  # once, for all that are forked
    import_module("dask").config.set(_SETTINGS)
    # Ctrl-C goes to the whole process group; only the master decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    control = socket.socket(fileno=fd)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    children: dict[int, str] = {}
    rest = b""
    try:
        while True:
            ready = select.select([fd, bell], [], [])[0]
            if bell in ready:
                os.read(bell, 4096)
                for name in _reap(children):
                    control.sendall(_line("died", name))
            if fd in ready:
                data = control.recv(1 << 16)
                if not data:
                    return
                *orders, rest = (rest + data).split(b"\n")
                for kind, *args in map(json.loads, orders):
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(bell)
                        os.close(ring)
                        _become(kind, args, control, directory)
                    children[pid] = args[0] if args else kind
    except ConnectionError:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        shutil.rmtree(directory, ignore_errors=True)


def _reap(children: dict[int, str]) -> list[str]:
    names = []
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            names.append(children.pop(pid))
    return names


def _line(*news: str) -> bytes:
    return json.dumps(news).encode() + b"\n"


def _become(kind: str, args: list[str], control: socket.socket, directory: str) -> NoReturn:
    """Be a scheduler or a worker until the end of this process."""
    code = 1
    try:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        if kind == "scheduler":
            asyncio.run(_with_parent(_scheduler(control, directory)))
        else:
            asyncio.run(_with_parent(_worker(control, directory, *args)))
        code = 0
    except BaseException as error:
        print(f"kofn: a Dask {kind} ended: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


async def _with_parent(main: Coroutine[Any, Any, None]) -> None:
    """Run until `main` ends or the launcher is gone, which kills its children if it can."""
    parent, task = os.getppid(), asyncio.ensure_future(main)
    while not task.done() and os.getppid() == parent:
        await asyncio.wait([task], timeout=1.0)
    if task.done():
        task.result()


async def _scheduler(control: socket.socket, directory: str) -> None:
    distributed = import_module("distributed")
    security = distributed.Security()
    scheme = "tls" if security.require_encryption else "tcp"
    async with distributed.Scheduler(
        host="127.0.0.1",
        port=0,
        protocol=f"{scheme}://",
        security=security,
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        local_directory=directory,
    ) as scheduler:
        control.sendall(_line("at", scheduler.address))
        control.close()
        await scheduler.finished()


async def _worker(control: socket.socket, directory: str, name: str, address: str) -> None:
    np.random.seed()  # noqa: NPY002  (the launcher's state, which bodies may use, is everyone's)
    async with import_module("distributed").Worker(
        address,
        name=name,
        nthreads=1,
        host="127.0.0.1",
        dashboard=False,
        memory_limit=0,
        local_directory=directory,
        death_timeout=30,
    ) as worker:
        control.sendall(_line("up", worker.address))
        control.close()
        await worker.finished()
