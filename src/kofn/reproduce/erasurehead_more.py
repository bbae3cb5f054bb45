"""More pictures and sentences of `kofn reproduce erasurehead`: theorems, estimates, a network."""

from __future__ import annotations

from typing import Any

from .colours import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY
from .datasets import PUBLISHED
from .figures import Figure, dress, legend, legend_below, panels
from .page import Results

DATA = {"amazon": "Amazon", "covtype": "Covertype", "kc_house": "KC housing"}


def called(results: Results, name: str) -> str:
    """What a sentence calls a data set: by its name only if it has the published shape."""
    if tuple(results["shapes"][name]) == PUBLISHED[name]:
        return DATA[name]
    kind = "made-up" if results.get("made_up") else "other"
    return f"{kind} data of the form of {DATA[name]}"


def foreign(results: Results) -> str | None:
    """What is to be known of data that are not the published ones."""
    shapes = {name: tuple(shape) for name, shape in results["shapes"].items()}
    others = [
        f"{DATA[name]} has {shape[0]:,} x {shape[1]:,}, not {PUBLISHED[name][0]:,} x "
        f"{PUBLISHED[name][1]:,}"
        for name, shape in shapes.items()
        if shape != PUBLISHED[name]
    ]
    if results.get("made_up"):
        return "The data are made up: nothing here is a figure of the paper. " + MADE_UP
    if not others:
        return None
    return f"These are not the published data: {'; '.join(others)}."


MADE_UP = "With --data DIR the run is on the published data; there are no recorded delays here."
SENTENCES = {
    "theory": """
        Descents on {called[kc_house]} through the real master, c=2 and {published[wait]} of
        {published[workers]} replies (left) and c={more[c]} and {more[wait]} (right), the mean of
        {published[repeats]}: none lies above its bound. At the published setting Theorem 1's long
        step is loose ({published[largest_over_bound][long]:.2f} of the bound at most); with the
        equality that its proof has for round bowls, formula and descents agree to
        {equal:.2%}. Gaps of f to its minimum.""",
    "estimates": """
        The three estimates at c=2 and {wait} of 30 replies, simulated delays of mean 2 s: the
        published one, which leaves missing parts out, ends on {called[kc_house]} at
        {kc[plain][final_metric]:.4f}, the unbiased one at {kc[unbiased][final_metric]:.4f}, kofn's
        at {kc[covered][final_metric]:.4f}; exact gradients at {kc[uncoded][final_metric]:.4f}.""",
    "sweep": """
        Seconds to the target by the replies waited for: one copy is dropping m stragglers (Remark
        1). The best of those tried with c=2: {best}. Simulated delays of mean 2 s.""",
}
FIGURE_1 = """
        How long AWS Lambda workers took, in medians: of {count} recordings the slowest task of all
        took {low:.1f} to {high:.1f} times the median. The paper's 148 machines: 8 times."""
FIGURE_4_RECORDED = """
        Figure 4 with recorded delays ({recording}) in place of the paper's machines, thirty
        workers, simulated time: on {called} {kc[uncoded][seconds_per_iteration]:.2f} s an
        iteration uncoded, {kc[egc2][seconds_per_iteration]:.2f} s with the exact code of c=2,
        {kc[agc2][seconds_per_iteration]:.2f} s with the approximate one."""
NETWORK = """
        A convolutional network on MNIST, thirty workers with recorded delays, simulated time, real
        gradients: {target:.0%} right after {uncoded} uncoded, {egc2} with exact sums of c=2, {agc}
        with 11 of 30 replies of c=2 ({faster}), {ignore} without a code, {dsag} with DSAG at its
        best. In the end {ends[uncoded]:.2%}, {ends[egc2]:.2%}, {agc_end:.2%}, {ends[ignore]:.2%}
        and {dsag_end:.2%} are right."""


def texts(results: Results) -> tuple[dict[str, str], dict[str, Any]]:
    """Sentences, and the values that they are filled with."""
    theory, estimates = results["theory"], results["estimates"]
    ratios = [one["theorem_1_with_equality"]["ratio"] for one in theory["lemmas"].values()]
    best = {name: swept["best"]["2"] for name, swept in results["sweep"].items()}
    more = {
        "published": theory["published"],
        "more": theory["more"],
        "equal": max(abs(ratio - 1) for ratio in ratios),
        "wait": results["settings"]["wait"],
        "kc": estimates["kc_house"],
        "called": {name: called(results, name) for name in DATA},
        "best": ", ".join(
            f"{called(results, name)} {one['replies']} (δ = {one['delta']:.2f})"
            if one
            else f"{name} none"
            for name, one in best.items()
        ),
    }
    filled = dict(SENTENCES)
    one = network_sentence(results["network"])
    if one is not None:
        filled["network"] = one
    recorded = results["figure_1"]
    if "recordings" in recorded:
        slowest = [row["slowest_over_median"] for row in recorded["recordings"].values()]
        spread = {"count": len(slowest), "low": min(slowest), "high": max(slowest)}
        filled["figure_1"] = " ".join(FIGURE_1.split()).format(**spread)
        kc = results["recorded"]["kc_house"]
        if "methods" in kc:
            text = " ".join(FIGURE_4_RECORDED.split())
            filled["figure_4_recorded"] = text.format(
                recording=kc["recording"],
                kc=kc["methods"],
                called=called(results, "kc_house"),
            )
    return filled, more


