"""kofn bench rivals: what others' methods take on recorded times, each with its best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from ...delays import Recording, read_timings
from ...reproduce import datasets
from ...reproduce.plan import SLOPES
from ...rivals import RIVALS, best, sloped
from .. import places
from ..output import print_table, print_text, progress
from .frame import Figure

QUICK = ("cnn_desktop_Canada_batch2048", "cnn_mbp_Canada_batch256")


def run(data: Path, few: bool, *, quiet: bool = True) -> dict[str, Any]:
    """The best setting of each rival, by recording and seconds of a full batch."""
    places.data(data, "rivals")
    recordings = read_timings(datasets.find(data, datasets.TIMINGS))
    names = [name for name in recordings if not few or name in QUICK]
    result: dict[str, Any] = {"recordings": {}}
    steps = len(names) * len(SLOPES) * len(RIVALS)
    with progress("bench rivals", steps, quiet, "what") as update:
        for name in names:
            by_batch = result["recordings"][name] = {}
            for slope in SLOPES:
                key = "recorded" if slope is None else f"{slope:g}"
                update(what=f"{name}, {key}")
                by_batch[key] = _rivals(recordings[name], slope, update)
    figures = {
        f"{name}, {slope}: {rival}": Figure(
            one[rival]["mean"], "s", min(o["mean"] for o in one.values()), "the quickest of all"
        )
        for name, by_slope in result["recordings"].items()
        for slope, one in by_slope.items()
        for rival in one
    }
    return result | {"figures": figures}


def _rivals(recording: Recording, slope: float | None, update: Any) -> dict[str, Any]:
    times = recording if slope is None else sloped(recording, slope)
    rows = {}
    for name in RIVALS:
        one = best(name, times)
        n = times.workers
        more = {"load": one.rival.load(n), "storage": one.rival.storage(n)}
        rows[name] = {
            "setting": repr(one.rival),
            "delay": one.rival.delay,
            "tried": one.tried,
            **more,
            **one.rounds.summary(),
        }
        update(advance=1)
    return rows


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the seconds of a round for a person."""
    columns = {"recording": "", "s a batch": ">", **dict.fromkeys(RIVALS, ".3g")}
    rows = [
        (name, slope, *(one[rival]["mean"] for rival in RIVALS))
        for name, by_slope in result["recordings"].items()
        for slope, one in by_slope.items()
    ]
    print_table(console, "seconds of a round, mean; each at its best setting", columns, rows)
    text = """The gradients of ignore and dsag are not exact. Those of sr_sgc and m_sgc come one to
        three rounds late. --json has settings, work and storage."""
    print_text(console, text)
