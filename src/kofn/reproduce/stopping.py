"""What else one could do on a market of machines: stop the world, or code rows without an end.

Stop the world: the data lie in plain blocks, one a machine. At every change all machines stop, the
rows are cut anew, and each downloads what it lacks. It is played on the recorded market beside
elastic coding, whose newcomers download their share while the others go on.

Rateless rows (section 2.6): every machine has a stack of LT-coded rows and works it off from the
top, until the product decodes. They and ours run through the same master; other methods are played.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..arrays import CodedMatrix
from ..arrays.rateless import Rateless
from ..cluster import Cluster, connect
from ..codes.rateless import LT
from ..delays import Exponential
from ..delays.traces import SpotTrace
from ..engines.virtual import VirtualEngine
from .timing import mean_of

HOUR = 3600.0
OURS = ((8, 0), (8, 2), (7, 2), (7, 3), (6, 3), (6, 4), (5, 5))  # k, margin


def on_a_market(
    trace: SpotTrace, most: int, threshold: int, work: float, download: float, hours: float
) -> dict[str, float]:
    """Iterations done in so many hours of a market, by what is done when machines come and go.

    `work`: seconds of an iteration on one machine. `download`: seconds in which one machine gets
    all of the data. An iteration that is cut short by a change is lost where the world stops; a
    coded one goes on, at the speed of those that are left. Below the threshold nobody goes on.
    """
    steps = [(at, min(most, live)) for at, live in trace.counts() if at < hours * HOUR]
    coded = stopped = adding = 0.0
    pauses = changes = 0
    ready = [0.0] * steps[0][1]  # when each live machine has its share
    for (at, live), (until, _) in zip(steps, [*steps[1:], (hours * HOUR, 0)], strict=True):
        if live > len(ready):  # newcomers: a share is 1/threshold of the data
            ready += [at + download / threshold] * (live - len(ready))
        else:
            ready = sorted(ready)[:live]
        moments = sorted({at, until, *(moment for moment in ready if at < moment < until)})
        for first, last in pairwise(moments):
            helping = sum(moment <= first for moment in ready)
            if helping >= threshold:
                coded += (last - first) * helping / work
        if live:
            # Everybody gets what it lacks of its new part, all at the same time: a newcomer all.
            pause = download / live if at > 0 else 0.0
            adding += pause
            pauses += pause > 0
            stopped += float(int(max(0.0, until - at - pause) * live / work))
        changes += at > 0
    return {
        "coded": coded,
        "stop_the_world": stopped,
        "stopped_seconds": adding,
        "changes": changes,
        "hours": hours,
        "work_seconds": work,
        "download_seconds": download,
    }


def rateless_rows(trials: int, codes: int) -> dict[str, Any]:
    """X @ w on ten machines that begin after an exponential time, 1 s on average; 1 ms a row.

    10,000 rows; seconds, means over the trials. LT: twice as many coded rows as rows, worked off
    from the top; `lt_symbols` of them decode, by inactivation, in random order. "rateless" are
    1000 blocks of ten rows, coded so too, through the master (kofn.arrays.rateless).
    """
    p, m, tau = 10, 10_000, 1e-3
    rng = np.random.default_rng(0)
    start = rng.exponential(1.0, (trials, p))
    needed = []
    for number in range(codes):
        code = LT(symbols=2 * m, seed=number).assign(m, 1)
        decoder, order = code.decoder(), rng.permutation(2 * m).tolist()
        needed.append(next(c for c, key in enumerate(order, 1) if decoder.offer(key, ())))
    symbols = int(np.mean(needed))
    each = np.arange(1, 2 * m // p + 1) * tau
    come = np.sort((start[:, :, None] + each).reshape(trials, -1), axis=1)
    results: dict[str, Any] = {
        "lt": mean_of(come[:, symbols - 1]),
        "ideal": mean_of(come[:, m - 1]),
        "uncoded": mean_of(start.max(axis=1) + tau * m / p),
        "replication2": mean_of(
            np.minimum(start[:, : p // 2], start[:, p // 2 :]).max(axis=1) + 2 * tau * m / p
        ),
        "lt_symbols": symbols,
    }
    for k in (5, 6, 7, 8):
        results[f"mds_{k}"] = mean_of(np.sort(start, axis=1)[:, k - 1] + tau * m / k)
    A = np.zeros((m, 1))
    makers: dict[str, Callable[[Cluster], CodedMatrix | Rateless]] = {
        f"ours_{k}_margin_{margin}": partial(_ours, A, k, margin) for k, margin in OURS
    }
    makers["rateless"] = lambda cluster: Rateless(cluster, A)
    for name, make in makers.items():
        engine = VirtualEngine(p, delays=Exponential(tau, 1.0), compute=False, seed=0)
        with connect(engine) as cluster:
            X = make(cluster)
            seconds = []
            for _ in range(trials):
                X @ np.zeros(1)
                seconds.append(X.report.seconds["total"])
                while cluster._driver.roster.owing(cluster.workers):
                    cluster._driver.settle(1.0)
        results[name] = mean_of(np.array(seconds))
    return results | {"trials": trials}


def _ours(A: Any, k: int, margin: int, cluster: Cluster) -> CodedMatrix:
    return cluster.encode(A, k=k, margin=margin, loads="equal")
