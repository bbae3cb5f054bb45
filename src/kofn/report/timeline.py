"""The timeline: one lane a worker, one bar a task."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import files
from ..errors import BadInput, CannotDo
from ..interrupts import held
from ..model import Record
from .spans import Lane, Lanes, State, lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MOST_ROUND_LINES = 60
MOST_LANE_NAMES = 40
EDGED = 0.004  # of the width: a white edge would eat a narrower bar
APART = 0.03  # of the width: round numbers any closer would touch

INK, GREY, BAND = "#333333", "#8a8a8a", "#e9edf0"
HALF = 0.36  # of a lane's height
# Label, colour, hatch. Okabe and Ito's colours, apart in lightness too; two have a hatch.
LOOKS: dict[State, tuple[str, str, str | None]] = {
    "used": ("used", "#0072b2", None),
    "late": ("late, not needed", "#e69f00", None),
    "wasted": ("late, stopped", "#f4cf80", None),
    "lost": ("lost with its worker", "#d55e00", "/////"),
    "failed": ("raised an error", "#111111", None),
    "open": ("still running", "#9fcbe6", "....."),
}

Box = tuple[float, float, int]  # from, to, lane


class _View(NamedTuple):
    """The stretch of time that is drawn, in the axis' unit, and the way there."""

    zero: float  # engine's clock at the axis' zero
    scale: float
    unit: str
    left: float
    right: float

    def x(self, time: float) -> float:
        return (time - self.zero) * self.scale

    def box(self, start: float, end: float, lane: int) -> list[Box]:
        """The visible part of a bar, if there is one."""
        a, b = max(self.x(start), self.left), min(self.x(end), self.right)
        return [(a, b, lane)] if a < b else []

    def shows(self, time: float) -> bool:
        return self.left <= self.x(time) <= self.right

    def meets(self, lane: Lane) -> bool:
        """Whether the worker lives at some time of the view."""
        came = lane.joined is None or self.x(lane.joined) <= self.right
        return came and (lane.lost is None or self.x(lane.lost) >= self.left)


def timeline(
    log: Iterable[Record],
    path: str | PathLike[str] | None = None,
    *,
    title: str | None = None,
    start: float | None = None,
    end: float | None = None,
) -> Figure:
    """Draw what each worker did with its time; return the matplotlib Figure.

    `log`: `cluster.log`. `path`: where to save it; the suffix sets the format (.png, .svg, .pdf).
    `start` and `end` cut a piece out, in seconds from the axis' zero, which is the first record of
    the log that is not about storing shares; workers not there at the time are left out.

    Raises CannotDo without matplotlib, whose global state (pyplot, rcParams) is left alone.
    """
    if path is not None:
        ready(path)
    seen = lanes(log)
    view = _view(seen, start, end)
    if start is not None or end is not None:
        seen = replace(seen, lanes=tuple(lane for lane in seen.lanes if view.meets(lane)))
    figure = sheet(10, min(max(1.6 + 0.4 * len(seen.lanes), 2.6), 12.0))
    axes = figure.subplots()
    _rounds(axes, seen, view)
    _bands(axes, seen, view)
    _bars(axes, seen, view)
    _marks(axes, seen, view)
    _frame(axes, seen, view, title)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        look: Any = {"frameon": False, "fontsize": 10, "labelcolor": INK}
        look |= {"handlelength": 1.4, "columnspacing": 1.6, "ncols": min(len(labels), 6)}
        figure.legend(handles, labels, loc="outside lower center", **look)
    if path is not None:
        save(figure, path)
    return figure


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure; the suffix sets the format."""
    target = Path(path)
    picture = io.BytesIO()
    figure.savefig(picture, format=target.suffix[1:].lower())
    files.save(target, picture.getvalue(), "the picture")


def ready(path: str | PathLike[str], name: str = "path") -> None:
    """Find out before a long run whether a picture can be drawn, and saved there.

    `name` is that of the option or the argument.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise BadInput(
            f"the suffix of {name} says the format, one of {', '.join(SUFFIXES)}; got "
            f"{str(target)!r}. Name it {target.stem}.png."
        )
    files.check_file(target, name)
    sheet(1, 1)


def _view(seen: Lanes, start: float | None, end: float | None) -> _View:
    length = seen.end - seen.start
    first, last = start or 0.0, length if end is None else end
    if start is None and end is None and length == 0:
        last = 1e-6  # all at one moment: still a picture
    if not first < last:
        raise BadInput(
            f"start must be before end; got start={first:g} and end={last:g}. This log runs from "
            f"0 to {length:g} seconds."
        )
    units = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds"}
    scale = next((scale for scale in units if (last - first) * scale >= 2), 1e6)
    return _View(seen.start, scale, units[scale], first * scale, last * scale)


