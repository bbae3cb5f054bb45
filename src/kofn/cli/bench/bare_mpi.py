"""Plain mpi4py programs that do rounds in three ways: what kofn is held against.

- "collectives": Bcast and Gatherv, which spin while they wait.
- "spinning": a message to each and one from each, in whichever order they come; MPI spins.
- "napping": the same, tested in turn with a short back-off: it leaves the cores to the work.

Who spins is the quickest as long as the cores are its own. Between blocks of rounds all ranks
sleep, or they would take the cores from what is measured in turn with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .bare import WORKERS, Floats, Rows, answer

NAP = 0.01  # seconds between two looks for a block to begin
_BLOCK, _OPERAND, _REPLY = 1, 2, 3  # tags


class Slopes(Rows):
    """Some rows, and the gradient of ½‖rows · w‖²."""

    def product(self, w: Floats) -> Floats:
        return np.asarray(self.rows.T @ (self.rows @ w))


def products(folder: str, seconds: float) -> None:
    """Every rank of a program that multiplies; rank 0 holds no rows."""
    run(folder, seconds, Rows, lambda rows, columns: rows, lambda replies: replies)


def sums(folder: str, seconds: float) -> None:
    """Every rank of a program that adds up gradients; rank 0 holds no rows."""

    def total(replies: Floats) -> Floats:
        return np.asarray(replies.reshape(WORKERS, -1).sum(axis=0))

    run(folder, seconds, Slopes, lambda rows, columns: columns, total)


def run(
    folder: str,
    seconds: float,
    kind: type[Rows],
    length: Callable[[int, int], int],
    total: Callable[[Floats], Floats],
) -> None:
    """Every rank: `kind` computes, replies have `length` of (rows, columns), `total` takes all."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    A = np.load(Path(folder) / "A.npy")
    parts = np.array_split(A, WORKERS)
    if world.Get_rank():
        _serve(world, kind(parts[world.Get_rank() - 1], seconds))
        return
    replies = _Replies([length(*part.shape) for part in parts])

    def begin(way: str, rounds: int) -> None:
        for rank in range(1, WORKERS + 1):
            world.Send(np.array([list(WAYS).index(way), rounds]), rank, _BLOCK)
        world.Barrier()

    def product(way: str, w: Floats) -> Floats:
        WAYS[way][0](world, w, replies)
        return total(replies.all)

    answer(product, A.shape[1], begin)
    begin("collectives", 0)


class _Replies:
    """Where the replies of all workers lie, one after the other."""

    def __init__(self, lengths: list[int]) -> None:
        self.all = np.empty(sum(lengths))
        self.counts = [0, *lengths]  # of each rank
        self.each = np.split(self.all, np.cumsum(lengths)[:-1])


def _serve(world: Any, mine: Rows) -> None:
    w, block = np.empty(mine.rows.shape[1]), np.empty(2, dtype=np.int64)
    while True:
        while not world.Iprobe(0, _BLOCK):
            time.sleep(NAP)
        world.Recv(block, 0, _BLOCK)
        world.Barrier()
        serve = list(WAYS.values())[block[0]][1]
        for _ in range(int(block[1])):
            serve(world, mine, w)
        if not block[1]:
            return


def _gather(world: Any, w: Floats, replies: _Replies) -> None:
    world.Bcast(w, 0)
    world.Gatherv(np.empty(0), [replies.all, replies.counts], 0)


def _serve_gather(world: Any, mine: Rows, w: Floats) -> None:
    world.Bcast(w, 0)
    world.Gatherv(mine.product(w), None, 0)


def _spin(world: Any, w: Floats, replies: _Replies) -> None:
    from mpi4py import MPI

    requests = [world.Irecv(part, i + 1, _REPLY) for i, part in enumerate(replies.each)]
    requests += [world.Isend(w, rank + 1, _OPERAND) for rank in range(WORKERS)]
    MPI.Request.Waitall(requests)


def _serve_spin(world: Any, mine: Rows, w: Floats) -> None:
    world.Recv(w, 0, _OPERAND)
    world.Send(mine.product(w), 0, _REPLY)


def _nap(world: Any, w: Floats, replies: _Replies) -> None:
    sends = [world.Isend(w, rank + 1, _OPERAND) for rank in range(WORKERS)]
    waiting = {i: world.Irecv(part, i + 1, _REPLY) for i, part in enumerate(replies.each)}
    await_all(waiting, 5e-3)
    for send in sends:
        send.Wait()


def await_all(waiting: dict[int, Any], most: float) -> None:
    """Test requests in turn until all are done, with naps between of `most` seconds at most."""
    nap = 0.0
    while waiting:
        done = [i for i, request in waiting.items() if request.Test()]
        for i in done:
            del waiting[i]
        nap = 0.0 if done else min(most, nap + 5e-5)
        time.sleep(nap)


def await_message(probe: Callable[..., bool], tag: int, most: float) -> None:
    """The same until rank 0 has sent something."""
    nap = 0.0
    while not probe(0, tag):
        nap = min(most, nap + 5e-5)
        time.sleep(nap)


def _serve_nap(world: Any, mine: Rows, w: Floats) -> None:
    await_message(world.Iprobe, _OPERAND, 5e-3)
    world.Recv(w, 0, _OPERAND)
    sent = world.Isend(mine.product(w), 0, _REPLY)
    while not sent.Test():
        time.sleep(5e-5)


WAYS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "collectives": (_gather, _serve_gather),
    "spinning": (_spin, _serve_spin),
    "napping": (_nap, _serve_nap),
}
