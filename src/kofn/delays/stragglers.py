"""Stragglers by pattern: who is slow in which round, drawn from a seed; a straggler does
everything `alpha` times slower in that round.

Rounds and workers are the engine's: rounds count from 1, workers from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..checks import number
from ..errors import BadInput
from .models import Delays

Pattern = NDArray[np.bool_]  # (rounds, workers): who straggles
_BLOCK = 1024  # rounds drawn at a time


class Stragglers(ABC):
    """Says who straggles; frozen, so that a seed replays it whatever is asked in which order."""

    @abstractmethod
    def straggles(self, worker: int, round: int) -> bool:
        """Whether a worker straggles in a round."""

    def pattern(self, rounds: int, workers: int) -> Pattern:
        """The first so many rounds of the first so many workers."""
        return np.array(
            [[self.straggles(w, r) for w in range(workers)] for r in range(1, rounds + 1)],
            dtype=bool,
        ).reshape(rounds, workers)


@dataclass(frozen=True)
class Slowed(Delays):
    """`unit` seconds per unit of work; `alpha` times as long for who straggles in that round."""

    stragglers: Stragglers
    alpha: float
    unit: float = 1e-6

    def __post_init__(self) -> None:
        number(self.alpha, "alpha", ">= 1", "A straggler is so many times slower.", infinite=True)

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        slow = self.alpha if self.stragglers.straggles(worker, round) else 1.0
        return self.unit * cost * slow


@dataclass(frozen=True, eq=False)
class AsSlowAs(Delays):
    """`unit` seconds per unit of work, times as much slower than the median as was recorded.

    So all of a recorded time counts as work, none of it as a wait (see `Recording.delays`).

    `timings`: seconds (rounds, workers) of workers that all had the same work (see
    `read_timings`); both start anew at their ends.
    """

    timings: NDArray[np.float64]
    unit: float = 1e-6

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        rounds, workers = self.timings.shape
        return float(self._slower[(round - 1) % rounds, worker % workers]) * self.unit * cost

    @cached_property
    def _slower(self) -> NDArray[np.float64]:
        return np.asarray(self.timings, dtype=np.float64) / float(np.median(self.timings))


@dataclass(frozen=True)
class Independent(Stragglers):
    """Each worker straggles in each round with probability `delta`, whatever was before."""

    delta: float
    seed: int = 0

    def __post_init__(self) -> None:
        number(self.delta, "delta", "in [0, 1]", "It is a probability.")

    def straggles(self, worker: int, round: int) -> bool:
        return bool(_independent(self, worker, round // _BLOCK)[round % _BLOCK])


@dataclass(frozen=True)
class Stratified(Stragglers):
    """As Independent, for a given number of workers, with less chance in it.

    In each `block` rounds every set of workers straggles together as often as it is likely to, up
    to rounding, in random order: a mean over them is much closer to its expectation.
    """

    delta: float
    workers: int
    seed: int = 0
    block: int = _BLOCK

    def __post_init__(self) -> None:
        number(self.delta, "delta", "in [0, 1]", "It is a probability.")
        if not 1 <= self.workers <= 16:
            raise BadInput(f"Stratified counts all sets of 1 to 16 workers; got {self.workers}.")

    def straggles(self, worker: int, round: int) -> bool:
        block, at = divmod(round - 1, self.block)
        return worker < self.workers and bool(_stratified(self, block)[at, worker])


@dataclass(frozen=True)
class Fritchman(Stragglers):
    """A chain a worker: one good state, then `bad` states in line, in which it straggles.

    In each round it goes from good to the first bad state with probability `enter`, and from each
    bad state to the next one (from the last to good) with probability `leave`. So bursts last
    bad / leave rounds in the mean, and bad/leave / (1/enter + bad/leave) of all rounds are bad. It
    begins in the good state, before round 1.
    """

    enter: float
    leave: float
    bad: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        number(self.enter, "enter", "in [0, 1]", "It is a probability.")
        number(self.leave, "leave", "in [0, 1]", "It is a probability.")
        if self.bad < 1 or self.leave == 0:
            raise BadInput(
                f"a Fritchman chain has at least one bad state, which can be left; got "
                f"bad={self.bad}, leave={self.leave}."
            )

    @property
    def share(self) -> float:
        """The share of rounds in which a worker straggles, in the long run."""
        burst = self.bad / self.leave
        return burst * self.enter / (1 + burst * self.enter)

    def straggles(self, worker: int, round: int) -> bool:
        block = round // _BLOCK
        state = 0
        for earlier in range(block):
            state = int(_chain(self, worker, earlier, state)[-1])
        return bool(_chain(self, worker, block, state)[round % _BLOCK])


@dataclass(frozen=True, eq=False)
class Given(Stragglers):
    """Just this pattern, (rounds, workers), from round 1 on; nobody straggles outside it."""

    of: Pattern

    def straggles(self, worker: int, round: int) -> bool:
        rounds, workers = self.of.shape
        return worker < workers and 1 <= round <= rounds and bool(self.of[round - 1, worker])


@dataclass(frozen=True)
class Shifted(Stragglers):
    """Another pattern, beginning so many rounds later; nobody straggles before."""

    of: Stragglers
    by: int

    def straggles(self, worker: int, round: int) -> bool:
        return round > self.by and self.of.straggles(worker, round - self.by)


@lru_cache(maxsize=4096)
def _independent(model: Independent, worker: int, block: int) -> Pattern:
    draws = np.random.default_rng((model.seed, worker, block)).random(_BLOCK)
    return np.asarray(draws < model.delta)


@lru_cache(maxsize=64)
def _stratified(model: Stratified, block: int) -> Pattern:
    rng = np.random.default_rng((model.seed, model.workers, block))
    sets = (np.arange(1 << model.workers)[:, None] >> np.arange(model.workers)) & 1
    sets = sets[np.argsort(sets.sum(axis=1), kind="stable")]  # how many straggle is exact, too
    size = sets.sum(axis=1)
    likely = model.delta**size * (1.0 - model.delta) ** (model.workers - size)
    at = (np.arange(model.block) + rng.random()) / model.block
    drawn = np.searchsorted(np.cumsum(likely), at).clip(max=len(sets) - 1)
    return np.asarray(sets[rng.permutation(drawn)] == 1)


@lru_cache(maxsize=4096)
def _chain(model: Fritchman, worker: int, block: int, state: int) -> NDArray[np.int64]:
    """States (0 good) in the rounds of a block, which is entered from `state`."""
    draws = np.random.default_rng((model.seed, worker, block)).random(_BLOCK).tolist()
    states = []
    for index, draw in enumerate(draws):
        if block == 0 and index == 0:  # there is no round 0
            pass
        elif draw < (model.leave if state else model.enter):
            state = (state + 1) % (model.bad + 1)
        states.append(state)
    return np.array(states)
