"""Gradient codes that kofn has no master for, as options of a plan: replayed by kofn.rivals."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ..delays import Recording
from ..rivals import RIVALS, Rival, best
from ..simulation import Candidate, Row, Stage
from ..simulation.codes import message_sizes
from ..simulation.draws import Common

NAMES = ("gc", "sr_sgc", "m_sgc")
LOOKED_AT = 12  # rounds by which parameters are chosen
DELAY = 3  # rounds after its own that a gradient may come, at most


def replays(stage: Stage, rounds: int) -> tuple[dict[Candidate, Row], int]:
    """The best of each of these methods under the delays of a stage; and how many were tried."""
    n, tried = stage.workers, 0
    loads = tuple(sorted({0.0, *(min(1.0, 2**i / n) for i in range(n.bit_length() + 1))}))
    some = min(rounds, LOOKED_AT)
    times = Recording("drawn", loads, tuple(_drawn(stage, load, some) for load in loads))
    rows: dict[Candidate, Row] = {}
    for name in NAMES:
        quick = best(name, times, delay=DELAY)
        tried += quick.tried
        rival, load = quick.rival, quick.rival.load(n)
        exact = Recording("drawn", (load,), (_drawn(stage, load, rounds),))
        played = rival.round_times(exact)
        ends = np.cumsum(played.seconds)
        rows[_candidate(rival)] = Row(
            ends=ends,
            seconds=played.seconds,
            covered=1.0,
            exact_share=1.0,
            work=float(played.work.mean()),
            machine_seconds=n * float(ends[-1]),
            usd=None,
            memory=rival.storage(n),
        )
    return rows, tried


def note(candidate: Candidate) -> str:
    """A note on such a method beside its figures; empty for other candidates."""
    if candidate.code not in NAMES:
        return ""
    delay = RIVALS[candidate.code](**dict(candidate.parameters)).delay
    late = f"its gradients come {delay} rounds late, so {delay + 1} models are trained in turn; "
    return f"{late if delay else ''}kofn has no master for it, it was replayed (docs/rivals.md)"


def _candidate(rival: Rival) -> Candidate:
    given = tuple((one.name, getattr(rival, one.name)) for one in fields(rival))  # type: ignore[arg-type]
    return Candidate(rival.name, given)


def _drawn(stage: Stage, load: float, rounds: int) -> np.ndarray:
    """Seconds (rounds, workers) of tasks of a load, with what task and reply cost."""
    delays, rng = Common(stage.delays, 1.0, stage.seed), np.random.default_rng(0)
    task, reply, _ = message_sizes(stage.work, Candidate("uncoded"), stage.workers)
    costs = stage.costs
    moved = 2 * (costs.latency + costs.per_event) + costs.transfer(task + reply)
    return np.array(
        [
            [sum(delays.timing(rng, w, r, load)) + moved for w in range(stage.workers)]
            for r in range(1, rounds + 1)
        ]
    )
