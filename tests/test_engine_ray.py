"""The Ray engine keeps the contract, and what it promises beyond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray", reason="engine 'ray' is not installed: pip install 'kofn[ray]'")

from kofn.engines.base import Engine
from kofn.engines.ray import RayEngine
from kofn.model import Dropped, Event, Failed, Reply, Task
from kofn.testing._bodies import echo
from kofn.testing.engines import Desk, EngineChecks


class Lent(Engine):
    """An engine lent to one test after the other, each with rounds of its own.

    Starting four actors takes seconds, lending them none. What was put is forgotten afterwards,
    who was lost is replaced, and everything submitted has ended.
    """

    name = "lent"

    def __init__(self, engine: Engine, shift: int) -> None:
        self.engine, self.capabilities = engine, engine.capabilities
        self.shift, self.last, self.keys = shift, 0, set[str]()

    @property
    def workers(self) -> tuple[int, ...]:
        return self.engine.workers

    def now(self) -> float:
        return self.engine.now()

    def put(self, worker: int, key: str, value: Any) -> None:
        self.engine.put(worker, key, value)
        self.keys.add(key)

    def forget(self, key: str) -> None:
        self.engine.forget(key)

    def broadcast(self, round: int, value: Any) -> None:
        self.last = max(self.last, round)
        self.engine.broadcast(round + self.shift, value)

    def submit(self, task: Task) -> None:
        self.last = max(self.last, task.round)
        self.engine.submit(replace(task, round=task.round + self.shift))

    def cancel(self, round: int) -> None:
        self.last = max(self.last, round)
        self.engine.cancel(round + self.shift)

    def events(self, timeout: float) -> list[Event]:
        return [
            replace(e, round=e.round - self.shift)
            if isinstance(e, Reply | Dropped) or (isinstance(e, Failed) and e.task is not None)
            else e
            for e in self.engine.events(timeout)
        ]

    def lose(self, worker: int) -> None:
        self.engine.lose(worker)

    def join(self) -> int:
        return self.engine.join()

    def pid(self, worker: int) -> int | None:
        return self.engine.pid(worker)

    def close(self) -> None:
        self.engine.close()

    def give_back(self, workers: int) -> int:
        """Leave the engine as it was lent; return the first round of the next loan."""
        self.cancel(self.last)
        for key in self.keys:
            self.forget(key)
        for worker in self.workers[workers:]:
            self.lose(worker)
        for _ in range(workers - len(self.workers)):
            self.join()
        desk = Desk(self, 60)
        desk.ends, desk.pieces = _Any(), _Any()
        desk.until(lambda: len(self.workers) == workers, "the workers of the next test")
        for worker in self.workers:  # comes after all that was asked of it before
            self.submit(Task(-1 - worker, self.last + 1, worker, echo))
        for worker in self.workers:
            desk.wait(Reply, task=-1 - worker)
        self.cancel(self.last)
        return self.shift + self.last + 1


class _Any(dict[int, list[Any]]):
    """Books in which any task may be written, also one submitted by another desk."""

    def __missing__(self, task: int) -> list[Any]:
        return self.setdefault(task, [])


@pytest.fixture(scope="class")
def shelf() -> Iterator[dict[str, Any]]:
    """The engine to be lent next, if one is at hand, in a Ray of our own."""
    with RayEngine(1, address="local"):
        shelf: dict[str, Any] = {"engine": None, "shift": 0}
        yield shelf
        if shelf["engine"]:
            shelf["engine"].close()


class TestRayEngine(EngineChecks):
    kills = 10

    @pytest.fixture
    def engine(self, shelf: dict[str, Any]) -> Iterator[Lent]:
        shelf["engine"] = shelf["engine"] or RayEngine(4)
        lent = Lent(shelf["engine"], shelf["shift"])
        yield lent
        if shelf["engine"]._finalize.alive:
            shelf["shift"] = lent.give_back(4)
        else:
            shelf.update(engine=None, shift=0)
