"""kofn bench simulate: is the simulator right? The same codes and delays, by the wall clock.

Real workers really wait as long as the delay model says. Each worker has the same delays in
each round, here and there, so the two runs differ by what is real alone.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import mean
from typing import Any

from rich.console import Console

from ...cluster import Cluster, connect
from ...costs import Costs
from ...delays import Delays, Exponential
from ...engines.known import find
from ...engines.paced import Paced
from ...errors import BadInput
from ...simulation import Candidate, Place, Stage, Work, calibrate
from ...simulation.draws import Common
from ..output import print_pairs, print_text, progress
from .frame import Figure

WORKERS, WARM = 6, 2  # of the first rounds, not counted: workers load what they run
# Tens of milliseconds of wait and of work: much against what a busy machine adds.
DELAYS = Exponential(unit=0.6, mean=0.05, shift=0.03)
CASES: tuple[tuple[Work, tuple[str, ...]], ...] = (
    (Work("product", 1200, 4), ("uncoded", "mds(k=4)", "mds(k=4, margin=1)", "whole(k=4)")),
    (
        Work("gradient", 120, 4, parts=12),
        ("uncoded", "fractional(c=2)", "cyclic(c=3)", "fractional(c=2, covered=0.75)"),
    ),
    (
        Work("sequence", 12, 4, 12),
        ("uncoded(x=2, y=3)", "polynomial(x=2, y=2)", "dip(x=2, y=5, delay=1, lam=5)"),
    ),
    (Work("sum", 60, 4), ("uncoded", "groups(d=5)", "lt(r=5)")),
)


def wall(
    cluster: Cluster, work: Work, candidate: Candidate, workers: int, rounds: int
) -> list[float]:
    """Seconds of each round on real workers, the first ones left out."""
    played = candidate.play(Place(cluster, work, workers, WARM + rounds))
    ends = [next(played).time for _ in range(WARM + rounds)]
    return [b - a for a, b in zip(ends[WARM - 1 : -1], ends[WARM:], strict=True)]


def simulated(
    work: Work, candidate: Candidate, workers: int, rounds: int, delays: Delays, costs: Costs
) -> list[float]:
    """The same in simulated time."""
    row = Stage(work, workers, delays, costs=costs).play(candidate, WARM + rounds)
    return [float(s) for s in row.seconds[WARM:]]


def start(engine: str, address: str | None, drawn: Delays | None = None) -> Cluster:
    """Six workers of an engine, with these delays; a worker's go by its id, 0 to 5."""
    opened = find(engine)(WORKERS) if address is None else find(engine)(None, address=address)
    cluster = connect(opened if drawn is None else Paced(opened, drawn))
    cluster.wait_for(WORKERS)  # those of a cluster that runs already are found one by one
    if cluster.workers != tuple(range(WORKERS)):
        cluster.close()
        raise BadInput(f"{WORKERS} workers are measured; {engine} has {cluster.workers}.")
    return cluster


def run(
    rounds: int, codes: str | None, engine: str, address: str | None, quiet: bool
) -> dict[str, Any]:
    """Both for every code."""
    with start(engine, address) as cluster:
        costs = calibrate(cluster, joins=0)
    chosen = [
        (work, Candidate.parse(text))
        for work, texts in CASES
        for text in texts
        if codes is None or codes in f"{work.kind} {text}"
    ]
    compared = {}
    with progress("simulate", len(chosen), quiet, "code") as update:
        for work, candidate in chosen:
            name = f"{work.kind}: {candidate}"
            update(code=name)
            drawn = Common(DELAYS, work.units(WORKERS), 0)
            with start(engine, address, drawn) as cluster:
                real = wall(cluster, work, candidate, WORKERS, rounds)
            ours = simulated(work, candidate, WORKERS, rounds, DELAYS, costs)
            clock, virtual = mean(real), mean(ours)
            compared[name] = {"wall": clock, "simulated": virtual, "off": virtual / clock - 1}
            update(advance=1)
    worst = max((abs(one["off"]) for one in compared.values()), default=0.0)
    figures = {
        name: Figure(1e3 * one["wall"], "ms", 1e3 * one["simulated"], "simulated")
        for name, one in compared.items()
    }
    return {"figures": figures, "costs": asdict(costs), "codes": compared, "worst": worst}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person."""
    pairs = {"largest difference": f"{result['worst']:.1%}"}
    pairs["latency of a message"] = f"{1e6 * result['costs']['latency']:.0f} µs"
    pairs["master, a task or an event"] = f"{1e6 * result['costs']['per_event']:.0f} µs"
    print_pairs(console, pairs)
    text = """Wall: real workers, which wait as the delay model says. Simulated: the same master,
        code and delays in virtual time, with the costs measured just before."""
    print_text(console, text)
