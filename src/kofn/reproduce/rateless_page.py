"""Pictures, sentences and tables of `kofn reproduce rateless`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .colours import BLUE, GREEN, GREY, INK, ORANGE, RED
from .figures import Figure, across, dress, legend, legend_below, panels
from .page import Printed, Results, fill
from .rateless_own import SHORT

TITLE = "Rateless codes for sums of non-linear functions, measured again"
LOOKS = {
    "one": ("all at one", GREY, ":"),
    "uncoded": ("uncoded", ORANGE, "-"),
    "replication2": ("2-replication", RED, "-."),
    "lt1": ("LT-1", BLUE, "-"),
    "lt2": ("LT-2", BLUE, "--"),
    "groups": ("random groups of 10", GREEN, (0, (6, 1, 1, 1, 1, 1))),
}
MODELS = {
    "exp": "X exponential, mean 5 s",
    "pareto": "X Pareto(1, 1)",
    "lambda_trace": "X recorded on AWS Lambda",
}
SHOWN = ("mean", "decodes_peeling")  # of two symbols a worker
# Latencies without a mean where start-up is Pareto(1, 1): of one worker, or of the slowest of many.
ENDLESS = ("one", "uncoded")


def _tail(axes: Any, runs: Results) -> None:
    for kind, (label, color, style) in LOOKS.items():
        if kind in runs:
            times, chances = zip(*runs[kind]["tail"], strict=True)
            above = [max(p, 0.5 / runs[kind]["trials"]) for p in chances]
            axes.plot(times, above, color=color, ls=style, lw=1.6, label=label)
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


def tails(results: Results) -> Figure:
    figure, every = panels(13, 4.4, 1, 3, sharey=True)
    for axes, (name, title) in zip(every, MODELS.items(), strict=True):
        _tail(axes, results[name])
        label = "P(latency > t)" if name == "exp" else ""
        trials = results[name]["lt1"]["trials"]
        dress(axes, "t, simulated seconds", label, f"{title}, {trials} trials", "both")
    legend_below(figure, every[0], ncols=6)
    return figure


def wall_clock(results: Results) -> Figure:
    runs = results["wall_clock"]
    figure, axes = panels(8, 4)
    _tail(axes, runs)
    title = f"{runs['workers']} processes, {runs['terms']} Gaussian kernels: wall clock"
    title += f", {runs['lt1']['trials']} rounds"
    dress(axes, "t, seconds", "fraction of rounds longer than t", title, "both")
    legend_below(figure, axes, ncols=6)
    return figure


def decoding(results: Results) -> Figure:
    figure, (left, right) = panels(11, 3.4, 1, 2)
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


def _latencies(axes: Any, own: Results) -> None:
    """The two-symbol experiment: seconds by method."""
    rows = own["by_term"][SHORT]
    kinds = [kind for kind in LOOKS if kind in rows]
    names, colors = ([LOOKS[kind][at] for kind in kinds] for at in (0, 1))
    mean, error = ([rows[kind][key] for kind in kinds] for key in ("mean", "error"))
    axes.barh(names, mean, color=colors, height=0.65, xerr=error, ecolor=INK)
    for y, (value, off) in enumerate(zip(mean, error, strict=True)):
        axes.text(value + off, y, f" {value:.2f}", va="center", color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(value + off for value, off in zip(mean, error, strict=True)))
    title = f"Two symbols a worker, {1e3 * float(SHORT):g} ms a term, {own['trials']} trials"
    dress(axes, "seconds, mean and its error", "", title)


def _decodes(axes: Any, own: Results) -> None:
    """How often the symbols of the fastest workers decode, by how long a term takes."""
    milliseconds = [1e3 * float(term) for term in own["by_term"]]
    for kind in ("lt1", "lt2"):
        label, color, style = LOOKS[kind]
        decodes = [rows[kind]["decodes_peeling"] for rows in own["by_term"].values()]
        axes.plot(milliseconds, decodes, color=color, ls=style, marker="o", label=label)
    axes.axhline(0.99, color=GREY, ls=":", label="Mallick et al.: 99 %")
    axes.set_xscale("log")
    axes.set_xticks(milliseconds, [f"{each:g}" for each in milliseconds])
    axes.minorticks_off()
    axes.set_ylim(0, 1.05)
    title = "Two symbols a worker: the fastest decode"
    dress(axes, "ms that a term takes", "fraction of trials", title, "both")
    legend(axes)


def own_experiment(results: Results) -> Figure:
    figure, ((top_left, top_right), (middle, right)) = panels(11, 7, 2, 2)
    _latencies(top_left, results["own_experiment"])
    _decodes(top_right, results["own_experiment"])
    by_r = results["by_r"]
    x = [int(r) for r in by_r]
    mean, error = ([row[key] for row in by_r.values()] for key in ("mean", "error"))
    middle.errorbar(x, mean, error, color=BLUE, marker="o", label="simulated")
    known = [row["formula"] for row in by_r.values()]
    middle.plot(x, known, color=ORANGE, ls="--", marker="x", label="by formula")
    middle.set_xscale("log", base=2)
    middle.set_xticks(x, [str(r) for r in x])
    middle.set_ylim(bottom=0)
    trials = next(iter(by_r.values()))["trials"]
    dress(middle, "r", "seconds, mean", f"LT-r, exponential, {trials} trials", "both")
    legend(middle)
    coded = results["precoded"]["rows"]
    shades = (ORANGE, BLUE, GREEN, BLUE, GREEN)
    bars = [(row["code"], row["symbols_99"], c) for row, c in zip(coded, shades, strict=True)]
    across(right, bars, ".0f")
    count = coded[0]["codes"]
    dress(right, f"symbols enough in 99 % of {count} codes", "", "With and without a precode")
    return figure


SENTENCES = {
    "tails": """
        Mean latency with exponential start-up and m_e = ∞: uncoded {exp[uncoded][mean]:.1f} s
        (Proposition 1: {theory[proposition_1_uncoded]:.1f}), all at one {exp[one][mean]:.1f} s
        (Proposition 2: {theory[proposition_2_one]:.1f}), 2-replication
        {exp[replication2][mean]:.1f} s ({theory[proposition_1_replication2]:.1f}), LT-1
        {exp[lt1][mean]:.2f} s (Theorem 1 bounds it by {theory[theorem_1_lt1]:.2f}), LT-2
        {exp[lt2][mean]:.2f} s (bound {theory[theorem_1_lt2]:.2f}), random groups
        {exp[groups][mean]:.2f} s. Medians with Pareto start-up (the means of all at one and uncoded
        are infinite): uncoded {pareto[uncoded][median]:.0f} s, LT-2 {pareto[lt2][median]:.2f} s,
        random groups {pareto[groups][median]:.2f} s; with recorded start-up:
        {lambda_trace[uncoded][median]:.1f}, {lambda_trace[lt2][median]:.2f} and
        {lambda_trace[groups][median]:.2f} s. With two symbols a worker (m_e = 2m) LT-1 takes
        {by_m_e[lt1_2m][mean]:.1f} s; a dense code {by_m_e[dense_mds][mean]:.1f} s.""",
    "wall_clock": """
        Median and 99th percentile of {wall_clock[lt2][trials]} rounds by the wall clock:
        {wall_times}.""",
    "decoding": """
        Peeling (uniform neighbours, as published) needs {symbols_99[peeling_lt1]} symbols for LT-1
        and {symbols_99[peeling_lt2]} for LT-2 to succeed in 99 % of runs; inactivation with a
        shuffled deck {symbols_99[inactivation_lt1]} and {symbols_99[inactivation_lt2]}.
        Milliseconds to decode LT-1 and LT-2 by the wall clock, as in Mallick et al., 2021 (55 and
        29), CPU time in brackets: {decode_times}.""",
    "own_experiment": """
        Their own experiment, two symbols for each of {own_experiment[workers]} workers and the
        fastest M'/2 of them, on recorded start-up times, {short} ms a term: LT-1
        {own[lt1][mean]:.2f} s, LT-2 {own[lt2][mean]:.2f} s, 2-replication
        {own[replication2][mean]:.2f} s, uncoded {own[uncoded][mean]:.2f} s, all at one
        {own[one][mean]:.2f} s. Peeling then decodes in {own[lt1][decodes_peeling]:.1%} and
        {own[lt2][decodes_peeling]:.1%} of the trials; the paper says 99 %. The longer a term takes
        beside the waits, the more the fastest workers are those with symbols of few terms, which
        decode less often: at {longest} ms a term in {long[lt1][decodes_peeling]:.1%} and
        {long[lt2][decodes_peeling]:.1%}. Latency by formula is within {gap:.1%} of
        the simulated mean for every r.""",
}


def sentences(results: Results) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    wall, times = results["wall_clock"], results["decode_ms_by_decoder"]
    decoders = {"peeling": "peeling", "inactivation": "inactivation"}
    decoders[results["decode_ms_is"]["default_decoder"]] += ", the default,"
    both = "{lt1[%s][wall]:.1f} ({lt1[%s][cpu]:.1f}) and {lt2[%s][wall]:.1f} ({lt2[%s][cpu]:.1f})"
    by_term = results["own_experiment"]["by_term"]
    longest = max(by_term, key=float)
    more = {
        "own": by_term[SHORT],
        "short": f"{1e3 * float(SHORT):g}",
        "long": by_term[longest],
        "longest": f"{1e3 * float(longest):g}",
        "wall_times": ", ".join(
            f"{LOOKS[kind][0]} {wall[kind]['median']:.3f} and {wall[kind]['p99']:.3f} s"
            for kind in ("one", "uncoded", "replication2", "lt1", "lt2", "groups")
        ),
        "gap": max(abs(row["formula"] / row["mean"] - 1) for row in results["by_r"].values()),
        "decode_times": ", ".join(
            f"{label} " + (both.replace("%s", kind)).format_map(times)
            for kind, label in decoders.items()
        ),
    }
    return fill(SENTENCES, results, more)


def tables(results: Results) -> Iterator[Printed]:
    """What is printed for a person."""
    rows = []
    for kind, (label, _, _) in LOOKS.items():
        marks = {"pareto": "*"} if kind in ENDLESS else {}
        form = "{mean:.3g}%s / {median:.3g} / {p99:.3g}"
        cells = [(form % marks.get(m, "")).format_map(results[m][kind]) for m in MODELS]
        rows.append((label, *cells))
    columns = {"": "", **dict.fromkeys(MODELS.values(), ">")}
    yield "latency, seconds: mean / median / 99 %", columns, rows
    yield "* of this sample: the mean of what it is drawn from is infinite."
    columns = {"code": "", "symbols": ".0f", "99 %": "d", "most": "d", "terms a symbol": ".1f"}
    columns |= {"decode, ms": ".2f", "CPU, ms": ".2f", "error": ".0e"}
    keys = ["code", "symbols_median", "symbols_99", "symbols_most", "terms_a_symbol"]
    keys += ["wall_ms", "cpu_ms", "worst_relative_error"]
    rows = [tuple(row[key] for key in keys) for row in results["precoded"]["rows"]]
    yield f"LT and Raptor, m = {results['precoded']['m']}", columns, rows
    columns = {"ms a term": "", "LT-1, s": ".3f", "LT-1 decodes": ".1%"}
    columns |= {"LT-2, s": ".3f", "LT-2 decodes": ".1%"}
    rows = [
        (f"{1e3 * float(term):g}", *(row[kind][key] for kind in ("lt1", "lt2") for key in SHOWN))
        for term, row in results["own_experiment"]["by_term"].items()
    ]
    yield "two symbols a worker, the fastest M'/2 workers", columns, rows
    finite = {name: row for name, row in results["by_m_e"].items() if "formula" in row}
    known = finite | {f"LT-{r}": row for r, row in results["by_r"].items()}
    columns = {"exponential start-up": "", "simulated": ".3f", "error": ".3f", "by formula": ".3f"}
    keys = ["mean", "error", "formula"]
    yield "latency, seconds", columns, [(n, *(row[k] for k in keys)) for n, row in known.items()]
