"""Engines under the real master on which faults are played, in simulated time.

`Acting` wraps an engine and plays faults on it, at a time or at a call of the engine. It also keeps
books: every task ends once, and nobody waits where nothing can happen. `Simulated` is an engine
over the real protocol, with a transport in memory: messages take their time, a Cancel may overtake
others, what a dead worker has sent is cut off anywhere or comes too late.
"""

from __future__ import annotations

import heapq
import pickle
import random
import signal
import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import cloudpickle
import numpy as np

from kofn import interrupts
from kofn.engines.base import Capabilities, Engine, Wrapped
from kofn.engines.protocol import (
    Cancel,
    Message,
    Values,
    WorkerDown,
    WorkerProtocol,
    WorkerUp,
    plain,
    typed,
)
from kofn.engines.protocol.messages import TaskDropped, TaskFailed, TaskReply
from kofn.engines.transport import Transport, TransportEngine
from kofn.model import Build, Dropped, Event, Failed, Lost, Reply, Stored, Task, Update

One = Literal["lose", "freeze", "thaw", "leave", "slow", "double", "fail", "refuse", "lie"]
What = One | Literal["join", "interrupt", "leave-all"]
CALLS = 10_000  # of an engine in one script; more is a loop without an end


class Violation(AssertionError):
    """Something that must hold does not."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C by script. It has a signal of its own: the real one is to end everything."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Let scripts interrupt."""

    def strike(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def must(true: object, rule: str, *facts: object) -> None:
    """Raise a Violation unless it is true."""
    if not true:
        raise Violation(": ".join([rule, *map(str, facts)]))


@dataclass(frozen=True)
class Act:
    """What happens when: to a worker picked from those it can happen to."""

    time: float
    what: What
    pick: int = 0
    size: float = 0.0  # seconds until one that leaves is said to be gone; times as slow


class Strike(NamedTuple):
    """The same, so many calls of the engine from now, and then some seconds later."""

    calls: int
    seconds: float
    what: What
    pick: int = 0
    size: float = 0.0


def fails(*_: object) -> Any:
    """What is in the place of a value that a worker cannot keep."""
    raise ArithmeticError("by script")


class Acting(Wrapped):
    """An engine in simulated time that plays acts.

    What a frozen worker says is heard when it thaws. `heard` counts events. `patient`: whether a
    wait for nothing is right now, because somebody may join, or will be gone at a known time.
    `checked`: replies may be wrong now, as they are looked at.
    """

    name = "acting"

    def __init__(self, engine: Engine, acts: Iterable[Act] = ()) -> None:
        super().__init__(engine)
        self.now = engine.now  # it is asked most often
        self.acts = sorted(acts, key=attrgetter("time"))
        self.strikes: deque[Strike] = deque()
        self.frozen: dict[int, list[Event]] = {}
        self.thawed: dict[int, float] = {}  # worker -> when last
        self.pace: dict[int, float] = {}
        self.open: dict[int, int] = {}  # task -> worker
        self.puts: Counter[int] = Counter()  # by worker, without an answer
        self.calls = self.heard = self.struck = self.spoiled = self.froze = self.joins = 0
        self.notices = self.lies = 0
        self.checked = False
        self.liars: set[int] = set()
        self.patient: Callable[[], bool] = lambda: True
        self.turn: Callable[[], None] | None = None  # called at each call: another thread's turn?
        self._ready: list[Event] = []
        self._next: dict[str, set[int]] = {"double": set(), "fail": set(), "refuse": set()}
        self._lies: dict[int, float] = {}  # by whom next, and how far off
        self._refused: set[tuple[int, str]] = set()
        if isinstance(engine, Simulated):
            engine.wire.pace = self.pace

    # Calls.

    def submit(self, task: Task) -> None:
        self._call()
        must(task.id not in self.open, "a task's id is new", task.id)
        slow = self.pace.get(task.worker)
        self.engine.submit(task if slow is None else task._replace(cost=task.cost * slow))
        self.open[task.id] = task.worker

    def put(self, worker: int, key: str, value: Any) -> None:
        self._call()
        if worker in self._next["refuse"]:
            self._next["refuse"].discard(worker)
            self._refused.add((worker, key))
            self.spoiled += 1
            value = Update(value.of, fails) if isinstance(value, Update) else Build(fails)
        self.engine.put(worker, key, value)
        self.puts[worker] += 1

    def give_up(self, worker: int) -> None:
        # What it has said since it thawed was not told yet.
        told = all(getattr(event, "worker", -1) != worker for event in self._ready)
        owes = not told or worker in self.open.values() or self.puts[worker]
        must(owes, "who owes nothing is not given up", worker)
        self.engine.give_up(worker)

    def broadcast(self, round: int, value: Any) -> None:
        self._call()
        self.engine.broadcast(round, value)

    def cancel(self, round: int) -> None:
        self._call()
        self.engine.cancel(round)

    def forget(self, key: str) -> None:
        self._call()
        self.engine.forget(key)

    def events(self, timeout: float) -> list[Event]:
        self._call(waits=True)
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        if timeout > 0:
            possible = self.acts or self.frozen or pending(self.engine) or self.patient()
            must(possible, "a wait has something to wait for", f"{timeout:g} s for nothing")
        limit = self.now() + max(0.0, timeout)
        while True:
            due = self.acts[0].time if self.acts else inf
            heard = self._heard(self.engine.events(min(limit, due) - self.now()))
            if not heard and self.now() >= due:
                self._play(self.acts.pop(0))
                heard, self._ready = self._ready, []
            elif self.now() >= limit:
                return heard
            if heard:
                return heard

    def drain(self) -> None:
        """Let everything that is on its way come, once all is cancelled."""
        self.strikes.clear()
        self.acts.clear()
        for worker in list(self.frozen):
            self._thaw(worker)
        self._ready.clear()
        while pending(self.engine):
            self._heard(self.engine.events(1.0))
        must(not self.open, "every task ends", self.open)

    def _call(self, waits: bool = False) -> None:
        self.calls += 1
        must(self.calls < CALLS, "a script comes to an end", f"{self.calls} calls of the engine")
        while self.strikes and self.strikes[0].calls <= self.calls:
            strike = self.strikes.popleft()
            act = Act(self.now() + strike.seconds, *strike[2:])
            if strike.seconds:
                insort(self.acts, act, key=attrgetter("time"))
            elif strike.what != "interrupt":
                self._play(act)
            elif threading.current_thread() is threading.main_thread():
                self._interrupt(waits and strike.pick % 2 == 0)
        if self.turn is not None:
            self.turn()

    # Events.

    def _heard(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            worker = getattr(event, "worker", -1)
            if type(event) is Lost:
                self.frozen.pop(worker, None)
                event = self._lost(event)
            elif type(event) is Reply or type(event) is Stored:
                event = self._spoilt(event)
            said = [event]
            if type(event) is Reply and worker in self._next["double"] and event.what is not None:
                self._next["double"].discard(worker)
                said = [event._replace(last=False), event]
            if worker in self.frozen:
                self.frozen[worker] += said
                continue
            for one in said:
                self._note(one)
            found += said
        return found

    def _note(self, event: Event) -> None:
        self.heard += 1
        if type(event) is Reply:
            must(event.task in self.open, "nothing comes after the end of a task", event)
            if event.last:
                del self.open[event.task]
        elif type(event) is Dropped or (type(event) is Failed and event.task is not None):
            must(self.open.pop(event.task or 0, None) is not None, "a task ends once", event)
        elif type(event) is Stored or type(event) is Failed:
            self.puts[event.worker] -= 1

    def _lost(self, event: Lost) -> Lost:
        """What it had said and nobody has heard is lost with it."""
        mine = [task for task, worker in self.open.items() if worker == event.worker]
        must(set(event.tasks) <= set(mine), "who is lost ends its own tasks", event)
        for task in mine:
            del self.open[task]
        for workers in self._next.values():
            workers.discard(event.worker)
        self._lies.pop(event.worker, None)
        return event._replace(tasks=tuple(sorted(mine)))

    def _spoilt(self, event: Reply | Stored) -> Event:
        if type(event) is Stored:
            if (event.worker, event.key) not in self._refused:
                return event
            self._refused.discard((event.worker, event.key))  # where no values are computed
            return Failed(event.time, event.worker, -1, None, "by script", "", event.key)
        assert type(event) is Reply
        wrong = self.checked and event.worker in self._lies
        if wrong and isinstance(event.value, np.ndarray) and event.value.size:
            event = event._replace(value=self._lie(event.worker, event.value))
        if not event.last or event.worker not in self._next["fail"]:
            return event
        self._next["fail"].discard(event.worker)
        self.spoiled += 1
        return Failed(event.time, event.worker, event.round, event.task, "by script", "")

    def _lie(self, worker: int, value: Any) -> Any:
        """A value that is far off; no two are off by the same."""
        off = 1e3 * (1.0 + self._lies.pop(worker)) * (1.0 + float(abs(value).max()))
        self.lies += 1
        self.liars.add(worker)
        return (value + off).astype(value.dtype)

    # Acts.

    def refuse(self, worker: int) -> None:
        """Let a worker fail to keep what it is given next."""
        self._next["refuse"].add(worker)

    def _play(self, act: Act) -> None:
        frozen = sorted(self.frozen)
        there = frozen if act.what == "thaw" else [w for w in self.workers if w not in frozen]
        if act.what in ("lose", "slow"):
            there = list(self.workers)
        if act.what == "join":
            self.engine.join()
            self.joins += 1
        elif act.what == "interrupt":
            self._interrupt(opened=True)
        elif act.what == "leave-all":
            for worker in self.workers:
                self.engine.announce(worker, act.size)
                self.notices += 1
        elif there:
            worker = there[act.pick % len(there)]
            match act.what:
                case "lose":
                    self.engine.lose(worker)
                case "freeze":
                    self.frozen[worker] = []
                    self.froze += 1
                case "thaw":
                    self._thaw(worker)
                case "leave":
                    self.engine.announce(worker, act.size)
                    self.notices += 1
                case "slow":
                    self.pace[worker] = max(1.0, act.size)
                case "lie":
                    self._lies[worker] = act.size
                case _:
                    self._next[act.what].add(worker)

    def _thaw(self, worker: int) -> None:
        now = self.thawed[worker] = self.now()  # stamped on receipt
        for event in self.frozen.pop(worker):
            self._note(event)
            self._ready.append(event._replace(time=now))

    def _interrupt(self, opened: bool) -> None:
        """Ctrl-C: in a wait it comes out at once, elsewhere when the books are in order."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.struck += 1
        if opened:
            with interrupts.opened():
                signal.raise_signal(signal.SIGUSR1)
        else:
            signal.raise_signal(signal.SIGUSR1)


def pending(engine: Any) -> bool:
    """Whether anything is on its way in a simulated engine."""
    return bool(engine.wire.heap if isinstance(engine, Simulated) else engine._heap)


# The real protocol, over a transport in memory.


class Packed:
    """A value on its way. Whoever looks at it after its release finds NaN."""

    __slots__ = ("buffers", "data", "lasting", "released")

    def __init__(self, value: Any, lasting: bool) -> None:
        found: list[pickle.PickleBuffer] = []
        try:
            self.data = pickle.dumps(value, 5, buffer_callback=found.append)
        except (pickle.PicklingError, AttributeError, TypeError):
            found.clear()
            self.data = cloudpickle.dumps(value, 5, buffer_callback=found.append)
        self.buffers = [bytearray(buffer.raw()) for buffer in found]
        self.lasting, self.released = lasting, False

    def value(self, mapped: bool) -> Any:
        """Unpack it; `mapped`: arrays lie where they were packed, and can only be read."""
        must(not self.released, "what was released is not unpacked")
        if mapped and not self.lasting:
            return pickle.loads(
                self.data, buffers=[memoryview(b).toreadonly() for b in self.buffers]
            )
        return pickle.loads(self.data, buffers=[bytearray(b) for b in self.buffers])

    def release(self) -> None:
        must(not self.released, "a value is released once")
        self.released = True
        for buffer in self.buffers:
            buffer[:] = b"\xff" * len(buffer)


class _WorkerValues(Values):
    def pack(self, value: Any, lasting: bool = False) -> Any:
        return None if value is None else Packed(value, lasting)

    def unpack(self, packed: Any) -> Any:
        return None if packed is None else packed.value(mapped=True)


class _Site:
    """A worker, and when the last message that is on its way to it or from it arrives."""

    def __init__(self, look: Callable[[], int] | None) -> None:
        self.protocol = WorkerProtocol(_WorkerValues(), look)
        self.inbox: deque[Message] = deque()
        self.running: Iterator[Message] = iter(())
        self.busy = self.ghost = False
        self.due_in = self.due_out = 0.0
        self.cut = inf  # what arrives later has not left it


class Wire(Transport):
    """Messages and workers in simulated time, all from one seed."""

    UNIT = 1e-3  # seconds that a worker takes over a piece, and at most that a message takes

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.pace: dict[int, float] = {}
        self._rng, self._shown = rng, rng.random() < 0.5
        self._cancelled = -1
        self._sites: dict[int, _Site] = {}
        self._arrived: list[tuple[int, Message]] = []
        self._numbers = count()

    def start(self, worker: int) -> None:
        self._at(self.now + self._lag(), self._up, worker)

    def end(self, worker: int) -> None:
        site = self._sites.pop(worker, None)
        if site is not None:
            site.running, site.inbox = iter(()), deque()
            site.cut = self.now + self._lag()
            site.ghost = self._rng.random() < 0.3
            self._at(site.cut, self._tell, worker, WorkerDown("by script"))

    def send(self, worker: int, message: Message) -> None:
        site = self._sites.get(worker)
        if site is None:
            return  # it is dead, and the master has not heard of it
        message = typed(plain(message))
        due = self.now + self._lag()
        site.due_in = max(site.due_in, due)
        if type(message) is Cancel and self._rng.random() < 0.5:
            self._at(due, self._overtake, site, message)
            return
        self._at(site.due_in, self._arrive, worker, site, message)

    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        limit, heap = self.now + max(0.0, timeout), self.heap
        while heap and heap[0][0] <= (self.now if self._arrived else limit):
            time, _, do, args = heapq.heappop(heap)
            self.now = max(self.now, time)
            do(*args)
        if not self._arrived and limit != inf:
            self.now = max(self.now, limit)
        arrived, self._arrived = self._arrived, []
        return arrived

    def cancelled(self, round: int) -> None:
        self._cancelled = round

    def close(self) -> None:
        self.heap.clear()
        self._sites.clear()

    def pack(self, value: Any, lasting: bool = False) -> Any:
        return None if value is None else Packed(value, lasting)

    def unpack(self, packed: Any) -> Any:
        return None if packed is None else packed.value(mapped=False)

    def release(self, packed: Any) -> None:
        if packed is not None:
            packed.release()

    def _lag(self) -> float:
        return self.UNIT * self._rng.random()

    def _at(self, time: float, do: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.heap, (time, next(self._numbers), do, args))

    def _up(self, worker: int) -> None:
        self._sites[worker] = _Site((lambda: self._cancelled) if self._shown else None)
        self._tell(worker, WorkerUp())

    def _tell(self, worker: int, message: Message) -> None:
        self._arrived.append((worker, message))

    def _leave(self, worker: int, site: _Site, message: Message) -> None:
        if self.now < site.cut or site.ghost:
            self._tell(worker, message)

    def _overtake(self, site: _Site, message: Message) -> None:
        list(site.protocol.handle(message))

    def _arrive(self, worker: int, site: _Site, message: Message) -> None:
        if site.cut == inf:
            site.inbox.append(message)
            if not site.busy:
                site.busy = True
                self._step(worker, site)

    def _step(self, worker: int, site: _Site) -> None:
        """Go on to the next message that it sends, which takes it some time."""
        while (message := next(site.running, None)) is None:
            if not site.inbox:
                site.busy = False
                return
            site.running = iter(site.protocol.handle(site.inbox.popleft()))
        took = self.UNIT * self.pace.get(worker, 1.0) * (0.5 + self._rng.random())
        if type(message) is TaskReply:
            message = message._replace(seconds=took)
        site.due_out = max(site.due_out, self.now + took + self._lag())
        self._at(site.due_out, self._leave, worker, site, message)
        ends = type(message) in (TaskDropped, TaskFailed) or getattr(message, "last", False)
        if ends and self._rng.random() < 0.05:  # said twice: the second means nothing
            site.due_out += self._lag()
            self._at(site.due_out, self._leave, worker, site, message)
        self._at(self.now + took, self._step, worker, site)


class Simulated(TransportEngine):
    """An engine over the real protocol in simulated time; the same seed gives the same events."""

    name = "simulated"
    capabilities = Capabilities(
        processes=True, can_lose=True, can_join=True, virtual_time=True, given_time=True
    )

    def __init__(self, workers: int, seed: int) -> None:
        with self._open(Wire(random.Random(seed))) as self.wire:
            for _ in range(workers):
                self.join()
            while len(self.workers) < workers:
                self.events(1.0)

    def now(self) -> float:
        return self.wire.now


# Two threads that take turns.


class Baton:
    """Of two threads one runs at a time; a seed says where the other goes on."""

    def __init__(self, rng: random.Random, lock: interrupts.Lock) -> None:
        self._rng, self._lock = rng, lock
        self._gates = [threading.Semaphore(0), threading.Semaphore(0)]
        self._over = [False, False]
        self._main = threading.get_ident()
        self._turns = 0

    def run(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Run both, the first in this thread."""
        thread = threading.Thread(target=self._other, args=(second,))
        thread.start()
        try:
            first()
        finally:
            self._over[0] = True
            self._gates[1].release()
            thread.join()

    def _other(self, second: Callable[[], None]) -> None:
        self._gates[1].acquire()
        try:
            second()
        finally:
            self._over[1] = True
            self._gates[0].release()

    def turn(self) -> None:
        """Now and then let the other go on."""
        if self._rng.random() < 0.3:
            self.give()

    def give(self) -> None:
        """Let the other go on, unless it has ended."""
        me = int(threading.get_ident() != self._main)
        if not self._over[1 - me]:
            self._turns += 1
            must(self._turns < CALLS, "two threads do not wait for each other", self._turns)
            self._gates[1 - me].release()
            self._gates[me].acquire()

    # In the place of RoundDriver.lock: who has to wait lets the other go on.

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.turn()
        for _ in count():
            if self._lock.acquire(blocking=False):
                return True
            if not blocking:
                return False
            self.give()
            if timeout >= 0:
                return self._lock.acquire(blocking=False)
        raise AssertionError

    def release(self) -> None:
        self._lock.release()
        self.turn()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
