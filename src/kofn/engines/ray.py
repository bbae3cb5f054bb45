"""The Ray engine: one actor per worker, on a cluster that runs already or on one started here."""

from __future__ import annotations

import logging
import pickle
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import cloudpickle
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .. import __version__
from ..errors import BadInput, Closed, EngineUnavailable, UnknownWorker
from ..interrupts import held, opened
from ..model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task
from ._processes import Process
from ._ray_peers import House, Machines, Peer
from ._ray_runtime import enter
from ._ray_worker import (
    DROPPED,
    FAILED,
    REPLY,
    STORED,
    UNPUT,
    Worker,
    large,
    look,
    place,
    private,
    split,
    unite,
)
from .base import Capabilities, Engine
from .memory import room_for

_START_LIMIT = 60.0  # seconds without a newcomer while the first workers start
_SILENT = 15.0  # of these, for machines from which nobody has come, if somebody has from others
_LOOK = 1.0  # seconds between two looks for new machines
_FUNCTIONS = 256  # bodies remembered; beyond, all are forgotten and sent again as needed

_log = logging.getLogger("kofn")

# What a finished call was.
_HELLO, _RETURN, _LISTEN, _NODES, _LOSE = range(5)

# Nothing is reserved, so our workers start whatever else the cluster does; and nothing is ever
# run twice: a restarted actor would have lost its share.
_remote: Any = ray.remote
_ACTOR = _remote(
    num_cpus=0,
    max_restarts=0,
    max_task_retries=0,
    concurrency_groups={"control": 1, "listen": 1, "look": 1, "work": 1},
)(Worker)


