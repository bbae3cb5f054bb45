"""What disturbs the work: kill -9, SIGSTOP, joins, notices; and Ctrl-C for the master itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..cluster import Cluster
from ..engines._processes import Process
from ..errors import CannotDo, Closed, UnknownWorker
from .work import Bench

KINDS = ("kills", "freezes", "interrupts", "joins", "notices", "errors", "memory")
PAUSE = 0.25  # seconds between two strikes, on average
FROZEN = 2  # workers at a time
LOST_AFTER = 6.0  # seconds of silence after which a cluster under chaos gives a worker up


class Interrupts:
    """Ctrl-C at random moments: a real SIGINT to this process, by another one. Main thread only.

    What is struck is what runs under `run`; between two of those a SIGINT does nothing. `stopped`:
    a user has pressed Ctrl-C, which the other process feels too.
    """

    def __init__(self, bench: Bench) -> None:
        self.stopped = False
        self._bench, self._dice, self._armed = bench, bench.dice, False
        self._before = signal.signal(signal.SIGINT, self._strike)
        program = Path(__file__).with_name("_ctrl_c.py")
        command = [sys.executable, "-I", "-S", str(program), str(os.getpid())]
        self._sender = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def _strike(self, _: int, __: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def run(self, name: str, action: Callable[[], Any]) -> tuple[bool, Any]:
        """Do it; return whether it was interrupted, and what it gave."""
        usual = self._bench.usual.get(name)
        if usual is None or self._dice.random() < 0.4:
            return self._bench.undisturbed(name, action)
        self._order(self._moment(usual))
        try:
            try:
                self._armed = True
                value = action()
            finally:
                self._armed = False
        except KeyboardInterrupt:
            return True, None
        return False, value

    def _moment(self, usual: float) -> float:
        """In how many seconds to strike what usually takes so many."""
        if self._dice.random() < 0.7:
            return self._dice.uniform(1e-5, 1.5 * usual)  # most of them while it is at work
        return float(10 ** self._dice.uniform(-5, -2.3))

    def _order(self, after: float) -> None:
        assert self._sender.stdin
        try:
            self._sender.stdin.write(f"{after}\n")
            self._sender.stdin.flush()
        except BrokenPipeError:
            self.stopped = True

    def close(self) -> None:
        """Send no more, and have SIGINT mean what it meant before."""
        assert self._sender.stdin
        with suppress(BrokenPipeError):
            self._sender.stdin.close()
        self._sender.wait()
        signal.signal(signal.SIGINT, self._before)


class Striker:
    """A thread that strikes workers at random, and counts what it did.

    It leaves most of them alone: a kill only while at most one is missing, at most two frozen at a
    time. But now and then all are told to leave at once. `seen`: every process that was a worker.
    """

    def __init__(
        self, cluster: Cluster, workers: int, kinds: Collection[str], dice: random.Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.seen: set[Process] = set()
        self.problem: BaseException | None = None
        self._cluster, self._workers, self._dice = cluster, workers, dice
        can = cluster.engine.capabilities
        acts: dict[str, tuple[Callable[[], None], int]] = {
            "kills": (self._kill, 3 if can.processes or can.can_lose else 0),
            "freezes": (self._freeze, 8 if can.processes else 0),
            "joins": (self._join, 1 if can.can_join else 0),
            "notices": (self._announce, 4),
        }
        self._acts = [act for kind, (act, n) in acts.items() if kind in kinds for _ in range(n)]
        self._frozen: dict[Process, float] = {}  # and when it goes on
        self._leaving: dict[int, tuple[float, bool]] = {}  # who leaves: until when; by death?
        self._kills = "kills" in kinds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kofn-chaos-strikes", daemon=True)

    def __enter__(self) -> Striker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._thaw(float("inf"))
        with suppress(Closed):
            self._depart(float("inf"), kills=False)

    def processes(self) -> dict[int, Process]:
        """The workers that are processes of this machine."""
        engine = self._cluster.engine

        def look() -> dict[int, Process]:
            pids = {worker: engine.pid(worker) for worker in engine.workers}
            return {w: Process.of(pid) for w, pid in pids.items() if pid is not None}

        processes: dict[int, Process] = self._cluster._driver.call(look)
        self.seen.update(processes.values())
        return processes

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while self._acts and not self._over.is_set():
                due += self._dice.expovariate(1 / PAUSE)
                while not self._over.is_set() and (left := due - time.monotonic()) > 0:
                    ends = [*self._frozen.values(), *(end for end, _ in self._leaving.values())]
                    next_end = min(ends, default=float("inf")) - time.monotonic()
                    self._over.wait(max(0.001, min(left, next_end)))
                    self._thaw(time.monotonic())
                    self._depart(time.monotonic(), self._kills)
                if not self._over.is_set():
                    self._dice.choice(self._acts)()
        except BaseException as error:
            if not (isinstance(error, Closed) and self._over.is_set()):
                self.problem = error

    def _kill(self) -> None:
        count = 2 if self._dice.random() < 0.1 else 1
        those = sorted(self.processes()) or self._cluster.workers
        self._end(self._dice.sample(those, min(count, len(those))))

    def _end(self, victims: Iterable[int]) -> None:
        """Kill these, unless more than one is missing already."""
        there = self.processes()
        if len(self._cluster.workers) < self._workers - 1:
            return
        for victim in victims:
            if victim in there:
                self.counts["kills"] += there[victim].send(signal.SIGKILL)
            elif not there and self._cluster.engine.capabilities.can_lose:
                # Where only some are elsewhere, these are let be: others might not come there.
                with suppress(UnknownWorker, CannotDo):
                    self._cluster.lose(victim)
                    self.counts["kills"] += 1

    def _announce(self) -> None:
        """Say that one will be gone, or all: it goes at about that time, or stays, or is silent."""
        live = self._cluster.workers
        count = len(live) if self._dice.random() < 0.05 else 1
        for worker in self._dice.sample(live, min(count, len(live))):
            seconds = 10 ** self._dice.uniform(-2.5, 0.5)
            if self._notify(worker, seconds) and self._dice.random() < 0.9:
                end = time.monotonic() + seconds * self._dice.uniform(0.5, 1.2)
                self._leaving[worker] = end, self._dice.random() < 0.5

    def _notify(self, worker: int, seconds: float) -> bool:
        """Whether it is still there to be told."""
        with suppress(UnknownWorker):
            self._cluster.announce(worker, seconds, "chaos")
            self.counts["notices"] += 1
            return True
        return False

    def _depart(self, now: float, kills: bool) -> None:
        """Kill those whose notice was true, and take back the others'."""
        for worker, (end, true) in list(self._leaving.items()):
            if end <= now:
                del self._leaving[worker]
                self._end([worker]) if true and kills else self._notify(worker, float("inf"))

    def _freeze(self) -> None:
        there = [process for process in self.processes().values() if process not in self._frozen]
        if not there or len(self._frozen) >= FROZEN:
            return
        long = self._dice.random() < 0.02  # so long that it is given up
        seconds = LOST_AFTER + 2 if long else 10 ** self._dice.uniform(-2, 0.2)
        victim = self._dice.choice(there)
        if victim.send(signal.SIGSTOP):
            self._frozen[victim] = time.monotonic() + seconds
            self.counts["freezes"] += 1

    def _thaw(self, now: float) -> None:
        for process in [p for p, ends in self._frozen.items() if ends <= now]:
            process.send(signal.SIGCONT)
            del self._frozen[process]

    def _join(self) -> None:
        if len(self._cluster.workers) <= self._workers:
            driver = self._cluster._driver
            driver.call(driver.order)
            self.counts["joins"] += 1
