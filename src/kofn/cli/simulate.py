"""kofn simulate: codes side by side in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from ..report import ready
from ..simulation import Work, candidates, simulate
from . import places
from .output import print_sentences, print_table, print_text, progress

COLUMNS = {"code": "", "mean s": ".3g", "±": ".2g", "p99 s": ".3g", "from": ".3g"}
COLUMNS |= {"to": ".3g", "work": ".3g", "exact": ".0%", "memory": ".2g"}


def defaults(work: Work, workers: int) -> str:
    """Codes of each kind that are worth a look, if nobody names any."""
    half, most = max(1, workers // 2), max(1, (9 * workers) // 10)
    if work.kind == "product":
        fewer = f", mds(k={half})" if half < most else ""
        return f"uncoded, mds(k={most}), mds(k={most}, margin=1){fewer}"
    if work.kind == "gradient":
        copies = next((c for c in (2, 3, 5) if workers % c == 0), 1)
        return f"uncoded, fractional(c={copies}), cyclic(c=2), uncoded(covered=0.9)"
    if work.kind == "sequence":
        y = max(1, workers - 1)
        return f"uncoded(x=1, y={workers}), polynomial(x=1, y={y})"
    return "uncoded, groups, lt"


def run(
    work: Work,
    codes: str | None,
    workers: int,
    timings: str,
    market: str | None,
    rounds: int,
    costs: Path | None,
    seed: int,
    recorded: dict[str, Any],
    plot: Path | None,
    quiet: bool,
) -> dict[str, Any]:
    """Simulate, and draw if asked to."""
    if plot is not None:
        ready(plot, "--plot")
    text = defaults(work, workers) if codes is None else codes
    chosen = candidates(text, work.kind)
    with progress("simulate", len(chosen) * rounds, quiet, "code") as update:
        table = simulate(
            work,
            text,
            workers,
            timings,
            market,
            rounds=rounds,
            costs=costs,
            seed=seed,
            on_round=lambda name: update(advance=1, code=name),
            **recorded,
        )
    return table.to_dict() | ({} if plot is None else places.tried(lambda: table.plot(plot)))


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person."""
    codes = result["codes"]
    paid = any(one["usd"] is not None for one in codes.values())
    near = any(one["exact_share"] < 1 for one in codes.values() if one["rounds"])
    columns = {**COLUMNS, **({"error": ".2g"} if near else {})}
    columns |= {"USD": ".4g"} if paid else {"machine s": ".4g"}
    if len({one["rounds"] for one in codes.values()}) > 1:
        columns |= {"rounds": "d"}
    rows = []
    for name, one in codes.items():
        half = None if one["high"] is None else one["high"] - one["mean"]
        cells = [name, one["mean"], half, one["p99"], one["p99_low"], one["p99_high"], one["work"]]
        cells += [one["exact_share"], one["memory"], *([one["decoding_error"]] if near else [])]
        cells += [one["usd" if paid else "machine_seconds"], one["rounds"]]
        rows.append(["–" if cell is None else cell for cell in cells])
    known = [result["work"]["kind"], f"{result['workers']} workers, simulated", result["assumed"]]
    title = f"{', '.join(part for part in known if part)}; best: {result['best']}"
    cut = [row[: len(columns)] for row in rows]
    print_table(console, title, columns, cut, box=None, padding=(0, 1), pad_edge=False)
    text = """±: so far may the mean be off, in 95 of 100 cases; from, to: so may p99 (–: too few
        rounds to tell). Work: as a multiple of the whole work, a round. Memory: the largest
        share of a worker, as a part of the data."""
    text += f" {'USD' if paid else 'Machine s'}: of all machines, to the end."
    if near:
        text += " Error: of the decoding, squared; relative to the sum of the terms' squares."
    print_text(console, text)
    for name, one in result["codes"].items():
        if one["problem"]:
            print_sentences(console, f"{name}: {one['problem']}")
    for name, reason in result["left_out"].items():
        print_sentences(console, f"{name} is left out: {reason}")
