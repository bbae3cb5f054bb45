"""Iteration w ← f(X w) among the workers themselves: the values do not pass through the master.

The master only decides which worker does which rows, in an EpochPlan. It holds from its first
round until the next plan. In the first round of a plan every share keeps the rows it was asked
before, so that a round in flight is repaired, not restarted. From the round after, windows are laid
for the live shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..exchange import Exchange, Progress
from ..model import (
    Command,
    Event,
    Joined,
    Leaving,
    Lost,
    Observe,
    Observed,
    Publish,
    Reply,
    RowRange,
    Send,
    Stored,
    Supply,
    Task,
    Tick,
)
from .base import Round
from .cover import Cover
from .epochs import BROKEN, END, READY, ROUND, Asked, EpochPlan, stamped
from .lateness import NEVER, Late
from .leaving import in_time, latest
from .windows import Windows, runs_of

FIRST_LOOK = 0.02  # seconds between two looks at the stamps, at first


class Work(Protocol):
    """What an iteration needs to know of the work it does."""

    key: str  # of the shares that workers must hold
    threshold: int

    def task(self, round: int, worker: int, share: int) -> Task:
        """Make the one task that a worker has for the whole run."""

    def windows(self, shares: Sequence[int]) -> Windows:
        """Lay windows for these shares, at least the threshold."""

    def weak(self, cover: Cover) -> Sequence[int]:
        """Segments that need one share more to decode well, once all that are asked deliver."""

    def on_round(self, round: int, change: float) -> None:
        """A round is done."""


class IterateRound(Round):
    """The whole run, as one round of the engine.

    `windows` are laid for shares of `holders` (worker -> share); each gets one task for the whole
    run. From then on the master gets small messages, and decides only when a worker is lost, is
    late, or comes: it holds all workers, reads the state of the exchange, and publishes a new plan.
    """

    what = "X.iterate"
    until_end = True

    def __init__(
        self,
        id: int,
        windows: Windows,
        holders: Mapping[int, int],
        work: Work,
        exchange: Exchange,
        late: Late | None,
    ) -> None:
        super().__init__(id, work.threshold, work.key)
        self.rows_topped_up = 0
        self.repeated_rows = 0
        self.plans: list[EpochPlan] = []
        self.ended: tuple[int, int] | None = None  # the share that has the vector, and the round
        self.change = float("inf")  # of the vector in the last round reported
        self.broken: tuple[int, int, float] | None = None  # round, entry, its value
        self._work, self._exchange, self._holders = work, exchange, dict(holders)
        self._late = None if late is None else late.between()
        self._progress: Progress | None = None  # as last reported
        self._leaving: list[int] = []  # shares to be left out when everybody is held: of the lost,
        self._behind: list[int] = []  # and of the late, if they still lack a stamp then
        self._deadlines: dict[int, float] = {}  # share -> when its holder will be gone
        self._going: set[int] = set()  # shares of those that will be gone too soon
        self._called: set[int] = set()  # newcomers that were sent their task, and are not ready yet
        self._live = {share: w for w, share in holders.items() if share in windows.shares}
        # Live too, but not counted on: they are late. They may come back, or have to.
        self._out = {share: w for w, share in holders.items() if share not in windows.shares}
        self._members: set[int] = set()  # shares of the last plan that were not left out since
        self._entered = dict.fromkeys(self._live, 1)  # the epoch from which its holder takes part
        self._windows = windows  # of the last plan
        self._cover: Cover | None = None  # of its first round
        self._asked: dict[int, list[tuple[int, tuple[RowRange, ...]]]] = {}  # there: epoch, rows
        self._flight = 0  # the round in flight when last looked
        self._since = self._paused = 0.0  # when it began, and when enough had stamped it:
        self._few = False  # the threshold, but not half
        self._usual: float | None = None  # seconds a round takes
        self._look = FIRST_LOOK

    def start(self, time: float) -> list[Command]:
        self._since = time
        if self._late is not None:
            self.wake = time + self._look
        return [self._hold(), *(self._send(*one) for one in self._holders.items())]

    def on(self, event: Event) -> Sequence[Command]:
        if type(event) is Observed:
            return self._observed(event)
        if self.done:
            return ()
        if type(event) is Reply and event.round == self.id:
            return self._on_reply(event)
        if type(event) is Lost:
            return self._lost(event.worker)
        if type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        if type(event) is Stored and event.key == self.key and event.slot is not None:
            if event.slot in self._live or event.slot in self._out:
                self.standby[event.worker] = event.slot
            elif event.worker not in self._holders:
                return self._call(event.worker, event.slot)
        elif type(event) is Leaving:
            return self._notice(event)
        elif type(event) is Tick:
            self.wake = NEVER if self._late is None else self.wake
            return [*self._see_off(event.time), self._ask()]
        return ()

    def last_resort(self, time: float) -> Sequence[Command]:
        if self._late is not None and self._progress is not None:
            # Who lacks a stamp by now is late, however little is known of what is usual.
            self._flight, asked = self._in_flight(self._progress)
            self._behind = self._lacking(self._progress, self._flight, asked)
        return [self._hold()]  # and see who is waited for

    @property
    def entering(self) -> bool:  # type: ignore[override]
        return bool(self._called)

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def working(self) -> tuple[int, ...]:
        """Workers that take part now."""
        return tuple(sorted(self._live.values()))

    @property
    def shares(self) -> set[int]:
        """All workers that held a share during the run."""
        return set(self._holders.values())

    @property
    def owing(self) -> tuple[int, ...]:
        now = self._progress
        lacking = () if now is None else self._lacking(now, *self._in_flight(now))
        return tuple(sorted(self._live[share] for share in lacking))

    def _send(self, worker: int, share: int) -> Send:
        return Send(self._work.task(self.id, worker, share))

    def _ask(self) -> Observe:
        return Observe(self._exchange.progress)

    def _hold(self) -> Observe:
        return Observe(self._exchange.hold, held=True)

    def _observed(self, event: Observed) -> Sequence[Command]:
        self._progress = now = event.value
        if self.done:
            self._count(now)
        elif event.held:
            return self._change(now)
        elif self._late is not None and event.time >= self.wake:
            return self._look_for_late(event.time, now, self._late)
        return ()

    def _lost(self, worker: int) -> Sequence[Command]:
        self._called.discard(worker)
        self.standby.pop(worker, None)
        share = self._holders.get(worker, -1)
        commands: list[Command] = []
        if self._live.get(share) == worker:
            self._leaving.append(share)
            commands.append(self._hold())
        elif self._out.get(share) == worker:
            del self._out[share]
        else:
            return ()
        self.lost.append(worker)
        self._deadlines.pop(share, None)
        self._going.discard(share)
        for other in [w for w, slot in self.standby.items() if slot == share][:1]:
            commands += self._call(other, self.standby.pop(other))
        return commands

    def _call(self, worker: int, share: int) -> list[Command]:
        """Let a newcomer begin; it takes part when it is ready."""
        self._holders[worker] = share
        self._called.add(worker)
        return [self._send(worker, share)]

    # Leaving: who will be gone too soon is left out of the plan before that.

    def _notice(self, event: Leaving) -> Sequence[Command]:
        worker, share = event.worker, self._holders.get(event.worker, -1)
        if worker not in (self._live.get(share), self._out.get(share)):
            return ()
        if event.deadline < NEVER:
            self._deadlines[share] = event.deadline
            return self._see_off(event.time)
        left_out = share in self._going and share in self._out
        self._deadlines.pop(share, None)
        self._going.discard(share)
        if left_out:
            self._enter(share, worker)
        return [self._hold()] if left_out else ()

    def _see_off(self, time: float) -> list[Command]:
        usual = self._usual or 0.0
        soon = {s for s, end in self._deadlines.items() if not in_time(end, time, usual)}
        new = (soon & self._live.keys()) - self._going
        self._going |= soon
        self.wake = min(self.wake, self._next_leaving())
        return [self._hold()] if new else []

    def _next_leaving(self) -> float:
        """When the next late worker is left out."""
        ends = [end for share, end in self._deadlines.items() if share not in self._going]
        return latest(min(ends, default=NEVER), self._usual or 0.0)

    def _on_reply(self, event: Reply) -> Sequence[Command]:
        share = self._holders.get(event.worker)
        if event.value is None or share is None:
            return ()
        kind, round, *rest = event.value
        if kind == ROUND:
            self.change = rest[0]
            self._work.on_round(round, rest[0])
        elif kind == END:
            self.change = rest[0] if rest[0] < NEVER else self.change  # a joiner does not know
            self.ended, self.done = (share, round), True
            return [self._ask()]
        elif kind == BROKEN:
            self.broken, self.done = (round, *rest), True
        elif kind == READY and share not in self._live and share not in self._going:
            self._called.discard(event.worker)
            self._enter(share, event.worker)
            return [self._hold()]
        return ()

    # A change of those who take part: hold, see how far everybody is, and go on with a new plan.

    def _enter(self, share: int, worker: int) -> None:
        self._out.pop(share, None)
        self._live[share] = worker
        self._entered[share] = len(self.plans) + 1

    def _count(self, now: Progress) -> None:
        self.read |= {worker: int(now.reads[share]) for share, worker in self._live.items()}

    def _change(self, now: Progress) -> Sequence[Command]:
        """Go on without those that are lost, and without the late that still lack a stamp."""
        self._count(now)
        for share in self._leaving:
            del self._live[share]
        late, self._leaving, self._behind = self._behind, [], []
        round, asked = self._in_flight(now)
        if self.plans and round and now.stops[self.plans[-1].leader] == round:
            self.ended, self.done = (self.plans[-1].leader, round), True
            return ()
        if late and round == self._flight:
            late = [share for share in self._lacking(now, round, asked) if share in late]
            for share in late[: max(0, len(self._live) - self.threshold)]:
                self._out[share] = self._live.pop(share)
                self.late.append(self._out[share])
        for share in [s for s in self._going if s in self._live]:
            if len(self._live) > self.threshold:
                self._out[share] = self._live.pop(share)
        self._members &= self._live.keys()
        for share, worker in list(self._out.items()) if len(self._live) < self.threshold else ():
            self._enter(share, worker)  # late or not, without them it does not go on
        self.missing = max(0, self.threshold - len(self._live))
        if self.missing:
            return ()  # all wait for a worker to join
        epoch = len(self.plans) + 1
        windows = self._work.windows(sorted(self._live))
        before: Asked = {}
        if not self._reachable(now, round, asked):
            # Nobody is left that can have the vector of this round: back to the newest there is.
            round = int(now.vectors.max())
            self._cover = Cover(windows)
            self._asked = {share: [(epoch, runs)] for share, runs in windows.work.items()}
        else:
            last = self.plans[-1]
            before = last.before if round == last.round else last.asked(round - 1)
            self._repair(now, round, asked, epoch)
        self._windows = windows
        return [self._publish(round, epoch, before)]

    def _reachable(self, now: Progress, round: int, asked: Asked) -> bool:
        """Whether a worker has the vector of this round, or all that it takes to make it."""
        if not self._members or not self.plans:
            return False
        those = self._members & asked.keys()
        return bool((now.vectors == round).any()) or any(
            stamped(now, share, self._entered[share], round - 1) for share in those
        )

    def _repair(self, now: Progress, round: int, asked: Asked, epoch: int) -> None:
        """Ask others for what lacks in the round in flight; what is stamped stays good."""
        if self._cover is None or round != self.plans[-1].round:
            self._cover = Cover(self._windows)
            self._asked = {share: [one] for share, one in asked.items()}
        cover = self._cover
        for share, those in self._asked.items():
            for due, runs in those:
                if stamped(now, share, due, round):
                    cover.deliver(share, runs)
            if share not in self._live:
                self._asked[share] = [one for one in those if stamped(now, share, one[0], round)]
        cover.keep(self._live)
        old = sorted(self._members)
        new = [share for share in self._live if share not in self._members]
        before = cover.topped_up_rows, cover.repeated_rows
        self._top_up(cover, epoch, old, new)
        while poor := self._work.weak(cover):
            cover.require_more(poor)
            if not self._top_up(cover, epoch, [*old, *new]):
                break  # nobody is left to ask; the bound says how good it is
        self.rows_topped_up += cover.topped_up_rows - before[0]
        self.repeated_rows += cover.repeated_rows - before[1]

    def _top_up(self, cover: Cover, epoch: int, old: list[int], new: Sequence[int] = ()) -> bool:
        """Newcomers are asked only where the others are too few. Whether anybody is asked."""
        runs, _ = cover.top_up(old, new)
        for share, more in runs.items():
            self._asked.setdefault(share, []).append((epoch, more))
        return bool(runs)

    def _publish(self, round: int, epoch: int, before: Asked) -> Publish:
        cover, windows = self._cover, self._windows
        assert cover is not None
        first = {}
        for share, mask in zip(cover.shares, cover.asked, strict=True):
            if self._asked.get(share):
                due = max(since for since, _ in self._asked[share])
                first[share] = (due, runs_of(mask, cover.cuts))
        leaders = self._members & windows.work.keys() & first.keys() or windows.work.keys()
        self._members = set(windows.work)
        entered = {share: self._entered[share] for share in self._live}
        plan = EpochPlan(epoch, round, first, windows.work, min(leaders), entered, before)
        others = not self.plans or self.plans[-1].entered != entered
        self.plans.append(plan)
        return Publish(self._exchange.publish, plan.dumps(), others)

    def _in_flight(self, now: Progress) -> tuple[int, Asked]:
        return self.plans[-1].in_flight(now) if self.plans else (0, {})

    def _lacking(self, now: Progress, round: int, asked: Asked) -> list[int]:
        """Live shares that have not stamped a round."""
        those = [(share, due) for share, (due, _) in asked.items() if share in self._live]
        return [share for share, due in those if not stamped(now, share, due, round)]

    # Lateness: seen by looking at the stamps, now and then.

    def _look_for_late(self, time: float, now: Progress, rule: Late) -> Sequence[Command]:
        commands: Sequence[Command] = ()
        round, asked = self._in_flight(now)
        if round != self._flight or self.missing:
            took = (time - self._since) / max(1, round - self._flight)
            self._usual = took if self._usual is None else 0.5 * (took + self._usual)
            self._flight, self._since, self._paused = round, time, 0.0
            self._look = max(FIRST_LOOK, 0.5 * self._usual)
        late = self._lacking(now, round, asked)
        few = 2 * len(late) > len(asked)
        if late and (not few or len(asked) - len(late) >= self.threshold):
            if not self._paused or few != self._few:  # from now on we wait for the rest
                self._paused, self._few = time, few
            usual = self._paused - self._since if self._usual is None else self._usual
            if time >= self._paused + (rule.allowed_few if few else rule.allowed)(usual):
                self._paused, self._behind = time, late
                self._look *= 1.5  # they may have to be waited for
                commands = [self._hold()]
        else:
            self._look *= 1.5
        self.wake = min(time + self._look, self._next_leaving())
        return commands
