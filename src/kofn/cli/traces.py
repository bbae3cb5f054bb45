"""kofn trace: files of timings and membership, shown, and made from the log of a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from ..delays import write_membership, write_timings
from ..errors import BadInput, TraceWarning
from ..files import check_file
from ..report import read_log, ready
from ..simulation import logs, traces
from . import places
from .output import print_pairs, print_sentences, print_table

MOST = 40  # traces of a file that a person is shown
# What a person is shown of each kind: column -> field.
COLUMNS = {
    "timings": {
        "rounds": "rounds",
        "workers": "workers",
        "median s": "median",
        "p99 s": "p99",
        "slow": "slow_share",
        "in a row": "slow_rounds_in_a_row",
    },
    "membership": {
        "hours": "hours",
        "at start": "at_start",
        "most": "most",
        "mean": "mean",
        "joins": "joins",
        "losses": "losses",
        "USD/h": "usd_per_hour",
    },
    "lifetimes": {
        "machines": "machines",
        "taken back": "taken_back",
        "median hours": "median_hours",
    },
}


def run(path: Path, name: str | None, plot: Path | None) -> dict[str, Any]:
    """Describe the traces of a file; draw one if asked to."""
    if plot is not None:
        ready(plot, "--plot")
    with warnings.catch_warnings(record=True) as odd:
        warnings.simplefilter("ignore")  # NumPy's: figures that are no numbers are shown as such
        warnings.simplefilter("always", TraceWarning)
        by_name = traces.read_trace(path)
        if name is not None and name not in by_name:
            raise BadInput(f"{path} has {', '.join(by_name)}; got {name!r}.")
        shown = by_name if name is None else {name: by_name[name]}
        result: dict[str, Any] = {n: traces.describe(one) for n, one in shown.items()}
        drawn = {} if plot is None else places.tried(lambda: traces.draw(path, name, plot))
    notes = sorted({str(one.message) for one in odd})
    return {"file": str(path), "traces": result, "notes": notes} | drawn


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person."""
    if "saved" in result:
        print_pairs(console, {name: str(value) for name, value in result.items()})
        return
    by_name = result["traces"]
    kinds = {one["kind"] for one in by_name.values()}
    for kind in sorted(kinds):
        some = {n: one for n, one in by_name.items() if one["kind"] == kind}
        fields = COLUMNS[kind]
        columns = {"name": "", **dict.fromkeys(fields, ".4g")}
        rows = [
            (n, *("–" if one[key] is None else one[key] for key in fields.values()))
            for n, one in list(some.items())[:MOST]
        ]
        print_table(console, kind, columns, rows, box=None, padding=(0, 1), pad_edge=False)
    for name, one in by_name.items():
        if "fits" in one and len(by_name) == 1:
            loads = ", ".join(f"{load:g}" for load in one["loads"])
            fits = ", ".join(f"{model} {far:.3f}" for model, far in one["fits"].items())
            text = f"{name}: loads {loads}. Distance of the fitted models: {fits}."
            print_sentences(console, text)
    for note in result["notes"]:
        print_sentences(console, note)


def record(log: Path, timings: Path | None, membership: Path | None, whole: float | None) -> Any:
    """Save the traces of a run from its log."""
    if timings is None and membership is None:
        raise BadInput(
            "kofn trace record writes --timings FILE, --membership FILE or both; got neither."
        )
    if timings is not None:
        check_file(timings, "--timings")
    if membership is not None:
        check_file(membership, "--membership")
    if timings == membership:
        raise BadInput(f"--timings and --membership are two files; got {timings} for both.")
    recording = logs.record(read_log(log), whole, log.stem)
    saved = {}
    if timings is not None:
        write_timings(recording.timings, timings)
        saved["timings"] = str(timings)
    if membership is not None:
        write_membership(recording.membership, membership)
        saved["membership"] = str(membership)
    return {
        "saved": ", ".join(saved.values()),
        "rounds": recording.timings.rounds,
        "workers": recording.timings.workers,
        "load": recording.timings.loads[0],
        "stopped_before_their_end": recording.stopped,
        "filled": recording.filled,
        "losses": sum(not event.added for event in recording.membership.events),
        "joins": sum(event.added and event.time > 0 for event in recording.membership.events),
    }
