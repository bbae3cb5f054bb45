"""Time to a target on recorded delays: coded sums against the strongest rivals without a code.

256 workers with the timings that AWS Lambda workers had. Time is simulated, values are real. Each
worker has one part. The recording's whole batch counts as four parts, so one part takes what a
quarter of the batch took. Recorded times grow with the load. The growth of their median is work,
the rest is a wait before it.

Every method may also work on a portion of a part at a time, which takes as much less. Coded sums
and backups draw batches from the part; DSAG takes its portions in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import BadInput, FractionalRepetition, TooFewWorkers, Uncoded, connect, stop
from ..delays import Exponential, Scaled
from ..engines.virtual import VirtualEngine
from .datasets import Dataset, recording
from .timing import OnStep
from .training import Method, Run, metric, reached, simulate, term, train_backups, train_stale

WORKERS = 256
RECORDING = "cnn_desktop_Canada_batch2048"
WHOLE = 4.0  # parts
KINDS = ("uncoded", "exact", "ignore", "backups", "dsag", "kofn")

# Of unequal machines.
MEAN = 2.0  # seconds of delay
SLOWER = 10.0
WAITS = (11 / 30, 2 / 3, 4 / 5)  # of the machines: replies that are waited for
# Of thirty, no two of a pair that holds the same parts.
SLOW = (0, 2, 13, 18, 22, 28)
CASES = ("mixed_slow", "sorted_slow", "sorted_lost")
UNEQUAL_STEPS = len(CASES) * (2 + 2 * len(WAITS))


@dataclass(frozen=True)
class Grid:
    """The settings tried of each method; the best of each is compared with the best of the others.

    Each method has as many settings, or the comparison would favour the one tried more often.
    """

    iterations: int = 50
    portions: Sequence[float] = (1.0, 0.5, 0.25)
    fractions: Sequence[float] = (0.25, 0.5, 0.75)  # of the parts: coded sums, and ignoring, stop
    copies: Sequence[int] = (2, 4, 8)  # of each part: exact coded sums
    fresh: Sequence[int] = (16, 64, 128)  # of the workers: DSAG waits for so many
    factors: Sequence[float] = (1.5, 2.0, 3.0)  # of the median: backup tasks are then asked for

    def __post_init__(self) -> None:
        counts = {len(x) for x in (self.fractions, self.copies, self.fresh, self.factors)}
        if len(counts) != 1:
            raise ValueError(f"as many settings of each method are tried; got {sorted(counts)}")

    @property
    def progress_steps(self) -> int:
        """How many runs that is."""
        return len(KINDS) * len(self.portions) * len(self.fresh)

    @property
    def thinned(self) -> list[float]:
        """Portions for waiting for all, which has no other setting: as many as others have."""
        count = len(self.portions) * len(self.fresh)
        return [float(p) for p in np.geomspace(1.0, min(self.portions) / 2, count)]


def table(data: Dataset, folder: Path, grid: Grid, on_step: OnStep) -> dict[str, Any]:
    """Seconds to the target by method, every setting that was tried, and the best of each kind."""
    try:
        recorded = recording(folder, RECORDING)
    except BadInput as error:
        return {"problem": f"the rivals need recorded timings: {error}"}
    runs: dict[str, Run] = {}

    def engine(portion: float) -> VirtualEngine:
        return VirtualEngine(WORKERS, delays=recorded.delays(WHOLE / portion, work="measured"))

    def coded(name: str, method: Method, portion: float) -> None:
        on = engine(portion)
        runs[name] = simulate(data, method, grid.iterations, on, portion=portion)
        on_step(name)

    for portion in grid.thinned:
        coded(f"uncoded_{portion:.3g}", Method(Uncoded("whole"), stop.exact()), portion)
    for portion in grid.portions:
        for c in grid.copies:
            method = Method(FractionalRepetition(c, "parts"), stop.exact())
            coded(f"exact_{portion:g}_c{c}", method, portion)
        for covered in grid.fractions:
            method = Method(Uncoded("whole"), stop.fraction(covered))
            coded(f"ignore_{portion:g}_{covered:g}", method, portion)
        for factor in grid.factors:
            name, fn = f"backups_{portion:g}_{factor:g}", term(data, portion)
            with connect(engine(portion)) as cluster:
                runs[name] = train_backups(cluster, data, grid.iterations, fn, factor)
            on_step(name)
        for covered in grid.fractions:
            method = Method(FractionalRepetition(2, "parts"), stop.fraction(covered))
            coded(f"kofn_{portion:g}_{covered:g}", method, portion)
        for fresh in grid.fresh:
            name, pieces = f"dsag_{portion:g}_{fresh}", round(1 / portion)
            with connect(engine(1 / pieces)) as cluster:
                runs[name] = train_stale(cluster, data, grid.iterations, fresh, pieces)
            on_step(name)
    return _results(data, runs, grid)


def _results(data: Dataset, runs: dict[str, Run], grid: Grid) -> dict[str, Any]:
    # What uncoded descent reaches after 60 % of its iterations.
    target = metric(data, runs["uncoded_1"].points[6 * grid.iterations // 10])
    times = {name: reached(data, run, target) for name, run in runs.items()}

    def quickest_of(prefix: str) -> tuple[float, str] | None:
        mine = [
            (s, n) for n, s in times.items() if s is not None and f"{n}_".startswith(f"{prefix}_")
        ]
        return min(mine, default=None)

    quickest = {kind: quickest_of(kind) for kind in KINDS}
    ours = quickest["kofn"]
    return {
        "data": data.name,
        "recording": RECORDING,
        "workers": WORKERS,
        "iterations": grid.iterations,
        "target": target,
        "methods": {n: {"seconds_to_target": times[n], **runs[n].summary(data)} for n in runs},
        "best": {
            kind: one and {"setting": one[1], "seconds": one[0]} for kind, one in quickest.items()
        },
        "tried": {kind: sum(n.split("_")[0] == kind for n in runs) for kind in KINDS},
        "by_portion": {
            f"{portion:g}": {
                kind: (one := quickest_of(f"{kind}_{portion:g}")) and one[0]
                for kind in KINDS
                if kind != "uncoded"
            }
            for portion in grid.portions
        },
        "kofn_faster_than": {
            kind: one and ours and one[0] / ours[0]
            for kind, one in quickest.items()
            if kind != "kofn"
        },
        "means": "method_portion_setting: the portion of a part worked on at a time; for kofn "
        "the fraction of parts at which a sum is closed (two copies, streamed), for ignore the "
        "same without a code, for exact the copies of a part, for dsag the fresh replies that an "
        "iteration waits for, for backups the multiple of the median at which the second holder is "
        "asked. uncoded waits for all and has portions alone. tried: how many settings of each. "
        "by_portion: seconds to the target of the best of each at the same portion",
    }


def unequal_table(data: Dataset, workers: int, iterations: int, on_step: OnStep) -> dict[str, Any]:
    """Where ignoring stragglers ends at a wrong point, and a code does not.

    Amazon's rows are sorted by label. One row in seventeen is of the rare class, and all of those
    lie on the first two of thirty machines. Six machines, the first one among them, are ten times
    slower than the rest, or lost. A sum that is closed without them leaves out half of the rare
    class. Under a code with two copies another machine has those rows. Time is simulated, values
    are real. The same is done with the rows mixed, where ignoring does little harm.

    Returns by case and method: the final metric, seconds an iteration, the covered part of the sum.
    """
    order = np.argsort(data.y, kind="stable")
    in_order = replace(data, X=data.X[order], y=data.y[order])
    waits = [round(fraction * workers) for fraction in WAITS]
    slow = tuple(worker for worker in SLOW if worker < workers)
    none, code = Uncoded("whole"), FractionalRepetition(2, "whole")
    methods = {"uncoded": Method(none, stop.exact()), "egc2": Method(code, stop.exact())}
    methods |= {f"ignore_{wait}": Method(none, stop.first(wait)) for wait in waits}
    methods |= {f"agc2_{wait}": Method(code, stop.first(wait) | stop.exact()) for wait in waits}
    sizes = {"data": data.name, "workers": workers, "iterations": iterations, "waits": waits}
    results: dict[str, Any] = {
        **sizes,
        "slow_or_lost": list(slow),
        "means": "mixed, sorted: the order of the rows; slow: those machines are "
        f"{SLOWER:g} times slower in every round; lost: they are lost before the first. "
        "ignore_r, agc2_r: sums are closed at r replies. null: it cannot go on",
    }
    for case in CASES:
        rows = data if case.startswith("mixed") else in_order
        results[case] = {}
        for name, method in methods.items():
            engine = VirtualEngine(workers, delays=Scaled(Exponential(0.0, MEAN), SLOWER, slow))
            try:
                lost = slow if case.endswith("lost") else ()
                run = simulate(rows, method, iterations, engine, lost=lost)
                results[case][name] = run.summary(rows)
            except TooFewWorkers:
                results[case][name] = None
            on_step(f"unequal parts, {case}: {name}")
    return results
