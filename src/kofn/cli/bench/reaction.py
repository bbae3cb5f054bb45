"""kofn bench reaction: how soon a cancelled worker is free, and a kill -9 noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from ...engines.base import Engine
from ...engines.local import LocalEngine
from ...model import Dropped, Joined, Lost, Piece, Stored
from .frame import Figure
from .turns import ask_all, timed

WORKERS = 2
SHARE = np.ones((2000, 2000))


def run(times: int) -> dict[str, Any]:
    """Measure on real processes that are busy with products of about ten milliseconds a slice."""
    cancelled, killed = [], []
    ids = count(1)
    with LocalEngine(WORKERS) as engine:
        for worker in engine.workers:
            _keep(engine, worker)
        for _ in range(times):
            round, _ = ask_all(engine, ids, busy)
            start = time.perf_counter()
            engine.cancel(round)
            _until(engine, Dropped, engine.workers[0])
            cancelled.append(time.perf_counter() - start)
            _drain(engine)
        for _ in range(times):
            round, _ = ask_all(engine, ids, busy)
            victim = engine.workers[0]
            pid = engine.pid(victim)
            assert pid is not None
            start = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            _until(engine, Lost, victim)
            killed.append(time.perf_counter() - start)
            engine.cancel(round)
            new = engine.join()
            _until(engine, Joined, new)
            _keep(engine, new)
            _drain(engine)
    return {
        "figures": {
            "from cancel until the busy worker is free": _figure(cancelled, *_slice()),
            "from kill -9 until the loss is an event": _figure(killed, *_bare_kill(times)),
        }
    }


def _keep(engine: Engine, worker: int) -> None:
    engine.put(worker, "share", SHARE)
    _until(engine, Stored, worker)


def busy(kept: Mapping[str, Any], operand: Any) -> Iterator[Piece]:
    """Body: slices without end in sight, the first of them announced."""
    share = kept["share"]
    w = np.ones(share.shape[1])
    yield Piece(0, float((share @ w)[0]))
    for _ in range(100_000):
        for _ in range(4):  # four passes over 32 MB: about ten milliseconds
            share @ w
        yield Piece(None, None)


def _until(engine: Engine, kind: type, worker: int) -> None:
    limit = time.perf_counter() + 30
    while time.perf_counter() < limit:
        events: list[Any] = [event for event in engine.events(1.0) if isinstance(event, kind)]
        if any(event.worker == worker for event in events):
            return
    raise AssertionError("nothing within 30 s")


def _drain(engine: Engine) -> None:
    while engine.events(0.1):
        pass


def _slice() -> tuple[float, str]:
    w = np.ones(SHARE.shape[1])
    return float(np.median(timed(lambda: [SHARE @ w for _ in range(4)])(20))), "a slice of its work"


def _bare_kill(times: int) -> tuple[float, str]:
    took = []
    for _ in range(times):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            start = time.perf_counter()
            process.kill()
            process.wait()
            took.append(time.perf_counter() - start)
    return float(np.median(took)), "waitpid of a bare process"


def _figure(seconds: list[float], limit: float, of: str) -> Figure:
    return Figure(1e3 * float(np.median(seconds)), "ms", 1e3 * limit, of)
