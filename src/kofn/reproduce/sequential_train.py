"""Five networks on MNIST through each code, by wall clock, against plain NumPy training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..cluster import connect
from ..delays import Slowed
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..learn.many import alone, train_many
from ..learn.network import Network
from ..sequence import SequenceCode, Stream
from . import sequential_runs as runs
from .datasets import Images
from .timing import OnStep

RATES = (0.1, 0.15, 0.2, 0.25, 0.3)
WORKERS, SLACK = 4, 0.25
PRODUCT = (1024, 784, 300)  # of which the master's share of time is measured
PRODUCT_SECONDS = 0.5  # what it takes one worker then, with delays


def networks_on_mnist(
    codes: Mapping[str, SequenceCode],
    delays: Slowed,
    data: Images,
    test: Images,
    sizes: tuple[Sequence[int], int, int],
    on_step: OnStep,
) -> dict[str, Any]:
    """Losses, seconds and curves by code; how far the losses are from plain training's.

    `sizes`: widths of the layers, steps, and rows of a batch.
    """
    widths, steps, batch = sizes

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
        with _stream(code, delays) as stream:
            points, seconds = _train(stream, networks, data, few, steps, batch)
            report = stream.report
        losses = np.array([network.losses for network in networks])
        trained[kind] = {
            "seconds": seconds,
            "seconds_per_job": seconds / report.jobs,
            "largest_loss_difference": float(np.abs(losses - plain).max()),
            "held_share": report.held_share,
            "overdue": list(report.overdue),
            "error_bound": report.error_bound,
            "test_loss_over_time": points,
            "parameters": repr(code),
        }
        on_step(f"training, {kind}")
    paced = replace(delays, unit=PRODUCT_SECONDS / float(np.prod(PRODUCT)))
    return {
        "codes": trained,
        "jobs": len(RATES) * steps * 8,
        "final_losses": plain[:, -1].tolist(),
        "held_share_of_1024x784x300": {
            "with_delays": held(codes["dip"], paced),
            "without_delays": held(codes["dip"], None),
            "product_seconds": PRODUCT_SECONDS,
        },
    }


def _train(
    stream: Stream, networks: list[Network], data: Images, test: Images, steps: int, batch: int
) -> tuple[list[tuple[float, float]], float]:
    """Return (seconds, test loss) of the first network after each step, and the seconds of all.

    What it takes to compute test losses is not counted.
    """
    points: list[tuple[float, float]] = []
    start = time.perf_counter()

    def note(network: int, step: int, loss: float) -> None:
        nonlocal start
        if network == 0:
            now = time.perf_counter()
            points.append((now - start, networks[0].loss(*test)))
            start += time.perf_counter() - now

    train_many(stream, networks, *data, steps=steps, batch=batch, callback=note)
    return points, time.perf_counter() - start


@contextmanager
def _stream(code: SequenceCode, delays: Slowed | None) -> Iterator[Stream]:
    """A sequence on local workers that have loaded what they will run."""
    engine = LocalEngine(WORKERS)
    with connect(engine if delays is None else Paced(engine, delays)) as cluster:
        runs.warm_up(cluster)
        yield cluster.sequence(code, SLACK)


def held(code: SequenceCode, delays: Slowed | None) -> float:
    """The share of time in which no worker of the local engine had work because of the master."""
    rng = np.random.default_rng(0)
    m, n, p = PRODUCT
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))
    with _stream(code, delays) as stream:
        for _ in range(20):
            stream.submit(X, Y)
        for _ in stream:
            pass
        return stream.report.held_share
