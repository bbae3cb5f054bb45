"""The other side of the Dask engine: a session on a Dask worker.

A session is one connection from a master over Dask's own comm layer (so TLS and its certificates
are Dask's), and one thread that does the work. It ends with the connection, and leaves the Dask
worker as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from threadpoolctl import threadpool_limits

from .. import __version__
from ..peers.keys import Keys
from ._processes import where_pids_count
from .memory import LARGE, Packed, pack, unpack
from .protocol import NEVER, Cancel, Message, Values, WorkerProtocol, plain, typed

_UNUSED = 60.0  # seconds after which an installed session that nobody opened is removed


class Copies(Values):
    """Values travel as pickles and copies of their arrays: they may wait long to be sent."""

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        (head, parts, _), _ = pack(value, tidy=True)
        if head is not None:
            copies = map(bytes, parts)
            parts = tuple(pickle.PickleBuffer(c) if len(c) >= LARGE else c for c in copies)
        return head, parts, None


class Connection:
    """Messages over a Dask comm, which either side may abort. `facts`: of the worker."""

    def __init__(self, comm: Any, facts: dict[str, Any]) -> None:
        self.comm, self.facts = comm, facts
        self.worker = -1  # its id, where a master has given it one
        self.outbox: deque[Message] = deque()  # any thread may append
        self.wake = asyncio.Event()  # to be set afterwards
        comm.allow_offload = False  # frames are made already; sizing them up is a waste
        # Dask would end a connection to a frozen process after 30 s; it should outlast that,
        # whatever waits in it. A machine that is gone is found out by the scheduler. The stream is
        # private, and not there between threads of one process; the limit is Linux's own.
        with contextlib.suppress(OSError, AttributeError):
            comm.stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)

    async def run(self, receive: Callable[[list[Message]], None]) -> None:
        """Send what is in the outbox, and hand over what arrives, until the connection ends."""
        writer = asyncio.create_task(self._write())
        # Also when it fails, as there is no memory, say: better lost than silent.
        writer.add_done_callback(lambda _: self.comm.abort())
        try:
            while True:
                head, *large = await self.comm.read()
                receive([*map(typed, pickle.loads(head, buffers=large))])
        except OSError:
            pass  # the other side is gone, or somebody has aborted it
        finally:
            writer.cancel()

    async def _write(self) -> None:
        """Send all that there is at a time; never waits for the other side."""
        to_serialize: Any = import_module("distributed.protocol").to_serialize
        with contextlib.suppress(OSError):
            while await self.wake.wait():
                self.wake.clear()
                fields = [plain(self.outbox.popleft()) for _ in range(len(self.outbox))]
                large: list[pickle.PickleBuffer] = []  # so given to Dask that it copies nothing
                head = pickle.dumps(fields, 5, buffer_callback=large.append)
                if fields:
                    await self.comm.write([head, *(to_serialize(each.raw()) for each in large)])


def install(op: str, dask_worker: Any) -> dict[str, Any]:
    """Let this Dask worker open a session under the name `op`; return what the master must know."""
    handlers = dask_worker.handlers  # private: nothing public takes connections on a worker
    facts: dict[str, Any] = {"version": __version__, "threads": dask_worker.state.nthreads}
    facts |= {"name": str(dask_worker.name), "thread": f"{op} {dask_worker.address}"}
    facts |= {"pid": os.getpid(), "place": where_pids_count()}

    def remove() -> None:
        if handlers.get(op) is serve:
            del handlers[op]

    async def serve(comm: Any) -> None:
        remove()
        await Session(comm, facts, dask_worker).serve()

    handlers[op] = serve
    dask_worker.loop.call_later(_UNUSED, remove)
    return facts


def hold(name: str) -> None:
    """Task: tell the scheduler that its worker is in use until the session's thread ends.

    Dask would otherwise see an idle worker: fit to be retired, or its cluster to be shut down.
    """
    import_module("distributed").secede()
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


_host = threading.local()  # in a session's thread: `worker`, the Dask worker that it is of


def keys_of(security: Any, role: str) -> Keys:
    """Return the keys that Dask itself uses in this role."""
    sides = security.get_connection_args(role), security.get_listen_args(role)
    return Keys(*(side["ssl_context"] for side in sides))


def own_keys() -> Keys:
    """Return those of the Dask worker whose session runs in this thread."""
    return keys_of(_host.worker.security, "worker")


class Session(Connection, Copies):
    """One master's use of this worker, and the thread that does `work`."""

    def __init__(self, comm: Any, facts: dict[str, Any], dask_worker: Any) -> None:
        super().__init__(comm, facts)
        self.dask_worker = dask_worker
        self.cancelled = NEVER  # the highest cancelled round
        self.loop = asyncio.get_running_loop()
        self.inbox: SimpleQueue[Message | None] = SimpleQueue()

    async def serve(self) -> None:
        """Take messages until the connection ends."""
        threading.Thread(target=self.work, name=self.facts["thread"], daemon=True).start()
        try:
            await self.comm.write([])  # the session is there
            await self.run(self.receive)
        finally:
            self.cancelled = 1 << 63  # above every round
            self.inbox.put(None)

    def receive(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Cancel):  # not in line: it is about what is in line
                self.cancelled = max(self.cancelled, message.round)
            else:
                self.inbox.put(message)

    def work(self) -> None:
        """Do what arrives, in order, until the end of the session."""
        host = _host.worker = self.dask_worker
        protocol = WorkerProtocol(self, lambda: self.cancelled, lambda: self.emit, host)
        # As many BLAS threads as Dask gave the worker; set back for Dask's own tasks at the end.
        with contextlib.suppress(RuntimeError), threadpool_limits(self.facts["threads"]):
            try:
                while self.handle_next(protocol):
                    pass
            finally:  # also when out of memory, say: better lost than silent
                protocol.close()
                self.loop.call_soon_threadsafe(self.comm.abort)  # raises where the worker has ended

    def handle_next(self, protocol: WorkerProtocol) -> bool:
        """Handle a message and keep nothing of it; return False at the end."""
        message = self.inbox.get()
        if message is None:
            return False
        for answer in protocol.handle(message):
            self.emit(answer)
        return True

    def emit(self, message: Message) -> None:
        """Send a message, from any thread."""
        self.outbox.append(message)
        self.loop.call_soon_threadsafe(self.wake.set)

    def unpack(self, packed: Packed) -> Any:
        head, parts, _ = packed
        if head is not None:
            # What Dask reads need not be aligned; a product of such arrays copies them each time.
            parts = tuple(map(bytes, parts))
        return unpack((head, parts, None), None)
