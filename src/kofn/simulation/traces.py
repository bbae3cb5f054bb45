"""Trace files described and drawn: distributions, who is slow for how long, who is there when."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..delays import (
    Lifetimes,
    Recording,
    SpotTrace,
    fit,
    read_membership,
    read_timings,
    slowness,
)
from ..delays.fits import SLOW, split
from ..delays.tables import read_rows
from ..delays.timings import read_arrays
from ..errors import BadInput
from ..files import name_of
from ..report import ready, save
from ..report.timeline import INK, sheet
from .plots import COLOURS, log_axis, steps, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Recording | SpotTrace | Lifetimes


def read_trace(path: str | PathLike[str]) -> dict[str, Found]:
    """Read timings or membership, whichever a file has."""
    where = Path(name_of(path))
    if where.suffix == ".npz":
        arrays = read_arrays(where, "traces") if where.is_file() else {}
        membership = any(key.endswith("/available") for key in arrays)
    else:
        columns = set(read_rows(where, "a trace")[0].row)
        membership = columns.isdisjoint(("round", "worker", "seconds", "batch_time_norm"))
    return dict(read_membership(where) if membership else read_timings(where))


def describe(trace: Found) -> dict[str, Any]:
    """A trace in numbers."""
    if isinstance(trace, Recording):
        return _timings(trace)
    if isinstance(trace, Lifetimes):
        moments, left = trace.survival
        half = moments[left <= 0.5]
        return {
            "kind": "lifetimes",
            "machines": len(trace.seconds),
            "taken_back": sum(trace.ended),
            "median_hours": float(half[0]) / 3600 if len(half) else None,
        }
    hours = trace.seconds / 3600
    changes = [event for event in trace.events if event.time > 0]
    return {
        "kind": "membership",
        "hours": hours,
        "at_start": trace.at_start,
        "most": trace.most,
        "mean": trace.machine_seconds(trace.seconds) / max(trace.seconds, 1e-9),
        "joins": sum(event.added for event in changes),
        "losses": sum(not event.added for event in changes),
        "usd_per_hour": None if not trace.prices else _usd_per_hour(trace),
    }


def _usd_per_hour(trace: SpotTrace) -> float | None:
    spent, used = trace.usd(trace.seconds), trace.machine_seconds(trace.seconds) / 3600
    return spent / used if spent is not None and used > 0 else None


def _timings(recording: Recording) -> dict[str, Any]:
    known = split(recording)
    slow = slowness(known.waits)
    every = np.concatenate([table.ravel() for table in recording.timings])
    return {
        "kind": "timings",
        "rounds": recording.rounds,
        "workers": recording.workers,
        "loads": list(recording.loads),
        "median": float(np.median(every)),
        "mean": float(every.mean()),
        "p99": float(np.quantile(every, 0.99)),
        "seconds_of_load_1": known.unit,
        "slow_share": slow.share,
        "slow_rounds_in_a_row": slow.burst,
        "slow_rounds_in_a_row_if_independent": slow.alone,
        "fits": {name: one.distance for name, one in fit(recording).items()},
    }


def draw(path: str | PathLike[str], name: str | None, picture: str | PathLike[str]) -> Figure:
    """Draw one trace of a file; with several and no name, the first."""
    ready(picture)
    by_name = read_trace(path)
    if name is not None and name not in by_name:
        raise BadInput(f"{fspath(path)} has {', '.join(by_name)}; got {name!r}.")
    title = name or next(iter(by_name))
    one = by_name[title]
    figure = sheet(12, 4.2)
    if isinstance(one, Recording):
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        _distribution(left, one)
        _slow(right, one)
    elif isinstance(one, Lifetimes):
        left = figure.subplots()
        _survival(left, one)
    else:
        rows = figure.subplots(2 if one.prices else 1, 1, sharex=True, squeeze=False)
        _live(rows[0][0], one)
        if one.prices:
            _prices(rows[1][0], one)
    for axes in figure.axes:
        tidy(axes)
    figure.suptitle(title, fontsize=12, color=INK)
    save(figure, picture)
    return figure


def _distribution(axes: Axes, recording: Recording) -> None:
    for i, (load, table) in enumerate(zip(recording.loads, recording.timings, strict=True)):
        look = {"color": COLOURS[i % len(COLOURS)], "lw": 1.5}
        steps(axes, table, label=f"load {load:.4g}", **look)
    every = np.concatenate([table.ravel() for table in recording.timings])
    if every.max() > 5 * np.median(every) and every.min() > 0:
        log_axis(axes)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("seconds")
    axes.set_title("part of the tasks that took no longer")
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _slow(axes: Axes, timed: Recording) -> None:
    table = timed.timings[-1]
    times = np.clip(table / np.median(table), 1 / 3, 3)
    shown = axes.imshow(
        np.log2(times).T, aspect="auto", cmap="RdBu_r", vmin=-1.6, vmax=1.6, interpolation="nearest"
    )
    bar = axes.figure.colorbar(shown, ax=axes, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(["half", "median", "twice"])
    slow = slowness(split(timed).waits)
    axes.set_xlabel("round")
    axes.set_ylabel("worker")
    axes.set_title(
        f"who is slow (load {timed.loads[-1]:.4g}); of all loads {slow.share:.1%} of the waits are "
        f"over {SLOW:g} medians, {slow.burst:.1f} in a row"
    )


def _live(axes: Axes, trace: SpotTrace) -> None:
    times, counts = zip(*trace.counts(), (trace.seconds, trace.counts()[-1][1]), strict=True)
    hours = np.array(times) / 3600
    axes.fill_between(hours, counts, step="post", color="#9fcbe6", lw=0)
    axes.step(hours, counts, where="post", color=COLOURS[0], lw=1.0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours")
    axes.set_title("machines that are there")


def _prices(axes: Axes, trace: SpotTrace) -> None:
    steps_ = [*trace.prices, trace.prices[-1]._replace(time=trace.seconds)]
    hours = [time / 3600 for time, _ in steps_]
    axes.step(hours, [usd for _, usd in steps_], where="post", color=COLOURS[1], lw=1.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hours")
    axes.set_title("USD an hour for one machine")


def _survival(axes: Axes, lifetimes: Lifetimes) -> None:
    moments, left = lifetimes.survival
    hours = np.concatenate([[0.0], moments / 3600])
    axes.step(hours, np.concatenate([[1.0], left]), where="post", color=COLOURS[0])
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("hours")
    axes.set_title("part of the machines that lives longer")
