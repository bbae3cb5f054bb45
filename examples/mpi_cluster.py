"""Multiply on MPI ranks while some of them are killed and one is spawned.

    mpiexec --with-ft ulfm -n 7 python examples/mpi_cluster.py    # rank 0 and six workers

On as many machines as you like. Each gets as many ranks as the hostfile gives it slots; further
ranks are dealt out in turn. (With `--map-by :oversubscribe` all would be on the first machine.)

    mpiexec --with-ft ulfm --hostfile hosts --map-by slot:oversubscribe -n 7 python ...
"""

from __future__ import annotations

import numpy as np

import kofn


def main() -> None:
    # Under mpiexec every rank comes here; all but rank 0 stay in this call until the end.
    with kofn.connect("mpi") as cluster:
        rng = np.random.default_rng(0)
        A, w = rng.standard_normal((6000, 400)), rng.standard_normal(400)
        X = cluster.encode(A, k=(len(cluster.workers) + 1) // 2)  # any half of them is enough
        show("all", cluster, X, A, w)

        for worker in cluster.workers[: len(cluster.workers) // 2]:
            cluster.lose(worker)
        show("half of them lost", cluster, X, A, w)

        cluster.join()
        show("one joined", cluster, X, A, w)


def show(when: str, cluster: kofn.Cluster, X: kofn.CodedMatrix, A: object, w: object) -> None:
    exact = np.asarray(A) @ np.asarray(w)
    error = np.linalg.norm(X @ w - exact) / np.linalg.norm(exact)
    assert X.report.error_bound is not None
    assert error <= X.report.error_bound
    print(f"{when:>17}: workers {cluster.workers}, relative error {error:.0e}")


if __name__ == "__main__":
    main()
