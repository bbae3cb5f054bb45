"""Krishnan et al., 2020, Coded sequential matrix multiplication: Figures 1 and 2, Table 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..delays import Fritchman, Independent, Slowed, Stragglers, Stratified, adversary
from ..engines.base import Engine
from ..sequence import DIP, IDIP, BurstIDIP, Polynomial, SequenceCode, Uncoded
from . import sequential_parts as parts
from . import sequential_runs as runs
from . import sequential_search as search
from . import sequential_theory as theory
from .datasets import Images, made_up_images, read_mnist
from .kept import Kept
from .timing import OnStep, machine

FIGURE_1 = {"a": (5.0, 4, 4), "b": (10.0, 6, 5)}  # alpha, P, W = T + 1
DELTAS = tuple(round(0.05 * i, 2) for i in range(1, 11))
P, DELAY, ALPHA, DELTA = 4, 3, 5.0, 0.3  # section 5
SLACKS = (0.0, 0.25)
# Krishnan et al., 2020 do not give their chain; this one fits the codes that they chose.
CHAIN: dict[str, Any] = {"enter": 0.2, "leave": 0.5, "bad": 2}
CHAIN_MEANS = (
    "one good state and two bad ones in line: from good to bad with probability 0.2 a round, from "
    "each bad state on with 0.5; a burst lasts 4 rounds in the mean, and 44 % of rounds are bad"
)
# Layers as published, for virtual time: 784 - 3000 - 3000 - 10, batches of 1024.
PAPER_WIDTHS, BATCH, MODELS = (784, 3000, 3000, 10), 1024, 5

# Those that Krishnan et al. chose, for Figure 2 and Table 1 (mu = 0.25), and DIP as their
# Algorithm 1 prints it. For bursts their IDIP is the variant for them, xy = 12. Its B, W and ε
# are not in the text: these fit xy and T.
BURST = BurstIDIP(2, 6, DELAY, B=2, W=3, lam=2)
PLAIN: dict[str, SequenceCode] = {"uncoded": Uncoded(2, 2), "poly": Polynomial(2, 1)}
PUBLISHED: dict[str, dict[str, SequenceCode]] = {
    "iid": {
        **PLAIN,
        "dip": DIP(2, 3, DELAY, lam=1, plain=False),
        "idip": IDIP(2, 3, DELAY, N=10, W=4),
    },
    "fritchman": {**PLAIN, "dip": DIP(2, 2, DELAY, lam=2, plain=False), "idip": BURST},
}
# Training under bursts: DIP as kofn sends it if nothing is said, its first mini-tasks uncoded,
# and Algorithm 2 with the N that the search finds at mu = 0.25.
TRAINED: dict[str, dict[str, SequenceCode]] = {
    "iid": PUBLISHED["iid"],
    "fritchman": {
        **PLAIN,
        "dip": DIP(2, 2, DELAY, lam=2),
        "idip": IDIP(2, 3, DELAY, N=10, W=4),
    },
}
# Seconds of encoding and decoding a job, as published.
TABLE_1_PARTS = {
    "iid": {"poly": (0.076, 0.077), "dip": (0.091, 0.082), "idip": (0.052, 0.078)},
    "fritchman": {"poly": (0.045, 0.187), "dip": (0.065, 0.206), "idip": (0.024, 0.193)},
}
TABLE_1 = {
    "iid": {"uncoded": 0.3, "poly": 0.152, "dip": 0.096, "idip": 0.115},
    "fritchman": {"uncoded": 0.574, "poly": 0.482, "dip": 0.327, "idip": 0.281},
}
STOOD_IN = (
    "By wall clock each worker is a process of this machine whose pace is set: a mini-task takes a "
    "fixed time for its size, five times as long on a straggler, most of which the process sleeps. "
    "Messages, the master, encoding and decoding are real and in the clock. In virtual time the "
    "same master runs and all times are simulated; the master costs nothing. Times per job are "
    "given as multiples of what a whole job takes one worker."
)
FEW_JOBS = (
    "Fewer jobs than in a full run: parameters were searched on few rounds and means are over few "
    "jobs, so ratios of codes are rough, and those by wall clock of short mini-tasks on top."
)


@dataclass(frozen=True)
class Settings:
    """Sizes of one run."""

    figure_jobs: int = 2048  # a point of Figure 1 and code, in virtual time
    figure_search: int = 400  # rounds that its parameters are searched on
    search_rounds: int = 2000  # the same for the tables
    virtual_jobs: int = 4000  # of the tables
    table_jobs: int = 4000  # of Table 1 with the published codes, for each seed
    table_seeds: int = 8
    wall_jobs: int = 48
    wall_whole: float = 2.0  # seconds of a whole job on one worker
    paper_jobs: int = 10_000  # of Figure 2 at full size, in virtual time
    steps: int = 25  # of training, on local processes
    widths: tuple[int, ...] = (784, 300, 100, 10)
    batch: int = BATCH
    largest: float = 0.4  # seconds of the largest product of training, on one worker
    full_widths: tuple[int, ...] = PAPER_WIDTHS  # encoded, decoded and trained on at full size
    full_steps: int = 20
    full_batch: int = BATCH
    repeats: int = 5  # of each part that is timed at full size
    deltas: tuple[float, ...] = DELTAS
    product: tuple[int, int, int] = (1024, 784, 300)  # see `held` of sequential_runs
    simulated: bool = False  # the workers that work by wall clock otherwise
    seed: int = 1

    @property
    def progress_steps(self) -> int:
        """How often `measure` calls `on_step`."""
        return len(FIGURE_1) * len(self.deltas) + 2 + 2 * 2 * len(SLACKS) + 2 + 1 + 8 + 8 + 1


FULL = Settings()
QUICK = Settings(
    figure_jobs=128,
    figure_search=60,
    search_rounds=300,
    virtual_jobs=400,
    table_jobs=400,
    table_seeds=2,
    wall_jobs=16,
    wall_whole=0.4,
    paper_jobs=400,
    steps=2,
    widths=(784, 60, 30, 10),
    batch=256,
    largest=0.15,
    full_widths=(784, 300, 300, 10),
    full_steps=2,
    full_batch=256,
    repeats=2,
)


def measure(data: Path | None, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Run everything and return what goes to results.json. Only training needs data."""
    known, train, test = training_data(data)
    results: dict[str, Any] = {
        "stood_in": STOOD_IN,
        "fritchman_chain": CHAIN_MEANS,
        "training_data": known,
        "few_jobs": FEW_JOBS if settings.wall_jobs < FULL.wall_jobs else None,
        "figure1": {
            name: kept(f"figure 1{name}", partial(figure_1, name, settings, on_step))
            for name in FIGURE_1
        },
        "table_1": {
            model: kept(f"published, {model}", partial(table_1, model, settings, on_step))
            for model in PUBLISHED
        },
        "wall": {},
    }

    @cache
    def codes(model: str, mu: float) -> dict[str, SequenceCode]:
        pattern = stragglers(model, settings).pattern(settings.search_rounds, P)
        return search.chosen(P, DELAY, pattern, ALPHA, mu)

    with runs.engines(PUBLISHED["iid"], P, settings.simulated) as on:
        for model in PUBLISHED:
            played = partial(table, model, codes, settings, on_step)
            results[model] = kept(f"table 1, {model}", played)
            timed = partial(wall_table, model, codes, on, settings, on_step)
            results["wall"][model] = kept(f"wall clock, {model}", timed)
    results["figure2"] = {
        model: kept(f"figure 2, {model}", partial(figure_2, model, settings, on_step))
        for model in PUBLISHED
    }
    results["burst_variant"] = kept("bursts", partial(burst_variant, settings, on_step))
    results["burst_spans"] = kept("burst spans", partial(burst_spans, settings))
    results["burst_chains"] = kept("burst chains", partial(burst_chains, settings))
    results["theorem_3_1"] = kept("theorem 3.1", partial(theorem_3_1, settings.seed))
    unit = settings.largest / (settings.batch * settings.widths[0] * settings.widths[1])
    for key, model in (("training", "iid"), ("training_bursts", "fritchman")):
        delays = Slowed(plain_stragglers(model, settings), ALPHA, unit)
        shape = (settings.widths, settings.steps, settings.batch)
        how = (shape, settings.product, settings.simulated)
        results[key] = runs.networks_on_mnist(
            TRAINED[model], delays, train, test, *how, on_step, kept, key
        )
    results["table1_parts"] = {
        model: kept(f"parts, {model}", partial(table_1_parts, model, settings, on_step))
        for model in TRAINED
    }
    sizes = (settings.full_widths, settings.full_steps, settings.full_batch)
    whole = partial(parts.training_at_full_size, *sizes, train, test)
    results["full_size"] = kept("full size", whole)
    on_step("training at full size")
    results["settings"] = asdict(settings) | machine()
    return results


