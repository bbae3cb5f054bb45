"""The asynchronous half of the Dask engine: Dask's client on a thread and event loop of its own.

Everything that can block on a dead or frozen worker happens here. The transport reads an inbox, and
appends to the outboxes of connections; neither ever waits for this thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any
from uuid import uuid4

from .. import __version__
from ..errors import BadInput, EngineUnavailable
from ..peers.keys import Encryption
from ._dask_worker import Connection, hold, install, keys_of, own_keys
from ._launcher import FAILED, Launcher
from .protocol import Message, WorkerDown, WorkerUp
from .protocol.messages import AddBody, AddOperand
from .transport import Inbox

# As Any: how much of it is typed differs from release to release.
distributed: Any = import_module("distributed")
connect: Any = import_module("distributed.comm").connect

ENCRYPTED = ("tls://", "wss://")  # addresses
CONNECT = 10.0  # seconds to find the scheduler
_ATTACH = 20.0  # seconds for a worker to answer
_REACH = 5.0  # of these, seconds for it to be reached from here
_AGAIN = 1.0  # seconds between two attempts at a worker
_ATTEMPTS = 3  # if it answers, and in a way that makes no sense
_LIST = 0.4  # seconds between two looks at the scheduler's list of workers
_SCALE = 5.0  # seconds between two requests for the same workers
_ADDRESS = "address= must be like 'tcp://host:8786', or a distributed.Client"


def where(address: Any, security: Any = None) -> tuple[Any, Any]:
    """Return a scheduler's address, and the security to use (None: of Dask's configuration)."""
    if security is not None and not isinstance(security, distributed.Security):
        raise BadInput(f"security= must be a distributed.Security; got {security!r}.")
    if isinstance(address, str):
        return address, security
    if security is not None:
        raise BadInput(
            f"security= goes with an address like 'tls://host:8786'; {type(address).__name__} has "
            f"its own. Leave it out."
        )
    if hasattr(address, "scheduler_address") and hasattr(address, "security"):  # a cluster
        return address.scheduler_address, address.security
    if not isinstance(address, distributed.Client):
        raise BadInput(f"{_ADDRESS}; got {address!r}.")
    if address.status != "running":
        raise EngineUnavailable(
            f"address= must be a connected distributed.Client; this one is {address.status}. "
            f"Make a new one, or pass its scheduler's address."
        )
    return address.scheduler.address, address.security


class Link:
    """A client of a Dask scheduler, and a connection to each of its workers.

    `inbox` holds messages, WorkerUp the first and WorkerDown the last, and whom they are from. By
    name or address: from a joiner that never came; None: from all joiners. `holds`: whether Dask is
    told that its workers are in use. `send`, `down` and `close` are for other threads.
    """

    def __init__(self, holds: bool) -> None:
        self.inbox: Inbox[tuple[Connection | str | None, list[Message]]] = Inbox()
        self.op = f"kofn-{uuid4().hex[:12]}"
        self.reserve: list[str] = []  # workers not to be used unasked
        self.address: Any = None  # of the scheduler
        self.cluster: Any = None  # of which more can be had, by `scale`
        self.ordered: list[str] = []  # joiners that it is to bring; who comes next is the first
        self.refused: dict[str, str] = {}  # and why
        self.unanswered: dict[str, str] = {}  # neither joined nor refused so far, and why
        self._holds = holds
        self._client: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._attending: dict[str, asyncio.Task[None]] = {}  # by address; done: not to be used
        self._dirty: deque[Connection] = deque()
        self._poked = False
        self._scaled = 0.0  # when that was done last
        self.loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = Thread(target=self._run, name="kofn-dask", daemon=True)
        self._thread.start()

    def send(self, connection: Connection, message: Message) -> None:
        """Send a message without waiting; what a task needs, with the task: one wakeup for all."""
        connection.outbox.append(message)
        self._dirty.append(connection)
        if not self._poked and not isinstance(message, AddBody | AddOperand):
            self._poked = True
            self.loop.call_soon_threadsafe(self._flush)

    def down(self, source: Connection | str | None, reason: str = "") -> None:
        """Report the end of a worker."""
        if source in self.ordered:
            self.ordered.remove(source)
        self.inbox.put((source, [WorkerDown(reason)]))

    def close(self) -> None:
        """End the sessions, the client and the thread: milliseconds, seconds if Dask is stuck."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(10.0)

    @property
    def encryption(self) -> Encryption | None:
        """How Dask's connections are encrypted."""
        if not str(self._client.scheduler.address).startswith(ENCRYPTED):
            return None
        return Encryption(keys_of(self._client.security, "client"), own_keys)

    @property
    def trouble(self) -> str:
        """Why no worker can come, if it is known."""
        if self._client is None or self._client.status == "running":
            return ""
        return f"the connection to the Dask scheduler at {self.address} has ended"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        await self._end.wait()
        for task in self._attending.values():
            task.cancel()
        if self._client is not None:
            log = logging.getLogger("distributed.client")
            # Else Dask logs the traceback of its attempt to connect again, which ends here.
            before, log.disabled = log.disabled, log.disabled or bool(self.trouble)
            try:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._client.close(timeout=2), 5)
            finally:
                log.disabled = before

    def _flush(self) -> None:
        self._poked = False
        while self._dirty:
            self._dirty.popleft().wake.set()

    async def open(self, address: Any, security: Any, limit: int | None, launcher: Any) -> None:
        """Connect to a scheduler and, in the background, to its workers; `limit`: to so many."""
        self.address, began = address, time.monotonic()
        options = {"asynchronous": True, "set_as_default": False, "timeout": CONNECT}
        try:
            self._client = distributed.Client(address, security=security, name="kofn", **options)
            # Dask's own limit does not hold where something answers and then says nothing.
            async with asyncio.timeout(CONNECT + 5):
                await self._client
        except (OSError, MemoryError, EOFError) as error:  # the last two: something else answers
            raise EngineUnavailable(
                f"there must be a Dask scheduler at the address; none answered at {address} in "
                f"{time.monotonic() - began:.0f} s of trying ({error!r}). "
                f"Check the host and the port, or start one with: dask scheduler"
            ) from error
        except TypeError as error:
            raise EngineUnavailable(
                f"{address} needs certificates ({error}). Name them in Dask's configuration "
                f"(distributed.comm.tls), or pass security=distributed.Security(...)."
            ) from error
        except ValueError as error:
            raise BadInput(f"{_ADDRESS}; got {address!r} ({error}).") from error
        names = sorted(await self._client.nthreads())
        self.reserve = [] if limit is None else names[limit:]
        for name in names[:limit]:
            self.attend(name)
        if launcher is not None:
            self.loop.add_reader(launcher.control, self._on_news, launcher)
        self._watching = asyncio.create_task(self._watch())

    def _on_news(self, launcher: Launcher) -> None:
        """Take in what our launcher says of workers that come up or die."""
        lines = launcher.news()
        if lines is None:
            self.loop.remove_reader(launcher.control)
            self.down(None, "the process that starts workers is gone")
        for kind, name, *more in lines or ():
            if kind == "up":
                self.attend(more[0])  # sooner than the scheduler's list is looked at
            else:
                self.down(name, f"it could not be forked: {more[0]}" if kind == FAILED else "")

    async def _watch(self) -> None:
        # Dask's events would save that, but the topic that tells of workers tells also what Dask
        # cannot pickle, which ends the connection; and a plugin would be left behind by a kill -9.
        missing: set[str] = set()
        there: set[str] = set()
        while True:
            await asyncio.sleep(_LIST)
            if self.trouble:
                self.down(None, self.trouble)
                continue
            with contextlib.suppress(Exception):  # the scheduler is busy
                there = set(await self._client.nthreads())
                known = {*self._attending, *self.reserve}
                for address in there - known:
                    self.attend(address)
                for address in missing - there:  # twice: our own are attended early
                    self.leave(address)
                    self._attending.pop(address, None)
                missing = known - there
            if self.ordered and time.monotonic() >= self._scaled + _SCALE:
                await self._scale(len(there - self.unanswered.keys() - self.refused.keys()))

    async def _scale(self, live: int) -> None:
        """Have the cluster bring those who were ordered. In a thread: a cloud may take its time.

        Again and again, by the same number: Dask replaces who died only when it is asked later.
        """
        self._scaled = time.monotonic()
        try:
            count = max(live + len(self.ordered), len(getattr(self.cluster, "plan", ())))
            await self.loop.run_in_executor(None, self.cluster.scale, count)
        except Exception as error:
            for name in self.ordered.copy():
                self.down(name, f"the Dask cluster says: {error!r}")

    def attend(self, address: str) -> None:
        """Use a worker, unless that was tried before."""
        if address not in self._attending:
            self.unanswered[address] = "no answer"
            self._attending[address] = asyncio.create_task(self._attend(address))

    def leave(self, address: str) -> None:
        """Stop using a worker; its WorkerDown arrives at once."""
        self.unanswered.pop(address, None)
        if address in self._attending:
            self._attending[address].cancel()
        with contextlib.suppress(ValueError):
            self.reserve.remove(address)

    async def _attend(self, address: str) -> None:
        """Hold a connection to a worker; a new one when it ends."""
        failed = 0
        while True:
            try:
                connection = await asyncio.wait_for(self._attach(address), _ATTACH)
            except OSError as error:  # frozen, out of reach, or about to go
                if address in self.unanswered and str(error):
                    self.unanswered[address] = str(error)
            except Exception as error:
                failed += 1
                if isinstance(error, EngineUnavailable) or failed == _ATTEMPTS:
                    why = self.refused[address] = str(error) or repr(error)
                    self.unanswered.pop(address, None)
                    logging.getLogger("kofn").warning(f"Dask worker {address} is not used: {why}.")
                    self.down(address, why)
                    return
            else:
                failed = 0
                self.unanswered.pop(address, None)
                await self._use(connection)
            await asyncio.sleep(_AGAIN)

    async def _attach(self, address: str) -> Connection:
        # First: whether it can be reached again is seen soon, and costs the scheduler nothing.
        comm = await connect(address, timeout=_REACH, **self._client.connection_args)
        try:
            facts = await self._install(partial(self._client.run, workers=[address]), address)
            await comm.write({"op": self.op, "reply": False})
            await comm.read()
        except BaseException:
            comm.abort()
            raise
        return Connection(comm, {**facts, "address": address})

    async def _install(self, run: Any, address: str) -> dict[str, Any]:
        try:
            # First, as Dask does not say clearly why a function could not be unpickled there.
            await run(import_module, install.__module__)
            facts: dict[str, Any] = (await run(install, self.op))[address]
            theirs = facts.get("version")
        except ImportError as error:
            theirs = error
        if theirs != __version__:
            raise EngineUnavailable(
                f"it cannot import kofn {__version__} ({theirs}); install the same kofn there as "
                f"here: pip install kofn=={__version__}"
            )
        return facts

    async def _use(self, connection: Connection) -> None:
        if self.ordered:
            connection.facts["name"] = self.ordered.pop(0)
        self.inbox.put((connection, [WorkerUp(" ".join(connection.facts["place"]))]))
        # Not the function itself: the scheduler unpickles it, and need not have kofn.
        code = f"from {hold.__module__} import hold; hold({connection.facts['thread']!r})"
        key, workers = f"{self.op}-{uuid4().hex[:6]}", [connection.facts["address"]]
        task = self._client.submit(exec, code, key=key, workers=workers) if self._holds else None
        try:
            await connection.run(lambda messages: self.inbox.put((connection, messages)))
        finally:
            self.down(connection)
            if task is not None:
                task.release()
