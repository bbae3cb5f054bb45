"""Commands about simulated time: what they take. The work is in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .ranks import become_worker
from .running import Json, run_command, show

trace = typer.Typer(help="Recorded timings, and who came and went.", no_args_is_help=True)

# Options that `simulate` and `plan` have in common.
Kind = Annotated[str, Option(help="product, gradient, sequence or sum.")]
Timings = Annotated[
    str, Option(help="FILE, FILE:NAME, or a model, as 'exponential(unit=10,mean=0.5)'.")
]
Costs = Annotated[Path | None, Option(help="What `kofn calibrate --out` saved.")]
Size = Annotated[str, Option(help="Rows x columns x width of the work.")]
Parts = Annotated[int | None, Option(min=1, help="gradient: parts of the data.")]
Grows = Annotated[
    float | None, Option(help="Of a recorded time, what grows with the load, 0 to 1.")
]
Slope = Annotated[float | None, Option(help="Seconds of the whole work on one worker.")]
Seed = Annotated[int, Option(min=0, help="Of all that is drawn.")]


def simulate(
    work: Kind,
    workers: Annotated[int, Option(min=1, help="Workers; of a market, so many are wanted.")],
    timings: Timings,
    codes: Annotated[
        str | None, Option(help="As 'uncoded,mds(k=12)' (default: some); see docs/simulate.md.")
    ] = None,
    market: Annotated[str | None, Option(help="FILE or FILE:NAME of who comes and goes.")] = None,
    rounds: Annotated[int, Option(min=1, help="Rounds of each code, at most.")] = 100,
    seconds: Annotated[float, Option(help="Simulated time, at most.")] = float("inf"),
    costs: Costs = None,
    size: Size = "100000x100x1",
    parts: Parts = None,
    grows: Grows = None,
    slope: Slope = None,
    plot: Annotated[Path | None, Option(help="Draw it: .png, .svg or .pdf.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare codes in simulated time: the real master, recorded delays and markets."""
    from .sizes import work_of

    recorded = {"grows": grows, "slope": slope, "seconds": seconds}
    wanted = work_of(work, size, parts)
    args = (wanted, codes, workers, timings, market, rounds, costs, seed, recorded, plot)
    run_command("simulate", as_json, *args, quiet=as_json)


def plan(
    work: Kind,
    workers: Annotated[int, Option(min=1, help="Machines, at most.")],
    timings: Timings,
    market: Annotated[
        str | None, Option(help="FILE or FILE:NAME of who comes and goes; several are kinds.")
    ] = None,
    price: Annotated[float | None, Option(help="USD for an hour of one machine.")] = None,
    memory_per_worker: Annotated[
        str | None, Option(help="Of the data that a worker can keep, as 4GB.")
    ] = None,
    tolerance: Annotated[float, Option(help="The part of a sum that may be missing.")] = 0.0,
    deadline: Annotated[float | None, Option(help="Seconds, for all rounds.")] = None,
    risk: Annotated[
        float, Option(help="Chance, at most, that a run lacks machines at some time.")
    ] = 1.0,
    rounds: Annotated[int, Option(min=1, help="Rounds of the work.")] = 100,
    costs: Costs = None,
    size: Size = "100000x100x1",
    parts: Parts = None,
    grows: Grows = None,
    slope: Slope = None,
    plot: Annotated[Path | None, Option(help="Draw the knee: .png, .svg or .pdf.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Choose a code, its parameters and how many machines, in simulated time.

    The exit code is 1 if nothing keeps within the deadline and the risk.
    """
    from .sizes import work_of

    asked = {"price": price, "tolerance": tolerance, "deadline": deadline, "rounds": rounds}
    asked |= {"risk": risk, "seed": seed, "grows": grows, "slope": slope}
    args = (work_of(work, size, parts), workers, timings, market, memory_per_worker, costs)
    run_command("plan", as_json, *args, asked, plot, quiet=as_json)


def calibrate(
    engine: Annotated[str, Option(help="Where the workers are.")] = "local",
    workers: Annotated[int | None, Option(min=1, help="How many to start.")] = None,
    address: Annotated[str | None, Option(help="Of a cluster that runs already.")] = None,
    out: Annotated[Path | None, Option(help="Save them here, for `kofn simulate --costs`.")] = None,
    as_json: Json = False,
) -> None:
    """Measure what messages, data, start-up and the master cost on a real cluster."""
    become_worker(engine)
    run_command("calibrate", as_json, engine, workers, address, out)


@trace.command(name="show")
def trace_show(
    file: Annotated[Path, Argument(help="CSV or NPZ, of timings or of membership.")],
    name: Annotated[str | None, Option(help="Which trace of the file (default: all).")] = None,
    plot: Annotated[Path | None, Option(help="Draw it, or the first: .png, .svg, .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Check a file of timings or membership, describe it, and draw it."""
    run_command("traces", as_json, file, name, plot)


@trace.command(name="record")
def trace_record(
    log: Annotated[Path, Argument(help="The log of a run, a record a line.")],
    timings: Annotated[Path | None, Option(help="Write the timings here (CSV).")] = None,
    membership: Annotated[Path | None, Option(help="Write who came and went here (CSV).")] = None,
    whole: Annotated[
        float | None, Option(help="Units of work of a round (default: all that it sent).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Save the timings and the membership of a real run, from its log."""
    from . import traces as module

    show(module.record(log, timings, membership, whole), as_json, module.table)
