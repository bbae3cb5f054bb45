"""PageRank of 10,000 pages on eight workers, two of which are killed on the way.

    python examples/pagerank.py [pages]

The workers hold coded shares of the link matrix and pass the ranks among themselves; what reaches
this process a round is a few hundred bytes. The result is compared with SciPy's, round for round.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import scipy.sparse

import kofn

DAMPING = 0.85


def links(pages: int, seed: int = 0) -> scipy.sparse.csr_array:
    """A random web: column j spreads the rank of page j over those it links to.

    Some pages are far more popular than others, and every fiftieth links nowhere.
    """
    rng = np.random.default_rng(seed)
    source = np.repeat(np.arange(pages), rng.integers(1, 20, pages))
    source = source[source % 50 != 0]
    target = (pages * rng.random(len(source)) ** 3).astype(np.intp)
    A = scipy.sparse.csr_array((np.ones(len(source)), (target, source)), shape=(pages, pages))
    A.sum_duplicates()
    out = np.bincount(A.indices, A.data, pages)
    A.data /= out[A.indices]
    return A


def follow(y: np.ndarray) -> np.ndarray:
    """Follow a link with probability 0.85, else jump anywhere.

    What y lacks to one is the rank of the pages that link nowhere: they jump anywhere too.
    """
    y = DAMPING * y
    return y + (1.0 - y.sum()) / len(y)


def main(pages: int = 10_000) -> None:
    A = links(pages)
    start = np.full(pages, 1.0 / pages)
    kills = {4: 2, 9: 5}  # round -> worker
    with kofn.connect("local", workers=8) as cluster:
        X = cluster.encode(A, k=4)  # any four workers are enough

        def on_round(round: int, change: float) -> None:
            print(f"round {round:3}: the ranks changed by {change:.1e}")
            if round in kills:
                pid = cluster.engine.pid(kills[round])
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                print(f"           worker {kills[round]} killed")

        ranks = X.iterate(follow, start, tol=1e-12, on_round=on_round)
        report = X.report
    expected = start
    for _ in range(report.extra["rounds"]):
        expected = follow(A @ expected)
    difference = float(np.abs(ranks - expected).max())
    print(f"the first pages: {np.argsort(-ranks)[:5].tolist()}")
    print(f"lost workers {list(report.lost)}; largest difference to SciPy {difference:.1e}")
    print(f"bytes through this process a round: {report.extra['bytes_per_round']:.0f}")
    assert difference < 1e-10


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
