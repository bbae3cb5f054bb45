"""The experiment of Mallick et al., 2021 as they did it, a sweep over r, and latency by formula.

On AWS Lambda they could not stop a worker between two symbols. So each of 1000 workers evaluated
two symbols, and the results of the fastest M'/2 workers were decoded: M' = 1400 (LT-1), 783 (LT-2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from .. import LT
from ..codes.inactivation import InactivationDecoder
from ..codes.peeling import PeelingDecoder
from ..codes.rateless import LTAssignment
from ..codes.soliton import robust_soliton
from .timing import mean_of

Floats = NDArray[np.float64]
TAKEN = {"lt1": (1, 1400), "lt2": (2, 783)}  # r, and the symbols that they waited for
EACH = 2  # symbols of a worker
TERMS = (5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)  # seconds that one term takes
SHORT = "0.0005"  # of these, the longest at which the fastest decode as often as they say
R_VALUES = (1, 2, 4, 8, 16)


def two_symbols_each(
    waits: Floats, m: int, trials: int, seed: int, on_step: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds until the fastest M'/2 of m workers have done both symbols; how often they decode.

    By the seconds that a term takes, which the paper does not state. Start-up times are drawn from
    the recorded ones, with replacement. Neighbors are uniform and decoding is by peeling, as
    published; `decodes_inactivation` is for the same symbols.

    A worker with symbols of many terms finishes late. If terms are long beside the waits, the
    fastest workers are those with few terms, and their symbols decode less often.
    """
    rng = np.random.default_rng(seed)
    start = rng.choice(waits.ravel(), (trials, m))
    halves = m // 2
    pairs = np.minimum(start[:, :halves], start[:, halves : 2 * halves])
    by_term: dict[str, Any] = {
        f"{tau:g}": {
            "one": _seconds(start[:, 0] + tau * m),
            "uncoded": _seconds(start.max(axis=1) + tau),
            "replication2": _seconds(pairs.max(axis=1) + 2 * tau),
        }
        for tau in TERMS
    }
    for kind, (r, taken) in TAKEN.items():
        on_step(f"two symbols a worker, {kind}")
        workers = -(-taken * m // (1000 * EACH))
        runs = [_fastest(start[trial], r, workers, trial) for trial in range(trials)]
        for tau, rows in zip(by_term, zip(*runs, strict=True), strict=True):
            seconds, peeled, determined = np.transpose(rows)
            by_term[tau][kind] = _seconds(seconds) | {
                "workers": workers,
                "decodes_peeling": float(peeled.mean()),
                "decodes_inactivation": float(determined.mean()),
            }
    return {"by_term": by_term, "trials": trials, "workers": m}


def _fastest(start: Floats, r: int, workers: int, seed: int) -> list[tuple[float, ...]]:
    """One code, for each of TERMS: when so many workers are done, and whether that decodes.

    By peeling, and by inactivation.
    """
    m = len(start)
    base = LT(r=r, neighbours="uniform", decoder="peeling", symbols=EACH * m, seed=seed)
    code = base.assign(m, m)
    assert isinstance(code, LTAssignment)
    degrees = r * np.diff(code.table.start).reshape(EACH, m).sum(axis=0)
    rows = []
    for tau in TERMS:
        done = start + tau * degrees
        first = np.argsort(done)[:workers]
        keys = [i * m + slot for i in range(EACH) for slot in first.tolist()]
        decoders = (PeelingDecoder(code.table), InactivationDecoder(code.table))
        decodes = [any(decoder.offer(key) for key in keys) for decoder in decoders]
        rows.append((float(done[first[-1]]), *decodes))
    return rows


def _seconds(times: Floats) -> dict[str, float]:
    """Mean with its standard error, median and 99th percentile."""
    return {
        **mean_of(times),
        "median": float(np.median(times)),
        "p99": float(np.quantile(times, 0.99)),
    }


def arrivals(
    t: float, each: int, r: int, workers: int, groups: int, tau: float, mu: float
) -> float:
    """Expected number of symbols that have come by time t, X exponential with rate mu.

    Symbol i of a worker comes at X + tau r S_i, S_i the sum of i degrees of the robust soliton; a
    worker has `each` symbols. Exact: the distribution of S_i is a convolution.
    """
    last = int(t / (tau * r))
    degree = np.zeros(last + 1)
    known = robust_soliton(groups)[:last]
    degree[1 : 1 + len(known)] = known
    reach = 1.0 - np.exp(-mu * (t - tau * r * np.arange(last + 1)))  # X in time for S_i = s
    law, total = degree.copy(), 0.0
    for _ in range(each):
        total += float(law @ reach)
        if law.sum() < 1e-12:
            break
        law = np.convolve(law, degree)[: last + 1]
    return workers * total


def latency(
    symbols: float, each: int, r: int, workers: int, groups: int, tau: float, mu: float
) -> float:
    """The time by which so many symbols are expected: latency of LT-r at finite m_e.

    inf where fewer come in the end. With many workers the number that has come varies little, so
    this is the mean latency if `symbols` is what decoding takes in the order in which they come.
    """
    if symbols >= each * workers:
        return float("inf")

    def beyond(t: float) -> float:
        return arrivals(t, each, r, workers, groups, tau, mu) - symbols

    high = tau
    while beyond(high) < 0:
        high *= 2
    return float(brentq(beyond, 0.0, high))
