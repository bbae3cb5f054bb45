"""The settings: what goes wrong, the same for every peer.

Delays are drawn once for (round, worker) and slept inside the task. Freezes and kills are signals
to worker processes, sent from outside at a third of what the work takes the peer undisturbed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....delays import Delays
from .works import WORKERS, Floats

MEAN = 0.02  # seconds that a task is late, in the mean
DRAWN = 1000  # rounds; then they repeat


@dataclass(frozen=True)
class Setting:
    """Delays inside tasks by name, or how many workers get a signal, and for how long."""

    delays: str | None = None
    struck: int = 0
    frozen: float | None = None  # seconds; None: killed


SETTINGS = {
    "quiet": Setting(),
    "exponential": Setting("exponential"),
    "lambda": Setting("lambda"),
    "one frozen 2 s": Setting(struck=1, frozen=2.0),
    "one killed": Setting(struck=1),
    "half killed": Setting(struck=3),
}


def draw(folder: Path, recorded: Floats | None) -> None:
    """Write the delays of each kind; `recorded`: seconds of Lambda workers (rounds, workers)."""
    rng = np.random.default_rng(3)
    np.save(folder / "exponential.npy", rng.exponential(MEAN, (DRAWN, WORKERS)))
    if recorded is None:
        return
    seconds = np.asarray(recorded, dtype=np.float64)
    rounds, workers = len(seconds), seconds.shape[1] // WORKERS * WORKERS
    # Every group of six workers is a stretch of rounds; a wait is what is above the quickest reply.
    groups = seconds[:, :workers].reshape(rounds, -1, WORKERS).transpose(1, 0, 2)
    waits = groups.reshape(-1, WORKERS) - seconds.min()
    np.save(folder / "lambda.npy", waits * (MEAN / waits.mean()))


def delays(folder: Path, setting: Setting) -> Floats:
    """Seconds by round and worker; zeros where there are none."""
    if setting.delays is None:
        return np.zeros((1, WORKERS))
    seconds: Floats = np.load(folder / f"{setting.delays}.npy")
    return seconds


class Table(Delays):
    """The same delays, for kofn's workers."""

    def __init__(self, seconds: Floats) -> None:
        self.table = seconds.tolist()

    def timing(
        self, rng: np.random.Generator, worker: int, round: int, cost: float
    ) -> tuple[float, float]:
        """All of it is a wait before the work."""
        return self.seconds(rng, worker, round, cost), 0.0

    def seconds(self, rng: np.random.Generator, worker: int, round: int, cost: float) -> float:
        seconds: float = self.table[round % len(self.table)][worker % WORKERS]
        return seconds


def strike(setting: Setting, pids: Sequence[int], after: float) -> threading.Thread | None:
    """Send the signals of a setting after so many seconds, from a thread."""
    if not setting.struck:
        return None
    chosen = [pids[i] for i in (1, 3, 4)][: setting.struck] if len(pids) > 4 else list(pids[:1])

    def act() -> None:
        time.sleep(after)
        if setting.frozen is None:
            _signal(chosen, signal.SIGKILL)
            return
        _signal(chosen, signal.SIGSTOP)
        time.sleep(setting.frozen)
        _signal(chosen, signal.SIGCONT)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
