"""An operand of 8 MB to all workers, passed on and one by one, and one copy over the same link.

Prints the seconds of each and the bytes that went over this host's network, medians, as JSON, and
the least bytes of an operand that was passed on.
Arguments: the engine, a server that takes 8 MB and says so (see test_peers_hosts), how often, and
for Dask the scheduler's address.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from waiting import over_the_network

import kofn
from kofn.model import Piece, Task
from kofn.rounds.mesh import AskRound

SIZE = 1_000_000  # numbers


def last(kept: Any, operand: Any) -> tuple[Piece, ...]:
    return (Piece(None, float(operand[-1])),)


def broadcast(cluster: kofn.Cluster, operand: Any) -> float:
    """Seconds until every worker has said what the last number is."""
    driver = cluster._driver
    with driver.lock:

        def asks(id: int, worker: int, share: int) -> Task:
            return Task(driver.next_task(), id, worker, last)

        holders = dict.fromkeys(cluster.workers, 0)
        round = AskRound(driver.next_round(), holders, asks, None, len(holders), "")
        began = time.perf_counter()
        driver.run(round, operand, lambda worker: None)
        seconds = time.perf_counter() - began
    assert set(round.answers.values()) == {float(operand[-1])}, round.answers
    return seconds


def copy(server: socket.socket, operand: Any) -> float:
    began = time.perf_counter()
    server.sendall(operand)
    assert server.recv(1) == b"1"
    return time.perf_counter() - began


def passed_on_once(passed: dict[str, list[float]]) -> bool:
    return min(passed["passed_on"]) < 3 * median(passed["copy"])


if __name__ == "__main__":
    engine, where, times, *address = sys.argv[1:]
    options: dict[str, Any] = {"address": address[0]} if address else {}
    host, port = where.split(":")
    found: dict[str, list[float]] = {}
    passed: dict[str, list[float]] = {}

    def measure(name: str, seconds: Callable[[], float]) -> None:
        before = over_the_network()
        found.setdefault(name, []).append(seconds())
        passed.setdefault(name, []).append(over_the_network() - before)

    with (
        kofn.connect(engine, **options) as cluster,
        socket.create_connection((host, int(port))) as server,
    ):
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        driver = cluster._driver
        relaying = driver.engine
        i = 0
        # Until it was passed on once: where the machine stalls, workers ask others for a copy.
        while i < int(times) + 3 or (i < 200 and not passed_on_once(passed)):
            i += 1
            operand = np.full(SIZE, float(i))
            small = operand[:1000].copy()
            measure("copy", partial(copy, server, operand))
            measure("passed_on", partial(broadcast, cluster, operand))
            measure("small", partial(broadcast, cluster, small))
            driver.engine = cluster.engine
            measure("one_by_one", partial(broadcast, cluster, operand))
            measure("small_before", partial(broadcast, cluster, small))
            driver.engine = relaying
        workers = len(cluster.workers)
    result = {
        "seconds": {name: median(some[3:]) for name, some in found.items()},
        "bytes": {name: median(some[3:]) for name, some in passed.items()},
        "least": min(passed["passed_on"]),
        "workers": workers,
    }
    print(json.dumps(result))
