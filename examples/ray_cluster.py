"""Multiply on a Ray cluster while it loses workers and gains one.

    python examples/ray_cluster.py                 # this machine's cluster, else one of its own
    python examples/ray_cluster.py 10.0.0.1:6379   # a running cluster, left as it was

A cluster by hand, on as many machines as you like:

    ray start --head --port=6379
    ray start --address=10.0.0.1:6379              # on each further machine, at any time
"""

from __future__ import annotations

import sys

import numpy as np

import kofn


def main(address: str | None = None) -> None:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((6000, 400)), rng.standard_normal(400)

    with kofn.connect("ray", workers=6, address=address) as cluster:
        X = cluster.encode(A, k=3)  # any three of the six are enough
        show("all", cluster, X, A, w)

        for worker in cluster.workers[:3]:
            cluster.lose(worker)
        show("half of them lost", cluster, X, A, w)

        cluster.join()  # a machine that is added to the cluster joins by itself
        show("one joined", cluster, X, A, w)


def show(when: str, cluster: kofn.Cluster, X: kofn.CodedMatrix, A: object, w: object) -> None:
    exact = np.asarray(A) @ np.asarray(w)
    error = np.linalg.norm(X @ w - exact) / np.linalg.norm(exact)
    assert X.report.error_bound is not None
    assert error <= X.report.error_bound
    print(f"{when:>17}: workers {cluster.workers}, product right to {error:.0e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
