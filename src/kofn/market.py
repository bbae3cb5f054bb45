"""A spot market for a real cluster: replays a recorded trace by killing and adding workers."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple, Self

from .checks import number
from .cluster import Cluster
from .delays.traces import Event, SpotTrace
from .errors import BadInput, MarketOver, TooFewWorkers

LOOK = 0.01  # seconds between two looks for what the market asks of the engine's caller


class Market:
    """Kills and adds workers in a thread of its own, as a trace says, `scale` times as fast.

    Use it in a `with` block around the work. Workers of the cluster stand for the nodes of time
    zero, in order. What it did is in `killed` and `added`. An error in the thread (the engine
    cannot start a worker, say) is raised at the end of the block, and until then no round waits
    for joiners. With scale None the trace's clock stands still but for `advance`. need: workers
    that the work cannot do without. When fewer are left and the trace has no more to come, rounds
    do not wait for joiners either: they raise TooFewWorkers, and the block MarketOver. notice: so
    many seconds of the trace ahead each loss is announced; 0 for as the trace says.
    """

    def __init__(
        self,
        cluster: Cluster,
        trace: SpotTrace,
        scale: float | None,
        shares: int,
        need: int = 0,
        notice: float = 0.0,
    ) -> None:
        number(notice, "notice", ">= 0", "It counts seconds of the trace; 0 is none.")
        check(trace, shares, need, scale)
        if cluster.keep is not None:
            raise BadInput(
                f"a market decides which workers leave and come; this cluster was connected with "
                f"keep={cluster.keep}, which orders workers too. Connect without keep."
            )
        workers = cluster.workers
        if len(workers) != trace.at_start:
            raise BadInput(
                f"{trace.name} starts with {trace.at_start} nodes, and the cluster with "
                f"{len(workers)} workers. Connect with workers={trace.at_start}."
            )
        self.killed: list[int] = []
        self.added: list[int] = []
        self.problem: BaseException | None = None
        self.played = 0.0  # seconds of the trace, when it is over
        self._cluster, self._trace, self._scale, self._need = cluster, trace, scale, need
        self._script = script(trace, notice)
        self._last = max((i for i, s in enumerate(self._script) if s.event.added), default=-1)
        self._wait = cluster._driver.wait
        self._over = False  # too few are left, and nobody comes
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
        while not self._settled():
            # Called from within a round (on_round), this thread is the engine's only caller, and
            # it is for it to do what the market asks for.
            self._cluster._driver.settle()

    def _settled(self) -> bool:
        with self._turn:
            return self._turn.wait_for(
                lambda: self._reached >= self._clock or not self._thread.is_alive(), LOOK
            )

    def _run(self) -> None:
        nodes: dict[str, int] = {}
        waiting = iter(self._cluster.workers)
        began = time.monotonic()
        try:
            for i, (due, event) in enumerate(self._script):
                if not self._due(due, began):
                    return
                if event.added and event.time <= 0:
                    nodes[event.node] = next(waiting)
                elif due < event.time:
                    scale = self._scale or 1.0  # with a clock that is set by hand, a second each
                    now = time.monotonic() if self._scale is None else began + due / scale
                    self._announce(nodes[event.node], now + (event.time - due) / scale)
                else:
                    self._happen(event.added, event.node, nodes)
                left = min(len(nodes), len(self._cluster.workers))
                if i >= self._last and left < self._need:
                    self._over = True
                    self._nobody_comes()
            self._due(float("inf"), began)
        except Exception as error:  # of whatever kind: it must not end with the thread
            if not self._stop.is_set():
                self.problem = error
                self._nobody_comes()
        finally:
            past = (time.monotonic() - began) * self._scale if self._scale else self._clock
            self.played = min(past, self._trace.seconds)
            with self._turn:
                self._reached = float("inf")
                self._turn.notify_all()

    def _nobody_comes(self) -> None:
        # A round that is waiting now looks at this again within a fraction of a second.
        self._cluster._driver.wait = 0.0

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
        cluster, driver = self._cluster, self._cluster._driver
        if added:
            nodes[node] = driver.call(driver.order)
            self.added.append(nodes[node])
        else:
            worker = nodes.pop(node)
            cluster._await_joined(worker)
            if worker in cluster.workers:
                driver.call(lambda: cluster.engine.lose(worker))
                self.killed.append(worker)
        if self._scale is None:
            self._await()

    def _await(self) -> None:
        """Wait until all that was done has been noticed.

        By a clock of its own the market does not: the work goes on while a worker starts.
        """
        for worker in self.added:
            self._cluster._await_joined(worker)
        for worker in self.killed:
            self._cluster._driver.await_lost(worker)

    def _announce(self, worker: int, end: float) -> None:
        """Say that a worker will be gone at this time of our clock."""
        cluster = self._cluster

        def announce() -> None:
            # What is left now: it may have taken a moment until a thread drove the engine.
            cluster.engine.announce(worker, max(0.0, end - time.monotonic()), "the market")

        if worker in cluster.workers:
            cluster._driver.call(announce)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._turn:
            self._stop.set()
            self._turn.notify_all()
        self._thread.join(30.0)
        self._cluster._driver.wait = self._wait
        if error is None and self.problem is None:
            self._await()
        # TooFewWorkers may be what the problem led to, and then is not what to say.
        if self.problem is not None and (error is None or isinstance(error, TooFewWorkers)):
            raise self.problem
        if self._over and isinstance(error, TooFewWorkers):
            raise MarketOver(error.live, error.need, error.waited, error.lost) from None


class Step(NamedTuple):
    """An event of a trace, or (`due` before its time) the notice of it."""

    due: float
    event: Event


def script(trace: SpotTrace, notice: float) -> list[Step]:
    """The events of a trace in order, each loss after its notice if there is one."""
    steps: list[Step] = []
    came: dict[str, float] = {}
    for event in trace.events:
        if event.added:
            came[event.node] = event.time
        elif (ahead := notice or event.notice) and came[event.node] < event.time:
            steps.append(Step(max(came[event.node], event.time - ahead), event))
        steps.append(Step(event.time, event))
    return sorted(steps, key=lambda step: (step.due, step.due < step.event.time))


def check(trace: SpotTrace, shares: int, need: int = 0, scale: float | None = None) -> None:
    """Raise BadInput where a trace does not go with a code, or time would stand still."""
    if scale is not None:
        number(
            scale, "the scale of a trace, its seconds per second,", "> 0", "Use 1 for real time."
        )
    if trace.most < need:
        raise BadInput(
            f"{need} workers must be live at some time; {trace.name} never has more than "
            f"{trace.most}. Use a smaller k, or another trace."
        )
    if trace.most > shares:
        raise BadInput(
            f"every worker needs a share of its own; {trace.name} has up to {trace.most} nodes "
            f"alive, and the code {shares} shares. Use --workers {trace.most}, or a shorter piece "
            f"of the trace."
        )
