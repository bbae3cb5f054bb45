"""EngineChecks: every promise of the engine contract as a test, for any engine.

    class TestMyEngine(EngineChecks):
        @pytest.fixture
        def engine(self):
            with MyEngine(4) as e:
                yield e

Nothing here sleeps or reads a clock but the engine's own, so simulated engines can be checked too.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..engines.base import Engine
from ..errors import CannotDo, Closed, UnknownWorker
from ..model import Body, Joined, Leaving, Lost, Reply, Stored, Task
from ._bodies import echo, measure, recall, shaped, steps, toil
from ._probe import EngineProbe as EngineProbe
from ._probe import descendants as descendants
from ._probe import gone as gone
from ._probe import held_names as held_names
from ._probe import open_files
from ._tasks import TaskChecks
from ._values import ValueChecks


class EngineChecks(TaskChecks, ValueChecks):
    """Inherit, and give a fixture `engine`: an engine with exactly four workers, closed after."""

    kills = 200  # how many workers the storm ends
    seed = 20  # of the storm
    patience = 120.0  # seconds on the engine's clock before a wait counts as a hang
    spare_files = 48  # descriptors an engine may keep for reuse
    spare_names = 0  # names of shared memory it may

    @pytest.fixture(autouse=True)
    def _look_around(self) -> None:
        """Autouse: before the engine is made. Others in this process may have left something."""
        self._threads, self._names = set(threading.enumerate()), self.names()

    @pytest.fixture
    def probe(self, engine: Engine) -> EngineProbe:
        """The books of one test."""
        return EngineProbe(engine, self.patience)

    def end(self, engine: Engine, worker: int) -> None:
        """Kill a worker as hard as this engine allows, or skip."""
        pid = engine.pid(worker) if engine.capabilities.processes else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        elif engine.capabilities.can_lose:
            engine.lose(worker)
        else:
            pytest.skip("this engine cannot lose a worker")

    def names(self) -> set[str]:
        """Names of shared memory that the engine may have made."""
        return held_names()

    # Membership.

    def test_starts_with_its_four_workers(self, engine: Engine) -> None:
        assert engine.workers == tuple(sorted(set(engine.workers)))
        assert len(engine.workers) == 4
        pids = [engine.pid(worker) for worker in engine.workers]
        if engine.capabilities.processes:
            here = [pid for pid in pids if pid is not None]  # the others are on other machines
            assert len({os.getpid(), *here}) == len(here) + 1
        else:
            assert pids == [None] * 4

    @pytest.mark.parametrize("hard", [False, True], ids=["lose", "kill"])
    def test_a_lost_worker_is_one_event_with_its_tasks(
        self, probe: EngineProbe, hard: bool
    ) -> None:
        engine, (victim, *others) = probe.engine, probe.engine.workers
        probe.needs("processes" if hard else "can_lose")
        done = probe.submit(victim, echo, 1)
        probe.until_ended(done)
        owed = [probe.occupy(victim) for _ in range(4)]
        probe.until_begun(owed[0])
        if hard:
            self.end(engine, victim)
        else:
            engine.lose(victim)
        assert victim in engine.workers  # membership changes through events
        began = engine.now()
        lost = probe.wait(Lost, worker=victim)
        assert engine.now() - began < 10
        assert lost.tasks == tuple(sorted(owed))
        for worker in others:
            assert probe.value(probe.submit(worker, echo, worker)) == (worker,)
        with pytest.raises(UnknownWorker):
            probe.submit(victim, echo)
        assert len(probe.find(Lost)) == 1

    def test_what_was_put_is_answered_or_lost_with_its_worker(self, probe: EngineProbe) -> None:
        engine, (victim, other, *_) = probe.engine, probe.engine.workers
        busy = probe.occupy(victim)
        probe.until_begun(busy)
        for number in range(20):
            engine.put(victim, f"key{number}", np.ones(2_000 * number))
            engine.put(other, f"key{number}", np.ones(2_000 * number))
        self.end(engine, victim)
        lost = probe.wait(Lost, worker=victim)
        assert lost.tasks == (busy,)
        probe.until(lambda: len(probe.find(Stored, worker=other)) == 20, "the other's answers")
        answers = [e.key for e in probe.find(Stored, worker=victim)]
        assert answers == [f"key{number}" for number in range(len(answers))]
        assert probe.value(probe.submit(other, recall, "key19")) == ("has", 38_000)

    def test_a_joiner_is_new_and_of_use(self, probe: EngineProbe) -> None:
        engine = probe.engine
        if not engine.capabilities.can_join:
            with pytest.raises(CannotDo):
                engine.join()
            return
        before = engine.workers
        new = engine.join()
        assert new not in before
        assert engine.workers == before
        probe.wait(Joined, worker=new)
        assert engine.workers == tuple(sorted((*before, new)))
        probe.engine.broadcast(1, np.ones(100_000))
        engine.put(new, "key", np.ones(5))
        assert probe.value(probe.submit(new, recall, "key")) == ("has", 5)
        assert probe.value(probe.submit(new, measure)) == ((100_000,), 100_000.0, 1.0)
        if engine.capabilities.can_lose:
            engine.lose(new)
            probe.wait(Lost, worker=new)
            again = engine.join()
            assert again not in (*before, new)
            probe.wait(Joined, worker=again)

    def test_a_notice_is_an_event_and_changes_nothing_else(self, probe: EngineProbe) -> None:
        engine, (goes, stays, *_) = probe.engine, probe.engine.workers
        try:
            engine.announce(goes, 30.0, "a test")
        except CannotDo:
            pytest.skip("this engine takes no notices from outside")
        engine.announce(stays, 30.0)
        engine.announce(stays, float("inf"))
        notice = probe.wait(Leaving, worker=goes)
        assert (notice.deadline, notice.reason) == (pytest.approx(notice.time + 30.0), "a test")
        probe.wait(Leaving, worker=stays, deadline=float("inf"))
        for worker in engine.workers:  # it works until then
            assert probe.value(probe.submit(worker, echo, worker)) == (worker,)
        self.end(engine, goes)
        probe.wait(Lost, worker=goes)
        with pytest.raises(UnknownWorker):
            engine.announce(goes, 30.0)

    def test_a_storm_of_kills(self, probe: EngineProbe) -> None:
        """Every task ends exactly once, nothing hangs, nothing is left behind."""
        engine, dice = probe.engine, random.Random(self.seed)
        probe.needs("can_join", "can_lose")
        files, names, processes = open_files(), self.names(), descendants()
        threads = threading.active_count()
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
                    probe.submit(worker, body, *args, round=strike)
            for _ in range(dice.randrange(4)):
                probe.listen(dice.choice([0, 0.001]))
            if strike % 10 == 0:
                held |= self.names()
            victim = dice.choice([w for w in engine.workers if w not in dead])
            dead.add(victim)
            self.end(engine, victim)
            engine.join()
            if dice.random() < 0.5:
                engine.cancel(strike)
            probe.until(
                lambda n=strike: len(probe.find(Joined)) == n,  # type: ignore[misc]
                f"joiner {strike}",
            )
        probe.until(lambda: len(probe.find(Lost)) == self.kills, "the last Lost")
        probe.until_ended()
        assert {task: len(ends) for task, ends in probe.ends.items() if len(ends) != 1} == {}
        assert {e.worker for e in probe.find(Lost)} == dead
        assert len(engine.workers) == 4
        engine.cancel(self.kills)
        for worker in engine.workers:
            assert probe.value(probe.submit(worker, echo, 1, round=self.kills + 1)) == (1,)
        assert open_files() <= files + self.spare_files
        left = {name for name in held - names if Path("/dev/shm", name).exists()}
        assert len(left) <= self.spare_names, left
        if processes is not None:
            probe.until(lambda: len(descendants() or ()) <= len(processes), "the dead to go")
        if not engine.capabilities.processes:
            probe.until(lambda: threading.active_count() <= threads, "the dead's threads to go")

    def test_a_frozen_worker_blocks_nobody(self, probe: EngineProbe) -> None:
        engine, (frozen, *others) = probe.engine, probe.engine.workers
        engine.broadcast(1, np.ones(50_000))
        with probe.frozen(frozen):
            began = engine.now()
            owed = [probe.submit(frozen, echo, "x" * 200) for _ in range(2000)]
            owed += [probe.submit(frozen, measure), probe.submit(frozen, echo, np.ones(100_000))]
            busy = [probe.submit(w, measure) for w in others for _ in range(20)]
            probe.until_ended(*busy)
            assert engine.now() - began < self.patience
            assert not any(probe.ends[t] for t in owed)
        assert all(isinstance(end, Reply) for end in probe.until_ended(*owed))

    def test_a_frozen_worker_is_lost_when_we_say_so(self, probe: EngineProbe) -> None:
        engine, victim = probe.engine, probe.first
        probe.needs("can_lose")
        pid = engine.pid(victim)
        with probe.frozen(victim):
            owed = [probe.submit(victim, echo, np.ones(100_000)) for _ in range(20)]
            engine.lose(victim)
            assert probe.wait(Lost, worker=victim).tasks == tuple(owed)
        probe.until(lambda: pid is None or gone(pid), "the frozen process to end")

    # The end.

    def test_close_leaves_nothing(self, probe: EngineProbe) -> None:
        engine = probe.engine
        pids = [engine.pid(w) for w in engine.workers] if engine.capabilities.processes else []
        names = self.names() - self._names
        for worker in engine.workers:
            probe.submit(worker, toil, 100_000 if pids else 1)
        engine.close()
        engine.close()
        limit = time.monotonic() + self.patience
        while not all(gone(p) for p in pids if p is not None):
            assert time.monotonic() < limit, "a worker outlived close"
        for thread in set() if pids else {*threading.enumerate()} - self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
            assert not thread.is_alive(), f"{thread} outlived close"
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
            *([lambda: engine.lose(worker)] if engine.capabilities.can_lose else []),
            *([engine.join] if engine.capabilities.can_join else []),
        ]
        for call in calls:
            with pytest.raises(Closed):
                call()
        assert engine.workers == ()
