"""The theorems of Wang et al., 2019 held against descents through kofn's own master.

The descents learn house prices from 18 columns by least squares with a penalty, so that β, μ and
the least loss are known. σ is the longest gradient of a part along all descents that were made:
the proofs use no other points. Which workers reply first is drawn by the delays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import FractionalRepetition, Uncoded, connect, exact, first
from ..codes import erasurehead as theory
from ..delays import ExponentialByLoad
from ..engines.virtual import VirtualEngine
from . import datasets
from .erasures import only_time
from .timing import OnStep
from .training import Method

Floats = NDArray[np.float64]
PENALTY = 1.0
WITHIN = 0.05  # of the gap at the start: ε of Theorem 3
METHODS = ("uncoded", "exact", "long", "short", "covered")
STEPS = 6  # of descents on isotropic functions
DELTA = 11 / 30  # of the workers, that an approximate sum waits for


@dataclass(frozen=True)
class Sizes:
    """How many descents, and how long each."""

    iterations: int = 40
    repeats: int = 6  # of what is random
    draws: int = 20_000  # Monte Carlo
    fleets: tuple[int, ...] = (30, 120, 480, 1920)  # workers, to see how the speed-up grows
    rounds: int = 60  # of each of these

    @property
    def progress_steps(self) -> int:
        """How often `table` calls `on_step`."""
        return 1 + 2 * len(METHODS)


@dataclass(frozen=True, eq=False)
class Ridge:
    """f(w) = ½ mean (Xw − y)² + ½ penalty ‖w‖², the mean of equally large parts."""

    X: Floats
    y: Floats

    @property
    def curvature(self) -> Floats:
        """The eigenvalues of the second derivative, rising."""
        return np.asarray(np.linalg.eigvalsh(self.X.T @ self.X / len(self.y)) + PENALTY, float)

    def loss(self, w: Floats) -> float:
        """f(w)."""
        return float(0.5 * np.mean((self.X @ w - self.y) ** 2) + 0.5 * PENALTY * w @ w)

    def best(self) -> Floats:
        """Where f is least."""
        rows, columns = self.X.shape
        H = self.X.T @ self.X / rows + PENALTY * np.eye(columns)
        return np.linalg.solve(H, self.X.T @ self.y / rows)

    def start(self) -> Floats:
        """A point from which no descent is at the end at once: some way off in all directions.

        From zero the first step goes nearly all the way: it is along the steepest direction.
        """
        return self.best() + np.random.default_rng(7).standard_normal(self.X.shape[1])

    def slopes(self, w: Floats, parts: int) -> Floats:
        """The gradients of the parts' means, (parts, columns)."""
        cut = (self.X.reshape(parts, -1, len(w)), self.y.reshape(parts, -1))
        return np.stack([_slope(part, w) for part in zip(*cut, strict=True)])


def _slope(part: Any, w: Floats) -> Floats:
    X, y = part
    return np.asarray(X.T @ (X @ w - y) / len(y) + PENALTY * w)


