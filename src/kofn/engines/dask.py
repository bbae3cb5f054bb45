"""The Dask engine: one session on each worker of a Dask cluster, running or started here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from ..checks import whole
from ..errors import BadInput, CannotDo, EngineUnavailable
from ..interrupts import held, opened
from ..model import Lost
from ..peers.keys import Encryption
from ._dask_worker import Connection, Copies
from ._launcher import Launcher
from ._processes import where_pids_count
from .base import Capabilities
from .memory import Packed, room_for, unpack
from .protocol import Message, WorkerDown, WorkerUp
from .transport import Transport, TransportEngine

if TYPE_CHECKING:
    from ._dask_link import Link

if find_spec("distributed") is None:
    raise ModuleNotFoundError("No module named 'distributed'", name="distributed")

OLDEST = "2024.8"  # the oldest distributed that this was tried with
_START = 60.0  # seconds for a process of our own to come up
_MACHINE = 300.0  # seconds for a worker of a cluster that can be scaled
_COME = 20.0  # seconds for as many workers of a running cluster as are needed to answer
_GRACE = 3.0  # seconds for the others


def _check_packages(own: bool) -> None:
    installed = version("distributed")
    if tuple(map(int, installed.split(".")[:2])) < tuple(map(int, OLDEST.split("."))):
        raise EngineUnavailable(
            f"engine 'dask' needs distributed {OLDEST} or newer; {installed} is installed: "
            f"pip install -U 'kofn[dask]'."
        )
    if own and find_spec("cryptography") is None:
        raise EngineUnavailable(
            "a Dask cluster of kofn's own is locked to other users by TLS, which needs the package "
            "cryptography; it is not installed: pip install 'kofn[dask]'."
        )


class DaskTransport(Copies, Transport):
    """Carries messages over a link. `launcher`: of the cluster, where it is our own."""

    def __init__(self, link: Link, launcher: Launcher | None) -> None:
        super().__init__()
        self.link, self.launcher = link, launcher
        self.address: Any = None  # of the scheduler
        self._connections: dict[int, Connection] = {}
        self._promised: dict[str, int] = {}  # by name or address: ids of those who are to join

    def unpack(self, packed: Packed) -> Any:
        return unpack(packed, None, copy=True)

    def start(self, worker: int) -> None:
        """Start one more process, use a worker that `workers=` left out, or scale the cluster."""
        link, loop, limit = self.link, self.link.loop, _START
        if link.trouble:
            raise EngineUnavailable(
                f"a worker joins through the scheduler; {link.trouble}. Go on with those that are "
                f"live, or close this cluster and connect to another."
            )
        name = f"{link.op}-{worker}"
        try:
            if self.launcher is not None:
                self.launcher.order(name, self.launcher.folder, self.address)
            elif link.cluster is not None and not link.reserve:
                link.ordered.append(name)
                limit = _MACHINE
            else:
                name = link.reserve.pop(0)
                loop.call_soon_threadsafe(link.attend, name)
        except OSError as error:
            raise CannotDo(
                f"the process that starts workers is gone ({error}), and what it started ends "
                f"with it. Close this cluster and connect again."
            ) from error
        except IndexError as error:
            raise CannotDo(
                f"engine 'dask' starts workers only where it started the cluster; this one is at "
                f"{self.address}. Start one there, it joins by itself: dask worker {self.address}"
            ) from error
        self._promised[name] = worker
        late = partial(link.down, name, f"it has not come within {limit:.0f} s")
        loop.call_soon_threadsafe(lambda: loop.call_later(limit, late))

    def end(self, worker: int) -> None:
        """Kill a worker that we started; stop using one that we did not, and end our work on it."""
        facts, link = self._connections[worker].facts, self.link
        if self.launcher is not None and facts["name"].startswith(link.op):
            with contextlib.suppress(OSError):  # the launcher is gone, and all with it
                self.launcher.kill(facts["name"])
        else:
            link.loop.call_soon_threadsafe(link.leave, facts["address"])

    def give_up(self, worker: int) -> None:
        if self.launcher is None:  # the link tries to reach it again
            self.link.loop.call_soon_threadsafe(self._connections[worker].comm.abort)
        else:
            self.end(worker)

    def pid(self, worker: int) -> int | None:
        pid, where = (self._connections[worker].facts[fact] for fact in ("pid", "place"))
        return pid if where == where_pids_count() and pid != os.getpid() else None

    def close(self) -> None:
        self.link.close()
        if self.launcher is not None:
            self.launcher.close()

    def send(self, worker: int, message: Message) -> None:
        self.link.send(self._connections[worker], message)

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        inbox, promised = self.link.inbox, self._promised
        arrived: list[tuple[int, Message]] = []
        inbox.wait(timeout)
        while (item := inbox.take()) is not None:
            source, messages = item
            if not isinstance(source, Connection):
                never = list(promised) if source is None else {source} & promised.keys()
                arrived += [(promised.pop(name), messages[0]) for name in never]
                continue
            if isinstance(messages[0], WorkerUp):
                names = {source.facts["name"], source.facts["address"]} & promised.keys()
                source.worker = promised.pop(names.pop()) if names else next(self.ids)
                self._connections[source.worker] = source
            arrived += [(source.worker, message) for message in messages]
            if isinstance(messages[0], WorkerDown):
                del self._connections[source.worker]
        return arrived


class DaskEngine(TransportEngine):
    """Workers are those of a Dask cluster: a running one, or one started here for the purpose.

    `workers` alone starts a scheduler and so many processes on this machine, reachable from it
    only and with the keys in `security` only. `address` (of a scheduler, or a distributed.Client)
    uses a running cluster: all its workers, or as many as `workers` says; it is left as it was.
    `security`: the distributed.Security to reach it with, where an address alone is given.
    Given as an object that can `scale` (a LocalCluster, say), it is asked for more by `join`.
    Dask workers that come later join by themselves; also one with which a nanny replaces another.

    Nothing here waits for a worker. An operand is pickled once, and sent to each worker with its
    first task of the round. Large ones do not come this far: workers pass them on (kofn.peers).
    """

    name: ClassVar[str] = "dask"
    _transport: DaskTransport

    def __init__(
        self, workers: int | None = None, *, address: Any = None, security: Any = None
    ) -> None:
        if workers is not None:
            remedy = "Leave it out for one per core, or for all of a running cluster."
            workers = whole(workers, "workers of DaskEngine", 1, remedy=remedy)
        own = address is None
        if own and security is not None:
            raise BadInput(
                "security= goes with the address= of a running Dask cluster; one that is started "
                "here has keys of its own. Leave it out."
            )
        _check_packages(own)
        can_join = own or hasattr(address, "scale")
        self.capabilities = Capabilities(
            processes=True, can_lose=True, can_join=can_join, copies=True, exchange=True
        )
        with held(), room_for("a Dask cluster"):
            folder = tempfile.mkdtemp(prefix="kofn-dask-") if own else ""
            launcher = Launcher("kofn.engines._dask_launch", folder) if own else None
            if launcher is not None:
                launcher.order("scheduler", folder)
            # Only now: this takes a second, in which the launcher does the same.
            from ._dask_link import Link, where

            with self._open(DaskTransport(Link(holds=not own), launcher)) as transport:
                if launcher is None:
                    transport.link.cluster = address if can_join else None
                    self._connect(*where(address, security), workers)
                    self._gather(workers or 1, _COME)
                else:
                    self._start(launcher, workers or os.cpu_count() or 1)

    @property
    def encryption(self) -> Encryption | None:
        return self._transport.link.encryption

    def _start(self, launcher: Launcher, workers: int) -> None:
        from ._dask_launch import security

        launcher.control.settimeout(_START)
        news = None
        with opened(), contextlib.suppress(TimeoutError):
            news = launcher.news()
        if not news or news[0][0] != "up":
            raise EngineUnavailable(
                "engine 'dask' starts a scheduler on 127.0.0.1; none came. See its message above."
            )
        self._transport.address = news[0][2]
        for _ in range(workers):
            self.join()
        self._connect(news[0][2], security(launcher.folder), None)
        self._gather(workers, _START)

    def _connect(self, address: Any, security: Any, limit: int | None) -> None:
        transport, link = self._transport, self._transport.link
        self.scheduler_address = transport.address = address
        self.security = security
        opening = link.open(address, security, limit, transport.launcher)
        with opened():
            asyncio.run_coroutine_threadsafe(opening, link.loop).result()

    def _gather(self, need: int, limit: float) -> None:
        """Wait for `need` workers, a little for other known ones."""
        link, began = self._transport.link, time.monotonic()
        while len(self.workers) < need or link.unanswered:
            settled = len(self.workers) >= need or (link.refused and not link.unanswered)
            lost = any(isinstance(event, Lost) for event in self.events(0.1))
            waited = time.monotonic() - began
            if (lost and self._transport.launcher) or waited > (_GRACE if settled else limit):
                break
        if len(self.workers) < need:
            trouble = (link.refused | link.unanswered).items()
            why = "".join(f" {address}: {what}." for address, what in trouble)
            raise EngineUnavailable(
                f"Dask workers at {self.scheduler_address}: {need} are needed; "
                f"{len(self.workers)} came within {time.monotonic() - began:.0f} s.{why} "
                f"Start more with: dask worker {self.scheduler_address}"
            )
