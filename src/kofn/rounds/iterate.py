"""Iteration without a master in the way of the values: w ← f(X w) among the workers themselves.

The master only says who does which rows, in *legs*. A leg holds from its first round on, until
the next one. In the first round of a leg every lane keeps the rows it was asked before, so that a
round in flight is repaired, not restarted; from the round after, windows are laid for those that
are live.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..engines.base import GATHER as GATHER
from ..engines.base import REST as REST
from ..engines.base import TASK as TASK
from ..engines.base import WORK as WORK
from ..engines.base import Exchange as Exchange
from ..engines.base import Progress
from ..engines.base import Shape as Shape
from ..model import Command, Event, Joined, Lost, Reply, Run, Send, Stored, Supply, Task, Tick
from .base import Round
from .cover import Cover
from .watch import Late
from .windows import Windows, runs_of

Asked = Mapping[int, tuple[int, tuple[Run, ...]]]  # by lane: since which epoch, which rows

# What a worker tells the master: the first of a small tuple.
READY = "ready"  # it could take part, and no leg names it
ROUND = "round"  # the leader: a round is done, and how much the vector has changed
BEAT = "beat"  # nothing, for long
END = "end"  # the run is over at this round
BROKEN = "broken"  # the vector of this round is not finite

LEAST = 0.1  # seconds: below, waiting costs less than two new legs
FIRST_LOOK = 0.02  # seconds between two looks at the stamps, at first


@dataclass(frozen=True)
class Leg:
    """Who does which rows, from `round` on."""

    epoch: int
    round: int
    # In that round: by lane the epoch in which it was last asked for more, and all its rows. Lanes
    # of lost workers are among them, with the rows they had delivered.
    first: Asked
    steady: Mapping[int, tuple[Run, ...]]  # in every later round
    leader: int  # the lane that reports, and that says when the tolerance is met
    # By lane the epoch from which its holder takes part without a break: what it knew before then
    # may be out of date.
    entered: Mapping[int, int]
    # What each lane did in the round before: whoever stamped that one may not have heard of the leg
    # under which others completed it, and still has to. Empty where `round` is begun anew.
    before: Asked

    def asked(self, round: int) -> Asked:
        """What each lane does in one round, the one before `self.round` or later."""
        if round == self.round:
            return self.first
        if round < self.round:
            return self.before
        return {lane: (self.epoch, runs) for lane, runs in self.steady.items()}

    def dumps(self) -> bytes:
        """The leg as bytes: some tens a lane, whatever the length of the vector."""
        maps = dict(self.first), dict(self.steady), self.leader, dict(self.entered)
        return pickle.dumps((self.epoch, self.round, *maps, dict(self.before)), 5)

    @staticmethod
    def loads(data: bytes) -> Leg:
        """The leg that was dumped."""
        return Leg(*pickle.loads(data))


class Work(Protocol):
    """What an iteration needs to know of the work it does."""

    key: str  # of the shares that workers must hold
    threshold: int

    def task(self, round: int, worker: int, lane: int) -> Task:
        """Make the one task that a worker has for the whole run."""

    def windows(self, lanes: Sequence[int]) -> Windows:
        """Lay windows for these lanes, at least the threshold."""

    def weak(self, cover: Cover) -> Sequence[int]:
        """Segments that need one lane more to decode well, once all that are asked deliver."""

    def idle(self) -> Sequence[int]:
        """Live workers that hold no share, and would take one that falls free."""

    def heard(self, round: int, change: float) -> None:
        """A round is done."""


class IterateRound(Round):
    """The whole run, as one round of the engine.

    `windows` are laid for lanes of `holders` (worker -> lane), each of whom gets one task for the
    whole run; `shares` tells the lanes of those too that join later. From then on the master hears
    a few words now and then, and decides only when somebody is lost, late, or comes.
    """

    def __init__(
        self,
        id: int,
        windows: Windows,
        holders: Mapping[int, int],
        shares: Mapping[int, int],
        work: Work,
        exchange: Exchange,
        late: Late | None,
    ) -> None:
        self.id, self.key, self.threshold = id, work.key, work.threshold
        self.read: dict[int, int] = {}  # rows stamped, by worker
        self.late: list[int] = []
        self.lost: list[int] = []
        self.joined: list[int] = []
        self.rows_topped_up = 0
        self.repeated_rows = 0
        self.legs: list[Leg] = []
        self.ended: tuple[int, int] | None = None  # the lane that has the vector, and the round
        self.change = float("inf")  # of the vector in the last round heard of
        self.broken: tuple[int, int, float] | None = None  # round, entry, its value
        self._shares, self._work, self._exchange, self._late = shares, work, exchange, late
        self._holders = dict(holders)
        self._called: set[int] = set()  # newcomers that were sent their task, and are not ready yet
        self._live = {lane: w for w, lane in holders.items() if lane in windows.lanes}
        # Live too, but not counted on: they are late. They may come back, or have to.
        self._out = {lane: w for w, lane in holders.items() if lane not in windows.lanes}
        self._members: set[int] = set()  # lanes of the last leg that were not left out since
        self._entered = dict.fromkeys(self._live, 1)  # the epoch from which its holder takes part
        self._windows = windows  # of the last leg
        self._cover: Cover | None = None  # of its first round
        self._asked: dict[int, list[tuple[int, tuple[Run, ...]]]] = {}  # there: epoch, rows
        self._missing = 0
        self._flight = 0  # the round in flight when last looked
        self._since = self._paused = 0.0  # when it began, and when half had stamped it
        self._usual: float | None = None  # seconds a round takes
        self._look = FIRST_LOOK

    def start(self, time: float) -> list[Command]:
        self._since = time
        self._change()
        if self._late is not None:
            self.wake = time + self._look
        return [self._send(worker, lane) for worker, lane in self._holders.items()]

    def on(self, event: Event) -> Sequence[Command]:
        if self.done:
            return ()
        if type(event) is Reply and event.round == self.id:
            self._heard(event)
        elif type(event) is Lost:
            self._called.discard(event.worker)
            gone = self._shares.get(event.worker, -1)
            if self._live.get(gone) == event.worker:
                self.lost.append(event.worker)
                self._change(lost=gone)
            elif self._out.get(gone) == event.worker:
                self.lost.append(event.worker)
                del self._out[gone]
            return [Supply(worker) for worker in self._work.idle()]
        elif type(event) is Joined:
            self.joined.append(event.worker)
            return [Supply(event.worker)]
        elif type(event) is Stored and event.key == self._work.key:
            lane = self._shares.get(event.worker)
            if lane is not None and event.worker not in self._holders:
                self._holders[event.worker] = lane
                self._called.add(event.worker)
                return [self._send(event.worker, lane)]
        elif type(event) is Tick:
            self._look_for_late(event.time)
        return ()

    @property
    def missing(self) -> int:
        return self._missing

    @property
    def entering(self) -> bool:
        return bool(self._called)

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def working(self) -> tuple[int, ...]:
        """Workers that take part now."""
        return tuple(sorted(self._live.values()))

    @property
    def owing(self) -> tuple[int, ...]:
        now = self._exchange.progress()
        round, asked = self._in_flight(now)
        return tuple(sorted(self._live[lane] for lane in self._lacking(now, round, asked)))

    def _send(self, worker: int, lane: int) -> Send:
        return Send(self._work.task(self.id, worker, lane))

    def _heard(self, event: Reply) -> None:
        lane = self._shares.get(event.worker)
        if event.value is None or lane is None:
            return
        kind, round, *rest = event.value
        if kind == ROUND:
            self.change = rest[0]
            self._work.heard(round, rest[0])
        elif kind == END:
            if rest[0] < float("inf"):  # who has just joined does not know
                self.change = rest[0]
            self.ended, self.done = (lane, round), True
            self._count(self._exchange.progress())
        elif kind == BROKEN:
            self.broken, self.done = (round, *rest), True
        elif kind == READY and lane not in self._live:
            self._called.discard(event.worker)
            self._enter(lane, event.worker)
            self._change()

    # A change of those who take part: hold, see how far everybody is, and go on with a new leg.

    def _enter(self, lane: int, worker: int) -> None:
        self._out.pop(lane, None)
        self._live[lane] = worker
        self._entered[lane] = len(self.legs) + 1

    def _count(self, now: Progress) -> None:
        self.read |= {worker: int(now.reads[lane]) for lane, worker in self._live.items()}

    def _change(self, lost: int | None = None, late: Sequence[int] = ()) -> None:
        """Go on without `lost`, and without those of `late` that still lack a stamp."""
        now = self._exchange.hold()
        self._count(now)
        if lost is not None:
            del self._live[lost]
        round, asked = self._in_flight(now)
        if self.legs and round and now.stops[self.legs[-1].leader] == round:
            self.ended, self.done = (self.legs[-1].leader, round), True
            return
        if late and round == self._flight:
            late = [lane for lane in self._lacking(now, round, asked) if lane in late]
            for lane in late[: max(0, len(self._live) - self.threshold)]:
                self._out[lane] = self._live.pop(lane)
                self.late.append(self._out[lane])
        self._members &= self._live.keys()
        for lane, worker in list(self._out.items()) if len(self._live) < self.threshold else ():
            self._enter(lane, worker)  # late or not, without them it does not go on
        lanes = sorted(self._live)
        self._missing = max(0, self.threshold - len(lanes))
        if self._missing:
            return  # everybody waits for somebody to join
        epoch = len(self.legs) + 1
        windows = self._work.windows(lanes)
        before: Asked = {}
        if not self._reachable(now, round, asked):
            # Nobody is left that can have the vector of this round: back to the newest there is.
            round = int(now.vectors.max())
            self._cover = Cover(windows)
            self._asked = {
                lane: [(epoch, runs)]
                for lane, runs in zip(windows.lanes, windows.runs, strict=True)
                if runs
            }
        else:
            last = self.legs[-1]
            before = last.before if round == last.round else last.asked(round - 1)
            self._repair(now, round, asked, epoch)
        self._windows = windows
        self._publish(round, epoch, before)

    def _reachable(self, now: Progress, round: int, asked: Asked) -> bool:
        """Whether somebody has the vector of this round, or what it takes to make it."""
        if not self._members or not self.legs:
            return False
        return bool((now.vectors == round).any()) or any(
            _has(now, lane, self._entered[lane], round - 1)
            for lane in self._members
            if lane in asked
        )

    def _repair(self, now: Progress, round: int, asked: Asked, epoch: int) -> None:
        """Ask others for what lacks in the round in flight; what is stamped stays good."""
        if self._cover is None or round != self.legs[-1].round:
            self._cover = Cover(self._windows)
            self._asked = {lane: [one] for lane, one in asked.items()}
        cover = self._cover
        for lane, those in self._asked.items():
            for due, runs in those:
                if _has(now, lane, due, round):
                    cover.deliver(lane, runs)
            if lane not in self._live:
                self._asked[lane] = [one for one in those if _has(now, lane, one[0], round)]
        for lane in cover.lanes:
            if lane not in self._live:
                cover.retire(lane)
        old = sorted(self._members)
        new = [lane for lane in self._live if lane not in self._members]
        for lane in new:
            cover.admit(lane)
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
        for lane, more in runs.items():
            self._asked.setdefault(lane, []).append((epoch, more))
        return bool(runs)

    def _publish(self, round: int, epoch: int, before: Asked) -> None:
        cover, windows = self._cover, self._windows
        assert cover is not None
        first = {}
        for lane, mask in zip(cover.lanes, cover.asked, strict=True):
            if self._asked.get(lane):
                due = max(since for since, _ in self._asked[lane])
                first[lane] = (due, runs_of(mask, cover.cuts))
        pairs = zip(windows.lanes, windows.runs, strict=True)
        steady = {lane: runs for lane, runs in pairs if runs}
        leaders = self._members & steady.keys() & first.keys() or steady.keys()
        self._members = set(steady)
        entered = {lane: self._entered[lane] for lane in self._live}
        leg = Leg(epoch, round, first, steady, min(leaders), entered, before)
        self.legs.append(leg)
        self._exchange.publish(leg.dumps())

    def _in_flight(self, now: Progress) -> tuple[int, Asked]:
        """The first round that lacks a stamp, and what each lane was asked there."""
        if not self.legs:
            return 0, {}
        leg = self.legs[-1]
        if not all(_has(now, lane, due, leg.round) for lane, (due, _) in leg.first.items()):
            return leg.round, leg.first
        done = min(
            int(now.rounds[lane]) if now.epochs[lane] >= leg.epoch else -1 for lane in leg.steady
        )
        round = max(leg.round, done) + 1
        return round, leg.asked(round)

    def _lacking(self, now: Progress, round: int, asked: Asked) -> list[int]:
        """Live lanes that have not stamped a round."""
        return [
            lane
            for lane, (due, _) in asked.items()
            if lane in self._live and not _has(now, lane, due, round)
        ]

    # Lateness: seen by looking at the stamps, now and then.

    def _look_for_late(self, time: float) -> None:
        assert self._late is not None
        now = self._exchange.progress()
        round, asked = self._in_flight(now)
        if round != self._flight or self._missing:
            took = (time - self._since) / max(1, round - self._flight)
            self._usual = took if self._usual is None else 0.5 * (took + self._usual)
            self._flight, self._since, self._paused = round, time, 0.0
            self._look = max(FIRST_LOOK, 0.5 * self._usual)
        late = self._lacking(now, round, asked)
        if late and 2 * len(late) <= len(asked):
            self._paused = self._paused or time  # half are there: from now on we wait for the rest
            usual = self._paused - self._since if self._usual is None else self._usual
            factor = self._late.spreads if self._late.factor is None else self._late.factor
            if time >= self._paused + max(LEAST, self._late.least, factor * usual):
                self._paused = time
                self._look *= 1.5  # they may have to be waited for
                self._change(late=late)
        else:
            self._look *= 1.5
        self.wake = time + self._look


def _has(now: Progress, lane: int, epoch: int, round: int) -> bool:
    """Whether a lane has stamped a round for an epoch."""
    return bool(now.epochs[lane] >= epoch and now.rounds[lane] >= round)
