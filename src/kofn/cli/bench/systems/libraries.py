"""The peers, each as its own guide recommends: who holds the blocks, and how a round is asked.

`prepare` puts the blocks of a work where they belong, restores what a setting before has broken,
and returns the process ids of the workers. `evaluate` is one round: operand in, whole value out.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .works import WORKERS, Data, Floats, Work, paused


class Peer(ABC):
    """A system that does the works."""

    needs: ClassVar[tuple[str, ...]] = ()  # modules that must be installed
    does: ClassVar[tuple[str, ...]] = ("products", "logistic", "sequence", "sums", "svd")
    delayed: ClassVar[bool] = True  # whether it has tasks in which delays can be slept
    alone: ClassVar[bool] = False  # one process, which has the threads of all cores

    def __init__(self, data: Data) -> None:
        self.data = data
        self.delays: Floats = np.zeros((1, WORKERS))
        self.round = 0

    @abstractmethod
    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        """Be ready for a work with these delays; the ids of the worker processes."""

    @abstractmethod
    def evaluate(self, work: Work, operand: Any) -> Floats:
        """One round."""

    def pauses(self) -> list[float]:
        """Seconds that the task of each block sleeps in the next round."""
        self.round += 1
        pauses: list[float] = self.delays[self.round % len(self.delays)].tolist()
        return pauses

    def whole(self, name: str) -> float | None:
        """Do a work that has no rounds to be seen; how far off it is, None if it has rounds."""
        return None

    def results(self, work: Work, jobs: Iterator[Any]) -> Iterator[Floats]:
        """The rounds of a sequence, one after the other."""
        for job in jobs:
            yield self.evaluate(work, job)


class Kofn(Peer):
    """Six local workers, any three are enough."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.cluster: Any = None
        self.call: Any = None  # of an operand: what a round is, made by `prepare`

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        from .... import FractionalRepetition, Polynomial, connect
        from ....engines.local import LocalEngine
        from ....engines.paced import Paced
        from .settings import Table

        whole = self.cluster is not None and len(self.cluster.workers) == WORKERS
        if not whole or delays is not self.delays:
            if self.cluster is not None:
                self.cluster.close()
            engine: Any = LocalEngine(WORKERS)
            self.cluster = connect(Paced(engine, Table(delays)) if delays.any() else engine)
        self.delays = delays
        if work.array is None:
            self.stream = self.cluster.sequence(Polynomial(3, 1))
        elif not work.adds:
            # Where waits are random, two more workers are asked for every row than are needed.
            margin = 2 if delays.any() else 0
            X = self.cluster.encode(np.asarray(self.data.array(work.array)), k=3, margin=margin)
            self.call = lambda w: X @ w
        else:
            # All workers have the centres, which are small; what is large is left to kofn.
            small = (FractionalRepetition(WORKERS), 2 * WORKERS)
            code, many = small if name == "sums" else (None, None)
            parts = self.cluster.parts(np.asarray(self.data.array(work.array)), code, parts=many)
            self.call = lambda x: parts.sum(work.fn, x).value
        return [self.cluster.engine.pid(worker) for worker in self.cluster.workers]

    def evaluate(self, work: Work, operand: Any) -> Floats:
        return np.asarray(self.call(operand))

    def results(self, work: Work, jobs: Iterator[Any]) -> Iterator[Floats]:
        if work.array is not None:
            yield from super().results(work, jobs)
            return
        tickets: list[Any] = []
        for X, Y in jobs:
            tickets.append(self.stream.submit(X, Y))
            if len(tickets) > self.stream.delay:
                yield tickets.pop(0).result()
        for ticket in tickets:
            yield ticket.result()


class Joblib(Peer):
    """`Parallel` on loky's processes; the data are mapped from a file, as its guide says."""

    needs: ClassVar[tuple[str, ...]] = ("joblib",)

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        from joblib import Parallel

        self.parallel = Parallel(n_jobs=WORKERS, batch_size=1)

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        from joblib import delayed
        from joblib.externals.loky import get_reusable_executor

        self.delays = delays
        self.parallel(delayed(time.sleep)(0.05) for _ in range(2 * WORKERS))
        return [p.pid for p in get_reusable_executor()._processes.values()]

    def evaluate(self, work: Work, operand: Any) -> Floats:
        from joblib import delayed

        task, both = delayed(mapped), zip(work.operands(operand), self.pauses(), strict=True)
        calls = (
            task(work.fn, self.data.folder, work.array, i, x, s) for i, (x, s) in enumerate(both)
        )
        return work.combine(self.parallel(calls))


def mapped(fn: Any, folder: Path, array: str | None, i: int, operand: Any, pause: float) -> Floats:
    """Of a block that the worker maps itself: one thread, as many workers as blocks."""
    block = None if array is None else map_block(folder, array, i)
    return paused(fn, block, operand, pause)


def map_block(folder: Path, array: str, i: int) -> Floats:
    """A block of an array's file, mapped."""
    return np.array_split(np.load(folder / f"{array}.npy", mmap_mode="r"), WORKERS)[i]


def load_block(folder: Path, array: str, i: int) -> Floats:
    """A block of an array's file, in memory."""
    return np.array(map_block(folder, array, i))


