"""kofn plan: which code, how much redundancy, how many machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import BadInput
from ..planning import plan
from ..report import ready
from ..simulation import Work
from . import places
from .output import print_sentences, print_table, print_text, progress

SHOWN, ALIKE = 8, 3  # options that a person is shown, and of them with the same code
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def size_of(text: str | None) -> float | None:
    """Bytes, given as 4000000000, 4G or 4 GB."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    try:
        assert match is not None
        return float(match[1]) * UNITS[match[2].upper()]
    except (AssertionError, ValueError):
        raise BadInput(f"--memory-per-worker is bytes, as 4e9 or 4GB; got {text!r}.") from None


def run(
    work: Work,
    workers: int,
    timings: str,
    market: str | None,
    memory: str | None,
    costs: Path | None,
    asked: dict[str, Any],
    plot: Path | None,
    quiet: bool,
) -> dict[str, Any]:
    """Plan, and draw if asked to."""
    if plot is not None:
        ready(plot, "--plot")
    with progress("plan", None, quiet, "code") as update:
        best = plan(
            work,
            workers,
            timings,
            market,
            memory_per_worker=size_of(memory),
            costs=costs,
            on_round=lambda total, code: update(advance=1, total=total, code=code),
            **asked,
        )
    return best.to_dict() | ({} if plot is None else places.tried(lambda: best.plot(plot)))


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the plan for a person."""
    best, without = result["best"], next(filter(_plain, result["options"]), result["best"])
    shown = _various(result["options"])
    able = [one for one in result["options"] if one["runs"]] or [best]
    safest = min(able, key=lambda one: one["risk"] or 0.0)
    shown += [one for one in (best, safest, without) if one not in shown]
    columns = {"": "", "code": "", "machines": "d", "mean s": ".4g", "total s": ".4g"}
    paid, market = best["price"] is not None, best["risk"] is not None
    columns |= {"USD": ".4g"} if paid else {"machine s": ".4g"}
    columns |= {"memory": "s"} | ({"risk": ".0%"} if market else {})
    columns |= {"of": ""} if best["machine"] else {}
    rows = []
    for one in shown:
        mark = "*" if one == best else "" if one["runs"] else "†"
        cells = [mark, one["code"], one["workers"], one["mean"], one["seconds"]]
        cells += [one["price" if paid else "machine_seconds"], _memory(one)]
        cells += [one["risk"]] if market else []
        cells += [one["machine"]] if best["machine"] else []
        rows.append(["–" if cell is None else cell for cell in cells])
    kind, rounds = result["work"]["kind"], result["rounds"]
    if not result["met"]:
        print_sentences(console, f"Not met: {result['why'][0]}")
    title = f"{rounds} rounds of a {kind}; {result['settings']} options tried"
    print_table(console, title, columns, rows, box=None, padding=(0, 1), pad_edge=False)
    legend = f"*: picked, for {result['goal']}. " + (
        "" if all(o["runs"] for o in shown) else "†: kofn cannot run it. "
    )
    legend += "Mean: of a round. Memory: what a worker keeps, and which part of the data. "
    legend += f"{'USD' if paid else 'Machine s'}: of all machines, to the end. "
    print_text(console, legend + ("Risk: of a lack of machines at some time." if market else ""))
    for line in result["why"][0 if result["met"] else 1 :]:
        print_sentences(console, line)
    # Lines that a terminal's width has cut could not be pasted.
    console.print("\n" + result["python"], highlight=False, markup=False, soft_wrap=True)


def _various(options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best few, not all with the same code."""
    shown: list[dict[str, Any]] = []
    for one in options:
        if sum(_name(one) == _name(other) for other in shown) < ALIKE and len(shown) < SHOWN:
            shown.append(one)
    return shown


def _memory(option: dict[str, Any]) -> str | None:
    if option["memory"] is None:
        return None
    return f"{_bytes(option['memory_bytes'])}, {100 * option['memory']:.3g} %"


def _bytes(size: float) -> str:
    unit = next((name for name in "TGMK" if size >= UNITS[name]), "")
    return f"{size / UNITS[unit]:.3g} {unit.replace('K', 'k')}B"


def _name(option: dict[str, Any]) -> str:
    return str(option["code"]).partition("(")[0]


def _plain(option: dict[str, Any]) -> bool:
    return bool(_name(option) == "uncoded" and option["exact_share"] == 1)
