"""Iteration over messages between workers: who decides what, when workers come and go.

An *epoch* is a plan and one task for each worker that takes part. By the plan all of them know
which rows each share does in every round, so all decode a round from the same replies. Nothing of
an earlier epoch is taken from anybody.

When a worker is lost, late or new, the epoch ends: its tasks are cancelled, and everybody is asked
which round its vector goes into (`AskRound`). A worker answers after its task has ended, so nothing
changes any more. The newest of these vectors is where the next epoch begins; whoever has an older
one fetches it from those that have it. Who does not answer in time has no part in the next epoch,
so what it has completed meanwhile is nobody's concern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model import (
    Command,
    Dropped,
    Event,
    Joined,
    Lost,
    Reply,
    RowRange,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from .base import Round
from .epochs import BEAT, BROKEN, END, ROUND
from .lateness import Late

LATE = "late"  # a worker waits for the pieces of these shares, and for longer than it should

Asks = Callable[[int, int, int], Task]  # round, worker, share -> its task


@dataclass(frozen=True)
class MeshPlan:
    """Who does which rows from `round` on, and where everybody is. The same for all."""

    epoch: int
    round: int
    windows: Mapping[int, tuple[RowRange, ...]]  # by share, of those that have any
    leader: int  # the share that reports, and that says when the tolerance is met
    addresses: Mapping[int, tuple[Any, ...]]  # by share
    # Shares whose holders have the vector of `round`, and then those that have to fetch it: each
    # from one that is before it in this order.
    owners: tuple[int, ...]
    others: tuple[int, ...]

    def sources(self, share: int) -> tuple[int, ...]:
        """Whom a share asks for the vector: a tree, and those that have it where that fails."""
        place = self.others.index(share)
        parent = (*self.owners, *self.others)[place // 2]
        turn = place % len(self.owners)
        return (parent, *self.owners[turn:], *self.owners[:turn])


class AskRound(Round):
    """Ask holders of shares one question; `answers` by worker.

    It ends when all that were asked have answered, or when as many as the threshold have and the
    rest is late. Where fewer do, as many of the `others` are asked as are missing: at once where
    workers are lost, after a while where they are silent, as frozen ones are. With a threshold of 0
    one answer is wanted, but no newcomer is waited for.
    """

    what = "question to all"

    def __init__(
        self,
        id: int,
        holders: Mapping[int, int],
        asks: Asks,
        late: Late | None,
        threshold: int,
        key: str,
        others: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(id, threshold, key)
        self.answers: dict[int, Any] = {}
        self._asks, self._rule = asks, late
        self._holders = dict(holders)  # of the live, those that are asked
        self._others = dict(others or {})  # and those that are not
        self._took: dict[int, float] = {}  # seconds, by worker that has answered
        self._start = self._asked = 0.0  # when the first were asked, and the last of the others
        self._patience = 1.0  # how often silence had others asked: twice as much each time

    def start(self, time: float) -> Sequence[Command]:
        self._start = self._asked = time
        return [*map(self._ask, self._holders), *self._judge(time)]

    def on(self, event: Event) -> Sequence[Command]:
        commands: list[Command] = []
        if type(event) is Reply and event.round == self.id:
            self.answers[event.worker] = event.value
            self._took[event.worker] = event.time - self._start
        elif type(event) is Lost:
            self.lost.append(event.worker)
            for known in (self._holders, self._others, self.answers, self._took):
                known.pop(event.worker, None)
        elif type(event) is Joined:
            self.joined.append(event.worker)
            commands = [Supply(event.worker)]
        elif type(event) is Stored and event.key == self.key and event.slot is not None:
            new = event.worker not in self._holders and event.worker not in self._others
            if new and not self.done:
                self._holders[event.worker] = event.slot
                commands = [self._ask(event.worker)]
        return [*commands, *self._judge(event.time)]

    def _ask(self, worker: int) -> Send:
        return Send(self._asks(self.id, worker, self._holders[worker]))

    def _judge(self, time: float) -> list[Command]:
        """See whether it is over; if not, who else is asked, and when to look again."""
        if self.done:
            return []
        self.missing = max(0, self.threshold - self.live)
        short = max(1, self.threshold) - len(self.answers)
        self.wake = float("inf")
        if short > 0 and (self.threshold or self.owing or self._others):
            return self._ask_others(short, time)
        if self.owing and self._rule is not None:
            self.wake = self._late_from(self._rule)
        self.done = not self.owing or time >= self.wake
        self.late += self.owing if self.done else ()
        return []

    def _late_from(self, rule: Late) -> float:
        """Return from when on the rest is late: judged by those that are enough, and half."""
        took = sorted(self._took.values())
        enough = max(self.threshold, (len(self._holders) + 1) // 2)
        if len(took) < enough:
            return self._start + took[-1] + rule.allowed_few(took[-1])
        allowed: float = rule.allowed(took[enough - 1])
        return self._start + took[enough - 1] + allowed

    def _ask_others(self, short: int, time: float) -> list[Command]:
        """Ask as many others as are short, if those that owe an answer are too few or silent."""
        number = max(0, short - len(self.owing))
        if self._others and not number and self._rule is not None:
            took = max(self._took.values(), default=0.0)
            silent = self._patience * self._rule.allowed_few(took)
            self.wake = max(self._asked, self._start + took) + silent
            if time >= self.wake:
                number, self._patience = short, 2 * self._patience
        chosen = list(self._others)[:number]
        if not chosen:
            return []
        self._asked = time
        self._holders |= {worker: self._others.pop(worker) for worker in chosen}
        return [*map(self._ask, chosen), *self._ask_others(short, time)]

    @property
    def live(self) -> int:
        return len(self._holders) + len(self._others)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(self._holders.keys() - self.answers.keys()))


class EpochRound(Round):
    """One epoch. It ends when the run does, or when there has to be another one.

    `members` are the shares that take part, with their workers. `resting` are live workers that
    were late, with the seconds for which each is left out after it has answered; `back` are those
    of them that have. `idle` are the seconds that earlier epochs have run since anything was
    computed; after `limit` of them the epoch ends.
    """

    what = "X.iterate"
    until_end = True

    def __init__(
        self,
        id: int,
        members: Mapping[int, int],
        asks: Asks,
        on_round: Callable[[int, float], None],
        threshold: int,
        key: str,
        resting: Mapping[int, float],
        back: Collection[int] = (),
        idle: float = 0.0,
        limit: float = float("inf"),
    ) -> None:
        super().__init__(id, threshold, key)
        self.ended: int | None = None  # the round at which the run is over
        self.broken: tuple[int, int, float] | None = None  # round, entry, its value
        self.change = float("inf")  # of the vector in the last round heard of
        self.reached = 0  # that round
        self.behind: tuple[int, ...] = ()  # workers to be left out
        self._members, self._asks, self._on_round = dict(members), asks, on_round
        self._shares = {worker: share for share, worker in members.items()}
        self._resting, self._back = dict(resting), back
        self._takes_in = float("inf")  # when one that was late is back for long enough
        self.idle, self._limit = idle, limit
        self._began = self._moved = 0.0
        self._idle_too_long = False

    def start(self, time: float) -> Sequence[Command]:
        self._began = self._moved = time
        for worker in self._back:
            self._returned(worker, time)
        self._set_wake()
        return [Send(self._asks(self.id, w, share)) for w, share in self._shares.items()]

    def on(self, event: Event) -> Sequence[Command]:
        if type(event) is Reply and event.round == self.id:
            if event.value is not None and not self.done:
                self._on_message(event.time, *event.value)
        elif type(event) is Lost:
            self.lost.append(event.worker)
            self._resting.pop(event.worker, None)
            self.done |= self._shares.pop(event.worker, None) is not None
        elif type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        elif type(event) is Stored and event.key == self.key and event.slot is not None:
            if event.worker not in self._shares and event.worker not in self._resting:
                self.done = True  # it takes part from now on
        elif type(event) is Tick:
            self.done |= event.time >= self.wake
            self._idle_too_long = event.time >= self._deadline
        if (type(event) is Reply or type(event) is Dropped) and event.worker in self._resting:
            self._returned(event.worker, event.time)
        self._set_wake()
        return ()

    def last_resort(self, time: float) -> Sequence[Command]:
        """Ask everybody: some may have gone on, and who is silent is known then."""
        self.done = self._idle_too_long = True
        return ()

    def idle_at(self, time: float) -> float:
        """Seconds that epochs have run since anything was computed, as far as was heard here."""
        idle = self.idle + time - self._moved
        return max(idle, self._limit) if self._idle_too_long else idle  # rounding may miss it

    @property
    def _deadline(self) -> float:
        return self._moved + self._limit - self.idle

    def _set_wake(self) -> None:
        self.wake = min(self._takes_in, self._deadline)

    def _returned(self, worker: int, time: float) -> None:
        self._takes_in = min(self._takes_in, time + self._resting.pop(worker))

    def _on_message(self, time: float, kind: str, round: int, *rest: Any) -> None:
        if kind == ROUND or (kind == BEAT and rest):
            self._moved, self.idle = time, 0.0
        if kind == ROUND:
            self.change, self.reached = rest[0], round
            self._on_round(round, rest[0])
        elif kind == END:
            if rest[0] < float("inf"):  # who has just joined does not know
                self.change = rest[0]
            self.ended, self.done = round, True
        elif kind == BROKEN:
            self.broken, self.done = (round, *rest), True
        elif kind == LATE:
            late = [share for share in rest[0] if share in self._members]
            spare = len(self._members) - self.threshold
            self.behind = tuple(self._members[share] for share in late[: max(0, spare)])
            # Where nobody can be spared all begin anew: a connection may have been lost. If that
            # has not helped, pieces may take long: each time there is twice as long for them.
            self.done = bool(self.behind) or (bool(late) and time - self._began >= self.idle)

    @property
    def live(self) -> int:
        return len(self._shares)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(self._shares))
