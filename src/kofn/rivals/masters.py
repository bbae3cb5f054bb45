"""Rivals that run on kofn's own master, in simulated time, as kofn's codes do.

`play` runs rounds on any cluster. `round_times` does so on the virtual engine, without values, with
recorded times: a worker that was not waited for drops its work within 10 ms of the round's end,
and is that much later in the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..checks import number, whole, whole_fields
from ..cluster import Cluster, connect
from ..codes import SumCode
from ..codes.repetition import FractionalRepetition
from ..codes.repetition import Uncoded as UncodedSum
from ..delays import Recording
from ..engines.virtual import VirtualEngine
from ..errors import BadInput
from ..rounds.stop import Stop, exact, first
from ..sums.rivals import Backups, Stale
from .base import Rival, Rounds

# Of each round: when it ended, the fraction covered, and how many parts workers delivered.
Played = Iterator[tuple[float, float, int]]


def nothing(part: Any, x: Any) -> Any:
    """Stand for the gradient of a part, where values are skipped."""
    return 0.0


class MasterRival(Rival):
    """A rival that is played on a cluster."""

    pieces: int = 1  # that the part of one worker is cut into

    @abstractmethod
    def play(self, cluster: Cluster, rounds: int) -> Played:
        """Place the data, a part for each worker; then one round after the other."""

    def round_times(self, times: Recording, rounds: int | None = None) -> Rounds:
        n, count = times.workers, times.rounds if rounds is None else whole(rounds, "rounds", 1)
        self.load(n)
        whole_batch = n * self.pieces
        engine = VirtualEngine(n, delays=times.delays(whole_batch), compute=False)
        with connect(engine) as cluster:
            ends, covered, parts = np.array(list(self.play(cluster, count)), dtype=np.float64).T
        return Rounds(np.diff(ends, prepend=0.0), parts / whole_batch, covered, n)


@dataclass(frozen=True)
class Uncoded(MasterRival):
    """Every worker has one part, and all are waited for."""

    name = "uncoded"

    def load(self, n: int) -> float:
        return 1 / n

    def play(self, cluster: Cluster, rounds: int) -> Played:
        return _sums(cluster, rounds, UncodedSum("whole"), exact())

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return iter((cls(),))


@dataclass(frozen=True)
class Replication(MasterRival):
    """c workers do the same work, and the first of them counts. c divides the workers."""

    name = "replication"
    c: int = 2

    def __post_init__(self) -> None:
        whole_fields(self, c=1)

    def load(self, n: int) -> float:
        if n % self.c:
            raise BadInput(f"c divides the number of workers; got c={self.c} and {n} workers.")
        return self.c / n

    def play(self, cluster: Cluster, rounds: int) -> Played:
        return _sums(cluster, rounds, FractionalRepetition(self.c, "whole"), exact())

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(c) for c in range(2, n // 2 + 1) if n % c == 0)


@dataclass(frozen=True)
class Ignore(MasterRival):
    """Ignoring stragglers: every worker has one part, and the first `r` workers are enough."""

    name = "ignore"
    r: int

    def __post_init__(self) -> None:
        whole_fields(self, r=1)

    def load(self, n: int) -> float:
        whole(self.r, "r (workers that are waited for)", 1, n)
        return 1 / n

    def play(self, cluster: Cluster, rounds: int) -> Played:
        return _sums(cluster, rounds, UncodedSum("whole"), first(self.r))

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        """All but a few: what is ignored is missing in the gradient."""
        return (cls(r) for r in sorted({n - max(1, n * p // 100) for p in (1, 2, 5, 10, 20)}))


@dataclass(frozen=True)
class _SecondAsked(MasterRival):
    """Each part lies on `copies` workers, and one is asked at first."""

    copies: int = 2

    def load(self, n: int) -> float:
        whole(self.copies, "copies", 2, n)
        return 1 / n

    def storage(self, n: int) -> float:
        return self.copies * self.load(n)


@dataclass(frozen=True)
class BackupTasks(_SecondAsked):
    """Each part lies on `copies` workers, and one is asked. The next one is asked, too, at `factor`
    times the time in which half of the round's replies came (MapReduce, Spark: 1.5 to 3).
    """

    name = "backup"
    factor: float = 3.0

    def __post_init__(self) -> None:
        whole_fields(self, copies=2)
        number(self.factor, "factor, of the median,", "> 1")

    def play(self, cluster: Cluster, rounds: int) -> Played:
        return _backups(cluster, rounds, copies=self.copies, factor=self.factor)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(min(2, n), factor) for factor in (1.25, 1.5, 2.0, 3.0))


@dataclass(frozen=True)
class Hedged(_SecondAsked):
    """As backup tasks; but the next worker is asked at the time in which a `quantile` of the tasks
    of the last rounds ended (The Tail at Scale: 0.95). In the first round nobody is.
    """

    name = "hedged"
    quantile: float = 0.95

    def __post_init__(self) -> None:
        whole_fields(self, copies=2)
        number(self.quantile, "quantile", "in (0, 1]")

    def play(self, cluster: Cluster, rounds: int) -> Played:
        return _backups(cluster, rounds, copies=self.copies, quantile=self.quantile)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(min(2, n), quantile) for quantile in (0.8, 0.9, 0.95, 0.99))


@dataclass(frozen=True)
class DSAG(MasterRival):
    """DSAG (Severinson et al., 2023): `fresh` workers are waited for; of the others the last
    gradients count, however old. Each worker's part is cut into `pieces`, and taken in turn.

    What is covered counts gradients of this round's point alone. `margin`: of the time so far,
    waited for more.
    """

    name = "dsag"
    fresh: int
    pieces: int = 1
    margin: float = 0.02

    def __post_init__(self) -> None:
        whole_fields(self, fresh=1, pieces=1)
        number(self.margin, "margin", ">= 0")

    def load(self, n: int) -> float:
        whole(self.fresh, "fresh", 1, n, "It counts workers.")
        return 1 / (n * self.pieces)

    def storage(self, n: int) -> float:
        return 1 / n

    def play(self, cluster: Cluster, rounds: int) -> Played:
        data = _blank(cluster, self.pieces)
        stale, steps = Stale(cluster, data), list[tuple[float, float, int]]()

        def advance(t: int, time: float, total: Any, covered: float) -> Any:
            assert stale.round is not None
            read = sum(stale.round.read.values()) - sum(step[2] for step in steps)
            steps.append((time, stale.round.fresh_parts / len(data), read))
            return None if t == rounds else t

        portion = 1 / self.pieces
        stale.run(
            nothing, 0, advance, self.fresh, margin=self.margin, portion=portion, balance=False
        )
        return iter(steps)

    @classmethod
    def grid(cls, n: int) -> Iterator[Self]:
        return (cls(max(1, n * p // 100)) for p in (10, 25, 50, 75, 90))


def _blank(cluster: Cluster, pieces: int) -> list[int]:
    """Parts of which nothing is known but how many there are."""
    return [0] * (pieces * len(cluster.workers))


def _sums(cluster: Cluster, rounds: int, code: SumCode, stop: Stop) -> Played:
    parts = cluster.parts(_blank(cluster, 1), code)
    for _ in range(rounds):
        result = parts.sum(nothing, stop=stop)
        yield cluster.engine.now(), result.covered, sum(result.report.parts_read.values())


def _backups(cluster: Cluster, rounds: int, **options: Any) -> Played:
    sums = Backups(cluster, _blank(cluster, 1), **options)
    for _ in range(rounds):
        sums.sum(nothing)
        yield cluster.engine.now(), 1.0, sums.parts_read
