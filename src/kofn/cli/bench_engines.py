"""kofn bench engines: a round of kofn against the bare primitive of each engine, interleaved."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..cluster import connect
from ..delays import PerUnit
from ..engines.base import Engine
from ..engines.known import engines, find
from ..engines.paced import Paced
from ..errors import BadInput, KofnError
from . import bare, bare_mpi
from .bare import WORKERS, Floats, Product
from .bench_overhead import COLUMNS, ROWS, THRESHOLD
from .interleaved import broadcast, interleaved, ratio, timed
from .output import print_table

PACE = 5e-3  # seconds of a paced round
MANY = 12


def run(names: list[str], rounds: int) -> dict[str, Any]:
    """Measure the engines named; without names all, and one that cannot run here says why."""
    for name in names:
        if name not in bare.PRIMITIVES:
            raise BadInput(
                f"an engine is measured against its own primitive; {name!r} has none here. "
                f"Leave it out, or name any of: {', '.join(sorted(bare.PRIMITIVES))}."
            )
        find(name)
    measured: dict[str, Any] = {}
    for name in names or [name for name in sorted(engines()) if name in bare.PRIMITIVES]:
        try:
            find(name)
            measured[name] = _engine(name, rounds)
        except KofnError as error:
            measured[name] = {"problem": str(error)}
    return {"engines": measured, "rows": ROWS, "columns": COLUMNS, "workers": WORKERS}


def _engine(name: str, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    result: dict[str, Any] = {}
    few = max(20, rounds // 5)
    with _opened(name, WORKERS) as engine:
        for pace, part, times in ((0.0, "tiny", rounds), (PACE, "5_ms", few)):
            with bare.PRIMITIVES[name](A, pace) as plain, _product(engine, A, pace) as coded:
                result[part] = _against(plain, coded, w, times)
    if name == "mpi":
        with bare.ranks("kofn.cli.bench_engines:mpi_broadcast", A, 0.0, workers=MANY) as ranked:
            return {**result, "broadcast": ranked.ask({"rounds": few})}
    with find(name)(MANY) as engine:
        return {**result, "broadcast": broadcast(engine, few)}


def _opened(name: str, workers: int) -> AbstractContextManager[Engine | None]:
    """Open an engine; None for MPI, whose master is rank 0 of a program under mpiexec."""
    return nullcontext() if name == "mpi" else find(name)(workers)


def _product(engine: Engine | None, A: Floats, pace: float) -> AbstractContextManager[Product]:
    if engine is None:
        return bare.ranks("kofn.cli.bench_engines:mpi_product", A, pace)
    return nullcontext(_coded(engine, A, pace))


def _coded(engine: Engine, A: Floats, pace: float) -> Product:
    if pace:
        engine = Paced(engine, PerUnit(pace / (ROWS / WORKERS)))
    X = connect(engine).encode(A, k=THRESHOLD)
    return lambda w: X @ w


def mpi_product(folder: str, pace: float) -> None:
    """Every rank of kofn's own program under mpiexec: products."""
    A = np.load(Path(folder) / "A.npy")
    with find("mpi")(WORKERS) as engine:
        product = _coded(engine, A, pace)
        bare.answer(lambda way, w: product(w), A.shape[1])


def mpi_broadcast(folder: str, pace: float) -> None:
    """Every rank of kofn's own program under mpiexec: operands for many workers."""
    with find("mpi")() as engine:
        for question in bare.questions():
            print(json.dumps(broadcast(engine, question["rounds"])), flush=True)


def _against(plain: Product, coded: Product, w: Floats, rounds: int) -> dict[str, Any]:
    ways: dict[str, Product] = {getattr(plain, "__name__", ""): plain}
    if isinstance(plain, bare.Remote):
        ways = {way: plain.by(way) for way in bare_mpi.WAYS}
    for way in ways.values():
        assert np.allclose(way(w), coded(w))
    # A primitive in a program of its own times itself: a question to it is not part of a round.
    kinds = {
        name: getattr(product, "block", None) or timed(product, w)
        for name, product in {**ways, "kofn": coded}.items()
    }
    times = interleaved(kinds, rounds)
    best = min(ways, key=lambda way: float(times[way]["median_us"]))
    result = {"bare": {**times[best], "way": best}, "kofn": times["kofn"]}
    more = {"ways": {way: times[way] for way in ways}} if len(ways) > 1 else {}
    return result | {"ratio": ratio(times, "kofn", best)} | more


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    cast = f"to {MANY} workers: 8 B, 800 KB"
    columns = dict.fromkeys(("engine", "tiny rounds", "5 ms rounds", cast), "")
    rows: list[list[str]] = []
    for name, measured in result["engines"].items():
        if "problem" in measured:
            rows.append([name, measured["problem"]])
            continue
        rows.append([name, *_cells(measured), _cell(measured["broadcast"], "8_B", "800_KB")])
        for way in measured["tiny"].get("ways", ()):
            times = [measured[part]["ways"][way]["median_us"] for part in ("tiny", "5_ms")]
            rows.append([f"{name}, bare, {way}", *(f"{time:.0f}" for time in times)])
    print_table(console, "median µs per round: bare, kofn, ratio", columns, rows)


def _cells(result: dict[str, Any]) -> list[str]:
    return [_cell(result[part], "bare", "kofn") for part in ("tiny", "5_ms")]


def _cell(result: dict[str, Any], one: str, other: str) -> str:
    times = [f"{result[name]['median_us']:.0f}" for name in (one, other)]
    return ", ".join([*times, f"{result['ratio']:.2f}"])
