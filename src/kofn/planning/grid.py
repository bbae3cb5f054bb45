"""Which codes and parameters are worth a try, by kind of work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..simulation import Candidate, Work

GROWTH = 1.25  # from one number that is tried to the next
COPIES = 64  # at most, of a part whose values are sent one by one: more take long to simulate
BACKUPS = (1.25, 1.5, 2.0, 3.0)
QUANTILES = (0.8, 0.9, 0.95, 0.99)
SLACKS = (0.25, 1.0)


def steps(first: float, last: float, growth: float = GROWTH) -> list[int]:
    """Whole numbers from first to last, first by ones, then ever wider apart."""
    values, at = [], max(1, int(first))
    while at <= last:
        values.append(at)
        at = max(at + 1, int(at * growth))
    return values


def counts(most: int) -> list[int]:
    """How many machines to try, if fewer than `most` may do."""
    return sorted({max(1, round(most * part)) for part in (1, 0.8, 0.65, 0.5, 0.35, 0.25)})[::-1]


def uncoded(work: Work, n: int) -> Candidate | None:
    """The candidate without a code; None for a sequence that n block products cannot make."""
    if work.kind != "sequence":
        return Candidate("uncoded")
    cut = _cut(work, n)
    return None if cut is None else _candidate("uncoded", **cut)


def grid(work: Work, n: int, tolerance: float) -> list[Candidate]:
    """Candidates for n workers, the one without a code first, if there is one."""
    plain = uncoded(work, n)
    candidates = [] if plain is None else [plain]
    if n > 1:
        kinds = {"product": _products, "gradient": _gradients, "sequence": _sequences}
        candidates += kinds.get(work.kind, _sums)(work, n)
    if tolerance > 0 and work.kind in ("gradient", "sum"):
        covered = 1 - tolerance
        sums = [one for one in candidates if one.code in ("uncoded", "fractional", "cyclic")]
        candidates += [_candidate(c.code, **dict(c.parameters), covered=covered) for c in sums]
        if work.kind == "gradient" and n > 1:
            candidates.append(_candidate("dsag", fresh=math.ceil(covered * n)))
    return candidates


def thinned(candidates: list[Candidate], most: int) -> list[Candidate]:
    """At most so many of them, evenly chosen, with the first."""
    if len(candidates) <= most:
        return candidates
    apart = (len(candidates) - 1) / max(1, most - 1)
    return [candidates[round(i * apart)] for i in range(most)]


def _candidate(code: str, **parameters: Any) -> Candidate:
    return Candidate(code, tuple(parameters.items()))


def _products(work: Work, n: int) -> Iterator[Candidate]:
    for spare in steps(1, max(1, 0.9 * n)):
        for margin in (0, *steps(1, spare - 1, 2.0), spare):
            more = {"margin": margin} if margin else {}
            yield _candidate("mds", k=n - spare, **more)


def _gradients(work: Work, n: int) -> Iterator[Candidate]:
    for stream, most in (("parts", COPIES), ("whole", n)):
        for c in (c for c in range(2, min(n, most) + 1) if n % c == 0):
            yield _candidate("fractional", c=c, stream=stream)
    for c in steps(2, min(n, COPIES), 1.1):
        yield _candidate("cyclic", c=c)
    for factor in BACKUPS:
        yield _candidate("backup", factor=factor)
    for quantile in QUANTILES:
        yield _candidate("hedged", quantile=quantile)


def _sequences(work: Work, n: int) -> Iterator[Candidate]:
    for spare in steps(1, 3 * n / 4):
        if cut := _cut(work, n - spare):
            yield _candidate("polynomial", **cut)
    for window in (2, 3):
        for late in steps(1, window * n / 2, 1.5):
            if not (cut := _cut(work, n * window - late)):
                continue
            for slack in SLACKS:
                given = {**cut, "delay": window - 1}
                yield _candidate("dip", **given, lam=n, slack=slack)
                yield _candidate("idip", **given, N=late, W=window, slack=slack)


def _cut(work: Work, products: int) -> dict[str, int] | None:
    """x and y with xy = products, such that the least is sent; None where no cut is fine enough."""

    def sent(x: int) -> float:
        return work.rows / x + work.width * x / products

    fit = [
        x
        for x in range(1, products + 1)
        if products % x == 0 and x <= work.rows and products // x <= work.width
    ]
    return {"x": (x := min(fit, key=sent)), "y": products // x} if fit else None


def _sums(work: Work, n: int) -> Iterator[Candidate]:
    for c in (c for c in steps(2, min(n, COPIES)) if n % c == 0):
        yield _candidate("fractional", c=c)
    # So coarse that there are a few groups for each worker at least, and so fine that each has 40.
    for size in steps(work.rows / (40 * n), work.rows / (2 * n)):
        yield _candidate("lt", r=size)
        yield _candidate("groups", d=size)
