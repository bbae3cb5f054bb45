"""kofn demo: power iteration while workers are really killed and others join."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from .. import Cluster, KofnError, connect
from ..delays import PerUnit
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..model import ProductReport, Record
from .demo_view import Lanes, View
from .output import print_pairs, print_table, print_text
from .places import tried
from .show import NOT_SHOWN, Shown

WORKERS, THRESHOLD = 6, 3
# When, as a fraction of the run, and which worker is killed (None: one joins). Three kills leave
# just the threshold.
SCRIPT = ((0.15, 1), (0.30, 4), (0.45, 2), (0.60, None), (0.70, None), (0.80, None))
# Who is how much slower than the others. It is asked all the same, and waited for by plain workers.
SLOW = {2: 4.0}


def run(
    rounds: int,
    size: int,
    seed: int,
    pace: float,
    plot: Path | None,
    *,
    quiet: bool,
    shown: Shown = NOT_SHOWN,
) -> dict[str, Any]:
    """Run the demo and return what was measured.

    `pace`: seconds that a sixth of the rows takes a worker. Few cores stand in for six machines,
    and a round is longer with fewer of them.
    """
    if plot is not None:
        from ..report import ready

        ready(plot, "--plot")
    began = time.perf_counter()
    script = {int(at * rounds): victim for at, victim in SCRIPT}
    A, v = _problem(size, seed)
    seconds: list[float] = []
    reports: list[ProductReport] = []
    worst = 0.0
    delays = PerUnit(pace * WORKERS / size, slow=SLOW)
    engine, other = (Paced(LocalEngine(WORKERS), delays) for _ in range(2))
    with connect(engine, log=shown.log) as cluster, _Plain(connect(other), A, v, rounds) as plain:
        shown.open(cluster, wait=True)
        X = cluster.encode(A, k=THRESHOLD)
        coded, beside = (Lanes(c._driver.log, c.workers) for c in (cluster, plain.cluster))
        with View(coded, beside, rounds, quiet or shown.page) as view:
            plain.start()
            for i in range(rounds):
                if i in script:
                    strike(cluster, script[i], median(seconds))
                    plain.strike(script[i])
                start = time.perf_counter()
                y = X @ v
                seconds.append(time.perf_counter() - start)
                reports.append(X.report)
                exact = A @ v
                worst = max(worst, float(np.linalg.norm(y - exact) / np.linalg.norm(exact)))
                v = y / np.linalg.norm(y)
                view.died = plain.died
            cluster.wait_for(WORKERS)  # as many come as are killed; the last may just be starting
        log = cluster.log
    events = _events(log, reports, seconds)
    return {
        "rounds": rounds,
        "lost": sum(e["event"] == "lost" for e in events),
        "joined": sum(e["event"] == "joined" for e in events),
        "restarted": sum(report.restarted for report in reports),
        "max_relative_error": worst,
        "seconds": time.perf_counter() - began,
        "events": events,
        "workers": WORKERS,
        "threshold": THRESHOLD,
        "size": size,
        "eigenvalue": float(v @ (A @ v)),
        "plain_rounds": plain.rounds,
        "plain_died": plain.died,
        "plain_seconds_per_round": plain.seconds / max(1, plain.rounds),
        "seconds_per_round": median(seconds),
        **({} if plot is None else tried(lambda: _draw(log, plot))),
    }


class _Plain:
    """The same work on workers of which none may be missing: any 6 of 6 is no code.

    In a thread; a worker is killed here when one is killed there.
    """

    def __init__(
        self, cluster: Cluster, A: NDArray[np.float64], v: NDArray[np.float64], rounds: int
    ) -> None:
        self.cluster = cluster
        self.rounds, self.seconds, self.died = 0, 0.0, ""
        self._A, self._v, self._most = A, v, rounds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._multiply, name="kofn-plain", daemon=True)

    def start(self) -> None:
        """Begin; before that nothing is coded, and nobody waits."""
        self._thread.start()

    def _multiply(self) -> None:
        v, began = self._v, time.perf_counter()
        try:
            X = self.cluster.encode(self._A, k=WORKERS, late=None, loads="equal")
            while self.rounds < self._most and not self._over.is_set():
                v = X @ v
                v /= np.linalg.norm(v)
                self.rounds += 1
                self.seconds = time.perf_counter() - began
        except KofnError as error:
            self.died = "" if self._over.is_set() else str(error)

    def strike(self, victim: int | None) -> None:
        """Kill the worker here, too, if it is still there."""
        if victim is not None and not self.died:
            strike(self.cluster, victim, 0.0)

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for worker in self.cluster.engine.workers:  # a round may be waiting for one
            self.cluster.engine.lose(worker)
        if self._thread.is_alive():
            self._thread.join()
        self.cluster.close()


def _problem(size: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A symmetric matrix with one eigenvalue that stands out, and a first guess."""
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((size, size)) / np.sqrt(size)
    direction = rng.standard_normal(size) / np.sqrt(size)
    return half + half.T + 3.0 * np.outer(direction, direction), rng.standard_normal(size)


