"""How every picture looks: sheets, axes, bars and legends. The papers' pages use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..report.timeline import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "across", "bars", "dress", "legend", "sheet"]

# Okabe and Ito's colours, apart in lightness too.
BLUE, ORANGE, GREEN, GREY, INK = "#0072b2", "#e69f00", "#009e73", "#9a9a9a", "#333333"


def dress(axes: Axes, x: str, y: str, title: str, grid: Literal["", "x", "y", "both"] = "") -> None:
    """Labels, grid lines along some axis, and no more lines than are needed."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#dddddd", linewidth=0.8)


def legend(where: Axes | Figure, *args: Any, **look: Any) -> None:
    """A legend without a frame."""
    where.legend(*args, frameon=False, labelcolor=INK, **look)


def bars(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, tuple[Sequence[float], str]],
    spread: Mapping[str, Any] | None = None,
) -> None:
    """Bars side by side, one group a name; `spread` holds whiskers below and above by series."""
    width = 0.8 / len(series)
    for i, (label, (values, color)) in enumerate(series.items()):
        at = [x + (i - (len(series) - 1) / 2) * width for x in range(len(names))]
        whisker = None if spread is None else spread[label]
        look = {"ecolor": INK, "elinewidth": 1.0}
        axes.bar(at, values, width, color=color, label=label, yerr=whisker, error_kw=look)
    axes.set_xticks(range(len(names)), names)


def across(
    axes: Axes, rows: Sequence[tuple[str, float, str]], unit: str, fontsize: int = 10
) -> None:
    """Bars from left to right (name, value, colour), with their values written at the end."""
    names, values, colors = zip(*rows, strict=True)
    axes.barh(names, values, color=colors, height=0.65)
    for y, value in enumerate(values):
        axes.text(value, y, f" {value:{unit}}", va="center", color=INK, fontsize=fontsize)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(values))