def network_sentence(results: Results) -> str | None:
    """What came out of training a network; None if that was left out."""
    if "problem" in results:
        return None
    times, ends = results["seconds_to_target"], results["final_accuracy"]
    stale = [name for name in times if name.startswith("dsag")]
    quick = min(stale, key=lambda name: times[name] or float("inf"))
    agc = next(name for name in times if name.startswith("agc2"))
    faster = results["faster_than_uncoded"][agc]
    words = {name: "never" if s is None else f"{s:.0f} s" for name, s in times.items()}
    return " ".join(NETWORK.split()).format(
        target=results["target"],
        uncoded=words["uncoded"],
        egc2=words["egc2"],
        agc=words[agc],
        ignore=words["ignore"],
        dsag=words[quick],
        faster="not compared" if faster is None else f"{faster:.1f} times faster",
        ends=ends,
        agc_end=ends[agc],
        dsag_end=ends[quick],
    )


def theory(results: Results) -> Figure:
    """Gaps by iteration and the bounds on them, at both settings."""
    figure, every = panels(11.0, 4.2, 1, 2, sharey=True)
    look = {
        "exact": ("exact gradients", GREY, "-", "o"),
        "long": ("unbiased, step 1/β", ORANGE, "-", "s"),
        "short": ("unbiased, step (1−p)/β (published)", BLUE, "-", "^"),
        "covered": ("covered, step 1/β (kofn)", GREEN, "-", "D"),
    }
    bounds = {
        "theorem_1_long": ("Theorem 1, step 1/β", ORANGE, "--"),
        "theorem_1_short": ("Theorem 1, step (1−p)/β", BLUE, "--"),
        "theorem_2_short": ("Theorem 2, step (1−p)/β", GREY, "-."),
        "lemma_1": ("Lemma 1 (exact)", INK, ":"),  # last: others may lie on it
    }
    for axes, name in zip(every, ("published", "more"), strict=True):
        one = results["theory"][name]
        for i, (kind, (label, color, style, marker)) in enumerate(look.items()):
            gaps = one["gap"][kind]
            every_few = (i, max(len(look), len(gaps) // 6))  # set off, so that none is hidden
            axes.plot(gaps, color=color, ls=style, marker=marker, markevery=every_few, label=label)
        for kind, (label, color, style) in bounds.items():
            if kind in one["bounds"]:
                axes.plot(one["bounds"][kind], color=color, ls=style, lw=1.8, label=label)
        title = f"c={one['c']}, {one['wait']} of {one['workers']} replies"
        title += f", mean of {one['repeats']} descents"
        dress(axes, "iteration", "f − f*", title, "both")
        axes.set_yscale("log")
    # Under both panels: seven lines leave no room inside.
    every[0].set_ylim(bottom=1e-8)
    legend_below(figure, every[0], fontsize=8, ncols=4)
    return figure


def figure_1(results: Results) -> Figure:
    """Distribution of completion times, one line a recording; on the right its tail."""
    figure, (axes, tail) = panels(11.0, 4.2, 1, 2)
    spread = results["figure_1"]
    styles = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))]
    colors = [BLUE, ORANGE, GREEN, INK, SKY, PINK]
    for i, (name, row) in enumerate(spread["recordings"].items()):
        label = f"{name} ({row['tasks']:,} tasks)"
        style = {"ls": styles[i % 6], "color": colors[i % 6], "label": label}
        axes.plot(row["over_median"], spread["levels"], lw=1.8, **style)
        # The slowest task of all is left when all but one are done.
        left = [max(100 * (1 - level), 100 / row["tasks"]) for level in spread["levels"]]
        tail.plot(row["over_median"], left, lw=1.8, **style)
    for one in (axes, tail):
        one.axvline(spread["paper_slowest_over_median"], color=GREY, lw=1)
        one.set_xscale("log")
        ticks = [0.5, 1, 2, 4, 8, 16]
        one.set_xticks(ticks, [f"{t:g}" for t in ticks])
        one.minorticks_off()
    tail.set_yscale("log")
    tail.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    tail.text(8.2, 40, "the paper's slowest", color=INK, fontsize=8)
    title = "Figure 1 from recorded AWS Lambda times"
    dress(axes, "completion time / median", "fraction of the tasks done", title, "both")
    dress(tail, "completion time / median", "tasks not done yet, %", "the tail of it", "both")
    legend_below(figure, axes, fontsize=8, ncols=3)
    return figure


