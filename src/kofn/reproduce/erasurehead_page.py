"""Pictures, sentences and tables of `kofn reproduce erasurehead`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import erasurehead_more
from .colours import BLUE, GREEN, GREY, INK, ORANGE, SKY
from .erasurehead_more import DATA as DATA
from .erasurehead_more import estimates as estimates
from .erasurehead_more import figure_1 as figure_1
from .erasurehead_more import foreign as foreign
from .erasurehead_more import network as network
from .erasurehead_more import sweep as sweep
from .erasurehead_more import theory as theory
from .figures import Figure, across, dress, legend, legend_below, panels
from .page import Printed, Results, fill

TITLE = "ErasureHead, measured again"
LOOK = {
    "uncoded": ("uncoded", GREY, "-"),
    "ignore": ("ignored, no code", GREEN, ":"),
    "egc2": ("exact, c=2", ORANGE, "-"),
    "egc3": ("exact, c=3", ORANGE, "--"),
    "agc2": ("approximate, c=2", BLUE, "-"),
    "agc3": ("approximate, c=3", SKY, "--"),
}
MARKERS = dict(zip(LOOK, "ox^vsD", strict=True))
CASES = {
    "mixed_slow": "rows mixed, six machines slow",
    "sorted_slow": "rows sorted, six machines slow",
    "sorted_lost": "rows sorted, the six lost",
}

SENTENCES = {
    "figure_2": """
        Thirty processes with exponential delays of mean {settings[mean_delay_seconds]:.3g} s: on
        {called[amazon]} uncoded descent is at its target (AUC {targets[amazon]:.3f}) after
        {amazon[uncoded]}, an exact code with c=2 after {amazon[egc2]}, an approximate one after
        {amazon[agc2]}, no code and as few replies after {amazon[ignore]}.""",
    "figure_3": """
        Against uncoded, an iteration with c=2 that waits for 11 of 30 is
        {wall_speedup[agc2_over_uncoded]:.1f} times faster ({called[kc_house]}), and
        {wall_speedup[agc2_over_egc2]:.1f} times faster than the exact code; the model says 8.9 and
        3.7. Stopping early is what makes it fast: without a code, 11 of 30 replies are
        {wall_speedup[ignore_over_uncoded]:.1f} times faster too. What the code brings is what is in
        the sum.""",
    "figure_4": """
        Without delays thirty processes share this machine's cores, so twice the work costs time: on
        {called[amazon]} {plain[uncoded]:.0f} ms an iteration uncoded, {plain[agc2]:.0f} ms with the
        approximate code of c=2.""",
    "figure_2_simulated": """
        In simulated time, with the published delays of mean 2 s and nothing else, an iteration
        takes {virtual[uncoded]:.2f} s uncoded, {virtual[egc2]:.2f} and {virtual[egc3]:.2f} s with
        exact codes, {virtual[agc2]:.2f} and {virtual[agc3]:.2f} s with approximate ones.""",
    "rivals": """
        256 workers on recorded AWS Lambda delays ({data}, simulated): the target is reached after
        {best[kofn]} with streamed coded sums, {best[ignore]} without a code and ignoring the rest,
        {best[dsag]} with DSAG, {best[exact]} with exact codes, {best[backups]} with backup tasks,
        {best[uncoded]} waiting for all; each at the best of {rivals[tried][kofn]} settings.""",
    "unequal": """
        The rows of {called[amazon]} sorted by label, six of {unequal[workers]} machines
        ten times slower: ignoring them ends at an AUC of {slow[ignore]} with {wait} replies, the
        approximate code at {slow[agc2]}, where all rows give {slow[uncoded]}. With those machines
        lost, {lost[ignore]} and {lost[agc2]}; waiting for all, which would take
        {unequal[sorted_slow][uncoded][seconds_per_iteration]:.0f} s an iteration when they are
        slow, cannot go on.""",
}


def sentences(results: Results) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    rivals, unequal = results["rivals"], results["unequal"]
    wait, plain = unequal["waits"][1], results["no_delay_seconds_per_iteration"]["amazon"]
    ends = {"uncoded": "uncoded", "ignore": f"ignore_{wait}", "agc2": f"agc2_{wait}"}
    more = {
        "amazon": {name: _seconds(s) for name, s in results["time_to_target"]["amazon"].items()},
        "plain": {name: 1e3 * seconds for name, seconds in plain.items()},
        "virtual": results["virtual_seconds_per_iteration"],
        "wait": wait,
        "called": {name: erasurehead_more.called(results, name) for name in DATA},
        "slow": {name: _final(unequal["sorted_slow"][key]) for name, key in ends.items()},
        "lost": {name: _final(unequal["sorted_lost"][key]) for name, key in ends.items()},
    }
    texts = dict(SENTENCES)
    if "best" in rivals:
        best = {kind: _seconds(one and one["seconds"]) for kind, one in rivals["best"].items()}
        more |= {"best": best, "data": erasurehead_more.called(results, rivals["data"])}
    else:
        del texts["rivals"]
    others, values = erasurehead_more.texts(results)
    return fill(texts, results, more) | fill(others, results, values)


def _final(row: Results | None) -> str:
    return "none" if row is None else f"{row['final_metric']:.3f}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def figure_2(results: Results) -> Figure:
    return _runs(results, "curves", "wall_seconds_per_iteration")


def figure_4(results: Results) -> Figure:
    return _runs(results, "no_delay_curves", "no_delay_seconds_per_iteration")


def _runs(results: Results, curves: str, seconds: str, clock: str = "wall") -> Figure:
    """Above the metric against time, below the time of an iteration; one column a data set."""
    names = list(results[curves])
    figure, grid = panels(4.2 * len(names), 6.4, 2, len(names), squeeze=False)
    for i, name in enumerate(names):
        _curves(grid[0][i], results[curves][name], name, clock)
        times = {method: 1e3 * spent for method, spent in results[seconds][name].items()}
        count = results[curves][name]["uncoded"]["iteration"][-1]
        errors = [1e3 * _error(results[curves][name][method]) for method in times]
        unit = f"ms an iteration, mean of {count} ± error"
        _bars(grid[1][i], times, unit, ".0f", errors=errors)
    legend_below(figure, grid[0][0], fontsize=9, ncols=6)
    return figure


def _error(run: Results) -> float:
    """The standard error of the mean time of an iteration; some iterations may be left out."""
    steps, spent = (np.diff(run[key], prepend=0) for key in ("iteration", "seconds"))
    count = int(run["iteration"][-1])
    apart = spent - steps * run["seconds"][-1] / count
    return float(np.linalg.norm(apart)) / count


def figure_4_recorded(results: Results) -> Figure:
    """Figure 4 under recorded delays in simulated time."""
    kept = {name: one for name, one in results["recorded"].items() if "curves" in one}
    curves = {name: one["curves"] for name, one in kept.items()}
    seconds = {
        name: {method: row["seconds_per_iteration"] for method, row in one["methods"].items()}
        for name, one in kept.items()
    }
    return _runs({"curves": curves, "seconds": seconds}, "curves", "seconds", "simulated")


def figure_2_simulated(results: Results) -> Figure:
    names = list(results["virtual_curves"])
    figure, every = panels(4.2 * len(names), 3.8, 1, len(names))
    for axes, name in zip(every, names, strict=True):
        _curves(axes, results["virtual_curves"][name], name, clock="simulated")
    legend_below(figure, every[0], fontsize=9, ncols=6)
    return figure


def _curves(axes: Any, runs: Results, name: str, clock: str = "wall") -> None:
    for i, (method, run) in enumerate(runs.items()):
        label, color, style = LOOK[method]
        # Set off against each other, so that no marker hides another.
        few: Any = (i, max(len(runs), len(run["seconds"]) // 8))
        look: Any = {"color": color, "ls": style, "marker": MARKERS[method], "markevery": few}
        axes.plot(run["seconds"], run["metric"], lw=1.4, ms=5, label=label, **look)
    what = "mean squared error, test" if name == "kc_house" else "AUC, test"
    dress(axes, f"seconds ({clock} clock)", what, DATA[name], "both")
    longest = sorted(run["seconds"][-1] for run in runs.values())
    # The rest of the slowest run would squeeze the others into a corner.
    axes.set_xlim(0, longest[-2] * 1.15 if len(longest) > 1 else None)


def _bars(
    axes: Any,
    values: Results,
    unit: str,
    form: str,
    title: str = "",
    errors: Sequence[float] = (),
) -> None:
    labels = [LOOK[m][0].replace("approximate", "approx.").replace(", ", "\n") for m in values]
    heights = list(values.values())
    off = errors or [0.0] * len(heights)
    look: Any = {"yerr": errors or None, "error_kw": {"ecolor": INK, "elinewidth": 1.0}}
    axes.bar(labels, heights, color=[LOOK[method][1] for method in values], width=0.7, **look)
    for i, (height, more) in enumerate(zip(heights, off, strict=True)):
        text = f"{height:{form}}"
        axes.text(i, height + more, text, ha="center", va="bottom", color=INK, fontsize=8)
    axes.set_ylim(0, 1.15 * max(np.add(heights, off)))
    axes.tick_params(axis="x", labelsize=7)
    dress(axes, "", unit, title, "y")


def figure_3(results: Results) -> Figure:
    names = list(results["wall_speedups"])
    figure, every = panels(4.2 * len(names), 3.4, 1, len(names))
    for axes, name in zip(every, names, strict=True):
        speedups = results["wall_speedups"][name]
        chosen = {m: speedups[f"{m}_over_uncoded"] for m in LOOK if m != "uncoded"}
        count = results["settings"]["iterations"]
        title = f"{DATA[name]}, {count} iterations"
        _bars(axes, chosen, "times faster than uncoded", ".1f", title)
        axes.axhline(1, color=INK, lw=0.8)
    return figure


def rivals(results: Results) -> Figure:
    rivals = results["rivals"]
    look = {"exact": ORANGE, "ignore": SKY, "dsag": GREEN, "kofn": BLUE}
    rows = [
        (name.replace("_", ", "), row["seconds_to_target"], look.get(name.split("_")[0], GREY))
        for name, row in rivals["methods"].items()
        if row["seconds_to_target"] is not None
    ]
    rows.sort(key=lambda row: row[1])
    never = len(rivals["methods"]) - len(rows)
    figure, axes = panels(8.4, 0.26 * len(rows) + 1.4)
    across(axes, rows, ".1f", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    more = f" ({never} never)" if never else ""
    title = f"{DATA[rivals['data']]}, {rivals['workers']} workers, recorded delays{more}"
    unit = "simulated seconds to the target (method, portion of a part at a time, setting)"
    dress(axes, unit, "", title, "x")
    return figure


def unequal(results: Results) -> Figure:
    """Final metric against the replies waited for: one panel a case, one line a method."""
    figure, every = panels(12.6, 3.6, 1, len(CASES), sharey=True)
    for axes, (case, title) in zip(every, CASES.items(), strict=True):
        rows = results["unequal"][case]
        for kind, marker in (("agc2", "o"), ("ignore", "s")):
            label, color, style = LOOK[kind]
            at = [int(name.split("_")[1]) for name in rows if name.startswith(f"{kind}_")]
            y = [(rows[f"{kind}_{wait}"] or {}).get("final_metric", float("nan")) for wait in at]
            axes.plot(at, y, color=color, ls=style, marker=marker, lw=1.6, label=label)
        if rows["egc2"] is not None:
            exact = rows["egc2"]["final_metric"]
            axes.axhline(exact, color=ORANGE, lw=1.2, label="exact, c=2 (all rows)")
        label = "AUC, test" if case == "mixed_slow" else ""
        dress(axes, "replies waited for", label, title, "both")
    legend(every[0], fontsize=8, loc="lower right")
    return figure


def tables(results: Results) -> Iterator[Printed]:
    """What is printed for a person."""
    rows = [("simulated, mean 2 s", results["virtual_seconds_per_iteration"], ".3f")]
    for name, seconds in results["wall_seconds_per_iteration"].items():
        plain = results["no_delay_seconds_per_iteration"][name]
        rows.append((f"{name}, processes", seconds, ".3f"))
        rows.append((f"{name}, to the target", results["time_to_target"][name], ".2f"))
        rows.append((f"{name}, no delays", plain, ".3f"))
    methods = list(rows[0][1])
    cells = [
        (name, *(None if row[m] is None else f"{row[m]:{form}}" for m in methods))
        for name, row, form in rows
    ]
    columns = {"": "", **dict.fromkeys(methods, ">")}
    yield "seconds per iteration, and to the target", columns, cells
    if "problem" in results["rivals"]:
        yield results["rivals"]["problem"]
    else:
        yield from _rivals_tables(results["rivals"])
    unequal = results["unequal"]
    columns = {"method": ""} | {case.replace("_", " rows, "): ">" for case in CASES}
    names = unequal["mixed_slow"]
    cells = [(name, *(_end(unequal[case][name]) for case in CASES)) for name in names]
    which = f"{len(unequal['slow_or_lost'])} of {unequal['workers']} machines slow or lost"
    yield f"{unequal['data']}, {which}: final metric (s per iteration)", columns, cells


def _end(row: Results | None) -> str:
    if row is None:
        return "stops"
    return f"{row['final_metric']:.4f} ({row['seconds_per_iteration']:.2f})"


def _rivals_tables(rivals: Results) -> Iterator[Printed]:
    columns = {"method": "", "s to target": ".2f", "s per iteration": ".3f", "covered": ".2f"}
    keys = ("seconds_to_target", "seconds_per_iteration", "mean_covered", "final_metric")
    best = {one["setting"] for one in rivals["best"].values() if one}
    rows = [
        (f"[bold]{name}[/]" if name in best else name, *(row[key] for key in keys))
        for name, row in rivals["methods"].items()
    ]
    title = f"{rivals['data']}, {rivals['workers']} workers, recorded AWS Lambda delays (simulated)"
    yield title, columns | {"final metric": ".4f"}, rows
    kinds = ("kofn", "ignore", "dsag", "exact", "backups")
    alike = [(name, *(row[k] for k in kinds)) for name, row in rivals["by_portion"].items()]
    alike.append(("settings tried in all", *(str(rivals["tried"][k]) for k in kinds)))
    columns = {"portion of a part": ">", **dict.fromkeys(kinds, ".2f")}
    yield "seconds to the target, best at the same portion", columns, alike
