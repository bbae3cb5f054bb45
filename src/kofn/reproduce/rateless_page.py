"""Pictures, sentences and tables of `kofn reproduce rateless`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .figures import BLUE, GREEN, GREY, INK, ORANGE, across, dress, legend, sheet
from .page import Printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Rateless codes for sums of non-linear functions, measured again"
RED = "#d55e00"
LOOKS = {
    "one": ("all at one", GREY, "-"),
    "uncoded": ("uncoded", ORANGE, "-"),
    "replication2": ("2-replication", RED, "-"),
    "lt1": ("LT-1", BLUE, "-"),
    "lt2": ("LT-2", BLUE, "--"),
    "groups": ("random groups of 10", GREEN, "-"),
}
MODELS = {
    "exp": "X exponential, mean 5 s",
    "pareto": "X Pareto(1, 1)",
    "lambda_trace": "X recorded on AWS Lambda",
}
# Latencies without a mean where start-up is Pareto(1, 1): of one worker, or of the slowest of many.
ENDLESS = ("one", "uncoded")


def draw(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    return {
        "tails.png": _tails(results),
        "wall_clock.png": _wall_clock(results),
        "decoding.png": _decoding(results),
    }


def _tail(axes: Axes, runs: Mapping[str, Any]) -> None:
    for kind, (label, color, style) in LOOKS.items():
        if kind in runs:
            trials = runs[kind]["trials"]
            times = [t for t, _ in runs[kind]["tail"]]
            above = [max(p, 0.5 / trials) for _, p in runs[kind]["tail"]]
            steps = "steps-post"
            axes.plot(times, above, color=color, ls=style, lw=1.6, label=label, drawstyle=steps)
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_xlim()
    fine = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=fine))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(NullLocator())


def _tails(results: Mapping[str, Any]) -> Figure:
    figure = sheet(13, 4.4)
    every = figure.subplots(1, 3, sharey=True)
    for axes, (name, title) in zip(every, MODELS.items(), strict=True):
        _tail(axes, results[name])
        label = "P(latency > t)" if name == "exp" else ""
        dress(axes, "t, seconds", label, title, "both")
    lines, labels = every[0].get_legend_handles_labels()
    legend(figure, lines, labels, loc="outside lower center", ncols=6)
    return figure


def _wall_clock(results: Mapping[str, Any]) -> Figure:
    runs = results["wall_clock"]
    figure = sheet(8, 4)
    axes = figure.subplots()
    _tail(axes, runs)
    title = f"{runs['workers']} processes, {runs['terms']} Gaussian kernels: wall clock"
    dress(axes, "t, seconds", "fraction of rounds longer than t", title, "both")
    legend(axes)
    return figure


def _decoding(results: Mapping[str, Any]) -> Figure:
    figure = sheet(11, 3.4)
    left, right = figure.subplots(1, 2)
    needed = [
        (f"{kind}, LT-{r}", results["symbols_99"][f"{kind}_lt{r}"], color)
        for r in (1, 2)
        for kind, color in (("peeling", ORANGE), ("inactivation", BLUE))
    ]
    across(left, needed, "d")
    dress(left, "symbols enough in 99 % of runs, m = 1000", "", "Symbols needed")
    by_decoder = results["decode_ms_by_decoder"]
    labels = {"lt1": "LT-1", "lt2": "LT-2", "lt1_10000": "LT-1, m = 10,000"}
    most = 60.0
    for kind, color, down in (("peeling", ORANGE, -0.2), ("inactivation", BLUE, 0.2)):
        times = [by_decoder[name][kind]["wall"] for name in labels]
        places = [y + down for y in range(len(labels))]
        right.barh(places, times, color=color, height=0.36, label=kind)
        for at, spent in zip(places, times, strict=True):
            right.text(spent, at, f" {spent:.1f}", va="center", color=INK)
        most = max(most, *times)
    right.set_yticks(range(len(labels)), [*labels.values()])
    right.plot([55, 29], [0, 1], ls="", marker="D", color=INK, label="Mallick et al.")
    right.invert_yaxis()
    right.set_xlim(0, 1.15 * most)
    dress(right, "ms by the wall clock, from scratch", "", "Decode times")
    legend(right, loc="upper right", bbox_to_anchor=(1.0, 0.75))
    return figure


def sentences(results: Mapping[str, Any]) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    exp, pareto, lambdas = (results[name] for name in MODELS)
    theory, wall, needed = results["theory"], results["wall_clock"], results["symbols_99"]
    times, usual = results["decode_ms_by_decoder"], results["decode_ms_is"]["default_decoder"]
    return {
        "tails.png": (
            f"Mean latency with exponential start-up and m_e = ∞: uncoded "
            f"{exp['uncoded']['mean']:.1f} s (Proposition 1: "
            f"{theory['proposition_1_uncoded']:.1f}), all at one {exp['one']['mean']:.1f} s "
            f"(Proposition 2: {theory['proposition_2_one']:.1f}), 2-replication "
            f"{exp['replication2']['mean']:.1f} s ({theory['proposition_1_replication2']:.1f}), "
            f"LT-1 {exp['lt1']['mean']:.2f} s (Theorem 1 bounds it by "
            f"{theory['theorem_1_lt1']:.2f}), LT-2 {exp['lt2']['mean']:.2f} s (bound "
            f"{theory['theorem_1_lt2']:.2f}), random groups {exp['groups']['mean']:.2f} s. Medians "
            f"with Pareto start-up (the means of all at one and uncoded are infinite): uncoded "
            f"{pareto['uncoded']['median']:.0f} s, LT-2 {pareto['lt2']['median']:.2f} s, random "
            f"groups {pareto['groups']['median']:.2f} s; with recorded start-up: "
            f"{lambdas['uncoded']['median']:.1f}, {lambdas['lt2']['median']:.2f} and "
            f"{lambdas['groups']['median']:.2f} s. With two symbols a worker (m_e = 2m) LT-1 takes "
            f"{results['by_m_e']['lt1_2m']['mean']:.1f} s; a dense code "
            f"{results['by_m_e']['dense_mds']['mean']:.1f} s."
        ),
        "wall_clock.png": (
            f"Median and 99th percentile of {wall['lt2']['trials']} rounds by the wall clock: "
            + ", ".join(
                f"{LOOKS[kind][0]} {wall[kind]['median']:.3f} and {wall[kind]['p99']:.3f} s"
                for kind in ("uncoded", "replication2", "lt2", "groups")
            )
            + "."
        ),
        "decoding.png": (
            f"Peeling (uniform neighbours, as published) needs {needed['peeling_lt1']} symbols for "
            f"LT-1 and {needed['peeling_lt2']} for LT-2 to succeed in 99 % of runs; inactivation "
            f"with a shuffled deck {needed['inactivation_lt1']} and "
            f"{needed['inactivation_lt2']}. Milliseconds to decode LT-1 and LT-2 by the wall "
            f"clock, as in Mallick et al., 2021 (55 and 29), CPU time in brackets: "
            + ", ".join(
                f"{kind}{', the default,' if kind == usual else ''} "
                + " and ".join(
                    f"{times[name][kind]['wall']:.1f} ({times[name][kind]['cpu']:.1f})"
                    for name in ("lt1", "lt2")
                )
                for kind in ("peeling", "inactivation")
            )
            + "."
        ),
    }


def tables(results: Mapping[str, Any]) -> Iterator[Printed]:
    """What is printed for a person."""
    rows = []
    for kind, (label, _, _) in LOOKS.items():
        cells = [label]
        for model in MODELS:
            result = results[model][kind]
            mark = "*" if model == "pareto" and kind in ENDLESS else ""
            cells.append(
                f"{result['mean']:.3g}{mark} / {result['median']:.3g} / {result['p99']:.3g}"
            )
        rows.append(tuple(cells))
    columns = {"": "", **dict.fromkeys(MODELS.values(), ">")}
    yield "latency, seconds: mean / median / 99 %", columns, rows
    yield "* of this sample: the mean of what it is drawn from is infinite."
