"""kofn bench all, check and figures: commands about several benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Exit, Option

from ...errors import BadInput
from ...files import check_file
from .. import places
from ..output import print_table
from . import history
from .commands import BENCHES, Keep, Quick
from .commands import bench as bench
from .frame import keep

CHECKED = ("overhead", "encode", "decode", "broadcast", "sums", "learn", "verify")
TRIES = 3
LIMIT = 3600.0  # seconds that one may take
Data = Annotated[
    Path | None, Option(envvar="KOFN_DATA", help="Directory of data sets, for those that read any.")
]


def apart(name: str, quick: bool, data: Path | None) -> dict[str, Any] | str:
    """Run one in a process of its own; return its result, or what went wrong in words."""
    program = "from kofn.cli import main; main()"
    command = [sys.executable, "-c", program, "bench", name, "--json"]
    command += ["--quick"] if quick else []
    command += ["--data", str(data)] if data is not None and BENCHES[name].data else []
    both: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        done = subprocess.run(command, timeout=LIMIT, check=False, **both)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT:.0f} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@bench.command(name="all")
def everything(quick: Quick = False, data: Data = None, out: Keep = None) -> None:
    """All of them, one after the other, each in a process of its own."""
    console, began, failed = Console(), time.perf_counter(), 0
    if out is not None:
        places.directory(out)
    for name, one in BENCHES.items():
        if one.data == "needed" and data is None:
            console.print(f"{name}: left out, it needs --data")
            continue
        result = apart(name, quick, data)
        if isinstance(result, str):
            failed += 1
            console.print(f"{name}: {result}", highlight=False, markup=False)
            continue
        worst = max((row["ratio"] or 0.0 for row in result["figures"].values()), default=0.0)
        count = len(result["figures"])
        text = (
            f"{name}: {count} figures, the largest ratio is {worst:.2f}, {result['seconds']:.0f} s"
        )
        console.print(text, highlight=False)
        if out is not None:
            keep(result, out)
    console.print(f"{time.perf_counter() - began:.0f} s in all", highlight=False)
    if failed:
        raise Exit(1)


@bench.command()
def check(
    recorded: Annotated[Path, Argument(help="The ratios to be kept, as --record writes them.")],
    record: Annotated[bool, Option("--record", help="Measure, and write them.")] = False,
    only: Annotated[list[str] | None, Option(help="Which benchmarks; repeatable.")] = None,
) -> None:
    """Fail if a ratio is more than 20 % worse than the recorded one in three tries."""
    names = tuple(only or CHECKED)
    if record:
        results = [result for name in names if isinstance(result := apart(name, True, None), dict)]
        _write(recorded, check=history.ratios(results))
        return
    if not recorded.is_file():
        raise BadInput(
            f"{recorded} is not there; `kofn bench check {recorded} --record` writes it."
        )
    before: dict[str, dict[str, float]] = json.loads(recorded.read_text())["check"]
    rows: list[tuple[Any, ...]] = []
    for name in names:
        bad, tries = _tried(name, before.get(name, {}))
        rows += [(name, one, *bad[one]) for one in bad]
        print(f"{name}: {f'{len(bad)} worse' if bad else 'as recorded'}, {tries} tries")
    if rows:
        columns = {"benchmark": "", "figure": "", "recorded": ".2f", "now, at best": ".2f"}
        print_table(Console(), "ratios that are more than 20 % worse", columns, rows)
        raise Exit(1)


@bench.command()
def record(
    folder: Annotated[Path, Argument(help="What `kofn bench NAME --out` wrote to.")],
    recorded: Annotated[Path, Argument(help="The file that the figures of the pages come from.")],
) -> None:
    """Record the last result of each benchmark in a folder, for the pages of the docs."""
    runs = history.read(folder)
    before = json.loads(recorded.read_text())["results"] if recorded.is_file() else {}
    newest = {name: history.merged(results) for name, results in runs.items()}
    kept = {
        name: {key: result[key] for key in ("figures", "cells", "machine", "when") if key in result}
        for name, result in newest.items()
    }
    _write(recorded, results=before | kept)


def _write(recorded: Path, **part: Any) -> None:
    """Write one part of the recorded file, and keep the other."""
    before = json.loads(recorded.read_text()) if recorded.is_file() else {}
    both = {"check": {}, "results": {}} | before | part
    places.save(recorded, (json.dumps(both, indent=2) + "\n").encode())
    print(f"wrote {recorded}")


def _tried(name: str, before: dict[str, float]) -> tuple[dict[str, tuple[float, float]], int]:
    """Figures that were worse in every try, at their best; a try with none is the last."""
    bad: dict[str, tuple[float, float]] = {}
    for attempt in range(1, TRIES + 1):
        result = apart(name, True, None)
        if isinstance(result, str):
            raise BadInput(f"kofn bench {name} cannot be measured here: {result}")
        now = history.worse(before, result["figures"])
        common = now if attempt == 1 else {one: now[one] for one in bad if one in now}
        bad = {
            one: min(pair, bad.get(one, pair), key=lambda p: p[1]) for one, pair in common.items()
        }
        if not bad:
            return bad, attempt
    return bad, TRIES


@bench.command()
def figures(
    folder: Annotated[Path, Argument(help="What `kofn bench NAME --out` wrote to.")],
    out: Annotated[
        Path, Option(help=".html: a page; .md: tables; .png or .svg: a picture of the peers.")
    ] = Path("figures.html"),
) -> None:
    """Write the figures that are kept: a page that any browser opens, tables, or a picture."""
    check_file(out, "--out")
    runs = history.read(folder)
    if out.suffix in (".png", ".svg", ".pdf"):
        history.plot(runs, out)
    else:
        text = history.markdown(runs) if out.suffix == ".md" else history.page(runs)
        places.save(out, text.encode())
    print(f"wrote {out}")
