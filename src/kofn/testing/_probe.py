"""EngineProbe: submits to an engine, keeps the books, and fails at what no engine may say.

Beside it what the checks ask the operating system: processes, files and names of shared memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..engines.base import Engine
from ..model import Body, Dropped, Event, Failed, Joined, Lost, Reply, Task
from ._bodies import toil


class EngineProbe:
    """Submits to an engine and keeps the books: which task got which pieces and which ends.

    Every event is compared with the books as it arrives: time does not run backwards, a task ends
    once and says nothing afterwards, a lost worker is silent, and `workers` follows the events.
    """

    def __init__(self, engine: Engine, patience: float) -> None:
        self.engine, self.patience, self.first = engine, patience, engine.workers[0]
        self.log: list[Event] = []
        self.tasks: dict[int, Task] = {}
        self.pieces: dict[int, list[Reply]] = {}
        self.ends: dict[int, list[Event]] = {}
        self._members, self._lost = set(engine.workers), set[int]()
        self._time = engine.now()

    def needs(self, *capabilities: str) -> None:
        """Skip where the engine lacks one of these."""
        for name in capabilities:
            if not getattr(self.engine.capabilities, name):
                pytest.skip(f"an engine without {name}")

    def submit(self, worker: int, body: Body, *args: Any, round: int = 1, cost: float = 1.0) -> int:
        """Submit a task; return its id."""
        task = Task(len(self.tasks), round, worker, body, args, cost=cost)
        self.engine.submit(task)
        self.tasks[task.id], self.ends[task.id], self.pieces[task.id] = task, [], []
        return task.id

    def occupy(self, worker: int) -> int:
        """Submit a task that a busy machine does not end before it is cancelled or lost."""
        pieces = 3000 if self.engine.capabilities.virtual_time else 10**9
        return self.submit(worker, toil, pieces, cost=3000.0)

    def listen(self, timeout: float) -> list[Event]:
        """Take the engine's events into the books."""
        events = self.engine.events(timeout)
        for event in events:
            self.log.append(event)
            self._note(event)
        if events:
            assert self.engine.workers == tuple(sorted(self._members)), events
        return events

    def _note(self, event: Event) -> None:
        assert event.time >= self._time, f"time runs backwards: {self.log[-2:]}"
        self._time = event.time
        worker: int = getattr(event, "worker", -1)
        assert worker not in self._lost, f"a lost worker says something: {event}"
        if isinstance(event, Joined):
            assert worker not in self._members, f"who is there already joins: {event}"
            self._members.add(worker)
        if isinstance(event, Lost):
            self._members.discard(worker)
            self._lost.add(worker)
            for task in event.tasks:
                self._end(task, worker, event)
        elif isinstance(event, Reply | Failed | Dropped) and event.task is not None:
            assert event.round == self.tasks[event.task].round
            if isinstance(event, Reply):
                self.pieces[event.task].append(event)
                assert not self.ends[event.task], f"a task goes on after its end: {event}"
            if not isinstance(event, Reply) or event.last:
                self._end(event.task, worker, event)

    def _end(self, task: int, worker: int, event: Event) -> None:
        assert self.tasks[task].worker == worker, f"the end of another worker's task: {event}"
        self.ends[task].append(event)
        assert len(self.ends[task]) == 1, f"a task ends twice: {self.ends[task]}"

    def until(self, done: Callable[[], bool], why: str) -> None:
        """Listen until `done`, at most for `patience` seconds of the engine's clock."""
        limit = self.engine.now() + self.patience
        while not done():
            left = limit - self.engine.now()
            if left <= 0:
                pytest.fail(f"waited {self.patience} s for {why}; last events {self.log[-5:]}")
            self.listen(min(left, 1.0))

    def until_ended(self, *tasks: int) -> list[Event]:
        """Listen until these tasks (none: all) have ended; return their ends."""
        wanted = tasks or tuple(self.ends)
        self.until(lambda: all(self.ends[t] for t in wanted), f"the end of tasks {wanted[:9]}")
        return [self.ends[t][0] for t in wanted]

    def until_begun(self, task: int) -> None:
        """Listen until a task has sent its first piece."""
        self.until(lambda: bool(self.pieces[task]), f"the first piece of task {task}")

    def find(self, kind: type[Event], **facts: Any) -> list[Any]:
        """Return the events of a kind with these attributes."""
        return [
            e
            for e in self.log
            if isinstance(e, kind) and all(getattr(e, k) == v for k, v in facts.items())
        ]

    def wait(self, kind: type[Event], **facts: Any) -> Any:
        """Listen until there is such an event; return it."""
        self.until(lambda: bool(self.find(kind, **facts)), f"{kind.__name__} {facts}")
        return self.find(kind, **facts)[0]

    def values(self, task: int) -> list[Any]:
        """Return the values that a task replied with."""
        end = self.until_ended(task)[0]
        assert isinstance(end, Reply), end
        return [r.value for r in self.pieces[task] if r.value is not None]

    def value(self, task: int) -> Any:
        """Return the only value a task replied with."""
        (value,) = self.values(task)
        return value

    def run(self, body: Body, *args: Any, round: int = 1) -> Any:
        """Return the only value of a task of the first worker."""
        return self.value(self.submit(self.first, body, *args, round=round))

    def end_of(self, body: Body, *args: Any) -> Event:
        """Return how a task of the first worker ended."""
        return self.until_ended(self.submit(self.first, body, *args))[0]

    @contextlib.contextmanager
    def frozen(self, worker: int) -> Iterator[None]:
        """Stop a worker's process meanwhile; skip where it has none."""
        pid = self.engine.pid(worker) if self.engine.capabilities.processes else None
        if pid is None:
            pytest.skip("no process to freeze")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it may have been ended meanwhile
                os.kill(pid, signal.SIGCONT)


def descendants() -> set[int] | None:
    """Process ids of all that this process started, zombies aside; None where unknown."""
    if not Path("/proc/self/stat").exists():
        return None
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(stat.parent.name)] = int(parent)
    pids: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        pids |= new
    return pids


def gone(pid: int) -> bool:
    """Tell whether a process has ended (a zombie has)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def open_files() -> int:
    """How many descriptors this process has; 0 where unknown."""
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


def held_names() -> set[str]:
    """Names of shared memory that this process and its descendants have mapped now.

    Only these can be blamed on an engine: neighbours leave names of their own.
    """
    names: set[str] = set()
    for pid in (descendants() or set()) | {os.getpid()}:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/maps").read_text()
            names |= {
                line.split("/dev/shm/")[1] for line in text.splitlines() if "/dev/shm/" in line
            }
    return {name for name in names if Path("/dev/shm", name).exists()}
