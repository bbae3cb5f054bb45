"""Engines shared by tests in turn: starting one takes longer than most checks do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kofn.engines.base import Engine
from kofn.exchange import Exchange, ExchangeLayout
from kofn.model import Dropped, Event, Failed, Lost, Reply, Task
from kofn.peers import Encryption

SPAN = 100_000  # rounds and tasks of one turn


class Turn(Engine):
    """One test's turn on an engine, which is as new to it: ids and keys of its own."""

    name = "turn"

    def __init__(self, engine: Engine, base: int) -> None:
        self._engine = engine
        self.engine: Any = engine  # for what only this kind of engine has
        self.base = base
        self.capabilities = engine.capabilities
        self._size = len(engine.workers)
        self.closed = False
        self._open: set[int] = set()
        self._keys: set[str] = set()

    @property
    def workers(self) -> tuple[int, ...]:
        return self._engine.workers

    @property
    def encryption(self) -> Encryption | None:
        return self._engine.encryption

    def now(self) -> float:
        return self._engine.now()

    def put(self, worker: int, key: str, value: Any) -> None:
        self._engine.put(worker, key, value)
        self._keys.add(key)

    def forget(self, key: str) -> None:
        self._engine.forget(key)

    def broadcast(self, round: int, value: Any) -> None:
        self._engine.broadcast(round + self.base, value)

    def submit(self, task: Task) -> None:
        id = task.id + self.base
        self._engine.submit(task._replace(id=id, round=task.round + self.base))
        self._open.add(id)

    def cancel(self, round: int) -> None:
        self._engine.cancel(round + self.base)

    def events(self, timeout: float) -> list[Event]:
        return [self._shifted(event) for event in self._engine.events(timeout)]

    def _shifted(self, event: Event) -> Event:
        if isinstance(event, Lost):
            self._open -= set(event.tasks)
            return event._replace(tasks=tuple(t - self.base for t in event.tasks))
        if not isinstance(event, Reply | Failed | Dropped) or event.task is None:
            return event
        if not isinstance(event, Reply) or event.last:
            self._open.remove(event.task)
        return event._replace(task=event.task - self.base, round=event.round - self.base)

    def lose(self, worker: int) -> None:
        self._engine.lose(worker)

    def join(self) -> int:
        return self._engine.join()

    def announce(self, worker: int, seconds: float, reason: str = "") -> None:
        self._engine.announce(worker, seconds, reason)

    def pid(self, worker: int) -> int | None:
        return self._engine.pid(worker)

    def room(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._engine.room(shape, dtype)

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        return self._engine.exchange(layout)

    @property
    def traffic(self) -> int | None:
        return self._engine.traffic

    def close(self) -> None:
        self.closed = True
        self._engine.close()

    def over(self) -> bool:
        """End the turn with as many workers as it began with; return whether that could be done."""
        if self.closed:
            return False
        self._engine.cancel(self.base + SPAN)
        for key in self._keys:
            self._engine.forget(key)
        limit = self.now() + 20
        missing = self._size - len(self.workers)
        for _ in range(missing):
            self.join()
        for worker in self.workers[: max(0, -missing)]:
            self.lose(worker)
        while self._open or len(self.workers) != self._size:
            self.events(0.1)
            if self.now() > limit:
                return False
        return True


class Turns:
    """Makes an engine when there is none that can be used again."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.make = make
        self.engine: Engine | None = None
        self.count = 0

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """A turn on the engine at hand, or on a new one."""
        if self.engine is None:
            self.engine = self.make()
        self.count += 1
        turn = Turn(self.engine, self.count * 2 * SPAN)
        yield turn
        if not turn.over():
            turn.close()
            self.engine = None

    def close(self) -> None:
        """Close the engine at hand."""
        if self.engine is not None:
            self.engine.close()
