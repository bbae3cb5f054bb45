"""The picture of a plan: time against memory and against price, with the knee marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from ..report import ready, save
from ..report.timeline import GREY, INK, sheet
from ..simulation.plots import COLOURS, tidy
from .options import Option, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ZOOM = 1.8  # times the least time, and the price and memory of the picked one, are shown
Figures = Callable[[Option], float]


def draw(plan: Plan, path: str | PathLike[str] | None = None) -> Figure:
    """Draw a plan, and save it if a path is given (.png, .svg or .pdf).

    Left: what the same machines take with more memory, or more work where nothing is kept. Right:
    what other machines cost.
    """
    if path is not None:
        ready(path)
    figure = sheet(12, 4.6)
    left, right = figure.subplots(1, 2)
    best = plan.best
    same = [o for o in plan.tried if (o.machine, o.workers) == (best.machine, best.workers)]
    if best.memory is not None:
        _knee(left, plan, same, lambda o: 100 * (o.memory or 0.0))
        left.set_xlabel("% of the data that a worker keeps")
    else:
        _knee(left, plan, same, lambda o: o.row.work)
        left.set_xlabel("work of a round, as a multiple of the least")
    left.set_title(f"{best.workers} machines: what more redundancy gains")
    _knee(right, plan, plan.tried, lambda o: o.cost)
    right.set_xlabel("machine seconds" if best.price is None else "USD for all rounds")
    right.set_title("what the work costs")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=8, fontsize=9)
    title = f"{plan.work.kind}, {plan.rounds} rounds: {best.code} on {best.workers} machines"
    figure.suptitle(title, fontsize=12, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _knee(axes: Axes, plan: Plan, options: Sequence[Option], cost: Figures) -> None:
    """All options as points, those that nothing beats in both as a line, the picked one marked."""
    done = [one for one in options if len(one.row.seconds)]
    names = list(dict.fromkeys(one.candidate.code for one in plan.tried))
    for i, name in enumerate(names):
        some = [one for one in done if one.candidate.code == name]
        xs, ys = [cost(one) for one in some], [one.seconds for one in some]
        axes.scatter(xs, ys, s=18, color=COLOURS[i % len(COLOURS)], alpha=0.65, lw=0, label=name)
    edge: list[Option] = []
    for one in sorted(done, key=lambda o: (cost(o), o.seconds)):
        if not edge or one.seconds < edge[-1].seconds:
            edge.append(one)
    xs, ys = [cost(one) for one in edge], [one.seconds for one in edge]
    axes.step(xs, ys, where="post", color=GREY, lw=1.0, zorder=0)
    x, y = cost(plan.best), plan.best.seconds
    axes.scatter([x], [y], s=150, facecolor="none", edgecolor=INK, lw=1.8, label="picked")
    # What is far from the line tells nothing, and would press the rest together.
    least = min(one.seconds for one in done)
    near = [one for one in done if one.seconds <= ZOOM * least and cost(one) <= ZOOM * x] or done
    for low, high, limit in (
        (min(map(cost, near)), max(x, *map(cost, near)), axes.set_xlim),
        (least, max(y, *(one.seconds for one in near)), axes.set_ylim),
    ):
        room = 0.06 * (high - low) or 0.1 * high or 1.0
        limit(low - room, high + room)
    axes.set_ylabel("seconds for all rounds")
    tidy(axes)
