"""Coded elastic computing, Figure 2(b, c, d): line-search gradient descent on a spot market.

Every method runs the same descent through rounds of its own: coded products, or plain blocks of
which the lost ones are waited for, ignored, or kept as they were (kofn.learn.products).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import Cluster, ProductReport, TooFewWorkers, connect
from ..arrays.baselines import Replicated
from ..delays import PerUnit
from ..engines.virtual import VirtualEngine
from ..learn.losses import LinearObjective, Problem, squared
from ..learn.products import BASELINES
from ..learn.solvers import gradient_descent
from ..market import Market
from .datasets import Prices
from .kept import Kept
from .timing import OnStep, paced

MACHINES, THRESHOLD = 20, 10
PENALTY = 0.001  # that of Yang et al., 2019, a row
STARTS = (25, 71, 122, 201, 296)  # minutes into the trace at which twenty machines are there
WAIT = 0.5  # seconds that a round below the threshold gives newcomers to fetch their share


@dataclass(frozen=True)
class Settings:
    """Sizes of the runs."""

    iterations: int = 150
    minutes: float = 2.0  # of the market, an iteration
    share_seconds: float = 0.03  # pace: a tenth of the rows
    starts: tuple[int, ...] = STARTS  # Distr-BGD from each of them, the others from the first
    penalties: tuple[float, ...] = (1e-4, 1e-2)  # others, with which ignoring is tried too
    timed: int = 12  # iterations of Figure 2(b)
    timed_share_seconds: float = 0.2
    simulated: bool = False  # the workers, where a wall clock runs otherwise

    @property
    def progress_steps(self) -> int:
        """How often `measure` calls `on_step`."""
        return 2 + 4 + len(self.penalties) + len(self.starts)


FULL = Settings()
QUICK = Settings(
    iterations=25,
    share_seconds=0.01,
    starts=STARTS[:1],
    penalties=(),
    timed=3,
    timed_share_seconds=0.1,
)


@dataclass(eq=False)
class Run:
    """One descent: its losses by iteration, of all rows and of the test rows, and its rounds."""

    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # by iteration, the engine's clock
    reports: list[ProductReport] = field(default_factory=list)
    killed: int = 0
    added: int = 0
    waited: float = 0.0  # minutes of the market, for machines
    stopped: str | None = None
    wait: Callable[[], bool] = lambda: False  # let time pass until machines come; whether any did

    def summary(self) -> dict[str, Any]:
        """What goes to results.json beside the curves."""
        return {
            "iterations": len(self.train),
            "rounds": len(self.reports),
            "restarted": sum(report.restarted for report in self.reports),
            "killed": self.killed,
            "added": self.added,
            "lost_in_flight": sum(len(report.lost) for report in self.reports),
            "live_least": min(self.live, default=0),
            "final_loss": self.train[-1] if self.train else None,
            "final_test_error": self.test[-1] if self.test else None,
            "seconds": sum(self.seconds),
            "waited_minutes": self.waited,
            "stopped": self.stopped,
        }

    def noted(self) -> dict[str, Any]:
        """The same, with the curves."""
        curves = {"train": self.train, "test": self.test, "live": self.live}
        return {**curves, "summary": self.summary()}


@dataclass(eq=False)
class NotedProducts:
    """Products that note every round's report, and wait on the market when machines are too few."""

    inner: Any
    run: Run

    @property
    def exact(self) -> bool:
        return bool(getattr(self.inner, "exact", True))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inner.shape)

    @property
    def T(self) -> NotedProducts:
        return NotedProducts(self.inner.T, self.run)

    def __matmul__(self, other: Any) -> NDArray[Any]:
        while True:
            try:
                value: NDArray[Any] = self.inner @ other
            except TooFewWorkers:
                if not self.run.wait():
                    raise
            else:
                self.run.reports.append(self.inner.report)
                return value


def descend(
    cluster: Cluster,
    prices: Prices,
    products: Any,
    iterations: int,
    run: Run,
    penalty: float = PENALTY,
    after: Callable[[int], object] = lambda iteration: None,
) -> None:
    """Run so many iterations of gradient descent as in Yang et al., 2019; note them in `run`."""
    X, y, N = prices.X, prices.y, len(prices.y)
    noted, weight = NotedProducts(products, run), np.ones((N, 1))
    problem = Problem(noted, y[:, None], weight, squared, 1.0, penalty * N, intercept=False)
    now = cluster.engine.now()

    def note(iteration: int, value: float, x: NDArray[np.float64]) -> None:
        nonlocal now
        run.seconds.append(cluster.engine.now() - now)
        # The loss of all rows at these weights, whatever a method itself takes for it.
        run.train.append(float(0.5 * np.mean((X @ x - y) ** 2) + 0.5 * PENALTY * (x @ x)))
        run.test.append(float(np.mean((prices.X_test @ x - prices.y_test) ** 2)))
        run.live.append(len(run.reports[-1].live))
        after(iteration)
        now = cluster.engine.now()

    gradient_descent(LinearObjective(problem), np.zeros(problem.size), 0.0, iterations, note)


def placed(kind: str, cluster: Cluster, prices: Prices) -> Any:
    """The training rows on a cluster of twenty machines, for products of this kind."""
    if kind == "coded":
        return cluster.encode(prices.X, k=THRESHOLD, n=MACHINES, loads="equal")
    copies, lost = BASELINES[kind]
    return Replicated(cluster, prices.X, copies, n=MACHINES, lost=lost)


