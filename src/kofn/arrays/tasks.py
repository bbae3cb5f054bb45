"""The tasks of each kind of pass over the shares of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes.polydot import PolyDotPass
from ..model import RowRange, Task
from ..rounds import Cover, RoundDriver
from ..rounds.reduce import Item
from . import work
from .decode import ETA_WANTED, Code, weak

Floats = NDArray[np.float64]


class _Work:
    """`worst`: the η above which a result is refused."""

    def __init__(
        self, driver: RoundDriver, code: Code, key: str, worst: float = float("inf")
    ) -> None:
        self.key, self.threshold, self.worst = key, code.k, worst
        self._driver, self._code = driver, code
        self._values = driver.engine.capabilities.values

    def weak(self, cover: Cover) -> list[int]:
        """Segments that need one more reply to decode well."""
        return weak(self._code, cover) if self._values else []

    def refused(self, cover: Cover) -> list[int]:
        """Segments that decode so poorly that the result would be refused."""
        return weak(self._code, cover, self.worst) if self._values else []


class Product(_Work):
    """The work of X @ w: tasks over runs of a share."""

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        task = self._driver.next_task()
        return Task(task, round, worker, work.product, (self.key, runs), runs, _rows(runs))


class Mixed(_Work):
    """The work of a pass over a grid: each share has its own mixture of the operand's blocks."""

    def __init__(
        self,
        driver: RoundDriver,
        code: PolyDotPass,
        key: str,
        worst: float,
        columns: int,
    ) -> None:
        super().__init__(driver, code, key, worst)
        self._pass, self._columns = code, columns

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        mixture = self._pass.operand(share)
        args = (self.key, runs, self._columns, mixture, self._pass.kind == "backward")
        task = self._driver.next_task()
        return Task(task, round, worker, work.mixed, args, runs, _rows(runs))


class Fetch(_Work):
    """The work of rebuilding a share: rows from `first` on, as they are."""

    def __init__(self, driver: RoundDriver, code: Code, key: str, first: int, columns: int) -> None:
        super().__init__(driver, code, key)
        self._first, self._columns = first, columns

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        args = (self.key, runs, self._first, self._columns)
        return Task(self._driver.next_task(), round, worker, work.fetch, args, runs, _rows(runs))


class Adjoint(_Work):
    """The work of X.T @ z: tasks over runs of a share, each with its own operand."""

    wanted = ETA_WANTED

    def __init__(
        self,
        driver: RoundDriver,
        code: Code,
        key: str,
        worst: float,
        shape: RowRange,
        z: NDArray[Any],
    ) -> None:
        super().__init__(driver, code, key, worst)
        self.rows, self._columns = shape  # of a share
        self.length = float(np.linalg.norm(z.astype(np.float64, copy=False)))

    def task(self, round: int, worker: int, number: int, item: Item) -> Task:
        args = (self.key, number, item.runs, item.u, self._columns)
        task = self._driver.next_task()
        return Task(task, round, worker, work.adjoint, args, number, item.rows)

    def express(self, share: int, others: Sequence[int]) -> Floats:
        weights = self._code.weights(tuple(others))
        c: Floats = self._code.row(share) @ weights.matrix
        return c

    def size(self, share: int) -> float:
        return float(np.linalg.norm(self._code.row(share)))


def _rows(runs: tuple[RowRange, ...]) -> int:
    return sum(last - first for first, last in runs)
