"""Connects with as many workers as its argument says, and prints what comes of it."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import kofn
from kofn.model import Piece, Reply, Task


class Point:
    def __init__(self, x: float) -> None:
        self.x = x


def moved(point: Point) -> float:
    return point.x + 1


def body(kept: object, operand: Any, point: Point) -> list[Piece]:
    return [Piece(None, Point(moved(point) + float(np.sum(operand))))]


try:
    cluster = kofn.connect("mpi", workers=int(sys.argv[1]) if sys.argv[1:] else None)
except kofn.KofnError as error:
    print(f"{type(error).__name__}: {error}")
    raise SystemExit(0) from None

# Only the master comes here; names of __main__ must mean the same over there.
print("workers", cluster.workers)
engine = cluster.engine
engine.broadcast(1, np.ones(5))
engine.submit(Task(0, 1, 0, body, (Point(3.0),)))
(reply,) = engine.events(60)
assert isinstance(reply, Reply), reply
assert type(reply.value) is Point, reply
print("moved", reply.value.x)
cluster.close()

with kofn.connect("mpi", workers=1) as again:
    print("again", again.workers, os.environ.get("OMPI_COMM_WORLD_SIZE"))
