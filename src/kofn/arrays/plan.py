"""Who takes part in the next round of a matrix, what each of them reads, and how to decode it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import AnyKOfN
from ..model import Record
from ..rounds import ElasticRound, Layout, Windows, fill, rows_moved, shifted
from ..rounds.base import Round
from ..rounds.holders import Holders
from ..rounds.iterate import IterateRound
from ..rounds.lateness import Late, UsualHalf
from ..rounds.leaving import Usual
from ..rounds.still import rows_taken_up, still
from ..rounds.windows import with_extra
from . import decode
from .decode import Code, Mix, Segment, plain
from .options import Options
from .probes import group_count
from .reduce import Item, SumRound
from .tuning import MarginTuner
from .wide import decode as in_place

# Seconds, of half of a round's tasks: shorter ones tell more of other programs than of speed.
MEANINGFUL = 3e-3
BEST_OF, ENOUGH = 8, 4  # replies looked at, and how many there must be
BLEND = 0.5  # weight of the newest in the moving average
SILENT = 0.25  # seconds: who owes an answer from an earlier round for so long is left out
RUNS = 16  # of a window that stays where it is; then windows are laid anew
PLANS = 16  # kept: of whole products and of batches of a few sizes
EARLIER = 4  # kept of each of them, for when those that were late are back
WIDTHS = 8  # of operands, for which it is kept how to decode their replies at once
KINDS = 64  # of rounds whose usual seconds are known
CHANGED = 0.10  # loads that differ by less are left as they are


class Plan:
    """Windows for one set of holders, and how to decode them. Made once a membership change."""

    def __init__(
        self,
        code: Code,
        holders: dict[int, int],
        layout: Layout,
        rows: int,
        before: Plan | None = None,
        *,
        values: bool = True,
    ) -> None:
        self.holders = holders  # worker -> share
        self.values = values  # whether there are any
        self.layout = layout
        shares = tuple(sorted(holders.values()))
        if before is None or not before.windows.shares:
            self.windows: Windows = layout.lay(shares, rows)
            self.rows_moved = 0
        else:
            same = still(before.windows, layout, shares, RUNS) if layout.still else None
            self.windows = same or shifted(before.windows, layout, shares)
            moved = rows_taken_up if layout.still else rows_moved
            self.rows_moved = moved(before.windows, self.windows)
        self.segments: list[Segment] = []
        self._mixes: dict[int, Mix | None] = {}  # by the width of the operand
        self.eta: float | None = None
        if decode.judged(code, values) and len(holders) >= code.k:
            while True:
                windows = self.windows
                self.segments = decode.segments(code, shares, windows.cuts, windows.asked)
                self.windows = with_extra(windows, decode.weak(self.segments, windows.cuts))
                if self.windows.asked.sum() == windows.asked.sum():
                    break  # good enough; or everyone is asked, and the bound says how good it is
            self.eta = decode.worst(self.segments)

    def suits(self, holders: dict[int, int], loads: tuple[float, ...] | None) -> bool:
        """Whether it is for these holders, and loads that are about the same."""
        return self.holders == holders and not Paces.differ(self.layout.fractions, loads)

    def after(self, before: Plan | None) -> Plan:
        """Return itself, now that it takes the place of another one."""
        moved = 0 if before is None else rows_moved(before.windows, self.windows)
        self.rows_moved = moved
        return self

    def decode(
        self, code: Code, round: ElasticRound, width: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[Any], float | None]:
        """The k blocks below each other, (k rows, width), from what a round gathered; and its η."""
        rows = self.windows.rows
        if not self.values:
            nothing = np.array(np.nan, dtype)  # takes no memory, whatever the size
            eta = self.eta
            if eta is not None and not round.cover.as_planned:
                eta = decode.worst(decode.covered(code, round.cover))
            return np.broadcast_to(nothing, (code.k * rows, width)), eta
        if width == 0:
            return np.empty((code.k * rows, width), dtype), self.eta
        parts, places, eta = self.segments, self.windows.places, self.eta
        if round.cover.as_planned:
            whole = {share: value for share, _, value in round.values}
            mix = self._mix(code, width) if len(whole) == len(round.values) == len(places) else None
            if mix is not None:
                every = [whole[share] for share in places]
                return decode.combine_mixed(mix, every).reshape(-1, width), eta
        else:
            parts = decode.covered(code, round.cover)
            places = {share: i for i, share in enumerate(round.cover.shares)}
            eta = decode.worst(parts)
        many = len(places) * rows * width > decode.FEW
        if many and isinstance(code, AnyKOfN):
            wide = in_place(code, parts, tuple(places), round.values, (rows, width))
            return wide.reshape(-1, width), eta
        replies = decode.gather(round.values, places, (len(places), rows, width))
        return decode.combine(parts, replies).reshape(-1, width), eta

    def _mix(self, code: Code, width: int) -> Mix | None:
        """How all replies of whole windows are combined at once."""
        if width not in self._mixes:
            if len(self._mixes) >= WIDTHS:
                self._mixes.clear()
            self._mixes[width] = decode.mix(code, self.segments, self.windows, width)
        return self._mixes[width]

    def combined(self, code: Code, round: ElasticRound) -> int:
        """How many numbers decoding combines for each column, if they were there."""
        cover = round.cover
        blocks = [isinstance(code, AnyKOfN) and plain(code, s) is not None for s in cover.shares]
        missing = code.k - cover.have[np.array(blocks)].sum(axis=0)
        return int(missing @ np.diff(cover.cuts)) * code.k

    def items(self, k: int, z: NDArray[Any]) -> list[Item]:
        """What each holder does for Aᵀ z: the rows of its window, times the re-encoded z."""
        rows, shares = self.windows.rows, self.windows.shares
        asked = [(i, runs) for i, runs in enumerate(self.windows.runs) if runs]
        if not self.values:
            return [Item(shares[i], runs, None) for i, runs in asked]
        blocks = np.zeros((k * rows, z.shape[1]), z.dtype)
        blocks[: len(z)] = z
        u = decode.recode(self.segments, len(shares), blocks.reshape(k, rows, -1))
        return [
            Item(shares[i], runs, np.concatenate([u[i, first:last] for first, last in runs]))
            for i, runs in asked
        ]


class Paces:
    """How long a row takes on each worker: a moving average, of the best of its last few replies.

    The best, because whatever else a busy machine does can only make a reply slower. The unit is
    the middle one of a round: rows take longer in one kind of product than in another, and whoever
    has few of them is measured in the same rounds as the others.
    """

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self._pace: dict[int, float] = {}
        self._loads: dict[Hashable, tuple[float, ...] | None] = {}  # until a pace changes

    def learn(self, rows: Mapping[int, int], seconds: Mapping[int, float]) -> None:
        """Take in what a round measured."""
        paces = {w: spent / rows[w] for w, spent in seconds.items() if spent and rows.get(w)}
        if not paces or _middle(seconds[worker] for worker in paces) < MEANINGFUL:
            return
        unit = _middle(paces.values())
        for worker, pace in paces.items():
            last = self._last.setdefault(worker, deque(maxlen=BEST_OF))
            last.append(pace / unit)
            if len(last) >= ENOUGH:
                best = min(last)
                old = self._pace.get(worker, best)
                self._pace[worker] = old + BLEND * (best - old)
                self._loads = {}

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return bool(self._pace)

    def loads(
        self, holders: Mapping[int, int], span: int, crowded: Collection[int]
    ) -> tuple[float, ...] | None:
        """Loads by measured speed, in the order of holders; None for equal ones.

        Those that are `crowded` have one speed: they take turns on the same cores.
        """
        asked = (span, tuple(crowded), tuple(holders))
        if asked not in self._loads:
            pace = {w: self._pace[w] for w in holders if w in self._pace}
            if together := [pace[w] for w in pace if w in crowded]:
                pace |= dict.fromkeys(crowded, _middle(together))
            usual = _middle(pace.values()) if pace else 1.0  # who is new is taken for usual
            speeds = [1.0 / pace.get(worker, usual) for worker in holders]
            self._loads = {asked: fill(speeds, span)}
        return self._loads[asked]

    @staticmethod
    def differ(old: tuple[float, ...] | None, new: tuple[float, ...] | None) -> bool:
        """Whether loads have changed enough to lay other windows."""
        if old is None or new is None:
            return old is not new
        return any(abs(a - b) > CHANGED * b for a, b in zip(old, new, strict=True))


def _middle(numbers: Iterable[float]) -> float:
    """The median; of two in the middle the larger one."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]


