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
    cannot start a worker, say) is raised at the end of the block. With scale None the trace's
    clock stands still but for `advance`.
    """

    def __init__(
        self, cluster: Cluster, trace: SpotTrace, scale: float | None, shares: int
    ) -> None:
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
        self._turn = threading.Condition()
        self._clock, self._reached = 0.0, 0.0  # where the clock stands; what has been done of it
        self._thread = threading.Thread(target=self._run, name="kofn-market", daemon=True)

    def advance(self, seconds: float) -> None:
        """Set the clock of the trace forward to `seconds`, when what was due before is done.

        What is due until then happens from now on, while the caller goes on.
        """
        self.settle()
        with self._turn:
            self._clock = max(self._clock, seconds)
            self._turn.notify_all()

    def settle(self) -> None:
        """Wait until all that is due by `advance` has happened."""
        with self._turn:
            self._turn.wait_for(lambda: self._reached >= self._clock or not self._thread.is_alive())

    def _run(self) -> None:
        nodes: dict[str, int] = {}
        waiting = iter(self._cluster.workers)
        began = time.monotonic()
        try:
            for event in self._trace.events:
                if not self._due(event.time, began):
                    return
                if event.added and event.time <= 0:
                    nodes[event.node] = next(waiting)
                else:
                    self._happen(event.added, event.node, nodes)
            self._due(float("inf"), began)
        except KofnError as error:
            if not self._stop.is_set():
                self.problem = error
        finally:
            with self._turn:
                self._reached = float("inf")
                self._turn.notify_all()

    def _due(self, due: float, began: float) -> bool:
        """Wait until the clock has reached `due`; whether it will."""
        if self._scale is not None:
            if due == float("inf"):
                return False
            left = began + due / self._scale - time.monotonic()
            return not self._stop.wait(max(0.0, left))
        with self._turn:
            while due > self._clock and not self._stop.is_set():
                self._reached = self._clock
                self._turn.notify_all()
                self._turn.wait()
        return not self._stop.is_set()

    def _happen(self, added: bool, node: str, nodes: dict[str, int]) -> None:
        cluster = self._cluster
        if added:
            nodes[node] = cluster.join()
            self.added.append(nodes[node])
        else:
            worker = nodes.pop(node)
            if worker in cluster.workers:
                cluster.lose(worker)
                self.killed.append(worker)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._turn:
            self._stop.set()
            self._turn.notify_all()
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