class Ray(Peer):
    """One actor for each block, restarted and asked again where it is lost, as its guide says."""

    needs: ClassVar[tuple[str, ...]] = ("ray",)

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        # As urgent as everybody else's workers; Ray's own default is a niceness of 15.
        os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        kind: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Holder)
        self.actors = [kind.remote(data.folder, i) for i in range(WORKERS)]

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        import ray

        self.delays = delays
        pids: list[int] = ray.get([a.load.remote(work.array) for a in self.actors])
        return pids

    def evaluate(self, work: Work, operand: Any) -> Floats:
        import ray

        operands = work.operands(operand)
        if work.array is not None and np.size(operand) > 12_500:  # beyond 100 KB by the store
            operands = [ray.put(operand)] * WORKERS
        three = zip(self.actors, operands, self.pauses(), strict=True)
        calls = [a.ask.remote(work.fn, work.array, x, s) for a, x, s in three]
        return work.combine(ray.get(calls))


class Holder:
    """A worker that holds one block; started anew, it loads it again."""

    def __init__(self, folder: Path, i: int) -> None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
        self.folder, self.i = folder, i
        self.held: tuple[str | None, Any] = None, None

    def load(self, array: str | None) -> int:
        """Hold a block; the process that it is in."""
        if array != self.held[0]:
            block = None if array is None else load_block(self.folder, array, self.i)
            self.held = array, block
        return os.getpid()

    def ask(self, fn: Any, array: str | None, operand: Any, pause: float) -> Floats:
        """One round's part."""
        self.load(array)
        return paused(fn, self.held[1], operand, pause)


class Dask(Peer):
    """Arrays and delayed calls on a LocalCluster, whose nannies start lost workers again."""

    needs: ClassVar[tuple[str, ...]] = ("distributed", "dask.array")

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        import distributed

        untyped: Any = distributed
        here = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None}
        self.cluster = untyped.LocalCluster(**here)
        self.client = untyped.Client(self.cluster)

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        import dask.array
        import distributed

        da: Any = dask.array
        untyped_dask: Any = dask
        untyped: Any = distributed
        self.delays = delays
        self.client.wait_for_workers(WORKERS, timeout=30)
        self.X = None
        if work.array is not None:
            # Workers load their own blocks, as Dask's best practices say.
            load = untyped_dask.delayed(load_block, pure=False)
            self.X = da.concatenate(
                [
                    da.from_delayed(load(self.data.folder, work.array, i), block.shape, block.dtype)
                    for i, block in enumerate(self.data.blocks(work))
                ]
            ).persist()
            untyped.wait(self.X)
        return list(self.client.run(os.getpid).values())

    def evaluate(self, work: Work, operand: Any) -> Floats:
        import dask as typed

        dask: Any = typed
        X = self.X
        if X is not None and not self.delays.any():
            if work.fn.__name__ == "product":
                return np.asarray((X @ operand).compute())
            if work.fn.__name__ == "gram":
                return np.asarray((X.T @ (X @ operand)).compute())
        blocks = X.to_delayed().ravel() if X is not None else [None] * WORKERS
        task = dask.delayed(partial(paused, work.fn), pure=False)
        three = zip(blocks, work.operands(operand), self.pauses(), strict=True)
        return work.combine(list(dask.compute(*(task(b, x, s) for b, x, s in three))))


class DaskML(Dask):
    """Its own logistic regression and compressed SVD, on the same cluster."""

    needs: ClassVar[tuple[str, ...]] = ("dask_ml", "dask.array", "distributed")
    does: ClassVar[tuple[str, ...]] = ("logistic", "svd")
    delayed = False

    def whole(self, name: str) -> float | None:
        import dask.array

        da: Any = dask.array
        assert self.X is not None
        if name == "svd":
            _, values, _ = da.linalg.svd_compressed(self.X, 10, n_power_iter=2)
            return float(values.compute()[0] <= 0)
        from dask_ml.linear_model import LogisticRegression

        cases = self.data.array("cases")
        # Some columns are constant in the cases that are used: dask-ml cannot scale those.
        how = {"solver_kwargs": {"normalize": False}}
        model = LogisticRegression(solver="lbfgs", C=1e4, fit_intercept=False, **how)
        model.fit(self.X[:, :-1], self.X[:, -1] > 0)
        return above_target(self.data, cases, np.ravel(model.coef_))


class NumPy(Peer):
    """One process with a thread for each core: no workers, so only the process can be hit."""

    does: ClassVar[tuple[str, ...]] = ("products", "sequence", "sums", "svd")
    delayed = False
    alone = True

    def prepare(self, name: str, work: Work, delays: Floats) -> list[int]:
        self.array: Any = None if work.array is None else np.array(self.data.array(work.array))
        return [os.getpid()]

    def evaluate(self, work: Work, operand: Any) -> Floats:
        value: Floats = work.fn(self.array, operand)
        return value


class ScikitLearn(NumPy):
    """Its own logistic regression and randomized SVD, in one process as well."""

    needs: ClassVar[tuple[str, ...]] = ("sklearn",)
    does: ClassVar[tuple[str, ...]] = ("logistic", "svd")

    def whole(self, name: str) -> float | None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.utils.extmath import randomized_svd

        if name == "svd":
            values = randomized_svd(self.array, 10, n_iter=2, random_state=0)[1]
            return float(values[0] <= 0)
        model = LogisticRegression(C=1e4, fit_intercept=False, max_iter=1000)
        model.fit(self.array[:, :-1], self.array[:, -1])
        return above_target(self.data, self.array, model.coef_[0])


def above_target(data: Data, cases: Floats, w: Floats) -> float:
    """By how much of itself the loss is above the target."""
    from .works import logistic

    return max(0.0, float(logistic(np.asarray(cases), w)[-1] / data.target - 1))
