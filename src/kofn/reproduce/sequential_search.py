"""Which parameters are best against a pattern: the ledgers alone, in first-order time.

First order: a mini-task takes its load, alpha times as long on a straggler; nothing else takes
time. What is best here is then measured through the real master.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np

from ..delays import Fritchman
from ..delays.stragglers import Pattern
from ..sequence import DIP, IDIP, BurstIDIP, Polynomial, SequenceCode, Uncoded
from ..sequence.ledger import Ledger

SPANS = (1, 2, 3, 4, 6, 8, 10)  # B of IDIP for bursts
SHARES = (4 / 9, 0.105)  # of bad rounds: those at which uncoded takes 1.19 times as long
BURSTS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # rounds that a burst lasts in the mean


def factors(k: int) -> tuple[int, int]:
    """x and y with xy = k, as equal as can be: encoding costs least then."""
    x = max(i for i in range(1, int(k**0.5) + 1) if k % i == 0)
    return x, k // x


def time_per_job(code: SequenceCode, pattern: Pattern, alpha: float, mu: float) -> float:
    """Mean time per job, over the time of a whole job on one worker."""
    ledger = code.ledger(pattern.shape[1])
    share = 1.0 / (code.product.x * code.product.y * code.product.z)
    total = sum(share * _round(ledger, t, row.tolist(), alpha, mu) for t, row in enumerate(pattern))
    return total / len(pattern)


def _round(ledger: Ledger, job: int, slow: list[bool], alpha: float, mu: float) -> float:
    """Run one round of a ledger; its time in mini-tasks."""
    P = ledger.slots
    batches = ledger.begin(job)
    fast = [slot for slot in range(P) if not slow[slot]]
    factor = 1.0
    if not fast:
        fast, factor = list(range(P)), alpha
    late = [slot for slot in range(P) if slot not in fast]
    length, finished = len(batches), list(fast)
    time = factor * length
    for batch in batches:
        for slot in fast:
            ledger.deliver(batch[slot])
    if not ledger.prompt and late:
        time *= 1 + mu
        for batch in batches[: int(time / alpha + 1e-9)]:  # partial work counts
            for slot in late:
                ledger.deliver(batch[slot])
    if not ledger.may_end(fast):
        # Stragglers do theirs in order; the round ends when the due job is there, or, where the
        # pattern must conform, when they have finished.
        for number, batch in enumerate(batches, 1):
            for slot in late:
                ledger.deliver(batch[slot])
            if number == length:
                finished = list(range(P))
            if ledger.may_end(finished):
                time = max(time, alpha * number)
                break
    ledger.end(finished)
    return time


def best(codes: Iterable[SequenceCode], pattern: Pattern, alpha: float, mu: float) -> SequenceCode:
    """The code of least time per job."""
    return min(codes, key=lambda code: time_per_job(code, pattern, alpha, mu))


def all_dip(P: int, delay: int) -> list[DIP]:
    """Every xy below P (delay + 1), and every lam."""
    ks, lams = range(2, P * (delay + 1)), range(1, P + 1)
    return [DIP(*factors(k), delay=delay, lam=lam) for k in ks for lam in lams]


def bursts(P: int, B: int, W: int, lam: int) -> BurstIDIP:
    """IDIP for bursts with these parameters; xy and delay follow."""
    life = W - 1 + B
    return BurstIDIP(*factors(P * life - B * lam), delay=life - 1, B=B, W=W, lam=lam)


def burst_spans(P: int, pattern: Pattern, alpha: float, mu: float) -> dict[str, dict[str, Any]]:
    """By B: IDIP for bursts with the best W (B + 1 or B + 2) and lam, over the polynomial code."""
    least = _polynomial(P, pattern, alpha, mu)
    poly = time_per_job(least, pattern, alpha, mu)
    by_span = {}
    for B in SPANS:
        codes = [bursts(P, B, W, lam) for W in (B + 1, B + 2) for lam in range(1, P + 1)]
        code = best(codes, pattern, alpha, mu)
        ratio = time_per_job(code, pattern, alpha, mu) / poly
        by_span[str(B)] = {"code": repr(code), "delay": code.delay, "over_poly": ratio}
    return by_span


def chain(share: float, bad: int, burst: float, seed: int) -> Fritchman | None:
    """The chain with this share of bad rounds and mean length of a burst, if there is one."""
    enter, leave = share / (1 - share) / burst, bad / burst
    return Fritchman(enter, leave, bad, seed) if max(enter, leave) <= 1 else None


def over_chains(
    P: int, codes: Mapping[str, SequenceCode], rounds: int, alpha: float, mu: float
) -> list[dict[str, Any]]:
    """These codes over the polynomial code, "poly", on other chains: means over three seeds.

    Workers are independent, so uncoded over polynomial time follows from the share of bad
    rounds: the published 1.191 needs 44.4 % of them, or 10.5 %.
    """
    rows = []
    for share, bad, burst in product(SHARES, (1, 2, 3), BURSTS):
        drawn = [chain(share, bad, burst, seed) for seed in range(3)]
        patterns = [slow.pattern(rounds, P) for slow in drawn if slow is not None]
        if not patterns:
            continue
        times = {
            kind: np.array([time_per_job(code, pattern, alpha, mu) for pattern in patterns])
            for kind, code in codes.items()
        }
        over = {kind: float((t / times["poly"]).mean()) for kind, t in times.items()}
        rows.append({"share": share, "bad": bad, "burst": burst, "over_poly": over})
    return rows


def _polynomial(P: int, pattern: Pattern, alpha: float, mu: float) -> SequenceCode:
    return best([Polynomial(*factors(P - S)) for S in range(1, P)], pattern, alpha, mu)


def chosen(
    P: int, delay: int, pattern: Pattern, alpha: float, mu: float
) -> dict[str, SequenceCode]:
    """The best code of each kind: for 1 to P - 1 stragglers, or any N in delay + 1 rounds."""
    W = delay + 1
    idip = [IDIP(*factors(P * W - N), delay=delay, N=N, W=W) for N in range(1, P * W - 1)]
    return {
        "uncoded": Uncoded(*factors(P)),
        "poly": _polynomial(P, pattern, alpha, mu),
        "dip": best(all_dip(P, delay), pattern, alpha, mu),
        "idip": best(idip, pattern, alpha, mu),
    }
