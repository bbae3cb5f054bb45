"""A master without a guard and with busy workers, which ends in the way its argument says.

`python engine_ends.py ENGINE exit`, or `wait` for a signal. Prints all the processes below it, then
what a worker made of functions and objects of `__main__`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import kofn
from kofn.model import Build, Piece, Reply, Stored, Task
from kofn.testing._bodies import toil
from kofn.testing.engines import descendants


class Point:
    def __init__(self, x: float) -> None:
        self.x = x


def moved(point: Point) -> float:
    return point.x + 1


def body(kept: Any, operand: Any, point: Point, function: Any) -> Iterator[Piece]:
    if name == "ray":  # known by its descent alone
        os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    yield Piece(None, Point(function(point) + kept["key"] + operand[0]))


name, how = sys.argv[1:]
engine = kofn.connect(name, 2, address="local" if name == "ray" else None).engine
engine.put(0, "key", Build(lambda: 100))
engine.broadcast(1, np.ones(5))
engine.submit(Task(0, 1, 0, body, (Point(3.0), moved)))
engine.submit(Task(1, 1, 1, toil, (10**9,)))
while True:
    for event in engine.events(60):
        assert isinstance(event, Reply | Stored), event
        if isinstance(event, Reply) and event.task == 0 and event.value is not None:
            assert type(event.value) is Point, type(event.value)
            print(*sorted(descendants() or ()), flush=True)
            print(event.value.x, flush=True)
            if how == "exit":
                raise SystemExit  # and no close: the engine ends with the process
