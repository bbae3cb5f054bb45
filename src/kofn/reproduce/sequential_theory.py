"""Section 4 of Krishnan et al., 2020 in closed form: R, the mean time per job over a whole job's.

Stragglers are independent: any worker in any round with probability delta, and alpha times slower.
"""

from __future__ import annotations

from functools import cache
from math import comb

from ..delays.stragglers import Pattern
from ..sequence.ledger import Ledger


def tail(n: int, more_than: int, p: float) -> float:
    """P(Binomial(n, p) > more_than)."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(more_than + 1, n + 1))


def polynomial(alpha: float, S: int, P: int, delta: float) -> float:
    """Any P - S workers are enough in each round; S = 0 is uncoded."""
    waits = tail(P, S, delta)
    return (alpha * waits + 1 - waits) / (P - S)


def uncoded(alpha: float, P: int, delta: float) -> float:
    """All P workers are waited for in each round."""
    return polynomial(alpha, 0, P, delta)


def least_load(P: int, N: int, W: int) -> float:
    """Theorem 3.1: no scheme has a smaller load, at most N stragglers being in any W rounds.

    Of N stragglers in the first of every W rounds P W - N results are left, for W jobs.
    """
    return 1.0 / (P - N / W)


def most_mini_tasks(ledger: Ledger, pattern: Pattern) -> tuple[int, int]:
    """The most mini-tasks of a worker in a round of a pattern, and rounds with an overdue job.

    A job begins in each round, and stragglers deliver nothing.
    """
    most = late = 0
    for job, slow in enumerate(pattern.tolist()):
        batches = ledger.begin(job)
        most = max(most, *(sum(slot in batch for batch in batches) for slot in range(len(slow))))
        fine = [slot for slot, straggles in enumerate(slow) if not straggles]
        for batch in batches:
            for slot in fine:
                if slot in batch:
                    ledger.deliver(batch[slot])
        late += ledger.due is not None
        ledger.end(fine)
    return most, late


def idip_bound(
    alpha: float, N: int, W: int, P: int, delta: float, as_printed: bool = False
) -> float:
    """Upper bound on IDIP; as printed it leaves out rounds in which everyone straggles."""
    waits = tail(P * W, N, delta)
    if P <= N and not as_printed:
        waits += delta**P * (1 - tail(P * (W - 1), N - P, delta))
    return (1 + (alpha - 1) * waits) / (P - N / W)


def dip_without_deadline(alpha: float, beta: int, P: int, delta: float) -> float:
    """DIP as the delay goes to infinity: f / beta rounds' loads, and all straggle with delta^P.

    f is the mean number of rounds until beta results are there; where everyone straggles, all are
    waited for and give one each.
    """
    came = [comb(P, i) * (1 - delta) ** i * delta ** (P - i) for i in range(P + 1)]
    came[P] += came[0]

    @cache
    def rounds(lacking: int) -> float:
        if lacking <= 0:
            return 0.0
        return 1.0 + sum(came[i] * rounds(lacking - i) for i in range(1, P + 1))

    return rounds(beta) / beta * (1 + (alpha - 1) * delta**P)
