"""ErasureHead: Figures 2, 3 and 4 on the three real data sets, and its lemmas against chance."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster import Cluster, connect
from ..codes import erasurehead as theory
from ..codes.repetition import FractionalRepetition, Uncoded
from ..delays import Delays, Exponential, ExponentialByLoad, Scaled
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine
from ..rounds.stop import exact, first
from . import datasets, straggling
from .datasets import Dataset
from .timing import Tell
from .training import Memo, Run, curve, methods, metric, parted, reached, term, train

WORKERS, WAIT = 30, 11
MEAN = 2.0  # seconds of delay in the paper

STOOD_IN = (
    "Each of the thirty machines is a process on this machine's few cores. A task first waits an "
    "exponential time that does not depend on its load (section 5), scaled by time_scale, and then "
    "computes for real. Nothing is left out of the clock: it is read around whole runs, next "
    "broadcasts included, and stragglers drop stale work while it runs. On the virtual engine "
    "delays are the paper's own 2 s, computing costs nothing, and values are real."
)


@dataclass(frozen=True)
class Settings:
    """Sizes of one run."""

    iterations: int = 100
    time_scale: float = 0.075  # of the paper's 2 s
    virtual_iterations: int = 100
    plain_iterations: int = 30  # without delays: Figure 4
    simulated: int = 2000  # iterations whose time alone is simulated
    draws: int = 200_000  # Monte Carlo
    rivals: straggling.Grid = field(default_factory=straggling.Grid)
    rivals_data: str = "kc_house"
    seed: int = 0

    @property
    def steps(self) -> int:
        """How often `measure` tells that it has moved on."""
        grid = self.rivals
        rivals = 2 + len(grid.portions) * (len(grid.fractions) + len(grid.fresh))
        return 1 + 3 * (1 + 5 + 5 + 5) + rivals


FULL = Settings()
QUICK = Settings(
    iterations=12,
    time_scale=0.02,
    virtual_iterations=12,
    plain_iterations=4,
    simulated=300,
    draws=20_000,
    rivals=straggling.Grid(12, (1.0, 0.25), (0.25, 0.5), (64,)),
)


def measure(data: Path | None, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Run everything and return what goes to results.json."""
    results: dict[str, Any] = {"stood_in": STOOD_IN}
    results |= lemmas(settings) | simulated(settings)
    tell("the lemmas")
    for name in datasets.LOADERS:
        loaded = datasets.load(name, data)
        tell(f"{name}: read")
        for key, value in one(loaded, settings, tell).items():
            results.setdefault(key, {})[name] = value
        if name == settings.rivals_data:
            results["rivals"] = straggling.table(loaded, data, settings.rivals, tell)
    results["wall_speedup"] = results["wall_speedups"]["kc_house"]
    results["wall_speedup_means"] = (
        "mean seconds of an iteration against another method's on kc_house, where computing and "
        "replies are small against the delay; the other data sets are in wall_speedups"
    )
    results["settings"] = asdict(settings) | {
        "workers": WORKERS,
        "wait": WAIT,
        "mean_delay_seconds": MEAN * settings.time_scale,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
    }
    return results


def lemmas(settings: Settings) -> dict[str, Any]:
    """Lemma 2 and the corrected Lemma 8 (λ = 1/c), stated and by chance."""
    rng = np.random.default_rng(settings.seed)
    two: dict[str, Any] = {}
    eight: dict[str, Any] = {}
    for c in (2, 3):
        p, q = theory.moments(WORKERS, WORKERS, c, WAIT)
        order = rng.random((settings.draws, WORKERS)).argsort(axis=1)[:, :WAIT] // c
        gone = ~(order == 0).any(axis=1)
        either = gone | ~(order == 1).any(axis=1)
        two[str(c)] = {
            "p": p,
            "q": q,
            "p_monte_carlo": float(gone.mean()),
            "q_monte_carlo": float(either.mean()),
        }
        eight[str(c)] = _lemma_8(rng, c, settings.draws)
    return {"lemma2": two, "lemma8": eight}


