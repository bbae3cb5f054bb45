"""Runs of the real master, in virtual time and by wall clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..cluster import Cluster, connect
from ..delays import Shifted, Slowed, Stragglers
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine
from ..sequence import SequenceCode, SequenceReport, Uncoded

WHOLE = 1e4  # simulated seconds of a whole job: what a worker needs to drop stale work is nothing
SIZE = (2520, 10, 2520)  # of a job in virtual time: whatever x and y are, its blocks are equal
SMALL = (12, 60, 840)  # of a job by wall clock: small, and its blocks are equal as well
Shape = tuple[int, int, int]


@dataclass(eq=False)
class Run:
    """What one run gave: mean time per job, and its report."""

    per_job: float
    report: SequenceReport
    parameters: str


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
        return Run(stream.report.seconds / jobs / WHOLE, stream.report, repr(code))


def wall(
    code: SequenceCode,
    engine: Engine,
    stragglers: Stragglers,
    alpha: float,
    mu: float,
    jobs: int,
    whole: float,
) -> Run:
    """The same on local processes, by wall clock; a whole job takes one worker `whole` seconds.

    The engine stays open: another run may follow on it.
    """
    rng = np.random.default_rng(0)
    m, n, p = SMALL
    X, Y = rng.standard_normal((m, n)), rng.standard_normal((n, p))
    exact = X @ Y
    begins = next(engine.counters()[0])  # the pattern's first round is the one after this
    delays = Slowed(Shifted(stragglers, by=begins), alpha, whole / (m * n * p))
    stream = connect(Paced(engine, delays)).sequence(code, slack=mu)
    start = time.perf_counter()
    for _ in range(jobs):
        stream.submit(X, Y)
    for Z in stream:
        if not np.allclose(Z, exact, rtol=0.0, atol=1e-9 * float(np.abs(exact).max())):
            raise AssertionError(f"{code} gave a wrong product")
    spent = time.perf_counter() - start
    return Run(spent / jobs / whole, stream.report, repr(code))


def warm_up(cluster: Cluster) -> None:
    """One round, in which workers load what they will run."""
    one = cluster.sequence(Uncoded(len(cluster.workers), 1))
    one.submit(np.ones((8, 1)), np.ones((1, 1))).result()


@contextmanager
def engines(kinds: Iterable[str], workers: int) -> Iterator[dict[str, Engine]]:
    """Local workers for each kind of code, warm."""
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for kind in kinds:
            engines[kind] = stack.enter_context(LocalEngine(workers))
            warm_up(connect(engines[kind]))
        yield engines


def walls(
    codes: Mapping[str, SequenceCode], on: Mapping[str, Engine], *args: Any
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


def interleaved(shapes: Sequence[Shape], models: int) -> list[Shape]:
    """The jobs of so many models in turn."""
    return [shape for shape in shapes for _ in range(models)]
