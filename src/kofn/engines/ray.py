"""The Ray engine: one actor per worker, on a cluster that runs already or on one started here."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import __version__
from ..checks import whole
from ..errors import Closed, EngineUnavailable, OutOfResources
from ..files import cause
from ..interrupts import held, opened
from ..model import Joined, Lost
from ..peers.keys import Encryption
from ._processes import Process, end, family, where_pids_count
from ._ray_runtime import Machines, Session, enter
from ._ray_worker import Packed, Worker, join, list_nodes, own_keys, pack, split
from .base import Capabilities
from .protocol import Message, WorkerDown, WorkerUp
from .protocol.messages import AddBody, AddOperand, Cancel
from .transport import Inbox, Transport, TransportEngine

_START_LIMIT = 60.0  # seconds without a newcomer while the first workers start,
_START_EACH = 5.0  # and for each on a machine: they start beside each other, so all come late
_SILENT = 15.0  # of these, for machines from which nobody has come, if somebody has from others
_ANSWER = 5.0  # seconds for the head to take a connection
_LOOK = 1.0  # seconds between two looks for new machines
_GRACE = 2.5  # seconds for Ray to end workers of this machine; a frozen one takes it longer

# Nothing is reserved, so our workers start whatever else the cluster does; and nothing is ever
# run twice: a restarted actor would have lost its share.
_remote: Any = ray.remote
_errors: Any = ray.exceptions
_GROUPS = dict.fromkeys(("control", "listen", "nodes", "work"), 1)  # threads
_ACTOR = _remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=_GROUPS)(Worker)


class _HeadGone(Exception):
    """The head of the Ray cluster does not answer."""


class Peer:
    """What the master knows of one worker."""

    def __init__(self, id: int, node: str, asked: bool) -> None:
        self.id, self.node, self.asked = id, node, asked
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        self.actor: Any = _ACTOR.options(scheduling_strategy=where).remote(sys.path)
        self.process: Process | None = None  # if it is on this machine
        self.live = self.gone = self.again = False  # again: after one that was given up
        self.waiting: list[Message] = []  # to be sent with its next task
        self.returns = 0  # how many of its returns were handled
        self.early: dict[int, list[Message]] = {}  # returns that overtook others

    def kill(self) -> None:
        """Have Ray end its process; one that is frozen lives some seconds longer."""
        if ray.is_initialized():  # else it is gone, and asking would start another Ray
            with suppress(Exception):
                ray.kill(self.actor)


class RayTransport(Transport):
    """Messages are calls of actors; large values are put in Ray's object store, once."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.peers: dict[int, Peer] = {}  # the joining ones too
        self.machines = Machines()
        self._session = session
        self._here = where_pids_count()
        self._inbox: Inbox[tuple[Peer, Callable[..., None], Any]] = Inbox()
        self._arrived: list[tuple[int, Message]] = []
        self._look_at = time.monotonic() + _LOOK
        self._wanted = self._asked = 0  # workers since a join; for how many Ray was asked for room
        self._head = ray.get_runtime_context().gcs_address
        # Whether a thread tries to reach it; whether one could since the last look; and could not.
        self._knocking = self._answered = self._headless = False

    def pack(self, value: Any, lasting: bool = False) -> Any:
        packed = pack(value, lasting)
        if not packed.large:
            return packed
        try:
            return ray.put(packed)
        except (_errors.ObjectStoreFullError, _errors.OutOfDiskError) as error:
            raise OutOfResources("Ray's object store", cause(error)) from error

    def unpack(self, packed: Packed) -> Any:
        # Copies: what lies in the object store is read-only, and not to be held for long.
        return pickle.loads(packed.head, buffers=map(bytearray, packed.parts))

    def start(self, worker: int) -> None:
        has = [peer.node for peer in self.peers.values()]
        live = {peer.node for peer in self.peers.values() if peer.live}
        self.place(worker, self.machines.emptiest(has, live), asked=True)
        self._wanted = sum(peer.live or peer.asked for peer in self.peers.values())
        self._look_at = time.monotonic()  # without a head it will never come: that is told at once

    def place(self, worker: int, node: str, asked: bool) -> Peer:
        """Order a worker on this machine; one that was not `asked` for may fail to come."""
        peer = self.peers[worker] = Peer(worker, node, asked)
        self._call(peer, peer.actor.hello.remote(), self._on_hello)
        return peer

    def end(self, worker: int) -> None:
        if peer := self.peers.get(worker):  # else its WorkerDown is on its way
            for process in family([peer.process] if peer.process else ()):
                process.kill()  # at once, also where it is frozen
            self._lost(peer, None)

    def give_up(self, worker: int) -> None:
        peer = self.peers.get(worker)
        self.end(worker)
        if peer and not peer.process:  # its machine may answer again, and then has a worker again
            self.place(next(self.ids), peer.node, asked=False).again = True

    def pid(self, worker: int) -> int | None:
        process = self.peers[worker].process if worker in self.peers else None
        return None if process is None else process.pid

    def check(self) -> None:
        if not ray.is_initialized():  # or the next call would start another, silently
            raise Closed("Ray was shut down under this RayEngine; close it and make a new one.")

    def close(self) -> None:
        peers, self.peers = self.peers.values(), {}
        if self._asked:
            self._ask(0).join(_GRACE)  # or Ray would keep machines for us
        processes = family(peer.process for peer in peers if peer.process)
        for peer in peers:
            peer.gone = True
            if not self._headless:
                peer.kill()
        self._session.release()
        end(processes, 0.0 if self._session.temp else _GRACE)

    def send(self, worker: int, message: Message) -> None:
        peer = self.peers.get(worker)
        if peer is None:
            return  # its WorkerDown is on its way
        if isinstance(message, Cancel):
            peer.actor.cancel.remote(message.round)
            return
        peer.waiting.append(message)
        if not isinstance(message, AddBody | AddOperand):  # else a task follows: one call for all
            messages, peer.waiting = peer.waiting, []
            self._call(peer, peer.actor.run.remote(*join(messages)), self._on_return)

    def _call(self, peer: Peer, ref: Any, then: Callable[..., None]) -> None:
        """Have the outcome of a call come to the inbox, whoever else is silent."""
        inbox = self._inbox
        ref.future().add_done_callback(lambda future: inbox.put((peer, then, future)))

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        self._inbox.wait(0.0 if self._arrived else min(timeout, self._look_at - now))
        while (done := self._inbox.take()) is not None:
            peer, then, future = done
            if peer.gone:
                continue
            if (error := future.exception()) is None:
                then(peer, future.result())
            elif then != self.on_nodes:
                self._lost(peer, error)
        arrived, self._arrived = self._arrived, []
        return arrived

    def _on_hello(self, peer: Peer, facts: tuple[Any, ...]) -> None:
        process, where, version = facts
        peer.process = process if where == self._here else None
        if version != __version__:
            self._lost(peer, EngineUnavailable(f"kofn {version} is installed on {where[0]}."))
        else:
            peer.live = True
            self._arrived.append((peer.id, WorkerUp(peer.node)))
            self._listen(peer)

    def _listen(self, peer: Peer, returned: Any = None) -> None:
        self._call(peer, peer.actor.listen.remote(), self._listen)
        if returned is not None:
            self._on_return(peer, returned)

    def _on_return(self, peer: Peer, returned: Any) -> None:
        """Pass on what a worker sent, in the order in which it did."""
        number, messages = split(*((returned,) if type(returned) is bytes else returned))
        peer.early[number] = messages
        while peer.returns in peer.early:
            self._arrived += [(peer.id, message) for message in peer.early.pop(peer.returns)]
            peer.returns += 1

    def _lost(self, peer: Peer, error: BaseException | None) -> None:
        """Give up a worker that died, that Ray cannot reach or that was to be lost."""
        peer.gone = True
        if not self._headless:  # who asks Ray for anything would be kept waiting
            peer.kill()  # or it might live on, unknown to anybody
        del self.peers[peer.id]
        if peer.asked or peer.live:
            self._arrived.append((peer.id, WorkerDown("" if peer.live else explain(error))))
        elif not peer.again:
            text = f"a worker on a new machine of the Ray cluster did not start. {explain(error)}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _look(self, now: float) -> None:
        """Look for new machines, through a worker: asking Ray here could make the master wait."""
        self._look_at = now + _LOOK
        live = [peer for peer in self.peers.values() if peer.live]
        coming = any(peer.asked and not peer.live for peer in self.peers.values())
        if (coming or not live) and not self._knocking:
            self._knocking = True
            threading.Thread(target=self._knock, daemon=True).start()
        if live:
            peer = live[int(now / _LOOK) % len(live)]
            self._call(peer, peer.actor.nodes.remote(), self.on_nodes)
        elif self._answered:  # without a head the call would not come back
            self._answered = False
            with opened():
                nodes = list_nodes()
            self.on_nodes(None, nodes)

    def _knock(self) -> None:
        """Have those that are to come be lost if there is no head: Ray would wait for ever."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
            self._answered, self._headless = True, False
        except OSError as error:
            self._headless = True
            gone: Future[None] = Future()
            gone.set_exception(_HeadGone(f"Ray's head at {self._head} does not answer: {error}"))
            for peer in list(self.peers.values()):
                if peer.asked and not peer.live:
                    self._inbox.put((peer, self._on_hello, gone))
        self._knocking = False

    def on_nodes(self, _: Peer | None, nodes: list[dict[str, Any]]) -> None:
        for node in self.machines.learn(nodes):
            self.place(next(self.ids), node, asked=False)
        room = sum(self.machines.offers.values())
        if self._wanted > max(self._asked, room) and not self._session.temp:
            self._ask(self._wanted)

    def _ask(self, workers: int) -> threading.Thread:
        """Ask Ray for machines for so many workers; its autoscaler, if one runs, gets them."""
        self._asked = workers
        bundles = [{self.machines.resource: 1}] * workers
        asking = threading.Thread(target=_request, args=(bundles,), daemon=True)
        asking.start()
        return asking


def _request(bundles: list[dict[str, int]]) -> None:
    with suppress(Exception):  # Ray is gone, or knows no autoscaler
        import_module("ray.autoscaler.sdk").request_resources(bundles=bundles)


class RayEngine(TransportEngine):
    """Workers are Ray actors; the master is the driver.

    Joins the cluster that this process is connected to or that Ray's conventions name, else
    starts one on this machine. Without `workers`, one per CPU that the cluster offers (a machine
    that offers the resource "kofn" says how many). A machine that is added later brings workers
    of its own: as many as it offers, with `workers` given at most what each had at the start.

    A task costs one call; a large operand is put in the object store once.
    """

    name: ClassVar[str] = "ray"
    capabilities = Capabilities(
        processes=True, can_lose=True, can_join=True, copies=True, exchange=True
    )

    def __init__(self, workers: int | None = None, *, address: str | None = None) -> None:
        if workers is not None:
            remedy = "Leave it out for one per CPU of the cluster."
            workers = whole(workers, "workers of RayEngine", 1, remedy=remedy)
        with held(), self._open(RayTransport(enter(address, workers))) as transport:
            self._start(transport, workers)

    @property
    def encryption(self) -> Encryption | None:
        encrypted = os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")
        return Encryption(own_keys(), own_keys) if encrypted else None

    def _start(self, transport: RayTransport, workers: int | None) -> None:
        """Wait for the first workers, but not for long for machines that are down but listed."""
        machines = transport.machines
        machines.learn(list_nodes())
        nodes = machines.spread(workers)
        asked = [transport.place(next(transport.ids), node, asked=True) for node in nodes]
        limit = _START_LIMIT + _START_EACH * max(map(nodes.count, nodes))
        last, reason, silent = time.monotonic(), "", False
        while missing := {peer.node for peer in asked if not (peer.live or peer.gone)}:
            there = {peer.node for peer in asked if peer.live and not peer.gone}
            silent = bool(there) and not missing & there
            left = last + (_SILENT if silent else limit) - time.monotonic()
            if left <= 0 or reason:
                break
            # These are there at once for the caller: their Joined are not told.
            for event in self.events(left):
                if isinstance(event, Joined):
                    last = time.monotonic()
                elif isinstance(event, Lost):
                    transport.on_nodes(None, list_nodes())
                    if any(peer.gone and peer.node in machines.offers for peer in asked):
                        reason = event.reason or explain(None)
        came = f"{len(self.workers)} of {len(asked)} workers have come"
        if reason or not self.workers or (missing and not silent):
            raise EngineUnavailable(
                f"RayEngine starts all its workers, each within {limit:.0f} s; {came}. "
                f"{reason or explain(None)}"
            )
        if len(self.workers) < len(asked):
            logging.getLogger("kofn").warning(
                f"{came}: the machines of the others have said nothing for {_SILENT:.0f} s, or are "
                f"gone. They join when they answer."
            )


def explain(error: BaseException | None) -> str:
    """Say why a worker did not come, and what to do."""
    text = str(error or "")
    if isinstance(error, _HeadGone):
        return text
    if (known := isinstance(error, EngineUnavailable)) or "No module named 'kofn" in text:
        fact = text if known else "one of them cannot."
        return (
            f"Every machine must be able to import the kofn that is used here; {fact} Run pip "
            f"install 'kofn[ray]=={__version__}' in the environment of each `ray start`."
        )
    return f"Ray says: {text}" if text else "Ray says nothing; see if its machines are overloaded."
