"""An engine is a transport under the protocol: this is the engine, and what a transport does."""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

from numpy.typing import DTypeLike

from ..errors import CannotDo, Closed, TooLarge, UnknownWorker
from ..exchange import Exchange, ExchangeLayout
from ..interrupts import held, opened
from ..model import Event, Lost, Room, Task
from ..notices.base import Source
from .base import Engine
from .memory import room_for
from .protocol import MasterProtocol, Message, Outgoing, Values, WorkerLeaving

T = TypeVar("T")


class Transport(Values, ABC):
    """Moves messages between a master and its workers, and never waits for a worker.

    `ids` numbers the workers; a transport takes the next one for a worker that joins unasked.
    `pid`, `exchange`, `room`, `traffic` and `crowded` are those of the engine, with what it says
    where there is nothing to say.
    `moved`: bytes to and from a worker, None where nobody counts.
    """

    def __init__(self) -> None:
        self.ids = count()

    @abstractmethod
    def start(self, worker: int) -> None:
        """Order one more worker under this id; its WorkerUp or WorkerDown follows."""

    @abstractmethod
    def end(self, worker: int) -> None:
        """End a live worker at once; its WorkerDown follows."""

    def give_up(self, worker: int) -> None:
        """As `end`, for a worker that is silent; it, or another in its place, may come later."""
        self.end(worker)

    @abstractmethod
    def send(self, worker: int, message: Message) -> None:
        """Send a message to a live worker, after those before it; at the latest with `poll`."""

    @abstractmethod
    def poll(self, timeout: float) -> list[tuple[int, Message]]:
        """Return what has arrived, waiting at most `timeout` seconds for the first.

        It waits under `kofn.interrupts.opened`, and may return early with nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers and let go of everything. It is not called in a forked child."""

    def cancelled(self, round: int) -> None:
        """Show workers that rounds up to this one are cancelled, where they can see it at once."""

    def check(self) -> None:
        """Raise Closed where this transport has ended by itself."""

    def pid(self, worker: int) -> int | None:
        return None

    def moved(self, worker: int) -> int | None:
        return None

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        return None

    def room(self, shape: tuple[int, ...], dtype: DTypeLike) -> Room | None:
        return None

    @property
    def traffic(self) -> int | None:
        return None

    @property
    def crowded(self) -> Collection[int]:
        return ()


P = TypeVar("P", bound=Transport)


