"""The bare primitive of each engine, doing the same uncoded products: what kofn is held against.

Each is a context manager over (A, seconds): A's rows are dealt to the workers once, and what it
gives is w -> A @ w by one message to each worker and one back, each taking at least `seconds`.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

WORKERS = 6
Floats = NDArray[np.float64]
Primitive = Callable[[Floats, float], AbstractContextManager[Callable[[Floats], Floats]]]


class Rows:
    """Some rows, and how long a product with them takes at least."""

    def __init__(self, rows: Floats, seconds: float) -> None:
        threadpool_limits(1)
        self.rows, self.seconds = rows, seconds

    def product(self, w: Floats) -> Floats:
        """The rows times w."""
        start = time.perf_counter()
        found = np.asarray(self.rows @ w)
        left = self.seconds - (time.perf_counter() - start)
        if left > 0:
            time.sleep(left)
        return found


@contextmanager
def pipes(A: Floats, seconds: float) -> Iterator[Callable[[Floats], Floats]]:
    """One multiprocessing pipe a worker."""
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    processes = []
    for rows in np.array_split(A, WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve_pipe, args=(theirs, rows, seconds), daemon=True)
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)

    def product(w: Floats) -> Floats:
        for end in ends:
            end.send(w)
        return np.concatenate([end.recv() for end in ends])

    try:
        yield product
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def _serve_pipe(pipe: Connection, rows: Floats, seconds: float) -> None:
    mine = Rows(rows, seconds)
    while True:
        try:
            w = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(mine.product(w))


@contextmanager
def ray_actors(A: Floats, seconds: float) -> Iterator[Callable[[Floats], Floats]]:
    """One Ray actor a worker; the operand put once a round, one call each, one get for all."""
    import ray

    actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Rows)
    actors = [actor.remote(rows, seconds) for rows in np.array_split(A, WORKERS)]

    def product(w: Floats) -> Floats:
        held = ray.put(w)
        return np.concatenate(ray.get([a.product.remote(held) for a in actors]))

    try:
        yield product
    finally:
        for a in actors:
            ray.kill(a)


@contextmanager
def dask_actors(A: Floats, seconds: float) -> Iterator[Callable[[Floats], Floats]]:
    """One Dask actor a worker, called directly; one call each, one result each."""
    import distributed

    untyped: Any = distributed
    with (
        untyped.LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
        untyped.Client(cluster, direct_to_workers=True, set_as_default=True) as client,
    ):
        addresses = list(client.scheduler_info(n_workers=-1)["workers"])
        futures = [
            client.submit(
                Rows, rows, seconds, actor=True, workers=[at], allow_other_workers=False, pure=False
            )
            for rows, at in zip(np.array_split(A, WORKERS), addresses, strict=True)
        ]
        actors: list[Any] = [future.result() for future in futures]

        def product(w: Floats) -> Floats:
            calls = [a.product(w) for a in actors]
            return np.concatenate([call.result() for call in calls])

        yield product


@contextmanager
def mpi_polling(A: Floats, seconds: float) -> Iterator[Callable[[Floats], Floats]]:
    """Spawned ranks; a nonblocking send and receive each, tested in turn with a short back-off."""
    from mpi4py import MPI

    comm = MPI.COMM_SELF.Spawn(
        sys.executable, ["-c", "from kofn.cli.bare import serve_mpi; serve_mpi()"], WORKERS
    )
    parts = np.array_split(A, WORKERS)
    for rank, rows in enumerate(parts):
        comm.send((rows, seconds), rank)

    def product(w: Floats) -> Floats:
        found = [np.empty(len(rows)) for rows in parts]
        sends = [comm.Isend(w, rank, 1) for rank in range(WORKERS)]
        open_ = {rank: comm.Irecv(found[rank], rank, 2) for rank in range(WORKERS)}
        nap = 0.0
        while open_:
            done = [rank for rank, request in open_.items() if request.Test()]
            for rank in done:
                del open_[rank]
            nap = 0.0 if done else min(5e-3, nap + 5e-5)
            time.sleep(nap)
        MPI.Request.Waitall(sends)
        return np.concatenate(found)

    try:
        yield product
    finally:
        for rank in range(WORKERS):
            comm.Send(np.empty(0), rank, 3)
        comm.Disconnect()


def serve_mpi() -> None:
    """A spawned rank: multiply until told to stop."""
    from mpi4py import MPI

    parent = MPI.Comm.Get_parent()
    mine = Rows(*parent.recv())
    w = np.empty(mine.rows.shape[1])
    status = MPI.Status()
    while True:
        nap = 0.0
        while not parent.Iprobe(0, MPI.ANY_TAG, status):
            nap = min(5e-3, nap + 5e-5)
            time.sleep(nap)
        if status.Get_tag() == 3:
            parent.Recv(np.empty(0), 0, 3)
            break
        parent.Recv(w, 0, 1)
        parent.Send(mine.product(w), 0, 2)
    parent.Disconnect()


PRIMITIVES: dict[str, Primitive] = {
    "local": pipes,
    "ray": ray_actors,
    "dask": dask_actors,
    "mpi": mpi_polling,
}
