"""Pictures of results.json: nothing is computed here that is not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CannotDo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, apart in lightness too.
BLUE, ORANGE, GREEN, GREY, INK = "#0072b2", "#e69f00", "#009e73", "#9a9a9a", "#333333"

STRAGGLER = {
    "no_straggler": "no straggler",
    "margin": "coded, margin 1",
    "nonadaptive": "non-adaptive MDS",
    "top_up": "coded, top-up",
    "replication_2": "2-replication",
    "backup_1.2x_median": "backup at 1.2 x median",
    "backup_3x_median": "backup at 3 x median",
    "neither": "coded, neither",
    "uncoded": "uncoded",
}


def sheet(width: float, height: float) -> Figure:
    """An empty figure; raises CannotDo without matplotlib, whose global state is left alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CannotDo(
            "drawing needs matplotlib, which is not installed: pip install 'kofn[plot]'"
        ) from None
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, x: str, y: str, title: str) -> None:
    """Labels, and no more lines than are needed."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.set_axisbelow(True)


def pairs(
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
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)


def draw(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    return {
        "figure_2a.png": _figure_2a(results),
        "straggler.png": _straggler(results),
        "speeds.png": _speeds(results),
        "rows_moved.png": _moved(results),
        "figure_2b.png": _figure_2b(results),
        "figure_2cd.png": _figure_2cd(results),
    }


def _figure_2a(results: Mapping[str, Any]) -> Figure:
    times = results["figure_2a_seconds"]
    names = list(times)
    figure = sheet(11, 4.2)
    left, right = figure.subplots(1, 2)
    series = {"adaptive (ours)": ("adaptive", BLUE), "non-adaptive": ("nonadaptive", ORANGE)}
    bars = {
        label: ([1e3 * times[n][kind]["median"] for n in names], color)
        for label, (kind, color) in series.items()
    }
    spread = {
        label: [
            [1e3 * (times[n][kind]["median"] - times[n][kind]["lower"]) for n in names],
            [1e3 * (times[n][kind]["upper"] - times[n][kind]["median"]) for n in names],
        ]
        for label, (kind, _) in series.items()
    }
    pairs(left, names, bars, spread)
    dress(left, "machines live, of 20", "ms per round (median, quartiles)", "Wall clock")
    left.set_ylim(0, 1.22 * max(max(values) for values, _ in bars.values()))
    left.legend(frameon=False, ncols=2, loc="upper left", labelcolor=INK)
    n = [int(name) for name in names]
    waits, even = results["virtual_with_waits"], results["virtual_adaptive_over_nonadaptive"]
    measured = results["adaptive_over_nonadaptive"]
    right.plot(n, [even[m] for m in names], color=INK, lw=1.2, label="simulated, full size")
    right.plot(
        n, [waits[m] for m in names], color=GREEN, lw=1.2, ls="--", label="simulated, random waits"
    )
    right.plot(n, [measured[m] for m in names], color=BLUE, ls="", marker="o", label="measured")
    right.plot([20], [0.54], color=ORANGE, ls="", marker="D", label="the paper's best, 0.54")
    right.set_ylim(0, 1.1)
    right.set_xticks(n)
    right.grid(axis="y", color="#dddddd", linewidth=0.8)
    dress(right, "machines live, of 20", "adaptive / non-adaptive", "Ratio (the bound is 10 / n)")
    right.legend(frameon=False, loc="lower left", labelcolor=INK)
    return figure


def _across(axes: Axes, rows: Sequence[tuple[str, float, str]], unit: str) -> None:
    """Bars from left to right with their values written at the end."""
    names = [name for name, _, _ in rows]
    values = [value for _, value, _ in rows]
    axes.barh(names, values, color=[color for _, _, color in rows], height=0.65)
    for y, value in enumerate(values):
        axes.text(value, y, f" {value:{unit}}", va="center", color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(values))
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)


def _straggler(results: Mapping[str, Any]) -> Figure:
    ratios = results["straggler"]
    ours = ("no_straggler", "margin", "top_up", "neither")
    rows = [
        (
            label,
            ratios[kind],
            (GREY if kind == "no_straggler" else BLUE) if kind in ours else ORANGE,
        )
        for kind, label in STRAGGLER.items()
    ]
    figure = sheet(8, 3.8)
    axes = figure.subplots()
    _across(axes, rows, ".2f")
    title = "One of twelve workers ten times slower, threshold 8 (orange: baselines)"
    dress(axes, "time per round, against no straggler", "", title)
    return figure


def _speeds(results: Mapping[str, Any]) -> Figure:
    times = results["speeds_1_2_4_seconds"]
    rows = [
        ("equal loads", 1e3 * times["equal"]["median"], ORANGE),
        ("loads by measured speed", 1e3 * times["measured"]["median"], BLUE),
    ]
    figure = sheet(8, 2.2)
    axes = figure.subplots()
    _across(axes, rows, ".0f")
    best = 1e3 * times["equal"]["median"] / results["speeds_1_2_4_best_possible"]
    axes.axvline(best, color=INK, lw=1.2, ls="--")
    axes.text(best, 0.5, " best possible", va="center", color=INK, fontsize=9)
    title = f"Speeds 1:2:4, six machines, threshold 3: {results['speeds_1_2_4']:.2f} times faster"
    dress(axes, "ms per round (median)", "", title)
    return figure


def _moved(results: Mapping[str, Any]) -> Figure:
    figure = sheet(11, 3.8)
    small, large = figure.subplots(1, 2, width_ratios=(1, 2.6))
    table, total = results["rows_moved"], results["rows_moved_total"]
    for axes, top, sum_of, k in ((small, 6, "6-3", 3), (large, 20, "20-10", 10)):
        steps = [f"{n}-{n - 1}" for n in range(top, k, -1)]
        series = {
            "plain cyclic": ([100 * table[s]["cyclic"] for s in steps], ORANGE),
            "ours, turned": ([100 * table[s]["ours"] for s in steps], BLUE),
        }
        pairs(axes, [s.replace("-", "→") for s in steps], series)
        title = f"Threshold {k}: {100 * total[sum_of]['ratio']:.0f} % of cyclic in all"
        dress(axes, "machines", "rows moved, % of N", title)
    large.legend(frameon=False, ncols=2, labelcolor=INK, loc="upper right")
    large.set_ylim(0, 1.2 * max(100 * row["cyclic"] for row in list(table.values())[3:]))
    return figure


def _figure_2b(results: Mapping[str, Any]) -> Figure:
    figure = sheet(8, 2.6)
    left, right = figure.subplots(1, 2, sharey=True)
    names = {
        "uncoded": ("uncoded, 20", ORANGE),
        "coded_all": ("coded, 20", BLUE),
        "coded_half": ("coded, 10", BLUE),
    }
    for axes, key, title in (
        (left, "figure_2b_seconds", "Wall clock"),
        (right, "virtual_figure_2b_seconds", "Simulated"),
    ):
        times = results[key]
        rows = [(label, 1e3 * times[name], color) for name, (label, color) in names.items()]
        _across(axes, rows, ".0f")
        dress(axes, "ms per iteration (median)", "", title)
    right.invert_yaxis()  # shared, and turned twice
    return figure


def _figure_2cd(results: Mapping[str, Any]) -> Figure:
    curves, live = results["test_curves"], results["live_workers"]["coded"]
    figure = sheet(11, 5.6)
    (left, right), (below, beside) = figure.subplots(
        2, 2, height_ratios=(3, 1), sharex=True, sharey="row"
    )
    stale = [name for name in curves if name.startswith("distr_bgd")]
    ignored = [name for name in curves if name.startswith("ignore")]
    for axes in (left, right):
        _curve(axes, curves["noiseless"], "noiseless", color=INK, lw=4, alpha=0.35)
        _curve(axes, curves["coded"], "coded", color=BLUE, lw=1.4)
        axes.set_yscale("log")
        axes.grid(axis="y", which="both", color="#dddddd", linewidth=0.8)
    for name in stale:
        label = "Distr-BGD" if name == stale[0] else None
        _curve(left, curves[name], label, color=ORANGE, lw=1.1)
    _curve(right, curves["replication"], "replication", color=GREEN, lw=1.4, ls="--")
    for name, look in zip(ignored, ("-", ":", "-."), strict=False):
        penalty = name.removeprefix("ignore").removeprefix("_") or "0.001"
        _curve(right, curves[name], f"ignore, penalty {penalty}", color=ORANGE, lw=1.1, ls=look)
    dress(left, "", "test error", "(c) Keeping the last gradient of the lost")
    dress(right, "", "", "(d) Ignoring the lost; replication")
    for axes in (left, right):
        axes.legend(frameon=False, labelcolor=INK)
    for axes, name in ((below, "live machines"), (beside, "")):
        axes.step(range(1, len(live) + 1), live, where="mid", color=BLUE, lw=1.2)
        axes.set_ylim(0, 21)
        axes.axhline(10, color=GREY, lw=1.0, ls="--")
        dress(axes, "iteration", name, "")
    return figure


def _curve(axes: Axes, values: Sequence[float], label: str | None, **look: Any) -> None:
    axes.plot(range(1, len(values) + 1), values, label=label, **look)
