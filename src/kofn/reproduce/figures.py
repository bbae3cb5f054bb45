"""How every picture looks: sheets, axes, bars and legends. The papers' pages use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..report.timeline import sheet as sheet
from .colours import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # matplotlib is loaded by the first sheet
    Axes = Figure = Any


def panels(width: float, height: float, *grid: int, **options: Any) -> tuple[Figure, Any]:
    """A new figure and its axes, as `Figure.subplots` gives them."""
    figure = sheet(width, height)
    return figure, figure.subplots(*grid, **options)


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


def legend_below(figure: Figure, axes: Axes, **look: Any) -> None:
    """One legend for all panels, below them."""
    legend(figure, *axes.get_legend_handles_labels(), loc="outside lower center", **look)


def bars(axes: Axes, names: Sequence[str], series: Mapping[str, tuple[Any, ...]]) -> None:
    """Bars side by side, one group a name. A series: values, colour, and whiskers if it has any."""
    width = 0.8 / len(series)
    for i, (label, (values, color, *whiskers)) in enumerate(series.items()):
        at = [x + (i - (len(series) - 1) / 2) * width for x in range(len(names))]
        look: Any = {
            "yerr": next(iter(whiskers), None),
            "error_kw": {"ecolor": INK, "elinewidth": 1.0},
        }
        axes.bar(at, values, width, color=color, label=label, **look)
    axes.set_xticks(range(len(names)), names)


def across(
    axes: Axes,
    rows: Sequence[tuple[str, float, str]],
    unit: str,
    fontsize: int = 10,
    spread: Sequence[tuple[float, float]] = (),
) -> None:
    """Bars from left to right (name, value, colour), with their values written at the end.

    `spread`: whiskers, from where to where on each bar.
    """
    names, values, colors = zip(*rows, strict=True)
    axes.barh(names, values, color=colors, height=0.65)
    whiskers = spread or [(value, value) for value in values]
    for y, (value, (low, high)) in enumerate(zip(values, whiskers, strict=True)):
        if spread:
            axes.plot([low, high], [y, y], color=INK, lw=1.0, marker="|", ms=7)
        at = max(value, high)
        axes.text(at, y, f" {value:{unit}}", va="center", color=INK, fontsize=fontsize)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * max(*values, *(high for _, high in whiskers)))
