"""X.iterate on workers of several hosts, one of which is killed on the way.

Prints the worst error against NumPy, who was lost, and what went over this host's network: as JSON.
Arguments: the engine, the folder that all hosts see, and for Dask the scheduler's address.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from waiting import over_the_network, until

import kofn


def rotation(size: int) -> NDArray[np.float64]:
    """Two reflections."""
    u, v = np.random.default_rng(size).standard_normal((2, size))
    u, v = u / np.linalg.norm(u), v / np.linalg.norm(v)
    first = np.eye(size) - 2 * np.outer(u, u)
    return np.asarray(first - 2 * np.outer(first @ v, v))


class Unchanged:
    """f(y) = y. With a folder, from the 45th call on it waits until the master knows of the kill.

    The master is told of rounds later than workers do them: they must not be done before that.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder, self.calls = folder, 0

    def __call__(self, y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.calls += 1
        while self.folder and self.calls > 45 and not Path(self.folder, "known").exists():
            time.sleep(0.01)
        return y


def run(cluster: kofn.Cluster, size: int, rounds: int, kill: bool) -> dict[str, Any]:
    A = rotation(size)
    X = cluster.encode(A, k=3)
    while len(X.shares) < len(cluster.workers):  # or shares that are on their way would be counted
        X @ np.ones(size)

    def on_round(round: int, change: float) -> None:
        if kill and round == 10:
            Path(folder, "kill").touch()
            while not Path(folder, "killed").exists():
                time.sleep(0.01)

    def lost() -> bool:
        return any(record.kind == "lost" for record in cluster.log[seen:])

    def tell() -> None:
        until(lost, "the loss")
        Path(folder, "known").touch()

    seen = len(cluster.log)
    if kill:
        threading.Thread(target=tell, daemon=True).start()
    before, began = over_the_network(), time.monotonic()
    w = X.iterate(
        Unchanged(folder if kill else None),
        np.ones(size),
        rounds=rounds,
        report_every=10,
        on_round=on_round,
    )
    seconds, passed = time.monotonic() - began, over_the_network() - before
    right = np.ones(size)
    for _ in range(rounds):
        right = A @ right
    return {
        "size": size,
        "error": float(np.abs(w - right).max()),
        "lost": list(X.report.lost),
        "took_part": [worker for worker in X.report.lost if X.report.rows_read.get(worker, 0)],
        "epochs": X.report.extra["epochs"],
        "bytes": passed - X.report.extra["bytes_of_vectors"],
        "seconds": seconds,
    }


if __name__ == "__main__":
    engine, folder, *where = sys.argv[1:]
    options: dict[str, Any] = {"address": where[0]} if where else {}
    with kofn.connect(engine, **options) as cluster:
        found = [run(cluster, size, 90, kill=False) for size in (500, 2500)]
        found.append(run(cluster, 1000, 90, kill=True))
    print(json.dumps(found))
