"""Xᵀ D X, the curvature of a sum of squares, of the rows in plain blocks or in this process.

Shares that are plain blocks need no decoding. Where one is lost or late, its rows are left out. The
result has the fraction of rows that are in it; the Gram of a part is a good estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..model import Command, Event, ProductReport, Record, Reply, Task
from ..rounds.lateness import Late
from ..rounds.watch import WatchedRound
from ..threads import cores, each
from . import work
from .decode import plain
from .verify import Shaped

if TYPE_CHECKING:
    from .matrix import CodedMatrix

Floats = NDArray[np.float64]

PATIENT = 4.0  # times what half of them took: without all rows several other passes are needed


@dataclass(frozen=True)
class Gram:
    """Σ w x xᵀ (d, d) over rows x of X, and Uᵀ X (c, d) of the same; w is the last column of U.

    `part`: how much of Σ w that is; `whole`: whether all rows are in it.
    """

    squares: Floats
    sums: Floats
    part: float
    whole: bool


class GramRound(WatchedRound):
    """One task each for some workers; over when all that are counted on have ended theirs."""

    what = "X.T @ D @ X"

    def __init__(
        self,
        id: int,
        key: str,
        tasks: Sequence[Task],
        shares: Mapping[int, int],
        late: Late | None,
        resting: Collection[int],
    ) -> None:
        super().__init__(id, key, 0, shares, late, resting)
        self.values: dict[int, Any] = {}  # by worker
        self._tasks = tasks

    @property
    def rule(self) -> str:
        return "those that are not late have answered"

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        self.done = not self._tasks
        return [self._dispatch(task) for task in self._tasks]

    def on(self, event: Event) -> Sequence[Command]:
        commands = super().on(event)
        self.done = not any(self._quick(worker) for worker in self._open.values())
        return commands

    def counts(self) -> dict[str, Any]:
        """What its report has."""
        used = sum(task.cost for task in self._tasks if task.worker in self.values)
        bound = {"eta": 1.0, "error_bound": None}  # nothing is decoded
        return {"rows_read": dict(self.read), "rows_used": int(used), **bound}

    def last_resort(self, time: float) -> Sequence[Command]:
        self.done = True
        return ()

    def _replied(self, event: Reply) -> Sequence[Command]:
        if event.what is not None:
            self.values[event.worker] = event.value
        return ()

    def _mend(self) -> Sequence[Command]:
        return ()


def gram_here(X: NDArray[Any], U: Floats, shift: Floats | None = None) -> Gram | None:
    """The Gram of an array in this process, less `shift` (d,) in each row: by threads of it.

    One pass over X; no memory beside it but a few slices. None where it is beyond all floats.
    """
    rows, d = X.shape
    step = max(1, work.CACHED // d)
    many = min(cores(), -(-rows // step))
    cuts = [i * rows // many for i in range(many + 1)]
    totals: dict[int, Floats] = {}

    def add(first: int, last: int) -> None:
        total = np.zeros((d + U.shape[1], d))
        for a, b in work.slices([(first, last)], step):
            x = np.asarray(X[a:b], np.float64)
            work.add_gram(total, x if shift is None else x - shift, U[a:b])
        totals[first] = total

    with np.errstate(over="ignore", invalid="ignore"):
        each(add, cuts[:-1], cuts[1:])
    total = np.asarray(sum(totals[first] for first in cuts[:-1]))
    if not np.isfinite(total).all():
        return None
    return Gram(total[:d], total[d:], 1.0, True)


def gram(X: CodedMatrix, U: Floats) -> Gram | None:
    """The Gram of X (N, d) with weights and more columns U (N, c), by those that are there.

    One pass over the plain blocks. None where workers cannot say: no share that is there is a
    block, rows were scaled, or replies are to be verified.
    """
    code, rows = X.code, X._rows
    usual = X._stored is code and X._scales is None and X._options.verify is None
    if not (usual and isinstance(code, AnyKOfN) and X._values) or X.sparse:
        return None
    driver, planner, holders, d = X._driver, X._planner, X._holders, X.shape[1]
    driver.check()
    with driver.lock:
        driver.settle()
        began = driver.engine.now()
        ready = planner.answering(holders.ready(), code.k)
        having: dict[int, list[int]] = {}
        for worker, share in ready.items():
            if (block := plain(code, share)) is not None:
                having.setdefault(block, []).append(worker)
        if not having:
            return None
        tasks, parts, id = list[Task](), dict[int, float](), driver.next_round()
        for block, workers in having.items():
            begin = block * rows
            there = max(0, min(rows, X.shape[0] - begin))  # the last block ends in zeros
            cuts = [i * there // len(workers) for i in range(len(workers) + 1)]
            for worker, (a, b) in zip(workers, pairwise(cuts), strict=True):
                if a < b:
                    some = U[begin + a : begin + b]
                    parts[worker] = float(some[:, -1].sum())
                    args = (holders.key, worker, ((a, b),), d, some)
                    number = driver.next_task()
                    tasks.append(Task(number, id, worker, work.gram, args, worker, b - a))
        late = X._options.late and Late(factor=PATIENT)
        round = GramRound(id, holders.key, tasks, ready, late, ())
        round.verifier = Shaped((d + U.shape[1], d))
        driver.run(round, None, holders.supply)
        planner.ended(round)
        ended = driver.engine.now()
        X._report = round.report(ProductReport, ready, (began, ended, ended), **round.counts())
        driver.log.append(Record.result(ended, X._report))
    part = sum(parts[worker] for worker in round.values) / float(U[:, -1].sum())
    total = np.asarray(sum(round.values[worker] for worker in sorted(round.values)))
    if not part > 0.0 or not np.isfinite(total).all():
        return None
    whole = len(round.values) == len(tasks) and len(having) == code.k
    return Gram(total[:d], total[d:], part, whole)