def estimates(results: Results) -> Figure:
    """The metric against simulated time under each estimate."""
    names = list(results["estimates"])
    figure, every = panels(4.2 * len(names), 3.6, 1, len(names), squeeze=False)
    look = {
        "plain": ("published: missing parts left out", ORANGE, "-", "s"),
        "unbiased": ("unbiased: / P(covered)", BLUE, "--", "^"),
        "covered": ("covered: / what is there (kofn)", GREEN, ":", "D"),
    }
    for i, name in enumerate(names):
        axes, runs = every[0][i], results["estimates"][name]
        for j, (kind, (label, color, style, marker)) in enumerate(look.items()):
            run = runs[kind]["curve"]
            at: Any = (2 * j, max(1, len(run["seconds"]) // 6))
            more: Any = {"color": color, "ls": style, "marker": marker, "markevery": at}
            axes.plot(run["seconds"], run["metric"], lw=1.6, label=label, **more)
        end = runs["uncoded"]["final_metric"]
        axes.axhline(end, color=INK, lw=0.8, label="exact gradients, at the end")
        what = "mean squared error, test" if name == "kc_house" else "AUC, test"
        title = f"{DATA.get(name, name)}, {run['iteration'][-1]} iterations"
        dress(axes, "simulated seconds", what, title, "both")
    legend(every[0][0], fontsize=8)
    return figure


def sweep(results: Results) -> Figure:
    """Seconds to the target against the replies waited for, by copies."""
    names = list(results["sweep"])
    figure, every = panels(4.2 * len(names), 3.4, 1, len(names), squeeze=False)
    look = {
        "1": ("one copy: m dropped (Remark 1)", GREY, ":", "s"),
        "2": ("c=2", BLUE, "-", "o"),
        "3": ("c=3", SKY, "--", "^"),
    }
    for i, name in enumerate(names):
        axes, swept = every[0][i], results["sweep"][name]
        for c, (label, color, style, marker) in look.items():
            rows = swept["by_copies"][c]
            seconds = [row["seconds_to_target"] for row in rows.values()]
            y = [float("nan") if s is None else s for s in seconds]
            more: Any = {"color": color, "ls": style, "marker": marker, "markerfacecolor": "none"}
            axes.plot([int(r) for r in rows], y, label=label, **more)
        title = f"{DATA[name]}, one descent each"
        dress(axes, "replies waited for, of 30", "simulated s to the target", title, "both")
        axes.set_ylim(bottom=0)
    legend(every[0][0], fontsize=8)
    return figure


def network(results: Results) -> Figure:
    """Accuracy against simulated seconds, on a logarithmic clock."""
    measured = results["network"]
    figure, axes = panels(8.4, 4.6)
    look = {
        "uncoded": ("uncoded, waits for all", INK, "-", "o"),
        "egc2": ("exact, c=2", ORANGE, "-", "s"),
        "egc3": ("exact, c=3", ORANGE, "--", "d"),
        "ignore": ("ignored, no code", GREY, ":", "x"),
        "agc3": ("approximate, c=3", SKY, "--", "v"),
    }
    waits = [name for name in measured["curves"] if name.startswith("agc2")]
    for style, name in zip(("-", "--", "-."), waits, strict=False):
        look[name] = (f"approximate, c=2, {name.split('_')[1]} replies", BLUE, style, "^")
    times = measured["seconds_to_target"]
    stale = [name for name in measured["curves"] if name.startswith("dsag")]
    best = min(stale, key=lambda name: times[name] or float("inf"))
    look[best] = (f"DSAG, {best.split('_')[1]} fresh", GREEN, "-.", "D")
    shown = [(name, one) for name, one in look.items() if name in measured["curves"]]
    for i, (name, (label, color, style, marker)) in enumerate(shown):
        run = measured["curves"][name]
        at: Any = (i, max(1, len(run["seconds"]) // 7))
        more: Any = {"color": color, "ls": style, "marker": marker, "markevery": at, "ms": 5}
        wrong = [100 * (1 - right) for right in run["accuracy"]]
        axes.plot(run["seconds"], wrong, lw=1.4, label=label, **more)
    target = 100 * (1 - measured["target"])
    axes.axhline(target, color=INK, lw=0.8)
    style_of: Any = {"va": "bottom", "color": INK, "fontsize": 8}
    where = axes.get_yaxis_transform()  # across the panel, by the axis
    axes.text(0.01, target, f"{measured['target']:.0%} right", transform=where, **style_of)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([2, 3, 5, 10, 20, 50], ["2", "3", "5", "10", "20", "50"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    title = f"MNIST, {measured['workers']} workers, recorded delays, one run of each method"
    dress(axes, "simulated seconds", "test images wrong, %", title, "both")
    legend(axes, fontsize=8, ncols=2)
    return figure
