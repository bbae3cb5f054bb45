"""Five networks on MNIST through each code, by wall clock, against plain NumPy training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import connect
from ..delays import Slowed
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..learn.many import alone, train_many
from ..learn.network import Network
from ..sequence import SequenceCode
from . import sequential_runs as runs
from .timing import OnStep

RATES = (0.1, 0.15, 0.2, 0.25, 0.3)
WORKERS, SLACK = 4, 0.25
PRODUCT = (1024, 784, 300)  # of which the master's share of time is measured
PRODUCT_SECONDS = 0.5  # what it takes one worker then, with delays

Data = tuple[NDArray[np.float64], NDArray[np.intp]]


def networks_on_mnist(
    codes: Mapping[str, SequenceCode],
    delays: Slowed,
    data: Data,
    test: Data,
    *,
    widths: Sequence[int],
    steps: int,
    batch: int,
    on_step: OnStep,
) -> dict[str, Any]:
    """Losses, seconds and curves by code; how far the losses are from plain training's."""

    def fresh() -> list[Network]:
        return [Network(widths, rate, seed) for seed, rate in enumerate(RATES)]

    undisturbed = fresh()
    for network in undisturbed:
        alone(network.train(*data, steps, batch))
    plain = np.array([network.losses for network in undisturbed])
    trained: dict[str, Any] = {}
    few = test[0][:1000], test[1][:1000]
    for kind, code in codes.items():
        networks = fresh()
        with connect(Paced(LocalEngine(WORKERS), delays)) as cluster:
            runs.warm_up(cluster)
            stream = cluster.sequence(code, SLACK)
            curve = _Curve(networks[0], few)
            train_many(stream, networks, *data, steps=steps, batch=batch, callback=curve)
            seconds, report = curve.seconds(), stream.report
        losses = np.array([network.losses for network in networks])
        trained[kind] = {
            "seconds": seconds,
            "seconds_per_job": seconds / report.jobs,
            "largest_loss_difference": float(np.abs(losses - plain).max()),
            "held_share": report.held_share,
            "overdue": list(report.overdue),
            "error_bound": report.error_bound,
            "test_loss_over_time": curve.points,
            "parameters": repr(code),
        }
        on_step(f"training, {kind}")
    paced = replace(delays, unit=PRODUCT_SECONDS / float(np.prod(PRODUCT)))
    return {
        "codes": trained,
        "jobs": len(RATES) * steps * 8,
        "final_losses": plain[:, -1].tolist(),
        "held_share_of_1024x784x300": {
            "with_delays": held(codes["dip"], delays=paced),
            "without_delays": held(codes["dip"]),
            "product_seconds": PRODUCT_SECONDS,
        },
    }


class _Curve:
    """The first network's test loss after each step; what it takes to compute is not counted."""

    def __init__(self, network: Network, test: Data) -> None:
        self.network, self.test = network, test
        self.points: list[tuple[float, float]] = []  # seconds, test loss
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since the start, without those in which losses were computed."""
        return time.perf_counter() - self._start

    def __call__(self, network: int, step: int, loss: float) -> None:
        if network == 0:
            seconds = self.seconds()
            self.points.append((seconds, self.network.loss(*self.test)))
            self._start += self.seconds() - seconds


def held(code: SequenceCode, jobs: int = 20, delays: Slowed | None = None) -> float:
    """The share of time in which no worker of the local engine had work because of the master."""
    rng = np.random.default_rng(0)
    m, n, p = PRODUCT
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))
    engine = LocalEngine(WORKERS)
    with connect(engine if delays is None else Paced(engine, delays)) as cluster:
        runs.warm_up(cluster)
        stream = cluster.sequence(code, SLACK)
        for _ in range(jobs):
            stream.submit(X, Y)
        for _ in stream:
            pass
        return stream.report.held_share
