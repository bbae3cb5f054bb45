"""A sum in which every slot is asked for its own parts first, and for others' when that is needed.

While nobody is late, nothing is done twice. Who is late, lost or left out has its parts done by
those that hold them too, and these are asked for nothing else. Where stragglers are expected from
the start, all slots are asked for everything at once, as with other codes. Either way the round
notes the times that a tuner learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..model import Command, Event, Reply, Send
from ..rounds.lateness import NEVER, Late
from .gather import GatherRound
from .work import Span

RULE = Late()


class LeadRound(GatherRound):
    """`own` says how many symbols of a slot come first; None asks for all of them at once.

    `late`: when nobody is counted on any more who still is at its own.
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
        self._left: dict[int, list[Span]] = {}  # who was asked for some symbols; the other ones
        self._more: set[int] = set()  # workers that were asked for others' parts
        self._first_tasks: set[int] = set()
        self._ends, self._first_end = 0, 0.0
        self._rest_at = NEVER  # when those that are at their own are late
        self._late_now = False

    @property
    def out(self) -> set[int]:
        """Slots that were not asked."""
        return set(range(self._placed.code.n)) - {self._slot_of[w] for w in self._asked}

    def on(self, event: Event) -> Sequence[Command]:
        commands = super().on(event)
        if self.done or self._own is None:
            return commands
        if event.time >= self._rest_at:
            commands = [*commands, *self._give_up_late()]
        self.wake = min(self.wake, self._rest_at)
        return commands

    def last_resort(self, time: float) -> Sequence[Command]:
        return self._give_up_late()

    def _send(self, worker: int, span: Span | None = None) -> Send:
        slot = self._slot_of[worker]
        if self._own is None or span is not None:
            return super()._send(worker, span)
        own = self._own(slot)
        self._left[worker] = _without((0, len(self._placed.code.symbols(slot))), (0, own))
        send = self._send(worker, (0, own))
        self._first_tasks.add(send.task.id)
        return send

    def _give_up_late(self) -> list[Command]:
        """Ask others for what has not come, also for what some worker is still at."""
        if self._own is None:
            return []
        self._late_now, self._rest_at = True, NEVER
        self.wake = self._start + self._asks_at
        behind = {worker for task, worker in self._open.items() if task in self._first_tasks}
        self.late += [worker for worker in self._holder.values() if worker in behind]
        return self._mend()

    def _mend(self) -> list[Command]:
        """The same; and ask those that hold them too for parts that nobody counted on is at."""
        commands = super()._mend()
        if self._own is not None and (wanted := self._unexpected()):
            for worker in [w for w in self._holder.values() if w in self._left]:
                commands += self._ask_more(worker, wanted)
        return commands

    def _unexpected(self) -> set[int]:
        """Parts that have not come, and that nobody is counted on for."""
        if self._late_now:
            return set(self.tally.missing)
        code, counted = self._placed.code, self._asked - self._slow
        slots = {slot for slot, worker in self._holder.items() if worker in counted} | self._over
        if len(slots) == code.n:
            return set()
        assert self._own is not None
        missing = set(self.tally.missing)
        for slot in slots:
            for row in code.symbols(slot)[: self._own(slot)]:
                missing.difference_update(row.parts)
        return missing

    def _ask_more(self, worker: int, wanted: set[int]) -> list[Command]:
        """Ask a worker for those of the parts that it holds and was not asked for yet."""
        commands: list[Command] = []
        symbols, left = self._placed.code.symbols(self._slot_of[worker]), self._left[worker]
        for whole in list(left):
            at = [i for i in range(*whole) if not wanted.isdisjoint(symbols[i].parts)]
            if at:
                span = at[0], at[-1] + 1
                left.remove(whole)
                left += _without(whole, span)
                self._more.add(worker)
                commands.append(self._send(worker, span))
        return commands

    def _replied(self, event: Reply) -> Sequence[Command]:
        worker = event.worker
        took, slot = event.time - self._start, self._slot_of[worker]
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
                self._rest_at = NEVER if self._late_now else self._start + allowed
            self.finished.setdefault(slot, worker)
        if event.last and (
            self._left.get(worker) or (worker in self._more and worker in self._open.values())
        ):
            event = event._replace(last=False)  # the slot has more to send, if it is asked
        return super()._replied(event)

    def _judge(self) -> list[Command]:
        rest = [] if self._open or self.tally.exact else self._give_up_late()
        return [*rest, *super()._judge()]


def _without(whole: Span, span: Span) -> list[Span]:
    """What is left of a run when another one is taken out of its middle."""
    pieces = (whole[0], span[0]), (span[1], whole[1])
    return [(first, last) for first, last in pieces if first < last]
