"""What it costs the master to decode a rateless sum from scratch, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from ..codes.inactivation import InactivationDecoder
from ..codes.linear import Decoder, Floats, Row
from ..codes.peeling import PeelingDecoder, SparseDecoder
from ..codes.raptor import Raptor
from ..codes.rateless import LT, LTAssignment, TableElimination
from ..codes.soliton import Table

STEPS = ("note", "solve", "weights", "combine")
# As published: uniform neighbours, peeling. Ours: from a shuffled deck, inactivation.
PEELING = LT(neighbours="uniform", decoder="peeling")
INACTIVATION = LT(neighbours="deck", decoder="inactivation")
RECIPES = {"peeling": PEELING, "inactivation": INACTIVATION}
PRECODED: dict[str, LT | Raptor] = {
    "LT, peeling": PEELING,
    "LT, inactivation": INACTIVATION,
    "Raptor": Raptor(),
    "LT, systematic": replace(INACTIVATION, systematic=True),
    "Raptor, systematic": Raptor(systematic=True),
}
SIZES = (1000, 4000, 16_000)  # m, to see how the work grows
CASES = (("lt1", 1000, 1), ("lt2", 1000, 2), ("lt1_10000", 10_000, 1))  # name, m, r


@dataclass(frozen=True)
class Case:
    """One code to be decoded: LT-r over m terms."""

    recipe: LT
    m: int

    def table(self, seed: int) -> Table:
        """Enough symbols for any run, in the order of dealing."""
        groups = -(-self.m // self.recipe.r)
        code = replace(self.recipe, symbols=3 * groups, seed=seed).assign(self.m, 1)
        assert isinstance(code, LTAssignment)
        return code.table

    def decoder(self, table: Table) -> SparseDecoder:
        """A fresh one."""
        peels = self.recipe.decoder == "peeling"
        return PeelingDecoder(table) if peels else InactivationDecoder(table)


def symbols_needed(case: Case, trials: int, seed: int) -> list[int]:
    """Return how many symbols determine the sum, in the order of dealing, for so many codes."""
    counts = []
    for trial in range(trials):
        table = case.table(seed + trial)
        decoder = case.decoder(table)
        counts.append(next(key for key in range(len(table)) if decoder.offer(key)) + 1)
    return counts


def decode_times(case: Case, times: int) -> dict[str, Any]:
    """Milliseconds of one decode and of its four steps, medians over `times` codes.

    - note: the rows that arrive before there can be enough.
    - solve: all later arrivals, until the sum is determined.
    - weights: the weights λ of the symbols.
    - combine: the symbols' values, one number each, to the sum.

    The rows of the symbols are known beforehand: the master made the code. `cpu` is the CPU time of
    this process, all else is wall time. `default`: whether LT decodes this way by default.
    """
    rows, cpu, errors, needed = [], [], [], []
    rng = np.random.default_rng(0)
    for trial in range(times):
        table = case.table(trial)
        table.rows  # noqa: B018 - as lists, which the code keeps too
        terms = rng.random(table.k)
        sums = np.add.reduceat(terms[table.where], table.start[:-1])
        values = dict(enumerate(sums))
        decoder = case.decoder(table)
        start, spent = time.perf_counter(), time.process_time()
        for key in range(table.k - 1):
            decoder.offer(key)
        noted = time.perf_counter()
        last = next(key for key in range(table.k - 1, len(table)) if decoder.offer(key))
        solved = time.perf_counter()
        weights = decoder.weights()
        weighed = time.perf_counter()
        total = weights.combine(values)
        end = time.perf_counter()
        cpu.append(1e3 * (time.process_time() - spent))
        rows.append(1e3 * np.diff([start, noted, solved, weighed, end]))
        errors.append(abs(float(total) - terms.sum()) / terms.sum())
        needed.append(last + 1)
    whole = [row.sum() for row in rows]
    recipe, usual = case.recipe, LT()
    return {
        "neighbours": recipe.neighbours,
        "default": (recipe.decoder, recipe.neighbours) == (usual.decoder, usual.neighbours),
        "median": float(np.median(whole)),
        "best": float(np.min(whole)),
        "cpu_median": float(np.median(cpu)),
        "cpu_best": float(np.min(cpu)),
        "steps": {name: float(np.median([row[i] for row in rows])) for i, name in enumerate(STEPS)},
        "symbols": float(np.median(needed)),
        "worst_relative_error": float(max(errors)),
        "decodes": times,
    }


def bench(times: int, on_step: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """LT-1 and LT-2 at m = 1000 and LT-1 at 10,000, by both decoders."""
    details: dict[str, Any] = {name: {} for name, _, _ in CASES}
    for name, m, r in CASES:
        for kind, recipe in RECIPES.items():
            on_step(f"decode {name} by {kind}")
            case = Case(replace(recipe, r=r), m)
            decode_times(case, 1)  # warm
            many = times if m <= 1000 else max(3, times // 8)
            details[name][kind] = decode_times(case, many)
    return details


def precodes(times: int, needed: int, on_step: Callable[[str], None] = lambda what: None) -> Any:
    """LT and Raptor at m = 1000, plain and systematic: symbols, terms and decode times.

    `symbols_99`: enough in 99 % of codes. Of a systematic code the first symbols are the terms; it
    is asked for symbols in random order out of 2m, so that a part of the terms is missing.
    """
    m, rows = CASES[0][1], []
    for name, recipe in PRECODED.items():
        on_step(f"symbols and decoding, {name}")
        counts, wall, cpu, errors, terms_read, etas = [], [], [], [], [], []
        for trial in range(needed):
            code = replace(recipe, seed=trial, symbols=2 * m).assign(m, 1)
            rng, symbols, decoder = np.random.default_rng(trial), code.symbols(0), code.decoder()
            order = rng.permutation(2 * m) if recipe.systematic else np.arange(2 * m)
            spent, start = time.process_time(), time.perf_counter()
            keys = enumerate(order.tolist(), 1)
            used = next(count for count, key in keys if decoder.offer(key, ()))
            weights = decoder.weights()
            took, own = time.perf_counter() - start, time.process_time() - spent
            counts.append(used)
            if trial >= times:
                continue
            wall.append(1e3 * took)
            cpu.append(1e3 * own)
            etas.append(weights.eta)
            terms = rng.random(m)
            values = {key: _value(symbols[key], terms) for key in weights.keys}
            errors.append(abs(float(weights.combine(values)) - terms.sum()) / terms.sum())
            terms_read.append(np.mean([len(symbols[key].parts) for key in order[:used].tolist()]))
        rows.append(
            {
                "code": name,
                "symbols_median": float(np.median(counts)),
                "symbols_99": int(np.ceil(np.quantile(counts, 0.99))),
                "symbols_most": int(max(counts)),
                "terms_a_symbol": float(np.mean(terms_read)),
                "wall_ms": float(np.median(wall)),
                "cpu_ms": float(np.median(cpu)),
                "eta": float(np.median(etas)),
                "worst_relative_error": float(max(errors)),
                "codes": needed,
            }
        )
    return {"m": m, "rows": rows}


def _value(row: Row, terms: Floats) -> Floats:
    some = terms[list(row.parts)]
    return np.asarray(some.sum() if row.coefficients is None else some @ row.coefficients)


def decode_ms(details: dict[str, Any]) -> dict[str, Any]:
    """The results of `bench` in short, for results.json: one number a code, and what it means.

    The number is the CPU time of peeling, the published decoder; the others stand beside it.
    """
    return {
        "decode_ms": {name: kinds["peeling"]["cpu_median"] for name, kinds in details.items()},
        "decode_ms_is": {
            "decoder": PEELING.decoder,
            "neighbours": PEELING.neighbours,
            "time": "CPU time of the master, median",
            "default_decoder": LT().decoder,
        },
        "decode_ms_by_decoder": {
            name: {
                kind: {"wall": times["median"], "cpu": times["cpu_median"]}
                for kind, times in kinds.items()
            }
            for name, kinds in details.items()
        },
    }


def growth(times: int) -> dict[str, Any]:
    """What peeling does with m, for LT-1 and LT-2: O(m log m) by the paper.

    `neighbors`: those of the symbols that it took, each of which is looked at once for each way
    through the graph; `over_m_log_m`: divided by m ln m. Means over `times` codes.
    """
    rows: dict[str, Any] = {"lt1": {}, "lt2": {}}
    for r, by_size in enumerate(rows.values(), 1):
        for m in SIZES:
            case, counts = Case(replace(PEELING, r=r), m), []
            for trial in range(times):
                table = case.table(trial)
                decoder = case.decoder(table)
                used = next(key for key in range(len(table)) if decoder.offer(key)) + 1
                counts.append(int(table.start[used]))
            read = float(np.mean(counts))
            by_size[str(m)] = {"neighbors": read, "over_m_log_m": read / (m * log(m))}
    return rows


def agreement(orders: int, seed: int) -> dict[str, Any]:
    """The largest error of a decoded sum over the sum of magnitudes, in random orders of arrival.

    Codes of 1000, 500 and 40 groups are decoded by peeling and by inactivation (which takes one
    more symbol where eta is above 100). Those of 40 groups are also decoded by a QR of all rows.
    """
    rng = np.random.default_rng(seed)
    worst: dict[str, float] = {}
    for groups, many in ((1000, orders // 2), (500, orders // 2), (40, orders)):
        table = Case(INACTIVATION, groups).table(seed)
        makers: dict[str, Callable[[Table], Decoder]]
        makers = {"peeling": PeelingDecoder, "inactivation": InactivationDecoder}
        if groups <= 40:
            makers["qr"] = TableElimination
        for _ in range(many):
            terms = rng.standard_normal(groups) + 0.5
            sums = np.add.reduceat(terms[table.where], table.start[:-1])
            order = rng.permutation(len(table)).tolist()
            for name, make in makers.items():
                decoder = make(table)
                arriving = iter(order)
                while not decoder.good:
                    decoder.offer(next(arriving), ())
                weights = decoder.weights()
                error = abs(weights.matrix[0] @ sums[list(weights.keys)] - terms.sum())
                worst[name] = max(worst.get(name, 0.0), float(error / np.abs(terms).sum()))
    return {"worst_relative_error": worst, "orders": orders // 2 * 2 + orders}
