"""Peers whose workers are ranks of one program: hand-written mpi4py, and torch's DDP on gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar

import numpy as np

from ..bare_mpi import await_all, await_message
from .libraries import Peer, above_target
from .works import WORKERS, WORKS, Data, Floats, Work, paused

_TASK, _REPLY = 1, 2  # tags


class Collectives(Peer):
    """bcast, scatter and gather of one communicator: all ranks take part, and spin as they wait."""

    needs: ClassVar[tuple[str, ...]] = ("mpi4py",)
    ranks: ClassVar[bool] = True

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        from mpi4py import MPI

        self.world: Any = MPI.COMM_WORLD

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        self.delays = delays
        self._send(name)
        pids: list[int] = self.world.gather(0, 0)[1:]
        return pids

    def _send(self, what: Any) -> None:
        for rank in range(1, WORKERS + 1):
            self.world.send(what, rank, _TASK)

    def evaluate(self, work: Work, operand: Any) -> Floats:
        world = self.world
        self._begin()
        if work.array is None:
            world.scatter([None, *work.operands(operand)], 0)
        else:
            world.Bcast(np.ascontiguousarray(operand), 0)
        world.scatter([0.0, *self.pauses()], 0)
        lengths = [int(np.prod(shape)) for shape in self._shapes(work, operand)]
        gathered = np.empty(sum(lengths))
        world.Gatherv(np.empty(0), [gathered, [0, *lengths]], 0)
        pieces = np.split(gathered, np.cumsum(lengths)[:-1])
        return work.combine(
            [p.reshape(s) for p, s in zip(pieces, self._shapes(work, operand), strict=True)]
        )

    def _begin(self) -> None:
        """Ranks sleep between works, or they would take the cores from the peers in turn."""
        if not getattr(self, "awake", False):
            self._send("round")
            self.awake = True
        self.world.bcast(True, 0)

    def rest(self) -> None:
        """Let the ranks sleep."""
        if getattr(self, "awake", False):
            self.world.bcast(False, 0)
            self.awake = False

    def _shapes(self, work: Work, operand: Any) -> list[tuple[int, ...]]:
        if work.array is None:
            return [(len(x), y.shape[1]) for x, y in work.operands(operand)]
        if work.fn.__name__ == "logistic":
            return [(len(operand) + 1,)] * WORKERS
        if work.fn.__name__ == "kernels":
            return [(len(operand),)] * WORKERS
        if work.adds:
            return [operand.shape] * WORKERS
        rows = [len(b) for b in self.data.blocks(work)]
        return [(n, *operand.shape[1:]) for n in rows]


class Polling(Collectives):
    """Messages to each and from each, tested in turn with a short pause: cores stay free."""

    def evaluate(self, work: Work, operand: Any) -> Floats:
        world = self.world
        tasks = zip(work.operands(operand), self.pauses(), strict=True)
        sends = [world.isend(task, rank + 1, _TASK) for rank, task in enumerate(tasks)]
        shapes = self._shapes(work, operand)
        replies = [np.empty(shape) for shape in shapes]
        waiting = {i: world.Irecv(r, i + 1, _REPLY) for i, r in enumerate(replies)}
        await_all(waiting, 1e-3)
        for send in sends:
            send.wait()
        return work.combine(replies)


def serve(data: Data) -> bool:
    """Every rank but the first: do what rank 0 sends, until it is told to stop."""
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    rank = world.Get_rank() - 1
    if rank < 0:
        return False
    work, block = WORKS["products"], None
    while True:
        await_message(world.iprobe, _TASK, 1e-3)
        task = world.recv(source=0, tag=_TASK)
        if task == "stop":
            return True
        if task == "round":
            while world.bcast(None, 0):
                _collective(world, data, work, block)
        elif isinstance(task, str):
            work = WORKS[task]
            block = data.blocks(work)[rank]
            block = None if block is None else np.array(block)
            world.gather(os.getpid(), 0)
        else:
            world.Send(np.ascontiguousarray(paused(work.fn, block, *task)), 0, _REPLY)


def _collective(world: Any, data: Data, work: Work, block: Any) -> None:
    if work.array is None:
        operand = world.scatter(None, 0)
    else:
        operand = np.empty(_operand_shape(data, work, block))
        world.Bcast(operand, 0)
    pause = world.scatter(None, 0)
    world.Gatherv(np.ascontiguousarray(paused(work.fn, block, operand, pause)), None, 0)


def _operand_shape(data: Data, work: Work, block: Any) -> tuple[int, ...]:
    from .works import COMPONENTS

    columns = block.shape[1]
    shapes: dict[str, Callable[[], tuple[int, ...]]] = {
        "product": lambda: (columns,),
        "gram": lambda: (columns, COMPONENTS),
        "logistic": lambda: (columns - 1,),
        "kernels": lambda: data.array("inputs").shape,
    }
    return shapes[work.fn.__name__]()


class DDP(Peer):
    """DistributedDataParallel on gloo: six processes, L-BFGS on averaged gradients."""

    needs: ClassVar[tuple[str, ...]] = ("torch",)
    does: ClassVar[tuple[str, ...]] = ("logistic",)

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        import torch.multiprocessing

        mp: Any = torch.multiprocessing
        self.delays = delays
        context: Any = mp.get_context("spawn")
        self.ready, self.go, self.answers = context.Queue(), context.Event(), context.Queue()
        address = f"tcp://127.0.0.1:{20_000 + (os.getpid() + int(time.time())) % 20_000}"
        more = (str(self.data.folder), address, delays, self.ready, self.go, self.answers)
        self.started: Any = mp.spawn(train, more, WORKERS, join=False)
        there: list[tuple[int, int]] = []
        while len(there) < WORKERS:
            self.started.join(timeout=0.05)  # raises where a process has died
            with suppress(Empty):
                there.append(self.ready.get(timeout=0.05))
        return [pid for _, pid in sorted(there)]

    def evaluate(self, work: Work, operand: Any) -> Floats:
        """It has rounds of its own."""
        raise NotImplementedError

    def whole(self, name: str) -> float | None:
        self.go.set()
        while not self.started.join(timeout=0.05):
            pass  # raises where a process has died
        w = np.asarray(self.answers.get(timeout=5))
        return above_target(self.data, self.data.array("cases"), w)


def train(
    rank: int, folder: str, address: str, delays: Floats, ready: Any, go: Any, answers: Any
) -> None:
    """One process of DDP."""
    from importlib import import_module

    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    parallel: Any = import_module("torch.nn.parallel")
    torch.set_num_threads(1)
    data = Data(Path(folder))
    block = torch.from_numpy(np.array(data.blocks(WORKS["logistic"])[rank]))
    X, y = block[:, :-1].contiguous(), block[:, -1:]
    whole = len(data.array("cases"))
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORKERS)
    layer = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    model = parallel.DistributedDataParallel(layer)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, line_search_fn="strong_wolfe")
    ready.put((rank, os.getpid()))
    go.wait()
    evaluated, seen = 0, [float("inf")]

    def closure() -> Any:
        nonlocal evaluated
        time.sleep(float(delays[evaluated % len(delays), rank]))
        evaluated += 1
        optimizer.zero_grad()
        # DDP takes the mean of the gradients, so each rank scales its sum.
        loss = torch.nn.functional.softplus(-y * model(X)).sum() * (WORKERS / whole)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        seen[0] = float(total) / WORKERS * whole
        return total / WORKERS

    while seen[0] > data.target and evaluated < 1000:
        optimizer.param_groups[0]["max_iter"] = 1
        optimizer.step(closure)
    if rank == 0:
        answers.put(layer.weight.detach().numpy().ravel().tolist())
    dist.barrier()
    dist.destroy_process_group()
