"""The feed of a page: a thread that follows a log in memory, and knows its own cost."""

from __future__ import annotations

import os
import threading
import time

from ..events import TASK_KINDS, EventLog
from ..report.choice import eventful
from ..report.logs import Tail
from ..report.state import RunState
from ..report.usage import Gauged, Usage

EVERY = 0.2  # seconds between two updates
SHARE = 0.003  # of the time may go into tasks
MOST = 12.0 * SHARE  # seconds that may be saved up for later, or be spent beforehand


def crowding() -> float:
    """How many times as long everything takes here, as more want to run than there are cores."""
    try:
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except OSError:  # not to be had
        return 1.0


class Feed:
    """The state of a run, kept up to date a few times a second. `changed` guards the state.

    It takes at most SHARE of the time. Where tasks are too many for that, it skips those of some
    rounds, and in some stretches of the log all but the marks; the figures of all rounds still
    count.
    """

    def __init__(self, log: EventLog, state: RunState, used: Gauged | None = None) -> None:
        self.state = state
        self.changed = threading.Condition()
        self.version = 0
        self.spent = 0.0  # seconds of this thread's processor time
        self._tail, self._marks = Tail(log), Tail(log.marks)
        self._usage = None if used is None else Usage(used)
        self._each = 5e-6  # seconds for a record that is looked at
        self._enough = 0.0  # seconds for a stretch of the log and one round in it
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kofn-page", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        allowed, last = MOST, time.monotonic()
        while True:
            over = self._over.is_set()  # then this is the last look
            began = time.thread_time()
            allowed = min(MOST, allowed + SHARE / crowding() * (time.monotonic() - last))
            last = time.monotonic()
            allowed -= self.update(allowed)
            if self._usage is not None and (records := self._usage.records()):
                with self.changed:
                    self.state.take(records)
                    self._notify()
            self.spent += time.thread_time() - began
            if over or self.state.closed:
                return
            self._over.wait(EVERY)

    def update(self, allowed: float) -> float:
        """Take in what is new; return the seconds that tasks took. `allowed`: so many may."""
        marks = self._marks.take()
        wanted = self.state.unsettled or eventful(marks)
        if allowed < (-MOST if wanted else min(MOST, self._enough)):
            if marks:
                self._tail.seek(marks[-1])
                with self.changed:
                    self.state.pass_over(marks)
                    self._notify()
            return 0.0
        began = time.thread_time()
        records = self._tail.take()
        if not records:
            return 0.0
        newest = next((r for r in reversed(records) if r.kind not in TASK_KINDS), None)
        if newest is not None:
            self._marks.seek(newest)
        went_through = time.thread_time() - began
        with self.changed:
            looked_at = self.state.take(records, int(max(0.0, allowed) / self._each))
            took = time.thread_time() - began
            if looked_at > 100:
                self._each = 0.8 * self._each + 0.2 * (took - went_through) / looked_at
            rounds = sum(r.kind == "round" for r in marks)
            if rounds:
                self._enough = 2 * went_through + self._each * len(records) / rounds
            self._notify()
        return took

    def _notify(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def wait(self, version: int, seconds: float) -> bool:
        """Wait, with `changed` held, for another version than this; whether there is one."""
        self.changed.wait_for(lambda: self.version != version or self._over.is_set(), seconds)
        return self.version != version

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._over.set()
        self._thread.join()
        with self.changed:
            self.changed.notify_all()