def _lemma_8(rng: np.random.Generator, c: int, draws: int) -> dict[str, Any]:
    rate = 1 / c
    stated = theory.seconds_by_load(WORKERS, c, WAIT, rate)
    alone = (1 + rng.standard_exponential((draws, WORKERS)) / rate) / WORKERS
    coded = (1 + rng.standard_exponential((draws, WORKERS)) / rate) * c / WORKERS
    blocks = coded.reshape(draws, WORKERS // c, c).min(axis=2)
    found = theory.Times(
        float(alone.max(axis=1).mean()),
        float(blocks.max(axis=1).mean()),
        float(np.sort(coded, axis=1)[:, WAIT - 1].mean()),
    )
    harmonic = theory.harmonic
    printed = c / WORKERS + (harmonic(WORKERS) - harmonic(c)) / (rate * WORKERS)
    return {
        "stated": stated._asdict(),
        "monte_carlo": found._asdict(),
        "exact_as_printed": printed,
        "theorem_3_bounds": theory.factors(WORKERS, c, WAIT / WORKERS)._asdict(),
    }


def simulated(settings: Settings) -> dict[str, Any]:
    """Seconds of an iteration in virtual time alone, in both delay models."""
    found: dict[str, Any] = {
        "virtual_seconds_per_iteration": {},
        "virtual_seconds_per_iteration_by_load": {},
    }
    models: dict[str, Delays] = {
        "virtual_seconds_per_iteration": Exponential(0.0, MEAN),
        "virtual_seconds_per_iteration_by_load": ExponentialByLoad(WORKERS, rate=0.5),
    }
    for key, delays in models.items():
        for name, method in methods(WAIT).items():
            found[key][name] = _only_time(delays, method.code, method.stop, settings)
    by_load = models["virtual_seconds_per_iteration_by_load"]
    partial = {}
    for c in (2, 3):
        for kind, stop in (("egc", exact()), ("agc", first(WAIT) | exact())):
            code = FractionalRepetition(c, "parts")
            partial[f"{kind}{c}"] = _only_time(by_load, code, stop, settings)
    found["virtual_seconds_per_iteration_by_load_streamed"] = partial
    found["virtual_means"] = (
        "virtual_seconds_per_iteration: an exponential wait of mean 2 s whatever the load, no "
        "compute (section 5). by_load: c of 30 parts take c/30 (1 + E/λ) s, λ = 1/2 (section 4). "
        "streamed: the same, and every part counts as soon as it is done"
    )
    return found


def _only_time(
    delays: Delays, code: FractionalRepetition | Uncoded | Any, stop: Any, settings: Settings
) -> float:
    engine = VirtualEngine(WORKERS, delays=delays, compute=False, seed=settings.seed)
    with connect(engine) as cluster:
        parts = cluster.parts(list(range(WORKERS)), code)
        start = engine.now()
        for _ in range(settings.simulated):
            parts.sum(_nothing, stop=stop)
        return (engine.now() - start) / settings.simulated


def _nothing(part: Any, x: Any) -> float:
    return 0.0


def one(data: Dataset, settings: Settings, tell: Tell) -> dict[str, Any]:
    """All methods on one data set: delayed processes, simulated, and processes without delays."""
    known = methods(WAIT)
    delays = Scaled(Exponential(0.0, MEAN), settings.time_scale)
    wall: dict[str, Run] = {}
    with delayed(Paced(LocalEngine(WORKERS), delays, settings.seed)) as cluster:
        parts = cluster.parts(parted(data, WORKERS), known["uncoded"].code)
        fn = term(data)
        for name, method in known.items():
            parts.sum(fn, (np.zeros(data.shape[1]), 0), code=method.code)  # sends code and parts
            wall[name] = train(parts, data, method, settings.iterations, time.perf_counter, fn)
            tell(f"{data.name}: {name}, delayed")
    virtual: dict[str, Run] = {}
    for name, method in known.items():
        engine = VirtualEngine(WORKERS, delays=Exponential(0.0, MEAN), seed=settings.seed)
        with connect(engine) as cluster:
            parts = cluster.parts(parted(data, WORKERS), method.code)
            memo = Memo(term(data))
            count = settings.virtual_iterations
            virtual[name] = train(parts, data, method, count, engine.now, memo)
        tell(f"{data.name}: {name}, simulated")
    plain: dict[str, Run] = {}
    with delayed(LocalEngine(WORKERS)) as cluster:
        parts = cluster.parts(parted(data, WORKERS), known["uncoded"].code)
        fn = term(data)
        for name, method in known.items():
            parts.sum(fn, (np.zeros(data.shape[1]), 0), code=method.code)
            count = settings.plain_iterations
            plain[name] = train(parts, data, method, count, time.perf_counter, fn)
            tell(f"{data.name}: {name}, no delays")
    return _figures(data, wall, virtual, plain)


@contextmanager
def delayed(engine: Engine) -> Iterator[Cluster]:
    """A cluster on these workers."""
    with connect(engine) as cluster:
        yield cluster


def _figures(
    data: Dataset, wall: dict[str, Run], virtual: dict[str, Run], plain: dict[str, Run]
) -> dict[str, Any]:
    # What uncoded descent reaches after 60 % of its iterations.
    target = metric(data, wall["uncoded"].points[6 * len(wall["uncoded"].points) // 10])
    seconds = {name: run.per_iteration for name, run in wall.items()}
    return {
        "shapes": list(data.shape),
        "targets": target,
        "wall_seconds_per_iteration": seconds,
        "wall_speedups": speedups(seconds),
        "time_to_target": {name: reached(data, run, target) for name, run in wall.items()},
        "curves": {name: curve(data, run) for name, run in wall.items()},
        "covered": {name: float(np.mean(run.covered)) for name, run in wall.items()},
        "virtual_time_to_target": {
            name: reached(data, run, target) for name, run in virtual.items()
        },
        "virtual_curves": {name: curve(data, run) for name, run in virtual.items()},
        "no_delay_seconds_per_iteration": {n: run.per_iteration for n, run in plain.items()},
        "no_delay_curves": {name: curve(data, run) for name, run in plain.items()},
    }


def speedups(seconds: dict[str, float]) -> dict[str, float]:
    """Each coded method over uncoded, and each approximate one over the exact one of its c."""
    found = {f"{n}_over_uncoded": seconds["uncoded"] / s for n, s in seconds.items()}
    del found["uncoded_over_uncoded"]
    for c in (2, 3):
        found[f"agc{c}_over_egc{c}"] = seconds[f"egc{c}"] / seconds[f"agc{c}"]
    return found
