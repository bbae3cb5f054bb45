"""Recorded timings: how long workers really took, round by round, replayed.

    recordings = read_timings("aws_lambda_256workers_2022.npz")
    lambdas = recordings["cnn_desktop_Canada_batch2048"]

    VirtualEngine(256, delays=lambdas.delays(whole=256))               # simulated time
    Paced(LocalEngine(30), Scaled(lambdas.delays(work=0.0), by=0.05))  # real processes, real waits

How much of a recorded time was work decides what a task of another load takes, and when the parts
that a worker streams are there. Several recorded loads measure it; of one load it must be stated.

`kofn.engines.paced.Paced` holds back what a real worker did until it is due. It sleeps in slices
of 8 ms and looks at the round in between, so a straggler drops stale work within a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import BadInput
from .models import InTwoParts

Seconds = NDArray[np.float64]  # rounds x workers
Work = float | Literal["measured"]
APART = 0.381966  # of a recording (golden section: no turn comes back to where an early one was)


@dataclass(frozen=True, eq=False)
class Recording:
    """Timings of the same workers at one load or at several, each an array (rounds, workers).

    `loads` are fractions of the whole work, rising; `timings[i]` was recorded at `loads[i]`.
    """

    name: str
    loads: tuple[float, ...]
    timings: tuple[Seconds, ...]

    @property
    def workers(self) -> int:
        """How many workers were recorded, at every load."""
        return min(int(timing.shape[1]) for timing in self.timings)

    @property
    def rounds(self) -> int:
        """How many rounds were recorded, at every load."""
        return min(len(timing) for timing in self.timings)

    def at(self, load: float) -> Seconds:
        """Seconds (rounds, workers) at a load.

        Those of the nearest recorded load, each moved by as much as the medians of the recorded
        loads differ (straight lines between them and beyond): the stragglers stay those that were
        recorded, which a mean of two recordings would not leave.
        """
        nearest = int(np.argmin([abs(load - known) for known in self.loads]))
        seconds = self.timings[nearest]
        if load == self.loads[nearest]:
            return seconds
        return np.maximum(seconds + self._median(load) - self._medians[nearest], 0.0)

    def adds(self, load: float) -> float:
        """Seconds that a load takes in the median beyond one of nothing."""
        return self._median(load) - self._median(0.0)

    def delays(
        self,
        whole: float | None = None,
        start: int = 0,
        *,
        work: Work = "measured",
        slope: float | None = None,
    ) -> Recorded:
        """As a delay model. `whole`: units of work that make load 1.

        `work`: how much of a recorded time is work, which grows with the load and of which streamed
        parts are there one by one; the rest is a wait before it. "measured": what the recorded
        loads differ by in the median; that takes several, and `whole`. A number from 0 to 1: this
        fraction of each time at the largest recorded load. 0: every task waits as recorded,
        whatever its load. 1: a task of half the load takes half as long, stragglers too.
        `slope`: so many seconds of work at load 1, in place of what was recorded; what the smallest
        recorded load took beyond its own part of that is the wait.
        `start`: the row of the recording that round 1 begins with.
        """
        return Recorded(self, whole, start, work, slope)

    def _median(self, load: float) -> float:
        """Seconds in the median: straight lines between the recorded loads, and beyond."""
        loads, medians = self.loads, self._medians
        if len(loads) == 1:
            return medians[0]
        after = min(max(int(np.searchsorted(loads, load)), 1), len(loads) - 1)
        slope = (medians[after] - medians[after - 1]) / (loads[after] - loads[after - 1])
        return medians[after - 1] + slope * (load - loads[after - 1])

    @cached_property
    def _medians(self) -> tuple[float, ...]:
        return tuple(float(np.median(timing)) for timing in self.timings)


@dataclass(frozen=True)
class Recorded(InTwoParts):
    """Replays a recording: nothing is drawn, the same round gives the same times in every run.

    Worker w has the times of recorded worker w, round r those of row r - 1 + `start`; rows start
    anew at the recording's end. So who is slow stays slow as recorded. Of more workers than were
    recorded the others have the same times, some rounds apart: they are not slow together.
    A task of `cost` units has the load cost / whole. `work`: see `Recording.delays`.
    """

    recording: Recording
    whole: float | None = None
    start: int = 0
    work: Work = "measured"
    slope: float | None = None

    def __post_init__(self) -> None:
        if self.whole is not None and not self.whole > 0:
            raise BadInput(f"whole is the work of load 1 and must be > 0; got {self.whole!r}.")
        known = self.recording
        if self.slope is not None:
            if self.whole is None or not 0 <= self.slope < float("inf"):
                raise BadInput(
                    f"slope is the seconds >= 0 of load 1, and goes with whole, the units of work "
                    f"that make load 1; got slope={self.slope!r}, whole={self.whole!r}."
                )
        elif self.work == "measured":
            self._check_measured()
        elif not isinstance(self.work, int | float) or not 0 <= self.work <= 1:
            raise BadInput(
                f'work is "measured" or the fraction of a recorded time that is work, from 0 to 1; '
                f"got {self.work!r}."
            )
        elif self.work > 0 and (self.whole is None or not known.loads[-1] > 0):
            raise BadInput(
                f"work={self.work:g} grows with the load; got whole={self.whole!r}, and "
                f"{known.loads[-1]:g} as the largest load of {known.name}. Give the units of work "
                f"that make load 1 as whole=, or work=0.0 if all of it is a wait."
            )

    def _check_measured(self) -> None:
        known = self.recording
        remedy = (
            "State it: work=0.0 if a recorded time is a wait whatever the load, or whole= and "
            "work=, the fraction of a recorded time that grows with the load."
        )
        if len(known.loads) == 1:
            raise BadInput(
                f"how much of a recorded time is work is measured by several loads; {known.name} "
                f"has one. {remedy}"
            )
        if self.whole is None:
            raise BadInput(
                f"how much of a recorded time is work depends on the load of a task; "
                f"{known.name} has {len(known.loads)} loads, and whole, the units of work that "
                f"make load 1, is not given. Give whole=. {remedy}"
            )

    def timing(self, rng: Generator, worker: int, round: int, cost: float) -> tuple[float, float]:
        """The wait and the work of a task; see `Recording.delays` for what is which."""
        known = self.recording
        load = 0.0 if self.whole is None else cost / self.whole
        if self.slope is not None:
            least = known.loads[0]
            wait = self._row(least, worker, round) - self.slope * least
            return max(0.0, wait), self.slope * load
        if self.work == "measured":
            seconds = self._row(load, worker, round)
            work = min(seconds, max(0.0, known.adds(load)))
            return seconds - work, work
        seconds = self._row(known.loads[-1], worker, round)
        if self.work == 0:
            return seconds, 0.0
        work = self.work * seconds
        return seconds - work, work * load / known.loads[-1]

    def _row(self, load: float, worker: int, round: int) -> float:
        table = self._tables.get(load)
        if table is None:
            table = self._tables[load] = self.recording.at(load)
        turn, column = divmod(worker, table.shape[1])
        row = round - 1 + self.start + int(turn * APART * len(table))
        return float(table[row % len(table), column])

    @cached_property
    def _tables(self) -> dict[float, Seconds]:
        return {}  # by load: a run has few
