"""EngineChecks: every promise of the engine contract as a test, for any engine.

    class TestMyEngine(EngineChecks):
        @pytest.fixture
        def engine(self):
            with MyEngine(4) as e:
                yield e

Nothing here sleeps or reads a clock but the engine's own, so simulated engines can be checked too.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..engines.base import Engine
from ..errors import Closed, UnknownWorker
from ..model import Body, Build, Dropped, Event, Failed, Joined, Lost, Reply, Stored, Task, Update
from ._bodies import (
    SHAPES,
    append,
    echo,
    exits,
    locks,
    make,
    measure,
    raises,
    recall,
    shaped,
    spoil,
    steps,
    toil,
)


class Desk:
    """Submits to an engine and keeps the books: which task got which pieces and which ends."""

    def __init__(self, engine: Engine, patience: float) -> None:
        self.engine, self.patience = engine, patience
        self.log: list[Event] = []
        self.pieces: dict[int, list[Reply]] = {}
        self.ends: dict[int, list[Event]] = {}

    def submit(self, worker: int, body: Body, *args: Any, round: int = 1, cost: float = 1.0) -> int:
        """Submit a task; return its id."""
        task = len(self.ends)
        self.engine.submit(Task(task, round, worker, body, args, cost=cost))
        self.ends[task], self.pieces[task] = [], []
        return task

    def listen(self, timeout: float) -> list[Event]:
        """Take the engine's events into the books."""
        events = self.engine.events(timeout)
        self.log += events
        for event in events:
            if isinstance(event, Reply):
                self.pieces[event.task].append(event)
            if isinstance(event, Lost):
                for owed in event.tasks:
                    self.ends[owed].append(event)
                continue
            ended = isinstance(event, Failed | Dropped) or getattr(event, "last", False)
            task = getattr(event, "task", None)  # None where a put failed
            if ended and task is not None:
                self.ends[task].append(event)
        return events

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

    def value(self, task: int) -> Any:
        """Return the only value a task replied with."""
        end = self.until_ended(task)[0]
        assert isinstance(end, Reply), end
        values = [r.value for r in self.pieces[task] if r.value is not None]
        assert len(values) == 1
        return values[0]


def descendants() -> set[int] | None:
    """Process ids of all that this process started, zombies aside; None where unknown."""
    if not Path("/proc/self/stat").exists():
        return None
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if rest[0] not in "ZX":
            parents[int(pid)] = int(rest[1])
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= new
    return found


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


