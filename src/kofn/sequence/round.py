"""One round of a sequence: mini-tasks out, results in one by one, stragglers judged by the fastest.

The ledger decides which mini-task goes where, and when the round may end; operands and values
are the codec's. The round keeps the rest: time, workers in their slots, and what each still owes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from ..model import (
    Accuse,
    Assign,
    Command,
    Dropped,
    Event,
    Joined,
    Leaving,
    Lost,
    Reply,
    Send,
    Tick,
)
from ..rounds import lateness
from ..rounds.base import Round
from ..rounds.roster import Slots
from .codec import JobCodec
from .ledger import Batch, Ledger, Mini


class DeadlineRound(Round):
    """One round of a sequence. It ends (1 + slack) times the fastest worker's time after its
    start, or later, when the ledger allows it; without a slack at twice the time of half of the
    workers, or later.

    `batches`: mini-tasks by slot, in order. `slots`: the roster's, of those that are live. A joiner
    takes a free slot at once, and is given work in this round if nobody else can do it; so does one
    of those to `spare`, live and without a slot, when a slot falls free. Before a wait in silence
    is given up, they take the slots of those that were waited for.
    """

    what = "sequence"

    def __init__(
        self,
        id: int,
        batches: Sequence[Batch],
        ledger: Ledger,
        codec: JobCodec,
        slots: Slots,
        slack: float | None,
        spare: Collection[int] = (),
    ) -> None:
        super().__init__(id, threshold=1)
        self.slots, self.missing = slots.copy(), int(not slots)
        self.finished: set[int] = set()  # slots that have done all they were given
        self.fastest: float | None = None  # seconds of the first to finish
        self.waited = False  # beyond (1 + slack) times that
        self.topped_up = 0  # mini-tasks asked for beyond the ledger's own
        self.first_sent: float | None = None
        # Of each slot: seconds and multiply-adds until its first reply, and until its last one.
        self.firsts: dict[int, tuple[float, float]] = {}
        self.lasts: dict[int, tuple[float, float]] = {}
        self.held = 0.0  # seconds in which all workers waited for operands
        self._roster_slots, self._spare = slots, deque(spare)
        self._ledger, self._codec, self._slack = ledger, codec, slack
        occupant = {slot: worker for worker, slot in slots.items()}
        self._waiting = deque(  # to be sent: worker, mini-task
            (occupant[slot], mini)
            for batch in batches
            for slot, mini in batch.items()
            if slot in occupant
        )
        self._owed: dict[int, set[Mini]] = {worker: set() for worker in slots}
        for worker, mini in self._waiting:
            self._owed[worker].add(mini)
        self._out: dict[int, int] = {}  # task -> worker
        self._idle: float | None = None  # since when all workers wait for operands
        self._helping: set[int] = set()  # came during the round, or were asked for more
        self._start = self._patience = 0.0
        self._held_up: dict[int, float] = {}  # worker -> seconds until it had dropped stale work
        self._half = False  # whether lateness was judged by half of the workers
        self._over = False  # the time for stragglers is over
        self._given_up: set[int] = set()  # workers that were waited for long enough
        self._refused: dict[int, int] = {}  # slot -> a wrong worker: it has it until another does

    def start(self, time: float) -> list[Command]:
        self._start = time
        if not self._waiting:  # nothing but trivial mini-tasks: nobody is late with those
            self.finished.update(self.slots.values())
            return list(self._judge(time))
        ready = [pair for pair in self._waiting if self._codec.ready(*pair)]
        self._waiting = deque(pair for pair in self._waiting if not self._codec.ready(*pair))
        return [self._send(worker, mini, time) for worker, mini in ready]

    def on(self, event: Event) -> Sequence[Command]:
        if self.done:
            return ()
        if type(event) is Reply:
            return self._replied(event) if event.round == self.id else ()
        if type(event) is Dropped and event.round < self.id:
            self._held_up[event.worker] = event.time - self._start
        if type(event) is Tick:
            return self._time_over(event.time)
        if type(event) is Lost:
            return self._worker_lost(event)
        if type(event) is Joined:
            self._spare.append(event.worker)
            return [*self._take_slot(), *self._judge(event.time)]
        if type(event) is Leaving and event.deadline <= event.time:
            return self._gone(event)
        return ()

    @property
    def has_idle_work(self) -> bool:  # type: ignore[override]
        return bool(self._waiting) or self._codec.busy

    def idle_work(self, time: float) -> Sequence[Command]:
        if not self._waiting:
            return self._codec.idle_work()
        worker, mini = self._waiting[0]
        commands: Sequence[Command] = ()
        if not self._codec.ready(worker, mini):
            commands = self._codec.give(worker, self.slots[worker], mini)
            if self._codec.ready(worker, mini):
                return commands  # it is sent in the next turn, whose time is known
        self._waiting.popleft()
        return [*commands, self._send(worker, mini, time)]

    def last_resort(self, time: float) -> Sequence[Command]:
        silent = self.owing
        self._given_up.update(silent)
        commands: list[Command] = []
        for worker, _ in zip(silent, tuple(self._spare), strict=False):
            self._vacate(worker)
            commands += [Assign(self._roster_slots, worker, None), *self._take_slot()]
        # With all of them given up it would begin anew with the first.
        again = self._given_up.issuperset(self.slots)
        return commands if again else [*commands, *self._judge(time)]

    @property
    def in_time(self) -> frozenset[int]:
        """Slots that are no stragglers though they may not have finished: others were enough."""
        if self._over or not self._ledger.prompt:
            return frozenset()
        return frozenset(s for worker, s in self.slots.items() if worker not in self._helping)

    @property
    def live(self) -> int:
        return len(self.slots)

    @property
    def owing(self) -> tuple[int, ...]:
        return tuple(sorted(worker for worker, owed in self._owed.items() if owed))

    def _replied(self, event: Reply) -> Sequence[Command]:
        worker = event.worker
        if event.what is not None and worker in self._owed:
            why = self._codec.wrong(event.what, event.value)
            if why is not None:
                return self._accuse(event, why)
        if worker in self._owed and worker not in self._helping:
            slot = self.slots[worker]
            before = self.lasts.get(slot, (0.0, 0.0))[1]
            self.lasts[slot] = event.time - self._start, before + event.read
            self.firsts.setdefault(slot, self.lasts[slot])
        if event.what is not None and worker in self._owed:
            mini = event.what
            self._owed[worker].discard(mini)
            self._codec.take(mini, event.value)
            if self._ledger.deliver(mini):
                self._codec.complete([mini[0]])
            if not self._owed[worker] and worker not in self._helping:
                self._worker_finished(worker, event.time)
        if event.last:
            self._out.pop(event.task, None)
            if not self._out and self._waiting:
                self._idle = event.time
        return self._judge(event.time)

    def _worker_finished(self, worker: int, time: float) -> None:
        self.finished.add(self.slots[worker])
        took, judged = time - self._start, self.fastest is not None
        if self.fastest is None:
            self.fastest, self._patience = took, lateness.NEEDED * took
        half = self._slack is None and 2 * len(self.finished) >= len(self.slots)
        if self._over or (judged and half == self._half):
            return
        self._half = half
        # Who was a straggler in the round before begins this one within a slice, not at once.
        late_start = max((self._held_up.get(w, 0.0) for w in self.owing), default=0.0)
        allowed = lateness.in_sequence(self._slack, took, self.fastest, half)
        self.wake = self._start + allowed + late_start

    def _time_over(self, time: float) -> Sequence[Command]:
        if self._over:
            self._given_up.update(self.owing)
        self._over = True
        self.wake = time + self._patience
        if self.wake <= time:  # the fastest took no time at all: no measure of others
            self._patience = lateness.MOST_NOISE
            self.wake = time + self._patience
        self._patience *= 2  # nor may it be one where everybody is given up again and again
        return self._judge(time)

    def _judge(self, time: float) -> Sequence[Command]:
        """End the round if it may end; see that a worker is at work on what is due."""
        ledger = self._ledger
        nobody = all(w in self._given_up for w, owed in self._owed.items() if owed)
        if ledger.prompt:
            self._codec.complete(ledger.settle())
            if ledger.due is None:
                self.done = True
                return ()
        if not (nobody or self._over):
            return ()
        self._codec.complete(ledger.settle())
        if ledger.may_end(self.finished):
            self.done = True
        elif nobody and ledger.due is None:
            self.done = True  # the pattern does not conform, and nobody is left to wait for
        elif nobody and self.slots:
            self.waited = self.waited or bool(self._given_up)
            return self._top_up(time)
        self.waited = self.waited or not (self.done or nobody)
        return ()

    def _top_up(self, time: float) -> Sequence[Command]:
        """The live workers do what the due job lacks; its deadline is now."""
        if self._given_up.issuperset(self.slots):
            self._given_up.clear()  # there is nobody else: they are waited for once more
        helpers = set(self.slots) - self._given_up
        occupant = {slot: worker for worker, slot in self.slots.items() if worker in helpers}
        commands: list[Command] = []
        for slot, mini in self._ledger.more(occupant).items():
            worker = occupant[slot]
            self._owed[worker].add(mini)
            self._helping.add(worker)
            self.topped_up += 1
            commands += self._codec.give(worker, slot, mini)
            commands.append(self._send(worker, mini, time))
        return commands

    def _worker_lost(self, event: Lost) -> Sequence[Command]:
        if event.worker not in self.slots:
            if event.worker in self._spare:
                self._spare.remove(event.worker)
            return ()
        self.lost.append(event.worker)
        self._vacate(event.worker)
        return [*self._take_slot(), *self._judge(event.time)]

    def _accuse(self, event: Reply, why: str) -> Sequence[Command]:
        """Have nothing more to do with a worker, in this round."""
        worker = event.worker
        self.wrong[worker] = why
        self._refused[self.slots[worker]] = worker
        self._vacate(worker)
        accused = Accuse(worker, event.task, why)
        return [accused, *self._take_slot(), *self._judge(event.time)]

    def _gone(self, event: Leaving) -> Sequence[Command]:
        """The time of one that leaves is over: let another have its slot, if there is one."""
        if event.worker not in self.slots or not self._spare:
            return ()
        self._vacate(event.worker)
        given_up = Assign(self._roster_slots, event.worker, None)
        return [given_up, *self._take_slot(), *self._judge(event.time)]

    def _vacate(self, worker: int) -> None:
        """Free the slot of a worker that nothing is expected of any more."""
        slot = self.slots.pop(worker)
        self.missing = int(not self.slots)
        if self._owed.pop(worker):
            self.finished.discard(slot)
        self._waiting = deque(pair for pair in self._waiting if pair[0] != worker)
        self._out = {task: w for task, w in self._out.items() if w != worker}

    def _take_slot(self) -> Sequence[Command]:
        """Give a free slot to a worker that has none, if there are both."""
        free = self.slots.free()
        if not self._spare or not free:
            return ()
        worker, slot, commands = self._spare.popleft(), free[0], list[Command]()
        self.joined.append(worker)
        self.slots[worker], self.missing = slot, 0
        self._owed[worker] = set()
        self._helping.add(worker)
        if slot in self._refused:
            commands.append(Assign(self._roster_slots, self._refused.pop(slot), None))
        return [*commands, Assign(self._roster_slots, worker, slot)]

    def _send(self, worker: int, mini: Mini, time: float) -> Send:
        if self.first_sent is None:
            self.first_sent = time
        if self._idle is not None:
            self.held += time - self._idle
            self._idle = None
        task = self._codec.task(self.id, worker, mini)
        self._out[task.id] = worker
        return Send(task)
