"""Multiply on a Dask cluster while it loses workers and gains one.

    python examples/dask_cluster.py                        # six workers of its own, on this machine
    python examples/dask_cluster.py tcp://scheduler:8786   # a running cluster, left as it was

A cluster by hand, on as many machines as you like:

    dask scheduler
    dask worker tcp://scheduler:8786 --nthreads 1          # once per worker; adds one at any time
"""

from __future__ import annotations

import sys

import numpy as np

import kofn


def main(address: str | None = None) -> None:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((6000, 400)), rng.standard_normal(400)

    with kofn.connect("dask", workers=None if address else 6, address=address) as cluster:
        X = cluster.encode(A, k=(len(cluster.workers) + 1) // 2)  # any half of them is enough
        show("all", cluster, X, A, w)

        for worker in cluster.workers[: len(cluster.workers) // 2]:
            cluster.lose(worker)
        show("half of them lost", cluster, X, A, w)

        if cluster.engine.capabilities.can_join:  # else: start a `dask worker`, it joins by itself
            cluster.join()
            show("one joined", cluster, X, A, w)


def show(when: str, cluster: kofn.Cluster, X: kofn.CodedMatrix, A: object, w: object) -> None:
    exact = np.asarray(A) @ np.asarray(w)
    error = np.linalg.norm(X @ w - exact) / np.linalg.norm(exact)
    assert X.report.error_bound is not None
    assert error <= X.report.error_bound
    print(f"{when:>17}: workers {cluster.workers}, product right to {error:.0e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
