"""Five networks on MNIST through each code, by wall clock, against plain NumPy training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import connect
from ..delays import Slowed
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
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

    plain = np.array(runs.trained_alone(fresh(), data, steps, batch))
    result: dict[str, Any] = {}
    few = test[0][:1000], test[1][:1000]
    for kind, code in codes.items():
        run = runs.train(code, delays, WORKERS, SLACK, data, few, fresh(), steps, batch)
        result[kind] = {
            "seconds": run.seconds,
            "seconds_per_job": run.seconds / run.report.jobs,
            "largest_loss_difference": float(np.abs(np.array(run.losses) - plain).max()),
            "held_share": run.report.held_share,
            "overdue": list(run.report.overdue),
            "error_bound": run.report.error_bound,
            "test_loss_over_time": run.curve,
            "parameters": repr(code),
        }
        on_step(f"training, {kind}")
    paced = replace(delays, unit=PRODUCT_SECONDS / float(np.prod(PRODUCT)))
    return {
        "codes": result,
        "jobs": len(RATES) * steps * 8,
        "final_losses": plain[:, -1].tolist(),
        "held_share_of_1024x784x300": {
            "with_delays": held(codes["dip"], delays=paced),
            "without_delays": held(codes["dip"]),
            "product_seconds": PRODUCT_SECONDS,
        },
    }


def held(code: SequenceCode, jobs: int = 20, delays: Slowed | None = None) -> float:
    """The share of time in which no worker of the local engine had work because of the master."""
    rng = np.random.default_rng(0)
    m, n, p = PRODUCT
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))
    engine: Engine = LocalEngine(WORKERS)
    if delays is not None:
        engine = Paced(engine, delays)
    with connect(engine) as cluster:
        runs.warm_up(cluster)
        stream = cluster.sequence(code, SLACK)
        for _ in range(jobs):
            stream.submit(X, Y)
        for _ in stream:
            pass
        return stream.report.held_share
