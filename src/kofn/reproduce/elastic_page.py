"""Pictures, sentences and tables of `kofn reproduce elastic`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .figures import BLUE, GREEN, GREY, INK, ORANGE, across, bars, dress, legend, sheet
from .page import Printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Coded elastic computing, measured again"
STRAGGLER = {
    "no_straggler": ("no straggler", GREY),
    "margin": ("coded, margin 1", BLUE),
    "nonadaptive": ("non-adaptive MDS", ORANGE),
    "top_up": ("coded, top-up", BLUE),
    "replication_2": ("2-replication", ORANGE),
    "backup_1.2x_median": ("backup at 1.2 x median", ORANGE),
    "backup_3x_median": ("backup at 3 x median", ORANGE),
    "neither": ("coded, neither", BLUE),
    "uncoded": ("uncoded", ORANGE),
}


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
    series, spread = {}, {}
    for label, kind, color in (
        ("adaptive (ours)", "adaptive", BLUE),
        ("non-adaptive", "nonadaptive", ORANGE),
    ):
        low, middle, high = (
            [1e3 * times[n][kind][at] for n in names] for at in ("lower", "median", "upper")
        )
        series[label] = (middle, color)
        spread[label] = [
            [m - a for m, a in zip(middle, low, strict=True)],
            [b - m for m, b in zip(middle, high, strict=True)],
        ]
    bars(left, names, series, spread)
    dress(left, "machines live, of 20", "ms per round (median, quartiles)", "Wall clock", "y")
    left.set_ylim(0, 1.22 * max(max(values) for values, _ in series.values()))
    legend(left, ncols=2, loc="upper left")
    n = [int(name) for name in names]
    for key, look in (
        ("virtual_adaptive_over_nonadaptive", {"color": INK, "label": "simulated, full size"}),
        (
            "virtual_with_waits",
            {"color": GREEN, "ls": "--", "label": "simulated, random waits"},
        ),
        (
            "adaptive_over_nonadaptive",
            {"color": BLUE, "ls": "", "marker": "o", "label": "measured"},
        ),
    ):
        right.plot(n, [results[key][m] for m in names], lw=1.2, **look)
    right.plot([20], [0.54], color=ORANGE, ls="", marker="D", label="Yang et al., 0.54")
    right.set_ylim(0, 1.1)
    right.set_xticks(n)
    title = "Ratio (the bound is 10 / n)"
    dress(right, "machines live, of 20", "adaptive / non-adaptive", title, "y")
    legend(right, loc="lower left")
    return figure


def _straggler(results: Mapping[str, Any]) -> Figure:
    figure = sheet(8, 3.8)
    axes = figure.subplots()
    rows = [(label, results["straggler"][kind], c) for kind, (label, c) in STRAGGLER.items()]
    across(axes, rows, ".2f")
    title = "One of twelve workers ten times slower, threshold 8 (orange: baselines)"
    dress(axes, "time per round, against no straggler", "", title, "x")
    return figure


def _speeds(results: Mapping[str, Any]) -> Figure:
    times = {kind: 1e3 * t["median"] for kind, t in results["speeds_1_2_4_seconds"].items()}
    figure = sheet(8, 2.2)
    axes = figure.subplots()
    rows = [
        ("equal loads", times["equal"], ORANGE),
        ("loads by measured speed", times["measured"], BLUE),
    ]
    across(axes, rows, ".0f")
    best = times["equal"] / results["speeds_1_2_4_best_possible"]
    axes.axvline(best, color=INK, lw=1.2, ls="--")
    axes.text(best, 0.5, " best possible", va="center", color=INK, fontsize=9)
    title = f"Speeds 1:2:4, six machines, threshold 3: {results['speeds_1_2_4']:.2f} times faster"
    dress(axes, "ms per round (median)", "", title, "x")
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
        bars(axes, [s.replace("-", "→") for s in steps], series)
        title = f"Threshold {k}: {100 * total[sum_of]['ratio']:.0f} % of cyclic in all"
        dress(axes, "machines", "rows moved, % of N", title, "y")
    legend(large, ncols=2, loc="upper right")
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
        rows = [(label, 1e3 * results[key][name], color) for name, (label, color) in names.items()]
        across(axes, rows, ".0f")
        dress(axes, "ms per iteration (median)", "", title, "x")
    right.invert_yaxis()  # shared, and turned twice
    return figure


def _figure_2cd(results: Mapping[str, Any]) -> Figure:
    curves, live = results["test_curves"], results["live_workers"]["coded"]
    figure = sheet(11, 5.6)
    (left, right), (below, beside) = figure.subplots(
        2, 2, height_ratios=(3, 1), sharex=True, sharey="row"
    )

    def curve(axes: Axes, name: str, label: str | None, **look: Any) -> None:
        axes.plot(range(1, len(curves[name]) + 1), curves[name], label=label, **look)

    stale, ignored = (
        [name for name in curves if name.startswith(kind)] for kind in ("distr_bgd", "ignore")
    )
    for axes in (left, right):
        curve(axes, "noiseless", "noiseless", color=INK, lw=4, alpha=0.35)
        curve(axes, "coded", "coded", color=BLUE, lw=1.4)
        axes.set_yscale("log")
        axes.grid(axis="y", which="both", color="#dddddd", linewidth=0.8)
    for name in stale:
        curve(left, name, "Distr-BGD" if name == stale[0] else None, color=ORANGE, lw=1.1)
    curve(right, "replication", "replication", color=GREEN, lw=1.4, ls="--")
    for name, style in zip(ignored, ("-", ":", "-."), strict=False):
        penalty = name.removeprefix("ignore").removeprefix("_") or "0.001"
        curve(right, name, f"ignore, penalty {penalty}", color=ORANGE, lw=1.1, ls=style)
    dress(left, "", "test error", "(c) Keeping the last gradient of the lost")
    dress(right, "", "", "(d) Ignoring the lost; replication")
    legend(left)
    legend(right)
    for axes, name in ((below, "live machines"), (beside, "")):
        axes.step(range(1, len(live) + 1), live, where="mid", color=BLUE, lw=1.2)
        axes.set_ylim(0, 21)
        axes.axhline(10, color=GREY, lw=1.0, ls="--")
        dress(axes, "iteration", name, "")
    return figure


def sentences(results: Mapping[str, Any]) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    at_20 = results["adaptive_over_nonadaptive"]["20"]
    late, total = results["straggler"], results["rows_moved_total"]
    coded, ends = results["linear_runs"]["coded"], results["linear_runs"]
    stale = [run["final_test_error"] for name, run in ends.items() if name.startswith("distr_bgd")]
    return {
        "figure_2a.png": (
            f"With 20 machines and a threshold of 10, a product that gives every live machine its "
            f"part of the work takes {at_20:.3f} of the time of one in which each multiplies its "
            f"whole share; Yang et al., 2019 report 0.54, and 0.50 is the bound."
        ),
        "straggler.png": (
            f"When one of twelve workers is ten times slower, a round takes {late['margin']:.2f} "
            f"times as long with a margin of one, {late['top_up']:.2f} times with top-up alone, "
            f"and {late['neither']:.1f} times with neither."
        ),
        "speeds.png": (
            f"On machines with speeds 1:2:4, loads that follow the measured speeds finish "
            f"{results['speeds_1_2_4']:.2f} times faster than equal ones; 2.33 is the "
            f"best there is."
        ),
        "rows_moved.png": (
            f"As machines leave one by one, turned windows move {total['6-3']['ratio']:.2f} (from "
            f"6 to 3) and {total['20-10']['ratio']:.2f} (from 20 to 10) of the rows that plain "
            f"cyclic windows move; rows that must be taken over are not counted."
        ),
        "figure_2b.png": (
            f"With half of the machines an iteration of gradient descent takes "
            f"{results['virtual_half_over_all']:.2f} times as long in simulated time, and "
            f"{results['half_over_all']:.2f} times by the wall clock."
        ),
        "figure_2cd.png": (
            f"Gradient descent on a spot market ({results['linear_data']}): while "
            f"{coded['killed']} workers are killed and {coded['added']} join, the coded losses "
            f"differ from the noiseless ones by at most {results['max_loss_difference']:.1e} at "
            f"any of {coded['iterations']} iterations, and {coded['restarted']} rounds were "
            f"restarted. "
            f"The test error ends at {coded['final_test_error']:.4f}; ignoring what is lost, at "
            f"{ends['ignore']['final_test_error']:.4f}, keeping its last gradient (Distr-BGD), at "
            f"{_range(stale)}."
        ),
    }


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    return low if low == high else f"{low} to {high}"


def tables(results: Mapping[str, Any]) -> Iterator[Printed]:
    """What is printed for a person."""
    measured, virtual = (results[f"{kind}adaptive_over_nonadaptive"] for kind in ("", "virtual_"))
    columns = {"machines live": ">", "measured": ".3f", "simulated, full size": ".3f"}
    rows = [(n, measured[n], virtual[n]) for n in measured]
    yield "time per adaptive round / non-adaptive", columns, rows
    steps = [*results["rows_moved"].items()]
    steps += [(f"[bold]{step}[/] in all", row) for step, row in results["rows_moved_total"].items()]
    columns = {"transition": ">", "plain cyclic": ".2f", "ours": ".2f"}
    rows = [(step, 100 * row["cyclic"], 100 * row["ours"]) for step, row in steps]
    yield "rows moved, % of N", columns, rows
    columns = {"method": "", "loss": ".6f", "test error": ".6f"}
    keys = ("final_loss", "final_test_error", "killed", "added", "restarted")
    rows = [(name, *(run[key] for key in keys)) for name, run in results["linear_runs"].items()]
    columns |= dict.fromkeys(("killed", "joined", "restarted"), "d")
    yield f"gradient descent, {results['linear_data']}", columns, rows
