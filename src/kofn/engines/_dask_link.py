"""The asynchronous half of the Dask engine: Dask's client on a thread and event loop of its own.

Everything that can block on a dead or frozen worker happens here. The engine reads a queue, and
appends to the outboxes of channels; neither ever waits for this thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any
from uuid import uuid4

from ..errors import BadInput, EngineUnavailable
from ..interrupts import opened
from ._dask_worker import PROTOCOL, frame, hold, install, patient, unframe
from ._inbox import Inbox

# As Any: how much of it is typed differs from release to release.
distributed: Any = import_module("distributed")
comms: Any = import_module("distributed.comm")

CONNECT = 10.0  # seconds to find the scheduler
_ATTACH = 20.0  # seconds for a worker to answer
_REACH = 5.0  # of these, seconds for it to be reached from here
_AGAIN = 1.0  # seconds between two attempts at a worker
_ATTEMPTS = 3  # if it answers, and in a way that makes no sense
_LIST = 0.4  # seconds between two looks at the scheduler's list of workers


class Refused(Exception):
    """This worker cannot be used, and trying again will not help."""


class Channel:
    """The connection to one worker. `outbox` may be appended to from any thread."""

    def __init__(self, comm: Any, address: str, facts: dict[str, Any]) -> None:
        self.comm, self.address, self.facts = comm, address, facts
        self.outbox: deque[tuple[Any, ...]] = deque()
        self.wake = asyncio.Event()
        self.owner: Any = None  # whom the engine takes it for
        self.banned = False  # lost on purpose: not to be used again
        patient(comm)
        comm.allow_offload = False  # frames are made already; sizing them up is a waste

    async def write(self) -> None:
        """Send what is in the outbox, all that there is at a time; never waits for the worker."""
        with contextlib.suppress(OSError):
            while True:
                await self.wake.wait()
                self.wake.clear()
                messages = [self.outbox.popleft() for _ in range(len(self.outbox))]
                if messages:
                    await self.comm.write(frame(messages))

    async def read(self, link: Link) -> None:
        """Hand over what arrives until the connection ends."""
        writer = asyncio.create_task(self.write())
        try:
            while True:
                link.tell("said", self, unframe(await self.comm.read()))
        except OSError:
            pass  # the worker died, or it is closed or banned
        finally:
            writer.cancel()
            self.comm.abort()


def where(address: Any) -> tuple[Any, Any]:
    """Return a scheduler's address, and the security that its client uses (None: Dask's own)."""
    if isinstance(address, str):
        return address, None
    if isinstance(address, distributed.Client):
        if address.status != "running":
            raise EngineUnavailable(
                f"address= must be a connected distributed.Client; this one is {address.status}. "
                f"Make a new one, or pass its scheduler's address."
            )
        return address.scheduler.address, address.security
    if hasattr(address, "scheduler_address") and hasattr(address, "security"):  # a cluster
        return address.scheduler_address, address.security
    raise BadInput(
        f"address= must be like 'tcp://host:8786', or a distributed.Client; got {address!r}."
    )


class Link:
    """A client of a Dask scheduler, and a channel to each of its workers.

    `arrived` holds (time, kind, what, more): "joined" channel; "said" channel messages; "lost"
    channel; "refused" address reason; "died" name of a process that we started.
    """

    def __init__(self, holds: bool = False) -> None:
        self.holds = holds  # whether Dask is told that its workers are in use
        self.arrived: Inbox[tuple[float, str, Any, Any]] = Inbox()
        self.op = f"kofn-{uuid4().hex[:12]}"
        self.client: Any = None
        self.listed: set[str] = set()  # workers that the scheduler knows
        self.reserve: list[str] = []  # of those, the ones not to be used unasked
        self.unanswered: dict[str, str] = {}  # neither joined nor refused so far, and why
        self._missing: set[str] = set()
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._channels: dict[str, Channel] = {}
        self._watching: asyncio.Task[None] | None = None
        self._dirty: deque[Channel] = deque()
        self._poked = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="kofn-dask", daemon=True)
        self._thread.start()

    # From the caller's thread.

    def call(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end on the link's thread."""
        future = asyncio.run_coroutine_threadsafe(main, self._loop)
        try:
            with opened():
                return future.result()
        except BaseException:
            future.cancel()
            raise

    def send(self, channel: Channel, *messages: tuple[Any, ...]) -> None:
        """Send messages to a worker, in order; returns at once."""
        channel.outbox.extend(messages)
        self._dirty.append(channel)
        if not self._poked:
            self._poked = True
            self._loop.call_soon_threadsafe(self._flush)

    def ban(self, channel: Channel) -> None:
        """End a channel for good; its "lost" arrives at once."""
        channel.banned = True
        self._loop.call_soon_threadsafe(channel.comm.abort)

    def listen(self, control: socket.socket, news: Callable[[], list[list[str]] | None]) -> None:
        """Hear of the workers that come up, and of deaths, from our launcher's socket."""

        def hear() -> None:
            lines = news()
            if lines is None:
                self._loop.remove_reader(control)
                self.tell("died", None)
            for kind, what in lines or ():
                if kind == "died":
                    self.tell("died", what)
                elif self.client is not None:  # sooner than the scheduler's list is looked at
                    self._list([what])

        self._loop.call_soon_threadsafe(self._loop.add_reader, control, hear)

    def expect(self, name: str, limit: float) -> None:
        """Report a joiner that has not come by then, like one whose process died."""

        def wait() -> None:
            self._loop.call_later(limit, self.tell, "died", name)

        self._loop.call_soon_threadsafe(wait)

    def worker_name(self, worker: int) -> str:
        """Return the Dask name of a worker that we start."""
        return f"{self.op}-{worker}"

    def is_ours(self, name: str) -> bool:
        """Tell whether we started a Dask worker of this name."""
        return name.startswith(self.op)

    def close(self) -> None:
        """End the sessions, the client and the thread: milliseconds, seconds if Dask is stuck."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            future = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            future.result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    # On the link's thread.

    def tell(self, kind: str, what: Any, more: Any = None) -> None:
        """Hand something to the engine, stamped on receipt: worker clocks disagree."""
        self.arrived.put((time.monotonic(), kind, what, more))

    async def open(self, address: Any, security: Any, limit: int | None) -> None:
        """Connect to a scheduler and, in the background, to its workers; `limit`: to so many."""
        client, began = None, time.monotonic()
        try:
            client = distributed.Client(
                address,
                security=security,
                asynchronous=True,
                set_as_default=False,
                timeout=CONNECT,
                name="kofn",
            )
            # Dask's own limit does not hold where something answers and then says nothing.
            self.client = await asyncio.wait_for(_entered(client), CONNECT + 5)
        except (MemoryError, EOFError) as error:
            raise EngineUnavailable(
                f"there must be a Dask scheduler at the address; what answers at {address} does "
                f"not speak as one ({type(error).__name__}). Check the host and the port."
            ) from error
        except OSError as error:
            raise EngineUnavailable(
                f"there must be a Dask scheduler at the address; none answered at {address} in "
                f"{time.monotonic() - began:.0f} s of trying ({error}). "
                f"Start one with: dask scheduler"
            ) from error
        except TypeError as error:
            raise EngineUnavailable(
                f"{address} needs certificates ({error}). Name them in Dask's configuration "
                f"(distributed.comm.tls), or connect with address=Client(..., security=...)."
            ) from error
        except ValueError as error:
            raise BadInput(
                f"address must be like 'tcp://host:8786', or a distributed.Client; "
                f"got {address!r} ({error})."
            ) from error
        finally:
            if client is not None and self.client is None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(client.close(timeout=1), 3)
        names = sorted(await self._names())
        if limit is not None:
            self.reserve = names[limit:]
        self._list(names)
        self._watching = asyncio.create_task(self._watch())

    async def unreserve(self) -> str | None:
        """Open a channel to a worker in reserve; return its address, None if there is none."""
        if not self.reserve:
            return None
        address = self.reserve.pop(0)
        self._attend_to(address)
        return address

    async def _close(self) -> None:
        self.listed.clear()
        for channel in self._channels.values():
            channel.comm.abort()
        tasks = [t for t in (self._watching, *self._attending.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.client is not None:
            await self.client.close(timeout=2)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    def _flush(self) -> None:
        self._poked = False
        while self._dirty:
            self._dirty.popleft().wake.set()

    # Who is there.

    async def _names(self) -> dict[str, int]:
        return await self.client.nthreads()  # type: ignore[no-any-return]

    async def _watch(self) -> None:
        """Look at the scheduler's list again and again.

        Dask's events would save that, but the topic that tells of workers tells also what Dask
        cannot pickle, which ends the connection; and a plugin would be left behind by a kill -9.
        """
        while True:
            await asyncio.sleep(_LIST)
            with contextlib.suppress(Exception):  # the scheduler is busy, or gone
                there = set(await self._names())
                self._list(there - self.listed)
                missing = self.listed - there
                for address in missing & self._missing:  # twice: our own are listed early
                    self._unlist(address)
                self._missing = missing

    def _list(self, addresses: Any) -> None:
        for address in addresses:
            self.listed.add(address)
            if address not in self.reserve:
                self._attend_to(address)

    def _unlist(self, address: str) -> None:
        self.listed.discard(address)
        self.unanswered.pop(address, None)
        if address in self.reserve:
            self.reserve.remove(address)
        channel = self._channels.get(address)
        if channel is not None:
            channel.comm.abort()

    def _attend_to(self, address: str) -> None:
        known = self._attending.get(address)
        if known is None or known.done():
            self.unanswered[address] = "no answer"
            self._attending[address] = asyncio.create_task(self._attend(address))

    async def _attend(self, address: str) -> None:
        """Hold a channel to a worker for as long as the scheduler lists it."""
        failed = 0
        while address in self.listed:
            try:
                channel = await asyncio.wait_for(self._attach(address), _ATTACH)
            except OSError as error:  # frozen, far, or about to go
                if address in self.unanswered:
                    self.unanswered[address] = str(error) or f"no answer within {_ATTACH:.0f} s"
            except Exception as error:
                failed += 1
                if isinstance(error, Refused) or failed == _ATTEMPTS:
                    self.tell("refused", address, str(error) or repr(error))
                    self.unanswered.pop(address, None)
                    return
            else:
                failed = 0
                self._channels[address] = channel
                self.tell("joined", channel)
                self.unanswered.pop(address, None)
                with self._held(address):
                    await channel.read(self)
                del self._channels[address]
                self.tell("lost", channel)
                if channel.banned:
                    return
            await asyncio.sleep(_AGAIN)

    async def _attach(self, address: str) -> Channel:
        run = partial(self.client.run, workers=[address])
        try:
            # First, as Dask does not say clearly why a function could not be unpickled there.
            await run(import_module, install.__module__)
        except ImportError as error:
            raise Refused(
                f"it cannot import kofn ({error}); install the same kofn there: pip install kofn"
            ) from error
        found = await run(install, self.op)
        facts = found[address]
        if facts["protocol"] != PROTOCOL:
            raise Refused(
                f"it runs another version of kofn; install the same kofn there as here "
                f"(protocol {facts['protocol']} there, {PROTOCOL} here)"
            )
        comm = await comms.connect(address, timeout=_REACH, **self.client.connection_args)
        try:
            await comm.write({"op": self.op, "reply": False})
            await comm.read()
        except BaseException:
            comm.abort()
            raise
        return Channel(comm, address, facts)

    @contextlib.contextmanager
    def _held(self, address: str) -> Iterator[None]:
        if not self.holds:
            yield
            return
        # Not the function itself: the scheduler unpickles it, and need not have kofn.
        future = self.client.submit(
            exec,
            f"from {hold.__module__} import hold; hold({self.op!r})",
            key=f"{self.op}-{uuid4().hex[:6]}",
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )
        try:
            yield
        finally:
            future.release()


async def _entered(client: Any) -> Any:
    return await client