def sheet(width: float, height: float) -> Figure:
    """Return an empty figure; raises CannotDo without matplotlib.

    pyplot and rcParams, matplotlib's global state, are left alone.
    """
    try:
        with held():
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
    except ImportError:
        raise CannotDo(
            "drawing needs matplotlib, which is not installed: pip install 'kofn[plot]'"
        ) from None

    class Picture(Figure):
        """A figure that a notebook shows by itself, without pyplot."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = Picture(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _boxes(axes: Axes, boxes: Sequence[Box], half: float, **look: Any) -> None:
    """Bars as one artist, so that a long log costs a few artists and not one a task."""
    from matplotlib.collections import PolyCollection

    corners = [((a, y - half), (b, y - half), (b, y + half), (a, y + half)) for a, b, y in boxes]
    axes.add_collection(PolyCollection(corners, **look), autolim=False)


def _bands(axes: Axes, seen: Lanes, view: _View) -> None:
    """A pale band while a worker lives; a dotted line where it is no longer there."""
    alive: list[Box] = []
    gone: list[Box] = []
    for y, lane in enumerate(seen.lanes):
        begin = seen.start if lane.joined is None else lane.joined
        alive += view.box(begin, seen.end if lane.lost is None else lane.lost, y)
        if lane.lost is not None:
            gone += view.box(lane.lost, seen.end, y)
    _boxes(axes, alive, HALF, facecolors=BAND, edgecolors="none", zorder=1, label="idle")
    for left, right, at in gone:
        axes.plot([left, right], [at, at], color="#c4c4c4", lw=1.0, ls=(0, (1, 2.5)), zorder=1)


def _bars(axes: Axes, seen: Lanes, view: _View) -> None:
    by_state: dict[State, list[Box]] = {state: [] for state in LOOKS}
    for y, lane in enumerate(seen.lanes):
        for span in lane.spans:
            by_state["used"] += view.box(span.start, span.used_until, y)
            by_state[span.state] += view.box(span.used_until, span.end, y)
    edged = EDGED * (view.right - view.left)
    for state, boxes in by_state.items():
        label, color, hatch = LOOKS[state]
        if boxes:
            wide = [b - a > edged for a, b, _ in boxes]
            thin = "white" if hatch else color  # the edge is the hatch's colour too
            look = {
                "facecolors": color,
                "edgecolors": ["white" if w else thin for w in wide],
                "linewidths": [0.6 if w else 0.0 if hatch else 0.3 for w in wide],
            }
            _boxes(axes, boxes, HALF, hatch=hatch, label=label, zorder=3, **look)


def _marks(axes: Axes, seen: Lanes, view: _View) -> None:
    look: Any = {"ls": "none", "mec": "white", "mew": 0.8, "clip_on": False, "zorder": 5}
    look["ms"] = max(4.0, 8.0 - 0.1 * len(seen.lanes))
    for times, marker, color, label in (
        ([(lane.joined,) for lane in seen.lanes], ">", "#00664a", "worker joined"),
        ([lane.leaving for lane in seen.lanes], "D", "#cc79a7", "leaving announced"),
        ([lane.staying for lane in seen.lanes], "o", "#56b4e9", "stays after all"),
        ([(lane.lost,) for lane in seen.lanes], "X", "#8b1a00", "worker lost"),
    ):
        moments = [(t, y) for y, mine in enumerate(times) for t in mine]
        points = [(view.x(t), y) for t, y in moments if t is not None and view.shows(t)]
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, mfc=color, label=label, **look)


def _rounds(axes: Axes, seen: Lanes, view: _View) -> None:
    """A thin line at each round's end, and its number above."""
    boxes = [(r, box) for r in seen.rounds for box in view.box(r.start, r.end, 0)]
    if not 0 < len(boxes) <= MOST_ROUND_LINES:
        return
    for round, _ in boxes:
        if view.shows(round.end) and (round.done or round.end < seen.end):
            thin = 0.8 if len(boxes) <= 20 else 0.5
            axes.axvline(view.x(round.end), color=GREY, lw=thin, clip_on=False, zorder=2)
    middles = {round.id: (a + b) / 2 for round, (a, b, _) in boxes}
    numbers = _numbered(middles, APART * (view.right - view.left))
    above: Any = {"va": "bottom", "fontsize": 9, "color": GREY, "textcoords": "offset points"}
    where = ("data", "axes fraction")
    for id in numbers:
        axes.annotate(str(id), (middles[id], 1), (0, 3), xycoords=where, ha="center", **above)
    axes.annotate("round", (0, 1), (-5, 3), xycoords="axes fraction", ha="right", **above)


def _numbered(middles: dict[int, float], apart: float) -> list[int]:
    """Rounds to number: all, or every 2nd, 5th, ... until no two numbers touch."""
    for step in (1, 2, 5, 10, 20):
        chosen = [id for id in middles if id % step == 0]
        places = [middles[id] for id in chosen]
        if all(b - a >= apart for a, b in pairwise(places)):
            return chosen
    return []


def _frame(axes: Axes, seen: Lanes, view: _View, title: str | None) -> None:
    count = len(seen.lanes)
    axes.set_xlim(view.left, view.right)
    axes.set_ylim(count - 0.4, -0.6)  # the first worker on top
    step = -(-count // MOST_LANE_NAMES) or 1
    places = range(0, count, step)
    axes.set_yticks(list(places), [f"worker {seen.lanes[y].worker}" for y in places])
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK)
    axes.tick_params(axis="x", color=GREY, labelsize=10, labelcolor=INK)
    for y, label in zip(places, axes.get_yticklabels(), strict=True):
        lost = seen.lanes[y].lost
        if lost is not None and view.x(lost) <= view.right:
            label.set_color(GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.set_xlabel(view.unit, fontsize=10, color=INK)
    if title:
        axes.set_title(title, fontsize=12, color=INK, loc="left", pad=20)
