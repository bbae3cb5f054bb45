"""Rounds over shares: who is counted on, and what is done about those that are not."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..model import (
    Accuse,
    Command,
    Dropped,
    Event,
    Joined,
    Leaving,
    Lost,
    Reply,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
    new,
)
from .base import Round
from .lateness import NEVER, Late
from .leaving import in_time
from .roster import Debts


class Verifier(Protocol):
    """Knows what replies must be, or what they cannot be."""

    def wrong(self, slot: int, what: Any, value: Any) -> str | None:
        """Why this cannot be the value of a slot's task, if so."""

    def prepare(self) -> None:
        """Do what takes long, while nothing arrives; whoever is asked before does it, too."""


class WatchedRound(Round):
    """A round that asks others for what the lost and the late owe.

    The round has its own view of which workers take part, in which slot, and are counted on. The
    view begins with `slots` (worker -> slot), a copy from the roster, and changes only by events:
    the driver notes a whole batch of them in the roster before the round gets the first. A worker
    that stores its share later comes in by that event.

    Slow are those that are `late` with a task of this round, and `resting` ones, which are still at
    the work of an earlier round. They are asked only where nobody else can stand in. When one
    of them ends a task, of whichever round, it is counted on again.

    A reply that the `verifier` refuses counts as not delivered, and its sender as lost, for
    this round. Others are asked.

    Slow are also those that may be gone before the round has ended: the worker that takes their
    share then stands in for them. They are counted on again when their notice is taken back.
    """

    verifier: Verifier | None = None

    def __init__(
        self,
        id: int,
        key: str,
        threshold: int,
        slots: Mapping[int, int],
        late: Late | None,
        resting: Collection[int] = (),
    ) -> None:
        super().__init__(id, threshold, key)
        self.spent: dict[int, float] = {}  # seconds, by worker
        self._slot_of = dict(slots)  # worker -> slot; the lost are left in, for their last replies
        self._holder = {slot: worker for worker, slot in slots.items()}  # of the live
        self._debts = Debts()  # tasks of this round
        self._open: dict[int, int] = {}  # task -> worker
        self._slow = set(resting)
        self._aside: dict[int, int] = {}  # slot -> who makes room for one that stands by
        self._going: set[int] = set()  # will be gone too soon, or should be gone by now
        self._choosy = True  # a result that would be refused is worth waiting for the slow
        self._rule = late
        self._start = self._now = 0.0
        self._first: float | None = None  # seconds until the first task ended
        self.half: float | None = None  # and until half of them had
        self._patience = NEVER if late is None or late.after is None else late.after
        self._provisional = NEVER
        self._sent = self._ended = 0

    def on(self, event: Event) -> Sequence[Command]:
        self._now = event.time
        changed = False  # who is there and counted on
        commands: Sequence[Command] = ()
        if type(event) is Reply:
            worker = event.worker
            # A piece proves nothing: slow workers stream, too.
            if event.last or event.task not in self._open:
                changed = self._answered(worker, self._open.pop(event.task, None) is not None)
            if event.round == self.id and not self.done and worker not in self.wrong:
                self.read[worker] = self.read.get(worker, 0) + event.read
                self.spent[worker] = self.spent.get(worker, 0.0) + event.seconds
                why, verifier = None, self.verifier
                if verifier is not None and event.what is not None and self.has_values:
                    why = self._wrong(event, verifier)
                if why is None:
                    commands = self._replied(event)
                else:
                    changed, commands = True, self._accuse(worker, event.task, why)
        elif type(event) is Dropped:
            changed = self._answered(event.worker, self._open.pop(event.task, None) is not None)
        elif type(event) is Tick:
            changed = self._look(event.time)
        elif type(event) is Lost:
            changed = self._leave(event.worker)
        elif type(event) is Stored:
            back = self._answered(event.worker, False)
            changed = self._enter(event) or back
        elif type(event) is Leaving:
            changed = self._notice(event) or bool(self.standby)
        elif type(event) is Joined:
            self.joined.append(event.worker)
            commands = [Supply(event.worker)]
        if changed and not self.done:
            mended = self._mend_all()
            commands = [*commands, *mended] if commands else mended
        return commands

    def idle_work(self, time: float) -> Sequence[Command]:
        self.has_idle_work = False
        if self.verifier is not None:
            self.verifier.prepare()
        return ()

    def last_resort(self, time: float) -> Sequence[Command]:
        self._choosy = False
        self._give_up(self._debts.since)  # who owes is slow, however little is known
        return self._mend_all()

    @property
    def took(self) -> float:
        """Seconds from its start to the last event."""
        return self._now - self._start

    @property
    def live(self) -> int:
        return len(self._holder)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(self._debts.owed))

    @property
    def shares(self) -> set[int]:
        """All slots that a worker held during the round."""
        return set(self._slot_of.values())

    @abstractmethod
    def _replied(self, event: Reply) -> Sequence[Command]:
        """Take a reply of this round."""

    def _wrong(self, event: Reply, verifier: Verifier) -> str | None:
        """Why a reply of this round cannot be right, if so."""
        return verifier.wrong(self._slot_of[event.worker], event.what, event.value)

    def _accuse(self, worker: int, task: int, why: str) -> list[Command]:
        """Have nothing more to do with a worker, in this round."""
        self.wrong[worker] = why
        self._vacate(worker)
        self.standby.pop(worker, None)
        return [Accuse(worker, task, why)]

    @abstractmethod
    def _mend(self) -> Sequence[Command]:
        """Ask others for what would not come, or not soon."""

    def _mend_all(self) -> Sequence[Command]:
        """The same, in two steps: without those whom others can replace, then with these."""
        if not self.standby:
            return self._mend()
        self._make_room()
        commands = self._mend()
        return [*commands, *self._mend()] if self._succeed() else commands

    def _quick(self, worker: int | None) -> bool:
        """Whether a worker is counted on."""
        return worker is not None and worker not in self._slow

    def _counted_on(self) -> tuple[list[int], list[int]]:
        """Shares of those that are counted on, and of the slow."""
        shares: tuple[list[int], list[int]] = ([], [])
        for share, worker in self._holder.items():
            shares[worker in self._slow].append(share)
        return shares

    def _dispatch(self, task: Task) -> Send:
        """Note that a task goes out; return the command."""
        self._open[task.id] = task.worker
        self._debts.add(task.worker, self._now)
        self._sent += 1
        if self._patience != NEVER and task.worker not in self._slow:
            self.wake = min(self.wake, self._debts.since[task.worker] + self._patience)
        return new(Send, (task,))

    def _look(self, time: float) -> bool:
        if self._patience == NEVER:
            self._patience = self._provisional
        late = [w for w, since in self._debts.since.items() if since + self._patience <= time]
        if self.late and late:
            self._patience *= 2  # or, where all differ much, each wave would bring on the next
        return self._give_up(late)

    def _give_up(self, workers: Iterable[int]) -> bool:
        late = [worker for worker in workers if worker not in self._slow]
        self._slow.update(late)
        known = set(self.late)
        self.late += [worker for worker in late if worker not in known]
        quick = [since for worker, since in self._debts.since.items() if worker not in self._slow]
        self.wake = min(quick, default=NEVER) + self._patience
        return bool(late)

    def _enter(self, event: Stored) -> bool:
        """Let a worker have the slot that it has stored the share of, if nobody has it.

        Where somebody has it who is leaving, it is the next to have it.
        """
        worker, slot = event.worker, event.slot
        if worker in self.wrong:
            return False
        if event.key != self.key or slot is None or self._holder.get(slot) == worker:
            return False
        holder = self._holder.setdefault(slot, worker)
        if holder == worker:
            self._slot_of[worker] = slot
        else:
            self.standby[worker] = slot
        self._expect_others()
        return True

    def _make_room(self) -> None:
        """Let who goes, or is slow, change places with one that stands by and does not.

        Who was slow stays so until it says something: two that are silent would take turns.
        """
        slow, out = set(self._slow), self._slow | self._going
        for worker, slot in self.standby.items():
            holder = self._holder.get(slot)
            if holder in out and worker not in out and self._step_aside(holder):
                self._aside[slot] = holder
        self._slow |= slow

    def _step_aside(self, worker: int) -> bool:
        """Take a worker's slot, which another will have; whether it had it."""
        return self._vacate(worker)

    def _succeed(self) -> bool:
        """Let those that stand by have slots that nobody has; whether there are any."""
        free = {s: w for w, s in reversed(self.standby.items()) if s not in self._holder}
        out = self._slow | self._going
        free |= {s: w for w, s in self.standby.items() if s in free and w not in out}
        for slot, worker in free.items():
            del self.standby[worker]
            self._slot_of[worker], self._holder[slot] = slot, worker
            if slot in self._aside:
                self.standby[self._aside.pop(slot)] = slot
        return bool(free)

    def _notice(self, event: Leaving) -> bool:
        """Somebody will be gone, or stays; whether that changes who is counted on."""
        worker = event.worker
        began = self._start if worker in self._debts.owed else self._now
        if event.deadline > self._now and in_time(event.deadline, began, self.usual):
            if worker not in self._going:
                return False
            self._going.discard(worker)
            return self._answered(worker, False)
        self._going.add(worker)
        return self._doubt(worker)

    def _doubt(self, worker: int) -> bool:
        """Count no more on one that goes; whether others are to be asked."""
        if worker in self._slow or not self._holds(worker):
            return False
        self._slow.add(worker)
        return True

    def _holds(self, worker: int) -> bool:
        slot = self._slot_of.get(worker)
        return slot is not None and self._holder.get(slot) == worker

    def _leave(self, worker: int) -> bool:
        left = self._vacate(worker)
        self.standby.pop(worker, None)
        if left:
            self.lost.append(worker)
        return left

    def _vacate(self, worker: int) -> bool:
        self._slow.discard(worker)
        self._debts.drop(worker)
        self._open = {task: w for task, w in self._open.items() if w != worker}
        if not self._holds(worker):
            return False
        del self._holder[self._slot_of[worker]]
        return True

    def _answered(self, worker: int, ended: bool) -> bool:
        """A message of a worker came, of any round; whether it is counted on again."""
        self._debts.answered(worker, self._now, ended)
        if ended and self._patience == NEVER and self._rule is not None:
            self._judge_lateness(self._now - self._start, self._rule)
        if worker not in self._slow or worker in self._going:
            return False
        self._slow.discard(worker)
        if worker in self._debts.since:
            self.wake = min(self.wake, self._debts.since[worker] + self._patience)
        else:
            self._expect_others()
        return bool(self.standby) or self._could_ask()

    def _expect_others(self) -> None:
        """One more can stand in: the others, which may all be frozen, have an end to their time.

        Where enough of them answer, it is judged by these who is late.
        """
        if self._provisional == self._patience == NEVER and self._rule is not None:
            self._provisional = self._now - self._start + self._rule.allowed_few(self.usual)
            self.wake = min(self.wake, self._start + self._provisional)

    def _could_ask(self) -> bool:
        """Whether there is anything that one who is counted on again could be asked for."""
        return True

    def _judge_lateness(self, took: float, rule: Late) -> None:
        """A task of this round has ended: see whether it is time to judge who is late.

        That is when half of the tasks have ended. If fewer have, but as many as the threshold, the
        rest are judged too, after a longer time.
        """
        self._ended += 1
        self._first = took if self._first is None else self._first
        if 2 * len(self._open) <= self._sent:
            self.half = took
            self._patience = rule.allowed(took, self._first)
            self.wake = self._start + self._patience
        elif self._ended >= self.threshold:
            self._provisional = rule.allowed_few(took)
            self.wake = self._start + self._provisional
