"""The tasks of each kind of pass over the shares of one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Body, RowRange, Task, new
from ..rounds import Cover, RoundDriver
from . import work
from .decode import ETA_WANTED, Code, covered, judged, weak
from .reduce import Item

Floats = NDArray[np.float64]
More = Callable[[int], tuple[Any, ...]]


@lru_cache(maxsize=4096)
def _arguments(key: str, runs: tuple[RowRange, ...]) -> tuple[tuple[Any, ...], int]:
    """The arguments of a task, the same object in each round; and its rows."""
    return (key, runs), work.count_rows(runs)


class Pass:
    """The work of an elastic round: every task is `body` over runs of a share.

    `more(share)`: further arguments of the body. `worst()`: the η above which a result is
    refused; it is asked for only where replies decode poorly.
    """

    def __init__(
        self,
        driver: RoundDriver,
        code: Code,
        key: str,
        body: Body,
        worst: Callable[[], float] = lambda: float("inf"),
        more: More | None = None,
    ) -> None:
        self.key, self._worst = key, worst
        self._driver, self._code, self._body, self._more = driver, code, body, more

    def task(self, round: int, worker: int, share: int, runs: tuple[RowRange, ...]) -> Task:
        args, rows = _arguments(self.key, runs)
        args = args if self._more is None else (*args, *self._more(share))
        task = self._driver.next_task()
        # The values of its replies are brief: they are decoded at once.
        return new(Task, (task, round, worker, self._body, args, runs, rows, True))

    def weak(self, cover: Cover) -> list[int]:
        """Segments that need one more reply to decode well."""
        return self._poor(cover, ETA_WANTED)

    def refused(self, cover: Cover) -> list[int]:
        """Segments that decode so poorly that the result would be refused."""
        return self._poor(cover, self._worst())

    def _poor(self, cover: Cover, wanted: float) -> list[int]:
        if not judged(self._code, self._driver.engine.capabilities.values):
            return []
        return weak(covered(self._code, cover), cover.cuts, wanted)


class Adjoint:
    """The work of X.T @ z, z of this norm: tasks over runs of a share, each with its operand.

    With `places` runs count these, and not the rows of a share.
    """

    wanted = ETA_WANTED  # η up to which nothing more is done for accuracy

    def __init__(
        self,
        driver: RoundDriver,
        code: Code,
        key: str,
        worst: float,
        shape: RowRange,
        norm: float,
        places: NDArray[Any] | None = None,
    ) -> None:
        self.key, self.threshold, self.worst, self.length = key, code.k, worst, norm
        self._driver, self._code, self._places = driver, code, places
        self.rows, self._columns = shape  # of a share

    def task(self, round: int, worker: int, number: int, item: Item) -> Task:
        args: tuple[Any, ...] = (self.key, number, item.runs, item.u, self._columns)
        args = args if self._places is None else (*args, self._places)
        task = self._driver.next_task()
        return Task(task, round, worker, work.adjoint, args, number, item.rows)

    def express(self, share: int, others: Sequence[int]) -> Floats:
        """Coefficients c with share[share] = Σ c[i] · share[others[i]]."""
        c: Floats = self._code.row(share) @ self._code.weights(tuple(others)).matrix
        return c

    def size(self, share: int) -> float:
        """The length of a share's coefficient row."""
        return float(np.linalg.norm(self._code.row(share)))
