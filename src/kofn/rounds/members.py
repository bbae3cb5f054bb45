"""Members: who takes part in one round, in which slot, and which of its tasks each still owes."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Dropped, Reply, Send, Stored, Task
from .roster import Debts


class Members:
    """A round's own view of its workers.

    It begins as a copy of what the roster says, and changes by what the round is told alone: the
    driver notes a whole batch of events before the round hears of the first.
    """

    def __init__(self, key: str, slots: Mapping[int, int]) -> None:
        self.slot_of = dict(slots)  # worker -> slot; the lost are left in, for their last replies
        self.holder = {slot: worker for worker, slot in slots.items()}  # of the live
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.debts = Debts()  # tasks of this round
        self.open: dict[int, int] = {}  # task -> worker
        self._key = key

    def send(self, task: Task, time: float) -> Send:
        """Note that a task goes out; return the command."""
        self.open[task.id] = task.worker
        self.debts.add(task.worker, time)
        return Send(task)

    def end(self, event: Reply | Dropped) -> bool:
        """Note that a worker has ended a task, of whichever round; whether it was one of these."""
        known = self.open.pop(event.task, None) is not None
        self.debts.answered(event.worker, event.time, known)
        return known

    def enter(self, event: Stored) -> bool:
        """Let a worker have the slot that it has stored the share of, if nobody has it."""
        if event.key != self._key or event.slot is None or event.slot in self.holder:
            return False
        self.slot_of[event.worker] = event.slot
        self.holder[event.slot] = event.worker
        return True

    def leave(self, worker: int) -> bool:
        """Note that a worker is lost; whether it took part."""
        if worker in self.debts.owed:
            self.debts.drop(worker)
            self.open = {task: w for task, w in self.open.items() if w != worker}
        slot = self.slot_of.get(worker)
        if slot is None or self.holder.get(slot) != worker:
            return False
        del self.holder[slot]
        self.lost.append(worker)
        return True
