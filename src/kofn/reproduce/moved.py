"""Rows that change hands when machines leave one by one: plain cyclic windows against turned ones.

Nothing is measured here: windows are counted. Rows moved are those that a surviving machine reads
now and did not before, beyond what its load must grow by because there are fewer machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from math import lcm
from typing import Any

import numpy as np

from ..rounds import Layout, rows_moved, shifted
from ..rounds.still import balance, rows_taken_up, still

ROWS = lcm(*range(1, 21))  # of a share: every cut falls on a row, so the counts are exact

Table = dict[str, dict[str, float]]


def transitions(machines: int, threshold: int, orders: Iterable[Sequence[int]]) -> Table:
    """Mean rows moved in each step from `machines` down, as fractions of N = threshold x ROWS.

    `orders`: in which machines leave; each is played from the full set on.
    """
    steps: dict[str, list[tuple[float, float]]] = {}
    for order in orders:
        shares = list(range(machines))
        plain = ours = Layout(threshold).lay(shares, ROWS)
        for lost in order:
            step = f"{len(shares)}-{len(shares) - 1}"
            shares.remove(lost)
            plain_next = Layout(threshold).lay(shares, ROWS)
            ours_next = shifted(ours, Layout(threshold), shares)
            moved = rows_moved(plain, plain_next), rows_moved(ours, ours_next)
            steps.setdefault(step, []).append(moved)
            plain, ours = plain_next, ours_next
    means = {step: np.mean(moved, axis=0) / (threshold * ROWS) for step, moved in steps.items()}
    return {step: {"cyclic": float(m[0]), "ours": float(m[1])} for step, m in means.items()}


def staying(machines: int, threshold: int, orders: Iterable[Sequence[int]]) -> dict[str, Any]:
    """The same with windows that move nothing (Dau et al., 2023): rows moved, runs and balance.

    Machines leave in each order and then come back: `out` and `back`, by step. `runs`: mean over
    the orders of the most runs of a window. `load`: the worst largest load over the mean load.
    """
    steps: dict[str, list[tuple[float, float, float]]] = {}
    for order in orders:
        shares = list(range(machines))
        windows = Layout(threshold).lay(shares, ROWS)
        for share in [*order, *order]:
            before = len(shares)
            shares = sorted({*shares} ^ {share})
            after = still(windows, Layout(threshold), shares, ROWS)
            assert after is not None
            moved = rows_taken_up(windows, after) / (threshold * ROWS)
            seen = (moved, float(max(map(len, after.runs), default=0)), balance(after))
            steps.setdefault(f"{before}-{len(shares)}", []).append(seen)
            windows = after
    return {
        step: {
            "moved": float(max(row[0] for row in seen)),
            "runs": float(np.mean([row[1] for row in seen])),
            "load": float(max(row[2] for row in seen)),
        }
        for step, seen in steps.items()
    }


def tables(sequences: int, seed: int = 0) -> dict[str, Any]:
    """Both tables of the report: 6 to 3 at threshold 3, 20 to 10 at threshold 10."""
    rng = np.random.default_rng(seed)
    # Each random order is played from every machine: the first loss is a mean over all twenty.
    drawn = [rng.permutation(20)[:10] for _ in range(-(-sequences // 20))]
    orders = [(order + turn) % 20 for order in drawn for turn in range(20)]
    small = transitions(6, 3, permutations(range(6), 3))
    large = transitions(20, 10, [order.tolist() for order in orders])
    some = [order.tolist() for order in orders[: max(2, sequences // 10)]]
    return {
        "windows_that_stay": {
            "6-3": staying(6, 3, permutations(range(6), 3)),
            "20-10": staying(20, 10, some),
            "orders": {"6-3": 120, "20-10": len(some)},
        },
        "rows_moved": small | large,
        "rows_moved_total": {"6-3": _total(small), "20-10": _total(large)},
        "rows_moved_means": {
            "measure": "rows taken up by survivors beyond what their load must grow by, of N; "
            "with the rows that they put down (the transition waste) it is twice as much",
            "6-3": "mean over all 120 orders in which three of six machines leave",
            "20-10": f"mean over {len(orders)} orders: random ones (seed {seed}), each turned so "
            "that every machine is the first to leave equally often",
        },
    }


def _total(table: Table) -> dict[str, float]:
    plain, ours = (sum(row[kind] for row in table.values()) for kind in ("cyclic", "ours"))
    return {"cyclic": plain, "ours": ours, "ratio": ours / plain}
