"""kofn bench fleet: gradient descent on a recorded spot market, and its effective time.

Effective time is the time at full rate over the wall time. The time at full rate is what the
iterations that were done would have taken undisturbed: the usual seconds of an iteration on as many
workers as had their data when it began, for each of them, added up. What was thrown away, and what
was waited for, is missing from it.

All seconds of the trace are divided by one scale: losses and arrivals, notices, downloads, restarts
and checkpoints. An iteration is X @ w and X.T @ z on real local processes, which take as long as
their rows say (`kofn.engines.paced`): two cores stand in for thirty machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ... import Cluster, CodedMatrix, TooFewWorkers, connect
from ...arrays.options import Options
from ...arrays.shares import shares_of, threshold
from ...delays import PerUnit, SpotTrace
from ...engines.local import LocalEngine
from ...engines.paced import Paced
from ...errors import MarketOver
from ...market import Market
from ...model import Build
from ...reproduce import datasets
from .. import places
from ..output import print_table, print_text, progress
from .frame import Figure

THRESHOLD = 8  # any 8 of the workers are enough for the coded matrix
ROWS, COLUMNS = 3200, 50
ITERATION = 0.06  # seconds of an iteration on 24 workers


@dataclass(frozen=True)
class Costs:
    """Seconds of the trace that things take, for everybody alike."""

    notice: float = 120.0  # ahead of a loss
    download: float = 30.0  # until a worker has its data
    restart: float = 20.0  # until a new group of workers has started, without the download
    checkpoint: float = 300.0  # between two checkpoints; writing one takes no time


@dataclass
class Tally:
    """What one way of going on has done."""

    done: list[int] = field(default_factory=list)  # of each iteration: workers with data
    calm: list[tuple[int, float]] = field(default_factory=list)  # undisturbed: workers, seconds
    thrown_away: int = 0  # iterations
    restarts: int = 0
    topped_up: int = 0  # iterations in which others were asked for rows
    slowest: float = 0.0  # iteration

    def figures(self, wall: float) -> dict[str, Any]:
        """The effective time, and what it is made of."""
        usual = _usual(self.calm)
        full = sum(usual(n) for n in self.done)
        return {
            "effective": full / wall,
            "iterations": len(self.done),
            "thrown_away": self.thrown_away,
            "restarts": self.restarts,
            "topped_up": self.topped_up,
            "usual_ms": 1e3 * full / max(1, len(self.done)),
            "slowest_ms": 1e3 * self.slowest,
            "wall_s": wall,
        }


def _usual(calm: list[tuple[int, float]]) -> Callable[[int], float]:
    """Seconds of an undisturbed iteration by the number of workers: a + b / n + c n, fitted."""
    if not calm:
        return lambda n: float("nan")  # there was no peace at all: nobody can say
    n, seconds = np.array(calm, dtype=np.float64).T
    terms = [np.ones_like(n), 1 / n, n][: len(set(n.tolist()))]
    coefficients, *_ = np.linalg.lstsq(np.stack(terms, axis=1), seconds, rcond=None)
    return lambda n: float(coefficients @ np.array([1.0, 1 / n, n])[: len(coefficients)])


class Work:
    """One iteration after the other on a cluster, until the time is over."""

    def __init__(self, cluster: Cluster, scale: float, seconds: float, costs: Costs) -> None:
        self.cluster, self.tally = cluster, Tally()
        self.scale, self.costs = scale, costs
        self.end = time.monotonic() + seconds
        self.A = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
        self.w, self.y = np.zeros(COLUMNS), np.ones(ROWS)

    def encode(self, n: int, k: int, options: Options) -> CodedMatrix:
        """A matrix whose shares take their time to come to a worker."""
        shares = shares_of(self.A, threshold(k, n))
        wait, made = self.costs.download / self.scale, shares.share_of

        # Made here, so that it travels by value: workers need not load this module for it.
        def downloaded(share: Any) -> Any:
            time.sleep(wait)
            return share

        shares = replace(shares, share_of=lambda s: Build(downloaded, (made(s),)))
        return CodedMatrix(self.cluster._driver, shares, options)

    def over(self) -> bool:
        return time.monotonic() >= self.end

    def iterate(self, X: CodedMatrix) -> bool:
        """One iteration; whether nobody who had data was lost meanwhile."""
        tally, leaving = self.tally, self.cluster._driver.roster.leaving
        before, quiet = X.shares, not leaving
        start = time.monotonic()
        error = X @ self.w - self.y
        topped_up, lost = X.report.rows_topped_up, bool(X.report.lost)
        step: NDArray[np.float64] = X.T @ error
        seconds = time.monotonic() - start
        self.w -= step / (4 * ROWS)
        lost = lost or bool(X.report.lost) or not before.keys() <= X.shares.keys()
        tally.done.append(len(before))
        tally.slowest = max(tally.slowest, seconds)
        tally.topped_up += bool(topped_up or X.report.rows_topped_up)
        if quiet and not lost and not leaving and X.shares == before:
            tally.calm.append((len(before), seconds))
        return not lost


def coded(work: Work, trace: SpotTrace) -> None:
    """Any k are enough: a lost worker's rows are done by others, who joins takes part."""
    # All are equally fast, so nobody is judged late: what is measured is losses.
    X = work.encode(trace.most, THRESHOLD, Options(late=None, measured_loads=False))
    while not work.over():
        work.iterate(X)


