"""The Dask engine: one session on each worker of a Dask cluster, running or started here."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
import weakref
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle

from ..errors import BadInput, CannotDo, Closed, EngineUnavailable, UnknownWorker
from ..interrupts import held, opened
from ..model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task
from . import _dask_worker as far
from ._dask_launch import START, Launcher
from .base import Capabilities, Engine

if TYPE_CHECKING:
    from ._dask_link import Channel, Link

if find_spec("distributed") is None:
    raise ModuleNotFoundError("No module named 'distributed'", name="distributed")

OLDEST = "2024.8"  # the oldest distributed that this was tried with
_COME = 20.0  # seconds for as many workers of a running cluster as are needed to answer
_GRACE = 3.0  # seconds for the others
_FUNCTIONS = 256  # bodies remembered; beyond, all are forgotten and sent again as needed
_OPERANDS = 64  # operands kept of rounds that nobody cancelled
_NEVER = -(2**63)  # lower than every round

_log = logging.getLogger("kofn")


def _check_packages(own: bool) -> None:
    found = version("distributed")
    if tuple(map(int, found.split(".")[:2])) < tuple(map(int, OLDEST.split("."))):
        raise EngineUnavailable(
            f"engine 'dask' needs distributed {OLDEST} or newer; {found} is installed: "
            f"pip install -U 'kofn[dask]'."
        )
    if own and find_spec("cryptography") is None:
        raise EngineUnavailable(
            "a Dask cluster of kofn's own is locked to other users by TLS, which needs the package "
            "cryptography; it is not installed: pip install 'kofn[dask]'."
        )


class _House:
    """All that must be let go at the end; apart from the engine, so a finaliser can hold it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.link: Link | None = None
        self.launcher: Launcher | None = None

    def close(self) -> None:
        """End our sessions, and what we started."""
        if os.getpid() != self.owner:
            return  # a forked child must not end its parent's workers
        with held():
            try:
                if self.link is not None:
                    self.link.close()
            finally:
                if self.launcher is not None:
                    self.launcher.close()


class _Peer:
    """What the master knows of one worker."""

    def __init__(self, id: int, channel: Channel) -> None:
        self.id, self.channel = id, channel
        self.tasks: dict[int, int] = {}  # not ended -> round
        self.muted: set[int] = set()  # of those, the ones whose Failed was told already
        self.functions: set[int] = set()
        self.rounds: set[int] = set()  # whose operands it has
        self.told = _NEVER  # the last cancel that it was told


