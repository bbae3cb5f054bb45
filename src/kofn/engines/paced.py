"""An engine whose workers take the time that a delay model says: few cores stand in for many.

A worker that sleeps needs no core. So two cores can stand in for twenty machines, as long as what
the twenty really compute is little against what they are said to take. The clock, the messages and
the master's own work stay real.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..delays import Delays
from ..delays.models import check_delays, checked_seconds
from ..errors import BadInput
from ..model import Body, Last, Piece, Task
from .base import Engine, Wrapped

LOOK = 0.008  # seconds between two looks of a waiting worker at the current round


class Paced(Wrapped):
    """`engine`, each task of which takes the seconds that `delays` draws for it.

    Drawn at the master when the task is submitted, from one seeded stream. The task's real work
    counts towards them; work that takes longer is not made faster. A piece is there when its part
    of the seconds has passed: rows read of `task.cost`. A cancel is seen within LOOK seconds.
    """

    name: ClassVar[str] = "paced"

    def __init__(self, engine: Engine, delays: Delays, seed: int = 0) -> None:
        if engine.capabilities.virtual_time:
            raise BadInput(
                f"Paced makes workers really wait; engine {engine.name!r} has a simulated clock. "
                f"Give it the delays itself: VirtualEngine(n, delays=...)."
            )
        super().__init__(engine)
        self.capabilities = replace(engine.capabilities, given_time=True)
        self._delays = check_delays(delays)
        self._rng = np.random.default_rng(seed)
        # One object per body: engines send a body once, and know it by identity.
        self._bodies: dict[int, Body] = {}

    def submit(self, task: Task) -> None:
        timing = self._delays.timing(self._rng, task.worker, task.round, task.cost)
        checked_seconds(self._delays, sum(timing))
        body = self._bodies.setdefault(id(task.body), partial(_pace, task.body))
        args = (timing, task.cost, *task.args)
        self.engine.submit(task._replace(body=body, args=args))


def _pace(
    body: Body, kept: Any, operand: Any, timing: tuple[float, float], cost: float, *args: Any
) -> Iterator[Piece]:
    """Run a body, and hold back each of its pieces until it is due."""
    wait, seconds = timing
    yield from _until(time.perf_counter() + wait)
    start = time.perf_counter()
    read = 0
    pieces = body(kept, operand, *args)
    left = len(pieces) if isinstance(pieces, Sized) else -1
    for piece in pieces:
        rows, left = Piece(*piece).read, left - 1
        read += rows
        # A piece that counts no rows may hold all the work: it waits for the end.
        part = min(1.0, read / cost) if rows and cost > 0 else 1.0
        yield from _until(start + part * seconds)
        # Where the body would have ended without a message of its own, so does this.
        yield Last(*piece) if left == 0 and part == 1.0 else piece
    yield from _until(start + seconds)


def _until(due: float) -> Iterator[Piece]:
    """Sleep in steps; after each, the worker may look whether the round is stale."""
    while (left := due - time.perf_counter()) > 0:
        time.sleep(min(left, LOOK))
        yield Piece(None, None)