def strike(cluster: Cluster, victim: int | None, usual: float) -> None:
    """Do what a spot market does: in the middle of the round that is about to begin."""
    if victim is None:
        cluster.engine.join()  # not cluster.join(): the rounds go on while it starts
        return
    pid = cluster.engine.pid(victim)
    if pid is not None:  # else it is gone already
        threading.Timer(usual / 3, os.kill, (pid, signal.SIGKILL)).start()


def _events(
    log: list[Record], reports: list[ProductReport], seconds: list[float]
) -> list[dict[str, Any]]:
    """Each loss and join: the round it fell in, and the median time per round around it."""
    index = {report.round: i for i, report in enumerate(reports)}
    at, lost_or_joined = 0, []
    for record in log:
        if record.kind == "round":
            at = index[record.round]
        elif record.kind in ("lost", "joined"):
            lost_or_joined.append((at, record.kind, record.worker))
    changes = [0, *(i for i, _, _ in lost_or_joined), len(seconds)]
    rows = []
    live = WORKERS
    for n, (i, kind, worker) in enumerate(lost_or_joined):
        live += 1 if kind == "joined" else -1
        before = seconds[changes[n] + 2 : i] or seconds[:i]
        after = seconds[i + 2 : changes[n + 2]] or seconds[i:]
        rows.append(
            {
                "round": i,
                "event": kind,
                "worker": worker,
                "live_after": live,
                "rows_topped_up": reports[i].rows_topped_up,
                "ms_per_round_before": 1e3 * median(before),
                "ms_that_round": 1e3 * seconds[i],
                "ms_per_round_after": 1e3 * median(after),
            }
        )
    return rows


def _draw(log: list[Record], path: Path) -> None:
    """Draw some rounds around the first loss: a whole run has too many to see one."""
    from ..report import timeline

    zero = min(record.time for record in log if record.kind != "stored")
    rounds = [record.time - zero for record in log if record.kind == "round"]
    lost = [record.time - zero for record in log if record.kind == "lost"]
    usual = median(b - a for a, b in pairwise(rounds))
    middle = lost[0] if lost else rounds[0]
    start, end = max(0.0, middle - 5 * usual), middle + 10 * usual
    timeline(log, path, title="The rounds around the first kill", start=start, end=end)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the demo's result for a person."""
    pairs = {
        "rounds": f"{result['rounds']}",
        "workers lost (kill -9)": f"{result['lost']}",
        "workers joined": f"{result['joined']}",
        "rounds restarted": f"{result['restarted']}",
        "largest relative error against NumPy": f"{result['max_relative_error']:.1e}",
        "seconds": f"{result['seconds']:.1f}",
    }
    print_pairs(console, pairs)
    columns = {"round": "d", "what happened": "", "live after": "d"}
    columns |= dict.fromkeys(("before", "that round", "after"), ".1f")
    keys = ("live_after", "ms_per_round_before", "ms_that_round", "ms_per_round_after")
    rows = []
    for e in result["events"]:
        what = f"worker {e['worker']} {'killed' if e['event'] == 'lost' else 'joined'}"
        rows.append((e["round"], what, *(e[key] for key in keys)))
    print_table(console, "time per round (median, ms)", columns, rows)
    text = """A round took {ms:.0f} ms with coding. Plain workers took {plain_ms:.0f} ms: each of
        them has a sixth of the rows, and one is {slow:g} times as slow as the others."""
    more = {"ms": 1e3 * result["seconds_per_round"], "slow": max(SLOW.values())}
    print_text(console, text, more | {"plain_ms": 1e3 * result["plain_seconds_per_round"]})
    console.print(closing(result), highlight=False, style="bold")


def closing(result: dict[str, Any]) -> str:
    """What happened, in one line of 80 columns."""
    text = "Coded: {rounds} of {rounds} products right, {lost} workers killed. Plain: "
    how = "dead after {plain_rounds}." if result["plain_died"] else "{plain_rounds} products."
    return (text + how).format_map(result)