def _close(transport: Transport, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not end its parent's workers
        with held():
            transport.close()


class TransportEngine(Engine):
    """An engine over a transport: every promise of the contract, kept by the protocol.

    Arrays that reach a worker are read-only; those in events are private and writable. A body is
    sent to a worker once: what it closes over is what it was then.
    """

    @contextmanager
    def _open(self, transport: P) -> Iterator[P]:
        """Be an engine over this transport, and close it where what is done within raises."""
        self._transport: Transport = transport
        self._protocol = MasterProtocol(transport)
        # The transport, not the engine: an engine that the user drops closes at once.
        self._finalize = weakref.finalize(self, _close, transport, os.getpid())
        self._ready: list[Event] = []
        try:
            yield transport
        except BaseException:
            self.close()
            raise

    def _await(self, done: Callable[[], bool], limit: float) -> str:
        """Take in workers, whose Joined are not told, until `done`; return why it was not."""
        end = time.monotonic() + limit
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return f"no more within {limit:.0f} s"
            for event in self.events(left):
                if isinstance(event, Lost):
                    return event.reason or "see the messages above"
        return ""

    @property
    def workers(self) -> tuple[int, ...]:
        return self._protocol.workers

    def now(self) -> float:
        return time.monotonic()

    def put(self, worker: int, key: str, value: Any) -> None:
        self._check()
        with room_for("a value for a worker to keep"):
            self._send(self._protocol.put(worker, key, value))

    def room(self, shape: tuple[int, ...], dtype: DTypeLike) -> Room | None:
        self._check()
        return self._transport.room(shape, dtype)

    def forget(self, key: str) -> None:
        self._check()
        self._send(self._protocol.forget(key))

    def broadcast(self, round: int, value: Any) -> None:
        self._check()
        with room_for("an operand"):
            self._send(self._protocol.broadcast(round, value))

    def submit(self, task: Task) -> None:
        try:
            messages = self._protocol.submit(task)
        except UnknownWorker:
            self._check()
            raise
        self._send(messages)

    def cancel(self, round: int) -> None:
        self._check()
        if round > self._protocol.cancelled:
            self._transport.cancelled(round)
            self._send(self._protocol.cancel(round))

    def events(self, timeout: float) -> list[Event]:
        self._check()
        transport, received = self._transport, self._protocol.received
        end = self.now() + max(0.0, timeout)
        left = 0.0 if self._ready else timeout
        while True:
            arrived = transport.poll(max(0.0, left))
            now = self.now()  # stamped on receipt: worker clocks disagree
            for worker, message in arrived:
                self._ready += received(worker, message, now)
            if self._protocol.notices.due:
                self._send(self._protocol.watches())
            if self._ready:
                ready, self._ready = self._ready, []
                return ready
            left = end - now
            if left <= 0:
                return []

    def lose(self, worker: int) -> None:
        self._check()
        self._protocol.peer(worker)
        with room_for("ending a worker"):
            self._transport.end(worker)

    def give_up(self, worker: int) -> None:
        with room_for("ending a worker"):
            self._transport.give_up(worker)

    def join(self) -> int:
        self._check()
        worker = next(self._transport.ids)
        with room_for("one more worker"):
            self._transport.start(worker)
        return worker

    def announce(self, worker: int, seconds: float, reason: str = "") -> None:
        self._check()
        self._protocol.peer(worker)
        self._ready += self._protocol.received(worker, WorkerLeaving(seconds, reason), self.now())

    def pid(self, worker: int) -> int | None:
        self._check()
        self._protocol.peer(worker)
        return self._transport.pid(worker)

    def usage(self) -> dict[int, dict[str, float]]:
        used = super().usage()
        for worker, numbers in used.items():
            if (moved := self._transport.moved(worker)) is not None:
                numbers["moved"] = moved
        return used

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        self._check()
        with room_for("memory that workers exchange"):
            return self._transport.exchange(layout)

    def watch(self, sources: Sequence[Source]) -> None:
        self._check()
        self._protocol.notices.add(sources)
        self._send(self._protocol.watches())
        self._ready = self.events(0.0)  # which sends them now

    @property
    def traffic(self) -> int | None:
        return self._transport.traffic

    @property
    def crowded(self) -> Collection[int]:
        return self._transport.crowded

    def close(self) -> None:
        with held():
            if self._finalize.alive:
                self._protocol.close()
                self._finalize()

    def __reduce__(self) -> NoReturn:
        raise CannotDo(
            "an engine cannot be pickled: its workers belong to this process. Make another where "
            "it is needed."
        )

    def _check(self) -> None:
        if not self._finalize.alive:
            raise Closed(f"this {type(self).__name__} was closed; make a new one.")
        self._transport.check()

    def _send(self, messages: Outgoing) -> None:
        send, left = self._transport.send, iter(messages)
        try:
            for worker, message in left:
                send(worker, message)
        except (MemoryError, OSError, TooLarge):
            self._protocol.unsent([(worker, message), *left])
            with room_for("what a worker is sent"):
                raise


class Inbox(Generic[T]):
    """For transports with threads: any may put, one takes. An interrupted wait takes nothing."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # nothing is lost with what it holds

    def put(self, item: T) -> None:
        self._items.append(item)
        self._wakeups.put(None)

    def wait(self, timeout: float) -> None:
        """Return when there may be something to take, or after so many seconds."""
        while not self._wakeups.empty():  # before the look: who puts later wakes later
            self._wakeups.get_nowait()
        if not self._items and timeout > 0:
            with suppress(Empty), opened():
                self._wakeups.get(timeout=min(timeout, 1e6))

    def take(self) -> T | None:
        return self._items.popleft() if self._items else None
