"""Mallick et al., 2021, Rateless sums: Figure 2, Theorem 1, the propositions, measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .. import LT, DenseMDS, FractionalRepetition, RandomGroups, SumCode, Uncoded, connect
from ..codes.soliton import mean_degree
from ..delays import Delays, Exponential, Pareto, Sampled
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine
from ..rounds.stop import all as every
from ..sums.kernels import Kernel, values
from . import decoding, rateless_own
from .datasets import TIMINGS, recording
from .kept import Kept
from .timing import OnStep, Timer, drain, machine, unvalued

M, TAU, MU = 1000, 0.005, 0.2  # terms and workers, seconds a term, 1 / mean start-up
HELD = {"lt1": 32, "lt2": 16, "groups": 16}  # symbols of a worker that stand for infinitely many
RECORDING = "cnn_mbp_Canada_batch256"  # at load 0: one sample, so nearly all of it is start-up
WORKERS, DIMENSION = 16, 1000  # by the wall clock
TURNS = 10  # rounds by the wall clock that are kept at a time
KINDS = ("one", "uncoded", "replication2", "lt1", "lt2", "groups")

STOOD_IN = (
    "Latencies are simulated: 1000 workers on the virtual engine, the same master as ever; worker "
    "j starts after X_j and needs 0.005 s a term, as in their model. m_e = ∞ stands for 32 "
    "symbols a worker (LT-1; 16 for LT-2 and groups, which are larger), which hardly any worker "
    "gets through. Recorded start-up times of 256 AWS Lambda workers are drawn with replacement "
    "for 1000. By the wall clock, sixteen processes on this machine's few cores really wait for "
    "recorded times, scaled down, and really evaluate kernels. Decode times are the master's own "
    "(CPU) time; by the wall clock they stand in decode_ms_by_decoder."
)


@dataclass(frozen=True)
class Settings:
    """Sizes of one run."""

    trials: int = 500  # of each kind, for each delay model
    recorded_trials: int = 200
    codes: int = 2  # that the trials of a kind are spread over
    needed: int = 2000  # codes of which the symbols needed are counted
    decodes: int = 100
    orders: int = 1000  # random orders of arrival in which all decoders are compared
    rounds: int = 40  # by the wall clock
    own_trials: int = 500  # of their own experiment
    precoded: int = 500  # codes with and without a precode
    scale: float = 0.8  # of the recorded seconds, by the wall clock
    seed: int = 0
    simulated: bool = False  # the workers, where a wall clock runs otherwise

    @property
    def progress_steps(self) -> int:
        """How often `measure` calls `on_step`."""
        own = len(rateless_own.TAKEN) + len(rateless_own.R_VALUES) + len(decoding.PRECODED)
        return 3 * len(KINDS) + 3 + 4 + 6 + 2 + own + self.rounds


FULL = Settings()
QUICK = Settings(
    trials=10,
    recorded_trials=10,
    codes=1,
    needed=60,
    decodes=10,
    orders=60,
    rounds=6,
    own_trials=20,
    precoded=20,
    scale=0.2,
)


def check(data: Path) -> NDArray[np.float64]:
    """Return the recorded start-up times; raise BadInput where they are not in `data`."""
    return recording(data, RECORDING).at(0.0)


def measure(data: Path, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Run everything and return what goes to results.json."""
    waits = check(data)
    with threadpool_limits(1):
        models: dict[str, tuple[Delays, int]] = {
            "exp": (Exponential(unit=TAU, mean=1 / MU), settings.trials),
            "pareto": (Pareto(unit=TAU), settings.trials),
            "lambda_trace": (Sampled(waits, unit=TAU), settings.recorded_trials),
        }
        result: dict[str, Any] = {}
        for name, (delays, trials) in models.items():
            result[name] = {}
            for kind in KINDS:
                on_step(f"{name}, {kind}")
                # One worker alone is cheap to simulate, and its mean varies most.
                many = trials * (20 if kind == "one" else 1)
                play = partial(_latency, kind, delays, many, settings)
                result[name][kind] = kept(f"{name}, {kind}", play)
        result["by_m_e"] = kept("by m_e", partial(_by_symbols, settings, on_step))
        result["theory"] = theory()
        result["by_r"] = kept("by r", partial(_by_r, settings, on_step))
        own = (waits, M, settings.own_trials, settings.seed, on_step)
        result["own_experiment"] = kept("own", partial(rateless_own.two_symbols_each, *own))
        codes = partial(decoding.precodes, settings.decodes, settings.precoded, on_step)
        result["precoded"] = kept("precoded", codes)
        result |= kept("decoding", partial(_decoding, settings, on_step))
        turns = [min(TURNS, settings.rounds - done) for done in range(0, settings.rounds, TURNS)]
        blocks = [
            kept(f"wall, {number}", partial(_wall_clock, settings, waits, on_step, number, rounds))
            for number, rounds in enumerate(turns)
        ]
        result["wall_clock"] = _wall_summary(blocks, settings.scale)
    model = {"m": M, "tau": TAU, "mu": MU, "soliton": (0.03, 0.5), "symbols_per_worker": HELD}
    result["settings"] = {
        **asdict(settings),
        **model,
        "m_e": "infinity: no worker runs out of symbols",
        "recording": f"{TIMINGS}: {RECORDING}, load 0",
        "load_average": os.getloadavg()[0],
        **machine(),
    }
    result["stood_in"] = STOOD_IN
    return result


