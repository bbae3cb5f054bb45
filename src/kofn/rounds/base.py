"""What driver.py needs to know of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..errors import KofnError, Stalled, TooFewWorkers, WrongReplies
from ..model import Command, Event, Report

R = TypeVar("R", bound=Report)


class Round(ABC):
    """A state machine: events in, commands out. It reads no clock: time comes in the event.

    `threshold`: how many live workers a round of this kind needs to end. `key`: of the value that a
    worker must keep to take part; "" where no worker is given it meanwhile.
    """

    what: str = "round"  # which operation it is of, in a word or two
    done: bool = False
    wake: float = float("inf")  # it wants a Tick at this time
    missing: int = 0  # workers without which it cannot end; 0 while those at hand are enough
    entering: bool = False  # a newcomer that has all it needs is about to take part
    usual: float = 0.0  # seconds that a round of this kind takes; 0 where unknown
    wait: float = float("inf")  # seconds that it waits for joiners, if less than the cluster's
    has_idle_work: bool = False  # there is work of the master's own to do while nothing arrives
    has_values: bool = False  # replies have values, which can be wrong
    until_end: bool = False  # everybody is at it until the end: who has not answered is not late

    def __init__(self, id: int, threshold: int, key: str = "") -> None:
        self.id, self.threshold, self.key = id, threshold, key
        self.read: dict[int, int] = {}  # rows or parts, by worker
        self.late: list[int] = []  # workers that others stood in for, in order
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.wrong: dict[int, str] = {}  # whose reply could not be right, and why
        self.standby: dict[int, int] = {}  # worker -> a slot that it has too, and can take over
        self._vain, self._read, self._since = set[int](), -1, 0.0  # see in_vain

    @abstractmethod
    def start(self, time: float) -> Sequence[Command]:
        """Return the first commands."""

    @abstractmethod
    def on(self, event: Event) -> Sequence[Command]:
        """Take one event; events of other rounds are harmless."""

    def idle_work(self, time: float) -> Sequence[Command]:
        """Do a few milliseconds of that work; called when nothing has arrived."""
        return ()

    def last_resort(self, time: float) -> Sequence[Command]:
        """Called before a wait in silence is given up: what is there left to try?"""
        return ()

    def in_vain(self, worker: int, now: float, most: int, wait: float) -> bool:
        """Count a worker that was ended for its silence, or came and was lost; whether to give up.

        That is when more than `most` were counted, in `wait` seconds or more, and nothing was read.
        A newcomer that is ended for its silence is reported twice, and counts once.
        """
        if (read := sum(self.read.values())) > self._read:
            self._vain, self._read, self._since = set(), read, now
        new = worker not in self._vain
        self._vain.add(worker)
        return new and len(self._vain) > most and now - self._since >= wait

    def gave_up(self, waited: float) -> KofnError:
        """What to raise after a wait in vain: for joiners, or for those that owe something."""
        if not self.missing:
            return Stalled(self.id, waited, self.owing)
        if self.wrong:
            return WrongReplies(self.wrong, self.live, self.missing)
        return TooFewWorkers(self.live, max(self.threshold, self.live + self.missing), waited)

    @property
    def rule(self) -> str:
        """When it is over, in words that follow "over when"."""
        return "enough replies are here"

    @property
    def words(self) -> str:
        """What it is, and when it is over: for people who watch."""
        return f"{self.what}: over when {self.rule}"

    @property
    @abstractmethod
    def live(self) -> int:
        """Workers that take part or can."""

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Workers that owed an answer, to this round or an earlier one, when it ended."""
        return () if self.until_end else self.owing

    @property
    @abstractmethod
    def owing(self) -> tuple[int, ...]:
        """Workers that still owe a reply: the reason of the wait."""

    def report(
        self, kind: type[R], live: Iterable[int], times: tuple[float, float, float], **more: Any
    ) -> R:
        """The report of the round. `times`: when it began, had gathered and ended."""
        began, gathered, ended = times
        return kind(
            round=self.id,
            live=tuple(live),
            late=tuple(dict.fromkeys((*self.late, *self.unanswered))),
            lost=tuple(self.lost),
            joined=tuple(self.joined),
            wrong=tuple(self.wrong),
            seconds={"wait": gathered - began, "decode": ended - gathered, "total": ended - began},
            **more,
        )
