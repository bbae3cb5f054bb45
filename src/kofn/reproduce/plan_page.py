"""Pictures, sentences and tables of `kofn reproduce plan`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .colours import BLUE, GREEN, GREY, INK, ORANGE
from .figures import Figure, bars, dress, legend, panels
from .page import Printed, Results, fill

TITLE = "What kofn chooses by itself, against fixed choices"


def traces(results: Results) -> Figure:
    some = {n: t for n, t in results["traces"].items() if len({*t["fixed"].values()}) > 1}
    figure, axes = panels(10, 1.2 + 0.42 * len(some))
    for y, one in enumerate(some.values()):
        over = [seconds / one["best_fixed"] for seconds in one["fixed"].values()]
        axes.plot(over, [y] * len(over), "o", color=GREY, ms=5, label="" if y else "fixed choices")
        plain, auto = one["fixed"]["uncoded"] / one["best_fixed"], one["auto"] / one["best_fixed"]
        axes.plot(plain, y, "s", color=ORANGE, ms=6, label="" if y else "without a code")
        axes.plot(auto, y, "D", color=BLUE, ms=7, label="" if y else "kofn by itself")
    axes.axvline(1.0, color=INK, lw=0.8)
    axes.set_yticks(range(len(some)), [short(name) for name in some])
    axes.set_xscale("log")
    axes.set_xticks([1, 1.5, 2, 3, 5, 10], ["1", "1.5", "2", "3", "5", "10"])
    axes.minorticks_off()
    axes.invert_yaxis()
    dress(axes, "seconds of all rounds / those of the best fixed choice", "", "Every trace", "x")
    legend(axes, loc="lower right", fontsize=9)
    return figure


def lambdas(results: Results) -> Figure:
    names = list(results["lambda"])
    figure, axes = panels(11, 4.4)
    each = results["settings"]["rounds"]
    series = {
        "kofn by itself": ([results["lambda"][n]["auto"] / each for n in names], BLUE),
        "gradient coding": ([results["lambda"][n]["gc"]["seconds"] / each for n in names], ORANGE),
        "M-SGC": ([results["lambda"][n]["m_sgc"]["seconds"] / each for n in names], GREEN),
    }
    bars(axes, [short(name).replace(", ", "\n") for name in names], series)
    axes.tick_params(axis="x", labelsize=7, rotation=60)
    dress(axes, "", "seconds of a round", "AWS Lambda, by seconds of a full batch", "y")
    legend(axes, fontsize=9)
    return figure


def short(name: str) -> str:
    """A trace's name without what all of them have."""
    *_, last = name.rsplit("/", 2)[-2:] if "/" in name else (name,)
    return last.replace("_steps", "").replace("_batch", " ")


SENTENCES = {
    "traces": """
        On {count} traces kofn takes {worst:.2f} times as long as the best fixed choice in hindsight
        at worst ({where}), {mean:.3f} times in the mean. Of the fixed choices the best over all
        gradients is {gradient} ({gradient_mean:.3f}), over all products {product}
        ({product_mean:.3f}).""",
    "lambdas": """
        On AWS Lambda kofn's rounds are shorter than those of exact gradient coding in {gc} of {all}
        cases, and than those of M-SGC in {m_sgc}; with the placing of the data in {gc_placed} and
        {m_sgc_placed}. The others have their best settings in hindsight, and M-SGC's gradients
        come late.""",
}


def sentences(results: Results) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    over = {n: t["auto"] / t["best_fixed"] for n, t in results["traces"].items()}
    worst = max(over, key=over.__getitem__)
    about: dict[str, Any] = {
        "count": len(over),
        "worst": over[worst],
        "where": short(worst),
        "mean": sum(over.values()) / len(over),
    }
    for kind in ("gradient", "product"):
        fixed = results["over_all"].get(kind, {"fixed": {"none": float("nan")}})["fixed"]
        about[kind] = min(fixed, key=fixed.__getitem__)
        about[f"{kind}_mean"] = fixed[about[kind]]
    cases = results["lambda"].values()
    about["all"] = len(cases)
    for rival in ("gc", "m_sgc"):
        about[rival] = sum(c["auto"] < c[rival]["seconds"] for c in cases)
        about[f"{rival}_placed"] = sum(
            c["auto"] + c["auto_placing"] < c[rival]["seconds"] + c[rival]["placing"] for c in cases
        )
    return fill(SENTENCES, results, about)


def tables(results: Results) -> Iterator[Printed]:
    """What is printed for a person."""
    columns = {
        "trace": "",
        "auto, s": ".4g",
        "best fixed, s": ".4g",
        "which": "",
        "auto / best": ".3f",
    }
    rows = [
        (short(name), t["auto"], t["best_fixed"], t["best_fixed_name"], t["auto"] / t["best_fixed"])
        for name, t in results["traces"].items()
    ]
    yield "seconds of all rounds", columns, rows
    for kind, one in results["over_all"].items():
        order = [("auto", one["auto"]), *sorted(one["fixed"].items(), key=lambda pair: pair[1])]
        yield f"{kind}s: mean over the traces", {"choice": "", "of the best of each": ".3f"}, order
    columns = {"recording, s a batch": "", "auto": ".3f", "gc": ".3f", "m_sgc": ".3f"}
    columns["where auto is not the quickest, a plan picks"] = ""
    each = results["settings"]["rounds"]
    rows = [
        (
            short(name),
            *(s / each for s in (c["auto"], c["gc"]["seconds"], c["m_sgc"]["seconds"])),
            c.get("plan", {}).get("picks", ""),
        )
        for name, c in results["lambda"].items()
    ]
    yield "seconds of a round, without the placing of the data", columns, rows
