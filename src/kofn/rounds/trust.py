"""Who has been caught with wrong replies, and what is done about it."""

from __future__ import annotations

import logging
from collections import Counter

from ..events import EventLog
from ..model import Accuse, Lost, Record
from .roster import Roster

TWICE = 2  # once may be a cosmic ray; a worker that is caught so often computes wrongly


class Trust:
    """Counts the rounds in which each worker was caught. Caught twice, it is put aside.

    The driver ends a worker that is put aside, where the engine can: a process or a machine that
    computes wrongly is of no use. Elsewhere it counts as lost from then on. So its share is free
    for others, and with `keep` another worker is ordered for it.
    """

    def __init__(self) -> None:
        self.caught: Counter[int] = Counter()
        self.aside: set[int] = set()

    def accuse(
        self, command: Accuse, round: int, now: float, roster: Roster, records: EventLog
    ) -> list[Lost]:
        """Write it down; return the loss of the worker, if it is put aside now."""
        worker, why = command.worker, command.why
        log = logging.getLogger("kofn")
        records.append(Record(now, "wrong", round, worker, command.task, 0, why))
        self.caught[worker] += 1
        log.warning("worker %d sent a wrong reply in round %d: %s", worker, round, why)
        known = worker in self.aside or worker not in roster.kept
        if self.caught[worker] < TWICE or known:
            return []
        self.aside.add(worker)
        reason = f"put aside: {self.caught[worker]} wrong replies; the last: {why}"
        records.append(Record(now, "aside", round, worker, -1, 0, reason))
        log.warning("worker %d is given no more work (%s)", worker, reason)
        return [Lost(now, worker, (), reason)]