class RayEngine(Engine):
    """Workers are Ray actors; the master is the driver.

    Joins the cluster that this process is connected to or that Ray's conventions name, else
    starts one on this machine. Without `workers`, one per CPU that the cluster offers (a machine
    that offers the resource "kofn" says how many). A machine that is added later brings workers
    of its own: as many as it offers, with `workers` given at most what each had at the start.

    A task costs one call; a large operand is put in the object store once. Arrays that reach a
    worker are read-only; those in events are private and writable. A body is sent to a worker
    once: what it closes over is what it was then. An operand is kept until its round is cancelled.
    """

    name: ClassVar[str] = "ray"
    capabilities = Capabilities(processes=True, can_lose=True, can_join=True)

    def __init__(self, workers: int | None = None, *, address: str | None = None) -> None:
        if workers is not None and (
            isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
        ):
            raise BadInput(
                f"RayEngine needs a whole number of workers, at least 1; got {workers!r}. "
                f"Leave it out for one per CPU of the cluster."
            )
        with held():
            self._begin(address, workers)

    def _begin(self, address: str | None, workers: int | None) -> None:
        self._house = house = House(enter(address, workers))
        self._finalize = weakref.finalize(self, house.close)
        self._inbox, self._peers = house.inbox, house.peers
        self._here = place()
        self._live: dict[int, Peer] = {}
        self._workers: tuple[int, ...] = ()
        self._next = 0
        self._functions: dict[int, tuple[Body, int, bytes]] = {}
        self._numbers = self._floor = 0  # of the next body, of the first that is remembered
        self._operands: dict[int, tuple[Any, Any]] = {}  # round -> what to send inside, beside
        self._cancelled = -(2**63)
        self._machines = Machines()
        self._look_at = time.monotonic() + _LOOK
        self._looks = 0
        self._ready: list[Event] = []
        self._failure: BaseException | None = None  # of the last worker that was lost
        try:
            self._start(workers)
        except BaseException:
            self.close()
            raise

    def _start(self, workers: int | None) -> None:
        """Wait for the first workers, but not for all of a machine that is silent.

        Ray lists a machine that is down for a minute and more.
        """
        self._machines.learn(look())
        asked = [
            self._peers[self._place(node, asked=True)] for node in self._machines.spread(workers)
        ]
        heard, down = time.monotonic(), set[str]()
        while True:
            there = {peer.node for peer in self._live.values()}
            missing = [peer for peer in asked if not peer.live and peer.node not in down]
            slow = [peer for peer in missing if peer.node in there]
            end = heard + (_SILENT if there and not slow else _START_LIMIT)
            if there and (not missing or (not slow and time.monotonic() >= end)):
                break
            # These are there at once for the caller: their Joined are not told.
            events = self.events(max(0.0, end - time.monotonic()))
            if any(isinstance(e, Joined) for e in events):
                heard = time.monotonic()
            lost = {peer.node for peer in asked if peer.gone} - down
            if lost:
                self._machines.learn(look())
                down |= lost - self._machines.offers.keys()
            if lost - down or not missing or time.monotonic() >= heard + _START_LIMIT:
                raise EngineUnavailable(
                    f"RayEngine starts all its workers, each within {_START_LIMIT:.0f} s; "
                    f"{len(self._live)} of {len(asked)} came. {_why(self._failure)}"
                ) from self._failure
        if missing or down:
            _log.warning(
                "%d of %d workers have come: the machines of the others have said nothing for "
                "%.0f s, or are gone. They join when they answer.",
                len(self._live),
                len(asked),
                _SILENT,
            )

    # Membership.

    @property
    def workers(self) -> tuple[int, ...]:
        """Ids of the live workers, sorted."""
        return self._workers

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def join(self) -> int:
        """Order one more worker where there are fewest for what is offered; takes about a second.

        Returns its id at once.
        """
        self._check()
        return self._place(self._machines.emptiest(self._peers.values()), asked=True)

    def lose(self, worker: int) -> None:
        """End a worker at once: SIGKILL on this machine, else Ray ends its process."""
        peer = self._peer(worker)
        with room_for("ending a worker"):
            peer.kill()
        self._inbox.put((peer, _LOSE, None))

    def pid(self, worker: int) -> int | None:
        """Return the worker's process id if it runs on this machine."""
        process = self._peer(worker).process
        return None if process is None else process.pid

    def close(self) -> None:
        """End our actors; disconnect if we connected; end the cluster if we started it."""
        if self._finalize.alive:
            self._live, self._workers = {}, ()
            self._finalize()

    def _check(self) -> None:
        if not self._finalize.alive:
            raise Closed("this RayEngine was closed; make a new one.")
        if not ray.is_initialized():  # or the next call would start another, silently
            raise Closed("Ray was shut down under this RayEngine; close it and make a new one.")

    def _peer(self, worker: int) -> Peer:
        peer = self._live.get(worker)
        if peer is None:
            self._check()
            raise UnknownWorker(worker, self._workers)
        return peer

    def _place(self, node: str, asked: bool) -> int:
        peer = Peer(self._next, node, asked)
        self._next += 1
        self._peers[peer.id] = peer
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        peer.actor = _ACTOR.options(scheduling_strategy=where).remote(sys.path)
        self._call(peer, _HELLO, peer.actor.hello.remote())
        return peer.id

    def _call(self, peer: Peer, kind: int, ref: Any) -> None:
        """Have the outcome of a call come to the inbox, whoever else is silent."""
        inbox = self._inbox
        ref.future().add_done_callback(lambda future: inbox.put((peer, kind, future)))

    # Commands.

    def put(self, worker: int, key: str, value: Any) -> None:
        """Send a value for the worker to keep: it makes a copy of its own."""
        peer = self._peer(worker)
        self._call(peer, _RETURN, peer.actor.put.remote(key, *split(value)))

    def forget(self, key: str) -> None:
        """Tell every worker to drop a kept value."""
        self._check()
        for peer in self._live.values():
            peer.actor.forget.remote(key)

    def broadcast(self, round: int, value: Any) -> None:
        """Put a large operand in the object store, once; a small one goes with the tasks."""
        self._check()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        packed = split(value)
        self._operands[round] = (None, ray.put(packed)) if large(*packed) else (packed, None)

    def submit(self, task: Task) -> None:
        """Send a task: one call to its actor."""
        peer = self._live.get(task.worker)
        if peer is None:
            peer = self._peer(task.worker)
        round, function, operand, stored = task.round, None, None, None
        known = self._functions.get(id(task.body))
        if known is None:
            known = self._register(task.body)
        head, inside, apart = split(task.args)
        if known[1] not in peer.functions:
            peer.functions.add(known[1])
            function = (self._floor, known[2])
        if round in self._operands and round not in peer.rounds:
            peer.rounds.add(round)
            operand, stored = self._operands[round]
        peer.told = self._cancelled
        message = (self._cancelled, task.id, round, known[1], function, operand, head, inside)
        peer.tasks[task.id] = round
        call: tuple[Any, ...] = (pickle.dumps(message, 5),)
        if apart or stored is not None:
            call += (stored, apart)
        self._call(peer, _RETURN, peer.actor.task.remote(*call))

    def _register(self, body: Body) -> tuple[Body, int, bytes]:
        if len(self._functions) >= _FUNCTIONS:
            self._functions.clear()
            self._floor = self._numbers
        # The body itself is held, so that its id stays its own.
        known = (body, self._numbers, cloudpickle.dumps(body, 5))
        self._numbers += 1
        self._functions[id(body)] = known
        return known

    def cancel(self, round: int) -> None:
        """Tell the workers that have stale work; the others hear of it with their next task."""
        self._check()
        if round <= self._cancelled:
            return
        self._cancelled = round
        for old in [r for r in self._operands if r <= round]:
            del self._operands[old]
        for peer in self._live.values():
            peer.rounds = {r for r in peer.rounds if r > round}
            if any(peer.told < r <= round for r in peer.tasks.values()):
                peer.told = round
                peer.actor.cancel.remote(round)

    # Events.

    def events(self, timeout: float) -> list[Event]:
        """Return what has arrived; waits in one place for replies, deaths and newcomers."""
        self._check()
        end = time.monotonic() + max(0.0, timeout)
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                self._look(now)
            self._inbox.wait(0.0 if self._ready else min(end, self._look_at) - now)
            while (done := self._inbox.take()) is not None:
                self._handle(*done)
            if self._ready:
                out, self._ready = self._ready, []
                return out
            if time.monotonic() >= end:
                return []

    def _handle(self, peer: Peer, kind: int, future: Any) -> None:
        now = time.monotonic()  # stamped on receipt: worker clocks disagree
        if peer.gone:
            return
        error = None if kind == _LOSE else future.exception()
        if kind == _LOSE or (error is not None and kind != _NODES):
            self._lost(peer, now, error)
        elif kind == _HELLO:
            self._on_hello(peer, now, *future.result())
        elif kind == _NODES:
            if error is None:
                self._settle(future.result())
        else:
            if kind == _LISTEN:
                self._call(peer, _LISTEN, peer.actor.listen.remote())
            self._on_return(peer, now, future.result())

    def _on_hello(self, peer: Peer, now: float, process: Process, where: Any, version: str) -> None:
        peer.process = process if where == self._here else None
        if version != __version__:
            host = where[0]
            self._lost(peer, now, EngineUnavailable(f"kofn {version} is installed on {host}."))
            return
        peer.live = True
        self._live[peer.id] = peer
        self._workers = tuple(sorted(self._live))
        self._call(peer, _LISTEN, peer.actor.listen.remote())
        self._ready.append(Joined(now, peer.id))

    def _on_return(self, peer: Peer, now: float, returned: Any) -> None:
        """Handle what a worker said, in the order in which it did."""
        message, *apart = (returned,) if type(returned) is bytes else returned
        number, said = pickle.loads(message)
        peer.early[number] = (said, apart)
        while peer.returns in peer.early:
            said, apart = peer.early.pop(peer.returns)
            peer.returns += 1
            rest = iter(apart)
            for kind, name, *facts in said:
                if kind == STORED:
                    self._ready.append(Stored(now, peer.id, name))
                elif kind == UNPUT:
                    error, trace = facts
                    self._ready.append(Failed(now, peer.id, -1, None, error, trace, name))
                elif kind == REPLY:
                    self._on_reply(peer, now, rest, name, *facts)
                elif (round := peer.tasks.pop(name, None)) is None:
                    pass  # its Failed was told before
                elif kind == DROPPED:
                    self._ready.append(Dropped(now, peer.id, round, name))
                elif kind == FAILED:
                    self._ready.append(Failed(now, peer.id, round, name, *facts))

    def _on_reply(
        self,
        peer: Peer,
        now: float,
        rest: Iterator[Any],
        task: int,
        read: int,
        seconds: float,
        last: bool,
        head: bytes,
        inside: list[Any],
    ) -> None:
        # Taken even if nobody wants them: the next reply's are behind them.
        apart = [next(rest) for part in inside if part is None]
        round = peer.tasks.get(task)
        if round is None:
            return
        try:
            what, value = unite(head, inside, apart, private)
        except Exception as error:
            # The reply cannot be read here: the task failed, even if its worker goes on with it.
            del peer.tasks[task]
            trace = traceback.format_exc()
            self._ready.append(Failed(now, peer.id, round, task, repr(error), trace))
            return
        if last:
            del peer.tasks[task]
        self._ready.append(Reply(now, peer.id, round, task, what, value, read, seconds, last))

    def _lost(self, peer: Peer, now: float, error: BaseException | None) -> None:
        """Give a worker up: it died, or Ray cannot reach it, or it was to be lost."""
        peer.gone = True
        del self._peers[peer.id]
        if not isinstance(error, ray.exceptions.ActorDiedError):
            peer.kill()  # or it might live on, unknown to anybody
        if self._live.pop(peer.id, None) is not None:
            self._workers = tuple(sorted(self._live))
        self._failure = error
        if peer.asked or peer.live:
            self._ready.append(Lost(now, peer.id, tuple(sorted(peer.tasks))))
        else:
            warnings.warn(
                f"a worker on a new machine of the Ray cluster did not start. {_why(error)}",
                RuntimeWarning,
                stacklevel=2,
            )

    # Machines.

    def _look(self, now: float) -> None:
        """Look for new machines, through a worker: asking Ray here could make the master wait."""
        self._look_at = now + _LOOK
        self._looks += 1
        if self._workers:
            peer = self._live[self._workers[self._looks % len(self._workers)]]
            self._call(peer, _NODES, peer.actor.nodes.remote())
        else:
            with opened():
                nodes = look()
            self._settle(nodes)

    def _settle(self, nodes: list[dict[str, Any]]) -> None:
        """Start workers on machines that are new."""
        for node in self._machines.learn(nodes):
            self._place(node, asked=False)


def _why(error: BaseException | None) -> str:
    text = str(error or "")
    if "No module named 'kofn" in text or isinstance(error, EngineUnavailable):
        fact = text if isinstance(error, EngineUnavailable) else "one of them cannot."
        return (
            f"Every machine must be able to import the kofn that is used here; {fact} Run pip "
            f"install 'kofn[ray]=={__version__}' in the environment of each `ray start`."
        )
    return f"Ray says: {text}" if text else "Ray says nothing; see if its machines are overloaded."
