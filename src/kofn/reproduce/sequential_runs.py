"""Runs of the real master, in virtual time and by wall clock; networks trained through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..cluster import Cluster, connect
from ..delays import Shifted, Slowed, Stragglers
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine
from ..learn.many import alone, train_many
from ..learn.network import Network
from ..sequence import SequenceCode, SequenceReport, Stream, Uncoded
from .datasets import Images
from .kept import Kept
from .timing import OnStep, stand_ins

WHOLE = 1e4  # simulated seconds of a whole job: what a worker needs to drop stale work is nothing
SIZE = (2520, 10, 2520)  # of a job in virtual time: whatever x and y are, its blocks are equal
SMALL = (12, 60, 840)  # of a job by wall clock: small, and its blocks are equal as well
RATES = (0.1, 0.15, 0.2, 0.25, 0.3)  # of five networks
WORKERS, SLACK = 4, 0.25
PRODUCT_SECONDS = 0.5  # of the product of which the master's share of time is measured
Shape = tuple[int, int, int]
Clock = Callable[[], float]


@dataclass(eq=False)
class Run:
    """What one run gave: mean time per job, and its report."""

    per_job: float
    report: SequenceReport
    parameters: str
    load: float = 0.0  # mean over the rounds in which a job begins, of a mean job


def virtual(
    code: SequenceCode,
    stragglers: Stragglers,
    workers: int,
    alpha: float,
    mu: float,
    jobs: int,
    shapes: Sequence[Shape] = (SIZE,),
) -> Run:
    """Run jobs of these shapes, in turn, through the real master in simulated time.

    Times are those of a whole mean job on one worker.
    """
    work = float(np.mean([np.prod(shape) for shape in shapes]))
    delays = Slowed(stragglers, alpha, WHOLE / work)
    engine = VirtualEngine(workers, delays=delays, compute=False)
    with connect(engine, limit=float("inf")) as cluster:
        stream = cluster.sequence(code, slack=mu)
        for job in range(jobs):
            stream.submit_size(*shapes[job % len(shapes)])
        for _ in stream:
            pass
        report = stream.report
        load = float(np.mean([r.load for r in report.rounds[:jobs]])) / work
        return Run(report.seconds / jobs / WHOLE, report, repr(code), load)


def wall(
    code: SequenceCode,
    engine: Engine | None,
    stragglers: Stragglers,
    alpha: float,
    mu: float,
    jobs: int,
    whole: float,
) -> Run:
    """The same on local processes, by wall clock; a whole job takes one worker `whole` seconds.

    The engine stays open: another run may follow on it. Without an engine the workers
    and their clock are simulated; what they compute is real.
    """
    X, Y = _factors(SMALL)
    exact = X @ Y
    begins = 0 if engine is None else next(engine.counters()[0])
    delays = Slowed(Shifted(stragglers, by=begins), alpha, whole / float(np.prod(SMALL)))
    machines = stand_ins(WORKERS, delays) if engine is None else Paced(engine, delays)
    stream = connect(machines).sequence(code, slack=mu)
    start = machines.now()
    for _ in range(jobs):
        stream.submit(X, Y)
    for Z in stream:
        if not np.allclose(Z, exact, rtol=0.0, atol=1e-9 * float(np.abs(exact).max())):
            raise AssertionError(f"{code} gave a wrong product")
    spent = machines.now() - start
    return Run(spent / jobs / whole, stream.report, repr(code))


def _factors(shape: Shape) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape[:2]), rng.standard_normal(shape[1:])


def warm_up(cluster: Cluster) -> None:
    """One round, in which workers load what they will run."""
    one = cluster.sequence(Uncoded(len(cluster.workers), 1))
    one.submit(np.ones((8, 1)), np.ones((1, 1))).result()


@contextmanager
def engines(
    kinds: Iterable[str], workers: int, simulated: bool
) -> Iterator[Mapping[str, Engine | None]]:
    """Local workers for each kind of code, warm; None for each if they are simulated."""
    with ExitStack() as stack:
        if simulated:
            yield dict.fromkeys(kinds)
            return
        on = {kind: stack.enter_context(LocalEngine(workers)) for kind in kinds}
        for engine in on.values():
            warm_up(connect(engine))
        yield on


def walls(
    codes: Mapping[str, SequenceCode], on: Mapping[str, Engine | None], *args: Any
) -> dict[str, Run]:
    """One `wall` each, side by side: workers sleep most of the time, and so do their masters."""
    with ThreadPoolExecutor(len(codes)) as pool:
        runs = {name: pool.submit(wall, code, on[name], *args) for name, code in codes.items()}
        return {name: run.result() for name, run in runs.items()}


def layer_jobs(batch: int, widths: Sequence[int]) -> list[Shape]:
    """The products of one training step, in order: of three layers, 3 forward and 5 backward."""
    layers = list(pairwise(widths))
    jobs: list[Shape] = [(batch, into, out) for into, out in layers]
    for number, (into, out) in reversed(list(enumerate(layers))):
        jobs.append((into, batch, out))
        if number:
            jobs.append((batch, out, into))
    return jobs


def networks_on_mnist(
    codes: Mapping[str, SequenceCode],
    delays: Slowed,
    data: Images,
    test: Images,
    sizes: tuple[Sequence[int], int, int],
    product: Shape,
    simulated: bool,
    on_step: OnStep,
    kept: Kept,
    name: str,
) -> dict[str, Any]:
    """Losses, seconds and curves by code; how far the losses are from plain training's.

    `sizes`: widths of the layers, steps, and rows of a batch. `product`: shape of the
    jobs of which the master's share of time is measured. Each code is kept under `name`.
    """
    widths, steps, batch = sizes

    def fresh() -> list[Network]:
        return [Network(widths, rate, seed) for seed, rate in enumerate(RATES)]

    undisturbed = fresh()
    for network in undisturbed:
        alone(network.train(*data, steps, batch))
    plain = np.array([network.losses for network in undisturbed])
    few = test[0][:1000], test[1][:1000]

    def trained(code: SequenceCode) -> dict[str, Any]:
        networks = fresh()
        with _stream(code, delays, simulated) as (stream, clock):
            points, seconds = _train(stream, clock, networks, data, few, steps, batch)
            report = stream.report
        losses = np.array([network.losses for network in networks])
        return {
            "seconds": seconds,
            "seconds_per_job": seconds / report.jobs,
            "largest_loss_difference": float(np.abs(losses - plain).max()),
            "held_share": report.held_share,
            "encode_seconds_per_job": report.encode_seconds / report.jobs,
            "decode_seconds_per_job": report.decode_seconds / report.jobs,
            "overdue": list(report.overdue),
            "error_bound": report.error_bound,
            "test_loss_over_time": points,
            "parameters": repr(code),
        }

    by_code: dict[str, Any] = {}
    for kind, code in codes.items():
        by_code[kind] = kept(f"{name}, {kind}", partial(trained, code))
        on_step(f"training, {kind}")
    paced = replace(delays, unit=PRODUCT_SECONDS / float(np.prod(product)))

    def share(pace: Slowed | None) -> float:
        with _stream(codes["dip"], pace, simulated) as (stream, _):
            return held(stream, product)

    pace = {"with_delays": paced, "without_delays": None}
    return {
        "codes": by_code,
        "jobs": len(RATES) * steps * 8,
        "final_losses": plain[:, -1].tolist(),
        "held_share_of_a_product": {
            "shape": list(product),
            **{k: kept(f"{name}, {k}", partial(share, pace[k])) for k in pace},
            "product_seconds": PRODUCT_SECONDS,
        },
    }


def _train(
    stream: Stream,
    clock: Clock,
    networks: list[Network],
    data: Images,
    test: Images,
    steps: int,
    batch: int,
) -> tuple[list[tuple[float, float]], float]:
    """Return (seconds, test loss) of the first network after each step, and the seconds of all.

    What it takes to compute test losses is not counted.
    """
    points: list[tuple[float, float]] = []
    start = clock()

    def note(network: int, step: int, loss: float) -> None:
        nonlocal start
        if network == 0:
            now = clock()
            points.append((now - start, networks[0].loss(*test)))
            start += clock() - now

    train_many(stream, networks, *data, steps=steps, batch=batch, callback=note)
    return points, clock() - start


@contextmanager
def _stream(
    code: SequenceCode, delays: Slowed | None, simulated: bool
) -> Iterator[tuple[Stream, Clock]]:
    """A sequence on workers that have loaded what they will run, and their clock."""
    with connect(stand_ins(WORKERS, delays, simulated)) as cluster:
        warm_up(cluster)
        yield cluster.sequence(code, SLACK), cluster.engine.now


def held(stream: Stream, product: Shape) -> float:
    """The share of time in which no worker had work because of the master."""
    X, Y = _factors(product)
    for _ in range(20):
        stream.submit(X, Y)
    for _ in stream:
        pass
    return stream.report.held_share
