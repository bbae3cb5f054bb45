"""kofn bench scale: a round with many workers: the real master, a simulated network."""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from ...cluster import connect
from ...costs import Costs
from ...delays import PerUnit
from ...engines.virtual import VirtualEngine
from ...peers import Address
from ...peers.blobs import PIECE
from ...peers.relay import lay
from ..output import print_table, print_text
from .frame import Figure

BANDWIDTH, LATENCY = 1.25e9, 5e-5  # bytes a second of each host's link, both ways (10 Gbit/s); s
BYTES = 8_000_000  # of the operand, and of the result
EACH = 8  # workers of a host
FRAME = 25e-6  # seconds of a core for one small frame between two workers (measured, docs/scale.md)
ROUNDS = 3
GOAL = 20.0  # µs of the master for a worker of a round, task and reply
COUNTS = (10, 100, 1_000, 10_000)


def run(most: int) -> dict[str, Any]:
    """Figures for up to so many workers."""
    by_count = {n: figures(n) for n in COUNTS if n <= most}
    shown: dict[str, Figure] = {}
    for n, one in by_count.items():
        shown[f"master, a worker of {n}"] = Figure(1e6 * one["master"] / n, "µs", GOAL, "the goal")
        copy = 1e3 * one["copy"]
        of = "one copy over a link"
        shown[f"operand passed on to {n}"] = Figure(1e3 * one["passed_on"], "ms", copy, of)
    return {
        "figures": shown,
        "bandwidth": BANDWIDTH,
        "latency": LATENCY,
        "bytes": BYTES,
        "workers_of_a_host": EACH,
        "seconds_of_a_frame": FRAME,
        "workers": {str(n): one for n, one in by_count.items()},
        "on_paper": {str(n): on_paper(n) for n in (100_000,)},
    }


def figures(n: int) -> dict[str, float]:
    """Seconds with n workers: by simulation, the master's own by the clock."""
    return {**on_paper(n), "master": master(n), "passed_on": passed_on(n, BYTES)}


def on_paper(n: int) -> dict[str, float]:
    """Figures that follow from the numbers alone."""
    copy, hosts = BYTES / BANDWIDTH, math.ceil(n / EACH)
    costs = Costs(LATENCY, BANDWIDTH)
    return {
        "copy": copy,
        "one_by_one": n * copy,  # the master's link carries a copy for each worker
        "passed_on": costs.passed_on(hosts, BYTES),
        "replies": copy + LATENCY,  # together they are as long as the result, however many
        # Of X.T @ z, or of a sum of gradients, each reply is as long as the result.
        "gradients": n * copy + LATENCY,
        # Each worker receives all but its own rows, over a link that its host's workers share.
        "all_gather": copy * EACH * (1 - 1 / n) + LATENCY + n * FRAME,
        "ring": costs.ring(n, BYTES // n),
    }


def passed_on(n: int, size: int) -> float:
    """Seconds until all of n workers have an operand, along what `kofn.peers.relay` lays.

    Piece by piece: a link carries one at a time, to each host after the other; within a host it is
    memory that all map.
    """
    at = {w: Address(str(w), str(w // EACH), (), 0) for w in range(n)}
    pieces = math.ceil(size / PIECE)
    sources, pushed = lay(at, (), "the master's own", pieces)
    firsts = {str(w): w for w in range(0, n, EACH)}
    children: dict[int, list[int]] = {w: [] for w in firsts.values()}
    for w in firsts.values():
        if sources[w]:
            children[firsts[sources[w][0][0]]].append(w)
    step = size / pieces / BANDWIDTH
    (root,) = pushed
    there = {root: LATENCY + step * np.arange(1, pieces + 1)}
    last, queue = 0.0, [root]
    while queue:
        host = queue.pop()
        mine = there.pop(host)
        last = max(last, float(mine[-1]))
        free, sent = 0.0, {child: np.empty(pieces) for child in children[host]}
        for piece in range(pieces):
            for times in sent.values():
                free = max(free, mine[piece]) + step
                times[piece] = free + LATENCY
        there |= sent
        queue += sent
    return last


def master(n: int) -> float:
    """Seconds of the real master for a round of X @ w, with n simulated workers and no values."""
    spent = []
    with connect(VirtualEngine(n, delays=PerUnit(1e-6), compute=False)) as cluster:
        X = cluster.encode(np.zeros((2 * n, 1)), k=max(1, n // 2))
        for _ in range(1 + ROUNDS):
            began = time.process_time()
            X @ np.zeros(1)
            spent.append(time.process_time() - began)
    return median(spent[1:])  # the first lays the windows


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person."""
    columns = {"workers": "", "one by one": ".4g", "passed on": ".4g", "replies": ".4g"}
    columns |= {"of gradients": ".4g"}
    columns |= {"master": ">", "all-gather": ".4g", "ring": ".4g"}
    rows = [
        (
            f"{int(n):,}",
            *(1e3 * one[name] for name in ("one_by_one", "passed_on", "replies", "gradients")),
            f"{1e3 * one['master']:.3g}" if "master" in one else "–",
            *(1e3 * one[name] for name in ("all_gather", "ring")),
        )
        for n, one in {**result["workers"], **result["on_paper"]}.items()
    ]
    title = f"ms of a round, {BYTES / 1e6:.0f} MB each way; links of {BANDWIDTH / 1e9:g} GB/s"
    print_table(console, title, columns, rows)
    text = """One by one, passed on: until all workers have the operand. Replies: into the master's
        link, of X @ w; of gradients: of X.T @ z, or of a sum, in which each worker's reply is as
        long as the result. Master: CPU time of the real one, by the clock. All-gather, ring: the
        exchange of a round of X.iterate, direct as kofn does it, and in a ring. The last line is
        on paper."""
    print_text(console, text)
