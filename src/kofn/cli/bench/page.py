"""kofn bench page: what a page costs the master, and whether its figure without coding is right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from select import select
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from ...cluster import connect
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

WORKERS, THRESHOLD, ROWS, KILLS = 6, 3, 1200, 3
WIDE = 1000  # columns of the matrix and of what it is multiplied with: tasks come in pieces
PART = 0.4  # seconds that a sixth of the rows takes
RUNS: dict[str, tuple[Delays, bool]] = {  # delays of all rows, and whether workers are killed
    "equal workers": (PerUnit(6 * PART), False),
    "one is six times as slow": (PerUnit(6 * PART, slow={5: 6.0}), False),
    "a random wait before each task": (Exponential(unit=6 * PART, mean=PART), False),
    "three are killed, one after the other": (PerUnit(6 * PART), True),
}


def run(workers: int, blocks: int, rounds: int, *, quiet: bool) -> dict[str, Any]:
    """Both; the cost with simulated workers, the figure with real ones that really wait."""
    with progress("page", blocks + 2 * len(RUNS), quiet) as update:
        cost = _cost(workers, blocks, update)
        figure = {}
        for name, (delays, killed) in RUNS.items():
            coded = _multiply(delays, killed, THRESHOLD, rounds)
            update(advance=1)
            plain = _multiply(delays, killed, WORKERS, rounds)
            update(advance=1)
            said = coded["without"]
            figure[name] = coded | {"really": plain["took"], "ratio": said / plain["took"]}
    figures = {
        f"{name}: without coding, as the page says": Figure(
            one["without"], "s", one["really"], "really without"
        )
        for name, one in figure.items()
    }
    of = "without a page"
    figures[f"a round's CPU time, {workers} workers"] = Figure(cost["ratio"], "times", 1.0, of)
    return {"figures": figures, "cost": cost, "figure": figure}


def _cost(workers: int, blocks: int, update: Any) -> dict[str, Any]:
    """Processor time of a page, of that of its master, while rounds come as fast as they can."""
    shares, ratios, looked = [], [], dict[str, list[float]]()
    with connect(VirtualEngine(workers)) as cluster:
        X, w = cluster.encode(np.zeros((2 * workers, 1)), k=min(20, workers)), np.ones(1)

        def block() -> tuple[float, float, int]:
            all_threads, mine, rounds = time.process_time(), time.thread_time(), 0
            while (spent := time.process_time() - all_threads) < BLOCK:
                X @ w
                rounds += 1
            return spent, time.thread_time() - mine, rounds

        block()
        for _ in range(blocks):
            without, _, some = block()
            with cluster.page() as page, _looking(page) as looker:
                spent, mine, rounds = block()
                assert looker.stdin is not None
                assert looker.stdout is not None
                looker.stdin.write("\n")
                looker.stdin.flush()
                while not select([looker.stdout], [], [], 0.0)[0]:
                    X @ w
                for name, ms in json.loads(looker.stdout.readline()).items():
                    looked.setdefault(name, []).extend(ms)
            shares.append((spent - mine) / spent)
            ratios.append(spent / rounds / (without / some))
            update(advance=1)
    return {
        "workers": workers,
        "share": median(shares),
        "shares": shares,
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


def _multiply(delays: Delays, killed: bool, k: int, rounds: int) -> dict[str, Any]:
    """Products on six real workers that wait as long as `delays` say; what the page says of them.

    Any 6 of 6 is no code: each has a sixth of the rows, and all are waited for. Workers are killed
    in the middle of a round, at the same rounds with coding and without; others stand by.
    """
    # A worker has the same luck in a round with coding and without.
    engine = Paced(LocalEngine(WORKERS), Common(delays, ROWS, seed=1))
    coded = k < WORKERS
    with connect(engine, wait=60) as cluster:
        A = np.random.default_rng(0).standard_normal((ROWS, WIDE))
        more: dict[str, Any] = {} if coded else {"late": None, "loads": "equal"}
        X, w = cluster.encode(A, k=k, n=WORKERS, **more), np.ones((WIDE, WIDE))
        for _ in range(KILLS if killed else 0):
            cluster.join()  # they stand by
        X @ w  # workers load what they run
        began = X.report.round
        for i in range(rounds):
            if killed and i % (rounds // KILLS) == 1:
                strike(cluster, cluster.workers[0], PART)
            X @ w
        log = [r for r in cluster.log if r.round > began or r.kind == "lost"]
        state = RunState("local", range(WORKERS + KILLS if killed else WORKERS))
    state.take(log)
    head = state.head()
    return {name: head[name] for name in ("took", "without", "restarts", "at_least", "lost")}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    cost = result["cost"]
    values = {
        "workers": cost["workers"],
        "share": 100 * cost["share"],
        "most": 100 * max(cost["shares"]),
        "ratio": cost["ratio"],
    }
    text = """With {workers} simulated workers, rounds as fast as the master can and one who looks,
        the page took {share:.2f} % of the processor time of its process ({most:.2f} % at most). A
        round took {ratio:.3f} times its processor time without a page."""
    print_text(console, text, values)
    rows = [(path, ms, cost["most_ms"][path]) for path, ms in cost["median_ms"].items()]
    columns = {"asked for": "", "median (ms)": ".0f", "most (ms)": ".0f"}
    print_table(console, "how soon an answer begins, while the master works", columns, rows)
