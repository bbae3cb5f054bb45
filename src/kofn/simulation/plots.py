"""Pictures of a simulation: round times, progress over time, cost."""

from __future__ import annotations

from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from ..report import ready, save
from ..report.timeline import GREY, INK, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .table import Table

# Okabe and Ito's colours; beyond them, the same again with other lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
LINES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "xx")
WIDE = 140  # letters of the legend beside each other
Look = tuple[str, int]  # a colour, and which line and hatch


def draw(table: Table, path: str | PathLike[str] | None = None) -> Figure:
    """Draw a table, and save it if a path is given (.png, .svg or .pdf)."""
    if path is not None:
        ready(path)
    names = list(table.rows)
    figure = sheet(12, max(4.2, 2.6 + 0.42 * len(names)))
    times, progress, cost = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 1.2))
    looks = {
        name: (COLOURS[i % len(COLOURS)], i // len(COLOURS) % len(LINES))
        for i, name in enumerate(names)
    }
    _times(times, table, looks)
    _progress(progress, table, looks)
    _cost(cost, table, looks)
    for axes in (times, progress, cost):
        tidy(axes)
    cost.tick_params(axis="y", labelsize=7.5, length=0)
    handles, labels = times.get_legend_handles_labels()
    labels = [fill(label, WIDE) for label in labels]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    columns = max(1, min(4, len(labels), WIDE // (longest + 6)))
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, ncols=columns, fontsize=9
    )
    title = f"{table.work.kind} on {table.workers} workers, simulated"
    title += f"; {table.assumed}" if table.assumed else ""
    figure.suptitle(title, fontsize=12, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def tidy(axes: Axes) -> None:
    """Leave out what is not needed to read it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.title.set_color(INK)
    axes.title.set_fontsize(10.5)


def log_axis(axes: Axes) -> None:
    """Seconds on a logarithmic axis, with plain numbers at it."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def steps(axes: Axes, values: np.ndarray, **look: object) -> None:
    """The fraction of values up to each."""
    x = np.sort(np.asarray(values, dtype=float).ravel())
    y = np.arange(1, len(x) + 1) / len(x)
    axes.step(np.concatenate([x[:1], x]), np.concatenate([[0.0], y]), where="post", **look)  # type: ignore[arg-type]


def _times(axes: Axes, table: Table, looks: dict[str, Look]) -> None:
    rows = {name: row for name, row in table.rows.items() if len(row.seconds)}
    for name, row in rows.items():
        colour, line = looks[name]
        steps(axes, row.seconds, color=colour, ls=LINES[line], lw=1.6, label=name)
    longest = max((float(row.seconds.max()) for row in rows.values()), default=1.0)
    if longest > 4 * min((float(np.median(row.seconds)) for row in rows.values()), default=1.0):
        log_axis(axes)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("seconds of a round")
    axes.set_ylabel("fraction of the rounds", fontsize=9)
    axes.set_title("rounds that took no longer")


def _progress(axes: Axes, table: Table, looks: dict[str, Look]) -> None:
    end = max((float(row.ends[-1]) for row in table.rows.values() if len(row.ends)), default=1.0)
    unit, by = ("hours", 3600.0) if end > 3 * 3600 else ("seconds", 1.0)
    if table.live:
        back = axes.twinx()
        at = [time / by for time, _ in table.live if time <= end] + [end / by]
        count = [n for time, n in table.live if time <= end]
        back.fill_between(at, [*count, count[-1]], step="post", color="#e9edf0", zorder=0)
        back.set_ylim(0, 2.5 * max(count))
        back.set_ylabel("machines (grey)", color=GREY, fontsize=9)
        back.tick_params(colors=GREY, labelsize=8)
        back.spines[["top", "left"]].set_visible(False)
        axes.set_zorder(back.get_zorder() + 1)
        axes.patch.set_visible(False)
    for name, row in table.rows.items():
        colour, line = looks[name]
        done = np.arange(len(row.ends) + 1)
        axes.step(
            np.concatenate([[0.0], row.ends]) / by, done, where="post", color=colour, ls=LINES[line]
        )
    axes.set_xlabel(f"simulated {unit}")
    axes.set_ylim(bottom=0)
    axes.set_title("rounds done")


def _label(name: str) -> str:
    """A name beside a bar: its beginning, and its end below, where it is long."""
    return name if len(name) <= 36 else f"{name[:26]}…\n…{name[-26:]}"


def _cost(axes: Axes, table: Table, looks: dict[str, Look]) -> None:
    names = [name for name, row in table.rows.items() if len(row.seconds)]
    paid = all(table.rows[name].usd is not None for name in names)
    values = []
    for name in names:
        row = table.rows[name]
        values.append((row.usd if paid else row.machine_seconds) / len(row.seconds))  # type: ignore[operator]
    places = np.arange(len(names))[::-1]
    for place, name, value in zip(places, names, values, strict=True):
        colour, line = looks[name]
        axes.barh(place, value, color=colour, hatch=HATCHES[line], edgecolor="white", height=0.6)
    for place, name, value in zip(places, names, values, strict=True):
        text = f" {value:.4g}, work {table.rows[name].work:.2f}"
        axes.text(value, place, text, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(places, [_label(name) for name in names])
    axes.set_xlim(0, 1.55 * max(values, default=1.0))
    axes.set_xlabel("USD a round" if paid else "machine seconds a round")
    axes.set_title("cost; work as a multiple of the whole work")
