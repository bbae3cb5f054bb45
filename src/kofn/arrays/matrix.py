"""CodedMatrix: a matrix that lives as shares on workers and keeps multiplying."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes.linear import error_bound
from ..codes.mds import MDSCode
from ..errors import BadInput, Inaccurate
from ..model import Report, Run, Task
from ..rounds import Cover, Drive, ElasticRound, Late, Windows, cyclic
from ..rounds.windows import with_extra
from . import checks, work
from .decode import Segment, assemble, segments, weak

TOLERANCE = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 1e-2}


class _Plan:
    """Windows for one set of shares, and how to decode them. Made once a membership change."""

    def __init__(self, code: MDSCode, holders: dict[int, int], rows: int, values: bool) -> None:
        self.holders = holders  # worker -> share
        lanes = tuple(sorted(holders.values()))
        self.places = {lane: i for i, lane in enumerate(lanes)}
        self.windows: Windows = cyclic(lanes, rows, code.k)
        self.segments: list[Segment] = []
        self.eta: float | None = None
        if values and len(holders) >= code.k:
            full = self._decoding(code)
            while poor := weak(code, full):
                asked = self.windows.asked.sum()
                self.windows = with_extra(self.windows, poor)
                if self.windows.asked.sum() == asked:
                    break  # everyone is asked already: the bound will say how good it is
                full = self._decoding(code)

    def _decoding(self, code: MDSCode) -> Cover:
        full = Cover(self.windows)
        full.have[:] = full.asked
        self.segments = segments(code, full)
        self.eta = max(s.weights.eta for s in self.segments)
        return full


class _Product:
    """The work of one product: tasks over runs of a share."""

    def __init__(self, drive: Drive, code: MDSCode, key: str) -> None:
        self.key = key
        self._drive, self._code = drive, code
        self._values = drive.engine.capabilities.values

    def task(self, round: int, worker: int, runs: tuple[Run, ...]) -> Task:
        rows = sum(last - first for first, last in runs)
        task = self._drive.next_task()
        return Task(task, round, worker, work.product, (self.key, runs), runs, rows)

    def weak(self, cover: Cover) -> list[int]:
        return weak(self._code, cover) if self._values else []


class CodedMatrix:
    """A matrix of which any `k` of `n` shares are enough. Made by `Cluster.encode`.

    Every live worker holds one share of ceil(N / k) rows and reads about N / n of them per
    product, n being the number of live workers. The source is kept (not copied) to make the
    shares of workers that join later.
    """

    def __init__(
        self, drive: Drive, A: NDArray[Any], code: MDSCode, tolerance: float | None, check: bool
    ) -> None:
        self.code = code
        self.shape: tuple[int, int] = (A.shape[0], A.shape[1])
        self.dtype = A.dtype
        self.tolerance = TOLERANCE[A.dtype] if tolerance is None else tolerance
        self._drive, self._source, self._check = drive, A, check
        self._late = Late()
        self._key = f"share-{drive.next_task()}"
        self._rows = code.block_rows(A.shape[0])
        self._shares: dict[int, int] = {}  # worker -> the share it holds or is being given
        self._plan: _Plan | None = None
        self._report: Report | None = None
        self._values = drive.engine.capabilities.values
        self._work = _Product(drive, code, self._key)
        self._enlist()
        drive.await_stored(self._key, list(self._shares))

    @property
    def report(self) -> Report | None:
        """What the last product did; None before the first."""
        return self._report

    @property
    def shares(self) -> dict[int, int]:
        """Which share each live worker holds."""
        self._drive.settle()
        return dict(self._ready())

    def windows(self) -> dict[int, tuple[Run, ...]]:
        """Rows of its share that each live worker reads in the next product, as runs."""
        self._drive.settle()
        plan = self._planned()
        return {w: plan.windows.runs[plan.places[share]] for w, share in plan.holders.items()}

    def __matmul__(self, w: object) -> NDArray[Any]:
        """X @ w for a vector (d,) or columns (d, c): exact to `report.error_bound`.

        Any k live workers are enough. Raises TooFewWorkers below that, and keeps the matrix
        usable: the next product works as soon as enough workers have joined.
        """
        operand = checks.operand(w, self.shape[1], self.dtype, self._check)
        return self._product(operand)

    def __repr__(self) -> str:
        return (
            f"<CodedMatrix {self.shape[0]} x {self.shape[1]} {self.dtype}, any {self.code.k} of "
            f"{self.code.n} shares; {len(self._ready())} live>"
        )

    # One product: plan, round, decode.

    def _product(self, operand: NDArray[Any]) -> NDArray[Any]:
        drive = self._drive
        began = drive.engine.now()
        drive.settle()
        plan = self._planned()
        round = ElasticRound(drive.next_round(), plan.windows, self._shares, self._work, self._late)
        drive.run(round, operand, self._supply)
        gathered = drive.engine.now()
        result, eta = self._decode(round, plan, operand)
        ended = drive.engine.now()
        bound = None if eta is None else error_bound(self.shape[1], self.dtype, eta)
        cover = round.cover
        self._report = Report(
            round=round.id,
            live=tuple(plan.holders),
            rows_read=dict(round.read),
            rows_used=cover.rows_used,
            rows_wasted=cover.delivered_rows - cover.rows_used,
            rows_topped_up=cover.topped_up_rows,
            late=tuple(round.late),
            lost=tuple(round.lost),
            joined=tuple(round.joined),
            restarted=cover.repeated_rows > 0,
            seconds={
                "wait": gathered - began,
                "decode": ended - gathered,
                "total": ended - began,
            },
            eta=eta,
            error_bound=bound,
        )
        if bound is not None and eta is not None and bound > self.tolerance:
            raise Inaccurate(bound, self.tolerance, eta)
        return result

    def _decode(
        self, round: ElasticRound, plan: _Plan, operand: NDArray[Any]
    ) -> tuple[NDArray[Any], float | None]:
        width = 1 if operand.ndim == 1 else operand.shape[1]
        shape = (self.shape[0], *operand.shape[1:])
        if not self._values:
            return np.full(shape, np.nan, self.dtype), None
        if width == 0:
            return np.empty(shape, self.dtype), plan.eta
        if round.cover.as_planned:
            parts, places, eta = plan.segments, plan.places, plan.eta
        else:
            parts = segments(self.code, round.cover)
            places = {lane: i for i, lane in enumerate(round.cover.lanes)}
            eta = max(s.weights.eta for s in parts)
        stack = (len(places), self._rows, width)
        return assemble(parts, places, round.values, stack, self.shape[0]).reshape(shape), eta

    # Who holds what.

    def _ready(self) -> dict[int, int]:
        """Live workers that hold their share, in the order of shares."""
        stored, key = self._drive.stored, self._key
        held = [(s, w) for w, s in self._shares.items() if key in stored.get(w, ())]
        return {w: s for s, w in sorted(held)}

    def _planned(self) -> _Plan:
        self._enlist()
        ready = self._ready()
        if len(ready) < self.code.k:
            # Those that are fetching their share are worth waiting for now.
            self._drive.await_stored(self._key, list(self._shares))
            ready = self._ready()
        silent = self._drive.silent(self._late.least)
        if silent and len(ready.keys() - silent) >= self.code.k:
            # Still at the work of an earlier round: stopped, or far behind. It is counted on
            # again as soon as it answers.
            ready = {worker: share for worker, share in ready.items() if worker not in silent}
        if self._plan is None or self._plan.holders != ready:
            self._plan = _Plan(self.code, ready, self._rows, self._values)
        return self._plan

    def _enlist(self) -> None:
        """Give a share to each live worker that has none, while there are shares left."""
        live = self._drive.stored
        if len(self._shares) == len(live) and self._shares.keys() == live.keys():
            return
        for worker in live:
            self._supply(worker)

    def _supply(self, worker: int) -> None:
        if worker in self._shares or worker not in self._drive.stored:
            return
        held = {s for w, s in self._shares.items() if w in self._drive.stored}
        free = next((s for s in range(self.code.n) if s not in held), None)
        if free is not None:
            self._shares[worker] = free
            value = self.code.encode_share(free, self._source) if self._values else None
            self._drive.engine.put(worker, self._key, value)


def threshold(k: object, n: object) -> MDSCode:
    """Return the code for a threshold k over n shares, or say what is wrong with them."""
    count = checks.whole(n, "n (shares)", 1)
    need = checks.whole(k, "k (the threshold)", 1)
    if need > count:
        raise BadInput(
            f"k must be at most the number of shares; got k={need} and n={count}. "
            f"Use k <= {count}, or more workers."
        )
    return MDSCode(count, need)
