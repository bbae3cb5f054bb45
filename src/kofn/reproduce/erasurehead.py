"""Wang et al., 2019 (ErasureHead): figures on real data, theorems, and what it left to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .. import FractionalRepetition, connect, exact, first
from ..codes import erasurehead as theory
from ..delays import Delays, Exponential, ExponentialByLoad, PerUnit, Scaled
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine
from . import datasets, erasure_theory, erasures, network, stand_ins, straggling
from .datasets import Dataset
from .kept import Kept
from .timing import OnStep, machine
from .training import Method, Run, curve, methods, metric, parted, reached, simulate, term, train

MEAN = 2.0  # seconds of delay in Wang et al., 2019
METHODS = len(methods(1))

STOOD_IN = (
    "Each of the thirty machines is a process on this machine's few cores. A task first waits an "
    "exponential time that does not depend on its load (section 5), scaled by time_scale, and then "
    "computes for real. Nothing is left out of the clock: it is read around whole runs, next "
    "broadcasts included, and stragglers drop stale work while it runs. On the virtual engine "
    "delays are the published 2 s, computing costs nothing, and values are real."
)


@dataclass(frozen=True)
class Settings:
    """Sizes of one run."""

    workers: int = 30
    wait: int = 11  # replies that an approximate sum waits for
    iterations: int = 100
    time_scale: float = 0.075  # of the published 2 s
    virtual_iterations: int = 100
    plain_iterations: int = 30  # without delays: Figure 4
    simulated: int = 1000  # iterations whose time alone is simulated
    draws: int = 200_000  # Monte Carlo
    rivals: straggling.Grid = field(default_factory=straggling.Grid)
    theory: erasure_theory.Sizes = field(default_factory=erasure_theory.Sizes)
    more: erasures.Sizes = field(default_factory=erasures.Sizes)
    network: network.Sizes = field(default_factory=network.Sizes)
    rivals_data: str = "kc_house"
    unequal_data: str = "amazon"
    seed: int = 0
    processes: bool = True  # else workers by a simulated clock, where a wall clock runs otherwise

    @property
    def progress_steps(self) -> int:
        """How often `measure` calls `on_step`."""
        once = (self.rivals, self.theory, self.network)
        each = 1 + 3 * METHODS + self.more.progress_steps
        known = sum(one.progress_steps for one in once)
        return 2 + len(datasets.LOADERS) * each + known + straggling.UNEQUAL_STEPS


FULL = Settings()
QUICK = Settings(
    iterations=12,
    time_scale=0.02,
    virtual_iterations=12,
    plain_iterations=4,
    simulated=300,
    draws=20_000,
    rivals=straggling.Grid(12, (1.0, 0.25), (0.25, 0.5), (2, 4), (16, 64), (2.0, 3.0)),
    theory=erasure_theory.Sizes(12, 2, draws=2000, fleets=(30, 240), rounds=20),
    more=erasures.Sizes(iterations=8, fractions=(0.1, 11 / 30, 0.75), rounds=20),
    network=network.Sizes(steps=20, fresh=(11,)),
)


def check(data: Path | None) -> None:
    """Raise BadInput where files are not there, before any work."""
    if data is not None:
        datasets.complete(data)


def measure(data: Path | None, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Run everything and return what goes to results.json; without a folder on made-up data."""
    if data is not None:
        return _measure(data, settings, on_step, kept) | {"made_up": False}
    with TemporaryDirectory(prefix="kofn-made-up-") as folder:
        made = stand_ins.write(Path(folder))
        return _measure(made, settings, on_step, kept) | {"made_up": True}