def training_data(data: Path | None) -> tuple[str, Images, Images]:
    """Images to train and to test on, after what they are called."""
    if data is None:
        return "made-up images", made_up_images(4096, 1), made_up_images(1000, 2)
    return "MNIST", read_mnist(data, "train"), read_mnist(data, "test")


def stragglers(
    model: str, settings: Settings, block: int = 1024, seed: int | None = None
) -> Stragglers:
    """Independent ones (stratified: less chance in the mean), or the chain."""
    seed = settings.seed if seed is None else seed
    return Stratified(DELTA, P, seed, block) if model == "iid" else Fritchman(**CHAIN, seed=seed)


def plain_stragglers(model: str, settings: Settings) -> Stragglers:
    """Independent ones as they come, or the chain."""
    return Independent(DELTA, settings.seed) if model == "iid" else stragglers(model, settings)


def table_1(model: str, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """Table 1 with the published codes, in virtual time, by slack.

    `over_poly`: time per job over the polynomial code's under the same stragglers, the
    mean over the seeds; `error` is its standard error.
    """
    jobs, seeds = settings.table_jobs, range(1, settings.table_seeds + 1)
    slow = [stragglers(model, settings, min(jobs, 1024), seed) for seed in seeds]

    def times(code: SequenceCode, mu: float) -> Any:
        return np.array([runs.virtual(code, s, P, ALPHA, mu, jobs).per_job for s in slow])

    codes = PUBLISHED[model]
    # Rounds of these end as soon as their product is there, so mu does not matter to them.
    prompt = {kind: times(code, 0.0) for kind, code in codes.items() if code.delay == 0}
    table: dict[str, Any] = {"seeds": len(slow), "jobs": jobs}
    for mu in SLACKS:
        late = {kind: times(code, mu) for kind, code in codes.items() if code.delay}
        ratios = {kind: t / prompt["poly"] for kind, t in (prompt | late).items()}
        published = TABLE_1[model]
        table[f"mu_{mu:g}"] = {
            "over_poly": {kind: float(ratio.mean()) for kind, ratio in ratios.items()},
            "error": {
                kind: float(ratio.std(ddof=1) / len(slow) ** 0.5) for kind, ratio in ratios.items()
            },
        }
    table["parameters"] = {kind: repr(code) for kind, code in codes.items()}
    table["published"] = {kind: R / published["poly"] for kind, R in published.items()}
    on_step(f"table 1, {model}, the published codes")
    return table


def burst_variant(settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """IDIP for bursts on the chain, every (B, W, ε) of this delay; beside it Algorithm 2.

    Time per job over that of the polynomial code, in virtual time. The last two have two rounds
    more until a job is due.
    """
    slow, jobs = stragglers("fritchman", settings), settings.virtual_jobs
    codes: list[SequenceCode] = [
        search.bursts(P, B, DELAY + 2 - B, lam) for B in (1, 2) for lam in range(1, P + 1)
    ]
    codes += [IDIP(*search.factors(P * (DELAY + 1) - N), DELAY, N, DELAY + 1) for N in (4, 10, 11)]
    codes += [DIP(2, 2, DELAY, lam=2), DIP(1, 7, DELAY, lam=1), DIP(2, 4, DELAY, lam=1)]
    codes += [DIP(3, 4, DELAY + 2, lam=1), IDIP(2, 5, DELAY + 2, N=14, W=DELAY + 3)]
    results: dict[str, Any] = {}
    for mu in SLACKS:
        poly = runs.virtual(PLAIN["poly"], slow, P, ALPHA, mu, jobs).per_job
        done = {repr(code): runs.virtual(code, slow, P, ALPHA, mu, jobs) for code in codes}
        results[f"mu_{mu:g}"] = {name: run.per_job / poly for name, run in done.items()}
        results[f"waited_mu_{mu:g}"] = {
            name: run.report.waited / len(run.report.rounds) for name, run in done.items()
        }
    on_step("bursts, the variant of IDIP")
    return results


def burst_spans(settings: Settings) -> dict[str, Any]:
    """The same for longer spans, and so longer delays: first-order times, without the master."""
    pattern = stragglers("fritchman", settings).pattern(settings.search_rounds, P)
    return {f"mu_{mu:g}": search.burst_spans(P, pattern, ALPHA, mu) for mu in SLACKS}


def burst_chains(settings: Settings) -> dict[str, Any]:
    """The published codes for bursts on other chains, in first-order time; the least of IDIP."""
    found: dict[str, Any] = {}
    for mu in SLACKS:
        codes = PUBLISHED["fritchman"]
        rows = search.over_chains(P, codes, settings.search_rounds, ALPHA, mu)
        least = min(row["over_poly"]["idip"] for row in rows)
        found[f"mu_{mu:g}"] = {"chains": rows, "least_idip": least}
    return found


def theorem_3_1(seed: int) -> list[dict[str, Any]]:
    """The least load that there is, against the most that DIP and IDIP give a worker in a round.

    Counted in their ledgers, on patterns with at most N stragglers in any W rounds: those of the
    proof, with all N in the first rounds of each window, and random ones that no straggler can be
    added to. `late`: rounds at the end of which a job was overdue.
    """
    rows = []
    for workers, N, W in ((4, 4, 4), (4, 10, 4), (4, 11, 4), (6, 7, 5), (6, 15, 5)):
        k, rng = workers * W - N, np.random.default_rng(seed)
        window = np.arange(W * workers).reshape(W, workers) < N
        patterns = [np.tile(window, (8, 1))]
        patterns += [adversary.random(rng, 8 * W, workers, N, W) for _ in range(8)]
        codes: dict[str, SequenceCode] = {
            "dip": DIP(*search.factors(k), delay=W - 1, lam=workers),
            "idip": IDIP(*search.factors(k), delay=W - 1, N=N, W=W),
        }
        row = {"P": workers, "N": N, "W": W, "bound": theory.least_load(workers, N, W)}
        for kind, code in codes.items():
            counts = [theory.most_mini_tasks(code.ledger(workers), p) for p in patterns]
            row[kind] = max(most for most, _ in counts) / code.product.k
            row[f"{kind}_late"] = sum(late for _, late in counts)
        rows.append(row)
    return rows


def table_1_parts(model: str, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """Encode and decode seconds of a job at full size, and what a whole job takes one core."""
    pattern = plain_stragglers(model, settings).pattern(settings.search_rounds, P)
    shapes = runs.layer_jobs(settings.full_batch, settings.full_widths)
    codes = PUBLISHED[model]
    return parts.parts(codes, shapes, pattern, settings.repeats, on_step) | {
        "published": {kind: list(pair) for kind, pair in TABLE_1_PARTS[model].items()}
    }


def representative(settings: Settings) -> Stragglers:
    """Of 200 runs of the chain the one in which 0, 1, … P straggle as often as in the long run.

    A run by wall clock is short: in any one of them chance counts.
    """
    long = stragglers("fritchman", settings).pattern(4000, P).sum(axis=1)
    usual = np.bincount(long, minlength=P + 1) / len(long)

    def apart(seed: int) -> float:
        some = Fritchman(**CHAIN, seed=seed).pattern(settings.wall_jobs, P).sum(axis=1)
        return float(np.abs(np.bincount(some, minlength=P + 1) / len(some) - usual).sum())

    return Fritchman(**CHAIN, seed=min(range(200), key=apart))


def figure_1(name: str, settings: Settings, on_step: OnStep) -> list[dict[str, Any]]:
    """R over delta: closed forms, the corrected bound, and what the real master needs."""
    alpha, workers, W = FIGURE_1[name]
    points = []
    for delta in settings.deltas:
        slow = Stratified(delta, workers, settings.seed, settings.figure_jobs)
        pattern = slow.pattern(settings.figure_search, workers)
        S = min(range(1, workers), key=lambda s: theory.polynomial(alpha, s, workers, delta))
        N = min(range(1, workers * W), key=lambda n: theory.idip_bound(alpha, n, W, workers, delta))
        beta = min(
            range(workers, workers * W),
            key=lambda b: theory.dip_without_deadline(alpha, b, workers, delta),
        )
        codes: dict[str, SequenceCode] = {
            "uncoded": Uncoded(*search.factors(workers)),
            "poly": Polynomial(*search.factors(workers - S)),
            "idip": IDIP(*search.factors(workers * W - N), delay=W - 1, N=N, W=W),
            "dip": search.best(search.all_dip(workers, W - 1), pattern, alpha, 0.0),
        }
        measured = {
            kind: runs.virtual(code, slow, workers, alpha, 0.0, settings.figure_jobs)
            for kind, code in codes.items()
        }
        points.append(
            {
                "delta": delta,
                "uncoded": theory.uncoded(alpha, workers, delta),
                "poly": theory.polynomial(alpha, S, workers, delta),
                "idip_bound": theory.idip_bound(alpha, N, W, workers, delta),
                "idip_bound_as_printed": theory.idip_bound(alpha, N, W, workers, delta, True),
                "dip": measured["dip"].per_job,
                "dip_without_deadline": theory.dip_without_deadline(alpha, beta, workers, delta),
                "measured": {kind: run.per_job for kind, run in measured.items()},
                "loads": {kind: run.load for kind, run in measured.items()},
                "rounds_after_last_job": {
                    kind: len(run.report.rounds) - settings.figure_jobs
                    for kind, run in measured.items()
                },
                "delay": W - 1,
                "idip_load_of_the_bound": W / (workers * W - N),
                "parameters": {kind: repr(code) for kind, code in codes.items()},
            }
        )
        on_step(f"figure 1({name}), delta {delta:.2f}")
    return points


Codes = Callable[[str, float], Mapping[str, SequenceCode]]  # of a model and a slack
Engines = Mapping[str, Engine | None]  # by code; None is simulated


def table(model: str, codes: Codes, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """Mean virtual time per job, parameters by search; mu = 0, and the same for mu = 0.25."""

    def run(mu: float) -> dict[str, runs.Run]:
        slow, jobs = stragglers(model, settings), settings.virtual_jobs
        chosen = codes(model, mu).items()
        return {kind: runs.virtual(code, slow, P, ALPHA, mu, jobs) for kind, code in chosen}

    return _by_slack(model, "virtual time", run, on_step) | {"published": TABLE_1[model]}


def wall_table(
    model: str, codes: Codes, on: Engines, settings: Settings, on_step: OnStep
) -> dict[str, Any]:
    """The same by wall clock."""
    jobs, whole, iid = settings.wall_jobs, settings.wall_whole, model == "iid"
    slow = stragglers(model, settings, block=jobs) if iid else representative(settings)

    def run(mu: float) -> dict[str, runs.Run]:
        return runs.walls(codes(model, mu), on, slow, ALPHA, mu, jobs, whole)

    return _by_slack(model, "wall clock", run, on_step) | {"whole_job_seconds": whole}


def _by_slack(
    model: str, clock: str, run: Callable[[float], dict[str, runs.Run]], on_step: OnStep
) -> dict[str, Any]:
    tables = []
    for mu in SLACKS:
        tables.append(_rows(run(mu), mu, model))
        on_step(f"{model}, {clock}, mu {mu}")
    return tables[0] | {"mu_0.25": tables[1]}


def _rows(done: Mapping[str, runs.Run], mu: float, model: str) -> dict[str, Any]:
    poly = done["poly"].per_job
    chance = {"delta": DELTA} if model == "iid" else CHAIN
    return {kind: run.per_job for kind, run in done.items()} | {
        "over_poly": {kind: run.per_job / poly for kind, run in done.items()},
        "parameters": {kind: run.parameters for kind, run in done.items()}
        | {"mu": mu, "P": P, "delay": DELAY, "alpha": ALPHA, **chance},
        "overdue": {kind: list(run.report.overdue) for kind, run in done.items()},
        "waited": {kind: run.report.waited / len(run.report.rounds) for kind, run in done.items()},
    }


def figure_2(model: str, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """The published networks and codes at full size, in virtual time: time and load by round."""
    shapes = [shape for shape in runs.layer_jobs(BATCH, PAPER_WIDTHS) for _ in range(MODELS)]
    slow = plain_stragglers(model, settings)
    mean = float(np.mean([np.prod(shape) for shape in shapes]))
    curves: dict[str, Any] = {}
    for kind, code in PUBLISHED[model].items():
        run = runs.virtual(code, slow, P, ALPHA, 0.25, settings.paper_jobs, shapes)
        spent = np.cumsum([r.seconds for r in run.report.rounds]) / runs.WHOLE
        step = max(1, len(spent) // 200)
        loads = np.array([r.load for r in run.report.rounds[:200]]) / mean
        curves[kind] = {
            "per_job": run.per_job,
            "parameters": run.parameters,
            "rounds": list(range(step, len(spent) + 1, step)),
            "cumulative": spent[step - 1 :: step].tolist(),
            "loads": loads.tolist(),
            "load_variation": float(loads.std() / loads.mean()),
            # A step of all networks is 8 jobs of each, of which one begins in a round.
            "step_ends": spent[len(shapes) - 1 :: len(shapes)].tolist(),
        }
    on_step(f"figure 2, {model}, full size")
    poly = curves["poly"]["per_job"]
    return {kind: {**curve, "over_poly": curve["per_job"] / poly} for kind, curve in curves.items()}
