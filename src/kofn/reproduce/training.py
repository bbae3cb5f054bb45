"""Gradient descent under one method or another, with the clock of the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from .. import Cluster, FractionalRepetition, Parts, Stop, SumCode, Uncoded, connect, exact, first
from ..engines.virtual import VirtualEngine
from ..learn.descent import Constant, Decay, GradientDescent, Rate, descend
from ..learn.losses import logistic, squared
from ..learn.terms import Term, cut
from ..sums.rivals import Backups, Stale
from ..sums.tally import Kind
from .datasets import Dataset

Vector = NDArray[np.float64]

# Table 1 of ErasureHead.
RATES: dict[str, Rate] = {"amazon": Constant(10), "covtype": Constant(0.1), "kc_house": Decay()}


class Method(NamedTuple):
    """A code, when to stop, and what stands for parts that are missing."""

    code: SumCode
    stop: Stop
    weights: Kind = "covered"


def methods(wait: int) -> dict[str, Method]:
    """Those of Wang et al., 2019: uncoded, exact (egc) and approximate (agc), with whole replies.

    And one that they leave out, "ignore": no code, and just as few replies waited for.
    """
    codes = {c: FractionalRepetition(c, "whole") for c in (2, 3)}
    return {
        "uncoded": Method(Uncoded("whole"), exact()),
        "ignore": Method(Uncoded("whole"), first(wait)),
        **{f"egc{c}": Method(code, exact()) for c, code in codes.items()},
        **{f"agc{c}": Method(code, first(wait) | exact()) for c, code in codes.items()},
    }


@dataclass(frozen=True, eq=False)
class Run:
    """By iteration: seconds from the start to its end, its point, the covered part of its sum."""

    seconds: list[float] = field(default_factory=list)
    points: list[Vector] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)

    @property
    def per_iteration(self) -> float:
        """Mean seconds, everything included: update and next broadcast too."""
        return self.seconds[-1] / len(self.seconds)

    def add(self, seconds: float, point: Vector, covered: float) -> None:
        """Note an iteration."""
        self.seconds.append(seconds)
        self.points.append(point)
        self.covered.append(covered)

    def summary(self, data: Dataset) -> dict[str, float]:
        """What goes to results.json of a run that is one of many."""
        return {
            "seconds_per_iteration": self.per_iteration,
            "mean_covered": float(np.mean(self.covered)),
            "final_metric": metric(data, self.points[-1]),
        }


class Memo:
    """The function of a sum, evaluated once for each part and iteration.

    Only for the virtual engine: its workers all live in this process, and many hold the same part.
    """

    def __init__(self, term: Callable[[Any, Any], Any]) -> None:
        self.term = term
        self._known: dict[int, Any] = {}
        self._t = -1

    def __call__(self, part: Any, x: Any) -> Any:
        if x[1] != self._t:
            self._known, self._t = {}, x[1]
        name = int(part[-1][0])
        if name not in self._known:
            self._known[name] = self.term(part, x)
        return self._known[name]


def term(data: Dataset, portion: float = 1.0) -> Term:
    """Gradient and loss on a portion of a part; the data have a column of ones of their own."""
    loss = squared if data.regression else logistic
    return Term(loss, intercept=False, batch=None if portion == 1 else portion)


def parted(data: Dataset, parts: int) -> Any:
    """The training data as a Term wants them, for so many parts."""
    return cut(data.X, data.y[:, None], np.ones((data.shape[0], 1)), parts)


def train(
    parts: Parts,
    data: Dataset,
    method: Method,
    iterations: int,
    clock: Callable[[], float],
    fn: Callable[[Any, Any], Any],
) -> Run:
    """Descend as Wang et al., 2019 do, from zero; the clock is read after each update."""

    def gradient(x: Vector, t: int) -> tuple[Vector, float]:
        how: Any = {"stop": method.stop, "code": method.code, "weights": method.weights}
        result = parts.sum(fn, (x, t), **how)
        return result.value[0], result.covered

    return _descend(gradient, data, iterations, clock)


def simulate(
    data: Dataset,
    method: Method,
    iterations: int,
    engine: VirtualEngine,
    *,
    portion: float = 1.0,
    lost: Iterable[int] = (),
) -> Run:
    """The same in simulated time, of which computing takes none; some workers are `lost` before."""
    with connect(engine) as cluster:
        parts = cluster.parts(parted(data, len(cluster.workers)), method.code)
        for worker in lost:
            cluster.lose(worker)
        return train(parts, data, method, iterations, engine.now, Memo(term(data, portion)))


def train_backups(cluster: Cluster, data: Dataset, iterations: int, fn: Any, factor: float) -> Run:
    """The same with backup tasks."""
    sums = Backups(cluster, parted(data, len(cluster.workers)), factor=factor)

    def gradient(x: Vector, t: int) -> tuple[Vector, float]:
        return sums.sum(fn, (x, t))[0], 1.0

    return _descend(gradient, data, iterations, cluster.engine.now)


def _descend(
    gradient: Callable[[Vector, int], tuple[Vector, float]],
    data: Dataset,
    iterations: int,
    clock: Callable[[], float],
) -> Run:
    """Descend along gradients of all rows, given with the fraction of the parts in them."""
    run = Run()
    covered = 0.0

    def mean(x: Vector, t: int) -> tuple[Vector, bool]:
        nonlocal covered
        total, covered = gradient(x, t)
        return total / data.shape[0], covered == 1.0

    def note(t: int, x: Vector) -> None:
        run.add(clock() - start, x, covered)

    start = clock()
    optimiser = GradientDescent(RATES[data.name])
    descend(mean, np.zeros(data.shape[1]), optimiser, iterations, on_step=note)
    return run


def train_stale(cluster: Cluster, data: Dataset, iterations: int, fresh: int, pieces: int) -> Run:
    """The same with DSAG, each worker's part cut into `pieces` that it takes in turn."""
    run = Run()
    x = np.zeros(data.shape[1])
    start = cluster.engine.now()

    def advance(t: int, time: float, total: Any, covered: float) -> Any:
        nonlocal x
        x = x - RATES[data.name](t) * total[0] / (covered * data.shape[0])
        run.add(time - start, x, covered)
        return None if t == iterations else (x, t + 1)

    parts = len(cluster.workers) * pieces
    stale = Stale(cluster, parted(data, parts), parts=parts)
    stale.run(term(data), (x, 1), advance, fresh, portion=1 / pieces)
    return run


def metric(data: Dataset, x: Vector) -> float:
    """On the test rows: the area under the ROC curve, or the mean squared error."""
    scores = data.X_test @ x
    if data.regression:
        return float(np.mean((scores - data.y_test) ** 2))
    return float(roc_auc_score(data.y_test, scores))


def curve(data: Dataset, run: Run, points: int = 50) -> dict[str, list[float]]:
    """Metric against seconds, at so many of the iterations at most."""
    count = len(run.points)
    chosen = sorted({round(i * (count - 1) / max(1, points - 1)) for i in range(points)})
    return {
        "iteration": [i + 1 for i in chosen],
        "seconds": [run.seconds[i] for i in chosen],
        "metric": [metric(data, run.points[i]) for i in chosen],
    }


def reached(data: Dataset, run: Run, target: float) -> float | None:
    """Seconds until the metric is at the target for the first time, or None."""
    for seconds, point in zip(run.seconds, run.points, strict=True):
        value = metric(data, point)
        if value <= target if data.regression else value >= target:
            return seconds
    return None
