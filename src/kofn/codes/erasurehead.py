"""The theorems of Wang et al., 2019 (ErasureHead) on fractional repetition codes, corrected.

Letters as there: n parts, k workers, c parts a worker, r replies waited for, λ the straggling
parameter. A worker's time is load-dependent: c of n parts take c/n · (1 + E/λ), E exponential, when
all parts take 1 + E/λ (section 4; `kofn.delays.ExponentialByLoad`).
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from ..checks import number, one_of, whole
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


class Objective(NamedTuple):
    """The assumptions of Wang et al. on f, the mean of n functions.

    f is β-smooth and μ-PL, no gradient of one of the functions is longer than σ along the way, and
    Δ₀ = f(x₀) − f*. The PL condition is theirs: ½‖∇f‖² ≥ μ (f − f*).
    """

    beta: float
    mu: float
    sigma: float
    gap: float


class Bound(NamedTuple):
    """Δ_T ≤ rateᵀ Δ₀ + floor, of the mean over the replies that happen to come."""

    rate: float
    floor: float

    def after(self, iterations: int, gap: float) -> float:
        """The bound after so many iterations from a gap of Δ₀."""
        return float(self.rate**iterations * gap + self.floor)

    def iterations(self, gap: float, within: float) -> float:
        """Iterations after which the bound is at `within`; inf where it never is."""
        if within <= self.floor:
            return inf
        if within >= gap + self.floor or self.rate <= 0:
            return 0.0 if within >= gap + self.floor else 1.0
        return log(gap / (within - self.floor)) / -log(self.rate)


Step = Literal["long", "short"]  # 1/β, or (1 − p)/β


def moments(n: int, k: int, c: int, r: int) -> Moments:
    """Lemma 2: p and q of FRC(n, k, c) when r of its k workers, drawn at random, have replied.

    p is the chance that a given block is missing, q that at least one of two given ones is.
    """
    copies = _copies(n, k, c, r)
    p = uncovered(k, copies, r)
    both = uncovered(k, 2 * copies, r) if 2 * copies <= k else 0.0
    return Moments(p, 2 * p - both)


def second_moment(k: int, c: int, r: int, gradients: ArrayLike) -> float:
    """Lemma 3: E‖g‖² of the published estimate, from the gradients (n, d) of the n functions."""
    every = np.atleast_2d(np.asarray(gradients, dtype=np.float64))
    n = len(every)
    p, q = moments(n, k, c, r)
    blocks = every.reshape(n // c, c, -1).sum(axis=1)
    whole_norm = float(np.square(every.mean(axis=0)).sum())
    return (1 - q) * whole_norm + (q - p) / n**2 * float(np.square(blocks).sum())


def second_moment_bound(n: int, k: int, c: int, r: int, norm: float, sigma: float) -> float:
    """Lemma 4: E‖g‖² is at most this where ‖∇f‖ is `norm` and no ‖∇fᵢ‖ is above `sigma`.

    Its eq. (5) has a 1/n² too many; the lemma itself is right.
    """
    p, q = moments(n, k, c, r)
    return (1 - q) * norm**2 + (q - p) * c * sigma**2 / n


def missing_bound(n: int, k: int, c: int, r: int) -> float:
    """Lemma 5: the chance p that a block is missing is at most exp(−cr/n)."""
    _copies(n, k, c, r)
    return exp(-c * r / n)


def gradient_descent(on: Objective) -> Bound:
    """Lemma 1: exact gradients and steps of 1/β."""
    return Bound(1 - on.mu / on.beta, 0.0)


def theorem_1(n: int, k: int, c: int, r: int, on: Objective, step: Step = "short") -> Bound:
    """Theorem 1: the unbiased estimate ĝ with steps of 1/β ("long") or (1 − p)/β ("short").

    A short step along ĝ is a step of 1/β along g, the published estimate, which misses parts.
    """
    one_of(step, "step", get_args(Step))
    p, q = moments(n, k, c, r)
    if p == 1:
        return Bound(1.0, inf)
    spread = (q - p) * c * on.sigma**2 / (2 * (1 - p) * on.mu * n)
    if step == "short":
        return Bound(1 - (1 - p) * on.mu / on.beta, spread)
    return Bound(1 - on.mu / on.beta, p * on.sigma**2 / (2 * (1 - p) * on.mu) + spread / (1 - p))


def theorem_2(n: int, k: int, c: int, r: int, on: Objective, step: Step = "short") -> Bound:
    """Theorem 2: the same without p and q, if c ≥ n ln(2) / r. Looser than Theorem 1."""
    one_of(step, "step", get_args(Step))
    missing = missing_bound(n, k, c, r)
    if missing > 0.5:
        raise BadInput(
            f"Theorem 2 needs c >= n ln(2) / r, which is {n * log(2) / max(r, 1):.3g}; got c={c}. "
            f"Use theorem_1, or wait for more replies."
        )
    spread = 2 * c * missing * on.sigma**2 / (on.mu * n)
    if step == "short":
        return Bound(1 - (1 - missing) * on.mu / on.beta, spread)
    return Bound(1 - on.mu / on.beta, missing * on.sigma**2 / on.mu + 2 * spread)


def isotropic_gap(
    k: int, c: int, r: int, centres: ArrayLike, iterations: int, gap: float, step: float
) -> float:
    """E[Δ_T] itself, not a bound, of fᵢ(x) = ½‖x − aᵢ‖² and steps of `step` along ĝ.

    `centres` (n, d) are the aᵢ. Here every inequality of the proof of Theorem 1 but those that
    bring in σ is an equation, so the curve follows from Lemma 3.
    """
    every = np.atleast_2d(np.asarray(centres, dtype=np.float64))
    n = len(every)
    p, q = moments(n, k, c, r)
    blocks = every.reshape(n // c, c, -1).mean(axis=1)
    apart = float(np.square(blocks - every.mean(axis=0)).sum())
    scale = step**2 / (1 - p) ** 2
    rate = 1 - 2 * step + scale * ((1 - q) + (q - p) * c / n)
    noise = scale * c**2 * (q - p) * apart / (2 * n**2)
    for _ in range(iterations):
        gap = rate * gap + noise
    return gap


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


def noise_floor(n: int, c: int, delta: float, on: Objective) -> float:
    """ε₀ of Theorem 3: the smallest ε that it covers."""
    return 3 * c * exp(-c * delta) * on.sigma**2 / (on.mu * n)


def iterations_to(c: int, delta: float, on: Objective, within: float) -> Times:
    """Iterations to ε = `within` by Theorem 3; the two exact methods need equally many.

    Raises BadInput if ε ≥ Δ₀, because no iteration is needed then, and if cδ < ln 2: the count of
    the approximate method is Theorem 2's, which needs as much.
    """
    if exp(-c * delta) > 0.5:
        raise BadInput(
            f"Theorem 3 rests on Theorem 2, which needs c·δ >= ln(2), {log(2):.3g}; got c={c} and "
            f"δ={delta:g}. Use more copies, or wait for more replies."
        )
    number(within, "within, the gap that is wanted,", "> 0")
    if within >= on.gap:
        raise BadInput(f"within must be below the gap at the start, {on.gap:g}; got {within:g}.")
    kappa = on.mu / on.beta
    exactly = log(on.gap / within) / -log(1 - kappa) if kappa < 1 else 1.0
    eta = 1 - exp(-c * delta)
    return Times(exactly, exactly, log(3 * on.gap / within) / -log(1 - eta * kappa))


def theorem_3(n: int, c: int, delta: float, on: Objective, within: float) -> Times:
    """Theorem 3: mean seconds to ε = `within`, at most, at λ = 1/c; the exact one corrected.

    The approximate one is for short steps (see theorem_1) and ε ≥ ε₀, the `noise_floor`; else inf.
    Raises BadInput where `iterations_to` does.
    """
    steps, seconds = iterations_to(c, delta, on, within), factors(n, c, delta)
    times = Times(*(a * b for a, b in zip(steps, seconds, strict=True)))
    below = within < noise_floor(n, c, delta, on)
    return times._replace(approximate=inf) if below else times


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
