"""A worker joins and takes part; then all is closed, and nobody was killed."""

from __future__ import annotations

import numpy as np

import kofn

with kofn.connect("mpi") as cluster:
    X = cluster.encode(np.eye(40), k=2, n=3)
    newcomer = cluster.join()
    while True:
        assert np.allclose(X @ np.arange(40.0), np.arange(40.0))
        if newcomer in X.report.rows_read:
            break
    print("took part", newcomer)
