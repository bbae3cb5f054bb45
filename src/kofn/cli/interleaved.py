"""Rounds of several kinds in turn, so that a noisy minute hits them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines.base import Engine
from ..model import Body, Piece, Reply, Task

BLOCK = 50  # rounds of one kind before the next has its turn
LARGE = 100_000  # numbers: an 800 KB vector
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


def interleaved(
    kinds: Mapping[str, Block],
    rounds: int,
    most: int = BLOCK,
    on_step: OnStep = lambda advance: None,
) -> dict[str, Any]:
    """As many rounds of each kind, at most `most` before the next has its turn: µs by kind."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    most = min(most, rounds)
    for block in kinds.values():  # warm caches, mappings and branch predictors
        block(most)
    for done in range(0, rounds, most):
        now = min(most, rounds - done)
        for name, block in kinds.items():
            times[name] += block(now)
        on_step(advance=now)
    return {
        name: {
            "median_us": 1e6 * float(np.median(seconds)),
            "p90_us": 1e6 * float(np.quantile(seconds, 0.9)),
            "rounds": len(seconds),
        }
        for name, seconds in times.items()
    }


def ratio(times: Mapping[str, Any], one: str, other: str) -> float:
    """The median of one kind over that of another."""
    return float(times[one]["median_us"] / times[other]["median_us"])


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


def broadcast(engine: Engine, rounds: int) -> dict[str, Any]:
    """The price of a large operand: every worker adds it all up and replies with the sum."""
    ids = count(1)

    def touch(operand: NDArray[np.float64]) -> None:
        round, sums = ask_all(engine, ids, total, operand)
        assert set(sums.values()) == {len(operand)}
        engine.cancel(round)

    kinds = {"800_KB": timed(touch, np.ones(LARGE)), "8_B": timed(touch, np.ones(1))}
    result = interleaved(kinds, rounds)
    return result | {"workers": len(engine.workers), "ratio": ratio(result, "800_KB", "8_B")}


def total(kept: Mapping[str, Any], operand: NDArray[np.float64]) -> tuple[Piece]:
    """Body: read the whole operand."""
    return (Piece(None, float(operand.sum())),)
