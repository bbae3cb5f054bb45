"""What Wang et al., 2019 (ErasureHead) prove of fractional repetition codes, errors corrected.

Letters as there: n parts, k workers, c parts a worker, r replies waited for, λ the straggling
parameter. A worker's time is load-dependent: c of n parts take c/n · (1 + E/λ), E exponential, when
all parts take 1 + E/λ (section 4; `kofn.delays.ExponentialByLoad`).
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from ..checks import number, whole
from ..errors import BadInput
from .assignment import uncovered


class Moments(NamedTuple):
    """1 − p = E[Yᵢ] and 1 − q = E[YᵢYⱼ], where Yᵢ says whether block i is covered."""

    p: float
    q: float


class Times(NamedTuple):
    """Seconds without a code, with an exact one, and with an approximate one."""

    uncoded: float
    exact: float
    approximate: float


def moments(n: int, k: int, c: int, r: int) -> Moments:
    """Lemma 2: p and q of FRC(n, k, c) when r of its k workers, drawn at random, have replied.

    p is the chance that a given block is missing, q that at least one of two given ones is.
    """
    copies = _copies(n, k, c, r)
    p = uncovered(k, copies, r)
    both = uncovered(k, 2 * copies, r) if 2 * copies <= k else 0.0
    return Moments(p, 2 * p - both)


def seconds_by_load(n: int, c: int, r: int, rate: float) -> Times:
    """Lemma 8: mean seconds of an iteration of n workers in the load-dependent model.

    Eq. (13) is corrected: c/n + H_{n/c} / (λn), the last of n/c blocks to have its first reply.
    The approximate time is that of the r-th reply: an upper bound, since a round also ends when
    every block is covered.
    """
    _copies(n, n, c, r)
    number(rate, "the straggling parameter λ", "> 0", "Use inf for none.", infinite=True)
    return Times(
        1 / n + harmonic(n) / (rate * n),
        c / n + harmonic(n // c) / (rate * n),
        c / n + c * (harmonic(n) - harmonic(n - r)) / (rate * n),
    )


def seconds_by_wait(n: int, c: int, r: int, mean: float) -> Times:
    """The same in the load-independent model: an exponential wait of mean `mean`, no compute.

    This is the model of the experiments (section 5); Wang et al. have no formula for it.
    """
    _copies(n, n, c, r)
    return Times(
        mean * harmonic(n),
        mean / c * harmonic(n // c),
        mean * (harmonic(n) - harmonic(n - r)),
    )


def factors(n: int, c: int, delta: float) -> Times:
    """Theorem 3's bounds on the seconds of an iteration at λ = 1/c and r = δn.

    The exact one is corrected: (c log(n/c) + 2c) / n; as printed it can be below Lemma 8.
    """
    _copies(n, n, c)
    if not 0 < delta < 1:
        raise BadInput(f"δ, the fraction of workers waited for, must be in (0, 1); got {delta!r}.")
    return Times(
        (c * log(n) + c + 1) / n,
        (c * log(n / c) + 2 * c) / n,
        (c**2 * log(1 / (1 - delta)) + c**2 + c) / n,
    )


def harmonic(m: int) -> float:
    """H_m = 1 + 1/2 + … + 1/m, and H_0 = 0."""
    return sum(1 / i for i in range(m, 0, -1))


def _copies(n: int, k: int, c: int, r: int = 0) -> int:
    """How many workers hold each block: ℓ = kc/n."""
    if min(n, k, c) < 1 or n % c or (k * c) % n:
        raise BadInput(
            f"FRC(n, k, c) needs c to divide n, and n to divide k·c; got n={n}, k={k}, c={c}."
        )
    whole(r, "r, the number of replies,", 0, k)
    return k * c // n
