"""kofn calibrate: what a real cluster costs, measured and saved."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ..cluster import connect
from ..files import check_file
from ..simulation import calibrate
from . import places
from .output import print_pairs


def run(engine: str, workers: int | None, address: str | None, out: Path | None) -> dict[str, Any]:
    """Measure, and save if asked to."""
    if out is not None:
        check_file(out, "--out")
    with connect(engine, workers, address=address) as cluster:
        count = len(cluster.workers)
        result = {**asdict(calibrate(cluster)), "engine": engine, "workers": count}
    data = (json.dumps(result, indent=2) + "\n").encode()
    return result | ({} if out is None else places.tried(lambda: places.save(out, data)))


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person."""
    print_pairs(
        console,
        {
            "engine": f"{result['engine']}, {result['workers']} workers",
            "latency of a message": f"{1e6 * result['latency']:.0f} µs",
            "bandwidth": f"{result['bandwidth'] / 1e6:.0f} MB/s",
            "start-up of a worker": f"{result['start_up']:.3g} s",
            "master, a task or an event": f"{1e6 * result['per_event']:.0f} µs",
            "master, a million numbers": f"{1e9 * result['per_number']:.2f} ms",
        },
    )