class EngineChecks:
    """Inherit, and give a fixture `engine`: an engine with exactly four workers, closed after."""

    kills = 200  # how many workers the storm ends
    patience = 30.0  # seconds on the engine's clock before a wait counts as a hang
    spare_files = 48  # descriptors an engine may keep for reuse
    spare_names = 0  # names of shared memory it may

    @pytest.fixture
    def desk(self, engine: Engine) -> Desk:
        """The books of one test."""
        return Desk(engine, self.patience)

    def end(self, engine: Engine, worker: int) -> None:
        """Kill a worker as hard as this engine allows, or skip."""
        pid = engine.pid(worker) if engine.capabilities.processes else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        elif engine.capabilities.can_lose:
            engine.lose(worker)
        else:
            pytest.skip("this engine cannot lose a worker")

    # Tasks.

    def test_starts_with_its_four_workers(self, engine: Engine) -> None:
        assert engine.workers == tuple(sorted(set(engine.workers)))
        assert len(engine.workers) == 4

    def test_a_task_ends_in_one_reply(self, desk: Desk) -> None:
        task = desk.submit(desk.engine.workers[0], echo, 1, "two", (3, 4), round=7)
        assert desk.value(task) == (1, "two", (3, 4))
        (reply,) = [r for r in desk.pieces[task] if r.value is not None]
        assert (reply.worker, reply.round, reply.what, reply.read) == (
            desk.engine.workers[0],
            7,
            "echo",
            1,
        )
        assert reply.seconds >= 0
        assert len(desk.ends[task]) == 1

    def test_pieces_stream_in_order_and_end_once(self, desk: Desk) -> None:
        tasks = [desk.submit(w, steps, 20) for w in desk.engine.workers for _ in range(3)]
        desk.until_ended()
        for task in tasks:
            pieces = [r for r in desk.pieces[task] if r.value is not None]
            assert [r.what for r in pieces] == [(i, i + 1) for i in range(20)]
            assert all((r.value == i).all() for i, r in enumerate(pieces))
            assert sum(r.read for r in desk.pieces[task]) == 20
            assert [r.last for r in desk.pieces[task]].count(True) == 1
            assert desk.pieces[task][-1].last
            assert len(desk.ends[task]) == 1

    def test_a_worker_takes_its_tasks_in_order(self, desk: Desk) -> None:
        worker = desk.engine.workers[1]
        tasks = [desk.submit(worker, echo, i) for i in range(50)]
        desk.until_ended()
        assert [e.task for e in desk.log if isinstance(e, Reply) and e.last] == tasks

    def test_a_body_without_pieces_or_values_still_ends(self, desk: Desk) -> None:
        empty = desk.submit(desk.engine.workers[0], steps, 0)
        silent = desk.submit(desk.engine.workers[1], toil, 3)
        for end in desk.until_ended(empty, silent):
            assert isinstance(end, Reply)
        assert all(r.value is None for r in desk.pieces[empty])
        assert [r.value for r in desk.pieces[silent] if r.value is not None] == [1.0]

    @pytest.mark.parametrize("name", sorted(SHAPES))
    def test_values_of_every_shape_arrive_whole(self, desk: Desk, name: str) -> None:
        got, want = desk.value(desk.submit(desk.engine.workers[0], shaped, name)), SHAPES[name]()
        assert type(got) is type(want)
        for a, b in zip(got, want, strict=True) if name == "tuple" else [(got, want)]:
            np.testing.assert_array_equal(a, b)
            assert np.asarray(a).dtype == np.asarray(b).dtype

    def test_time_never_runs_backwards(self, desk: Desk) -> None:
        began = desk.engine.now()
        for worker in desk.engine.workers:
            desk.submit(worker, steps, 10)
        desk.until_ended()
        times = [began, *(e.time for e in desk.log), desk.engine.now()]
        assert times == sorted(times)

    def test_no_wait_returns_at_once(self, engine: Engine) -> None:
        began = engine.now()
        for _ in range(100):
            assert engine.events(0) == []
        assert engine.now() - began < 5.0

    def test_an_unknown_worker_is_refused(self, engine: Engine) -> None:
        with pytest.raises(UnknownWorker):
            engine.submit(Task(0, 1, 10_000, echo))
        with pytest.raises(UnknownWorker):
            engine.put(10_000, "key", 1)

    # Failures.

    def test_a_raising_task_is_an_event_and_the_worker_lives_on(self, desk: Desk) -> None:
        worker = desk.engine.workers[2]
        bad, good = desk.submit(worker, raises, 2), desk.submit(worker, echo, 5)
        failed = desk.until_ended(bad)[0]
        assert isinstance(failed, Failed)
        assert (failed.worker, failed.task, failed.key) == (worker, bad, None)
        assert "the raising line" in failed.error
        assert 'raise ValueError("the raising line")' in failed.traceback
        assert [r.what for r in desk.pieces[bad]] == [(0, 1), (1, 2)]
        assert desk.value(good) == (5,)
        assert len(desk.ends[bad]) == 1

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_a_body_cannot_end_its_worker_politely(
        self, desk: Desk, error: type[BaseException]
    ) -> None:
        if not desk.engine.capabilities.processes:
            pytest.skip("bodies run in this process")
        worker = desk.engine.workers[0]
        assert isinstance(desk.until_ended(desk.submit(worker, exits, error))[0], Failed)
        assert desk.value(desk.submit(worker, echo, 5)) == (5,)

    def test_a_value_that_cannot_travel_is_a_failure(self, desk: Desk) -> None:
        if not desk.engine.capabilities.processes:
            pytest.skip("values do not leave this process")
        worker = desk.engine.workers[0]
        assert isinstance(desk.until_ended(desk.submit(worker, locks))[0], Failed)
        assert desk.value(desk.submit(worker, echo, 5)) == (5,)

    # Kept values and operands.

    def test_put_is_kept_until_forgotten(self, desk: Desk) -> None:
        first, second = desk.engine.workers[:2]
        desk.engine.put(first, "small", np.arange(4))
        desk.engine.put(first, "large", np.ones(300_000))
        desk.engine.put(first, "built", Build(make, (123,)))
        # Before any task submitted later: no need to wait for Stored.
        tasks = [desk.submit(first, recall, key) for key in ("small", "large", "built")]
        assert [desk.value(t) for t in tasks] == [("has", 6), ("has", 300_000), ("has", 123)]
        for key in ("small", "large", "built"):
            assert desk.wait(Stored, worker=first, key=key)
        assert desk.value(desk.submit(second, recall, "large")) == ("no",)
        desk.engine.forget("large")
        assert desk.value(desk.submit(first, recall, "large")) == ("no",)
        assert desk.value(desk.submit(first, recall, "small")) == ("has", 6)

    def test_put_replaces(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        desk.engine.put(worker, "key", np.ones(3))
        desk.engine.put(worker, "key", np.ones(100_000))
        assert desk.value(desk.submit(worker, recall, "key")) == ("has", 100_000)

    def test_a_put_that_fails_says_which(self, desk: Desk) -> None:
        worker = desk.engine.workers[3]
        desk.engine.put(worker, "bad", Build(spoil))
        failed = desk.wait(Failed, key="bad")
        assert (failed.worker, failed.task) == (worker, None)
        assert "cannot be built" in failed.error
        assert "spoil" in failed.traceback
        assert desk.value(desk.submit(worker, recall, "bad")) == ("no",)

    def test_an_update_is_done_once_and_what_fails_is_kept_no_longer(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        desk.engine.put(worker, "old", np.arange(4))
        for _ in range(2):  # sent again in doubt: nothing is done
            desk.engine.put(worker, "new", Update("old", append, (5,)))
        tasks = [desk.submit(worker, recall, key) for key in ("old", "new")]
        assert [desk.value(t) for t in tasks] == [("no",), ("has", 11)]
        assert desk.wait(Stored, worker=worker, key="new")
        desk.engine.put(worker, "newer", Update("new", spoil))
        assert desk.wait(Failed, key="newer")
        tasks = [desk.submit(worker, recall, key) for key in ("new", "newer")]
        assert [desk.value(t) for t in tasks] == [("no",), ("no",)]

    @pytest.mark.parametrize("size", [3, 300_000])
    def test_each_round_has_its_own_operand(self, desk: Desk, size: int) -> None:
        tasks = {}
        for round in range(1, 9):
            desk.engine.broadcast(round, np.full(size, float(round)))
            for worker in desk.engine.workers:
                for _ in range(2):
                    tasks[desk.submit(worker, measure, round=round)] = round
            if round % 2:  # one round alone, then two at a time
                desk.until_ended()
                desk.engine.cancel(round)
        for task, round in tasks.items():
            assert desk.value(task) == ((size,), float(round * size), float(round))
        assert desk.value(desk.submit(desk.engine.workers[0], measure, round=20)) == "none"

    def test_an_operand_serves_tasks_submitted_late(self, desk: Desk) -> None:
        desk.engine.broadcast(1, np.ones((500, 200)))
        assert desk.value(desk.submit(desk.engine.workers[0], measure))[1] == 100_000
        desk.engine.broadcast(2, np.zeros((500, 200)))
        assert desk.value(desk.submit(desk.engine.workers[1], measure, round=2))[1] == 0
        assert desk.value(desk.submit(desk.engine.workers[1], measure, round=1))[1] == 100_000

    # Cancelling.

    def test_cancel_frees_the_worker(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        running = desk.submit(worker, toil, 3000, cost=3000.0)
        behind = [desk.submit(worker, toil, 3000, cost=3000.0) for _ in range(5)]
        desk.until(lambda: bool(desk.pieces[running]), "the first piece")
        desk.engine.cancel(1)
        later = desk.submit(worker, echo, 9, round=2)
        assert desk.value(later) == (9,)
        for end in desk.until_ended(running, *behind):
            assert isinstance(end, Dropped)
            assert (end.worker, end.round) == (worker, 1)
        # The worker was freed before: what it owed ended first.
        assert desk.log[-1].time >= max(desk.ends[t][0].time for t in behind)

    def test_a_round_cancelled_before_it_starts_is_dropped(self, desk: Desk) -> None:
        desk.engine.cancel(5)
        stale = [desk.submit(w, echo, 1, round=r) for w in desk.engine.workers for r in (4, 5)]
        fresh = [desk.submit(w, echo, 1, round=6) for w in desk.engine.workers]
        assert all(isinstance(end, Dropped) for end in desk.until_ended(*stale))
        assert all(isinstance(end, Reply) for end in desk.until_ended(*fresh))

    def test_a_reply_after_a_cancel_is_legal(self, desk: Desk) -> None:
        for round in range(1, 30):
            for worker in desk.engine.workers:
                desk.submit(worker, steps, 3, round=round)
            desk.engine.cancel(round)
        ends = desk.until_ended()
        assert all(isinstance(end, Dropped | Reply) for end in ends)
        assert all(len(ends) == 1 for ends in desk.ends.values())

    # Membership.

    @pytest.mark.parametrize("hard", [False, True], ids=["lose", "kill"])
    def test_a_lost_worker_is_one_event_with_its_tasks(self, desk: Desk, hard: bool) -> None:
        engine, (victim, *others) = desk.engine, desk.engine.workers
        if hard and not engine.capabilities.processes:
            pytest.skip("workers are not processes")
        if not hard and not engine.capabilities.can_lose:
            pytest.skip("this engine cannot lose a worker")
        done = desk.submit(victim, echo, 1)
        desk.until_ended(done)
        owed = [desk.submit(victim, toil, 3000, cost=3000.0) for _ in range(4)]
        desk.until(lambda: bool(desk.pieces[owed[0]]), "the first piece")
        if hard:
            self.end(engine, victim)
        else:
            engine.lose(victim)
        assert victim in engine.workers  # membership changes through events
        began = engine.now()
        lost = desk.wait(Lost, worker=victim)
        assert engine.now() - began < 10
        assert lost.tasks == tuple(sorted(owed))
        assert engine.workers == tuple(others)
        for worker in others:
            assert desk.value(desk.submit(worker, echo, worker)) == (worker,)
        with pytest.raises(UnknownWorker):
            desk.submit(victim, echo)
        assert len(desk.find(Lost)) == 1

    def test_a_joiner_is_new_and_of_use(self, desk: Desk) -> None:
        engine = desk.engine
        if not engine.capabilities.can_join:
            pytest.skip("this engine cannot start workers")
        before = engine.workers
        new = engine.join()
        assert new not in before
        assert engine.workers == before
        desk.wait(Joined, worker=new)
        assert engine.workers == tuple(sorted((*before, new)))
        desk.engine.broadcast(1, np.ones(100_000))
        engine.put(new, "key", np.ones(5))
        assert desk.value(desk.submit(new, recall, "key")) == ("has", 5)
        assert desk.value(desk.submit(new, measure)) == ((100_000,), 100_000.0, 1.0)
        if engine.capabilities.can_lose:
            engine.lose(new)
            desk.wait(Lost, worker=new)
            again = engine.join()
            assert again not in (*before, new)
            desk.wait(Joined, worker=again)

    def test_a_storm_of_kills(self, desk: Desk) -> None:
        """Every task ends exactly once, nothing hangs, nothing is left behind."""
        engine, dice = desk.engine, random.Random(20)
        if not (engine.capabilities.can_join and engine.capabilities.can_lose):
            pytest.skip("this engine cannot replace workers")
        files, names, processes = open_files(), held_names(), descendants()
        held: set[str] = set()
        dead: set[int] = set()
        for strike in range(1, self.kills + 1):
            engine.broadcast(strike, np.full(40_000, float(strike)))
            for worker in engine.workers:
                for _ in range(dice.randrange(4)):
                    work: list[tuple[Body, tuple[Any, ...]]] = [
                        (steps, (dice.randrange(30),)),
                        (measure, ()),
                        (shaped, ("strided",)),
                    ]
                    body, args = dice.choice(work)
                    desk.submit(worker, body, *args, round=strike)
            for _ in range(dice.randrange(4)):
                desk.listen(dice.choice([0, 0.001]))
            if strike % 10 == 0:
                held |= held_names()
            victim = dice.choice([w for w in engine.workers if w not in dead])
            dead.add(victim)
            self.end(engine, victim)
            engine.join()
            if dice.random() < 0.5:
                engine.cancel(strike)
            desk.until(
                lambda n=strike: len(desk.find(Joined)) == n,  # type: ignore[misc]
                f"joiner {strike}",
            )
        desk.until(lambda: len(desk.find(Lost)) == self.kills, "the last Lost")
        desk.until_ended()
        assert {task: len(ends) for task, ends in desk.ends.items() if len(ends) != 1} == {}
        assert {e.worker for e in desk.find(Lost)} == dead
        assert len(engine.workers) == 4
        engine.cancel(self.kills)
        for worker in engine.workers:
            assert desk.value(desk.submit(worker, echo, 1, round=self.kills + 1)) == (1,)
        assert open_files() <= files + self.spare_files
        left = {name for name in held - names if Path("/dev/shm", name).exists()}
        assert len(left) <= self.spare_names, left
        if processes is not None:
            desk.until(lambda: len(descendants() or ()) <= len(processes), "the dead to go")

    def test_a_frozen_worker_blocks_nobody(self, desk: Desk) -> None:
        engine, (frozen, *others) = desk.engine, desk.engine.workers
        pid = engine.pid(frozen) if engine.capabilities.processes else None
        if pid is None:
            pytest.skip("no process to freeze")
        engine.broadcast(1, np.ones(50_000))
        os.kill(pid, signal.SIGSTOP)
        try:
            began = engine.now()
            owed = [desk.submit(frozen, echo, "x" * 200) for _ in range(2000)]
            owed += [desk.submit(frozen, measure), desk.submit(frozen, echo, np.ones(100_000))]
            busy = [desk.submit(w, measure) for w in others for _ in range(20)]
            desk.until_ended(*busy)
            assert engine.now() - began < self.patience
            assert not any(desk.ends[t] for t in owed)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert all(isinstance(end, Reply) for end in desk.until_ended(*owed))

    # The end.

    def test_close_leaves_nothing(self, desk: Desk) -> None:
        engine = desk.engine
        pids = [engine.pid(w) for w in engine.workers] if engine.capabilities.processes else []
        names = held_names()
        for worker in engine.workers:
            desk.submit(worker, toil, 100_000 if pids else 1)
        engine.close()
        engine.close()
        limit = time.monotonic() + 10
        while not all(gone(p) for p in pids if p is not None):
            assert time.monotonic() < limit, "a worker outlived close"
        assert not [name for name in names if Path("/dev/shm", name).exists()]

    def test_a_closed_engine_says_so(self, engine: Engine) -> None:
        worker = engine.workers[0]
        engine.close()
        calls: list[Callable[[], Any]] = [
            lambda: engine.submit(Task(0, 1, worker, echo)),
            lambda: engine.put(worker, "key", 1),
            lambda: engine.forget("key"),
            lambda: engine.broadcast(1, 1),
            lambda: engine.cancel(1),
            lambda: engine.events(0),
        ]
        for call in calls:
            with pytest.raises(Closed):
                call()
