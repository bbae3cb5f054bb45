"""kofn bench engines: a round of kofn against the bare primitive of each engine, interleaved."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ...cluster import connect
from ...delays import PerUnit
from ...engines.base import Engine
from ...engines.known import engines, find
from ...engines.paced import Paced
from ...errors import BadInput, KofnError
from . import bare, bare_mpi
from .bare import WORKERS, Floats, Product
from .broadcast import figures as cast_figures
from .frame import Figure
from .overhead import COLUMNS, ROWS, THRESHOLD
from .turns import Turns, broadcast, interleaved, timed

PACE = 5e-3  # seconds of a paced round
MANY = 12


def run(engine: list[str], rounds: int) -> dict[str, Any]:
    """Measure the engines named; without names all, and one that cannot run here says why."""
    for name in engine:
        if name not in bare.PRIMITIVES:
            raise BadInput(
                f"an engine is measured against its own primitive; {name!r} has none here. "
                f"Leave it out, or name any of: {', '.join(sorted(bare.PRIMITIVES))}."
            )
        find(name)
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    problems: list[str] = []
    for name in engine or [name for name in sorted(engines()) if name in bare.PRIMITIVES]:
        try:
            find(name)
            measured, details[name] = _engine(name, rounds)
            figures |= measured
        except KofnError as error:
            problems.append(f"{name}: {error}")
    return {"figures": figures, "engines": details, "problems": problems}


def _engine(name: str, rounds: int) -> tuple[dict[str, Figure], dict[str, Any]]:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(COLUMNS)
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    few = max(20, rounds // 5)
    with _opened(name, WORKERS) as engine:
        for pace, part, times in ((0.0, "tiny", rounds), (PACE, "5 ms", few)):
            with bare.PRIMITIVES[name](A, pace) as plain, _product(engine, A, pace) as coded:
                figures[f"{name}, {part}"], details[part] = _against(plain, coded, w, times)
    if name == "mpi":
        with bare.ranks("kofn.cli.bench.engines:mpi_broadcast", A, 0.0, workers=MANY) as ranked:
            cast = Turns(())
            cast.turns = ranked.ask({"rounds": few})
    else:
        with find(name)(MANY) as engine:
            cast = broadcast(engine, few)
    return figures | cast_figures(cast, MANY, f"{name}, "), details


def _opened(name: str, workers: int) -> AbstractContextManager[Engine | None]:
    """Open an engine; None for MPI, whose master is rank 0 of a program under mpiexec."""
    return nullcontext() if name == "mpi" else find(name)(workers)


def _product(engine: Engine | None, A: Floats, pace: float) -> AbstractContextManager[Product]:
    if engine is None:
        return bare.ranks("kofn.cli.bench.engines:mpi_product", A, pace)
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
            print(json.dumps(broadcast(engine, question["rounds"]).turns), flush=True)


def _against(
    plain: Product, coded: Product, w: Floats, rounds: int
) -> tuple[Figure, dict[str, Any]]:
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
    turns = interleaved(kinds, rounds)
    best = min(ways, key=turns.median)
    figure = turns.figure("kofn", best, f"bare: {best.replace('_', ' ')}")
    return figure, {name: turns.row(name) for name in kinds}
