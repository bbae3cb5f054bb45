"""The event log as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, nan
from typing import Any

from ..model import Record
from .spans import lanes

WORKERS, MASTER = 1, 2  # "processes" of the trace
SAID = ("lost", "joined", "leaving", "staying", "ordered", "refused")


def trace(log: Iterable[Record]) -> dict[str, Any]:
    """Return the trace as JSON: {"traceEvents": [...]}; its clock begins with the log.

    A thread for each worker, with its tasks as slices, and in a task that was only partly in time a
    slice for what was. Rounds are slices of the master's. Counters: live workers, the threshold,
    the loss. Losses, joins and notices are instants.
    """
    records = list(log)
    seen = lanes(records)
    out: list[dict[str, Any]] = [_name("process_name", WORKERS, 0, "workers")]
    out += [_name("process_name", MASTER, 0, "master"), _name("thread_name", MASTER, 1, "rounds")]

    def at(time: float) -> float:
        # Whole nanoseconds: an end must not pass the next start by rounding.
        return round((time - seen.start) * 1e9) / 1e3

    def slice(pid: int, tid: int, name: str, start: float, end: float, **args: Any) -> None:
        began = at(start)
        # The difference of the rounded ends, so that neighbours touch and do not overlap.
        length = round(1e3 * (at(end) - began)) / 1e3
        event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": began, "dur": length}
        out.append(event | {"args": args})

    for lane in seen.lanes:
        tid = lane.worker + 1  # 0 is the process itself
        out.append(_name("thread_name", WORKERS, tid, f"worker {lane.worker}"))
        for span in lane.spans:
            args: dict[str, Any] = {"state": span.state, "asked": span.asked, "in_time": span.came}
            slice(WORKERS, tid, f"round {span.round}", span.start, span.end, **args)
            if span.start < span.used_until < span.end:
                slice(WORKERS, tid, "in time", span.start, span.used_until)
    words = {r.round: r.why for r in records if r.kind == "round"}
    for one in seen.rounds:
        args = {"done": one.done, "what": words.get(one.id, "")}
        slice(MASTER, 1, f"round {one.id}", one.start, one.end, **args)
    live = {lane.worker for lane in seen.lanes if lane.joined is None}
    out.append(_counter("live workers", 0.0, len(live)))
    threshold = 0
    for record in records:
        if record.kind in SAID:
            tid = record.worker + 1 if record.worker >= 0 else 0
            text = f"{record.kind}{': ' + record.why if record.why else ''}"
            event = {"ph": "i", "s": "t", "pid": WORKERS, "tid": tid, "name": text}
            out.append(event | {"ts": at(record.time)})
        if record.kind in ("lost", "joined"):
            (live.add if record.kind == "joined" else live.discard)(record.worker)
            out.append(_counter("live workers", at(record.time), len(live)))
        elif record.kind == "round" and record.rows != threshold:
            threshold = record.rows
            out.append(_counter("threshold", at(record.time), threshold))
        elif record.kind == "loss" and isfinite(loss := dict(record.numbers).get("loss", nan)):
            out.append(_counter("loss", at(record.time), loss))
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def _name(what: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": text}}


def _counter(name: str, ts: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "pid": MASTER, "tid": 0, "name": name, "ts": ts, "args": {"value": value}}
