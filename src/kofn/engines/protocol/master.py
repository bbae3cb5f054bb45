"""The master's side of the protocol."""

from __future__ import annotations

import traceback
from typing import Any

import cloudpickle

from ...errors import BadInput, OutOfResources, UnknownWorker
from ...model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task, new
from ...notices.books import Books
from . import messages as msg
from .messages import NEVER, Message, Outgoing, Values

BODIES = 256  # bodies remembered; beyond, all are forgotten and sent again as needed
OPERANDS = 64  # operands kept of rounds that nobody cancelled and that have no open task


class _Operand:
    """The operand of a round."""

    __slots__ = ("holders", "message", "pending")

    def __init__(self, message: msg.AddOperand) -> None:
        self.message = message  # the same for all workers
        self.holders: set[int] = set()  # workers that were sent it
        self.pending = 0  # open tasks of its round


class _Open:
    """A task that has not ended."""

    __slots__ = ("args", "brief", "failed", "operand", "round")

    def __init__(self, round: int, operand: _Operand | None, args: Any, brief: bool) -> None:
        self.round, self.operand, self.args, self.brief = round, operand, args, brief
        self.failed = False  # its Failed was told, and the worker goes on


class Peer:
    """What the master knows of one worker."""

    __slots__ = ("bodies", "puts", "sent", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[int, _Open] = {}
        self.puts: list[msg.Put] = []  # without an answer
        self.bodies: set[int] = set()  # numbers it was sent
        self.sent = NEVER  # the last cancelled round that it was sent


class MasterProtocol:
    """The master's books: workers, bodies, operands, open tasks, puts without an answer.

    A body is known by identity and sent to a worker once. What a worker is told once is noted when
    the message is returned, so messages must be sent in the order in which they are returned.
    """

    def __init__(self, values: Values) -> None:
        self.workers: tuple[int, ...] = ()  # live ones, sorted
        self.cancelled = NEVER  # the highest cancelled round
        self._values = values
        self._peers: dict[int, Peer] = {}
        self._bodies: dict[int, tuple[Body, int, bytes]] = {}  # by id; the body itself is held
        self._number = self._first = 0  # of the next body, of the first that is remembered
        self._operands: dict[int, _Operand] = {}
        self._evicted: set[int] = set()  # open rounds whose operand has made room
        self.notices = Books()

    # What the engine's caller asks for.

    def put(self, worker: int, key: str, value: Any) -> Outgoing:
        """Have a worker keep a value; ends in Stored, Failed or the worker's Lost."""
        peer = self.peer(worker)
        peer.puts.append(msg.Put(key, self._values.pack(value, lasting=True)))
        return [(worker, peer.puts[-1])]

    def forget(self, key: str) -> Outgoing:
        """Have every worker drop a kept value."""
        return [(worker, msg.Forget(key)) for worker in self._peers]

    def broadcast(self, round: int, value: Any) -> Outgoing:
        """Note the operand of a round; each worker gets it with its first task of the round."""
        if round in self._operands:
            raise BadInput(f"a round has one operand; round {round} was broadcast before.")
        packed = self._values.own(self._values.pack(value))  # it waits for the first task
        out: Outgoing = []
        if len(self._operands) >= OPERANDS:
            idle = [r for r, operand in self._operands.items() if not operand.pending]
            for old in idle[: len(self._operands) - OPERANDS + 1]:
                self._evicted.add(old)
                holders = self._operands[old].holders & self._peers.keys()
                out += [(worker, msg.DropOperand(old)) for worker in holders]
                self._release(old)
        self._operands[round] = _Operand(msg.AddOperand(round, packed))
        return out

    def submit(self, task: Task) -> Outgoing:
        """Run a task on its worker, after those submitted to it before."""
        worker, round = task.worker, task.round
        peer = self._peers.get(worker) or self.peer(worker)
        known = self._bodies.get(id(task.body)) or self._register(task.body)
        operand = self._operands.get(round)
        if operand is None and round in self._evicted and round > self.cancelled:
            raise BadInput(
                f"at most {OPERANDS} rounds are open at a time; the operand of round {round} has "
                f"made room for later ones. Cancel rounds that are over."
            )
        args = self._values.pack(task.args)
        out: Outgoing = []
        number = known[1]
        if number not in peer.bodies:
            peer.bodies.add(number)
            out.append((worker, msg.AddBody(number, known[2], self._first)))
        if operand is not None:
            operand.pending += 1
            if worker not in operand.holders:
                operand.holders.add(worker)
                out.append((worker, operand.message))
        fields = (task.id, round, number, args, self.cancelled)
        out.append((worker, new(msg.RunTask, fields)))
        peer.tasks[task.id] = _Open(round, operand, args, task.brief)
        peer.sent = self.cancelled
        return out

    def cancel(self, round: int) -> Outgoing:
        """Make this round and all before it stale; tell those that have stale work."""
        if round <= self.cancelled:
            return []
        self.cancelled = round
        self._evicted = {r for r in self._evicted if r > round}
        for old in [r for r, o in self._operands.items() if r <= round and not o.pending]:
            self._release(old)
        out: Outgoing = []
        for worker, peer in self._peers.items():
            if peer.tasks and any(peer.sent < task.round <= round for task in peer.tasks.values()):
                peer.sent = round
                out.append((worker, msg.Cancel(round)))
        return out

    def unsent(self, messages: Outgoing) -> None:
        """Take back what was noted of messages that could not be sent."""
        for worker, message in messages:
            peer = self._peers[worker]
            if isinstance(message, msg.AddBody):
                peer.bodies.discard(message.number)
            elif isinstance(message, msg.AddOperand):
                self._operands[message.round].holders.discard(worker)
            elif isinstance(message, msg.RunTask):
                self._close(peer, message.task)
            elif isinstance(message, msg.Put):
                self._end_put(peer, -1)  # it was the last to be noted

    def close(self) -> None:
        """Know no worker any more."""
        self._peers, self.workers = {}, ()

    def watches(self) -> Outgoing:
        """Return what workers are to be told about notices."""
        due, self.notices.due = self.notices.due, []
        return [(order.worker, msg.Watch(*order[1:])) for order in due]

    # What workers say.

    def received(self, worker: int, message: Message, now: float) -> list[Event]:
        """Return the events that a message means; `now` is the time of its receipt."""
        if isinstance(message, msg.TaskReply):
            return self._replied(worker, message, now)
        if isinstance(message, msg.WorkerUp):
            self._peers[worker] = Peer()
            self.workers = tuple(sorted(self._peers))
            return [Joined(now, worker), *self.notices.joined(worker, message.host, now)]
        if isinstance(message, msg.WorkerDown):
            self.notices.lost(worker)
            return [self._lost(worker, now, message.reason)]
        peer = self._peers.get(worker)
        if peer is None:
            return []  # it was given up before
        if isinstance(message, msg.WorkerLeaving):
            return [*self.notices.on_leaving(worker, now, *message)]
        if isinstance(message, msg.WatchFailed):
            self.notices.failed(worker, *message)
            return []
        if isinstance(message, msg.PutStored | msg.PutFailed):
            key = message.key  # of the first of that key: answers come in the order of the puts
            self._end_put(peer, next(i for i, put in enumerate(peer.puts) if put.key == key))
            if isinstance(message, msg.PutFailed):
                return [Failed(now, worker, -1, None, *message[1:], key)]
            return [Stored(now, worker, key)]
        assert isinstance(message, msg.TaskFailed | msg.TaskDropped), message
        task = peer.tasks.get(message.task)
        if task is None:
            return []  # it has ended before
        self._close(peer, message.task)
        if task.failed:
            return []
        if isinstance(message, msg.TaskDropped):
            return [Dropped(now, worker, task.round, *message)]
        return [Failed(now, worker, task.round, *message)]

    def _replied(self, worker: int, message: msg.TaskReply, now: float) -> list[Event]:
        peer = self._peers.get(worker)
        number, what, value, read, seconds, last = message
        task = None if peer is None else peer.tasks.get(number)
        events: list[Event] = []
        try:
            # Also where nobody wants it: the place that holds it is free again afterwards.
            try:
                brief = task is not None and task.brief
                value = self._values.borrow(value) if brief else self._values.unpack(value)
            finally:
                what = self._values.unpack(what)
        except Exception as error:
            # It cannot be read here: the task failed, even if its worker goes on with it.
            if task is not None and not task.failed:
                task.failed = True
                name, trace = repr(error), traceback.format_exc()
                if isinstance(error, MemoryError | OSError):
                    error = OutOfResources("its reply", str(error) or "out of memory")
                    name, trace = f"OutOfResources: {error}", ""
                events.append(Failed(now, worker, task.round, number, name, trace))
        else:
            if task is not None and not task.failed:
                round = task.round
                fields = (now, worker, round, number, what, value, read, seconds, last)
                events.append(new(Reply, fields))
        if last and task is not None and peer is not None:
            self._close(peer, number)
        return events

    def _lost(self, worker: int, now: float, reason: str) -> Event:
        peer = self._peers.pop(worker, None)
        if peer is None:
            return Lost(now, worker, (), reason)  # it never came
        self.workers = tuple(sorted(self._peers))
        tasks = tuple(sorted(number for number, task in peer.tasks.items() if not task.failed))
        for number in list(peer.tasks):
            self._close(peer, number)
        while peer.puts:
            self._end_put(peer, -1)
        return Lost(now, worker, tasks, reason)

    # The books.

    def peer(self, worker: int) -> Peer:
        """Return what is known of a live worker; raises UnknownWorker."""
        peer = self._peers.get(worker)
        if peer is None:
            raise UnknownWorker(worker, self.workers)
        return peer

    def _register(self, body: Body) -> tuple[Body, int, bytes]:
        code = cloudpickle.dumps(body, 5)
        if len(self._bodies) >= BODIES:
            self._bodies.clear()
            self._first = self._number
        known = self._bodies[id(body)] = (body, self._number, code)
        self._number += 1
        return known

    def _end_put(self, peer: Peer, at: int) -> None:
        self._values.release(peer.puts.pop(at).value)

    def _close(self, peer: Peer, number: int) -> None:
        task = peer.tasks.pop(number)
        self._values.release(task.args)
        operand = task.operand
        if operand is not None:
            operand.pending -= 1
            if not operand.pending and task.round <= self.cancelled:
                self._release(task.round)

    def _release(self, round: int) -> None:
        """Let go of an operand that no open task needs."""
        self._values.release(self._operands.pop(round).message.value)
