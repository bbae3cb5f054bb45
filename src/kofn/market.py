"""A spot market for a real cluster: replays a recorded trace by killing and adding workers."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from .cluster import Cluster
from .delays.traces import SpotTrace
from .errors import BadInput, KofnError


class Market:
    """Kills and adds workers in a thread of its own, as a trace says, `scale` times as fast.

    Use it in a `with` block around the work. Workers of the cluster stand for the nodes of time
    zero, in order. What it did is in `killed` and `added`. An error in the thread (the engine
    cannot start a worker, say) is raised at the end of the block.
    """

    def __init__(self, cluster: Cluster, trace: SpotTrace, scale: float, shares: int) -> None:
        check(trace, shares)
        workers = cluster.workers
        if len(workers) != trace.at_start:
            raise BadInput(
                f"{trace.name} starts with {trace.at_start} nodes, and the cluster with "
                f"{len(workers)} workers. Connect with workers={trace.at_start}."
            )
        self.killed: list[int] = []
        self.added: list[int] = []
        self.problem: BaseException | None = None
        self._cluster, self._trace, self._scale = cluster, trace, scale
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kofn-market", daemon=True)

    def _run(self) -> None:
        cluster = self._cluster
        nodes: dict[str, int] = {}
        waiting = iter(cluster.workers)
        began = time.monotonic()
        try:
            for event in self._trace.events:
                due = began + event.time / self._scale
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    return
                if event.added and event.time <= 0:
                    nodes[event.node] = next(waiting)
                elif event.added:
                    nodes[event.node] = cluster.join()
                    self.added.append(nodes[event.node])
                else:
                    worker = nodes.pop(event.node)
                    if worker in cluster.workers:
                        cluster.lose(worker)
                        self.killed.append(worker)
        except KofnError as error:
            if not self._stop.is_set():
                self.problem = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(30.0)
        if self.problem is not None and error is None:
            raise self.problem


def check(trace: SpotTrace, shares: int) -> None:
    """Raise BadInput where a trace has more nodes alive than a code has shares."""
    if trace.most > shares:
        raise BadInput(
            f"every worker needs a share of its own; {trace.name} has up to {trace.most} nodes "
            f"alive, and the code {shares} shares. Use --workers {trace.most}, or a shorter piece "
            f"of the trace."
        )
