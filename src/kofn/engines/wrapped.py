"""An engine around another: what wraps an engine changes only what it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ..exchange import Exchange, ExchangeLayout
from ..model import Event, Task
from .base import Engine


class Wrapped(Engine):
    """Delegates every call to `engine`; closing it closes `engine`."""

    name: ClassVar[str] = "wrapped"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.capabilities = engine.capabilities

    def counters(self) -> tuple[Iterator[int], Iterator[int]]:
        return self.engine.counters()

    @property
    def workers(self) -> tuple[int, ...]:
        return self.engine.workers

    def now(self) -> float:
        return self.engine.now()

    def put(self, worker: int, key: str, value: Any) -> None:
        self.engine.put(worker, key, value)

    def forget(self, key: str) -> None:
        self.engine.forget(key)

    def broadcast(self, round: int, value: Any) -> None:
        self.engine.broadcast(round, value)

    def submit(self, task: Task) -> None:
        self.engine.submit(task)

    def cancel(self, round: int) -> None:
        self.engine.cancel(round)

    def events(self, timeout: float) -> list[Event]:
        return self.engine.events(timeout)

    def lose(self, worker: int) -> None:
        self.engine.lose(worker)

    def join(self) -> int:
        return self.engine.join()

    def exchange(self, shape: ExchangeLayout) -> Exchange:
        return self.engine.exchange(shape)

    @property
    def traffic(self) -> int | None:
        return self.engine.traffic

    def pid(self, worker: int) -> int | None:
        return self.engine.pid(worker)

    def close(self) -> None:
        self.engine.close()
