"""What all benchmarks share: figures with their limits, the machine, the table and the history.

A benchmark's `run(**settings)` returns a dict. "figures" has what it measured, by name; the rest
are details. `framed` adds the settings and the machine, and that is what is printed and kept.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import places
from ..output import print_table

PACKAGES = ("kofn", "numpy", "scipy", "scikit-learn", "ray", "distributed", "mpi4py", "torch")


@dataclass(frozen=True)
class Figure:
    """One number, and beside it the limit: what the same takes without kofn, in the same run.

    `of` says what the limit is. `spread`: the ratio's 10 and 90 % over the turns of the run.
    """

    value: float
    unit: str
    limit: float | None = None
    of: str = ""
    spread: tuple[float, float] | None = None
    more_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times as bad as the limit; 1 is as good."""
        pair = (self.limit, self.value) if self.more_is_better else (self.value, self.limit)
        above, below = pair
        return above / below if above is not None and below else None

    def row(self) -> dict[str, Any]:
        """As JSON has it; what is not a number is null."""
        both = {"value": self.value, "unit": self.unit, "limit": self.limit, "of": self.of}
        row = {**both, "ratio": self.ratio, "spread": self.spread and list(self.spread)}
        return {key: None if is_nan(value) else value for key, value in row.items()}


def is_nan(value: object) -> bool:
    """Whether it is a float that is not a finite number, which JSON has none of."""
    return isinstance(value, float) and not math.isfinite(value)


def framed(
    name: str, settings: Mapping[str, Any], run: Callable[..., dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """Run a benchmark; return its result as it is printed and kept."""
    began, load = time.perf_counter(), os.getloadavg()[0]
    result = run(**settings, **more)
    figures = {key: one.row() for key, one in result.pop("figures").items()}
    return {
        "bench": name,
        "settings": {k: v.name if isinstance(v, Path) else v for k, v in settings.items()},
        "figures": figures,
        **result,
        "seconds": time.perf_counter() - began,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"load_before": load},
    }


def machine() -> dict[str, Any]:
    """What figures depend on: cores, processor, system and versions. No name of anything."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def keep(result: dict[str, Any], folder: Path) -> Path:
    """Write a result to the history, a file for each run."""
    places.directory(folder)
    stamp = "".join(c for c in result["when"] if c.isdigit())[:14]
    path = folder / f"{result['bench']}-{stamp}.json"
    places.save(path, (json.dumps(result, indent=2) + "\n").encode())
    return path


def number(value: float | None, unit: str = "") -> str:
    """A number for people: three digits, or as many as it has before the point."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A figure as text: measured, limit, what the limit is, ratio, spread of the ratio."""
    spread, unit = row["spread"], row["unit"]
    return (
        number(row["value"], unit) or "none",
        number(row["limit"], unit),
        row["of"],
        f"{row['ratio']:.2f}" if row["ratio"] is not None else "",
        f"{spread[0]:.2f} to {spread[1]:.2f}" if spread else "",
    )


COLUMNS = ("measured", "limit", "limit is", "ratio", "10 to 90 %")


def table(console: Console, result: Mapping[str, Any], skip: Iterable[str] = ()) -> None:
    """Print the figures for a person, each with its limit beside it."""
    columns = {"": ""} | {name: "" if name == "limit is" else ">" for name in COLUMNS}
    rows = [(name, *cells(row)) for name, row in result["figures"].items() if name not in skip]
    at = result["machine"]
    load = f"load {at['load_before']:.1f} before"
    title = f"kofn bench {result['bench']}: {at['cores']} cores, {load}, {result['seconds']:.0f} s"
    print_table(console, title, columns, rows)
    for problem in result.get("problems", ()):
        print(problem, file=sys.stderr)
