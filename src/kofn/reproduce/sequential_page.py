"""Pictures, sentences and tables of `kofn reproduce sequential`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .colours import BLUE, GREEN, GREY, INK, ORANGE
from .figures import Figure, bars, dress, legend, legend_below, panels
from .page import Printed, Results, fill

TITLE = "Coded sequential matrix multiplication, measured again"
COLORS = {"uncoded": GREY, "poly": ORANGE, "dip": BLUE, "idip": GREEN}
NAMES = {"uncoded": "uncoded", "poly": "polynomial", "dip": "DIP", "idip": "IDIP"}
LINES = {"uncoded": ":", "poly": "--", "dip": "-", "idip": "-."}
WIDTHS = {"uncoded": 1.4, "poly": 1.4, "dip": 3.2, "idip": 1.4}  # IDIP may lie on DIP
MARKERS = {"uncoded": "x", "poly": "s", "dip": "o", "idip": "^"}
MODELS = {"iid": "independent stragglers", "fritchman": "bursts (Fritchman)"}


def figure_1(results: Results) -> Figure:
    figure, every = panels(11, 4.6, 1, 2)
    about = {"a": "α = 5, 4 workers, delay 3", "b": "α = 10, 6 workers, delay 4"}
    for axes, (name, points) in zip(every, results["figure1"].items(), strict=True):
        x = [p["delta"] for p in points]
        for kind, color in COLORS.items():
            y = [p["measured"][kind] for p in points]
            look: Any = {"marker": MARKERS[kind], "ms": 5, "ls": "", "color": color}
            if kind in ("dip", "idip"):  # these have no formula: their dots are joined
                look |= {"ls": LINES[kind], "lw": WIDTHS[kind]}
            axes.plot(x, y, label=f"{NAMES[kind]}, measured", **look)
            if kind in points[0] and kind != "dip":
                label = f"{NAMES[kind]}, formula"
                axes.plot(x, [p[kind] for p in points], color=color, lw=1.0, label=label)
        bound = [p["idip_bound"] for p in points]
        axes.plot(x, bound, color=GREEN, ls="--", label="IDIP, bound (corrected)")
        endless = [p["dip_without_deadline"] for p in points]
        axes.plot(x, endless, color=BLUE, ls=":", label="DIP without a deadline")
        jobs = results["settings"]["figure_jobs"]
        title = f"({name}) {about[name]}, {jobs} jobs a point, simulated"
        label = "R, time per job / a job on one worker"
        dress(axes, "probability of straggling, δ", label, title, "both")
        axes.set_ylim(bottom=0)
    legend_below(figure, every[0], fontsize=9, ncols=4)
    return figure


def table_1(results: Results) -> Figure:
    figure, every = panels(11, 4.0, 1, 2, sharey=True)
    kinds = ("uncoded", "dip", "idip")
    for axes, (model, title) in zip(every, MODELS.items(), strict=True):
        virtual, wall = results[model], results["wall"][model]
        groups = {
            "virtual\nμ = 0": virtual,
            "wall clock\nμ = 0": wall,
            "virtual\nμ = 0.25": virtual["mu_0.25"],
            "wall clock\nμ = 0.25": wall["mu_0.25"],
        }
        series = {
            NAMES[kind]: ([g["over_poly"][kind] for g in groups.values()], COLORS[kind])
            for kind in kinds
        }
        bars(axes, list(groups), series)
        for patch in axes.containers[-1]:
            patch.set(hatch="////", edgecolor="white")  # IDIP beside DIP, in black and white too
        for drawn in axes.containers:
            axes.bar_label(drawn, fmt="%.2f", fontsize=8, color=INK, padding=1)
        axes.axhline(1.0, color=ORANGE, lw=1.4, label="polynomial")
        label = "time per job / polynomial code" if model == "iid" else ""
        sizes = results["settings"]
        jobs = f"{sizes['virtual_jobs']} and {sizes['wall_jobs']} jobs"
        dress(axes, "", label, f"{title}, {jobs}", "y")
    legend(figure.axes[1], ncols=4, fontsize=9, loc="upper right")
    figure.axes[0].set_ylim(top=1.12 * figure.axes[0].get_ylim()[1])
    return figure


def figure_2(results: Results) -> Figure:
    figure, rows = panels(11, 6.4, 2, 2)
    for row, (model, title) in zip(rows, MODELS.items(), strict=True):
        for kind, curve in results["figure2"][model].items():
            name = f"{NAMES[kind]}, {curve['per_job']:.2f} a job"
            # The thick line below all others, which would be hidden where they agree.
            look: Any = {"color": COLORS[kind], "ls": LINES[kind], "zorder": 2 + (kind != "dip")}
            row[0].plot(curve["rounds"], curve["cumulative"], lw=WIDTHS[kind], label=name, **look)
            at = range(1, len(curve["loads"]) + 1)
            row[1].plot(at, curve["loads"], lw=0.8 * WIDTHS[kind], label=NAMES[kind], **look)
        dress(row[0], "round", "time, in jobs of one worker", f"{title}: cumulative time")
        dress(row[1], "round", "load of a worker, in jobs", f"{title}: load by round")
        legend(row[0], fontsize=9)
        legend(row[1], fontsize=8, ncols=4, loc="upper right")
        row[1].set_ylim(top=1.25 * row[1].get_ylim()[1])
    return figure


def training(results: Results) -> Figure:
    figure, every = panels(11, 3.8, 1, 2, sharey=True)
    runs = (results["training"], results["training_bursts"])
    for axes, run, title in zip(every, runs, MODELS.values(), strict=True):
        for kind, code in run["codes"].items():
            x, y = zip(*code["test_loss_over_time"], strict=True)
            label = f"{NAMES[kind]}, {code['seconds']:.0f} s in all"
            look: Any = {"marker": MARKERS[kind], "ls": LINES[kind], "lw": WIDTHS[kind]}
            axes.plot(x, y, color=COLORS[kind], label=label, **look)
        label = "test loss of the first network" if title == MODELS["iid"] else ""
        about = f"{title}, {results['training_data']}, {len(x)} steps"
        dress(axes, "seconds, wall clock", label, about, "both")
        legend(axes, fontsize=9)
    return figure


def full_size(results: Results) -> Figure:
    figure, every = panels(11, 3.8, 1, 2, sharey=True)
    loss = results["full_size"]["test_loss"]
    widths = "-".join(map(str, results["full_size"]["widths"]))
    for axes, (model, title) in zip(every, MODELS.items(), strict=True):
        whole = results["table1_parts"][model]["whole_job_seconds"]
        for kind, curve in results["figure2"][model].items():
            ends = [whole * end for end in curve["step_ends"][: len(loss)]]
            look: Any = {"marker": MARKERS[kind], "ls": LINES[kind], "lw": WIDTHS[kind]}
            axes.plot(ends, loss[: len(ends)], color=COLORS[kind], label=NAMES[kind], **look)
        label = "test loss of one of five" if model == "iid" else ""
        dress(axes, "seconds, simulated", label, f"{title}, {widths}", "both")
        legend(axes, fontsize=9)
    return figure


SENTENCES = {
    "figure_1": """
        In virtual time the real master needs what the closed forms say for uncoded and polynomial
        codes, within {gap:.1%}; IDIP needs at most {close:.2f} of its corrected bound. The bound
        counts a load of W/xy in each round; what IDIP really does is at least {load:.2f} of that,
        because jobs that are done cost nothing.""",
    "table_1": """
        Against the best polynomial code and with μ = 0, DIP needs {iid[over_poly][dip]:.3f} of the
        time and IDIP {iid[over_poly][idip]:.3f} with independent stragglers (wall clock
        {wall[iid][over_poly][dip]:.3f} and {wall[iid][over_poly][idip]:.3f}),
        {fritchman[over_poly][dip]:.3f} and {fritchman[over_poly][idip]:.3f} with bursts (wall clock
        {wall[fritchman][over_poly][dip]:.3f} and {wall[fritchman][over_poly][idip]:.3f}).
        These parameters were found by search. The published codes at μ = 0.25, with the published
        ratios in brackets: independent, DIP {iid_codes[dip]:.3f} (0.632) and IDIP
        {iid_codes[idip]:.3f} (0.757); bursts, DIP {burst_codes[dip]:.3f} (0.678) and IDIP for
        bursts {burst_codes[idip]:.3f} (0.583). The chain: {fritchman_chain}.""",
    "figure_2": """
        The published networks (784-3000-3000-10, batches of 1024) and codes in virtual time, μ =
        0.25: DIP needs {figure2[iid][dip][over_poly]:.2f} and IDIP
        {figure2[iid][idip][over_poly]:.2f} of the time of the polynomial code with independent
        stragglers, {figure2[fritchman][dip][over_poly]:.2f} and
        {figure2[fritchman][idip][over_poly]:.2f} with bursts.""",
    "training": """
        Five smaller networks, on {training_data}, trained through each code on four local processes
        with delays take {uncoded[seconds]:.0f} s uncoded, {poly[seconds]:.0f} s with a polynomial
        code and {dip[seconds]:.0f} s with DIP; the losses differ from plain NumPy training by at
        most {differs:.1e} at any step. The master held everything up for {dip[held_share]:.1%} of
        the time. Under bursts: {b[uncoded][seconds]:.0f}, {b[poly][seconds]:.0f} and
        {b[dip][seconds]:.0f} s.""",
    "full_size": """
        At {size} a whole job takes one core {table1_parts[iid][whole_job_seconds]:.2f} s in the
        mean. Training really runs here, on plain NumPy; when each step is done is simulated, with
        that time. Encoding a job takes {e[poly][encode_seconds]:.3f} s (polynomial),
        {e[dip][encode_seconds]:.3f} s (DIP) and {e[idip][encode_seconds]:.3f} s (IDIP), decoding
        {e[poly][decode_seconds]:.3f}, {e[dip][decode_seconds]:.3f} and
        {e[idip][decode_seconds]:.3f} s.""",
}


def sentences(results: Results) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    points = [p for side in results["figure1"].values() for p in side]
    codes = results["training"]["codes"]
    more = {
        "gap": max(abs(p["measured"][k] / p[k] - 1) for p in points for k in ("uncoded", "poly")),
        "close": max(p["measured"]["idip"] / p["idip_bound"] for p in points),
        "load": min(p["loads"]["idip"] / p["idip_load_of_the_bound"] for p in points),
        "iid_codes": results["table_1"]["iid"]["mu_0.25"]["over_poly"],
        "burst_codes": results["table_1"]["fritchman"]["mu_0.25"]["over_poly"],
        "differs": max(run["largest_loss_difference"] for run in codes.values()),
        "b": results["training_bursts"]["codes"],
        "e": results["table1_parts"]["iid"]["codes"],
        "size": "-".join(map(str, results["full_size"]["widths"])),
    }
    return fill(SENTENCES, results, codes, more)


def tables(results: Results) -> Iterator[Printed]:
    """What is printed for a person."""
    rows = []
    for model, title in MODELS.items():
        for mu in ("0", "0.25"):
            for clock, side in (("virtual", results[model]), ("wall", results["wall"][model])):
                ratios = (side if mu == "0" else side["mu_0.25"])["over_poly"]
                rows.append((title, mu, clock, *(ratios[kind] for kind in NAMES)))
    columns = {"stragglers": "", "μ": ">", "clock": "", **dict.fromkeys(NAMES.values(), ".3f")}
    yield "time per job / polynomial code, parameters found by search", columns, rows
    rows = []
    for model, title in MODELS.items():
        table = results["table_1"][model]
        for mu in ("0", "0.25"):
            at = table[f"mu_{mu}"]
            for kind in ("uncoded", "dip", "idip"):
                ratio, error = at["over_poly"][kind], at["error"][kind]
                rows.append((title, mu, NAMES[kind], ratio, error, table["published"][kind]))
    columns = {"stragglers": "", "μ": ">", "code": "", "time / polynomial": ".3f"}
    columns |= {"standard error": ".3f", "published, μ = 0.25": ".3f"}
    yield "Table 1: the published codes, virtual time", columns, rows
    rows = []
    for model, title in MODELS.items():
        times = results["table1_parts"][model]
        for kind, row in times["codes"].items():
            spent = row["encode_seconds"], row["decode_seconds"]
            rows.append((title, NAMES[kind], *spent, *times["published"].get(kind, (0.0, 0.0))))
    columns = {"stragglers": "", "code": "", "encode, s": ".4f", "decode, s": ".4f"}
    columns |= {"published: encode": ".3f", "decode": ".3f"}
    yield "Table 1: the master's seconds for a job", columns, rows
    at = results["burst_variant"]
    columns = {"code, on the chain of bursts": "", "μ = 0": ".3f", "μ = 0.25": ".3f"}
    rows = [(name, ratio, at["mu_0.25"][name]) for name, ratio in at["mu_0"].items()]
    yield "time per job / polynomial code", columns, rows
