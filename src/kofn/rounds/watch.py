"""Rounds over shares: who is counted on, and what is done about those that are not."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..model import Command, Dropped, Event, Joined, Lost, Reply, Send, Stored, Supply, Task, Tick
from .base import Round
from .lateness import NEVER, Late
from .roster import Debts


class Watch:
    """A round's own view of its workers: who takes part, in which slot, and is counted on.

    It begins as a copy of what the roster says (`slots`), and changes by what the round is told
    alone: the driver notes a whole batch of events before the round hears of the first.

    Slow are those late with a task of this round, and `resting` ones: still at the work of an
    earlier round. They are asked only where nobody else can stand in. Whoever of them ends
    something, of whichever round, is counted on again. `enough`: with as many tasks ended, and
    fewer than half, the rest is judged all the same, if after a longer time.
    """

    def __init__(
        self,
        key: str,
        slots: Mapping[int, int],
        late: Late | None,
        enough: int,
        resting: Collection[int] = (),
    ) -> None:
        self.slot_of = dict(slots)  # worker -> slot; the lost are left in, for their last replies
        self.holder = {slot: worker for worker, slot in slots.items()}  # of the live
        self.debts = Debts()  # tasks of this round
        self.open: dict[int, int] = {}  # task -> worker
        self.slow = set(resting)
        self.late: list[int] = []  # whoever was, in order
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.wake = NEVER  # when somebody may be late
        self._key, self._rule, self._enough = key, late, enough
        self._start = self._now = 0.0
        self._first: float | None = None
        self._patience = self._provisional = NEVER
        self._sent = self._ended = 0

    def begin(self, time: float) -> None:
        """Note when the round begins."""
        self._start = self._now = time

    def quick(self, worker: int | None) -> bool:
        """Whether a worker is counted on."""
        return worker is not None and worker not in self.slow

    def shares(self) -> tuple[list[int], list[int]]:
        """Shares of those that are counted on, and of the slow."""
        shares: tuple[list[int], list[int]] = ([], [])
        for share, worker in self.holder.items():
            shares[worker in self.slow].append(share)
        return shares

    def ask(self, task: Task) -> Send:
        """Note that a task goes out; return the command."""
        self.open[task.id] = task.worker
        self.debts.add(task.worker, self._now)
        self._sent += 1
        if task.worker not in self.slow:
            self.wake = min(self.wake, self.debts.since[task.worker] + self._patience)
        return Send(task)

    def on_event(self, event: Event) -> bool:
        """Take in an event; whether it changes who is there and counted on."""
        self._now = event.time
        if type(event) is Reply or type(event) is Dropped:
            if type(event) is Reply and not event.last and event.task in self.open:
                return False  # a piece tells nothing: who is slow streams, too
            return self._answered(event.worker, self.open.pop(event.task, None) is not None)
        if type(event) is Tick:
            return self._look(event.time)
        if type(event) is Lost:
            return self._leave(event.worker)
        if type(event) is Stored:
            back = self._answered(event.worker, False)
            return self._enter(event) or back
        if type(event) is Joined:
            self.joined.append(event.worker)
        return False

    def give_up(self) -> None:
        """Nothing has been heard for too long: who owes is slow, however little is known."""
        self._give_up(self.debts.since)

    def _look(self, time: float) -> bool:
        if self._patience == NEVER:
            self._patience = self._provisional
        late = [w for w, since in self.debts.since.items() if since + self._patience <= time]
        if self.late and late:
            self._patience *= 2  # or, where all differ much, each wave would bring on the next
        return self._give_up(late)

    def _give_up(self, workers: Iterable[int]) -> bool:
        late = [worker for worker in workers if worker not in self.slow]
        self.slow.update(late)
        self.late += [worker for worker in late if worker not in self.late]
        quick = [since for worker, since in self.debts.since.items() if worker not in self.slow]
        self.wake = min(quick, default=NEVER) + self._patience
        return bool(late)

    def _enter(self, event: Stored) -> bool:
        """Let a worker have the slot that it has stored the share of, if nobody has it."""
        if event.key != self._key or event.slot is None or event.slot in self.holder:
            return False
        self.slot_of[event.worker] = event.slot
        self.holder[event.slot] = event.worker
        return True

    def _leave(self, worker: int) -> bool:
        self.slow.discard(worker)
        if worker in self.debts.owed:
            self.debts.drop(worker)
            self.open = {task: w for task, w in self.open.items() if w != worker}
        slot = self.slot_of.get(worker)
        if slot is None or self.holder.get(slot) != worker:
            return False
        del self.holder[slot]
        self.lost.append(worker)
        return True

    def _answered(self, worker: int, ended: bool) -> bool:
        """It has said something, of whichever round; whether it is counted on again."""
        self.debts.answered(worker, self._now, ended)
        if ended:
            self._judge(self._now - self._start)
        if worker not in self.slow:
            return False
        self.slow.discard(worker)
        if worker in self.debts.since:
            self.wake = min(self.wake, self.debts.since[worker] + self._patience)
        return True

    def _judge(self, took: float) -> None:
        """A task of this round has ended: by now it may be known who is late."""
        self._ended += 1
        if self._rule is None or self._patience != NEVER:
            return
        self._first = took if self._first is None else self._first
        if 2 * len(self.open) <= self._sent:
            self._patience = self._rule.allowed(took, self._first)
            self.wake = self._start + self._patience
        elif self._ended >= self._enough:
            self._provisional = self._rule.allowed_few(took)
            self.wake = self._start + self._provisional


class WatchedRound(Round):
    """A round that asks others for what the lost and the late owe.

    `slots` (worker -> slot) take part from the start; who stores its share later is told by that
    event. `resting` are among them, and asked when nobody else can stand in, or when they are done
    with the work of an earlier round. `late` says when to stop counting on someone.
    """

    def __init__(
        self,
        id: int,
        key: str,
        threshold: int,
        slots: Mapping[int, int],
        late: Late | None,
        resting: Collection[int] = (),
    ) -> None:
        self.id, self.key, self.threshold = id, key, threshold
        self.read: dict[int, int] = {}  # rows or parts, by worker
        self.spent: dict[int, float] = {}  # seconds, by worker
        self._watch = Watch(key, slots, late, threshold, resting)
        self.late, self.lost, self.joined = self._watch.late, self._watch.lost, self._watch.joined
        self._choosy = True  # a result that would be refused is worth waiting for the slow

    def on(self, event: Event) -> Sequence[Command]:
        changed = self._watch.on_event(event)
        commands: Sequence[Command] = ()
        if type(event) is Joined:
            commands = [Supply(event.worker)]
        elif type(event) is Reply and event.round == self.id and not self.done:
            worker = event.worker
            self.read[worker] = self.read.get(worker, 0) + event.read
            self.spent[worker] = self.spent.get(worker, 0.0) + event.seconds
            commands = self._replied(event)
        if changed and not self.done:
            mended = self._mend()
            commands = [*commands, *mended] if commands else mended
        self.wake = self._watch.wake
        return commands

    def last_resort(self, time: float) -> Sequence[Command]:
        self._choosy = False
        self._watch.give_up()
        return self._mend()

    @property
    def live(self) -> int:
        return len(self._watch.holder)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(self._watch.debts.owed))

    @property
    def shares(self) -> set[int]:
        """All that somebody held during the round."""
        return set(self._watch.slot_of.values())

    @abstractmethod
    def _replied(self, event: Reply) -> Sequence[Command]:
        """Take a reply of this round."""

    @abstractmethod
    def _mend(self) -> Sequence[Command]:
        """Ask others for what would not come, or not soon."""
