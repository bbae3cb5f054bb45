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

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import BadInput
from ..files import said
from .models import Delays
from .tables import read_rows

Seconds = NDArray[np.float64]  # rounds x workers
Work = float | Literal["measured"]
_LOAD = re.compile(r"(.+)_load([0-9]*\.?[0-9]+)")
_COLUMNS = ("job", "worker", "time", "batch_time_norm")


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
        found = self.timings[nearest]
        if load == self.loads[nearest]:
            return found
        return np.maximum(found + self._median(load) - self._medians[nearest], 0.0)

    def adds(self, load: float) -> float:
        """Seconds that a load takes in the median beyond one of nothing."""
        return self._median(load) - self._median(0.0)

    def delays(
        self, whole: float | None = None, start: int = 0, *, work: Work = "measured"
    ) -> Recorded:
        """As a delay model. `whole`: units of work that make load 1.

        `work`: how much of a recorded time is work, which grows with the load and of which streamed
        parts are there one by one; the rest is a wait before it. "measured": what the recorded
        loads differ by in the median; that takes several, and `whole`. A number from 0 to 1: this
        fraction of each time at the largest recorded load. 0: every task waits as recorded,
        whatever its load. 1: a task of half the load takes half as long, stragglers too.
        `start`: the row of the recording that round 1 begins with.
        """
        return Recorded(self, whole, start, work)

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
class Recorded(Delays):
    """Replays a recording: nothing is drawn, the same round gives the same times in every run.

    Worker w has the times of recorded worker w, round r those of row r - 1 + `start`; both start
    anew at the recording's end. So who is slow stays slow as recorded. A task of `cost` units has
    the load cost / whole. `work`: see `Recording.delays`.
    """

    recording: Recording
    whole: float | None = None
    start: int = 0
    work: Work = "measured"

    def __post_init__(self) -> None:
        if self.whole is not None and not self.whole > 0:
            raise BadInput(f"whole is the work of load 1 and must be > 0; got {self.whole!r}.")
        known = self.recording
        if self.work == "measured":
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
        if self.work == "measured":
            seconds = self._row(load, worker, round)
            work = min(seconds, max(0.0, known.adds(load)))
            return seconds - work, work
        seconds = self._row(known.loads[-1], worker, round)
        if self.work == 0:
            return seconds, 0.0
        work = self.work * seconds
        return seconds - work, work * load / known.loads[-1]

    def seconds(self, rng: Generator, worker: int, round: int, cost: float) -> float:
        return sum(self.timing(rng, worker, round, cost))

    def _row(self, load: float, worker: int, round: int) -> float:
        table = self._tables.get(load)
        if table is None:
            table = self._tables[load] = self.recording.at(load)
        return float(table[(round - 1 + self.start) % len(table), worker % table.shape[1]])

    @cached_property
    def _tables(self) -> dict[float, Seconds]:
        return {}  # by load: a run has few


def read_timings(path: str | PathLike[str]) -> dict[str, Recording]:
    """Read recorded timings by name: an .npz of arrays, or Alibaba's CSV of mini-batch times.

    .npz: arrays (rounds, workers) of seconds, named `<name>_load<fraction>`, or just `<name>` for
    one of load 1. CSV (.gz or not): the columns job, worker, time and batch_time_norm; each job is
    a recording named `job<job>`. Its times have no unit: 1 s here is the published scale's 1000.
    """
    where = Path(fspath(path))
    if not where.is_file():
        raise BadInput(f"recorded timings are an .npz or .csv file; {where} is not there.")
    if where.suffix == ".npz":
        return _from_arrays(where)
    if where.name.removesuffix(".gz").endswith(".csv"):
        return _from_csv(where)
    raise BadInput(f"recorded timings are an .npz or .csv(.gz) file; got {where.name}.")


def _from_arrays(path: Path) -> dict[str, Recording]:
    grouped: dict[str, list[tuple[float, Seconds]]] = defaultdict(list)
    for key, table in _arrays(path).items():
        found = _LOAD.fullmatch(key)
        name, load = (found[1], float(found[2])) if found else (key, 1.0)
        grouped[name].append((load, _checked(table, f"{key} of {path}")))
    return _recordings(grouped, path)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # np.load leaves a file of its own open where it fails.
        with open(path, "rb") as file, np.load(file) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except Exception as error:  # whatever NumPy and zipfile stumble over
        raise BadInput(
            f"recorded timings are an .npz file of numbers; {path} cannot be read: {said(error)}."
        ) from None


def _from_csv(path: Path) -> dict[str, Recording]:
    times: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for line, row in enumerate(read_rows(path, "a table of mini-batch times"), 2):
        try:
            _, worker, time, spent = (float(row[name]) for name in _COLUMNS)
            times[row["job"]][int(worker)].append((time, spent / 1000))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise BadInput(
                f"mini-batch times have the columns {', '.join(_COLUMNS)}, all numbers; line "
                f"{line} of {path} is {dict(row)}."
            ) from None
    grouped: dict[str, list[tuple[float, Seconds]]] = {}
    for job, workers in times.items():
        rounds = min(len(seen) for seen in workers.values())  # some were seen a little longer
        columns = [[s for _, s in sorted(workers[w])[:rounds]] for w in sorted(workers)]
        grouped[f"job{job}"] = [(1.0, _checked(np.array(columns).T, f"job {job} of {path}"))]
    return _recordings(grouped, path)


def _checked(timing: NDArray[Any], where: str) -> Seconds:
    given = np.asarray(timing)
    if given.ndim != 2 or not given.size or given.dtype.kind not in "fiu":
        raise BadInput(
            f"recorded timings are arrays (rounds, workers) of numbers; {where} has shape "
            f"{given.shape} of {given.dtype}."
        )
    table = given.astype(np.float64)
    if not (np.isfinite(table).all() and table.min() >= 0):
        bad = tuple(int(i) for i in np.argwhere(~(np.isfinite(table) & (table >= 0)))[0])
        raise BadInput(
            f"recorded timings are seconds >= 0; {where} has {table[bad]} in round {bad[0]}, "
            f"worker {bad[1]}."
        )
    return table


def _recordings(
    grouped: Mapping[str, list[tuple[float, Seconds]]], path: Path
) -> dict[str, Recording]:
    if not grouped:
        raise BadInput(f"recorded timings hold at least one recording; {path} is empty.")
    found = {}
    for name, pairs in grouped.items():
        pairs.sort(key=lambda pair: pair[0])
        found[name] = Recording(name, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    return found
