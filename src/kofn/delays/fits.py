"""Delay models fitted to recorded timings: a few numbers in place of a table.

A recorded time is a wait plus work. Where several loads were recorded the work is what their
medians grow by, as a straight line through them; with one load it is a stated fraction of a time.
What is left is the wait, and the models are fitted to that. A unit of work is load 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..checks import number
from .models import Delays, Exponential, InTwoParts, Pareto, Sampled
from .recorded import Recording
from .stragglers import Fritchman, Stragglers

Floats = NDArray[np.float64]
SLOW = 1.5  # times the median: who waits longer is slow in that round


@dataclass(frozen=True, eq=False)
class TwoState(InTwoParts):
    """A wait drawn from `slow` for who straggles in that round and from `fast` else, then work."""

    stragglers: Stragglers
    fast: Floats
    slow: Floats
    unit: float

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """The drawn wait, and `unit` seconds for each unit of work."""
        some = self.slow if self.stragglers.straggles(worker, round) else self.fast
        return float(some[rng.integers(some.size)]), self.unit * cost


@dataclass(frozen=True)
class Slowness:
    """How slowness comes: of rounds x workers, `share` were slow, in runs of `burst` rounds.

    `alone` is how long the runs would be if each round were drawn anew; `enter` and `leave` are
    the chances to become slow, and to be quick again, from one round to the next.
    """

    share: float
    burst: float
    alone: float
    enter: float
    leave: float


@dataclass(frozen=True)
class Fit:
    """A model, and how far its distribution of waits is from the recorded one.

    `distance` is Kolmogorov's: the largest difference of the two distribution functions.
    """

    delays: Delays
    distance: float


@dataclass(frozen=True, eq=False)
class Split:
    """Recorded times as waits, one array (rounds, workers) for each load, and `unit` seconds."""

    waits: tuple[Floats, ...]
    unit: float


def split(recording: Recording, grows: float | None = None) -> Split:
    """Take wait and work apart. `grows`: the fraction of a time that is work, for one load."""
    loads = np.array(recording.loads)
    if grows is None and len(loads) > 1:
        medians = [float(np.median(table)) for table in recording.timings]
        unit = max(0.0, float(np.polyfit(loads, medians, 1)[0]))
    else:
        grows = number(0.0 if grows is None else grows, "grows", "in [0, 1]", "It is a fraction.")
        unit = grows * float(np.median(recording.timings[-1])) / (float(loads[-1]) or 1.0)
    pairs = zip(loads, recording.timings, strict=True)
    return Split(tuple(np.maximum(0.0, table - unit * load) for load, table in pairs), unit)


def slowness(waits: tuple[Floats, ...]) -> Slowness:
    """Who is slow for how long, of waits (rounds, workers)."""
    slow = [table > SLOW * np.median(table) for table in waits]
    share = float(np.mean(np.concatenate([one.ravel() for one in slow])))
    quick = sum(int((~one[:-1]).sum()) for one in slow)
    stuck = sum(int(one[:-1].sum()) for one in slow)
    enters = sum(int((~one[:-1] & one[1:]).sum()) for one in slow)
    leaves = sum(int((one[:-1] & ~one[1:]).sum()) for one in slow)
    begun = enters + sum(int(one[0].sum()) for one in slow)
    total = sum(int(one.sum()) for one in slow)
    return Slowness(
        share,
        total / begun if begun else 0.0,
        1 / (1 - share) if share < 1 else float("inf"),
        enters / quick if quick else 0.0,
        max(leaves / stuck, 1 / (stuck + 1)) if stuck else 1.0,
    )


def fit(recording: Recording, grows: float | None = None, seed: int = 0) -> dict[str, Fit]:
    """Every model fitted: exponential, pareto, markov (two states) and empirical.

    By maximum likelihood; of the first two the smallest wait is the shift or scale.
    """
    known = split(recording, grows)
    unit, waits = known.unit, np.sort(np.concatenate([one.ravel() for one in known.waits]))
    least = float(waits[0])
    mean = float(waits.mean()) - least
    at = np.arange(len(waits)) / len(waits)

    def distance(F: Floats) -> float:
        return float(max(np.abs(F - at).max(), np.abs(F - at - 1 / len(waits)).max()))

    exponential = 1 - np.exp(-(waits - least) / mean) if mean else np.ones(len(waits))
    fits = {"exponential": Fit(Exponential(unit, mean, least), distance(exponential))}
    scale = max(least, 1e-3 * float(np.median(waits)), 1e-12)
    above = np.maximum(waits, scale)
    shape = 1 / max(float(np.log(above / scale).mean()), 1e-12)
    fits["pareto"] = Fit(Pareto(unit, shape, scale), distance(1 - (scale / above) ** shape))
    seen = slowness(known.waits)
    flags = np.concatenate([(one > SLOW * np.median(one)).ravel() for one in known.waits])
    every = np.concatenate([one.ravel() for one in known.waits])
    fast, slow = every[~flags], every[flags]
    chain = Fritchman(seen.enter, seen.leave, seed=seed)
    markov = TwoState(chain, fast, slow if slow.size else fast, unit)
    fits["markov"] = Fit(markov, abs(chain.share - seen.share))
    fits["empirical"] = Fit(Sampled(every, unit), 0.0)
    return fits
