"""Data for the linear models, and the spot market that they are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ..delays import SpotTrace, read_spot_trace
from ..delays.traces import Event
from .datasets import Dataset, Floats, find, ones


@dataclass(frozen=True, eq=False, kw_only=True)
class Prices(Dataset):
    """Houses and their prices, and a market of machines to learn on."""

    trace: SpotTrace


def load(data: Path | None) -> Prices:
    """King County's house prices, one-hot (20,000 x 3,352), and a recorded market.

    Without a directory: made-up ones of the same form, 2,000 x 120.
    """
    if data is None:
        return made_up()
    table, trace = (
        find(data, name, remedy="Leave --data out for made-up data.")
        for name in ("kc_house/kc_onehot_3352.npz", "spot_traces/aws_p3_events.csv")
    )
    with np.load(table) as arrays:
        rows = *_part(arrays, "train"), *_part(arrays, "test")
    return Prices("kc_onehot_3352", *rows, regression=True, trace=read_spot_trace(trace))


def _part(arrays: Any, name: str) -> tuple[csr_array, Floats]:
    indices, indptr = (
        arrays[f"X_{name}_{part}"].astype(np.int32) for part in ("indices", "indptr")
    )
    rows, columns = (int(side) for side in arrays[f"X_{name}_shape"])
    X = csr_array((np.ones(len(indices)), indices, indptr), shape=(rows, columns))
    return X, arrays[f"y_{name}"].astype(np.float64)


def made_up(rows: int = 2000, fields: int = 8, values: int = 15) -> Prices:
    """Rows of `fields` ones, prices linear in them but for noise; a market of twenty machines."""
    rng = np.random.default_rng(0)
    worth = 0.2 * rng.standard_normal(fields * values)

    def draw(count: int) -> tuple[csr_array, Floats]:
        columns = rng.integers(0, values, (count, fields)) + values * np.arange(fields)
        noise = 0.1 * rng.standard_normal(count)
        X = ones(columns.astype(np.int32), len(worth))
        return X, worth[columns].sum(axis=1) + 0.5 + noise

    drawn = *draw(rows), *draw(rows // 4)
    return Prices("made up", *drawn, regression=True, trace=_market(rng))


def _market(rng: np.random.Generator, minutes: int = 700) -> SpotTrace:
    """Twenty machines at first, never fewer than eleven; every few minutes some go or come."""
    alive = [f"node{i}" for i in range(20)]
    events = [Event(0.0, True, node) for node in alive]
    named = len(alive)
    for minute in range(3, minutes, 4):
        many = int(rng.integers(1, 4))
        if len(alive) - many >= 11 and rng.random() < 0.6:
            gone = [alive.pop(int(rng.integers(len(alive)))) for _ in range(many)]
            events += [Event(60.0 * minute, False, node) for node in gone]
        else:
            come = [f"node{named + i}" for i in range(min(many, 20 - len(alive)))]
            named += len(come)
            alive += come
            events += [Event(60.0 * minute, True, node) for node in come]
    return SpotTrace(tuple(events), "a made-up market")
