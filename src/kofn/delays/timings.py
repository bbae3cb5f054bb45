"""Files of recorded timings: read, checked and written. docs/simulate.md has the format."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..files import cause, name_of
from .recorded import Recording, Seconds
from .tables import Line, cells, read_rows, write_rows

_LOAD = re.compile(r"(.+)_load([0-9]*\.?[0-9]+)")
_COLUMNS = ("round", "worker", "seconds")
NAMED = 1 << 62  # stands for the number of a worker that has a name
Worker = tuple[int, str]  # by number, those with names last
Cell = tuple[int, Worker]  # a round of a worker
_BATCHES = ("job", "worker", "time", "batch_time_norm")


def read_timings(path: str | PathLike[str]) -> dict[str, Recording]:
    """Read recorded timings by name.

    .csv (.gz or not): the columns round, worker and seconds, and load if there were several; one
    recording, named as the file. A worker is a number or a name. Every worker has a line for every
    round (and load). Or Alibaba's mini-batch times: job, worker, time and batch_time_norm; each job
    is a recording `job<job>`, and 1 s here is the published scale's 1000.
    .npz: arrays (rounds, workers) of seconds, named `<name>_load<fraction>`, or just `<name>` for
    one of load 1.

    Raises BadInput, which names the line or the array, for whatever is empty, ragged, negative or
    no number.
    """
    where = Path(name_of(path))
    if not where.is_file():
        raise BadInput(f"recorded timings are an .npz or .csv file; {where} is not there.")
    if where.suffix == ".npz":
        return _from_arrays(where)
    if where.name.removesuffix(".gz").endswith(".csv"):
        lines = read_rows(where, "a table of timings", (_COLUMNS, _BATCHES))
        batches = set(_BATCHES) <= set(lines[0].row)
        return _from_batches(lines, where) if batches else _from_table(lines, where)
    raise BadInput(f"recorded timings are an .npz or .csv(.gz) file; got {where.name}.")


def write_timings(recording: Recording, path: str | PathLike[str]) -> None:
    """Write a recording as CSV, with the columns round, worker, seconds and load."""
    rows = (
        (round, worker, f"{seconds:.9g}", f"{load:.9g}")
        for load, table in zip(recording.loads, recording.timings, strict=True)
        for (round, worker), seconds in np.ndenumerate(table)
    )
    write_rows(path, (*_COLUMNS, "load"), rows, "the timings")


def _from_table(lines: list[Line], path: Path) -> dict[str, Recording]:
    by_load: dict[float, dict[Cell, float]] = defaultdict(dict)
    for number, row in lines:
        try:
            round, worker = _whole(row["round"]), _worker(row["worker"])
            seconds, load = float(row["seconds"]), float(row.get("load", 1.0))
        except (ValueError, OverflowError):
            raise BadInput(
                f"timings are {', '.join(_COLUMNS)} (a worker may have a name) and perhaps load, "
                f"all numbers; line {number} of {path} has {cells(row)}."
            ) from None
        if not (0 <= seconds < np.inf and 0 <= load < np.inf and round >= 0 and worker[0] >= 0):
            raise BadInput(
                f"every number of a timing is finite and >= 0; line {number} of {path} has "
                f"{cells(row)}."
            )
        if (round, worker) in by_load[load]:
            raise BadInput(
                f"a worker has one time in a round, at each load; line {number} of {path} is a "
                f"second one of worker {row['worker']} in round {round}."
            )
        by_load[load][round, worker] = seconds
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    grouped = [(load, _rectangle(cells, load, path)) for load, cells in by_load.items()]
    return _recordings({name: grouped}, path)


def _whole(text: str) -> int:
    """A whole number, which may be written as 3.0."""
    number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _worker(text: str) -> Worker:
    try:
        return _whole(text), ""
    except (ValueError, OverflowError):
        if not text:
            raise ValueError(text) from None
        return NAMED, text


def _rectangle(cells: Mapping[Cell, float], load: float, path: Path) -> Seconds:
    rounds, workers = sorted({key[0] for key in cells}), sorted({key[1] for key in cells})
    table = np.full((len(rounds), len(workers)), np.nan)
    at = {r: i for i, r in enumerate(rounds)}, {w: i for i, w in enumerate(workers)}
    for (round, worker), seconds in cells.items():
        table[at[0][round], at[1][worker]] = seconds
    if len(cells) < table.size:
        i, j = np.argwhere(np.isnan(table))[0]
        number, named = workers[j]
        raise BadInput(
            f"every worker has a time in every round, at each load; {path} has none of worker "
            f"{named or number} in round {rounds[i]} at load {load:g}. Leave the round or the "
            f"worker out."
        )
    return table


def _from_arrays(path: Path) -> dict[str, Recording]:
    grouped: dict[str, list[tuple[float, Seconds]]] = defaultdict(list)
    for key, table in read_arrays(path, "recorded timings").items():
        match = _LOAD.fullmatch(key)
        name, load = (match[1], float(match[2])) if match else (key, 1.0)
        if any(known == load for known, _ in grouped[name]):
            raise BadInput(
                f"a recording has one array for each load; {path} has a second one of {name} at "
                f"load {load:g}, {key}."
            )
        grouped[name].append((load, _checked(table, f"{key} of {path}")))
    return _recordings(grouped, path)


def read_arrays(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; `what` the caller calls it."""
    try:
        # np.load leaves a file of its own open where it fails.
        with open(path, "rb") as file:
            arrays = np.load(file)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is one array, an .npy file")
            with arrays:
                return {key: arrays[key] for key in arrays.files}
    except Exception as error:  # whatever NumPy and zipfile stumble over
        raise BadInput(
            f"{what} are an .npz file of numbers; {path} cannot be read: {cause(error)}."
        ) from None


def _from_batches(lines: list[Line], path: Path) -> dict[str, Recording]:
    times: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for number, row in lines:
        try:
            _, worker, time, spent = (float(row[name]) for name in _BATCHES)
            if not 0 <= spent < np.inf:
                raise ValueError(spent)
            times[row["job"]][int(worker)].append((time, spent / 1000))
        except (ValueError, OverflowError):
            raise BadInput(
                f"mini-batch times have the columns {', '.join(_BATCHES)}, all numbers >= 0; line "
                f"{number} of {path} has {cells(row)}."
            ) from None
    grouped: dict[str, list[tuple[float, Seconds]]] = {}
    for job, workers in times.items():
        rounds = min(len(seen) for seen in workers.values())  # some were seen a little longer
        columns = [[s for _, s in sorted(workers[w])[:rounds]] for w in sorted(workers)]
        grouped[f"job{job}"] = [(1.0, _checked(np.array(columns).T, f"job {job} of {path}"))]
    return _recordings(grouped, path)


def _checked(timing: NDArray[Any], where: str) -> Seconds:
    if timing.dtype.kind not in "fiu":
        raise BadInput(f"recorded timings are numbers; {where} holds {timing.dtype}.")
    table = np.asarray(timing, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise BadInput(
            f"recorded timings are arrays (rounds, workers); {where} has shape {table.shape}."
        )
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
    recordings = {}
    for name, pairs in grouped.items():
        pairs.sort(key=lambda pair: pair[0])
        recordings[name] = Recording(name, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    return recordings
