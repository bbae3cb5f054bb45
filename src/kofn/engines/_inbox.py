"""What threads hand to the master: a queue that an interrupted wait takes nothing from."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from ..interrupts import opened

T = TypeVar("T")


class Inbox(Generic[T]):
    """Any thread may put; one takes, and waits where interrupts may come out."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # nothing is lost with what it holds

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._wakeups.put(None)

    def wait(self, timeout: float) -> None:
        """Return when there may be something to take, or after so many seconds."""
        while not self._wakeups.empty():  # before the look: who puts later wakes later
            self._wakeups.get_nowait()
        if not self._items and timeout > 0:
            with suppress(Empty), opened():
                self._wakeups.get(timeout=min(timeout, 1e6))

    def take(self) -> T | None:
        """Return the oldest item, None if there is none."""
        return self._items.popleft() if self._items else None
