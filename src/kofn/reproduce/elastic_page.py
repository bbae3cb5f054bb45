"""Pictures, sentences and tables of `kofn reproduce elastic`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .colours import BLUE, GREEN, GREY, INK, ORANGE
from .figures import Figure, across, bars, dress, legend, panels
from .page import Printed, Results, fill

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


def figure_2a(results: Results) -> Figure:
    times = results["figure_2a_seconds"]
    names = list(times)
    figure, (left, right) = panels(11, 4.2, 1, 2)
    series = {}
    for label, kind, color in (
        ("adaptive (ours)", "adaptive", BLUE),
        ("non-adaptive", "nonadaptive", ORANGE),
    ):
        low, middle, high = (
            [1e3 * times[n][kind][at] for n in names] for at in ("lower", "median", "upper")
        )
        series[label] = (middle, color, [np.subtract(middle, low), np.subtract(high, middle)])
    bars(left, names, series)
    count = times[names[0]]["adaptive"]["rounds"]
    title = f"Wall clock, {count} rounds of each"
    dress(left, "machines live, of 20", "ms per round (median, quartiles)", title, "y")
    left.set_ylim(0, 1.22 * max(max(values) for values, *_ in series.values()))
    legend(left, ncols=2, loc="upper left")
    n = [int(name) for name in names]
    for key, line, color, label in (
        ("virtual_adaptive_over_nonadaptive", "-", INK, "simulated, full size"),
        ("virtual_with_waits", "--", GREEN, "simulated, random waits"),
        ("adaptive_over_nonadaptive", "o", BLUE, "measured"),
    ):
        right.plot(n, [results[key][m] for m in names], line, lw=1.2, color=color, label=label)
    right.plot([20], [0.54], color=ORANGE, ls="", marker="D", label="Yang et al., 0.54")
    right.set_ylim(0, 1.1)
    right.set_xticks(n)
    title = "Ratio (the bound is 10 / n)"
    dress(right, "machines live, of 20", "adaptive / non-adaptive", title, "y")
    legend(right, loc="lower left")
    return figure


def straggler(results: Results) -> Figure:
    figure, axes = panels(8, 3.8)
    rows = [(label, results["straggler"][kind], c) for kind, (label, c) in STRAGGLER.items()]
    times = results["straggler_seconds"]
    usual, count = times["no_straggler"]["median"], times["no_straggler"]["rounds"]
    spread = [(times[k]["lower"] / usual, times[k]["upper"] / usual) for k in STRAGGLER]
    across(axes, rows, ".2f", spread=spread)
    title = "One of twelve workers ten times slower, threshold 8 (lighter bars: baselines)"
    label = f"time per round, against no straggler (median, quartiles of {count})"
    dress(axes, label, "", title, "x")
    return figure


def speeds(results: Results) -> Figure:
    seconds = results["speeds_1_2_4_seconds"]
    times = {kind: 1e3 * t["median"] for kind, t in seconds.items()}
    figure, axes = panels(8, 2.2)
    rows = [
        ("equal loads", times["equal"], ORANGE),
        ("loads by measured speed", times["measured"], BLUE),
    ]
    order = [seconds[kind] for kind in ("equal", "measured")]
    across(axes, rows, ".0f", spread=[(1e3 * t["lower"], 1e3 * t["upper"]) for t in order])
    best = times["equal"] / results["speeds_1_2_4_best_possible"]
    axes.axvline(best, color=INK, lw=1.2, ls="--")
    axes.text(best, 0.5, " best possible", va="center", color=INK, fontsize=9)
    title = f"Speeds 1:2:4, six machines, threshold 3: {results['speeds_1_2_4']:.2f} times faster"
    dress(axes, f"ms per round (median, quartiles of {order[0]['rounds']})", "", title, "x")
    return figure


def rows_moved(results: Results) -> Figure:
    figure, (small, large, cost) = panels(13, 3.8, 1, 3, width_ratios=(1, 2.4, 1.2))
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
    stay = results["windows_that_stay"]["20-10"]
    out = [stay[f"{n}-{n - 1}"]["runs"] for n in range(20, 10, -1)]
    back = [stay[f"{n - 1}-{n}"]["runs"] for n in range(11, 21)]
    cost.plot(range(19, 9, -1), out, color=GREEN, marker="o", label="leaving")
    cost.plot(range(11, 21), back, color=GREEN, marker="s", ls="--", label="coming back")
    cost.axhline(2, color=INK, lw=1.0, ls=":")
    cost.text(15, 2.2, "cyclic and ours: 2", color=INK, fontsize=9, ha="center")
    cost.set_ylim(bottom=0)
    orders = results["windows_that_stay"]["orders"]["20-10"]
    dress(cost, "machines", "most runs of a window", f"Windows that stay ({orders} orders)", "y")
    legend(cost)
    return figure


def figure_2b(results: Results) -> Figure:
    figure, (left, right) = panels(8, 2.6, 1, 2, sharey=True)
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
        ranges = results[key.replace("seconds", "quartiles")]
        spread = [(1e3 * ranges[name][0], 1e3 * ranges[name][1]) for name in names]
        across(axes, rows, ".0f", spread=spread)
        label = f"ms per iteration (median, quartiles of {results['settings']['linear']['timed']})"
        dress(axes, label, "", title, "x")
    right.invert_yaxis()  # shared, and turned twice
    return figure


def figure_2cd(results: Results) -> Figure:
    curves, live = results["test_curves"], results["live_workers"]["coded"]
    shared: Any = {"height_ratios": (3, 1), "sharex": True, "sharey": "row"}
    figure, ((left, right), (below, beside)) = panels(11, 5.6, 2, 2, **shared)

    def curve(axes: Any, name: str, label: str | None, **look: Any) -> None:
        axes.plot(range(1, len(curves[name]) + 1), curves[name], label=label, **look)

    stale, ignored = (
        [name for name in curves if name.startswith(kind)] for kind in ("distr_bgd", "ignore")
    )
    for axes in (left, right):
        curve(axes, "noiseless", "noiseless", color=INK, lw=4, alpha=0.35)
        curve(axes, "coded", "coded", color=BLUE, lw=1.4)
        axes.set_yscale("log")
        axes.grid(axis="y", which="both", color="#dddddd", linewidth=0.8)
    runs = f"Distr-BGD, runs: {len(stale)}"
    for name in stale:
        curve(left, name, runs if name == stale[0] else None, color=ORANGE, lw=1.1)
    curve(right, "replication", "replication", color=GREEN, lw=1.4, ls="--")
    for name, style in zip(ignored, ("-", ":", "-."), strict=False):
        penalty = name.removeprefix("ignore").removeprefix("_") or "0.001"
        curve(right, name, f"ignore, penalty {penalty}", color=ORANGE, lw=1.1, ls=style)
    dress(left, "", "test error, (million USD)²", "(c) Keeping the last gradient of the lost")
    dress(right, "", "", "(d) Ignoring the lost; replication")
    legend(left)
    legend(right)
    for axes, name in ((below, "live machines"), (beside, "")):
        axes.step(range(1, len(live) + 1), live, where="mid", color=BLUE, lw=1.2)
        axes.set_ylim(0, 21)
        axes.axhline(10, color=GREY, lw=1.0, ls="--")
        dress(axes, "iteration", name, "")
    return figure


def distr_bgd(results: Results) -> Figure:
    figure, axes = panels(8, 3.8)
    bad = results["distr_bgd_without_newcomers"]
    looks: Any = {
        "noiseless": {"color": INK, "lw": 4, "alpha": 0.35},
        "coded": {"color": BLUE, "lw": 1.4},
        "distr_bgd": {"color": ORANGE, "lw": 1.6, "ls": "--", "label": "Distr-BGD"},
    }
    for name, curve in bad["curves"].items():
        axes.plot(range(1, len(curve) + 1), curve, **{"label": name} | looks[name])
    axes.set_yscale("log")
    title = f"{bad['lost']} of 20 machines gone for good after {bad['after']} iterations"
    dress(axes, "iteration", "test error, (million USD)²", title, "both")
    legend(axes)
    return figure


def grids(results: Results) -> Figure:
    figure, (left, right) = panels(11, 3.4, 1, 2)
    runs = results["grids"]
    label = {kind: f"{kind} ({run['workers']})" for kind, run in runs.items()}
    colors = [GREY, ORANGE, *[BLUE] * (len(runs) - 2)]
    times = [
        (label[k], run["ms_a_step"], c) for (k, run), c in zip(runs.items(), colors, strict=True)
    ]
    spread = [tuple(run["quartiles"]) for run in runs.values()]
    across(left, times, ".0f", spread=spread)
    size = results["grids_settings"]
    dress(
        left,
        f"ms a step, median and quartiles of {size['steps']}",
        "",
        "Wall clock (workers, on few cores)",
    )
    coded = {kind: run for kind, run in runs.items() if "threshold" in run}
    right.bar(list(coded), [run["weights_apart"] for run in coded.values()], color=BLUE, width=0.5)
    right.axhline(1e-8, color=INK, ls="--", lw=1.2)
    right.text(0, 1.3e-8, "1e-8", color=INK, fontsize=9)
    right.set_yscale("log")
    dress(right, "grid", "relative", "Weights after training, against NumPy's", "y")
    return figure


SENTENCES = {
    "figure_2a": """
        With 20 machines and a threshold of 10, a product that gives every live machine its part of
        the work takes {at_20:.3f} of the time of one in which each multiplies its whole share; Yang
        et al., 2019 report 0.54, and 0.50 is the bound.""",
    "straggler": """
        When one of twelve workers is ten times slower, a round takes {straggler[margin]:.2f} times
        as long with a margin of one, {straggler[top_up]:.2f} times with top-up alone, and
        {straggler[neither]:.1f} times with neither.""",
    "speeds": """
        On machines with speeds 1:2:4, loads that follow the measured speeds finish
        {speeds_1_2_4:.2f} times faster than equal ones; 2.33 is the best there is.""",
    "rows_moved": """
        As machines leave one by one, turned windows move {rows_moved_total[6-3][ratio]:.2f} (from 6
        to 3) and {rows_moved_total[20-10][ratio]:.2f} (from 20 to 10) of the rows that plain cyclic
        windows move; rows that must be taken over are not counted. Windows that stay move none, in
        up to {stay_runs:.0f} runs instead of 2; the largest load is then at most
        {stay_load:.3f} of the mean.""",
    "figure_2b": """
        With half of the machines an iteration of gradient descent takes {virtual_half_over_all:.2f}
        times as long in simulated time, and {half_over_all:.2f} times by the wall clock.""",
    "figure_2cd": """
        Gradient descent on a spot market ({linear_data}): while {coded[killed]} workers are killed
        and {coded[added]} join, the coded losses differ from the noiseless ones by at most
        {max_loss_difference:.1e} at any of {coded[iterations]} iterations, and {coded[restarted]}
        rounds were restarted. The test error ends at {coded[final_test_error]:.4f}; ignoring what
        is lost, at {ignore[final_test_error]:.4f}, keeping its last gradient (Distr-BGD), at
        {stale}.""",
    "distr_bgd": """
        Where {gone[lost]} machines leave for good after {gone[after]} iterations and nobody comes,
        Distr-BGD ends at {gone[final_loss_over_noiseless][distr_bgd]:.2f} times the noiseless loss,
        coded descent at {gone[final_loss_over_noiseless][coded]:.6f} times.""",
    "grids": """
        A network trained on {grids_data} with its weights in grids of blocks (PolyDot): {steps}
        on this machine's few cores; the weights differ from NumPy's by at most {apart:.0e}. All
        workers together multiply up to {most_work:.2f} times as much as without a code. Theorem
        2.2: machines keep {kept:.3f} and read {used:.3f} times the least there is, at every n.
        Remark 4: a machine multiplies {remark_4[ours]:.2f} times what it would without a code, with
        MatDot {remark_4[matdot]:.2f} times (2 - 1/L = {remark_4[matdot_formula]:.2f}).""",
}


def sentences(results: Results) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    runs = results["linear_runs"]
    ends = [run["final_test_error"] for name, run in runs.items() if name.startswith("distr_bgd")]
    low, high = f"{min(ends):.4f}", f"{max(ends):.4f}"
    more = {
        "at_20": results["adaptive_over_nonadaptive"]["20"],
        "stale": low if low == high else f"{low} to {high}",
        "gone": results["distr_bgd_without_newcomers"],
        "steps": ", ".join(f"{k} {run['ms_a_step']:.0f} ms" for k, run in results["grids"].items()),
        "apart": max(run.get("weights_apart", 0.0) for run in results["grids"].values()),
        "most_work": max(run.get("work_in_all", 1.0) for run in results["grids"].values()),
        "kept": max(row["kept_over_bound"] for row in results["theorem_2_2"]),
        "used": max(row["used_by_one_over_bound"] for row in results["theorem_2_2"]),
        "stay_runs": max(row["runs"] for row in results["windows_that_stay"]["20-10"].values()),
        "stay_load": max(row["load"] for row in results["windows_that_stay"]["20-10"].values()),
    }
    return fill(SENTENCES, results, runs, more)


def tables(results: Results) -> Iterator[Printed]:
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
    columns = {"coded in groups": "d", "any": "", "decode, ms": ".3f", "multiply-adds a row": "d"}
    columns |= {"losses of a group": "d"}
    names = ("groups", "any", "ms", "multiply_adds_a_row", "losses_of_a_group")
    rows = [tuple(row[name] for name in names) for row in results["remark_1"]]
    yield "Remark 1: 120,000 rows, L = 20 of 40 machines in all", columns, rows
    columns = {"download of all data, s": ".0f", "coded": ".0f", "stop the world": ".0f"}
    three = ("download_seconds", "coded", "stop_the_world")
    rows = [tuple(row[name] for name in three) for row in results["stop_the_world"]]
    yield "iterations in 5 hours of the market, 20 s each on one machine", columns, rows
    known = {k: row for k, row in results["rateless_rows"].items() if isinstance(row, dict)}
    rows = [(name, row["mean"], row["error"]) for name, row in known.items()]
    columns = {"ten machines, exponential start": "", "mean, s": ".2f", "error": ".2f"}
    yield f"section 2.6, {results['rateless_rows']['trials']} trials", columns, rows
