"""Which modules of kofn an operation goes through, and who enters each: `python tests/walks.py`.

Modules are in the order in which they are first entered. The number says how many functions of
other modules enter it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import kofn
from kofn.engines._socket_worker import SocketWorker
from kofn.engines.local import LocalEngine
from kofn.model import Piece, Reply, Task

ROOT = str(Path(kofn.__file__).parent) + "/"
# Entered from everywhere: they are no step of the way.
ASIDE = {"errors", "events", "interrupts", "model", "delays.models"}

Visits = dict[str, int]  # module -> how many functions of other modules entered it


class Tracer:
    """Notes which modules of kofn are entered, in the order in which each is first.

    A module is entered when a function of another one calls it. What one call of a function does
    with a module is one visit, however often it calls it.
    """

    def __init__(self) -> None:
        self.visits: Visits = {}
        self.by: dict[str, list[str]] = {}
        self._seen: set[tuple[str, FrameType | None]] = set()  # frames are held: ids are not reused

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = module_of(frame.f_code)
        if event != "call" or module is None or module in ASIDE:
            return
        caller = frame.f_back
        while caller is not None and module_of(caller.f_code) in (None, *ASIDE):
            caller = caller.f_back
        entered_by = None if caller is None else module_of(caller.f_code)
        if entered_by == module or (module, caller) in self._seen:
            return
        self._seen.add((module, caller))
        self.visits[module] = self.visits.get(module, 0) + 1
        if entered_by is not None and entered_by not in self.by.setdefault(module, []):
            self.by[module].append(entered_by)


def module_of(code: CodeType) -> str | None:
    if not code.co_filename.startswith(ROOT):
        return None
    return code.co_filename.removeprefix(ROOT).removesuffix(".py").replace("/", ".")


def traced(action: Callable[[], object]) -> Tracer:
    """Trace an action, without the finalisers of what others have left."""
    gc.collect()
    gc.disable()
    tracer = Tracer()
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return tracer


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0) * x


def trace_product() -> Tracer:
    with kofn.connect("virtual", workers=4) as cluster:
        X, w = cluster.encode(np.ones((600, 8)), k=2), np.ones(8)
        _ = X @ w  # the first one lays the windows
        return traced(lambda: X @ w)


def trace_sum() -> Tracer:
    with kofn.connect("virtual", workers=4) as cluster:
        parts = cluster.parts(np.ones((600, 8)), kofn.FractionalRepetition(2))
        parts.sum(total, 1.0)
        return traced(lambda: parts.sum(total, 1.0))


def trace_sequence() -> Tracer:
    X, Y = np.ones((20, 30)), np.ones((30, 10))
    with kofn.connect("virtual", workers=4) as cluster:
        sequence = cluster.sequence(kofn.Polynomial(x=1, y=2))
        sequence.submit(X, Y).result()
        return traced(lambda: sequence.submit(X, Y).result())


def body(kept: Any, operand: Any) -> Iterator[Piece]:
    yield Piece(None, operand.sum())


def trace_engine() -> Tracer:
    """One round of the local engine: an operand, a task for each worker, replies, the end."""
    with LocalEngine(2) as engine:
        return traced(lambda: run_round(engine, 1))


def run_round(engine: LocalEngine, number: int) -> None:
    engine.broadcast(number, np.ones(3))
    for worker in engine.workers:
        engine.submit(Task(10 * number + worker, number, worker, body))
    left = set(engine.workers)
    while left:
        left -= {e.worker for e in engine.events(10.0) if isinstance(e, Reply) and e.last}
    engine.cancel(number)


class WorkerTracer(Tracer):
    """Begins when the worker asks for the next message."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.visits:
            super().__call__(frame, event, _)
        elif frame.f_code is SocketWorker.receive.__code__:
            self.visits["engines._socket_worker"] = 1


def begin_trace(kept: Any, operand: Any) -> list[Piece]:
    from walks import WorkerTracer  # by name: a body is sent with what it names

    kept["tracer"] = WorkerTracer()
    sys.setprofile(kept["tracer"])  # until end_trace
    return []


def end_trace(kept: Any, operand: Any) -> list[Piece]:
    sys.setprofile(None)
    tracer = kept["tracer"]
    return [Piece(None, (tracer.visits, tracer.by))]


def trace_worker() -> Tracer:
    """The same round in a worker, between a task that begins the trace and one that ends it."""
    with LocalEngine(2) as engine:
        worker = engine.workers[0]
        engine.submit(Task(0, 1, worker, begin_trace))
        while not engine.events(10.0):
            pass
        run_round(engine, 2)
        engine.submit(Task(1, 3, worker, end_trace))
        while True:
            for event in engine.events(10.0):
                if isinstance(event, Reply) and event.value is not None:
                    tracer = Tracer()
                    tracer.visits, tracer.by = event.value
                    return tracer


WALKS: dict[str, Callable[[], Tracer]] = {
    "One `X @ w`": trace_product,
    "One `parts.sum(fn, x)`": trace_sum,
    "One `submit(X, Y).result()`": trace_sequence,
    "A round inside an engine: the master": trace_engine,
    "A round inside an engine: a worker": trace_worker,
}


if __name__ == "__main__":
    for heading, trace in WALKS.items():
        print(f"\n{heading}")
        tracer = trace()
        for module, times in tracer.visits.items():
            print(f"  {module:28} {times:3}  by {', '.join(tracer.by.get(module, []))}")