def _measure(data: Path, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    results: dict[str, Any] = {"stood_in": STOOD_IN}
    results |= kept("lemmas", lambda: lemmas(settings) | simulated(settings))
    on_step("the lemmas")
    n, wait, sizes = settings.workers, settings.wait, settings.more
    results["theory"] = kept(
        "theory", lambda: erasure_theory.table(data, n, wait, settings.theory, on_step)
    )
    results["figure_1"] = kept("figure 1", lambda: erasures.completion(data, n, wait, sizes))
    on_step("completion times")
    results["network"] = network.table(data, n, wait, settings.network, on_step, kept)
    # Simulated workers have no delays of their own: what they do takes a millisecond a part.
    plain = partial(VirtualEngine, delays=PerUnit(1e-3))
    with (LocalEngine if settings.processes else plain)(settings.workers) as engine:
        for name in datasets.LOADERS:
            loaded = datasets.load(name, data)
            on_step(f"{name}: read")
            measured = kept(name, partial(one, loaded, settings, engine, on_step))
            more = partial(erasures.one, loaded, data, n, wait, sizes, on_step)
            for key, value in (measured | kept(f"{name}, more", more)).items():
                results.setdefault(key, {})[name] = value
            if name == settings.rivals_data:
                play = partial(straggling.table, loaded, data, settings.rivals, on_step)
                results["rivals"] = kept("rivals", play)
            if name == settings.unequal_data:
                about = (n, settings.virtual_iterations, on_step)
                play = partial(straggling.unequal_table, loaded, *about)
                results["unequal"] = kept("unequal", play)
    results["wall_speedup"] = results["wall_speedups"]["kc_house"]
    results["wall_speedup_means"] = (
        "mean seconds of an iteration against another method's on kc_house, where computing and "
        "replies are small against the delay; the other data sets are in wall_speedups"
    )
    results["settings"] = _listed(asdict(settings)) | {
        "mean_delay_seconds": MEAN * settings.time_scale,
        **machine(),
    }
    return results


def _listed(value: Any) -> Any:
    """Settings as JSON has them."""
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def lemmas(settings: Settings) -> dict[str, Any]:
    """Lemma 2 and the corrected Lemma 8 (λ = 1/c), stated and by chance."""
    rng = np.random.default_rng(settings.seed)
    n, wait = settings.workers, settings.wait
    results: dict[str, Any] = {"lemma2": {}, "lemma8": {}}
    for c in (2, 3):
        p, q = theory.moments(n, n, c, wait)
        order = rng.random((settings.draws, n)).argsort(axis=1)[:, :wait] // c
        gone = ~(order == 0).any(axis=1)
        either = gone | ~(order == 1).any(axis=1)
        drawn = {"p_monte_carlo": float(gone.mean()), "q_monte_carlo": float(either.mean())}
        results["lemma2"][str(c)] = {"p": p, "q": q, **drawn}
        results["lemma8"][str(c)] = _lemma_8(rng, c, settings)
    return results


def _lemma_8(rng: np.random.Generator, c: int, settings: Settings) -> dict[str, Any]:
    n, wait, draws, rate = settings.workers, settings.wait, settings.draws, 1 / c
    stated = theory.seconds_by_load(n, c, wait, rate)
    alone = (1 + rng.standard_exponential((draws, n)) / rate) / n
    coded = (1 + rng.standard_exponential((draws, n)) / rate) * c / n
    blocks = coded.reshape(draws, n // c, c).min(axis=2)
    drawn = theory.Times(
        float(alone.max(axis=1).mean()),
        float(blocks.max(axis=1).mean()),
        float(np.sort(coded, axis=1)[:, wait - 1].mean()),
    )
    return {
        "stated": stated._asdict(),
        "monte_carlo": drawn._asdict(),
        "exact_as_printed": c / n + (theory.harmonic(n) - theory.harmonic(c)) / (rate * n),
        "theorem_3_bounds": theory.factors(n, c, wait / n)._asdict(),
    }


def simulated(settings: Settings) -> dict[str, Any]:
    """Seconds of an iteration in virtual time alone, in both delay models."""
    by_load = ExponentialByLoad(settings.workers, rate=0.5)
    whole = methods(settings.wait)
    streamed = {
        f"{kind}{c}": Method(FractionalRepetition(c, "parts"), stop)
        for c in (2, 3)
        for kind, stop in (("egc", exact()), ("agc", first(settings.wait) | exact()))
    }

    def times(delays: Delays, known: Mapping[str, Method]) -> dict[str, float]:
        n, rounds, seed = settings.workers, settings.simulated, settings.seed
        return {m: erasures.only_time(delays, how, n, rounds, seed) for m, how in known.items()}

    return {
        "virtual_seconds_per_iteration": times(Exponential(0.0, MEAN), whole),
        "virtual_seconds_per_iteration_by_load": times(by_load, whole),
        "virtual_seconds_per_iteration_by_load_streamed": times(by_load, streamed),
        "virtual_means": "virtual_seconds_per_iteration: an exponential wait of mean 2 s whatever "
        "the load, no compute (section 5). by_load: c of n parts take c/n (1 + E/λ) s, λ = 1/2 "
        "(section 4). streamed: the same, and every part counts as soon as it is done",
    }


def one(data: Dataset, settings: Settings, engine: Engine, on_step: OnStep) -> dict[str, Any]:
    """All methods on one data set: delayed processes, simulated, and processes without delays.

    The processes are those of `engine`, which stays open.
    """
    known, n, delays = methods(settings.wait), settings.workers, Exponential(0.0, MEAN)

    def processes(engine: Engine, iterations: int, what: str) -> dict[str, Run]:
        """Each method in turn, by the wall clock; code and parts are sent before it starts."""
        parts = connect(engine).parts(parted(data, n), known["uncoded"].code)
        fn, start = term(data), (np.zeros(data.shape[1]), 0)
        runs: dict[str, Run] = {}
        for name, method in known.items():
            parts.sum(fn, start, code=method.code)
            runs[name] = train(parts, data, method, iterations, engine.now, fn)
            on_step(f"{data.name}, {what}: {name}")
        return runs

    scaled, seed = Scaled(delays, settings.time_scale), settings.seed
    slow: Engine = VirtualEngine(n, delays=scaled, seed=seed)
    if settings.processes:
        slow = Paced(engine, scaled, seed)
    wall = processes(slow, settings.iterations, "delayed")
    virtual: dict[str, Run] = {}
    for name, method in known.items():
        clock = VirtualEngine(n, delays=delays, seed=seed)
        virtual[name] = simulate(data, method, settings.virtual_iterations, clock)
        on_step(f"{data.name}, simulated: {name}")
    plain = processes(engine, settings.plain_iterations, "without delays")
    return _figures(data, wall, virtual, plain)


def _figures(
    data: Dataset, wall: dict[str, Run], virtual: dict[str, Run], plain: dict[str, Run]
) -> dict[str, Any]:
    # What uncoded descent reaches after 60 % of its iterations.
    target = metric(data, wall["uncoded"].points[6 * len(wall["uncoded"].points) // 10])
    seconds = {name: run.per_iteration for name, run in wall.items()}
    return {
        "shapes": list(data.shape),
        "all_rows": data.shape[0] + int(data.X_test.shape[0]),
        "targets": target,
        "wall_seconds_per_iteration": seconds,
        "wall_speedups": speedups(seconds),
        "time_to_target": {name: reached(data, run, target) for name, run in wall.items()},
        "curves": {name: curve(data, run) for name, run in wall.items()},
        "covered": {name: float(np.mean(run.covered)) for name, run in wall.items()},
        "virtual_time_to_target": {n: reached(data, run, target) for n, run in virtual.items()},
        "virtual_curves": {name: curve(data, run) for name, run in virtual.items()},
        "no_delay_seconds_per_iteration": {n: run.per_iteration for n, run in plain.items()},
        "no_delay_curves": {name: curve(data, run) for name, run in plain.items()},
    }


def speedups(seconds: dict[str, float]) -> dict[str, float]:
    """How many times faster than uncoded; approximate codes also than exact ones and ignoring."""
    pairs = [(name, "uncoded") for name in seconds if name != "uncoded"]
    pairs += [(f"agc{c}", other) for c in (2, 3) for other in (f"egc{c}", "ignore")]
    return {f"{a}_over_{b}": seconds[b] / seconds[a] for a, b in pairs}
