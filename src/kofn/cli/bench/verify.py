"""kofn bench verify: what checking every reply costs, in one run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.console import Console

from ...arrays import CodedMatrix
from ...cluster import Cluster, connect
from ..output import print_table
from .turns import Turns, cpu, interleaved, timed

COLUMNS, WORKERS, THRESHOLD, MARGIN = 2000, 6, 4, 2
TINY = (600, 20)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "probe": {"verify": "probe"},
    "parity": {"verify": "parity", "margin": MARGIN},
}


def run(rounds: int, rows: int) -> dict[str, Any]:
    """Measure products of one matrix under each kind of check, in turn; medians of one run."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((rows, COLUMNS))
    w, z = rng.standard_normal(COLUMNS), rng.standard_normal(rows)
    small, v = rng.standard_normal(TINY), rng.standard_normal(TINY[1])
    with connect("local", workers=WORKERS) as cluster:
        coded: dict[str, CodedMatrix] = {}
        seconds: dict[str, float] = {}
        for kind, options in KINDS.items():
            began = time.perf_counter()
            coded[kind] = cluster.encode(A, k=THRESHOLD, **options)
            seconds[kind] = time.perf_counter() - began
        tiny = {kind: cluster.encode(small, k=THRESHOLD, **o) for kind, o in KINDS.items()}
        measured = {
            "X @ w": _measured(cluster, coded, w, rounds, back=False),
            "X.T @ z": _measured(cluster, coded, z, rounds, back=True),
            "X @ w, tiny": _measured(cluster, tiny, v, 20 * rounds, back=False),
        }
        assert np.allclose(coded["probe"] @ w, A @ w)
        unseen = {}
        for kind in ("probe", "parity"):
            coded[kind] @ w
            unseen[kind] = coded[kind].report.unseen
            assert coded[kind].report.wrong == ()
        kept = {kind: _kept(X) / A.nbytes for kind, X in coded.items()}
    figures = {
        f"{what}, {kind}": turns.figure(kind, "plain", "unchecked")
        for what, (turns, _) in measured.items()
        for kind in ("probe", "parity")
    }
    cpu = {what: spent for what, (_, spent) in measured.items()}
    more = {"encode_seconds": seconds, "kept_of_matrix": kept, "unseen": unseen}
    return {"figures": figures, "cpu": cpu, **more}


def _measured(
    cluster: Cluster, coded: dict[str, CodedMatrix], operand: Any, rounds: int, back: bool
) -> tuple[Turns, dict[str, Any]]:
    # Others of the machine are at work, too: a few rounds of each in turn, and the median.
    kinds = {
        kind: timed((lambda X=X: X.T @ operand) if back else (lambda X=X: X @ operand))
        for kind, X in coded.items()
    }
    turns = interleaved(kinds, rounds, most=2)
    spent = dict.fromkeys(kinds, (0.0, 0.0))  # CPU time hardly depends on who else is at work
    for _ in range(rounds):
        for kind, block in kinds.items():
            began = cpu(cluster)
            block(1)
            pairs = zip(spent[kind], began, cpu(cluster), strict=True)
            master, all_of_it = (total + after - before for total, before, after in pairs)
            spent[kind] = master, all_of_it
    return turns, {
        kind: {"master_us": master / rounds, "all_us": all_of_it / rounds}
        for kind, (master, all_of_it) in spent.items()
    }


def _kept(X: CodedMatrix) -> int:
    """Bytes that the master keeps for checks."""
    probes = X._drift.checked.probes
    return 0 if probes is None else probes.nbytes


def table(console: Console, result: dict[str, Any]) -> None:
    """Print what the checks cost in processor time, which hardly depends on who else is there."""
    columns = {"CPU time": "", "plain (µs)": ".0f", "probe": ".3f", "parity": ".3f"}
    rows = [
        (f"{what}, {who}", kinds["plain"][key], *(kinds[k][key] / kinds["plain"][key] for k in two))
        for two in (("probe", "parity"),)
        for what, kinds in result["cpu"].items()
        for who, key in (("all processes", "all_us"), ("the master", "master_us"))
    ]
    rows.append(
        ("kept by the master, of the matrix", "", *list(result["kept_of_matrix"].values())[1:])
    )
    k, r = THRESHOLD, MARGIN
    title = (
        f"ratios to plain; parity with margin {r} does {(k + r) / k:.2f} times the work of X @ w"
    )
    print_table(console, title, columns, rows)