def stop_the_world(work: Work, trace: SpotTrace) -> None:
    """One block each: after a loss, wait for a newcomer, its download, and begin again."""
    n = trace.at_start
    X = work.encode(n, n, Options(late=None, measured_loads=False))
    while not work.over():
        if not work.iterate(X):
            work.tally.done.pop()
            work.tally.thrown_away += 1
            work.tally.restarts += 1


def from_checkpoint(work: Work, trace: SpotTrace) -> None:
    """One block each: after a loss, start all again from the last checkpoint."""
    n, tally, costs, scale = trace.at_start, work.tally, work.costs, work.scale
    while not work.over():
        try:
            work.cluster.wait_for(n, max(0.0, work.end - time.monotonic()))
        except TooFewWorkers:
            return
        time.sleep(costs.restart / scale if tally.restarts else 0.0)
        X = work.encode(n, n, Options(late=None, measured_loads=False))
        saved, written = len(tally.done), time.monotonic()
        with suppress(TooFewWorkers):
            while not work.over() and work.iterate(X):
                if time.monotonic() >= written + costs.checkpoint / scale:
                    saved, written = len(tally.done), time.monotonic()
        if not work.over():
            tally.thrown_away += len(tally.done) - saved
            del tally.done[saved:]
            tally.restarts += 1


WAYS: tuple[tuple[str, Callable[[Work, SpotTrace], None], bool, float], ...] = (
    # Name, what it does, whether losses are announced, seconds that it waits for joiners.
    ("coded, with notices", coded, True, float("inf")),
    ("coded, without", coded, False, float("inf")),
    ("stop the world", stop_the_world, False, float("inf")),
    ("restart from checkpoint", from_checkpoint, False, 0.0),
)


def run(
    data: Path | None, seconds: float, costs: Costs | None = None, *, quiet: bool = True
) -> dict[str, Any]:
    """Replay the trace once for each way, in so many seconds each."""
    costs = Costs() if costs is None else costs
    places.data(data, "fleet")
    trace = datasets.market(data)
    length = trace.events[-1].time
    scale = length / seconds
    result: dict[str, Any] = {
        "trace": Path(trace.name).name,
        "events": len(trace.events),
        "at_start": trace.at_start,
        "most": trace.most,
        "hours": length / 3600,
        "scale": scale,
        "trace_seconds": asdict(costs),
        "threshold": THRESHOLD,
        "ways": {},
    }
    with progress("fleet", len(WAYS), quiet) as update:
        for name, way, announced, wait in WAYS:
            notice = costs.notice if announced else 0.0
            with _paced(trace.at_start, wait) as cluster:
                need = THRESHOLD if way is coded else trace.at_start
                market = Market(cluster, trace, scale, trace.most, need, notice)
                work = Work(cluster, scale, seconds, costs)
                with suppress(MarketOver), market:
                    way(work, trace)
                figures = work.tally.figures(max(seconds, time.monotonic() - work.end + seconds))
                result["ways"][name] = figures | {"killed": len(market.killed)}
            update(advance=1)
    figures = {
        name: Figure(one["effective"], "effective", 1.0, "undisturbed", more_is_better=True)
        for name, one in result["ways"].items()
    }
    return result | {"figures": figures}


def _paced(workers: int, wait: float) -> Cluster:
    # Two products of 1/24 of the rows each.
    unit = ITERATION / 2 / (ROWS / 24)
    return connect(Paced(LocalEngine(workers), PerUnit(unit)), wait=wait)


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    columns = {"": "", "effective": ".3f", "iterations": "d", "thrown away": "d"}
    columns |= {"with top-ups": "d", "restarts": "d", "usual ms": ".1f", "slowest ms": ".0f"}
    names = ("effective", "iterations", "thrown_away", "topped_up", "restarts")
    rows = [
        (name, *(row[one] for one in (*names, "usual_ms", "slowest_ms")))
        for name, row in result["ways"].items()
    ]
    print_table(console, f"{result['trace']}, {result['hours']:.1f} hours", columns, rows)
    print_text(
        console,
        """Effective: the time that the iterations done would have taken undisturbed, over the wall
        time. {events} events, {scale:.0f} seconds of the trace a second; {threshold} workers are
        enough for the coded matrix, the others need {at_start}.""",
        result,
    )