def _latency(kind: str, delays: Delays, trials: int, settings: Settings) -> dict[str, Any]:
    times, spent, needed = latencies(kind, HELD.get(kind, 1) * M, delays, trials, settings)
    row = {**summary(times), "workers_through": spent}
    return row | {"symbols_came": float(np.mean(needed))}


def code_of(kind: str, symbols: int, seed: int) -> SumCode:
    """The code of a kind; mₑ symbols in all, where it has symbols."""
    makers: dict[str, Callable[[], SumCode]] = {
        "one": lambda: Uncoded(stream="whole"),
        "uncoded": Uncoded,
        "replication2": lambda: FractionalRepetition(2, stream="whole"),
        "groups": lambda: RandomGroups(10, symbols=symbols, seed=seed),
        "dense": lambda: DenseMDS(M // 2, seed=seed),
    }
    if kind.startswith("lt"):
        return LT(r=int(kind[2:]), symbols=symbols, seed=seed)
    return makers[kind]()


def latencies(
    kind: str, symbols: int, delays: Delays, trials: int, settings: Settings
) -> tuple[list[float], float, list[int]]:
    """Seconds of simulated time to the sum, trial by trial; delays are drawn anew each time.

    And how many workers, on average, got through all that they hold; and the symbols that came.
    """
    times: list[float] = []
    came: list[int] = []
    through = 0
    codes = settings.codes if kind.startswith(("lt", "groups")) else 1
    for part in range(codes):
        workers, seed = 1 if kind == "one" else M, settings.seed + part
        engine = VirtualEngine(workers, delays=delays, compute=False, seed=seed)
        with connect(engine, limit=1e12) as cluster:  # a Pareto wait may be very long
            parts = cluster.parts([*range(M)], code_of(kind, symbols, seed))
            for _ in range(part * trials // codes, (part + 1) * trials // codes):
                report = parts.sum(unvalued).report
                times.append(report.seconds["total"])
                through += len(report.finished)
                came.append(report.symbols_used + report.symbols_wasted)
                drain(cluster)
    return times, through / len(times), came


def summary(times: list[float], points: int = 100) -> dict[str, Any]:
    """Mean, median, 99th percentile, and the tail P(T > t) at up to so many times.

    Half of these are evenly spread, half are denser the nearer to the longest time.
    """
    ordered, few = np.sort(times), min(points // 2, len(times))
    even, last = np.linspace(0, len(times) - 1, few), len(times) - np.geomspace(1, len(times), few)
    at = np.unique(np.concatenate([even, last]).round().astype(int))
    tail = [[float(ordered[i]), 1.0 - (i + 1) / len(ordered)] for i in at.tolist()]
    return {
        "mean": float(ordered.mean()),
        "median": float(np.median(ordered)),
        "p99": float(np.quantile(ordered, 0.99)),
        "tail": tail,
        "trials": len(ordered),
    }


def theory() -> dict[str, float]:
    """Theorem 1's bounds and the propositions, for exponential start-up."""
    harmonic = np.cumsum(1.0 / np.arange(1, M + 1))
    return {
        "theorem_1_lt1": TAU * 2 * mean_degree(M) + 1 / MU,
        "theorem_1_lt2": TAU * 3 * mean_degree(M // 2) + 1 / MU,
        "proposition_1_uncoded": float(TAU + harmonic[M - 1] / MU),
        "proposition_1_replication2": float(2 * TAU + harmonic[M // 2 - 1] / (2 * MU)),
        "proposition_2_one": TAU * M + 1 / MU,
        "mean_degree_lt1": mean_degree(M),
        "mean_degree_lt2": mean_degree(M // 2),
    }


def _by_symbols(settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """What a finite mₑ does to LT-1, and what a dense code would take; exponential start-up."""
    delays = Exponential(unit=TAU, mean=1 / MU)
    few = max(5, settings.trials // 5)
    result: dict[str, Any] = {}
    for name, kind, symbols, trials in (
        ("lt1_2m", "lt1", 2 * M, few),
        ("lt1_4m", "lt1", 4 * M, few),
        ("dense_mds", "dense", 0, min(few, 20)),
    ):
        on_step(f"exp, {name}")
        times, _, came = latencies(kind, symbols, delays, trials, replace(settings, codes=1))
        result[name] = summary(times, 20) | _by_formula(times, came, symbols, 1)
    return result


def _by_formula(times: list[float], came: list[int], symbols: int, r: int) -> dict[str, float]:
    """The mean's standard error, and the latency by formula for as many symbols as came.

    How many come varies, the more the larger r is: the mean is over ten quantiles of that.
    """
    error = float(np.std(times) / np.sqrt(len(times)))
    each, groups = symbols // M, -(-M // r)
    if not each:
        return {"error": error}
    some = np.quantile(came, np.arange(0.05, 1.0, 0.1))
    known = [rateless_own.latency(s, each, r, M, groups, TAU, MU) for s in some.tolist()]
    return {"error": error, "symbols_came": float(np.mean(came)), "formula": float(np.mean(known))}


def _by_r(settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """LT-r for several r, exponential start-up: simulated, by formula, and Theorem 1's bound."""
    delays, result = Exponential(unit=TAU, mean=1 / MU), {}
    for r in rateless_own.R_VALUES:
        on_step(f"exp, LT-{r}")
        symbols = max(1, HELD["lt1"] // r) * M
        trials = max(5, settings.trials // 5)
        times, _, came = latencies(f"lt{r}", symbols, delays, trials, replace(settings, codes=1))
        bound = TAU * (r + 1) * mean_degree(M // r) + 1 / MU
        row = summary(times, 20) | _by_formula(times, came, symbols, r)
        result[str(r)] = row | {"theorem_1": bound, "mean_degree": mean_degree(M // r)}
    return result


def _decoding(settings: Settings, on_step: OnStep) -> dict[str, Any]:
    needed: dict[str, int] = {}
    spread: dict[str, Any] = {}
    for kind, recipe in decoding.RECIPES.items():
        for r in (1, 2):
            on_step(f"symbols needed: {kind}, LT-{r}")
            case = decoding.Case(replace(recipe, r=r), M)
            counts = decoding.symbols_needed(case, settings.needed, settings.seed)
            needed[f"{kind}_lt{r}"] = int(np.ceil(np.quantile(counts, 0.99)))
            spread[f"{kind}_lt{r}"] = {
                "median": float(np.median(counts)),
                "mean": float(np.mean(counts)),
                "most": int(max(counts)),
            }
    details = decoding.bench(settings.decodes, on_step)
    on_step("decoding, by m")
    on_step("decoders compared")
    return {
        "symbols_99": needed,
        "symbols_needed": spread,
        **decoding.decode_ms(details),
        "decode_details": details,
        "decode_growth": decoding.growth(max(2, settings.decodes // 4)),
        "decoders_agree": decoding.agreement(settings.orders, settings.seed),
    }


def _wall_clock(
    settings: Settings,
    waits: NDArray[np.float64],
    on_step: OnStep,
    number: int,
    rounds: int,
) -> dict[str, Any]:
    """Seconds of so many rounds of each kind, and the largest error."""
    rng = np.random.default_rng(settings.seed)
    X = rng.standard_normal((M, DIMENSION))
    x = (rng.standard_normal((1, DIMENSION)), Kernel("gaussian", 1 / DIMENSION))
    exact = float(x[1](X, x[0]).sum())
    codes: Mapping[str, SumCode] = {
        "uncoded": Uncoded(),
        "replication2": FractionalRepetition(2, stream="whole"),
        # Each worker could do it alone: mₑ is sixteen times what is needed.
        "lt1": LT(symbols=WORKERS * (M + 20)),
        "lt2": LT(r=2, symbols=WORKERS * (M // 2 + 20)),
        "groups": RandomGroups(10),
    }
    # No waits until every worker has done everything once; then the clock runs.
    drawn = np.zeros_like(waits)
    engines = [
        _waiting(workers, Sampled(drawn, unit=0.0), settings.seed + 2 * number + i, settings)
        for i, workers in enumerate((WORKERS, 1))
    ]
    with connect(engines[0]) as cluster, connect(engines[1]) as one:
        parts = cluster.parts(X, codes["uncoded"], parts=M)
        all_at_one = one.parts(X, Uncoded(stream="whole"), parts=M)
        sums = {
            kind: partial(parts.sum, values, x, code=code, vectorised=True)
            for kind, code in codes.items()
        }
        for warm_up in sums.values():
            warm_up(stop=every())
        alone_sum = partial(all_at_one.sum, values, x, vectorised=True)
        alone_sum()
        drawn[:] = settings.scale * waits
        timer = Timer(exact)
        where = {kind: (cluster, call) for kind, call in sums.items()} | {"one": (one, alone_sum)}
        kinds = {kind: (on, partial(_value, call)) for kind, (on, call) in where.items()}
        seconds = timer.rounds(kinds, rounds, lambda: on_step("wall clock"), warm=0)
    return {"seconds": seconds, "worst_relative_error": timer.worst}


def _waiting(workers: int, delays: Delays, seed: int, settings: Settings) -> Engine:
    """Workers whose start waits; the work takes the time that it takes."""
    if settings.simulated:
        return VirtualEngine(workers, delays=delays, seed=seed)
    engine = Paced(LocalEngine(workers), delays, seed=seed)
    engine.capabilities = replace(engine.capabilities, given_time=False)
    return engine


def _wall_summary(blocks: list[dict[str, Any]], scale: float) -> dict[str, Any]:
    sizes = {"workers": WORKERS, "terms": M, "dimension": DIMENSION, "scale": scale}
    kinds = blocks[0]["seconds"]
    times = {kind: [t for block in blocks for t in block["seconds"][kind]] for kind in kinds}
    worst = max(block["worst_relative_error"] for block in blocks)
    result = {kind: summary(every) for kind, every in times.items()}
    return {**result, **sizes, "worst_relative_error": worst}


def _value(call: Callable[[], Any]) -> Any:
    return call().value
