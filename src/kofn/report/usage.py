"""CPU and memory of workers, for those who follow a run; never read by the master's thread."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Protocol

from ..model import Record

EVERY = 2.0  # seconds between two looks, at least
SHARE = 1e-3  # of the time, at most
NOBODY = 60.0  # seconds until the next look where nothing could be read


class Gauged(Protocol):
    """What an engine has for this (see `kofn.engines.base.Engine`)."""

    def usage(self) -> Mapping[int, Mapping[str, float]]: ...
    def now(self) -> float: ...


class Usage:
    """Looks at an engine's workers; it does not keep the engine from being dropped."""

    def __init__(self, engine: Gauged) -> None:
        self._engine = weakref.ref(engine)
        self._due = float("-inf")

    def records(self) -> list[Record]:
        """A record for each worker of which something is known; none before it is time again."""
        engine, began = self._engine(), time.monotonic()
        if engine is None or began < self._due:
            return []
        used, now = engine.usage(), engine.now()
        took = time.monotonic() - began
        self._due = began + max(EVERY if any(used.values()) else NOBODY, took / SHARE)
        return [
            Record(now, "usage", -1, worker, -1, 0, "", tuple(numbers.items()))
            for worker, numbers in used.items()
            if numbers
        ]
