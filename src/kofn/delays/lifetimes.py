"""How long machines lived: a distribution, from which traces are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from .traces import Event, SpotTrace

MOST, ALL, LEAST = 200, 10_000, 10  # losses of each machine, of all, and of each even then


@dataclass(frozen=True)
class Lifetimes:
    """Seconds that machines lived. Where `ended` is False its user stopped it, alive."""

    seconds: tuple[float, ...]
    ended: tuple[bool, ...]
    name: str = "lifetimes"

    def __post_init__(self) -> None:
        if not any(self.ended):
            raise BadInput(
                f"lifetimes say how long machines live until they are taken back; none of the "
                f"{len(self.ended)} of {self.name} was (end_event is preempted for none)."
            )

    @cached_property
    def survival(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times at which machines ended, and the part that lives longer (Kaplan-Meier)."""
        times, ended = np.array(self.seconds), np.array(self.ended)
        moments = np.unique(times[ended])
        lost = np.array([(ended & (times == t)).sum() for t in moments])
        there = np.array([(times >= t).sum() for t in moments])
        return moments, np.cumprod(1 - lost / there)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw lifetimes. A machine that outlives all that were taken back gets the longest."""
        moments, left = self.survival
        at = np.searchsorted(-left, -rng.random(count))
        longest = max(self.seconds)
        return np.where(at < len(moments), moments[at.clip(max=len(moments) - 1)], longest)

    def offer(self, workers: int, seed: int = 0, seconds: float = 86400.0) -> SpotTrace:
        """A trace of so many machines over so many seconds; for each that is lost another comes.

        A machine that comes later lives for a second at least. The trace ends before, where
        machines live so shortly that two hundred times as many were lost, or 10,000 in all (but ten
        times as many at least).
        """
        losses = min(MOST * workers, max(ALL, LEAST * workers))
        rng = np.random.default_rng((seed, workers))
        events = [Event(0.0, True, f"node{i}") for i in range(workers)]
        ends = [(float(t), i) for i, t in enumerate(self.draw(rng, workers))]
        heapify(ends)
        names = workers
        while ends[0][0] < seconds and names < workers + losses:
            time, node = ends[0]
            events.append(Event(time, False, f"node{node}"))
            events.append(Event(time, True, f"node{names}"))
            heapreplace(ends, (time + max(1.0, float(self.draw(rng, 1)[0])), names))
            names += 1
        return SpotTrace(tuple(events), self.name, length=min(seconds, ends[0][0]))
