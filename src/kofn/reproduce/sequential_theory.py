"""Section 4 of the paper in closed form: R, mean time per job over the time of a whole job.

Stragglers are independent: any worker in any round with probability delta, and alpha times slower.
"""

from __future__ import annotations

from functools import cache
from math import comb

import numpy as np


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


def idip(alpha: float, N: int, W: int, P: int, delta: float) -> float:
    """IDIP itself, in the long run: a chain of how many straggled in each of the last W - 1 rounds.

    A round waits where one more window would hold more than N stragglers, or where all straggle;
    then nobody is left behind. The load is that of W mini-tasks a round, as in the bound.
    """
    came = np.array([comb(P, i) * delta**i * (1 - delta) ** (P - i) for i in range(P + 1)])
    before = np.indices((P + 1,) * (W - 1)).sum(axis=0)
    goes_on = (before[..., None] + np.arange(P + 1) <= N) & (np.arange(P + 1) < P)
    chance = np.zeros((P + 1,) * (W - 1))
    chance[(0,) * (W - 1)] = 1.0
    waits = change = 1.0
    while change > 1e-14:
        each = chance[..., None] * came  # by the rounds before, and how many straggle in this one
        last, waits = waits, float(each[~goes_on].sum())
        after = np.where(goes_on, each, 0.0)
        after[..., 0] += np.where(goes_on, 0.0, each).sum(axis=-1)
        following = after.sum(axis=0) if W > 1 else chance
        change = float(np.abs(following - chance).max()) + abs(waits - last)
        chance = following
    return (1 + (alpha - 1) * waits) / (P - N / W)


def idip_bound(alpha: float, N: int, W: int, P: int, delta: float) -> float:
    """Upper bound on `idip`. The paper leaves out conforming rounds in which everyone straggles."""
    waits = tail(P * W, N, delta)
    slow = delta**P * (1 - tail(P * (W - 1), N - P, delta)) if P <= N else 0.0
    return (1 + (alpha - 1) * (waits + slow)) / (P - N / W)


def idip_bound_as_printed(alpha: float, N: int, W: int, P: int, delta: float) -> float:
    """The same without that correction."""
    waits = tail(P * W, N, delta)
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
