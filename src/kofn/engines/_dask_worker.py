"""The other side of the Dask engine: a session on a Dask worker.

A session is one connection from a master, held open by Dask's own comm layer (so TLS and its
certificates are Dask's), and one thread that does the work. It ends with the connection, and
leaves the Dask worker as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from .memory import LARGE, contiguous, no_segment, pack, unpack
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
    (head, parts, _), _ = pack(contiguous(value), no_segment)
    if head is None:
        return head, parts
    if type(head) is memoryview:
        head = bytes(head)
    return head, tuple(pickle.PickleBuffer(bytes(part)) for part in parts)


def unwrap(wrapped: Wrapped, private: bool = False) -> Any:
    """Return the value: arrays are read-only, or with `private` the caller's to write to."""
    head, parts = wrapped
    if head is None:
        return parts[0]
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


def patient(comm: Any) -> None:
    """Let a connection outlast a frozen peer, whatever waits in it.

    Dask would end it after 30 s. A machine that is gone is found out by its scheduler.
    """
    stream = getattr(comm, "stream", None)  # there is none between threads of one process
    if stream is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


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
        patient(self.comm)
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
        try:
            with threadpool_limits(self.threads):
                while (message := self.inbox.get()) is not None:
                    self.on[message[0]](*message[1:])
                    message = None
                    for round in [r for r in self.operands if r <= self.cancelled]:
                        del self.operands[round]
        finally:
            if not self.ended.is_set():  # out of memory, say: better lost than silent
                self.loop.call_soon_threadsafe(self.comm.abort)

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
        self.say(REPLY, task, wrap(what), wrap(value), int(read), seconds, last)

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
