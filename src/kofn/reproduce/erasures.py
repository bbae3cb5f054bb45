"""More of Wang et al., 2019 in simulated time, with real values, on each data set.

The three estimates side by side; a sweep over δ, the fraction of the workers that is waited for,
with one copy of the parts (dropping m stragglers, Remark 1), two and three; cyclic codes; thirty
workers with recorded delays in place of Figure 4's machines; and Figure 1 from those recordings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import (
    BadInput,
    CyclicRepetition,
    FractionalRepetition,
    SumCode,
    Uncoded,
    connect,
    exact,
    first,
)
from ..delays import Delays, Exponential, read_timings
from ..engines.virtual import VirtualEngine
from . import datasets
from .datasets import Dataset
from .timing import OnStep, unvalued
from .training import Method, Run, curve, methods, metric, reached, simulate

MEAN = 2.0  # seconds of delay in section 5
ESTIMATES = ("plain", "unbiased", "covered")
COPIES = (1, 2, 3)
RECORDING = "cnn_mbp_Canada_batch256"  # the one in which stragglers are slowest


@dataclass(frozen=True)
class Sizes:
    """How much of it."""

    iterations: int = 60
    fractions: tuple[float, ...] = (0.1, 0.2, 11 / 30, 0.5, 0.75)  # of the workers: δ
    rounds: int = 200  # whose time alone is simulated, of each recording

    @property
    def progress_steps(self) -> int:
        """How often `one` calls `on_step`."""
        return 1 + len(ESTIMATES) + len(COPIES) * len(self.fractions) + 2 + len(methods(1))


def one(data: Dataset, folder: Path, n: int, wait: int, sizes: Sizes, on_step: OnStep) -> Any:
    """All of it on one data set; keys of results.json, each by data set."""
    runs: dict[str, Run] = {}

    def run(name: str, method: Method, delays: Delays | None = None) -> Run:
        on = VirtualEngine(n, delays=delays or Exponential(0.0, MEAN))
        runs[name] = simulate(data, method, sizes.iterations, on)
        on_step(f"{data.name}: {name}")
        return runs[name]

    uncoded = run("uncoded", Method(Uncoded("whole"), exact()))
    # What exact gradients reach after 60 % of the iterations.
    target = metric(data, uncoded.points[6 * sizes.iterations // 10])

    def summary(run: Run) -> dict[str, Any]:
        return {"seconds_to_target": reached(data, run, target), **run.summary(data)}

    whole = FractionalRepetition(2, "whole")
    estimates = {
        kind: run(f"{kind} estimate", Method(whole, first(wait), kind))  # type: ignore[arg-type]
        for kind in ESTIMATES
    }
    cyclic = CyclicRepetition(2, "whole")
    rows = {
        "cyclic_exact": run("cyclic, exact", Method(cyclic, exact())),
        "cyclic": run("cyclic", Method(cyclic, first(wait) | exact())),
    }
    swept = {
        str(c): {f"{r}": summary(run(f"c={c}, {r} of {n}", _waits(c, r))) for r in waited(n, sizes)}
        for c in COPIES
    }
    return {
        "estimates": {
            "wait": wait,
            "uncoded": {"curve": curve(data, uncoded), **summary(uncoded)},
            **{kind: {"curve": curve(data, r), **summary(r)} for kind, r in estimates.items()},
        },
        "sweep": {"target": target, "iterations": sizes.iterations, "by_copies": swept}
        | {"best": {c: _best(by_wait, n) for c, by_wait in swept.items()}},
        "cyclic": {name: summary(r) for name, r in rows.items()},
        "recorded": _recorded(data, folder, n, wait, run, summary, on_step),
    }


def _waits(c: int, r: int) -> Method:
    code: SumCode = Uncoded("whole") if c == 1 else FractionalRepetition(c, "whole")
    return Method(code, first(r) if c == 1 else first(r) | exact())


def waited(n: int, sizes: Sizes) -> list[int]:
    return sorted({max(1, round(fraction * n)) for fraction in sizes.fractions})


def _best(by_wait: dict[str, dict[str, Any]], n: int) -> dict[str, Any] | None:
    known = [(row["seconds_to_target"], int(r)) for r, row in by_wait.items()]
    reached = [(s, r) for s, r in known if s is not None]
    if not reached:
        return None
    seconds, r = min(reached)
    return {"replies": r, "delta": r / n, "seconds_to_target": seconds}


def _recorded(
    data: Dataset, folder: Path, n: int, wait: int, run: Any, summary: Any, on_step: OnStep
) -> dict[str, Any]:
    """Figure 4 in simulated time: the paper's methods under recorded delays, no other ones."""
    try:
        recording = datasets.recording(folder, RECORDING)
    except BadInput as error:
        for name in methods(wait):
            on_step(f"{data.name}, recorded: {name}")
        return {"problem": f"this needs recorded timings: {error}"}
    delays = recording.delays(float(n), work="measured")
    runs = {
        name: run(f"recorded: {name}", method, delays) for name, method in methods(wait).items()
    }
    return {
        "recording": recording.name,
        "workers": n,
        "methods": {name: summary(one) for name, one in runs.items()},
        "curves": {name: curve(data, one) for name, one in runs.items()},
    }


def completion(folder: Path, n: int, wait: int, sizes: Sizes) -> dict[str, Any]:
    """Figure 1: how completion times are spread in each recording, and what that makes of methods.

    By recording: quantiles of a worker's seconds over the median, and seconds of an iteration of n
    workers by method, without values.
    """
    try:
        known = read_timings(datasets.find(folder, datasets.TIMINGS))
    except BadInput as error:
        return {"problem": f"this needs recorded timings: {error}"}
    levels = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0]
    spread: dict[str, Any] = {"levels": levels, "paper_slowest_over_median": 8.0, "recordings": {}}
    for name, recording in known.items():
        times = recording.timings[-1]
        median = float(np.median(times))
        each = {}
        for kind, method in methods(wait).items():
            delays = recording.delays(float(n), work="measured")
            each[kind] = only_time(delays, method, n, sizes.rounds)
        spread["recordings"][name] = {
            "load": recording.loads[-1],
            "tasks": int(times.size),
            "median_seconds": median,
            "over_median": (np.quantile(times, levels) / median).tolist(),
            "slowest_over_median": float(times.max()) / median,
            "seconds_per_iteration": each,
        }
    return spread


def only_time(delays: Delays, method: Method, n: int, rounds: int, seed: int = 0) -> float:
    """Simulated seconds of a round of n workers, without values."""
    engine = VirtualEngine(n, delays=delays, compute=False, seed=seed)
    with connect(engine) as cluster:
        parts = cluster.parts(list(range(n)), method.code)
        start = engine.now()
        for _ in range(rounds):
            parts.sum(unvalued, stop=method.stop)
        return (engine.now() - start) / rounds
