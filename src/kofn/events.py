"""The event log: what was sent and what arrived, in order. All that people look at is read here."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable

from .display import log_event
from .model import Dropped, Event, Leaving, Record, Reply, new

TASK_KINDS = frozenset(("send", "piece", "reply", "dropped"))  # of single tasks: nearly all records

# A record holds numbers and text, so it is in no cycle. But Python's collector looks through all of
# them again and again: 200,000 stop the master for some 100 ms, every few thousand rounds.
untrack: Callable[[Record], object] = id
if sys.implementation.name == "cpython":
    untrack = ctypes.pythonapi.PyObject_GC_UnTrack
    untrack.argtypes, untrack.restype = (ctypes.py_object,), None


_append = deque.append


class EventLog(deque[Record]):
    """The newest records. `marks` has those again that are not of single tasks.

    So a reader that falls behind can follow a run without looking at every task. Records of tasks
    are appended by `add`.
    """

    def __init__(self, records: Iterable[Record] = (), most: int | None = None) -> None:
        super().__init__(maxlen=most)
        self.marks: deque[Record] = deque(maxlen=most)
        for record in records:
            (self.add if record.kind in TASK_KINDS else self.append)(record)

    def add(self, record: Record) -> None:
        """Append a record of a single task."""
        untrack(record)
        _append(self, record)

    def append(self, record: Record) -> None:
        """Append a record that readers must not miss."""
        untrack(record)
        _append(self, record)  # first: what is in `marks` is here already
        self.marks.append(record)

    def note(self, event: Event) -> None:
        """Append the record of an event of the engine's."""
        if type(event) is Reply:
            time, worker, round, number, _, _, read, _, last = event
            kind = "reply" if last else "piece"
            self.add(new(Record, (time, kind, round, worker, number, read, "", ())))
            return
        kind, task = type(event).__name__.lower(), getattr(event, "task", None)
        round, worker = getattr(event, "round", -1), getattr(event, "worker", -1)
        if type(event) is Dropped:
            known = (("wait", event.wait), ("row", event.row))
            numbers = tuple((name, x) for name, x in known if x is not None)
            self.add(Record(event.time, kind, round, worker, event.task, event.read, "", numbers))
            return
        if type(event) is Leaving and event.deadline == float("inf"):
            kind = "staying"
        task, why = -1 if task is None else task, getattr(event, "reason", "")
        self.append(Record(event.time, kind, round, worker, task, 0, why))
        log_event(kind, worker, why)
