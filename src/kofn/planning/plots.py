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
    played = _played(plan)
    same = [o for o in played if (o.machine, o.workers) == (best.machine, best.workers)]
    if best.memory is not None:
        seen = _knee(left, plan, same, lambda o: 100 * (o.memory or 0.0))
        left.set_xlabel("% of the data that a worker keeps")
    else:
        seen = _knee(left, plan, same, lambda o: o.row.work)
        left.set_xlabel("work of a round, as a multiple of the least")
    left.set_title(f"{best.workers} machines: what more redundancy gains")
    seen |= _knee(right, plan, played, lambda o: o.cost)
    right.set_xlabel("machine seconds" if best.price is None else "USD for all rounds")
    right.set_title("what the work costs")
    handles, labels = left.get_legend_handles_labels()
    for at, name in enumerate(labels[:-1]):  # the last is "picked"
        took = [o.seconds for o in played if o.candidate.code == name]
        if name not in seen:
            labels[at] = f"{name} (not in view: from {number(min(took))} s on)"
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=8, fontsize=9)
    title = f"{plan.work.kind}, {plan.rounds} rounds: {best.code} on {best.workers} machines"
    title += f", for {plan.goal}\n"
    title += "" if best.risk is None else f"empty: a risk of more than {RISKY:.0%}; "
    title += "line: the options that no other option beats in both"
    figure.suptitle(title, fontsize=11, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _played(plan: Plan) -> list[Option]:
    """The options that were played to the end.

    The others were dropped after a few rounds, and their figures are too rough for a
    picture: dozens of them would seem better than the pick.
    """
    most = len(plan.best.row.seconds)
    return [o for o in plan.tried if 2 * len(o.row.seconds) > most or o.over]


def _knee(axes: Axes, plan: Plan, options: Sequence[Option], cost: Figures) -> set[str]:
    """Options as points, those that no other beats in both as a line, the picked one marked.

    Empty: a risk beyond RISKY. Returns the codes that are in view.
    """
    names = list(dict.fromkeys(option.candidate.code for option in _played(plan)))
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        points = [option for option in options if option.candidate.code == name]
        axes.scatter(
            [cost(option) for option in points],
            [option.seconds for option in points],
            s=34,
            facecolor=["white" if (option.risk or 0.0) > RISKY else colour for option in points],
            edgecolor=colour,
            alpha=0.9,
            lw=0.8,
        )
        axes.scatter([], [], s=34, color=colour, label=name)
    edge: list[Option] = []
    for option in sorted(options, key=lambda o: (cost(o), o.seconds)):
        if not edge or option.seconds < edge[-1].seconds:
            edge.append(option)
    xs, ys = [cost(option) for option in edge], [option.seconds for option in edge]
    axes.step(xs, ys, where="post", color=GREY, lw=1.0, zorder=0)
    x, y = cost(plan.best), plan.best.seconds
    axes.scatter([x], [y], s=150, facecolor="none", edgecolor=INK, lw=1.8, label="picked")
    # Options far from the line are left out: they would press the rest together.
    least = min(option.seconds for option in options)
    near = [o for o in options if o.seconds <= ZOOM * least and cost(o) <= ZOOM * x] or options
    for low, high, limit in (
        (min(map(cost, near)), max(x, *map(cost, near)), axes.set_xlim),
        (least, max(y, *(option.seconds for option in near)), axes.set_ylim),
    ):
        room = 0.06 * (high - low) or 0.1 * high or 1.0
        limit(low - room, high + room)
    axes.set_ylabel("seconds for all rounds")
    tidy(axes)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    inside = [o for o in options if left <= cost(o) <= right and low <= o.seconds <= high]
    return {option.candidate.code for option in inside}
