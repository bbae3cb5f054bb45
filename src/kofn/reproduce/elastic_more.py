"""Yang et al., 2019, the rest: grids for networks, Theorem 2.2, Remarks 1 and 4, Figure 2(c) again.

All but the training by wall clock is counted, or runs in simulated time with real values.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.grid import encode_grid
from ..arrays.lowrank import LowRank
from ..cluster import Cluster, connect
from ..codes.mds import MDSCode
from ..costs import Costs
from ..delays import Change, PerUnit, Script
from ..engines.base import Engine, Wrapped
from ..engines.virtual import VirtualEngine
from ..learn.mlp import CodedNetwork, Layer
from . import stopping
from .datasets import Images, Prices
from .kept import Kept
from .linear import MACHINES, STARTS, THRESHOLD, Run, descend, placed
from .timing import OnStep, stand_ins

GRIDS = ((2, 2), (3, 3), (4, 4))
SPARE = 2  # workers beyond the threshold of a grid
RATE, MOMENTUM = 0.05, 0.9
GONE, AFTER = 5, 2  # machines that go for good, and the iteration after which they do
ROWS, COLUMNS = 1200, 40  # of the matrices that are counted on


@dataclass(frozen=True)
class Settings:
    """Sizes of these runs."""

    widths: tuple[int, ...] = (784, 300, 100, 10)
    batch: int = 200
    steps: int = 20
    repeats: int = 20  # of what is timed alone
    iterations: int = 100  # of Figure 2(c) without newcomers
    trials: int = 200  # of rateless rows
    codes: int = 5
    simulated: bool = False  # the workers of grids


FULL = Settings()
QUICK = Settings(widths=(784, 60, 30, 10), steps=3, repeats=3, iterations=25, trials=10, codes=1)
STEPS = 1 + len(GRIDS) + 3  # calls of on_step
HOURS = 5.0  # of the market


class Plain:
    """A matrix here, with what a layer of a network asks of one: training without coding."""

    def __init__(self, W: NDArray[np.float64]) -> None:
        self.W, self.velocity = W.copy(), np.zeros_like(W)

    def __matmul__(self, a: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(self.W @ a)

    @property
    def T(self) -> NDArray[np.float64]:
        return self.W.T

    def move(self, change: LowRank, momentum: float) -> None:
        self.velocity = momentum * self.velocity + change.U @ change.V.T
        self.W += self.velocity

    def toarray(self) -> NDArray[np.float64]:
        return self.W


def grids(images: Images, settings: Settings, on_step: OnStep) -> dict[str, Any]:
    """A network trained on MNIST: here, by rows without a code, and by PolyDot on local processes.

    Wall clock and the master's part of it, on few cores: a grid of m x p takes up to 30 processes.
    """
    drawn = np.random.default_rng(0)
    pairs = list(zip(settings.widths[1:], settings.widths[:-1], strict=True))
    weights = [drawn.standard_normal(shape) * np.sqrt(2.0 / shape[1]) for shape in pairs]
    here = _train(lambda W: Plain(W), weights, images, settings)
    plain = here[0]
    rows: dict[str, Any] = {"here": {**_timed(here), "workers": 1}}
    workers = 6
    with connect(stand_ins(workers, None, settings.simulated)) as cluster:
        encode = partial(cluster.encode, k=workers, loads="equal")
        by_rows = _train(encode, weights, images, settings)
    rows["rows, no code"] = _row(by_rows, plain, workers, 1.0)
    on_step("training without coding")
    for m, p in GRIDS:
        need = max(m * (2 * p - 1), p * (2 * m - 1))
        with connect(stand_ins(need + SPARE, None, settings.simulated)) as cluster:
            trained = _train(partial(_on_grid, cluster, m, p), weights, images, settings)
        # A worker multiplies need / (need + SPARE) of its share, which is 1/(mp) of the matrix.
        work = need / (m * p)
        rows[f"{m} x {p}"] = _row(trained, plain, need + SPARE, work) | {"threshold": need}
        on_step(f"training on a grid of {m} x {p}")
    sizes = {"widths": list(settings.widths), "batch": settings.batch, "steps": settings.steps}
    return {"grids": rows, "grids_settings": sizes}


def _on_grid(cluster: Cluster, m: int, p: int, W: NDArray[np.float64]) -> Any:
    return encode_grid(cluster, W, (m, p))


def _row(trained: Any, plain: Any, workers: int, work: float) -> dict[str, Any]:
    pairs = zip(trained[0], plain, strict=True)
    apart = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]
    return _timed(trained) | {
        "workers": workers,
        "work_in_all": work,  # multiply-adds of all workers together, over those without a code
        "weights_apart": float(max(apart)),
    }


def _timed(trained: Any) -> dict[str, Any]:
    _, seconds, losses = trained
    low, middle, high = (1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))).tolist()
    return {"ms_a_step": middle, "quartiles": [low, high], "losses": losses}


def _train(encode: Any, weights: Any, images: Images, settings: Settings) -> Any:
    """Train, one step uncounted; the weights in the end, seconds of each step, and the losses."""
    network = CodedNetwork([Layer.begun(W, encode) for W in weights])
    X, y = images
    spent, losses = [], []
    for step in range(settings.steps + 1):
        at = np.arange(step * settings.batch, (step + 1) * settings.batch) % len(X)
        target = (y[at] == np.arange(10)[:, None]).astype(np.float64)
        start = time.perf_counter()
        losses.append(network.learn(np.ascontiguousarray(X[at].T), target, RATE, MOMENTUM))
        spent.append(time.perf_counter() - start)
    return [c.T for c in network.coefs()], spent[1:], losses


class Counted(Wrapped):
    """An engine that counts the rows of what each worker is given to keep, and how often."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.rows: dict[int, int] = {}
        self.puts = 0

    def put(self, worker: int, key: str, value: Any) -> None:
        self.rows[worker] = self.rows.get(worker, 0) + len(value)
        self.puts += 1
        super().put(worker, key, value)


