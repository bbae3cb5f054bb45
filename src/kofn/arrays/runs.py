"""What both ways to iterate (`iterate`, `mesh`) have in common: windows, bytes, the report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..exchange import Exchange
from ..interrupts import opened
from ..model import ProductReport, Record
from ..rounds import Layout, RoundDriver, Windows
from ..rounds.base import Round
from .plan import Plan

if TYPE_CHECKING:
    from .matrix import CodedMatrix

OnRound = Callable[[int, float], object]


class Count:
    """Bytes through the master, but for the shares of those that join."""

    def __init__(self, driver: RoundDriver, exchange: Exchange | None = None) -> None:
        self._engine, self._exchange = driver.engine, exchange
        self._start = self._engine.traffic or 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not count what passes meanwhile."""
        before = self._engine.traffic or 0
        yield
        self._start += (self._engine.traffic or 0) - before

    def total(self) -> int | None:
        """So far; None where the engine does not count."""
        now, exchange = self._engine.traffic, self._exchange
        moved = 0 if exchange is None else exchange.moved
        return None if now is None else now - self._start + moved


class Listener:
    """Calls the user's `on_round`, and remembers the traffic up to the first report."""

    def __init__(self, on_round: OnRound | None, report_every: int, count: Count) -> None:
        self._on_round, self._every, self._count = on_round, report_every, count
        self._newest = 0
        self._begun: tuple[int, int | None] = (0, 0)

    def on_round(self, round: int, change: float) -> None:
        """A round is done."""
        if not self._begun[0]:
            self._begun = round, self._count.total()
        # A round that was in flight when somebody was lost may be said again, by another.
        if self._on_round is not None and round % self._every == 0 < round - self._newest:
            self._newest = round
            with opened(foreign=True):
                self._on_round(round, change)

    def per_round(self, passed: int | None, rounds: int) -> float | None:
        """Bytes through the master a round, without what it takes to begin."""
        first, before = self._begun
        if passed is None or before is None:
            return None
        return (passed - before) / max(1, rounds - first)


class Laid:
    """Windows for any set of shares, turned so that few rows change hands; and the worst η."""

    def __init__(self, X: CodedMatrix, plan: Plan) -> None:
        self._X, self._plan = X, plan
        self.eta = plan.eta or 0.0

    def windows(self, shares: Sequence[int]) -> Windows:
        """Lay windows for these shares, at least the threshold."""
        if tuple(shares) != self._plan.windows.shares:
            X = self._X
            holders = {share: share for share in shares}
            layout = Layout(X.code.k)
            self._plan = Plan(X.code, holders, layout, X._rows, self._plan, values=X._values)
            self.eta = max(self.eta, self._plan.eta or 0.0)
        return self._plan.windows


def extra(
    rounds: int, change: float, limits: tuple[int, float], epochs: int, size: int
) -> dict[str, Any]:
    """What a report says of a run of so many rounds and epochs on vectors of so many bytes."""
    return {
        "rounds": rounds,
        "change": change,
        "converged": rounds < limits[0] or change <= limits[1],
        "epochs": epochs,
        "bytes_of_vectors": 2 * size,
    }


def conclude(
    X: CodedMatrix,
    round: Round,
    who: tuple[Collection[int], Collection[int]],  # workers at the end; shares that took part
    rows: tuple[Mapping[int, int], int, int],  # read, topped up, done twice
    eta: float | None,
    extra: dict[str, Any],
    began: float,
    dtype: np.dtype[Any],  # of the vector
) -> None:
    """Write the report of a run, and refuse a result that is too inaccurate."""
    read, topped_up, repeated = rows
    precision = X._precision(dtype)
    bound = None if eta is None else X._bound(X.shape[1], eta, who[1], precision)
    ended = X._driver.engine.now()
    X._report = round.report(
        ProductReport,
        sorted(who[0]),
        (began, ended, ended),
        rows_read=dict(read),
        rows_used=sum(read.values()),
        rows_topped_up=topped_up,
        restarted=repeated > 0,
        eta=eta,
        error_bound=bound,
        extra=extra,
    )
    X._driver.log.append(Record.result(ended, X._report))
    if bound is not None and eta is not None:
        X._refuse(bound, eta, precision)
