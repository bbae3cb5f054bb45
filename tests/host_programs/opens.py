"""A master on an engine: prints all its doors, then waits for a line, and multiplies once more."""

from __future__ import annotations

import glob
import json
import os
import sys
import tempfile

import doors
import numpy as np

import kofn

rng = np.random.default_rng(0)
A = rng.standard_normal((600, 264))
LARGE = rng.standard_normal((264, 300))  # which workers pass on, by doors of their own


def main(engine: str) -> None:
    notices = engine if engine in ("ray", "dask") else None
    workers = None if engine == "mpi" else 3
    with kofn.connect(engine, workers, notices=notices) as cluster:
        if engine == "mpi":
            cluster.join()  # who is spawned is spoken to in another way
        X = cluster.encode(A, k=2)
        assert np.allclose(X @ LARGE, A @ LARGE)
        square = cluster.encode(np.eye(8) / 2, k=2)
        square.iterate(lambda w: w + 1.0, np.ones(8), rounds=3)
        root = os.getppid() if engine == "mpi" else os.getpid()  # mpiexec is our parent
        pids = doors.family(root)
        found = doors.doors(pids)
        folders = glob.glob(f"{tempfile.gettempdir()}/kofn-*")
        print(json.dumps({"doors": found, "pids": pids, "folders": folders}), flush=True)
        sys.stdin.readline()
        assert np.allclose(X @ LARGE, A @ LARGE)
        print("right", len(cluster.workers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