def theorem_2_2() -> list[dict[str, Any]]:
    """What a machine keeps and reads at each n, as rows of the data, over the least there is.

    (a) To stand n - L losses some machine keeps N/L rows; (b) N rows are used, N/n at each machine.
    `sent_again`: shares that were sent since all machines had one.
    """
    rows = []
    engine = Counted(VirtualEngine(MACHINES))
    with connect(engine) as cluster:
        X = cluster.encode(np.ones((ROWS, COLUMNS)), k=THRESHOLD, loads="equal")
        given = engine.puts
        for n in range(MACHINES, THRESHOLD - 1, -1):
            X @ np.ones(COLUMNS)
            read = X.report.rows_read
            rows.append(
                {
                    "n": n,
                    "kept_over_bound": max(engine.rows.values()) / (ROWS / THRESHOLD),
                    "used_over_bound": sum(read.values()) / ROWS,
                    "used_by_one_over_bound": max(read.values()) / (ROWS / n),
                    "sent_again": engine.puts - given,
                }
            )
            if n > THRESHOLD:
                cluster.lose(n - 1)
    return rows


def section_3_3() -> dict[str, float]:
    """Rounds of w = f(X w) among the machines: a code against none, both with 20 machines.

    In simulated time, with waits for rows, for messages and for each byte. The window of a
    machine is as large with the code as without it, and so is what it sends. Then half of
    the machines are lost in the middle of a run; `error` is that of its result, relative.
    """
    rng, N, rounds = np.random.default_rng(0), 400, 20
    A = np.linalg.qr(rng.standard_normal((N, N)))[0]
    costs = Costs(latency=1e-3, bandwidth=1e6)
    seconds = {}
    for k in (THRESHOLD, MACHINES):
        engine = VirtualEngine(MACHINES, delays=PerUnit(1e-4), costs=costs)
        with connect(engine) as cluster:
            X = cluster.encode(A, k=k, loads="equal")
            X.iterate(np.tanh, np.ones(N), rounds=rounds)
            seconds[k] = X.report.seconds["total"]
    half = seconds[THRESHOLD] / 2
    losses = Script(tuple(Change(half, w) for w in range(MACHINES - THRESHOLD)))
    engine = VirtualEngine(MACHINES, delays=PerUnit(1e-4), costs=costs, membership=losses)
    with connect(engine) as cluster:
        X = cluster.encode(A, k=THRESHOLD, loads="equal")
        found = X.iterate(np.tanh, np.ones(N), rounds=rounds)
        lost = len(X.report.lost)
    w = np.ones(N)
    for _ in range(rounds):
        w = np.tanh(A @ w)
    return {
        "over_uncoded": seconds[THRESHOLD] / seconds[MACHINES],
        "lost": lost,
        "error": float(np.linalg.norm(found - w) / np.linalg.norm(w)),
    }


