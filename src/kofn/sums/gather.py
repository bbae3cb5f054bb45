"""A round of a coded sum: holders work through the symbols of their slots, a stop rule ends it.

No work is sent twice and nobody is waited for: what decodes is a matter of the code, when to stop
a matter of the rule. A newcomer that takes the slot of a lost worker works through its symbols from
the start; those that had come already are known and count once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..model import Command, Dropped, Event, Reply, Send, Tick, new
from ..rounds.lateness import NEVER, Late
from ..rounds.stop import RoundStatus, Stop
from ..rounds.watch import WatchedRound
from .audit import Audit, Claim
from .tally import Rowwise, Tally, tally_of
from .work import Span

if TYPE_CHECKING:
    from .parts import _Placed

RULE = Late()


class GatherRound(WatchedRound):
    """`ready` (worker -> slot) take part from the start.

    `resting` are far behind with earlier rounds, and asked when they answer, or when nobody else is
    left to ask. What an `audit` has drawn counts when two have said it; where the second is late,
    or will not come, it is found here.
    """

    what = "sum"
    audit: Audit | None = None

    def __init__(
        self,
        id: int,
        ready: Mapping[int, int],
        placed: _Placed,
        tally: Tally,
        stop: Stop,
        resting: Collection[int] = (),
    ) -> None:
        super().__init__(id, placed.key, 1, ready, None, resting)
        self.used = self.wasted = 0  # symbols
        self.finished: dict[int, int] = {}  # slot -> who was the first to end it, in that order
        self.tally, self.verifier = tally, Rowwise()
        self._placed, self._stop = placed, stop
        self._asked: set[int] = set()  # workers
        self._over: set[int] = set()  # slots all of whose work is here
        self._seconds, self._asks_at = 0.0, NEVER  # that have passed; the rule's next
        self._late_at, self._judged = NEVER, 0  # an audit waits for nobody then; by so many slots

    @property
    def rule(self) -> str:
        return str(self._stop)

    def start(self, time: float) -> list[Command]:
        self._start = self._now = time
        self._asks_at = self._ask_at()
        self.wake = time + self._asks_at
        return [*self._mend(), *self._judge()]

    def on(self, event: Event) -> Sequence[Command]:
        if self.done:
            return ()
        # start + s - start may be less than s: what counts is that the end is reached.
        due = self._asks_at if event.time >= self._start + self._asks_at else 0.0
        self._seconds = max(self._seconds, event.time - self._start, due)
        commands = super().on(event)
        if type(event) is Tick:
            self._asks_at = self._ask_at()
        self.wake = self._start + self._asks_at
        if self.audit is not None:
            self._look_for_late(event.time, self.audit)
        if (type(event) is Reply or type(event) is Dropped) and event.round != self.id:
            return commands  # it tells who is free again, and nothing of this sum
        judged = self._judge()
        return [*commands, *judged] if commands else judged

    def idle_work(self, time: float) -> Sequence[Command]:
        """Find one of the values for which an audit waits in vain."""
        commands: list[Command] = []
        if self.audit is not None and (row := next(iter(self.audit.waiting), None)) is not None:
            self.audit.find(row)
            commands = self._compare(self.audit, self.audit.waiting[row], -1)
        self.has_idle_work = self.audit is not None and bool(self.audit.waiting)
        return [*commands, *self._judge()]

    def _look_for_late(self, time: float, audit: Audit) -> None:
        """See when the values for which an audit waits are to be found here."""
        took, over, asked = time - self._start, len(self._over), len(self._asked)
        if 2 * self._judged < min(2 * over, asked):
            self._first = took if self._first is None else self._first
            few = RULE.allowed_few(took) if 2 * over < asked else None
            self._late_at = self._start + (few or RULE.allowed(took, self._first))
            self._judged = over
        if time < self._late_at:
            self.wake = min(self.wake, self._late_at)
        elif audit.waiting:
            self.has_idle_work = True

    def _ask_at(self) -> float:
        """When the rule wants to be asked again."""
        later = self._stop.after(self._seconds)
        if not later > self._seconds:  # or the clock would stand still
            raise BadInput(
                f"after(seconds) of a stop rule gives a later time than `seconds`; {self._stop!r} "
                f"gave {later!r} for {self._seconds!r}. Return inf where it need not be asked."
            )
        return later

    @property
    def exhausted(self) -> bool:
        """Whether all that was ever to come has."""
        return len(self._over) >= self._placed.code.n

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted({*self._open.values(), *self._resting()}))

    def last_resort(self, time: float) -> Sequence[Command]:
        return ()  # everybody has been asked; no work is sent twice, so nobody is late

    def _doubt(self, worker: int) -> bool:
        return False  # the code says who can be done without

    def _send(self, worker: int, span: Span | None = None) -> Send:
        self._asked.add(worker)
        task = self._placed.task(self.id, worker, self._slot_of[worker], span)
        self._open[task.id] = worker
        return new(Send, (task,))

    def _answered(self, worker: int, ended: bool) -> bool:
        rested = worker in self._slow
        self._slow.discard(worker)
        return rested

    def _step_aside(self, worker: int) -> bool:
        if not self._holds(worker):
            return False
        del self._holder[self._slot_of[worker]]  # what it was asked for may come, and counts
        return True

    def _resting(self) -> list[int]:
        """Those that are asked when nobody else is left; not who made room for another."""
        return [worker for worker in self._holder.values() if worker in self._slow]

    def _mend(self) -> list[Command]:
        """Ask those that have not been asked, but for the resting, for what has not come."""
        return [
            self._send(worker)
            for slot, worker in self._holder.items()
            if not (worker in self._slow or worker in self._asked or slot in self._over)
        ]

    def _replied(self, event: Reply) -> Sequence[Command]:
        slot, commands = self._slot_of[event.worker], list[Command]()
        if event.what is not None:
            first, last = event.what
            if self.audit is None or event.value is None:
                self._take(slot, first, last, event.value)
            else:
                claim = Claim(event.worker, slot, first, last, event.value)
                self.audit.claims.append(claim)
                commands = self._compare(self.audit, claim, event.task)
        if event.worker in self.wrong:
            return commands
        if event.last and slot not in self._over:  # who leaves and its successor have one slot
            self._over.add(slot)
            self.finished.setdefault(slot, event.worker)
        return commands

    def _take(self, slot: int, first: int, last: int, value: Any) -> None:
        taken = self.tally.take(slot, first, last, value)
        self.used += taken
        self.wasted += last - first - taken

    def _compare(self, audit: Audit, claim: Claim, task: int) -> list[Command]:
        """Take a reply, as far as it was not drawn or two agree. A wrong worker's do not count."""
        wrong, commands = self._compared(audit, claim), list[Command]()
        while wrong:
            for worker, why in wrong.items():
                commands += self._accuse(worker, task if worker == claim.worker else -1, why)
                self._over.discard(self._slot_of[worker])
            self.finished = {s: w for s, w in self.finished.items() if w not in self.wrong}
            self.tally, self.used, self.wasted = tally_of(self.tally.code), 0, 0
            audit.waiting.clear()
            kept = [one for one in audit.claims if one.worker not in self.wrong]
            wrong = {w: why for one in kept for w, why in self._compared(audit, one).items()}
        return [*commands, *self._mend()] if commands else commands

    def _compared(self, audit: Audit, claim: Claim) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for part, row in audit.cut(claim):
            value, wrong = (part.value, {}) if row is None else audit.compare(row, part)
            reasons |= wrong
            if value is not None:
                self._take(part.slot, part.first, part.last, value)
        return reasons

    def _judge(self) -> list[Command]:
        """Ask the rule. If the round goes on and nobody is at work, ask those that rested."""
        working, resting = len(self._open), self._resting() if self._slow else []
        idle = not working
        if idle and not resting and self.audit is not None and self.audit.waiting:
            self.has_idle_work, self.missing = True, 0  # nobody is left who might say it, too
            return []
        there = self.tally.decodable if idle else self.tally.exact
        owing, covered = working + len(resting), self.tally.covered
        status = new(RoundStatus, (self._seconds, len(self._over), owing, covered, there))
        last = idle and not resting  # nobody is left to ask
        self.done = self.used > 0 and (
            self._stop.met(status) or (last and self._stop.accepts_when_idle(status))
        )
        commands: list[Command] = []
        if idle and not self.done:
            commands += [self._send(worker) for worker in resting]
            self._slow.clear()
        # Nobody is at work, and the round is not over: somebody must join.
        self.missing = 0
        if not self.done and not self._open:
            self.missing = self.tally.lacking(self._over, self._stop.enough)
        return commands
