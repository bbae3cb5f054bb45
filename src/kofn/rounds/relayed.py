"""An engine whose large operands are passed on by its workers: see `kofn.peers.relay`."""

from __future__ import annotations

import math
import secrets
import weakref
from typing import Any

import numpy as np

from ..engines.base import Engine, Wrapped
from ..model import Build, Dropped, Event, Failed, Lost, Reply, Stored, Task
from ..peers import Address, FindKeys, Node
from ..peers.blobs import PIECE
from ..peers.relay import (
    FEWEST,
    FIRST,
    LARGE,
    Relayed,
    Ticket,
    Unreached,
    hello,
    lay,
    open_node,
)

BODIES = 256  # remembered; beyond, all are forgotten and sent again as needed


def relaying(engine: Engine) -> Engine:
    """The engine itself, or what passes its operands on where it sends each worker a copy."""
    return Relaying(engine) if engine.capabilities.copies else engine


class Relaying(Wrapped):
    """An engine, with tasks whose operand comes from other workers.

    Workers are given a node with the first large operand, which the engine still sends. Whoever
    has none yet, or gets nothing from others in time, is sent the operand by the engine.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._tasks = engine.counters()[1]
        self._key, self._token = f"relay-{next(self._tasks)}", secrets.token_bytes(32)
        self._node: Node | None = None
        self._find: FindKeys | None = None
        self._asked: dict[int, int] = {}  # tasks that ask for an address, and whom
        self._met: dict[int, Address] = {}
        self._bodies: dict[int, Relayed] = {}  # by the id of what they hold
        self._owed: dict[int, int] = {}  # answers, by worker
        # The operand that is passed on now: its round, itself, and whether the engine has it too.
        self._round, self._operand, self._sent = -1, None, False
        self._tickets: dict[int, Ticket] = {}  # by worker
        self._open: dict[int, Task] = {}  # tasks that were given a ticket, as they were meant

    def broadcast(self, round: int, value: Any) -> None:
        large = type(value) is np.ndarray and value.nbytes >= LARGE and not value.dtype.hasobject
        if not large or not self._begin(round, value):
            self.engine.broadcast(round, value)

    def submit(self, task: Task) -> None:
        ticket = self._tickets.get(task.worker) if task.round == self._round else None
        if ticket is None:
            self._by_engine(task)
        else:
            body = self._bodies.get(id(task.body))
            if body is None:
                if len(self._bodies) >= BODIES:
                    self._bodies.clear()
                body = self._bodies[id(task.body)] = Relayed(self._key, task.body)
            self.engine.submit(task._replace(body=body, args=(tuple(ticket), *task.args)))
            self._open[task.id] = task
        self._owed[task.worker] = self._owed.get(task.worker, 0) + 1

    def cancel(self, round: int) -> None:
        self.engine.cancel(round)
        if 0 <= self._round <= round:
            assert self._node is not None
            self._node.withdraw(f"{FIRST}{self._round}")
            self._round, self._operand = -1, None
            self._tickets, self._open = {}, {}

    def events(self, timeout: float) -> list[Event]:
        limit = self.engine.now() + timeout
        while True:
            came = self.engine.events(timeout)
            events = [event for one in came if (event := self._left(one)) is not None]
            if events or not came or (timeout := limit - self.engine.now()) <= 0:
                return events

    def close(self) -> None:
        if self._node is not None:
            self._node.close()
        self.engine.close()

    def _begin(self, round: int, operand: Any) -> bool:
        """Pass an operand on, if there is a worker that can."""
        if self._node is None:
            keys, self._find = self.engine.encryption or (None, None)
            self._node = Node(self._token, listen=False, keys=keys)
            weakref.finalize(self, self._node.close)
        node = self._node
        asked = set(self._asked.values())
        for worker in self.workers:
            if worker not in self._met and worker not in asked:
                build = Build(open_node, (self._token, node.machine, self._find))
                task = Task(next(self._tasks), round, worker, hello, (self._key,))
                self.engine.put(worker, self._key, build)
                self.engine.submit(task)
                self._asked[task.id] = worker
        if len(self._met) < FEWEST:
            return False
        order = "F" if operand.flags.f_contiguous and not operand.flags.c_contiguous else "C"
        flat = np.ascontiguousarray(operand.T if order == "F" else operand)
        name, size = f"{FIRST}{round}", operand.nbytes
        sources, pushed = lay(self._met, self._owed, node.machine, math.ceil(size / PIECE))
        ticket = Ticket(name, operand.dtype.str, operand.shape, order, size, ())
        self._tickets = {worker: ticket._replace(sources=some) for worker, some in sources.items()}
        self._round, self._operand, self._sent = round, operand, False
        node.push(name, flat, [self._met[worker] for worker in pushed])
        return True

    def _by_engine(self, task: Task) -> None:
        if task.round == self._round and not self._sent:
            self.engine.broadcast(self._round, self._operand)
            self._sent = True
        self.engine.submit(task)

    def _left(self, event: Event) -> Event | None:
        """Take in what concerns operands; return what is left of it for others."""
        if isinstance(event, Reply | Failed | Dropped) and event.task is not None:
            worker = self._asked.pop(event.task, None)
            if worker is not None:
                if isinstance(event, Reply):
                    self._met[worker] = Address(*event.value)
                return None
            if isinstance(event, Reply) and not event.last:
                return event
            task = self._open.pop(event.task, None)
            if isinstance(event, Reply) and type(event.value) is Unreached:
                if task is not None:
                    self._tickets.pop(task.worker, None)
                    self._by_engine(task)
                    return None
                event = Dropped(event.time, event.worker, event.round, event.task)
            owed = self._owed.get(event.worker, 0) - 1
            if owed > 0:
                self._owed[event.worker] = owed
            else:
                self._owed.pop(event.worker, None)
        elif isinstance(event, Stored | Failed):
            return None if event.key == self._key else event
        elif isinstance(event, Lost):
            self._met.pop(event.worker, None)
            self._owed.pop(event.worker, None)
            self._tickets.pop(event.worker, None)
            self._asked = {task: w for task, w in self._asked.items() if w != event.worker}
        return event