def remark_4() -> dict[str, float]:
    """Multiply-adds of a machine for A B, over those without a code: MatDot and ours, in one run.

    MatDot is a grid of 1 x L blocks: any 2L - 1 machines are enough. Ours adds up A's coded
    columns times B's re-coded rows, and every machine's part is needed: what is lost is asked anew.
    """
    L, n = 5, 10
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((120, 60 * L)), rng.standard_normal((60 * L, 8))
    with connect("virtual", workers=n) as cluster:
        dot = encode_grid(cluster, A, (1, L))
        ours = cluster.encode(A, k=L, axis=1, loads="equal")
        exact = A @ B
        error = max(np.abs(dot @ B - exact).max(), np.abs(ours @ B - exact).max())
        matdot = max(dot.report.rows_read.values()) * (A.shape[1] // L)
        least = A.size / n
        elastic = max(ours.report.rows_read.values()) * A.shape[0]
    return {
        "L": L,
        "n": n,
        "matdot": matdot / least,
        "matdot_formula": 2 - 1 / L,
        "ours": elastic / least,
        "largest_error": float(error),
    }


def remark_1(repeats: int) -> list[dict[str, Any]]:
    """Decoding N rows where the machines are coded in smaller groups: milliseconds, multiply-adds.

    g groups of n/g machines hold N/g rows each, coded any L/g of n/g: N L / g multiply-adds in all.
    The price: a group stands (n - L)/g losses of its own, not n - L wherever they are.
    """
    n, L, N = 40, 20, 120_000
    rows = []
    for g in (1, 2, 4, 5):
        code = MDSCode(n // g, L // g)
        lost = (n - L) // g
        shares = tuple(range(lost, n // g))  # the plain blocks are lost: the dearest decode
        weights = code.weights(shares)
        replies = np.random.default_rng(0).standard_normal((len(shares), N // L))
        spent = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(g):
                weights.matrix @ replies
            spent.append(time.perf_counter() - start)
        rows.append(
            {
                "groups": g,
                "any": f"{L // g} of {n // g}",
                "ms": 1e3 * min(spent),
                "multiply_adds_a_row": weights.matrix.shape[1],
                "losses_of_a_group": lost,
                "eta": weights.eta,
            }
        )
    return rows


def without_newcomers(prices: Prices, settings: Settings) -> dict[str, Any]:
    """Figure 2(c) where Distr-BGD ends badly: five machines go for good after two iterations.

    In simulated time with real values. Its gradients of the lost parts are never renewed, so that
    it comes to rest at a wrong point; with newcomers it ends well (`linear_runs`).
    """
    runs: dict[str, Run] = {}
    for name, kind in (("noiseless", "noiseless"), ("coded", "coded"), ("distr_bgd", "stale")):
        run = runs[name] = Run()
        with connect("virtual", workers=MACHINES) as cluster:
            products = placed(kind, cluster, prices)

            def after(iteration: int, cluster: Cluster = cluster, name: str = name) -> None:
                if iteration == AFTER and name != "noiseless":
                    for worker in cluster.workers[:GONE]:
                        cluster.lose(worker)

            descend(cluster, prices, products, settings.iterations, run, after=after)
    calm = runs["noiseless"]
    return {
        "curves": {name: run.test for name, run in runs.items()},
        "losses": {name: run.train for name, run in runs.items()},
        "final_loss_over_noiseless": {
            name: run.train[-1] / calm.train[-1] for name, run in runs.items()
        },
        "final_test_error": {name: run.test[-1] for name, run in runs.items()},
        "lost": GONE,
        "after": AFTER,
    }


def measure(
    images: Images, prices: Prices, settings: Settings, on_step: OnStep, kept: Kept
) -> Mapping[str, Any]:
    """Run everything; return what goes to results.json."""
    results: dict[str, Any] = {**kept("grids", partial(grids, images, settings, on_step))}
    results["theorem_2_2"] = theorem_2_2()
    results["section_3_3"] = section_3_3()
    results["remark_4"] = remark_4()
    results["remark_1"] = kept("remark 1", partial(remark_1, settings.repeats))
    on_step("Theorem 2.2, Remarks 1 and 4")
    market = prices.trace.since(60.0 * STARTS[0])
    results["stop_the_world"] = [
        stopping.on_a_market(market, MACHINES, THRESHOLD, 20.0, seconds, HOURS)
        for seconds in (30.0, 120.0, 600.0)
    ]
    rows = partial(stopping.rateless_rows, settings.trials, settings.codes)
    results["rateless_rows"] = kept("rateless rows", rows)
    on_step("stop the world; rateless rows")
    calm = partial(without_newcomers, prices, settings)
    results["distr_bgd_without_newcomers"] = kept("without newcomers", calm)
    on_step("Distr-BGD without newcomers")
    return results
