"""A worker joins and takes part; then all is closed, and nobody was killed."""

from __future__ import annotations

import gc

import numpy as np

import kofn
from kofn.engines._mpi_messages import Stream

with kofn.connect("mpi") as cluster:
    X = cluster.encode(np.eye(40), k=2, n=3)
    newcomer = cluster.join()
    while True:
        assert np.allclose(X @ np.arange(40.0), np.arange(40.0))
        if newcomer in X.report.rows_read:
            break
    print("took part", newcomer)
    # Those of the first two, who have sockets since, are let go when a third is greeted.
    print("streams", sum(isinstance(thing, Stream) for thing in gc.get_objects()))
