"""Traces of a real run, from its event log: how long workers took, and who came and went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..delays import Recording, SpotTrace
from ..delays.traces import Event
from ..errors import BadInput
from ..model import Record
from ..report import Lanes, lanes


@dataclass(frozen=True, eq=False)
class Traces:
    """The timings and the membership of a run.

    Of rounds x workers times, `stopped` are too short: the worker was told to stop before its end.
    `filled` were not measured, because nobody was there; they are the median of their column.
    """

    timings: Recording
    membership: SpotTrace
    stopped: int
    filled: int


def record(log: Iterable[Record], whole: float | None = None, name: str = "run") -> Traces:
    """The traces of a run. `whole`: units of work of a round (default: all that a round sent).

    A worker that joins takes the column of one that was lost. A worker's time in a round is that of
    all its tasks. Where loads differ from round to round, times are scaled to the mean load.
    """
    records = list(log)
    seen = lanes(records)
    columns = _columns(seen)
    units: dict[int, float] = {r.task: r.rows for r in records if r.kind == "send"}
    sent: dict[int, float] = defaultdict(float)
    for r in records:
        if r.kind == "send":
            sent[r.round] += r.rows
    rounds = [one.id for one in seen.rounds if one.done and sent[one.id] > 0]
    row = {round: i for i, round in enumerate(rounds)}
    table = np.zeros((len(rounds), max(columns.values(), default=0) + 1))
    loads, short = np.zeros_like(table), np.zeros_like(table, dtype=bool)
    for lane in seen.lanes:
        for span in lane.spans:
            if span.round in row:
                at = row[span.round], columns[lane.worker]
                table[at] += span.end - span.start
                loads[at] += units[span.task] / (whole or sent[span.round])
                short[at] |= span.state not in ("used", "late")
    there = loads > 0
    keep = there.any(axis=1)
    table, loads, short, there = table[keep], loads[keep], short[keep], there[keep]
    if not len(table):
        raise BadInput("a log has rounds that were done, with tasks; this one has none.")
    load = float(loads[there].mean())
    table[there] *= load / loads[there]
    middle = float(np.median(table[there]))
    for column in range(table.shape[1]):
        known = there[:, column]
        table[~known, column] = np.median(table[known, column]) if known.any() else middle
    timings = Recording(name, (load,), (table,))
    return Traces(timings, _membership(seen, name), int(short.sum()), int((~there).sum()))


def _columns(seen: Lanes) -> dict[int, int]:
    """Which column each worker has."""
    columns: dict[int, int] = {}
    free: list[tuple[float, int]] = []  # since when, which
    for lane in sorted(seen.lanes, key=lambda lane: (lane.joined or seen.start, lane.worker)):
        came = seen.start if lane.joined is None else lane.joined
        open = [pair for pair in sorted(free) if pair[0] <= came]
        if open:
            free.remove(open[0])
        columns[lane.worker] = open[0][1] if open else len(set(columns.values()))
        if lane.lost is not None:
            free.append((lane.lost, columns[lane.worker]))
    return columns


def _membership(seen: Lanes, name: str) -> SpotTrace:
    events = []
    for lane in seen.lanes:
        came = 0.0 if lane.joined is None else max(0.0, lane.joined - seen.start)
        events.append(Event(came, True, f"worker{lane.worker}"))
        if lane.lost is not None:
            # The last notice that was not taken back.
            notices = [t for t in lane.leaving if all(not t <= s for s in lane.staying)]
            notice = lane.lost - notices[0] if notices else 0.0
            gone = max(came, lane.lost - seen.start)
            events.append(Event(gone, False, f"worker{lane.worker}", max(0.0, notice)))
    events.sort(key=lambda event: event.time)
    return SpotTrace(tuple(events), name, length=seen.end - seen.start)
