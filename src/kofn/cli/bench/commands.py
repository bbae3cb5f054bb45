"""The benchmarks by name: what each measures and takes. Each is loaded when it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from ...errors import BadInput
from .. import places
from ..places import HOLDS, data_option
from ..running import Json, command, show
from . import frame

bench = typer.Typer(help="Measure, against limits in the same run.", no_args_is_help=True)
Quick = Annotated[bool, Option(help="Small: seconds, not minutes.")]
Keep = Annotated[Path | None, Option("--out", help="Keep the result in this folder, as JSON.")]


@dataclass(frozen=True)
class Setting:
    """An option of a benchmark: its value, the one with --quick, and the least that is allowed."""

    about: str
    full: Any
    quick: Any
    least: float | None = None
    kind: Any = int

    @property
    def option(self) -> Any:
        """Its type, as Typer takes it; left out, it is None, and --quick decides."""
        both = {str(self.full), str(self.quick)} - {"[]", "None"}
        default = f" ({self.full}; --quick: {self.quick})" if len(both) > 1 else ""
        annotated: Any = Annotated
        what: Any = {"help": f"{self.about}{default}", "show_default": False}
        if self.kind == list[str]:
            return annotated[self.kind, Argument(**what)]
        return annotated[self.kind | None, Option(min=self.least, **what)]


@dataclass(frozen=True)
class Bench:
    """One benchmark. `data`: True if it may be given data, "needed" if it must."""

    about: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    data: bool | str = False

    def values(self, given: Mapping[str, Any], quick: bool) -> dict[str, Any]:
        """What the settings are, where some are given."""
        values = {
            name: given.get(name) or (one.quick if quick else one.full)
            for name, one in self.settings.items()
        }
        return values | ({"data": given.get("data")} if self.data else {})


def _rounds(full: int, quick: int, least: int = 20) -> Setting:
    return Setting("Rounds measured of each kind.", full, quick, least)


def _times(full: int, quick: int, least: int = 3) -> Setting:
    return Setting("How often each is measured.", full, quick, least)


def _rows(full: int, quick: int) -> Setting:
    return Setting("Rows of the matrix.", full, quick, 100)


def _workers(full: int, quick: int | None = None) -> Setting:
    return Setting("Workers.", full, full if quick is None else quick, 1)


_NAMES = Setting("Which (default: all that are installed).", [], [], kind=list[str])

BENCHES: dict[str, Bench] = {
    "overhead": Bench(
        "Time per tiny coded round against a loop over bare pipes.", {"rounds": _rounds(2000, 500)}
    ),
    "calm": Bench(
        "What kofn's own choice costs over no code, where nobody is slow or lost.",
        {"rows": _rows(12_000, 12_000), "rounds": _rounds(600, 60)},
    ),
    "encode": Bench(
        "Encoding against a copy and a gemm of the same bytes; of a file, against the disk.",
        {
            "megabytes": Setting("Of the matrix.", 640, 64, 8),
            "times": _times(5, 3, 1),
        },
    ),
    "products": Bench(
        "X w, X.T z and X B against NumPy on all cores, for several codes.",
        {"rows": _rows(40_000, 8000), "times": _times(10, 3)},
    ),
    "sparse": Bench(
        "Products of Covertype's size, one-hot, before and after two plain shares are lost.",
        {
            "times": _times(5, 1, 1),
            "portion": Setting("One of so many rows.", 1, 16, 1),
        },
        data=True,
    ),
    "memory": Bench(
        "The most memory that the master and a worker take, beside what they must hold.",
        {"megabytes": Setting("Of the matrix.", 640, 640, 8)},
    ),
    "decode": Bench(
        "Decoding a wide product against one gemm, and rateless sums step by step.",
        {"times": _times(100, 10), "rows": _rows(40_000, 40_000)},
    ),
    "broadcast": Bench(
        "A large operand to many workers against a tiny one.",
        {"rounds": _rounds(400, 60), "workers": _workers(20)},
    ),
    "engines": Bench(
        "Each engine: kofn's round against the engine's own fastest primitive.",
        {"engine": _NAMES, "rounds": _rounds(500, 60)},
    ),
    "scale": Bench(
        "A round with up to 10,000 workers: the real master, a simulated network.",
        {"most": Setting("Workers, at most.", 10_000, 1000, 10)},
    ),
    "learn": Bench(
        "Our estimators against scikit-learn's, no faults: seconds of a fit, and how right.",
        {
            "rows": _rows(100_000, 10_000),
            "columns": Setting("Columns of the data.", 200, 50, 2),
            "workers": _workers(2),
            "times": _times(3, 3, 1),
        },
    ),
    "crossover": Bench(
        "From how many rows on our estimators take no longer than scikit-learn's.",
        {
            "rows": _rows(200_000, 5000),
            "columns": Setting("Columns of the data.", 50, 20, 2),
            "workers": _workers(2),
            "times": _times(3, 1, 1),
        },
    ),
    "peers": Bench(
        "Dask, Ray, joblib, Spark, torch, MPI and scikit-learn: same work, same faults.",
        {
            "only": Setting(
                "Only cells with these words, and without those after a minus: products+-Spark.",
                "all",
                "products+-Spark",
                kind=str,
            ),
            "seconds": Setting("Of each cell, about.", 3.0, 0.4, 0.1, float),
        },
        data=True,
    ),
    "latency": Bench(
        "X @ w at 1 kHz with a noisy neighbour: p50, p99, p99.9, against hedged requests.",
        {
            "seconds": Setting("Of each kind.", 20.0, 3.0, 1, float),
            "rate": Setting("Products a second.", 1000, 1000, 10),
        },
    ),
    "reaction": Bench(
        "How soon a cancelled worker is free, and how soon a kill -9 is noticed.",
        {"times": _times(30, 5)},
    ),
    "sums": Bench(
        "A coded sum of gradients against plain mpi4py loops, and the price of a wide model.",
        {"rounds": _rounds(500, 100)},
        data=True,
    ),
    "fleet": Bench(
        "A spot market with and without notices, and what others do about losses.",
        {"seconds": Setting("How long the market takes, each time.", 240.0, 5.0, 5, float)},
        data=True,
    ),
    "simulate": Bench(
        "Simulated round times against the wall clock, with the same delays.",
        {
            "rounds": _rounds(30, 5, 5),
            "codes": Setting("Only codes whose name has this in it.", None, "product", kind=str),
            "engine": Setting("Where the six workers are.", "local", "local", kind=str),
            "address": Setting("Of a cluster that runs already.", None, None, kind=str),
        },
    ),
    "rivals": Bench(
        "Gradient codes, backup tasks and others on recorded times, each at its best.",
        {"few": Setting("Two of the recordings.", False, True, kind=bool)},
        data="needed",
    ),
    "verify": Bench(
        "What checking every reply costs: by probes and by parity, against products without.",
        {"rounds": _rounds(30, 5, 2), "rows": _rows(20_000, 4000)},
    ),
    "checkpoint": Bench(
        "How much of a fit goes into its checkpoints, at the default interval.",
        {
            "rows": _rows(20_000, 5000),
            "columns": Setting("Columns of the data.", 200, 50, 2),
            "workers": _workers(4),
            "seconds": Setting("How long each is fitted.", 20.0, 3.0, 1, float),
        },
    ),
    "page": Bench(
        "What a page costs, how soon it answers, and whether its figure without coding is right.",
        {
            "workers": Setting("Simulated workers.", 1000, 200, 20),
            "blocks": Setting("Stretches with a page, and without.", 5, 1, 1),
            "rounds": Setting("Products of each comparison.", 30, 6, 6),
        },
    ),
}


def measure(name: str, given: Mapping[str, Any], quick: bool, quiet: bool = True) -> dict[str, Any]:
    """Run a benchmark in this process; return what is printed and kept."""
    module = import_module(f".{name}", __package__)
    values = BENCHES[name].values(given, quick)
    if BENCHES[name].data == "needed" and values["data"] is None:
        raise BadInput(f"kofn bench {name} needs --data: a directory that holds {HOLDS[name]}.")
    more = {"quiet": quiet} if "quiet" in signature(module.run).parameters else {}
    return frame.framed(name, values, module.run, **more)


def print_result(console: Console, result: dict[str, Any]) -> None:
    """Print the figures for a person, and the notes of the benchmark."""
    module = import_module(f".{result['bench']}", __package__)
    if getattr(module, "FIGURES", True):
        frame.table(console, result)
    if hasattr(module, "table"):
        module.table(console, result)


def _command(name: str, one: Bench) -> Callable[..., None]:
    def call(**given: Any) -> None:
        as_json, out, quick = (given.pop(key) for key in ("as_json", "out", "quick"))
        if out is not None:
            places.directory(out)
        result = measure(name, given, quick, quiet=as_json)
        show(result, as_json, print_result)
        if out is not None:
            frame.keep(result, out)

    options: dict[str, tuple[Any, Any]]
    options = {key: (setting.option, None) for key, setting in one.settings.items()}
    options |= {"as_json": (Json, False), "quick": (Quick, False), "out": (Keep, None)}
    if one.data:
        read = data_option(name, one.data == "needed")
        options["data"] = Annotated[Path | None, read], None
    return command(call, options, one.about)


for _name, _one in BENCHES.items():
    bench.command(name=_name)(_command(_name, _one))
