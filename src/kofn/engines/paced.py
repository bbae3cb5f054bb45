"""An engine whose workers take the time that a delay model says: few cores stand in for many.

A worker that sleeps needs no core. So two cores can stand in for twenty machines, as long as what
the twenty really compute is little against what they are said to take. The clock, the messages and
the master's own work stay real.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ..delays import Delays
from ..delays.models import check_delays, checked_seconds
from ..errors import BadInput
from ..model import Body, Task
from ._pace import pace
from .base import Engine, Wrapped


class Paced(Wrapped):
    """`engine`, each task of which takes the seconds that `delays` draws for it.

    Drawn at the master when the task is submitted, from one seeded stream. The task's real work
    counts towards them; work that takes longer is not made faster. A piece is there when its part
    of the seconds has passed: rows read of `task.cost`. A cancel is seen within `_pace.LOOK`.
    """

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

    @property
    def crowded(self) -> tuple[int, ...]:
        return ()  # each worker takes the time that it is given

    def submit(self, task: Task) -> None:
        timing = self._delays.timing(self._rng, task.worker, task.round, task.cost)
        checked_seconds(self._delays, sum(timing))
        body = self._bodies.setdefault(id(task.body), partial(pace, task.body))
        args = (timing, task.cost, *task.args)
        self.engine.submit(task._replace(body=body, args=args))