def machines(
    settings: Settings, share_seconds: float, prices: Prices, workers: int = MACHINES
) -> Cluster:
    """Workers, each a stand-in for a machine."""
    rows, simulated = len(prices.y) / THRESHOLD, settings.simulated
    return paced(workers, rows, share_seconds, simulated=simulated, wait=WAIT)


def on_market(kind: str, prices: Prices, settings: Settings, start: int, penalty: float) -> Run:
    """Descend while machines are killed and added as the trace says, from a minute of it on.

    Its clock is the descent's: every iteration is so many minutes. What is due in them happens
    while the next iteration runs. A method that cannot go on waits, minute by minute.
    """
    trace, run = prices.trace.since(60.0 * start).at_most(MACHINES), Run()
    with machines(settings, settings.share_seconds, prices, trace.at_start) as cluster:
        matrix = placed(kind, cluster, prices)
        with Market(cluster, trace, None, MACHINES) as market:
            minute = 0.0

            def pass_time(minutes: float) -> None:
                nonlocal minute
                minute += minutes
                market.advance(60.0 * minute)

            def wait() -> bool:
                before = len(market.added)
                while len(market.added) == before and 60.0 * minute <= trace.events[-1].time:
                    run.waited += 1.0
                    pass_time(1.0)
                    market.settle()
                return len(market.added) > before

            run.wait = wait
            try:
                after = lambda iteration: pass_time(settings.minutes)  # noqa: E731
                descend(cluster, prices, matrix, settings.iterations, run, penalty, after)
            except TooFewWorkers as error:
                run.stopped = str(error)
        run.killed, run.added = len(market.killed), len(market.added)
    return run


def figure_2b(prices: Prices, timed: int, cluster: Cluster) -> dict[str, list[float]]:
    """Seconds of each iteration: plain blocks and coded, twenty machines; then coded, ten."""
    uncoded, coded = (placed(kind, cluster, prices) for kind in ("noiseless", "coded"))

    def time(products: Any) -> list[float]:
        run = Run()
        descend(cluster, prices, products, timed, run)
        return run.seconds

    seconds = {"uncoded": time(uncoded), "coded_all": time(coded)}
    for worker in cluster.workers[::2]:
        cluster.lose(worker)
    return {**seconds, "coded_half": time(coded)}


def measure(prices: Prices, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Run every method; return what goes to results.json."""
    wall, spread = _medians(kept("figure 2b", partial(_figure_2b_on_processes, prices, settings)))
    on_step("half the machines")
    pace = PerUnit(settings.timed_share_seconds * THRESHOLD / len(prices.y))
    with connect(VirtualEngine(MACHINES, delays=pace)) as cluster:
        virtual, virtual_spread = _medians(figure_2b(prices, settings.timed, cluster))
    on_step("half the machines, simulated")
    runs = {"noiseless": kept("noiseless", partial(_noiseless, prices, settings))}
    on_step("noiseless")
    first = settings.starts[0]
    markets = {kind: (kind, first, PENALTY) for kind in ("coded", "replication", "ignore")}
    markets |= {f"ignore_{p:g}": ("ignore", first, p) for p in settings.penalties}
    for number, start in enumerate(settings.starts, 1):
        markets[f"distr_bgd_{number}".removesuffix("_1")] = ("stale", start, PENALTY)
    for name, (kind, start, penalty) in markets.items():
        runs[name] = kept(name, partial(_on_market, kind, prices, settings, start, penalty))
        on_step(name)
    calm = np.array(runs["noiseless"]["train"])
    apart = np.abs(np.array(runs["coded"]["train"]) - calm)
    return {
        "loss_curves": {name: run["train"] for name, run in runs.items()},
        "test_curves": {name: run["test"] for name, run in runs.items()},
        "live_workers": {name: run["live"] for name, run in runs.items()},
        "linear_runs": {name: run["summary"] for name, run in runs.items()},
        "max_loss_difference": float(apart.max()),
        "max_relative_loss_difference": float((apart / calm).max()),
        "restarted": runs["coded"]["summary"]["restarted"],
        "half_over_all": wall["coded_half"] / wall["coded_all"],
        "virtual_half_over_all": virtual["coded_half"] / virtual["coded_all"],
        "figure_2b_seconds": wall,
        "virtual_figure_2b_seconds": virtual,
        "figure_2b_quartiles": spread,
        "virtual_figure_2b_quartiles": virtual_spread,
        "linear_data": prices.name,
        "linear_means": (
            f"{len(prices.y):,} rows for training and {len(prices.y_test):,} for testing, where "
            "the paper has 10,000 of each; loss: mean over all training rows of half the squared "
            "error, plus half of 0.001 times the squared weights; test error: mean squared error, "
            "in (million USD)^2; ignore_P: ignoring with penalty P instead of 0.001"
        ),
    }


def _figure_2b_on_processes(prices: Prices, settings: Settings) -> dict[str, list[float]]:
    with machines(settings, settings.timed_share_seconds, prices) as cluster:
        return figure_2b(prices, settings.timed, cluster)


def _medians(
    seconds: dict[str, list[float]],
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The median of each kind, and its quartiles."""
    medians = {kind: float(np.median(times)) for kind, times in seconds.items()}
    return medians, {k: np.quantile(times, (0.25, 0.75)).tolist() for k, times in seconds.items()}


def _on_market(*how: Any) -> dict[str, Any]:
    return on_market(*how).noted()


def _noiseless(prices: Prices, settings: Settings) -> dict[str, Any]:
    """Twenty machines that stay."""
    run = Run()
    with machines(settings, settings.share_seconds, prices) as cluster:
        descend(cluster, prices, placed("noiseless", cluster, prices), settings.iterations, run)
    return run.noted()
