"""Workers that announced when they leave: which are still given work, and how they end.

A notice is a Leaving event. Until its deadline a worker takes part as before, as long as a round is
likely to end in time: `in_time` is the one rule for that, of plans, sums and running rounds. At the
deadline it counts as lost: others do what it owes, and it is given nothing more. `GRACE` seconds
later it is asked whether it is still there. If it says anything, it stays: the notice came to
nothing. If it is silent for `GRACE` seconds more, it is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from ..engines.base import Engine
from ..model import Event, Leaving, Lost
from .roster import Roster

MARGIN = 2.0  # a round may take so many times as long as the longest of the last few
LAST = 8  # rounds
CLOCKS = 0.05  # seconds by which a deadline may be off: it is by the clock of another machine
GRACE = 5.0  # seconds
STILL_THERE = "still-there"  # the key of what a worker is asked to keep, to hear from it


def in_time(deadline: float, began: float, usual: float) -> bool:
    """Whether a worker is likely to see the end of a round; `usual`: seconds, 0 where unknown."""
    return began < latest(deadline, usual)


def latest(deadline: float, usual: float) -> float:
    """The time from which on a round begins too late for a worker with this deadline."""
    return deadline - MARGIN * usual - CLOCKS


class Usual:
    """How long rounds of one kind take: `seconds`, those of the longest of the last few."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last: deque[float] = deque(maxlen=LAST)

    def learn(self, seconds: float) -> None:
        """A round has taken so long."""
        self._last.append(seconds)
        self.seconds = max(self._last)

    def too_soon(self, leaving: Mapping[int, float], now: float) -> set[int]:
        """Those that will be gone before a round that begins now has surely ended."""
        return {w for w, deadline in leaving.items() if not in_time(deadline, now, self.seconds)}


class Due(NamedTuple):
    """What is to be done about one worker; all of it may be due at once."""

    worker: int
    over: bool = False  # the round is to be told that its time is over
    ask: bool = False  # ask whether it is still there
    end: bool = False


class Departures:
    """What is done about those that leave, and when."""

    def __init__(self, roster: Roster) -> None:
        self._leaving = roster.leaving
        self._over: dict[int, float] = {}  # worker -> its deadline, which has passed
        self._asked: dict[int, float] = {}  # worker -> when

    def due(self, now: float) -> Iterator[Due]:
        """Yield what is due by now, each step of each worker once."""
        leaving = self._leaving
        # Who is lost, stays, or has another deadline now begins anew.
        self._over = {w: at for w, at in self._over.items() if leaving.get(w) == at}
        self._asked = {w: at for w, at in self._asked.items() if w in self._over}
        for worker, deadline in list(leaving.items()):
            if deadline > now:
                continue
            over = worker not in self._over
            ask = worker not in self._asked and deadline + GRACE <= now
            end = worker in self._asked and self._asked[worker] + GRACE <= now
            self._over[worker] = deadline
            if ask:
                self._asked[worker] = now
            if end:
                self._asked[worker] = inf  # once is enough; its Lost is on the way
            if over or ask or end:
                yield Due(worker, over, ask, end)

    def see_off(
        self, engine: Engine, now: float, put: Callable[[int, str, None], None]
    ) -> list[Event]:
        """Do what is due; return what a round is to be told: whose time is over."""
        over: list[Event] = []
        for due in self.due(now):
            if due.over:
                over.append(Leaving(now, due.worker, self._leaving[due.worker]))
            if due.ask:
                put(due.worker, STILL_THERE, None)
            if due.end and engine.capabilities.can_lose:
                engine.give_up(due.worker)
        return over

    def next(self) -> float:
        """When something is due again."""
        return min((self._next(*one) for one in self._leaving.items()), default=inf)

    def _next(self, worker: int, deadline: float) -> float:
        if self._over.get(worker) != deadline:
            return deadline
        return self._asked.get(worker, deadline) + GRACE

    def returned(self, events: Iterable[Event]) -> list[Leaving]:
        """Notices taken back: of those that were asked, and have said something since."""
        notices: dict[int, Leaving] = {}
        for event in events if self._asked else ():
            worker = getattr(event, "worker", -1)
            if worker in self._asked and type(event) is not Lost and worker in self._leaving:
                notices[worker] = Leaving(event.time, worker, inf, "it is still there")
        return list(notices.values())
