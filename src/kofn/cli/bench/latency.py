"""kofn bench latency: X @ w a thousand times a second, with a noisy neighbour.

A product is due at a fixed time, whether the one before is done or not, and its latency counts from
then. One of the six workers has a neighbour that takes its processor away: it is stopped for 20 ms,
five times a second in the mean. Against it: a plain loop that waits for all, and hedged requests
(Dean & Barroso, 2013): each block has a second worker, which is asked when the first has not
answered within the 95th percentile of what replies took so far.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ...cluster import connect
from .bare import WORKERS, Floats, Product, served
from .frame import Figure
from .overhead import COLUMNS, ROWS, THRESHOLD

TURN = 1.0  # seconds of a kind before the next has its turn
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
# Another process, so that the master's own threads do not delay it: it stops and continues `pid`.
NOISE = f"""
import os, random, sys, time
pid, draw = int(sys.argv[1]), random.Random(int(sys.argv[2]))
while True:
    time.sleep(draw.expovariate(1 / 0.2))
    os.kill(pid, {int(signal.SIGSTOP)})
    time.sleep(0.02)
    os.kill(pid, {int(signal.SIGCONT)})
"""


def run(seconds: float, rate: int) -> dict[str, Any]:
    """So many seconds of each kind, in turn."""
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    late: dict[str, list[float]] = {}
    busy: dict[str, float] = {}
    turns = max(1, round(seconds / TURN))
    with connect("local", workers=WORKERS) as cluster, pipes(A) as ends:
        X = cluster.encode(A, k=THRESHOLD)
        first = cluster.engine.pid(cluster.workers[0])
        assert first is not None
        plain = Hedged(ends, float("inf"))
        kinds: dict[str, tuple[Product, int]] = {
            "kofn": (lambda w: X @ w, first),
            "hedged": (Hedged(ends), plain.pid),
            "plain": (plain, plain.pid),
        }
        for product, _ in kinds.values():  # all workers have started before the first turn
            assert np.allclose(product(w), A @ w)
        for turn in range(turns):
            for name, (product, pid) in kinds.items():
                with noise(pid, turn):
                    latencies, spent = paced(partial(product, w), rate, TURN)
                late.setdefault(name, []).extend(latencies)
                busy[name] = busy.get(name, 0.0) + spent / turns
        sent = {name: getattr(kinds[name][0], "sent", None) for name in ("hedged", "plain")}
    figures: dict[str, Figure] = {}
    for other, of in (("hedged", "hedged requests"), ("plain", "a loop that waits for all")):
        for name, q in QUANTILES.items():
            ours, theirs = (1e3 * float(np.quantile(late[kind], q)) for kind in ("kofn", other))
            figures[f"{name}, against {other}"] = Figure(ours, "ms", theirs, of)
    more = {"busy": busy, "messages_to_workers": sent, "products_of_each": len(late["kofn"])}
    return {"figures": figures, **more}


def paced(call: Callable[[], object], rate: int, seconds: float) -> tuple[list[float], float]:
    """Call when it is due; seconds from then until it was done, and the share of time it took."""
    began, late, spent = time.perf_counter(), [], 0.0
    for i in range(int(rate * seconds)):
        due = began + i / rate
        if (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        late.append(now - due)
        spent += now - start
    return late, spent / (time.perf_counter() - began)


@contextmanager
def noise(pid: int, seed: int) -> Iterator[None]:
    """Let a process be stopped now and then, meanwhile."""
    command = [sys.executable, "-S", "-c", NOISE, str(pid), str(seed)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()
            process.wait()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def pipes(A: Floats) -> AbstractContextManager[list[tuple[Connection, int]]]:
    """A pipe to each of six workers, which hold a block of their own and that of the one before."""
    blocks = np.array_split(A, WORKERS)
    held = [{i: blocks[i], (i - 1) % WORKERS: blocks[i - 1]} for i in range(WORKERS)]
    return served(_serve, [(blocks,) for blocks in held])


def _serve(pipe: Connection, held: dict[int, Floats]) -> None:
    threadpool_limits(1)
    with suppress(EOFError, OSError):
        while True:
            number, block, w = pipe.recv()
            pipe.send((number, block, held[block] @ w))


class Hedged:
    """Products by one request for each block, and a second one where the first is slow."""

    def __init__(self, ends: list[tuple[Connection, int]], after: float | None = None) -> None:
        self.ends = [end for end, _ in ends]
        self.pid = ends[0][1]
        self.after = after  # seconds; None: the 95th percentile so far
        self.took: deque[float] = deque([1e-3] * 20, maxlen=600)
        self.number = self.sent = 0

    def __call__(self, w: Floats) -> Floats:
        # Numbers of one loop must not be those of another on the same pipes.
        self.number += 1
        number = (id(self), self.number)
        start = time.perf_counter()
        for block, end in enumerate(self.ends):
            end.send((number, block, w))
        self.sent += WORKERS
        hedge = float(np.quantile(self.took, 0.95)) if self.after is None else self.after
        blocks: dict[int, Floats] = {}
        hedged = False
        while len(blocks) < WORKERS:
            left = None if hedged or hedge == float("inf") else start + hedge - time.perf_counter()
            ready = wait(self.ends, left if left is None else max(0.0, left))
            if not ready and not hedged:
                hedged = True
                for block in range(WORKERS):
                    if block not in blocks:
                        self.ends[(block + 1) % WORKERS].send((number, block, w))
                        self.sent += 1
            for one in ready:
                assert isinstance(one, Connection)
                of, block, value = one.recv()
                if of == number and block not in blocks:
                    blocks[block] = value
                    self.took.append(time.perf_counter() - start)
        return np.concatenate([blocks[block] for block in range(WORKERS)])