Rebuild = Callable[[int, int], None]


class Planner:
    """Plans for the rounds of one matrix, made anew only when something has changed.

    `rebuild(worker, share)` makes a share from `least` others. A product takes `need` of them.
    """

    def __init__(
        self, holders: Holders, rebuild: Rebuild, least: int, need: int, measured: bool
    ) -> None:
        self._driver, self._holders, self._rebuild = holders.driver, holders, rebuild
        self._least, self._need = least, need
        self._paces = Paces() if measured else None
        # By code, margin and rows; the one in use is the last, others are of other holders.
        self._plans: dict[tuple[Code, int, int], list[Plan]] = {}
        self._kinds: dict[tuple[Hashable, ...], UsualHalf] = {}
        self._kind = UsualHalf()  # of the round that goes on
        # What was asked for last: mostly the same again, and to look it up hashes the code.
        self._asked: tuple[Hashable, ...] = ()
        self._kind_asked: tuple[Hashable, ...] = ()
        self._late: Late | None = None
        self._laggards: set[int] = set()  # late, and still at it
        self.usual = Usual()  # of all rounds of this matrix
        self.groups, self.spare, self.still = 0, False, False  # of the layouts of its products
        self.tuner: MarginTuner | None = None  # where the margin is left to kofn
        self.tuned: tuple[str, ...] = ()  # what was changed before the last product
        self.wait = float("inf")  # seconds that joiners are waited for, if less than the cluster's

    def configure(self, options: Options, rows: int, code: Code) -> None:
        """How rows are laid out, and whether the margin is learnt."""
        self.groups = group_count(rows, code.n) if options.verify == "probe" else 0
        self.spare, self.still, self._late = options.verify == "parity", options.still, options.late
        if options.recode is not None and options.late is not None:
            self.tuner = MarginTuner(code.k, options.late)

    def plan(self, code: Code, rows: int, margin: int) -> Plan:
        """The plan for those that can take part now."""
        ready = self.answering(self._holders.known(self._ready, self._need), code.k)
        paces, loads = self._paces, None
        if paces is not None and paces.known:
            loads = paces.loads(ready, code.k + margin, self._driver.engine.crowded)
        if (asked := (code, margin, rows)) != self._asked:
            self._plans[asked] = self._plans.pop(asked, [])  # the one used last is the last
            self._asked = asked
        plans = self._plans[asked]
        if plans and plans[-1].suits(ready, loads):
            return plans[-1]
        last = plans[-1] if plans else None
        earlier = [plan for plan in plans if plan.suits(ready, loads) and not self.still]
        if earlier:
            plan = earlier[0].after(last)
            plans.remove(plan)
        else:
            values = self._driver.engine.capabilities.values
            spare = self.spare and margin > 0
            layout = Layout(code.k, margin, loads, self.groups, spare, self.still)
            plan = Plan(code, ready, layout, rows, last, values=values)
        plans[:] = [*plans[1 - EARLIER :], plan]
        while len(self._plans) > PLANS:
            del self._plans[next(iter(self._plans))]
        return plan

    def late(self, *kind: Hashable) -> Late | None:
        """The rule of lateness for a round of this kind, which is about to begin."""
        if kind != self._kind_asked:
            known = self._kinds.pop(kind, None)
            self._kind = self._kinds[kind] = UsualHalf() if known is None else known
            self._kind_asked = kind
            if len(self._kinds) > KINDS:
                del self._kinds[next(iter(self._kinds))]
        return self._late and self._late.knowing(self._kind.seconds)

    def margin(self, given: int) -> int:
        """The margin of the next product: the one that was given, or what the tuner finds best."""
        if (tuner := self.tuner) is None:
            return given
        if (change := tuner.change()) is not None:
            self.tuned = (change.why,)
            now = self._driver.engine.now()
            self._driver.log.append(Record(now, "tuned", -1, -1, -1, 0, change.why))
        return tuner.margin

    def members(self, plan: Plan) -> tuple[dict[int, int], Collection[int]]:
        """Live workers with their shares, and those among them that have no part in a plan."""
        if len(self._holders.shares) == len(plan.holders):
            return plan.holders, ()
        ready = self._holders.ready()
        return ready, ready.keys() - plan.holders.keys()

    def prepare(self, round: ElasticRound | SumRound | IterateRound) -> None:
        """Tell a round how long others took, and who holds shares besides those in it."""
        round.usual, round.wait = self.usual.seconds, self.wait
        round.standby = self._holders.second()

    def ended(self, round: Round) -> None:
        """Note who was late in a round, and how long it took."""
        if isinstance(round, (ElasticRound, SumRound)):
            self.usual.learn(round.took)
            self._kind.learn(round.half)
        self._laggards = self._driver.roster.owing([*self._laggards, *round.late])

    def learn(self, round: ElasticRound | SumRound, workers: tuple[int, ...]) -> None:
        """Take in how fast each worker was; `workers` had windows."""
        if self._paces is not None:
            self._paces.learn(round.read, round.spent)
        if self.tuner is not None and isinstance(round, ElasticRound):
            self.tuner.learn(round, workers)

    def answering(self, ready: dict[int, int], need: int) -> dict[int, int]:
        """Those that owe no answer from an earlier round, and will not be gone before the end.

        If those are too few, all that owe none; if these are, all.
        """
        roster = self._driver.roster
        if not roster.debts.since and not roster.leaving:
            return ready
        now, silent = self._driver.engine.now(), self.silent()
        going = self.usual.too_soon(roster.leaving, now) if roster.leaving else set()
        for out in (silent | going, silent) if going else (silent,):
            if out and len(ready.keys() - out) >= need:
                return {worker: share for worker, share in ready.items() if worker not in out}
        return ready

    def silent(self) -> set[int]:
        """Those that owe an answer from an earlier round, and were late or owe it for a while."""
        roster, now = self._driver.roster, self._driver.engine.now()
        return roster.silent(now, SILENT) | roster.owing(self._laggards)

    def await_enough(self) -> None:
        """Wait for joiners until a product can begin; or raise TooFewWorkers."""
        driver, known = self._driver, partial(self._holders.known, self._ready, self._need)
        driver.settle()
        driver.await_enough(lambda: len(known()), self._need, lambda: min(driver.wait, self.wait))

    def _ready(self) -> dict[int, int]:
        """Live workers with their shares; when few, those fetching theirs are waited for."""
        holders, roster, came = self._holders, self._driver.roster, -1
        ready: dict[int, int] = {}
        # Again where somebody has joined meanwhile: it can take part, and nobody else tells it.
        while len(ready) < self._need and came != (came := roster.joined):
            holders.enlist()
            for worker, share in holders.vacant():
                if len(holders.ready()) >= self._least:
                    self._rebuild(worker, share)
            ready = holders.ready()
            if len(ready) < self._need:
                holders.wait()
                ready = holders.ready()
        return ready
