"""Rounds of several kinds in turn, so that a noisy minute hits them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster
from ...engines.base import Engine
from ...model import Body, Piece, Reply, Task
from .frame import Figure

BLOCK = 50  # rounds of one kind before the next has its turn
OPERANDS = {"8 B": 1, "800 KB": 100_000}  # numbers that a vector has
Block = Callable[[int], list[float]]  # rounds in, seconds of each out
OnStep = Callable[..., None]  # called with advance=, the rounds done


def timed(call: Callable[..., Any], *operands: Any) -> Block:
    """Return how to time so many calls here."""

    def block(rounds: int) -> list[float]:
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            call(*operands)
            seconds.append(time.perf_counter() - start)
        return seconds

    return block


def rest(spent: Callable[[], float] = time.process_time, seconds: float = 0.03) -> None:
    """Return when nearly nothing was spent of the processors for so long, by this process if not
    told otherwise: NumPy's threads go on burning cores after a call."""
    now, before = spent(), -1.0
    while now - before > seconds / 10:
        time.sleep(seconds)
        now, before = spent(), now


class Turns:
    """Seconds of each round, by kind and turn."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.turns: dict[str, list[list[float]]] = {name: [] for name in kinds}

    def seconds(self, kind: str) -> NDArray[np.float64]:
        """Of every round of a kind."""
        return np.concatenate(self.turns[kind])

    def median(self, kind: str) -> float:
        """Seconds of a round."""
        return float(np.median(self.seconds(kind)))

    def row(self, kind: str) -> dict[str, Any]:
        """For details."""
        seconds = self.seconds(kind)
        p90 = 1e6 * float(np.quantile(seconds, 0.9))
        return {"median_us": 1e6 * self.median(kind), "p90_us": p90, "rounds": len(seconds)}

    def figure(self, one: str, other: str, of: str, unit: str = "µs") -> Figure:
        """The median of one kind, the other's beside it, and how the ratio of a turn spreads."""
        pairs = zip(self.turns[one], self.turns[other], strict=True)
        ratios = [float(np.median(a) / np.median(b)) for a, b in pairs]
        low, high = (float(np.quantile(ratios, q)) for q in (0.1, 0.9))
        scale = {"µs": 1e6, "ms": 1e3, "s": 1.0}[unit]
        values = (scale * self.median(kind) for kind in (one, other))
        return Figure(next(values), unit, next(values), of, (low, high))


def interleaved(
    kinds: Mapping[str, Block],
    rounds: int,
    most: int = BLOCK,
    on_step: OnStep = lambda advance: None,
    warm: int | None = None,
) -> Turns:
    """As many rounds of each kind, at most `most` before the next has its turn.

    There are at least five turns where there are five rounds: the ratio has a spread then. `warm`
    rounds of each come before, which do not count (default: as many as in a turn).
    """
    times = Turns(kinds)
    most = min(most, max(1, rounds // 5))
    for block in kinds.values():  # warm caches, mappings and branch predictors
        block(most if warm is None else warm)
    for done in range(0, rounds, most):
        now = min(most, rounds - done)
        for name, block in kinds.items():
            times.turns[name].append(block(now))
        on_step(advance=now)
    return times


def ask_all(
    engine: Engine, ids: Iterator[int], body: Body, operand: Any = None
) -> tuple[int, dict[int, Any]]:
    """Give every worker a task of a new round; return the round, and a reply of each worker."""
    round = next(ids)
    if operand is not None:
        engine.broadcast(round, operand)
    for worker in engine.workers:
        engine.submit(Task(next(ids), round, worker, body))
    replies: dict[int, Any] = {}
    while len(replies) < len(engine.workers):
        for event in engine.events(10.0):
            if isinstance(event, Reply) and event.round == round:
                replies[event.worker] = event.value
    return round, replies


def broadcast(engine: Engine, rounds: int) -> Turns:
    """The price of a large operand: every worker adds it all up and replies with the sum."""
    ids = count(1)

    def touch(operand: NDArray[np.float64]) -> None:
        round, sums = ask_all(engine, ids, total, operand)
        assert set(sums.values()) == {len(operand)}
        engine.cancel(round)

    return interleaved(
        {name: timed(touch, np.ones(size)) for name, size in OPERANDS.items()}, rounds
    )


def total(kept: Mapping[str, Any], operand: NDArray[np.float64]) -> tuple[Piece]:
    """Body: read the whole operand."""
    return (Piece(None, float(operand.sum())),)


def cpu(cluster: Cluster) -> tuple[float, float]:
    """CPU time in µs: of this process, and of it and its workers (Linux; elsewhere its own)."""
    own = 1e6 * time.process_time()
    pids = [cluster.engine.pid(worker) for worker in cluster.workers]
    files = [Path(f"/proc/{pid}/schedstat") for pid in pids]
    return own, own + sum(int(f.read_text().split()[0]) / 1e3 for f in files if f.exists())
