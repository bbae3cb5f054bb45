"""The codes and options of the work under chaos: named, left to kofn, and checked."""

from __future__ import annotations

import random
from typing import Any

from ..codes import LowWeightCode
from ..codes.assignment import SumCode
from ..codes.repetition import CyclicRepetition, FractionalRepetition, Uncoded
from ..sequence import DIP, IDIP, Polynomial

K = 3  # of matrices


def matrix(dice: random.Random, n: int) -> dict[str, Any]:
    """How to encode a matrix for at most n workers: half of the time as most people do."""
    plain: dict[str, Any] = {"k": K, "n": n}
    others = (
        {"n": n},  # k is left to kofn
        {**plain, "loads": "still"},
        {**plain, "verify": "probe"},
        {**plain, "verify": "parity", "margin": 1},
        {"code": LowWeightCode(n, K)},
    )
    return plain if dice.random() < 0.5 else dice.choice(others)


def sums(workers: int) -> list[SumCode]:
    """Codes of sums with a decoder of their own."""
    even: list[SumCode] = [FractionalRepetition(2)] if workers % 2 == 0 else []
    return [CyclicRepetition(2), Uncoded(), *even]


def sequence(dice: random.Random, workers: int) -> Any:
    """A code for products with a deadline; None leaves it to kofn."""
    choices: list[Any] = [DIP(x=2, y=3, delay=3, lam=1), Polynomial(x=2, y=2), None]
    # Of IDIP: so many mini-tasks in four rounds that three of the workers may be missing.
    if (mini_tasks := 4 * workers - 12) >= 12:
        choices.append(IDIP(x=3, y=4, delay=3, N=mini_tasks, W=4))
    return dice.choice(choices)
