"""Plain mpi4py loops for sums of gradients: what kofn is held against.

`main` broadcasts, computes and gathers with MPI's collectives, which spin while they wait: the
quickest there is, as long as the cores are its own. Between blocks of rounds its ranks sleep, or
they would take the cores from what is measured in turn with them. `polling` sends to each and
receives from each without blocking, and naps between two looks: it leaves the cores to the work.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .bare import WORKERS, Rows, _mpi_round, _serve_mpi, answer

Floats = NDArray[np.float64]
NAP = 1e-3  # seconds between two looks for a block to begin


def main(folder: str, seconds: float) -> None:
    """Every rank: rank 0 holds no rows."""
    from mpi4py import MPI

    threadpool_limits(1)
    world = MPI.COMM_WORLD
    A = np.load(Path(folder) / "A.npy")
    part = np.array_split(A, WORKERS)[max(0, world.Get_rank() - 1)]
    if world.Get_rank():
        _serve(world, part)
    else:
        _answer(world, A.shape[1])


class Slopes(Rows):
    """Some rows, and the gradient of ½‖rows · w‖²."""

    def product(self, w: Floats) -> Floats:
        return np.asarray(self.rows.T @ (self.rows @ w))


def polling(folder: str, seconds: float) -> None:
    """Every rank: rank 0 holds no rows."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    A = np.load(Path(folder) / "A.npy")
    if world.Get_rank():
        part = np.array_split(A, WORKERS)[world.Get_rank() - 1]
        _serve_mpi(world, Slopes(part, seconds))
        return
    replies = [np.empty(A.shape[1]) for _ in range(WORKERS)]  # as long as these
    answer(lambda w: _mpi_round(world, replies, w).reshape(WORKERS, -1).sum(axis=0), A.shape[1])
    for rank in range(1, WORKERS + 1):
        world.Send(np.empty(0), rank, 3)


def gather(world: Any, w: Floats, mine: Floats, all: Floats | None) -> None:
    """One round: w to everybody, everybody's gradient back."""
    world.Bcast(w, 0)
    world.Gather(mine, all, 0)


def _serve(world: Any, part: Floats) -> None:
    w, rounds = np.empty(part.shape[1]), np.empty(1, dtype=np.int64)
    while True:
        while not world.Iprobe(0, 1):
            time.sleep(NAP)
        world.Recv(rounds, 0, 1)
        if not rounds[0]:
            return
        world.Barrier()
        for _ in range(int(rounds[0])):
            world.Bcast(w, 0)
            world.Gather(part.T @ (part @ w), None, 0)


def _answer(world: Any, columns: int) -> None:
    all = np.empty((WORKERS + 1, columns))
    none = np.zeros(columns)

    def begin(rounds: int) -> None:
        for rank in range(1, WORKERS + 1):
            world.Send(np.array([rounds]), rank, 1)

    for line in sys.stdin:
        question = json.loads(line)
        if "stop" in question:
            break
        w = np.asarray(question["w"]) if "w" in question else np.ones(columns)
        rounds = question.get("rounds", 1)
        begin(rounds)
        world.Barrier()
        seconds = []
        total = none
        for _ in range(rounds):
            start = time.perf_counter()
            gather(world, w, none, all)
            total = all.sum(axis=0)
            seconds.append(time.perf_counter() - start)
        print(json.dumps(total.tolist() if "w" in question else seconds), flush=True)
    begin(0)
