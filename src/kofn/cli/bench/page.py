"""kofn bench page: what a page costs the master, and whether its figure without coding is right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from select import select
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ...cluster import Cluster, connect
from ...codes.repetition import FractionalRepetition
from ...delays import Delays, Exponential, PerUnit
from ...engines.local import LocalEngine
from ...engines.paced import Paced
from ...engines.virtual import VirtualEngine
from ...page import Page
from ...report.state import RunState
from ...simulation.draws import Common
from ..demo import strike
from ..output import print_table, print_text, progress
from .frame import Figure

# A browser as far as the master can tell, in another process: it follows the stream. When told
# to, it asks for the page, the stream and the figures, and says how long each took to begin.
LOOKER = """
import json, sys, time
from urllib.request import urlopen

def first(path):
    began = time.perf_counter()
    reply = urlopen(sys.argv[1].replace("/?", path + "?"))
    reply.readline()
    return reply, 1e3 * (time.perf_counter() - began)

stream = first("/events")[0]
print("looks", flush=True)
sys.stdin.readline()
took = {"/": [], "/events": [], "/metrics": []}
for _ in range(10):
    for path in took:
        reply, ms = first(path)
        reply.close()
        took[path].append(ms)
print(json.dumps(took), flush=True)
"""
BLOCK = 2.0  # seconds of processor time, in turn with a page and without one

WORKERS, THRESHOLD, ROWS, PARTS, KILLS = 6, 3, 1200, 12, 3
WIDE, NARROW = 1000, 4  # columns of the matrix and of what it is multiplied with
PART = 0.4  # seconds that a sixth of the rows takes


class Run(NamedTuple):
    """The work that is done without coding and with it; `delays` are those of all rows."""

    delays: Delays
    work: str = "X @ w"
    columns: int = WIDE  # with so many tasks come in pieces
    killed: bool = False  # whether workers are
    part: int = 1  # of the rounds that are asked for: a run of slow workers is long


SLOW = PerUnit(6 * PART, slow={5: 6.0})
RUNS = {
    "equal workers": Run(PerUnit(6 * PART)),
    "one is six times as slow": Run(SLOW, part=3),
    "the same, tasks of one piece": Run(SLOW, columns=NARROW, part=3),
    "the same, X.T @ z": Run(SLOW, "X.T @ z", part=3),
    "the same, sums": Run(SLOW, "sum", part=3),
    "a random wait before each task": Run(Exponential(unit=6 * PART, mean=PART)),
    "three are killed, one after the other": Run(PerUnit(6 * PART), killed=True),
    "the same, of those who do sums": Run(PerUnit(6 * PART), "sum", killed=True),
}


def run(workers: int, blocks: int, rounds: int, *, quiet: bool) -> dict[str, Any]:
    """Both; the cost with simulated workers, the figure with real ones that really wait."""
    with progress("page", blocks + 2 * len(RUNS), quiet) as update:
        cost = _cost(workers, blocks, update)
        figure = {}
        for name, one in RUNS.items():
            coded = _play(one, True, max(2, rounds // one.part))
            update(advance=1)
            plain = _play(one, False, max(2, rounds // one.part))
            update(advance=1)
            without = coded["without"]
            figure[name] = coded | {"really": plain["took"], "ratio": without / plain["took"]}
    figures = {
        f"{name}: without coding, as the page says": Figure(
            one["without"], "s", one["really"], "really without"
        )
        for name, one in figure.items()
    }
    name, of = f"{workers} workers: ", "without a page"
    figures[f"{name}a round's CPU time"] = Figure(cost["ratio"], "times", 1.0, of)
    figures[f"{name}the page's CPU time"] = Figure(100 * cost["share"], "%", 1.0, "1 %")
    soon = cost["median_ms"]["/events"]
    figures[f"{name}the first update"] = Figure(soon, "ms", 100.0, "100 ms")
    return {"figures": figures, "cost": cost, "figure": figure}


def _cost(workers: int, blocks: int, update: Any) -> dict[str, Any]:
    """Processor time of a page, of that of its master, while rounds come as fast as they can."""
    shares, first, ratios, looked = [], [], [], dict[str, list[float]]()
    with connect(VirtualEngine(workers)) as cluster:
        X, w = cluster.encode(np.zeros((2 * workers, 1)), k=min(20, workers)), np.ones(1)

        def block() -> tuple[float, float]:
            """Seconds of processor time for a round; the share that other threads took."""
            all_threads, mine, rounds = time.process_time(), time.thread_time(), 0
            while (spent := time.process_time() - all_threads) < BLOCK:
                X @ w
                rounds += 1
            return spent / rounds, 1.0 - (time.thread_time() - mine) / spent

        block()
        for _ in range(blocks):
            without, _ = block()
            with cluster.page() as page, _looking(page) as looker:
                first.append(block()[1])  # it reads what was there before, and tells it
                with_page, share = block()
                assert looker.stdin is not None
                assert looker.stdout is not None
                looker.stdin.write("\n")
                looker.stdin.flush()
                while not select([looker.stdout], [], [], 0.0)[0]:
                    X @ w
                for name, ms in json.loads(looker.stdout.readline()).items():
                    looked.setdefault(name, []).extend(ms)
            shares.append(share)
            ratios.append(with_page / without)
            update(advance=1)
    return {
        "workers": workers,
        "share": median(shares),
        "shares": shares,
        "first": median(first),
        "ratio": median(ratios),
        "median_ms": {path: median(ms) for path, ms in looked.items()},
        "most_ms": {path: max(ms) for path, ms in looked.items()},
    }


def _looking(page: Page) -> subprocess.Popen[str]:
    """Start a looker, and wait until it looks."""
    looker = subprocess.Popen(
        [sys.executable, "-c", LOOKER, page.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looker.stdout is not None
    looker.stdout.readline()
    return looker


def _play(run: Run, coded: bool, rounds: int) -> dict[str, Any]:
    """Play rounds of six real workers that wait by a delay model; return the page's figures.

    Any 6 of 6 is no code: each has a sixth of the rows, and all are waited for. Workers are killed
    in the middle of a round, at the same rounds with coding and without; others stand by.
    """
    # A worker has the same delays in a round with coding and without.
    whole = PARTS if run.work == "sum" else ROWS
    engine = Paced(LocalEngine(WORKERS), Common(run.delays, whole, seed=1))
    with connect(engine, wait=60) as cluster:
        one_round = _work(run, cluster, coded)
        for _ in range(KILLS if run.killed else 0):
            cluster.join()  # they stand by
        one_round()  # workers load what they run
        while _busy(cluster):  # who is behind from the start has no pace in what is looked at
            time.sleep(0.05)
        began = max(r.round for r in cluster.log)
        for i in range(rounds):
            if run.killed and i % (rounds // KILLS) == 1:
                strike(cluster, cluster.workers[0], PART)
            one_round()
        log = [r for r in cluster.log if r.round > began or r.kind == "lost"]
        state = RunState("local", range(WORKERS + KILLS if run.killed else WORKERS))
    state.take(log)
    head = state.head()
    return {name: head[name] for name in ("took", "without", "restarts", "at_least", "lost")}


def _busy(cluster: Cluster) -> bool:
    """Whether there are tasks that have not ended."""
    cluster.wait_for(1)  # which takes in what has come
    ends = {r.task for r in cluster.log if r.kind in ("reply", "dropped", "failed")}
    return any(r.kind == "send" and r.task not in ends for r in cluster.log)


def _work(run: Run, cluster: Cluster, coded: bool) -> Callable[[], object]:
    """The function that does one round."""
    A = np.random.default_rng(0).standard_normal((ROWS, run.columns))
    if run.work == "sum":
        parts = cluster.parts(A, FractionalRepetition(2 if coded else 1), parts=PARTS)
        # Sent as code: a worker that stands by would have to import this module first.
        add_up = lambda part, _: part.sum(axis=0)  # noqa: E731
        return lambda: parts.sum(add_up, None)
    more: dict[str, Any] = {} if coded else {"late": None, "loads": "equal"}
    k = THRESHOLD if coded else WORKERS
    X = cluster.encode(A, k=k, n=WORKERS, **more)
    w, z = np.ones((run.columns, run.columns)), np.ones((ROWS, run.columns))
    return (lambda: X.T @ z) if run.work == "X.T @ z" else lambda: X @ w


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    cost = result["cost"]
    values = {
        "workers": cost["workers"],
        "share": 100 * cost["share"],
        "first": 100 * cost["first"],
        "most": 100 * max(cost["shares"]),
        "ratio": cost["ratio"],
    }
    text = """With {workers} simulated workers, rounds as fast as the master can and one who looks,
        the page took {share:.2f} % of the processor time of its process ({most:.2f} % at most), and
        {first:.2f} % of the first seconds, in which it read what had gone before. A round took
        {ratio:.3f} times its processor time without a page."""
    print_text(console, text, values)
    rows = [(path, ms, cost["most_ms"][path]) for path, ms in cost["median_ms"].items()]
    columns = {"asked for": "", "median (ms)": ".0f", "most (ms)": ".0f"}
    print_table(console, "how soon an answer begins, while the master works", columns, rows)