class DaskEngine(Engine):
    """Workers are those of a Dask cluster: a running one, or one started here for the purpose.

    `workers` alone starts a scheduler and so many processes on this machine, reachable from it
    only and with the keys in `security` only. `address` (of a scheduler, or a distributed.Client)
    uses a running cluster: all its workers, or as many as `workers` says; it is left as it was.
    Dask workers that come later join by themselves. One that Dask's nanny replaces is lost, and the
    replacement a newcomer.

    Nothing here waits for a worker. An operand is pickled once, and sent to each worker with its
    first task of the round: a tree of relays would put one straggler in everyone's way. A body is
    sent to a worker once: what it closes over is what it was then. Arrays that reach a worker are
    read-only; those in events are private and writable.
    """

    name: ClassVar[str] = "dask"

    def __init__(self, workers: int | None = None, *, address: Any = None) -> None:
        if workers is not None and (
            isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
        ):
            raise BadInput(
                f"DaskEngine needs a whole number of workers, at least 1; got {workers!r}. "
                f"Leave it out for one per core, or for all of a running cluster."
            )
        own = address is None
        _check_packages(own)
        self.capabilities = Capabilities(processes=True, can_lose=True, can_join=own)
        self._house = _House()
        self._finalize = weakref.finalize(self, self._house.close)
        self._live: dict[int, _Peer] = {}
        self._workers: tuple[int, ...] = ()
        self._next = 0
        self._promised: dict[str, int] = {}  # by name or address: ids of those who are to join
        self._refused: dict[str, str] = {}
        self._functions: dict[int, tuple[Body, int, bytes]] = {}
        self._numbers = 0
        self._operands: dict[int, far.Wrapped] = {}
        self._gone: set[int] = set()  # rounds never cancelled whose operand had to make room
        self._cancelled = _NEVER
        self._ready: list[Event] = []
        with held():
            try:
                if own:
                    self._start(workers or os.cpu_count() or 1)
                else:
                    self._connect(address, workers)
            except BaseException:
                self.close()
                raise

    # The beginning.

    def _start(self, workers: int) -> None:
        launcher = self._house.launcher = Launcher()
        launcher.order("scheduler")
        # Only now: this takes a second, in which the launcher does the same.
        from ._dask_link import Link

        with opened():
            news = launcher.news()
        if not news or news[0][0] != "at":
            raise EngineUnavailable(
                "engine 'dask' starts a scheduler on 127.0.0.1; it ended at once. "
                "See its message above."
            )
        self.scheduler_address = news[0][1]
        self._link = self._house.link = Link()
        self._link.listen(launcher.control, launcher.news)
        for _ in range(workers):
            self.join()
        self.security = launcher.security()
        self._link.call(self._link.open(self.scheduler_address, self.security, None))
        self._await(workers, START)

    def _connect(self, address: Any, workers: int | None) -> None:
        from ._dask_link import Link, where

        self.scheduler_address, self.security = where(address)
        self._link = self._house.link = Link(holds=True)
        self._link.call(self._link.open(self.scheduler_address, self.security, workers))
        self._await(workers or 1, _COME)

    def _await(self, need: int, limit: float) -> None:
        """Wait for `need` workers, and a little for the others that the scheduler knows."""
        began = time.monotonic()
        while (live := len(self._live)) < need or self._link.unanswered:
            waited = time.monotonic() - began
            if waited > (limit if live < need else _GRACE):
                break
            # These are there at once for the caller: their Joined are not told.
            if any(isinstance(e, Lost) for e in self.events(0.1)) and self._house.launcher:
                break
            if self._refused and not self._link.unanswered and waited > _GRACE:
                break  # nobody else is in sight
        if live < need:
            trouble = {**self._refused, **self._link.unanswered}
            why = "".join(f" {address}: {what}." for address, what in trouble.items())
            raise EngineUnavailable(
                f"Dask workers at {self.scheduler_address}: {need} are needed; {live} came within "
                f"{time.monotonic() - began:.0f} s.{why} "
                f"Start more with: dask worker {self.scheduler_address}"
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
        """Start one more process, or use a worker that `workers=` left out; return its id."""
        self._check()
        worker = self._next
        launcher = self._house.launcher
        if launcher is not None:
            name = self._link.worker_name(worker)
            try:
                launcher.order("worker", name, self.scheduler_address)
            except OSError as error:
                raise CannotDo(
                    f"the process that starts workers is gone ({error}), and what it started ends "
                    f"with it. Close this cluster and connect again."
                ) from error
        else:
            name = self._link.call(self._link.unreserve())
            if name is None:
                raise CannotDo(
                    f"engine 'dask' starts workers only where it started the cluster; this one "
                    f"is at {self.scheduler_address}. Start one there, it joins by itself: "
                    f"dask worker {self.scheduler_address}"
                )
        self._next += 1
        self._promised[name] = worker
        self._link.expect(name, START)
        return worker

    def lose(self, worker: int) -> None:
        """Kill a worker that we started; stop using one that we did not, and end our work on it."""
        channel = self._peer(worker).channel
        if self._house.launcher is not None and self._link.is_ours(channel.facts["name"]):
            with contextlib.suppress(OSError):  # the launcher is gone, and all with it
                self._house.launcher.order("kill", channel.facts["name"])
        else:
            self._link.ban(channel)

    def pid(self, worker: int) -> int | None:
        """Return the worker's process id if it runs on this machine, in a process of its own."""
        facts = self._peer(worker).channel.facts
        if facts["place"] != far.place() or facts["pid"] == os.getpid():
            return None
        return int(facts["pid"])

    def close(self) -> None:
        """End our sessions, and the processes that we started: a fraction of a second."""
        if self._finalize.alive:
            self._live, self._workers = {}, ()
            self._finalize()

    def _check(self) -> None:
        if not self._finalize.alive:
            raise Closed("this DaskEngine was closed; make a new one.")

    def _peer(self, worker: int) -> _Peer:
        peer = self._live.get(worker)
        if peer is None:
            self._check()
            raise UnknownWorker(worker, self._workers)
        return peer

    # Commands.

    def put(self, worker: int, key: str, value: Any) -> None:
        """Send a value for the worker to keep: one copy here."""
        self._link.send(self._peer(worker).channel, (far.PUT, key, far.wrap(value)))

    def forget(self, key: str) -> None:
        """Tell every worker to drop a kept value."""
        self._check()
        for peer in self._live.values():
            self._link.send(peer.channel, (far.FORGET, key))

    def broadcast(self, round: int, value: Any) -> None:
        """Pickle the operand once; each worker gets it with its first task of the round."""
        self._check()
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        while len(self._operands) >= _OPERANDS:
            old = next(iter(self._operands))
            del self._operands[old]
            self._gone.add(old)
            for peer in self._live.values():
                if old in peer.rounds:
                    peer.rounds.remove(old)
                    self._link.send(peer.channel, (far.DROP, old))
        self._operands[round] = far.wrap(value)

    def submit(self, task: Task) -> None:
        """Queue a task for its worker; messages of one moment leave together."""
        peer, round = self._peer(task.worker), task.round
        known = self._functions.get(id(task.body)) or self._register(task.body)
        messages: list[tuple[Any, ...]] = []
        if peer.told < self._cancelled:
            messages.append(self._tell_cancelled(peer))
        if known[1] not in peer.functions:
            peer.functions.add(known[1])
            messages.append((far.FUNCTION, known[1], known[2]))
        if round not in peer.rounds:
            if round in self._operands:
                peer.rounds.add(round)
                messages.append((far.OPERAND, round, self._operands[round]))
            elif round in self._gone and round > self._cancelled:
                raise BadInput(
                    f"at most {_OPERANDS} rounds are open at a time; the operand of round {round} "
                    f"has made room for later ones. Cancel rounds that are over."
                )
        messages.append((far.TASK, task.id, round, known[1], far.wrap(task.args)))
        peer.tasks[task.id] = round
        self._link.send(peer.channel, *messages)

    def cancel(self, round: int) -> None:
        """Tell the workers that are at work; the others hear of it with their next task."""
        self._check()
        if round <= self._cancelled:
            return
        self._cancelled = round
        self._gone = {r for r in self._gone if r > round}
        for old in [r for r in self._operands if r <= round]:
            del self._operands[old]
        for peer in self._live.values():
            peer.rounds = {r for r in peer.rounds if r > round}
            if any(r <= round for r in peer.tasks.values()):
                self._link.send(peer.channel, self._tell_cancelled(peer))

    def _tell_cancelled(self, peer: _Peer) -> tuple[int, int]:
        peer.told = self._cancelled
        return far.CANCEL, self._cancelled

    def _register(self, body: Body) -> tuple[Body, int, bytes]:
        if len(self._functions) >= _FUNCTIONS:
            self._functions.clear()
            for peer in self._live.values():
                peer.functions.clear()
                self._link.send(peer.channel, (far.CLEAR,))
        # The body itself is held, so that its id stays its own.
        known = (body, self._numbers, cloudpickle.dumps(body, 5))
        self._numbers += 1
        self._functions[id(body)] = known
        return known

    # Events.

    def events(self, timeout: float) -> list[Event]:
        """Return what has arrived; waits on a queue that a thread fills."""
        self._check()
        arrived = self._link.arrived
        end = time.monotonic() + max(0.0, timeout)
        while True:
            left = end - time.monotonic()
            arrived.wait(0.0 if self._ready else left)
            while (news := arrived.take()) is not None:
                _HANDLERS[news[1]](self, news[0], *news[2:])
            if self._ready:
                out, self._ready = self._ready, []
                return out
            if left <= 0:
                return []

    def _on_said(self, now: float, channel: Channel, messages: list[tuple[Any, ...]]) -> None:
        peer = channel.owner
        for message in messages:
            _HANDLERS[message[0]](self, now, peer, *message[1:])

    def _on_joined(self, now: float, channel: Channel, _: None) -> None:
        worker = self._promised.pop(channel.facts["name"], None)
        if worker is None:
            worker = self._promised.pop(channel.address, None)
        if worker is None:
            worker, self._next = self._next, self._next + 1
        channel.owner = self._live[worker] = _Peer(worker, channel)
        self._workers = tuple(sorted(self._live))
        self._ready.append(Joined(now, worker))

    def _on_lost(self, now: float, channel: Channel, _: None) -> None:
        peer = channel.owner
        del self._live[peer.id]
        self._workers = tuple(sorted(self._live))
        self._ready.append(Lost(now, peer.id, tuple(sorted(peer.tasks.keys() - peer.muted))))

    def _on_refused(self, now: float, address: str, why: str) -> None:
        self._refused[address] = why
        _log.warning("Dask worker %s is not used: %s.", address, why)
        self._on_died(now, address, None)

    def _on_died(self, now: float, name: str | None, _: None) -> None:
        """Handle the end of someone who had not joined yet; None: of all those."""
        for promised in list(self._promised) if name is None else [name]:
            worker = self._promised.pop(promised, None)
            if worker is not None:
                self._ready.append(Lost(now, worker))

    def _on_reply(
        self,
        now: float,
        peer: _Peer,
        task: int,
        name: far.Wrapped,
        wrapped: far.Wrapped,
        read: int,
        seconds: float,
        last: bool,
    ) -> None:
        round = peer.tasks[task]
        try:
            what, value = far.unwrap(name), far.unwrap(wrapped, private=True)
        except Exception as error:
            # The reply cannot be read here: the task failed, even if its worker goes on with it.
            self._fail(now, peer, task, repr(error), traceback.format_exc())
        else:
            if task not in peer.muted:
                self._ready.append(
                    Reply(now, peer.id, round, task, what, value, read, seconds, last)
                )
        if last:
            self._end(peer, task)

    def _on_failed(self, now: float, peer: _Peer, task: int, error: str, trace: str) -> None:
        self._fail(now, peer, task, error, trace)
        self._end(peer, task)

    def _on_dropped(self, now: float, peer: _Peer, task: int) -> None:
        if task not in peer.muted:
            self._ready.append(Dropped(now, peer.id, peer.tasks[task], task))
        self._end(peer, task)

    def _on_stored(self, now: float, peer: _Peer, key: str) -> None:
        self._ready.append(Stored(now, peer.id, key))

    def _on_unput(self, now: float, peer: _Peer, key: str, error: str, trace: str) -> None:
        self._ready.append(Failed(now, peer.id, -1, None, error, trace, key))

    def _fail(self, now: float, peer: _Peer, task: int, error: str, trace: str) -> None:
        if task not in peer.muted:
            peer.muted.add(task)
            self._ready.append(Failed(now, peer.id, peer.tasks[task], task, error, trace))

    def _end(self, peer: _Peer, task: int) -> None:
        del peer.tasks[task]
        peer.muted.discard(task)


# Not a table of bound methods in the engine: that would be a cycle, and an engine that the user
# drops should close at once.
_HANDLERS: dict[str | int, Callable[..., None]] = {
    "said": DaskEngine._on_said,
    "joined": DaskEngine._on_joined,
    "lost": DaskEngine._on_lost,
    "refused": DaskEngine._on_refused,
    "died": DaskEngine._on_died,
    far.REPLY: DaskEngine._on_reply,
    far.DROPPED: DaskEngine._on_dropped,
    far.FAILED: DaskEngine._on_failed,
    far.STORED: DaskEngine._on_stored,
    far.UNPUT: DaskEngine._on_unput,
}
