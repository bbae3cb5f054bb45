"""What a worker does in an iteration w ← f(X w): its rows, the exchange, the decode, f, and on.

Every worker decodes the whole vector for itself. The other way, each decoding a part and exchanging
once more, would save k N multiplications a round and cost a second wait for everybody and a second
place where a loss can fall; and f may look at the whole vector, which each has only in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..exchange import GATHER, REST, WORK, Exchange
from ..model import Piece, RowRange
from ..rounds import epochs
from ..rounds.epochs import Asked, EpochPlan
from . import work
from .decode import Code, Segment, combine, segments
from .scales import Scales

Step = Callable[..., Any]  # f(y) or f(y, w)


@dataclass(frozen=True)
class Loop:
    """All that is the same for every worker of a run."""

    code: Code
    f: Step
    with_w: bool  # f takes w too
    rounds: int
    tol: float  # below 0: none
    report_every: int
    # Seconds of silence, at most: of who works, and of who waits. A wait is no sign of life of the
    # run: if nobody gets on, the master should hear nothing.
    work_beat: float
    wait_beat: float
    check_finite: bool

    def step(self, y: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """f, with its result looked at."""
        with np.errstate(all="ignore"):  # what is not finite is reported in one way
            value = self.f(y, w) if self.with_w else self.f(y)
        if np.ma.is_masked(value):
            raise ValueError("f must return numbers that all count; it returned masked entries.")
        made = np.asarray(value)
        if made.shape != w.shape or made.dtype.kind not in "biuf":
            raise ValueError(
                f"f must return real numbers in the shape of its vector, {w.shape}; it returned "
                f"{made.dtype} in shape {made.shape}."
            )
        return made.astype(w.dtype, copy=False)


def worker_body(
    kept: Mapping[str, Any], operand: None, key: str, share_key: str, share: int, loop: Loop
) -> Iterator[Piece]:
    """The body of the one task that a worker has for the whole run."""
    return _Worker(kept[key], kept.get(share_key), kept.get(scales_key(key)), share, loop).go()


def scales_key(exchange: str) -> str:
    """Under which workers keep what the rows of the matrix were divided by, if they were."""
    return f"{exchange}-scales"


class _Worker:
    """One worker, at round `t` with the vector `w` that goes into it.

    Every wait ends within a millisecond of a stamp, a new plan, the end of the run, or a cancel.
    """

    def __init__(
        self, exchange: Exchange, matrix: Any, scales: Scales | None, share: int, loop: Loop
    ) -> None:
        self.ex, self.share, self.loop, self.scales = exchange, share, loop, scales
        layout = exchange.layout
        self.values = layout.values
        self.matrix: Any = None if matrix is None else work.matrix_of(matrix, layout.length)
        self.step = layout.rows if matrix is None else work.slice_rows(self.matrix, 1)
        self.seen = -1  # the control word of `plan`
        self.announced = -1  # the control word under which it said that it is ready
        self.plan: EpochPlan | None = None
        self.asked: Asked = {}  # in round t, of everybody
        self.segments: list[Segment] = []  # how to decode round t
        self._everybody = np.empty(0, np.int64), np.empty(0, np.int64)  # shares and their epochs
        self._known: tuple[Asked, list[Segment]] = ({}, [])
        self.t, self.w = -1, np.empty(0)
        self.ready = False  # whether w is the vector of round t
        self._cut: dict[RowRange, Any] = {}  # rows of the share, for cutting a sparse one is a copy
        self.done: list[RowRange] = []  # rows of round t that are in the slot
        self.stamped = (0, -1)  # epoch and round
        self.read = 0  # rows
        self.change = float("inf")
        self.emitted = exchange.now()
        self.tries = 0

    def go(self) -> Iterator[Piece]:
        """Take part until the run ends."""
        ex, share, loop = self.ex, self.share, self.loop
        while True:
            if ex.control != self.seen:
                loaded = self._load()
                if self.t < 0 and self.announced != ex.control:
                    self.announced = ex.control  # once, also while the master holds: it may lack us
                    yield self._emit(epochs.READY, 0)
                if not loaded:
                    yield from self._rest()
                    continue
            if self.t < 0 or not (self.ready or self._fetch()):
                yield from self._rest()
                continue
            plan, t = self.plan, self.t
            assert plan is not None
            if t >= loop.rounds or self._over(plan):
                yield self._emit(epochs.END, t, self.change)
                return
            owes, todo = self._todo(plan)
            if todo:
                for a, b in work.slices(todo, self.step):
                    if self.values:
                        ex.pieces(t)[share, a:b] = work.times(self._rows(a, b), self.w)
                    self.done.append((a, b))
                    self.read += b - a
                    yield Piece((WORK, t, b - a), None, b - a)
                    if ex.now() >= self.emitted + loop.work_beat:
                        yield self._emit(epochs.BEAT, t)
                size = work.count_rows(todo) * np.dtype(ex.layout.dtype).itemsize
                yield Piece((GATHER, len(self.asked), size), None)
            if owes:
                self.stamped = (plan.epoch, t)
                ex.stamp(share, plan.epoch, t, self.read)
            if share not in plan.steady and (t > plan.round or ex.offered(t + 1)):
                self.t, self.ready = -1, False  # nobody waits for it any more
                continue
            complete = ex.stamped(*self._everybody, t)
            if ex.control != self.seen:
                continue
            if not complete:
                yield from self._rest()
                continue
            yield from self._advance(plan)
            if self.t < -1:
                return

    # What the master says.

    def _load(self) -> bool:
        """Read the newest plan and find one's place in it; False while it is being written."""
        newest = self.ex.plan()
        if newest is None:
            return False
        before = 0 if self.plan is None else self.plan.epoch
        self.seen, plan = newest[0], EpochPlan.loads(newest[1])
        self.plan, self.tries = plan, 0
        self.ready &= plan.entered.get(self.share, plan.epoch) <= before
        mine = plan.first.get(self.share)
        me = np.array([self.share])
        owes = mine is not None and not self.ex.stamped(me, np.array([mine[0]]), plan.round)
        # Whoever is owed a stamp in a round keeps the others from the round after the next, so that
        # what it still has to read is not written over. Else it takes the vector from others.
        if owes:
            start = plan.round
            behind = self.t == start - 1 == self.stamped[1] and bool(plan.before)
            fine = self.t == start or behind
        else:
            start = plan.round + 1 if self.share in plan.steady else -1
            # Who has done the plan's first round makes its vector, though it goes no further: those
            # that go on may all be new, and have to take that vector from somebody.
            fine = (start >= 0 or mine is not None) and self.t == plan.round
        if not (fine and self.ready):
            self.t, self.ready, self.done = start, False, []
            self.change = float("inf")
        if self.t >= plan.round or self.ready:
            self._plan(plan)  # of the round before too: this may be the first that it hears of it
        return True

    def _plan(self, plan: EpochPlan) -> None:
        """Who does what in round t, and how it is decoded."""
        self.asked = plan.asked(self.t)
        shares = np.array(list(self.asked), dtype=np.int64)
        self._everybody = shares, np.array([since for since, _ in self.asked.values()])
        if self._known[0] != self.asked:
            self._cut.clear()
            parts = decoding(self.loop.code, self.asked, self.ex.layout.rows) if self.values else []
            self._known = (self.asked, parts)
        self.segments = self._known[1]

    def _todo(self, plan: EpochPlan) -> tuple[bool, list[RowRange]]:
        """Whether this share owes a stamp in round t, and the rows that it has not done for it."""
        mine = self.asked.get(self.share)
        epoch, round = self.stamped
        if mine is None or self.t < plan.round or (epoch >= mine[0] and round >= self.t):
            return False, []
        return True, minus(mine[1], self.done)

    def _rows(self, a: int, b: int) -> Any:
        if isinstance(self.matrix, np.ndarray):
            return self.matrix[a:b]
        if (a, b) not in self._cut:
            self._cut[a, b] = self.matrix[a:b]
        return self._cut[a, b]

    def _over(self, plan: EpochPlan) -> bool:
        """Whether the run ends here: decided by the leader, for all."""
        if self.share == plan.leader and self.change <= self.loop.tol:
            self.ex.stop(self.share, self.t)
            return True
        return self.ex.stopped(plan.leader) == self.t > 0 and self.ex.control == self.seen

    def _fetch(self) -> bool:
        """Take the vector of round t from somebody who has it."""
        vector = self.ex.take(self.t)
        if vector is None:
            return False
        self.w, self.ready, self.tries = vector, True, 0
        self.ex.offer(self.share, self.t, vector)
        assert self.plan is not None
        self._plan(self.plan)
        return True

    # The vector.

    def _advance(self, plan: EpochPlan) -> Iterator[Piece]:
        """Decode round t, all of whose pieces are there, and go on to the next."""
        ex, loop, new = self.ex, self.loop, self.w
        if self.values:
            pieces = ex.pieces(self.t)[:, :, None]
            with np.errstate(over="ignore", invalid="ignore"):
                y = combine(self.segments, pieces).reshape(-1)[: ex.layout.length]
                y = y if self.scales is None else self.scales.times(y)
            if ex.control != self.seen or (
                self.share not in plan.steady and ex.offered(self.t + 1)
            ):
                return  # left out meanwhile, it may have read what others had written over
            new = loop.step(y, self.w)
            if loop.check_finite and not np.isfinite(new.sum()) and not np.isfinite(new).all():
                entry = int(np.flatnonzero(~np.isfinite(new))[0])
                yield self._emit(epochs.BROKEN, self.t + 1, entry, float(new[entry]))
                self.t = -2
                return
            self.change = float(np.linalg.norm(new - self.w))
        self.t, self.w, self.done, self.tries = self.t + 1, new, [], 0
        ex.offer(self.share, self.t, new)
        if plan.round <= self.t <= plan.round + 1:  # later rounds are alike
            self._plan(plan)
        late = ex.now() >= self.emitted + loop.work_beat
        if self.share == plan.leader and (late or self.t % loop.report_every == 0):
            yield self._emit(epochs.ROUND, self.t, self.change)

    # Messages to the master.

    def _emit(self, *words: Any) -> Piece:
        self.emitted = self.ex.now()
        return Piece(words[0], words)

    def _rest(self) -> Iterator[Piece]:
        self.tries += 1
        self.ex.rest(self.tries)
        due = self.emitted + self.loop.wait_beat
        if self.ex.now() >= due:
            yield self._emit(epochs.BEAT, self.t)
            due = self.emitted + self.loop.wait_beat
        yield Piece((REST, due), None)


def minus(runs: Sequence[RowRange], done: Sequence[RowRange]) -> list[RowRange]:
    """The rows of `runs` that are not in `done`."""
    left = list(runs)
    for a, b in done:
        cut = []
        for first, last in left:
            cut += [(first, min(last, a)), (max(first, b), last)]
        left = [(first, last) for first, last in cut if first < last]
    return left


def decoding(code: Code, asked: Asked, rows: int) -> list[Segment]:
    """How to decode when every share has delivered what it was asked for; places are shares."""
    edges = (row for _, runs in asked.values() for run in runs for row in run)
    cuts = np.array(sorted({0, rows, *edges}), dtype=np.intp)
    have = np.zeros((code.n, len(cuts) - 1), dtype=bool)
    for share, (_, runs) in asked.items():
        for first, last in runs:
            have[share] |= (first <= cuts[:-1]) & (cuts[:-1] < last)
    return segments(code, range(code.n), cuts, have)
