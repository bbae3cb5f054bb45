"""A master with busy workers, one of them spawned, that ends in the way its argument says."""

from __future__ import annotations

import os
import signal
import sys

import kofn
from kofn.model import Task
from kofn.testing._bodies import toil

how = sys.argv[1]
cluster = kofn.connect("mpi")
engine = cluster.engine
cluster.join()
for worker in cluster.workers:
    engine.submit(Task(worker, 1, worker, toil, (10**9,)))
pids = [engine.pid(worker) for worker in cluster.workers]
print("pids", os.getpid(), *pids, flush=True)
if how == "raises":
    with cluster:
        raise RuntimeError("on purpose")
if how == "vanishes":
    os._exit(3)
if how == "joins":
    engine.join()  # and it is not waited for
    cluster.close()
    sys.exit(0)
if how == "freezes":
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    cluster.close()
    sys.exit(0)
with cluster:
    while True:  # until a signal comes
        engine.events(1)
