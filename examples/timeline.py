"""Draw six workers at work while one is slow, two are killed and one joins: docs/timeline.png.

    python examples/timeline.py [path]

The workers are processes of this machine. The kills are SIGKILL, in the middle of a product, and
every product is compared with NumPy's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import kofn
from kofn.engines.local import LocalEngine
from kofn.report import timeline
from kofn.testing import Faults

ROUNDS = 14
KILLED = {3: 1, 10: 4}  # which worker, in which product, counted from 0
JOIN = 6
SLOW = Faults().slow(worker=5, by=200, round=9)  # rounds count from 1, as in the picture


def main(path: str) -> None:
    rng = np.random.default_rng(0)
    A, V = rng.standard_normal((3000, 3000)), rng.standard_normal((3000, 128))
    products, seconds = [], 0.0
    with kofn.connect(SLOW.on(LocalEngine(6))) as cluster:
        X = cluster.encode(A, k=3)  # any three workers are enough
        for i in range(ROUNDS):
            if i in KILLED:
                pid = cluster.engine.pid(KILLED[i])
                assert pid is not None
                threading.Timer(0.4 * seconds, os.kill, (pid, signal.SIGKILL)).start()
            if i == JOIN:
                cluster.engine.join()  # unlike cluster.join, this does not wait for it to start
            start = time.perf_counter()
            products.append(X @ V)
            seconds = time.perf_counter() - start
        time.sleep(0.01)  # for the last words of the last round
        log = cluster.log
    exact = A @ V
    assert all(np.allclose(product, exact) for product in products)
    timeline(log, path, title="14 products on six workers; any three are enough")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/timeline.png")
