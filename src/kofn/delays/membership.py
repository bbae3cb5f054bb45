"""Files with the times at which machines came and went: read, checked and written.

docs/simulate.md has the four forms: events, counts, availability with prices, lifetimes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, TraceWarning
from ..files import name_of
from .lifetimes import Lifetimes
from .tables import Line, cells, read_rows, write_rows
from .timings import read_arrays
from .traces import Event, Price, SpotTrace

UNITS = {"time_ms": 1e-3, "time_s": 1.0, "time_h": 3600.0}
LOCAL = "time_local"
PRICE = "price_usd_per_h"
YEAR = 366 * 86400.0
MOST = 1_000_000  # machines at a time
_FORMS = (
    "a time (time_ms, time_s, time_h or time_local) with event and node, or with instances; or "
    "lifetime_s and end_event"
)


def read_membership(path: str | PathLike[str]) -> dict[str, SpotTrace | Lifetimes]:
    """Read which machines were there when, by name; a CSV file has one, named as the file.

    .csv (.gz or not), by its columns: a time with event (add or remove) and node, perhaps
    notice_s; a time with instances, perhaps price_usd_per_h; or lifetime_s and end_event. .npz:
    `<name>/available` (instances at each tick), `<name>/gap_seconds` and perhaps
    `<name>/price_usd_per_h`.

    Raises BadInput, which names the line, for whatever is empty, ragged, negative or no number.
    Where the clock steps back the lines are sorted, with a TraceWarning that names the first.
    """
    where = Path(name_of(path))
    if where.suffix == ".npz":
        return dict(_availability(where))
    name = where.name.removesuffix(".gz").removesuffix(".csv")
    lines = read_rows(where, "a trace of machines")
    columns = set(lines[0].row)
    if {"lifetime_s", "end_event"} <= columns:
        return {name: _lifetimes(lines, where)}
    clock = next((column for column in (*UNITS, LOCAL) if column in columns), None)
    if clock is None or not ({"event", "node"} <= columns or "instances" in columns):
        raise BadInput(f"a trace of machines has {_FORMS}; {where} has {', '.join(lines[0].row)}.")
    ordered = _ordered(lines, clock, where)
    if "instances" in columns:
        return {name: _counts(ordered, where)}
    return {name: _events(ordered, where)}


def read_spot_trace(path: str | PathLike[str]) -> SpotTrace:
    """Read the one trace of a CSV file, gzipped or not, as `read_membership` does.

    It starts with the machines that are there at time 0.
    """
    if Path(name_of(path)).suffix == ".npz":
        raise BadInput(
            f"a spot trace is a CSV file, gzipped or not; {fspath(path)} may have several. Use "
            f"read_membership(...)."
        )
    (trace,) = read_membership(path).values()
    if not isinstance(trace, SpotTrace):
        raise BadInput(
            f"a spot trace says when machines came and went; {fspath(path)} has their lifetimes. "
            f"Use read_membership(...) and its offer(workers)."
        )
    if not any(event.time <= 0 for event in trace.events):
        raise BadInput(
            f"a spot trace starts with the nodes that are there at time 0; {fspath(path)} has none."
        )
    return SpotTrace(trace.events, fspath(path), trace.prices, trace.length)


def write_membership(trace: SpotTrace, path: str | PathLike[str]) -> None:
    """Write a trace as CSV, with the columns time_s, event, node and notice_s."""
    rows = (
        (f"{time:.6f}", "add" if added else "remove", node, f"{notice:g}")
        for time, added, node, notice in trace.events
    )
    write_rows(path, ("time_s", "event", "node", "notice_s"), rows, "the trace")


def _ordered(lines: list[Line], clock: str, path: Path) -> list[tuple[float, Line]]:
    """Each line with its time in seconds from the first, in the order of time."""
    timed: list[tuple[float, Line]] = []
    for line in lines:
        try:
            text = line.row[clock]
            if clock == LOCAL:
                date = datetime.fromisoformat(text)
                # Without a zone it is UTC: no hour is twice, or missing, whatever zone is here.
                time = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
            else:
                time = float(text) * UNITS[clock]
                if not 0 <= time < float("inf"):
                    raise ValueError(text)
        except ValueError:
            raise BadInput(
                f"{clock} of a trace of machines is "
                f"{'a date and time' if clock == LOCAL else 'a number >= 0'}; line {line.number} "
                f"of {path} has {line.row[clock]!r}."
            ) from None
        timed.append((time, line))
    back = [timed[i][1].number for i in range(1, len(timed)) if timed[i][0] < timed[i - 1][0]]
    if back:
        warnings.warn(
            f"the clock of a trace goes forward; in {path} it steps back at line {back[0]}"
            f"{f', and {len(back) - 1} times more' if len(back) > 1 else ''}. The lines were "
            f"sorted.",
            TraceWarning,
            stacklevel=3,
        )
        timed.sort(key=lambda pair: pair[0])
    # What is beyond a year counts from 1970 or so, not from the trace's start.
    first = timed[0][0] if clock == LOCAL or timed[0][0] > YEAR else 0.0
    return [(time - first, line) for time, line in timed]


def _events(ordered: list[tuple[float, Line]], path: Path) -> SpotTrace:
    events: list[Event] = []
    alive: set[str] = set()
    for time, (number, row) in ordered:
        kind, node = row["event"], row["node"]
        notice = _number(row, "notice_s", number, path) if "notice_s" in row else 0.0
        if kind not in ("add", "remove") or not node:
            raise BadInput(
                f"an event of a spot trace is to add or remove a named node, in the columns event "
                f"and node; line {number} of {path} has {cells(row)}."
            )
        added = kind == "add"
        if added == (node in alive):
            state = "is there already" if added else "is not there"
            raise BadInput(f"line {number} of {path} would {kind} {node!r}, which {state}.")
        (alive.add if added else alive.discard)(node)
        events.append(Event(time, added, node, 0.0 if added else notice))
    return SpotTrace(tuple(events), str(path))


def _counts(ordered: list[tuple[float, Line]], path: Path) -> SpotTrace:
    times, counts, prices = [], [], []
    for time, (number, row) in ordered:
        count = _number(row, "instances", number, path)
        if count != int(count):
            raise BadInput(
                f"instances of a trace are counted; line {number} of {path} has {count!r}."
            )
        if count > MOST:
            raise BadInput(
                f"instances of a trace are {MOST:,} at most; line {number} of {path} has {count:g}."
            )
        times.append(time)
        counts.append(int(count))
        if PRICE in row:
            prices.append(Price(time, _number(row, PRICE, number, path)))
    return _of_counts(zip(times, counts, strict=True), prices, times[-1], str(path))


def _number(row: dict[str, str], column: str, number: int, path: Path) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and value >= 0):
        raise BadInput(
            f"{column} of a trace is a number >= 0; line {number} of {path} has {row[column]!r}."
        )
    return value


def _of_counts(
    counts: Iterable[tuple[float, int]], prices: Iterable[Price], length: float, name: str
) -> SpotTrace:
    """Counts as events. Which machine goes is not known: one is drawn, always the same."""
    rng = np.random.default_rng(0)
    events: list[Event] = []
    alive: list[str] = []
    came = 0
    for time, count in counts:
        for _ in range(count - len(alive)):
            alive.append(f"node{came}")
            events.append(Event(time, True, alive[-1]))
            came += 1
        for _ in range(len(alive) - count):
            events.append(Event(time, False, alive.pop(int(rng.integers(len(alive))))))
    steps: list[Price] = []
    for price in prices:
        if not steps or steps[-1].usd_per_hour != price.usd_per_hour:
            steps.append(price)
    return SpotTrace(tuple(events), name, tuple(steps), length)


def _availability(path: Path) -> Iterable[tuple[str, SpotTrace]]:
    arrays = read_arrays(path, "traces of availability")
    names = sorted({key.rpartition("/")[0] for key in arrays if key.endswith("/available")})
    if not names:
        raise BadInput(
            f"traces of availability are arrays <name>/available with <name>/gap_seconds; {path} "
            f"has {', '.join(sorted(arrays)[:4]) or 'none'}."
        )
    for name in names:
        gap = arrays.get(f"{name}/gap_seconds")
        real = gap is not None and gap.size == 1 and gap.dtype.kind in "iuf"
        if gap is None or not real or not 0 < gap.item() < float("inf"):
            raise BadInput(
                f"a trace of availability has <name>/gap_seconds > 0; {name} of {path} has {gap}."
            )
        available = _ticks(arrays[f"{name}/available"], f"{name}/available of {path}", whole=True)
        prices = arrays.get(f"{name}/{PRICE}")
        cost = () if prices is None else _ticks(prices, f"{name}/{PRICE} of {path}")
        if prices is not None and len(cost) != len(available):
            raise BadInput(
                f"a trace has a price for each tick; {name} of {path} has {len(cost)} prices and "
                f"{len(available)} ticks."
            )
        tick = float(gap.item())
        counts = [(i * tick, int(n)) for i, n in enumerate(available)]
        steps = [Price(i * tick, float(usd)) for i, usd in enumerate(cost)]
        yield name, _of_counts(counts, steps, len(available) * tick, name)


def _ticks(values: NDArray[Any], where: str, whole: bool = False) -> NDArray[Any]:
    if values.dtype.kind not in ("iu" if whole else "iuf") or values.ndim != 1 or not values.size:
        raise BadInput(
            f"a trace has one {'count' if whole else 'number'} for each tick; {where} is "
            f"{values.dtype}, of shape {values.shape}."
        )
    wrong = ~(np.isfinite(values) & (values >= 0))
    if whole:
        wrong |= values > MOST
    if wrong.any():
        bad = int(np.argmax(wrong))
        most = f", {MOST:,} at most" if whole else ""
        raise BadInput(f"a trace has numbers >= 0{most}; {where} has {values[bad]} at tick {bad}.")
    return values


def _lifetimes(lines: list[Line], path: Path) -> Lifetimes:
    seconds = [_number(row, "lifetime_s", number, path) for number, row in lines]
    ended = [row["end_event"] == "preempted" for _, row in lines]
    return Lifetimes(tuple(seconds), tuple(ended), str(path))
