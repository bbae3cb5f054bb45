"""kofn bench broadcast: what a large operand costs beside a tiny one, to many workers."""

from __future__ import annotations

from typing import Any

from ...engines.local import LocalEngine
from .frame import Figure
from .turns import OPERANDS, Turns, broadcast


def run(rounds: int, workers: int) -> dict[str, Any]:
    """Operands of both sizes in turn, each read in full by every worker."""
    with LocalEngine(workers) as engine:
        return {"figures": figures(broadcast(engine, rounds), workers)}


def figures(turns: Turns, workers: int, where: str = "") -> dict[str, Figure]:
    """The large one, and the small one as its limit."""
    small, large = OPERANDS
    name = f"{where}operand of {large} to {workers} workers"
    return {name: turns.figure(large, small, f"an operand of {small}")}
