"""A round of a coded sum: every slot's holder walks its symbols, a stop rule closes the round.

No work is sent twice and nobody is waited for: what decodes is a matter of the code, when to stop
a matter of the rule. A newcomer that takes the slot of a lost worker walks its symbols from the
start; those that had come already are known and count once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ..model import (
    Command,
    Dropped,
    Event,
    Failed,
    Joined,
    Lost,
    Reply,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from .base import Round
from .stop import RoundStatus, Stop

Enough = Callable[[float, bool], bool]  # of the fraction covered, and whether the sum is exact


class Tally(Protocol):
    """What has come, and whether it is enough."""

    def take(self, slot: int, first: int, last: int, value: Any) -> int:
        """Take the symbols `first` up to `last` of a slot; how many of them were new."""

    @property
    def exact(self) -> bool:
        """Whether the exact sum is there, as well as it can be had."""

    def lacking(self, over: Collection[int], enough: Enough) -> int:
        """How many more slots, besides those that are `over`, are surely enough."""

    @property
    def decodable(self) -> bool:
        """Whether it is there at all: one more symbol might still make it more accurate."""

    @property
    def covered(self) -> float:
        """The fraction of the parts that are in the sum."""


class Work(Protocol):
    """What a sum's round needs to know of the work it does."""

    key: str  # of the parts that workers must hold

    def task(self, round: int, worker: int, slot: int) -> Task:
        """Make the task of a slot: all its symbols, in order."""


class GatherRound(Round):
    """`ready` (worker -> slot) take part from the start, `shares` names those too that join later.

    `resting` are far behind with earlier rounds, and asked when they answer, or when nobody else is
    left to ask.
    Who has a slot and whose parts are on their way is waited for, but for `refused`, who could not
    take them.
    """

    threshold = 1
    late = ()  # nobody stands in for anybody

    def __init__(
        self,
        id: int,
        ready: Mapping[int, int],
        shares: Mapping[int, int],
        work: Work,
        tally: Tally,
        stop: Stop,
        resting: Collection[int] = (),
        refused: Collection[int] = (),
    ) -> None:
        self.id = id
        self.read: dict[int, int] = {}  # parts evaluated, by worker
        self.used = self.wasted = 0  # symbols
        self.finished: list[int] = []  # workers, in the order in which they ended
        self.lost: list[int] = []
        self.joined: list[int] = []
        self._slots = dict(ready)
        self._out = set(refused)  # and those that were lost
        self._shares, self._work, self.tally, self._stop = shares, work, tally, stop
        self._resting = set(resting)
        self._open: dict[int, int] = {}  # task -> worker
        self._over: set[int] = set()  # slots all of whose work is here
        self._start = 0.0
        self._seconds, self._asks_at = 0.0, float("inf")  # that have passed; the rule's next
        self._lacking = 0  # slots that somebody must join for

    def start(self, time: float) -> list[Command]:
        self._start = time
        self._set_wake()
        commands: list[Command] = [self._send(w) for w in self._slots if w not in self._resting]
        return [*commands, *self._judge()]

    def on(self, event: Event) -> Sequence[Command]:
        commands: Sequence[Command] = ()
        if self.done:
            return commands
        # start + s - start may be less than s: what counts is that the end is reached.
        due = self._asks_at if event.time >= self.wake else 0.0
        self._seconds = max(self._seconds, event.time - self._start, due)
        if (type(event) is Reply or type(event) is Dropped) and event.round != self.id:
            return self._answered(event.worker)
        if type(event) is Reply:
            self._replied(event)
        elif type(event) is Lost:
            if self._slots.pop(event.worker, None) is not None:
                self.lost.append(event.worker)
            self._resting.discard(event.worker)
            self._out.add(event.worker)
            self._open = {t: w for t, w in self._open.items() if w != event.worker}
        elif type(event) is Joined:
            self.joined.append(event.worker)
            commands = [Supply(event.worker)]
        elif type(event) is Stored:
            commands = self._stored(event)
        elif type(event) is Dropped:
            self._open.pop(event.task, None)
        elif type(event) is Failed and event.key == self._work.key:
            self._out.add(event.worker)
        elif type(event) is Tick:
            self._set_wake()
        return [*commands, *self._judge()]

    @property
    def missing(self) -> int:
        return 0 if self._lacking and self._coming() else self._lacking

    @property
    def live(self) -> int:
        return len(self._slots)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted({*self._open.values(), *self._resting} or self._coming()))

    @property
    def unanswered(self) -> tuple[int, ...]:
        return tuple(sorted({*self._open.values(), *self._resting}))

    def _coming(self) -> set[int]:
        """Whose parts are on their way."""
        return self._shares.keys() - self._slots.keys() - self._out

    def _set_wake(self) -> None:
        self._asks_at = self._stop.after(self._seconds)
        self.wake = self._start + self._asks_at

    def _send(self, worker: int) -> Send:
        task = self._work.task(self.id, worker, self._slots[worker])
        self._open[task.id] = worker
        return Send(task)

    def _answered(self, worker: int) -> Sequence[Command]:
        """It has ended something of an earlier round: whoever rested is at work again."""
        if worker not in self._resting:
            return ()
        self._resting.discard(worker)
        return [self._send(worker)]

    def _stored(self, event: Stored) -> Sequence[Command]:
        slot = self._shares.get(event.worker)
        if event.key != self._work.key or slot is None or event.worker in self._slots:
            return ()
        self._slots[event.worker] = slot
        return () if slot in self._over else [self._send(event.worker)]

    def _replied(self, event: Reply) -> None:
        self.read[event.worker] = self.read.get(event.worker, 0) + event.read
        slot = self._shares.get(event.worker)
        if event.what is not None and slot is not None:
            first, last = event.what
            new = self.tally.take(slot, first, last, event.value)
            self.used += new
            self.wasted += last - first - new
        if event.last and self._open.pop(event.task, None) is not None and slot is not None:
            self._over.add(slot)
            self.finished.append(event.worker)

    def _judge(self) -> list[Command]:
        """Ask the rule; while it is not content and nobody is at work, those that rested."""
        idle = not self._open
        status = RoundStatus(
            self._seconds,
            len(self._over),
            len(self._open) + len(self._resting),
            self.tally.covered,
            self.tally.decodable if idle else self.tally.exact,
        )
        nothing = self.used == 0
        last = idle and not self._resting  # nobody is left to ask
        self.done = not nothing and (
            self._stop.met(status) or (last and self._stop.accepts_when_idle(status))
        )
        commands: list[Command] = []
        if idle and not self.done:
            commands += [self._send(w) for w in self._slots if w in self._resting]
            self._resting.clear()
        # Nobody is at work, and the rule is not content: somebody must join.
        self._lacking = 0
        if not self.done and not self._open:
            self._lacking = self.tally.lacking(self._over, self._stop.enough)
        return commands
