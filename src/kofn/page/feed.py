"""What feeds a page: a thread that follows a log in memory, and knows its own cost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from ..model import Record
from ..report.logs import Tail
from ..report.state import RunState

EVERY = 0.2  # seconds between two updates
SHARE = 0.0025  # of the time may go into looking at tasks one by one
SAVED = 10.0  # seconds for which time that was not used may be used later


class Feed:
    """The state of a run, kept up to date a few times a second. `changed` guards the state.

    Where there are more tasks than SHARE of the time is enough for, some rounds are not looked at
    task by task; their figures count all the same.
    """

    def __init__(
        self, log: deque[Record], engine: str, workers: Iterable[int], price: float | None
    ) -> None:
        self.state = RunState(engine, workers, price)
        self.changed = threading.Condition()
        self.version = 0
        self.spent = 0.0  # seconds of this thread's processor time
        self._tail = Tail(log)
        self._each = 5e-6  # seconds for a record
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kofn-page", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        allowed, last = SHARE * SAVED, time.monotonic()
        while not self._over.is_set():
            began = time.thread_time()
            allowed = min(SHARE * SAVED, allowed + SHARE * (time.monotonic() - last))
            last = time.monotonic()
            allowed -= self.update(int(max(0.0, allowed) / self._each))
            self.spent += time.thread_time() - began
            if self.state.closed:
                return
            self._over.wait(EVERY)

    def update(self, most: int | None = None) -> float:
        """Take in what is new; return the seconds that looking at tasks took."""
        records = self._tail.take()
        if not records:
            return 0.0
        with self.changed:
            began = time.thread_time()
            looked_at = self.state.take(records, most)
            took = time.thread_time() - began
            if looked_at > 100:
                self._each = 0.8 * self._each + 0.2 * took / looked_at
            self.version += 1
            self.changed.notify_all()
        return took

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