def prices(data: Path, parts: int) -> Ridge:
    """King County's house prices; columns of mean 0 and deviation 1; equally many rows a part."""
    X, y = datasets.house_fields(data)
    spread = X.std(axis=0)
    rows = len(y) // parts * parts
    X = (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return Ridge(X[:rows], (y - y.mean())[:rows])


def table(data: Path, workers: int, wait: int, sizes: Sizes, on_step: OnStep) -> dict[str, Any]:
    """The descents and the bounds at the published setting, and where bounds are not trivial."""
    on = prices(data, workers)
    many = max(c for c in range(1, min(6, workers) + 1) if workers % c == 0)
    rows = {
        "lemmas": lemmas(on, workers, wait, sizes.draws),
        "exact_from": exact_from(24, 12, 6),
        "best_copies": best_copies(60, sizes.draws),
        "growth": growth(2, sizes.fleets, sizes.rounds),
        "published": descents(on, workers, 2, wait, sizes, on_step),
        "more": descents(on, workers, many, round(0.8 * workers), sizes, on_step),
        "means": "least squares on 18 columns of house prices, penalty 1, from a point in a random "
        "direction. gap: f − f*, the mean "
        "over the descents; bounds: theorem_1, theorem_2 at the same iterations. long, short: the "
        "unbiased estimate with steps of 1/β and (1 − p)/β, the latter equal to the published "
        "estimate with steps of 1/β; covered: kofn's, with steps of 1/β, for which there is no "
        "theorem. seconds: simulated, delays by load at λ = 1/c (section 4)",
    }
    on_step("the lemmas on house prices")
    return rows


def lemmas(on: Ridge, n: int, r: int, draws: int) -> dict[str, Any]:
    """Lemmas 3, 4, 5 and Theorem 1 with equality, stated and by chance, for c = 2 and 3."""
    rng = np.random.default_rng(5)
    slopes = on.slopes(on.start(), n)
    norm, sigma = np.linalg.norm(slopes.mean(axis=0)), np.linalg.norm(slopes, axis=1).max()
    rows: dict[str, Any] = {}
    for c in (2, 3):
        seen = _covered(rng, n, c, r, draws)
        g = seen @ slopes.reshape(n // c, c, -1).sum(axis=1) / n
        p = theory.moments(n, n, c, r).p
        # The part of E[g] along the gradient: across it there is chance alone.
        along = float(g.mean(axis=0) @ slopes.mean(axis=0) / norm)
        stated = theory.second_moment(n, c, r, slopes)
        square = float(np.square(g).sum(axis=1).mean())
        rows[str(c)] = {
            "lemma_3_mean": {"stated": float((1 - p) * norm), "monte_carlo": along},
            "lemma_3": {"stated": stated, "monte_carlo": square, "ratio": square / stated},
            "lemma_4_bound": theory.second_moment_bound(n, n, c, r, float(norm), float(sigma)),
            "lemma_5": {"p": p, "bound": theory.missing_bound(n, n, c, r)},
            "theorem_1_with_equality": _isotropic(rng, n, c, r, draws),
        }
    return rows


def exact_from(n: int, k: int, c: int) -> dict[str, int]:
    """The fewest replies of which every set gives the exact sum, by trying all sets of workers.

    It is k − ℓ + 1, where ℓ = kc/n workers hold each block; the paper has k − c + 1.
    """
    copies, printed = k * c // n, k - c + 1
    code = FractionalRepetition(copies, "whole").assign(n, k)
    parts = [{part for symbol in code.symbols(w) for part in symbol.parts} for w in range(k)]
    missing = {
        r: sum(len(set().union(*some)) < n for some in combinations(parts, r))
        for r in range(1, k + 1)
    }
    return {
        "replies": min(r for r, count in missing.items() if not count),
        "stated": k - copies + 1,
        "as_printed": printed,
        "sets_as_printed": comb(k, printed),
        "sets_as_printed_that_miss_a_block": missing[printed],
    }


def best_copies(n: int, draws: int) -> dict[str, Any]:
    """The c with the least mean seconds of the exact code, by 1/λ: by chance and by Lemma 8."""
    waits = np.random.default_rng(6).standard_exponential((draws, n))
    divisors = [c for c in range(1, n // 5 + 1) if n % c == 0]
    rows: dict[str, Any] = {}
    for inverse in (2, 3, 4):
        drawn, stated = {}, {}
        for c in divisors:
            firsts = (1 + inverse * waits.reshape(draws, n // c, c).min(axis=2)) * c / n
            drawn[c] = float(firsts.max(axis=1).mean())
            stated[c] = theory.seconds_by_load(n, c, 0, 1 / inverse).exact
        best = {"monte_carlo": min(drawn, key=drawn.__getitem__)}
        rows[str(inverse)] = {**best, "lemma_8": min(stated, key=stated.__getitem__)}
        rows[str(inverse)] |= {"inverse": inverse, "workers": n}
    return rows


def growth(c: int, fleets: Sequence[int], rounds: int) -> dict[str, Any]:
    """How many times faster than uncoded an approximate sum is, by n, at λ = 1/c and r = δn.

    `slope`: of a line through these over log n; `stated`: that of Theorem 3's factors, which is
    1 / (1 + c log(1/(1−δ))) as n grows.
    """
    faster, formula = {}, {}
    for n in fleets:
        # One n-th of the work takes a second: what a late worker takes to stop is nothing to it.
        r, delays = round(DELTA * n), ExponentialByLoad(n, rate=1 / c, full=n)
        uncoded = Method(Uncoded("whole"), exact())
        coded = Method(FractionalRepetition(c, "whole"), first(r) | exact())
        slow, quick = (only_time(delays, method, n, rounds) for method in (uncoded, coded))
        faster[str(n)] = slow / quick
        times = theory.seconds_by_load(n, c, r, 1 / c)
        formula[str(n)] = times.uncoded / times.approximate
    slope = np.polyfit(np.log(fleets), list(faster.values()), 1)[0]
    return {
        "faster_than_uncoded": faster,
        "by_lemma_8": formula,
        "slope": float(slope),
        "stated": 1 / (1 + c * log(1 / (1 - DELTA))),
    }


def _covered(rng: np.random.Generator, n: int, c: int, r: int, draws: int) -> Floats:
    """Which blocks are there, (draws, n/c), when r of n workers have replied."""
    here = rng.random((draws, n)).argsort(axis=1)[:, :r] // c
    return np.asarray((here[:, None] == np.arange(n // c)[None, :, None]).any(axis=2), float)


def _isotropic(rng: np.random.Generator, n: int, c: int, r: int, draws: int) -> dict[str, float]:
    """E[Δ_T] of ½‖x − aᵢ‖², by formula and by descents in parallel."""
    centres = rng.standard_normal((n, 8))
    mean, p = centres.mean(axis=0), theory.moments(n, n, c, r).p
    x = np.tile(centres[0] + 3.0, (draws, 1))
    gap = 0.5 * float(np.square(x[0] - mean).sum())
    for _ in range(STEPS):
        seen = np.repeat(_covered(rng, n, c, r, draws), c, axis=1)
        x = x - (seen.sum(axis=1)[:, None] * x - seen @ centres) / n
    drawn = 0.5 * float(np.square(x - mean).sum(axis=1).mean())
    stated = theory.isotropic_gap(n, c, r, centres, STEPS, gap, 1 - p)
    return {"stated": stated, "monte_carlo": drawn, "ratio": drawn / stated}


def descents(on: Ridge, n: int, c: int, r: int, sizes: Sizes, on_step: OnStep) -> dict[str, Any]:
    """Mean gap and seconds by iteration and method, the bounds on them, and time to ε."""
    curvature, least = on.curvature, on.loss(on.best())
    beta, mu = float(curvature[-1]), float(curvature[0])
    p = theory.moments(n, n, c, r).p
    gap, sigma = on.loss(on.start()) - least, 0.0
    within = WITHIN * gap
    runs: dict[str, tuple[Floats, Floats]] = {}
    for name in METHODS:
        count = 1 if name in ("uncoded", "exact") else sizes.repeats
        step = (1 - p) / beta if name == "short" else 1 / beta
        each = [_descend(on, n, c, r, name, step, sizes.iterations, seed) for seed in range(count)]
        losses = np.array([[on.loss(w) for w in points] for points, _ in each]) - least
        runs[name] = losses, np.array([seconds for _, seconds in each])
        visited = [w for points, _ in each for w in points[:: max(1, len(points) // 10)]]
        steepest = max(float(np.linalg.norm(on.slopes(w, n), axis=1).max()) for w in visited)
        sigma = max(sigma, steepest)
        on_step(f"c={c}, {r} of {n}: {name}")
    about = theory.Objective(beta, mu, sigma, gap)
    kinds: tuple[theory.Step, ...] = ("long", "short")
    bounds = {"lemma_1": theory.gradient_descent(about)}
    for kind in kinds:
        bounds[f"theorem_1_{kind}"] = theory.theorem_1(n, n, c, r, about, kind)
        bounds[f"theorem_2_{kind}"] = theory.theorem_2(n, n, c, r, about, kind)
    steps = range(sizes.iterations + 1)
    drawn = {name: [bound.after(t, gap) for t in steps] for name, bound in bounds.items()}
    against = {"long": "theorem_1_long", "short": "theorem_1_short", "exact": "lemma_1"}
    stated = theory.theorem_3(n, c, r / n, about, within)
    counted = theory.iterations_to(c, r / n, about, within)
    names = {"uncoded": "uncoded", "exact": "exact", "short": "approximate"}
    return {
        "c": c,
        "wait": r,
        "workers": n,
        "repeats": sizes.repeats,
        "beta": beta,
        "mu": mu,
        "sigma": sigma,
        "gap": {name: losses.mean(axis=0).tolist() for name, (losses, _) in runs.items()},
        "gap_deviation": {name: losses.std(axis=0).tolist() for name, (losses, _) in runs.items()},
        "bounds": drawn,
        # From the first iteration on: at the start every bound is the gap itself.
        "largest_over_bound": {
            name: float(max(runs[name][0].mean(axis=0)[1:] / np.array(drawn[bound][1:])))
            for name, bound in against.items()
        },
        "within": within,
        "noise_floor": theory.noise_floor(n, c, r / n, about),
        "iterations": {name: _reached(runs[name][0].mean(axis=0), within) for name in METHODS},
        "iterations_bound": {a: _finite(getattr(counted, b)) for a, b in names.items()},
        "seconds": {name: _seconds(*runs[name], within) for name in METHODS},
        "seconds_bound": {a: _finite(getattr(stated, b)) for a, b in names.items()},
    }


def _descend(
    on: Ridge, n: int, c: int, r: int, name: str, step: float, iterations: int, seed: int
) -> tuple[list[Floats], list[float]]:
    """The points and the simulated seconds of one descent."""
    code = Uncoded("whole") if name == "uncoded" else FractionalRepetition(c, "whole")
    all_parts = name in ("uncoded", "exact")
    stop = exact() if all_parts else first(r)
    weights: Any = "covered" if all_parts or name == "covered" else "unbiased"
    engine = VirtualEngine(n, delays=ExponentialByLoad(n, rate=1 / c), seed=seed)
    w = on.start()
    points, seconds = [w], [0.0]
    with connect(engine) as cluster:
        parts = cluster.parts((on.X, on.y), code, parts=n)
        start = engine.now()
        for _ in range(iterations):
            w = w - step * parts.sum(_slope, w, stop=stop, weights=weights).value / n
            points.append(w)
            seconds.append(engine.now() - start)
    return points, seconds


def _reached(gaps: Floats, within: float) -> int | None:
    at = np.flatnonzero(gaps <= within)
    return int(at[0]) if len(at) else None


def _seconds(losses: Floats, seconds: Floats, within: float) -> float | None:
    """Mean simulated seconds until a descent is within ε; None if one never is."""
    at = [_reached(row, within) for row in losses]
    if any(t is None for t in at):
        return None
    return float(np.mean([row[t] for row, t in zip(seconds, at, strict=True) if t is not None]))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
