"""The picture of a plan: time against memory and against price, with the knee marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from ..display import figure as number
from ..report import ready, save
from ..report.timeline import GREY, INK, sheet
from ..simulation.plots import COLOURS, tidy
from .options import Option, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RISKY = 0.05  # points of options with more risk are empty
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
        seen = _knee(left, plan, same, lambda o: 100 * (o.memory or 0.0))
        left.set_xlabel("% of the data that a worker keeps")
    else:
        seen = _knee(left, plan, same, lambda o: o.row.work)
        left.set_xlabel("work of a round, as a multiple of the least")
    left.set_title(f"{best.workers} machines: what more redundancy gains")
    seen |= _knee(right, plan, plan.tried, lambda o: o.cost)
    right.set_xlabel("machine seconds" if best.price is None else "USD for all rounds")
    right.set_title("what the work costs")
    handles, labels = left.get_legend_handles_labels()
    for at, name in enumerate(labels[:-1]):  # the last is "picked"
        took = [o.seconds for o in plan.tried if o.candidate.code == name and len(o.row.seconds)]
        if name not in seen and took:
            labels[at] = f"{name} (not in view: from {number(min(took))} s on)"
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=8, fontsize=9)
    title = f"{plan.work.kind}, {plan.rounds} rounds: {best.code} on {best.workers} machines"
    title += f", for {plan.goal}\npale: played for few rounds; "
    title += "" if best.risk is None else f"empty: a risk of more than {RISKY:.0%}; "
    title += "line: what nothing beats of those that were played long"
    figure.suptitle(title, fontsize=11, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _knee(axes: Axes, plan: Plan, options: Sequence[Option], cost: Figures) -> set[str]:
    """All options as points, those that nothing beats in both as a line, the picked one marked.

    Pale: played for few rounds. Empty: a risk beyond RISKY. The line joins what was played longest.
    Returns the codes that are in view.
    """
    done = [one for one in options if len(one.row.seconds)]
    names = list(dict.fromkeys(one.candidate.code for one in plan.tried))
    most = len(plan.best.row.seconds)
    long = [one for one in done if 2 * len(one.row.seconds) > most or one.over]
    for i, name in enumerate(names):
        colour, some = COLOURS[i % len(COLOURS)], [o for o in done if o.candidate.code == name]
        for pale in (True, False):
            these = [one for one in some if (one not in long) == pale]
            fill = ["white" if (one.risk or 0.0) > RISKY else colour for one in these]
            axes.scatter(
                [cost(one) for one in these],
                [one.seconds for one in these],
                s=18 if pale else 34,
                facecolor=fill,
                edgecolor=colour,
                alpha=0.3 if pale else 0.9,
                lw=0.8,
            )
        axes.scatter([], [], s=34, color=colour, label=name)
    edge: list[Option] = []
    for one in sorted(long, key=lambda o: (cost(o), o.seconds)):
        if not edge or one.seconds < edge[-1].seconds:
            edge.append(one)
    xs, ys = [cost(one) for one in edge], [one.seconds for one in edge]
    axes.step(xs, ys, where="post", color=GREY, lw=1.0, zorder=0)
    x, y = cost(plan.best), plan.best.seconds
    axes.scatter([x], [y], s=150, facecolor="none", edgecolor=INK, lw=1.8, label="picked")
    # Options far from the line are left out: they would press the rest together.
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
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    inside = [o for o in done if left <= cost(o) <= right and low <= o.seconds <= high]
    return {one.candidate.code for one in inside}
