"""A sum in which every slot is asked for its own parts first, and for the rest when that is needed.

While nobody is late, nothing is done twice. Where stragglers are expected from the start, all slots
are asked for everything at once, as with other codes. Either way the round notes the times that a
tuner learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..model import Command, Event, Lost, Reply, Send
from ..rounds.lateness import NEVER, Late
from .gather import GatherRound

RULE = Late()


class LeadRound(GatherRound):
    """`own` says how many symbols of a slot come first; None asks for all of them at once.

    `late`: when the rest is asked for.
    """

    def __init__(
        self, *given: Any, own: Callable[[int], int] | None = None, late: Late = RULE
    ) -> None:
        super().__init__(*given)
        self._late = late
        # Of each slot: seconds until its first reply, and the parts in that; of all later replies:
        # their own seconds, and their parts.
        self.firsts: dict[int, tuple[float, int]] = {}
        self.later_seconds, self.later_parts = 0.0, 0
        self._own = own
        self._partly: dict[int, int] = {}  # who was asked for its own symbols alone, how many
        self._first_tasks: set[int] = set()
        self._ends, self._first_end = 0, 0.0
        self._rest_at = NEVER  # when the rest is asked for

    def on(self, event: Event) -> Sequence[Command]:
        commands = super().on(event)
        if self.done or self._own is None:
            return commands
        if type(event) is Lost or event.time >= self._rest_at:
            commands = [*commands, *self._ask_rest()]
        self.wake = min(self.wake, self._rest_at)
        return commands

    def last_resort(self, time: float) -> Sequence[Command]:
        return self._ask_rest()

    def _send(self, worker: int) -> Send:
        slot = self._slot_of[worker]
        if self._own is None:
            return super()._send(worker)
        return self._send_some(worker, slot, (0, self._own(slot)))

    def _send_some(self, worker: int, slot: int, span: tuple[int, int]) -> Send:
        self._asked.add(worker)
        task = self._placed.task(self.id, worker, slot, span)
        if not span[0]:
            self._first_tasks.add(task.id)
            self._partly[worker] = span[1]
        self._open[task.id] = worker
        return Send(task)

    def _ask_rest(self) -> list[Command]:
        """Ask all that were asked for their own parts alone for the rest of their slots."""
        if self._own is None:
            return []
        self._own, self._rest_at = None, NEVER
        self.wake = self._start + self._asks_at
        behind = set(self._open.values())
        self.late += [worker for worker in self._holder.values() if worker in behind]
        return self._mend()

    def _mend(self) -> list[Command]:
        """The same; once the rest is asked for, also of one that has its slot again."""
        commands = super()._mend()
        for slot, worker in self._holder.items() if self._own is None else ():
            first, last = self._partly.pop(worker, None), len(self._placed.code.symbols(slot))
            if first is not None and slot not in self._over and first < last:
                commands.append(self._send_some(worker, slot, (first, last)))
        return commands

    def _replied(self, event: Reply) -> Sequence[Command]:
        took, slot = event.time - self._start, self._slot_of[event.worker]
        if slot not in self.firsts:
            self.firsts[slot] = took, event.read
        elif event.what is not None:
            self.later_seconds += event.seconds
            self.later_parts += event.read
        if event.last and event.task in self._first_tasks:
            self._ends += 1
            self._first_end = self._first_end or took
            if self.half is None:
                half = 2 * self._ends >= len(self._first_tasks)
                self.half = took if half else None
                rule, first = self._late, self._first_end
                allowed = rule.allowed(took, first) if half else rule.allowed_few(took)
                self._rest_at = self._start + allowed
            self.finished.setdefault(slot, event.worker)
            # The slot has more to send, if it is asked.
            if event.what is None or event.what[1] < len(self._placed.code.symbols(slot)):
                event = event._replace(last=False)
        return super()._replied(event)

    def _judge(self) -> list[Command]:
        commands = super()._judge()
        if not self.done and not self._open:
            rest = self._ask_rest()
            if rest:
                self.missing = 0
                commands += rest
        return commands
