"""What a real cluster costs, measured: the numbers of `kofn.Costs`."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from ..checks import whole
from ..cluster import Cluster
from ..codes.repetition import Uncoded
from ..costs import Costs

BYTES = 8_000_000


def nothing(part: Any, x: Any) -> float:
    """A term that costs nothing."""
    return 0.0


def calibrate(cluster: Cluster, *, times: int = 30, joins: int = 3, size: int = BYTES) -> Costs:
    """Measure what messages, data, start-up and the master's own work cost on a cluster.

    Medians of `times` each. latency: half of the round trip of a tiny value. bandwidth: by a value
    of `size` bytes. per_number: adding up arrays of that size, by number. per_event: the processor
    time of the master for tiny sums, by task and reply. start_up: `joins` workers are started and
    ended again; 0 where the engine cannot.
    """
    times, size = whole(times, "times", 3), whole(size, "size", 1000)
    worker = cluster._driver.some_workers()[0]
    small, large = np.zeros(1), np.zeros(size // 8)
    _stored(cluster, worker, large)  # the first of all is dearer
    there_and_back = median(_stored(cluster, worker, small) for _ in range(times))
    moved = median(_stored(cluster, worker, large) for _ in range(max(3, times // 3)))
    bandwidth = size / max(moved - there_and_back, 1e-9)
    start_up, per_event = _start_up(cluster, joins), _master(cluster, times)
    per_number = median(_added(large) for _ in range(times)) / len(large)
    return Costs(there_and_back / 2, bandwidth, start_up, per_event, per_number)


def _added(value: np.ndarray) -> float:
    """Processor seconds for adding a value to another."""
    total = np.zeros_like(value)
    began = time.process_time()
    np.add(total, value, out=total)
    return time.process_time() - began


def _stored(cluster: Cluster, worker: int, value: Any) -> float:
    """Seconds until a worker has confirmed that it keeps a value."""
    driver = cluster._driver
    key = f"calibrate-{driver.next_task()}"
    began = time.perf_counter()
    driver.put(worker, key, value)
    driver.await_stored(key, [worker], lambda _: False)
    spent = time.perf_counter() - began
    driver.forget(key)
    return spent


def _master(cluster: Cluster, times: int) -> float:
    """Processor seconds of the master for each task and reply of a tiny sum."""
    n = len(cluster._driver.some_workers())
    parts = cluster.parts([0] * n, Uncoded("whole"))
    spent = []
    for _ in range(times + 3):
        began = time.process_time()
        parts.sum(nothing)
        spent.append(time.process_time() - began)
    return median(spent[3:]) / (2 * n)


def _start_up(cluster: Cluster, joins: int) -> float:
    can = cluster.engine.capabilities
    if not (can.can_join and can.can_lose) or joins < 1:
        return 0.0
    spent = []
    for _ in range(joins):
        began = time.perf_counter()
        worker = cluster.join()
        spent.append(time.perf_counter() - began)
        cluster.lose(worker)
    return median(spent)
