"""Yang et al., 2019, Coded elastic computing: Figure 2, stragglers, unequal speeds, rows moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.baselines import Replicated, uncoded, whole_shares
from ..arrays.matrix import CodedMatrix
from ..arrays.options import Options
from ..arrays.shares import Shares
from ..cluster import Cluster, connect
from ..codes.mds import MDSCode
from ..delays import Delays, Exponential, PerUnit
from ..engines.virtual import VirtualEngine
from . import elastic_more, linear, moved
from .datasets import house_prices, made_up_images, read_mnist
from .kept import Kept
from .linear import MACHINES, THRESHOLD
from .timing import OnStep, Timer, drain, machine, paced, summary

Times = dict[str, dict[str, dict[str, float]]]  # by machines live, kind, and quantile
PAPER = (100_000, 10_000)  # the matrix of Figure 2(a)
PAPER_ROW = 8e-6  # seconds a row of it takes: 80 KB at 10 GB/s. Ratios do not depend on it.

STOOD_IN = (
    "Each of the twenty (twelve, six) machines is a process on this machine's few cores. Its pace "
    "is set: a task takes a fixed time for each row that it reads, most of which the process "
    "sleeps. Messages, the master's work and decoding are real, and in the clock. Where machines "
    "leave, their processes are killed; the first rounds without them, with new windows, are in "
    "the clock too. On the virtual engine all times are simulated, and the master costs nothing."
)


@dataclass(frozen=True)
class Settings:
    """Sizes of one run. `rounds` of each kind are timed at every point."""

    rounds: int = 12
    rows: int = 20_000  # of the matrix, a multiple of 10 x 8 x 3
    columns: int = 100  # few: what workers really compute must be little against their pace
    share_seconds: float = 0.6  # pace: a whole share at threshold 10
    straggler_seconds: float = 0.3  # the same at threshold 8
    speeds_seconds: float = 0.2  # the same at threshold 3, on the fastest machines
    virtual_rounds: int = 20
    sequences: int = 400  # orders of leaving, 20 to 10
    seed: int = 0
    simulated: bool = False  # the workers, where a wall clock runs otherwise
    linear: linear.Settings = linear.FULL
    more: elastic_more.Settings = elastic_more.FULL

    @property
    def progress_steps(self) -> int:
        """How often `measure` calls `on_step`."""
        live = MACHINES - THRESHOLD + 1
        products = (1 + live * self.rounds) + (1 + self.rounds) + (LEARN + self.rounds) + 2
        return products + self.linear.progress_steps + elastic_more.STEPS


FULL = Settings()
QUICK = Settings(
    rounds=3,
    share_seconds=0.4,
    straggler_seconds=0.12,
    speeds_seconds=0.15,
    virtual_rounds=3,
    sequences=40,
    linear=linear.QUICK,
    more=elastic_more.QUICK,
)
LEARN = 5  # rounds in which speeds are learnt, uncounted


def measure(data: Path | None, settings: Settings, on_step: OnStep, kept: Kept) -> dict[str, Any]:
    """Run everything and return what goes to results.json; `data` is for the linear models."""
    prices = house_prices(data)
    known = data is not None and (data / "mnist").is_dir()
    images = read_mnist(data, "train") if data and known else made_up_images(4096, 1)
    rng = np.random.default_rng(settings.seed)
    A = rng.standard_normal((settings.rows, settings.columns))
    w = rng.standard_normal(settings.columns)
    results: dict[str, Any] = {"stood_in": STOOD_IN}
    errors = []
    for part in (figure_2a, straggler, speeds):
        measured = kept(part.__name__, partial(_checked, part, A, w, settings, on_step))
        errors.append(measured["largest_relative_error"])
        results |= measured
    results |= kept("simulated", lambda: virtual_2a(settings))
    on_step("full size, simulated")
    results |= moved.tables(settings.sequences, settings.seed)
    on_step("rows moved")
    results |= linear.measure(prices, settings.linear, on_step, kept)
    results |= elastic_more.measure(images, prices, settings.more, on_step, kept)
    results["grids_data"] = "MNIST" if known else "made-up images"
    results["largest_relative_error"] = max(errors)
    results["settings"] = asdict(settings) | machine()
    return results


def _checked(part: Any, A: Any, w: Any, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """What a part measures, and how wrong its products were at most."""
    timer = Timer(A @ w)
    measured: dict[str, Any] = part(A, w, settings, timer, on_step)
    return measured | {"largest_relative_error": timer.worst}


def figure_2a(A: Any, w: Any, settings: Settings, timer: Timer, on_step: OnStep) -> dict[str, Any]:
    """Twenty workers that leave one by one: adaptive against whole shares, wall clock.

    Loads are equal, as published: on a busy machine measured ones follow its noise at times.
    """
    rows, simulated = A.shape[0] // THRESHOLD, settings.simulated
    with paced(MACHINES, rows, settings.share_seconds, simulated=simulated) as cluster:
        X = cluster.encode(A, k=THRESHOLD, loads="equal")
        Y = whole_shares(cluster, A, THRESHOLD)
        kinds = {"adaptive": (cluster, lambda: X @ w), "nonadaptive": (cluster, lambda: Y @ w)}

        def rounds(n: int) -> dict[str, list[float]]:
            warm = int(n == MACHINES)  # the first round also sends the workers their code
            return timer.rounds(kinds, settings.rounds, lambda: on_step(f"{n} of 20"), warm)

        times = _leaving(cluster, settings.seed, rounds)
    return {"adaptive_over_nonadaptive": _ratios(times), "figure_2a_seconds": times}


def virtual_2a(settings: Settings) -> dict[str, Any]:
    """The same at the published size in simulated time: equal machines, and with random waits."""
    share = PAPER_ROW * PAPER[0] / THRESHOLD
    even = _virtual(PerUnit(PAPER_ROW), settings)
    waits = _virtual(Exponential(PAPER_ROW, 0.02 * share), settings)
    return {
        "virtual_adaptive_over_nonadaptive": _ratios(even),
        "virtual_with_waits": _ratios(waits),
        "virtual_seconds": even,
        "virtual_means": "every row takes the same time; with_waits adds to each task an "
        "exponential wait with a mean of 2 % of a whole share's time",
    }


def _virtual(delays: Delays, settings: Settings) -> Times:
    engine = VirtualEngine(MACHINES, delays=delays, compute=False, seed=settings.seed)
    w = np.zeros(PAPER[1])
    with connect(engine) as cluster:
        adaptive = _unvalued(cluster, Options(measured_loads=False))
        whole = Options(margin=MACHINES - THRESHOLD, late=None, measured_loads=False)
        kinds = {"adaptive": adaptive, "nonadaptive": _unvalued(cluster, whole)}

        def rounds(n: int) -> dict[str, list[float]]:
            seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(settings.virtual_rounds):
                for kind, X in kinds.items():
                    drain(cluster)
                    X @ w
                    seconds[kind].append(X.report.seconds["total"])
            return seconds

        return _leaving(cluster, settings.seed, rounds)


def _unvalued(cluster: Cluster, options: Options) -> CodedMatrix:
    """A coded matrix of the published size, of which only the sizes exist."""
    code = MDSCode(MACHINES, THRESHOLD)
    shares = Shares(code, PAPER, np.dtype(np.float64), lambda share: None)
    return CodedMatrix(cluster._driver, shares, options)


def straggler(A: Any, w: Any, settings: Settings, timer: Timer, on_step: OnStep) -> dict[str, Any]:
    """One of twelve is ten times slower, threshold 8: what each remedy leaves of that."""
    n, k, late = 12, 8, 3
    machines = partial(paced, n, A.shape[0] // k, settings.straggler_seconds)
    simulated = settings.simulated
    with (
        machines(simulated=simulated) as fine,
        machines({late: 10.0}, simulated=simulated) as slow,
    ):
        matrices: dict[str, tuple[Cluster, Any]] = {
            "no_straggler": (fine, fine.encode(A, k=k, late=None, loads="equal")),
            "margin": (slow, slow.encode(A, k=k, margin=1, late=None, loads="equal")),
            "top_up": (slow, slow.encode(A, k=k, loads="equal")),
            "neither": (slow, slow.encode(A, k=k, late=None, loads="equal")),
            "nonadaptive": (slow, whole_shares(slow, A, k)),
            "replication_2": (slow, Replicated(slow, A, 2)),
            "backup_1.2x_median": (slow, Replicated(slow, A, 2, backup=1.2)),
            "backup_3x_median": (slow, Replicated(slow, A, 2, backup=3.0)),
            "uncoded": (slow, uncoded(slow, A)),
        }
        kinds = {name: (c, lambda X=X: X @ w) for name, (c, X) in matrices.items()}
        times = summary(timer.rounds(kinds, settings.rounds, lambda: on_step("a straggler")))
    usual = times["no_straggler"]["median"]
    return {
        "straggler": {kind: t["median"] / usual for kind, t in times.items()},
        "straggler_seconds": times,
    }


def speeds(A: Any, w: Any, settings: Settings, timer: Timer, on_step: OnStep) -> dict[str, Any]:
    """Six machines with speeds 1:2:4, threshold 3: loads by measured speed against equal ones."""
    k, slow = 3, {0: 4.0, 1: 4.0, 2: 2.0, 3: 2.0}
    pace = A.shape[0] // k, settings.speeds_seconds
    with paced(6, *pace, slow, simulated=settings.simulated) as cluster:
        measured = cluster.encode(A, k=k, late=None)
        equal = cluster.encode(A, k=k, late=None, loads="equal")
        kinds = {"measured": (cluster, lambda: measured @ w), "equal": (cluster, lambda: equal @ w)}
        seconds = timer.rounds(kinds, settings.rounds, lambda: on_step("speeds 1:2:4"), LEARN)
        rows = {str(worker): read for worker, read in sorted(measured.report.rows_read.items())}
    times = summary(seconds)
    return {
        "speeds_1_2_4": times["equal"]["median"] / times["measured"]["median"],
        "speeds_1_2_4_best_possible": 7 / 3,
        "speeds_1_2_4_seconds": times,
        "speeds_1_2_4_rows_read": rows,
    }


def _leaving(
    cluster: Cluster, seed: int, rounds: Callable[[int], Mapping[str, list[float]]]
) -> Times:
    """Times of `rounds` by the machines left, 10 to 20: they leave one by one, in random order."""
    leaving = np.random.default_rng((seed, 1)).permutation(MACHINES).tolist()
    times = {str(MACHINES): summary(rounds(MACHINES))}
    for n in range(MACHINES - 1, THRESHOLD - 1, -1):
        cluster.lose(leaving.pop(0))
        times = {str(n): summary(rounds(n)), **times}
    return times


def _ratios(times: Times) -> dict[str, float]:
    return {n: t["adaptive"]["median"] / t["nonadaptive"]["median"] for n, t in times.items()}
