"""kofn bench reaction: how soon a cancelled worker is free, and a kill -9 noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
from rich.console import Console

from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..model import Dropped, Joined, Lost, Piece, Stored
from .interleaved import ask_all
from .output import print_table

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
    return {"cancel_ms": _spread(cancelled), "kill_noticed_ms": _spread(killed), "times": times}


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


def _spread(seconds: list[float]) -> dict[str, float]:
    ms = 1e3 * np.asarray(seconds)
    return {"median": float(np.median(ms)), "max": float(ms.max())}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    columns = {"what": "", "median": ".1f", "largest": ".1f"}
    rows = [
        (what, result[key]["median"], result[key]["max"])
        for key, what in (
            ("cancel_ms", "from cancel until the busy worker is free"),
            ("kill_noticed_ms", "from kill -9 until the loss is an event"),
        )
    ]
    print_table(console, f"{result['times']} times each, ms", columns, rows)
