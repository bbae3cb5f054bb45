"""The search: many options for a few rounds, the best of them for more, a few for all."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from statistics import mean
from typing import NamedTuple

from ..checks import number, whole
from ..costs import Costs
from ..delays import SpotTrace
from ..errors import BadInput
from ..simulation import Candidate, Row, Stage, Work, delays_of
from ..simulation.table import merged
from ..simulation.timings import Market, Timings, begun, markets_of
from ..simulation.work import Kind
from .calls import runs
from .goal import Goal, plain
from .grid import counts, grid, thinned, uncoded
from .options import Option, Plan
from .replays import replays
from .risk import need, risk
from .why import why

BUDGET = 30.0  # seconds that a search may take, by the estimate below
PER_WORKER, PER_TERM = 1e-4, 2e-5  # seconds of a core for a round: a worker, a term of a sum
FIRST = 3  # rounds that every option is played for, at least
KEPT = 4  # of so many options one goes on, for so many times the rounds
FINAL = 5  # options that are played to the end, at least
STARTS = (0.0, 1 / 3, 2 / 3)  # parts of a market at which a run is begun
EACH = 4  # options of each kind and number of machines, at least


class Lot(NamedTuple):
    """Options that share machines: of a kind (or ""), so many, and their luck.

    A run is played from several moments of a market, each a stage.
    """

    machine: str
    stages: tuple[Stage, ...]
    candidates: list[Candidate]

    @property
    def stage(self) -> Stage:
        """The first, from the market's start on."""
        return self.stages[0]

    def play(
        self, candidate: Candidate, rounds: int, told: Callable[[], None] | None = None
    ) -> list[Row]:
        """The rounds of a candidate, from each start."""
        return [stage.play(candidate, rounds, on_round=told) for stage in self.stages]

    @property
    def trace(self) -> SpotTrace | None:
        """Who comes and goes."""
        return self.stage.trace


def plan(
    work: Work | Kind,
    workers: int,
    timings: Timings,
    market: Market | None = None,
    *,
    price: float | None = None,
    memory_per_worker: float | None = None,
    tolerance: float = 0.0,
    deadline: float | None = None,
    rounds: int = 100,
    costs: Costs | str | PathLike[str] | None = None,
    seed: int = 0,
    grows: float | None = None,
    slope: float | None = None,
    on_round: Callable[[int, str], None] | None = None,
) -> Plan:
    """Choose a code, its parameters and the machines for some rounds of work, by simulation.

    work, timings, market, costs, seed, grows, slope: as of `kofn.simulate`. workers: how many
    machines there may be at most; fewer are tried where there is a price or a deadline. A market
    file with several traces offers as many kinds of machines, and one is chosen. price: USD for an
    hour of a machine (default: the market's own, if it has any). memory_per_worker: bytes of the
    data that a worker can keep. tolerance: the part of a sum that may be missing (0: exact).
    deadline: seconds for all rounds. on_round: is told how many rounds are to be played in all, and
    which code one was played of.

    Without a deadline the least time wins or, with prices, the least time x price; with one, the
    least price, or machine seconds, of those that meet it. No code wins unless one is better by
    3 %. Takes up to a minute of a core. Two runs agree.
    """
    job = work if isinstance(work, Work) else Work(work)
    most, rounds = whole(workers, "workers", 1), whole(rounds, "rounds", 1)
    tolerance = number(tolerance, "tolerance", "in [0, 1)", "It is the part that may be missing.")
    if price is not None:
        price = number(price, "price", ">= 0", "It is for an hour of one machine.")
    if deadline is not None:
        deadline = number(deadline, "deadline", "> 0", "It counts seconds, for all rounds.")
    limit = _limit(memory_per_worker, job)
    known = Costs.of(costs)
    delays = delays_of(timings, most, grows=grows, slope=slope)
    kinds = {"": None} if market is None else markets_of(market)
    own = any(isinstance(one, SpotTrace) and one.prices for one in kinds.values())
    goal = Goal(deadline, price is not None or own)
    fewer = goal.priced or deadline is not None

    lots = []
    for name, one in kinds.items():
        there = most
        if isinstance(one, SpotTrace):
            there = min(most, max(live for _, live in one.counts()))
        for n in (counts(there) if fewer else [there]) if there else []:
            starts = [None] if one is None else [begun(one, n, part, seed) for part in STARTS]
            stages = tuple(Stage(job, n, delays, trace, known, seed) for trace in starts)
            lots.append(Lot(name if len(kinds) > 1 else "", stages, grid(job, n, tolerance)))
    if not lots:
        raise BadInput("a plan needs machines; this market never has any. Name another one.")
    search = _Search(job, rounds, price, limit, tolerance, goal)
    search.run(lots, on_round)
    return search.plan()


def _limit(memory: float | None, work: Work) -> float:
    """The part of the data that a worker can keep."""
    if memory is None:
        return float("inf")
    memory = number(memory, "memory_per_worker", "> 0", "It counts bytes.")
    if not work.data_bytes:
        raise BadInput("workers keep no data of a sequence; leave memory_per_worker out.")
    return memory / work.data_bytes


class _Search:
    """The options so far, and what is asked of them."""

    def __init__(
        self,
        work: Work,
        rounds: int,
        price: float | None,
        limit: float,
        tolerance: float,
        goal: Goal,
    ) -> None:
        self.work, self.rounds, self.price = work, rounds, price
        self.limit, self.tolerance, self.goal = limit, tolerance, goal
        self.tried: dict[tuple[str, int, Candidate], Option] = {}
        self.final: list[Option] = []
        self.settings = 0
        self.traces: dict[tuple[str, int], SpotTrace | None] = {}

    def run(self, lots: list[Lot], on_round: Callable[[int, str], None] | None) -> None:
        """Try all, then ever fewer, for ever more rounds."""
        starts = max(len(lot.stages) for lot in lots)
        cost = starts * max(PER_WORKER * lot.stage.workers for lot in lots)
        cost += PER_TERM * self.work.rows if self.work.kind == "sum" else 0.0
        afford = int(BUDGET / cost)
        each = max(EACH, afford // (3 * FIRST * len(lots)))
        going = [(lot, one) for lot in lots for one in thinned(lot.candidates, each)]
        rungs = _rungs(len(going), self.rounds, afford)
        total = starts * sum(count * rounds for count, rounds in rungs)
        self.settings += len(going)
        self.traces = {(lot.machine, lot.stage.workers): lot.trace for lot in lots}
        for at, (_, rounds) in enumerate(rungs):
            found = []
            for lot, one in going:
                told = None if on_round is None else (lambda c=str(one): on_round(total, c))
                option = self._option(lot, one, lot.play(one, rounds, told), rounds)
                self.tried[_key(option)] = option
                if self._fits(option):
                    found.append((lot, option))
            self.final = [option for _, option in found]
            if at + 1 < len(rungs):
                keep = set(map(id, self._best(self.final, rungs[at + 1][0])))
                going = [(lot, one.candidate) for lot, one in found if id(one) in keep]
        for lot in lots:
            if self.work.kind == "gradient" and lot.trace is None and lot.stage.workers > 1:
                self._replay(lot)
        self._compare(lots, rungs[-1][1])

    def _best(self, options: list[Option], count: int) -> list[Option]:
        """Those that go on: the best, and what they are compared with, with and without a code."""
        ordered = sorted(options, key=self.goal.key)
        coded = next((one for one in ordered if one.runs and one.coded), None)
        first = [one for one in (plain(options, self.goal), coded) if one is not None]
        rest = [one for one in ordered if one not in first]
        return [*first, *rest[: count - len(first)]]

    def _compare(self, lots: list[Lot], rounds: int) -> None:
        """Play the best one's machines without a code, too, if that fell behind."""
        able = [one for one in self.final if one.runs]
        if not able:
            return
        best = self.goal.pick(able)
        key = best.machine, best.workers
        (lot,) = (lot for lot in lots if (lot.machine, lot.stage.workers) == key)
        without = uncoded(self.work, best.workers)
        if without is None or any((*key, without) == _key(one) for one in able):
            return
        option = self._option(lot, without, lot.play(without, rounds), rounds)
        self.tried[_key(option)] = option
        if self._fits(option):
            self.final.append(option)

    def _replay(self, lot: Lot) -> None:
        rows, tried = replays(lot.stage, self.rounds)
        self.settings += tried
        for candidate, row in rows.items():
            option = self._option(lot, candidate, [row], self.rounds)
            self.tried[_key(option)] = option
            if self._fits(option):
                self.final.append(option)

    def _fits(self, option: Option) -> bool:
        if option.memory is not None and option.memory > self.limit:
            return False
        return option.row.covered >= 1 - self.tolerance - 1e-9

    def _option(self, lot: Lot, candidate: Candidate, rows: list[Row], asked: int) -> Option:
        """What all rounds take, by those that were played: in the mean over the starts."""
        n, able = lot.stage.workers, runs(self.work, candidate)
        row, each = merged(rows), []
        for stage, one in zip(lot.stages, rows, strict=len(rows) > 1):
            until = float("inf") if stage.trace is None else stage.trace.seconds
            each.append(self._scaled(one, asked, until, lot.stage.costs, 0 if able else n))
        seconds, used = mean(one[0] for one in each), mean(one[1] for one in each)
        prices = [one[2] for one in each if one[2] is not None]
        usd = mean(prices) if len(prices) == len(each) else None
        if self.price is not None:
            usd = self.price * used / 3600
        chance = None
        if lot.trace is not None:
            up = lot.trace.started(lot.stage.costs.start_up)
            chance = risk(up, need(self.work, n, candidate), seconds)
        return Option(candidate, n, lot.machine, row, seconds, used, usd, chance, able)

    def _scaled(
        self, row: Row, asked: int, until: float, costs: Costs, placed: int
    ) -> tuple[float, float, float | None]:
        """Seconds, machine seconds and USD of all rounds, by those that were played.

        Rivals place no data in simulation; that others do must not tell, so `placed` of them do.
        """
        done = len(row.seconds)
        # Of a market of no length nothing is said: any number will do.
        played = row.began + float(row.ends[-1]) if done == asked else until or 1.0
        seconds = row.began + (played - row.began) / max(done, 0.5) * self.rounds
        seconds += costs.transfer(placed * (row.memory or 0.0) * self.work.data_bytes)
        more = seconds / played
        usd = None if row.usd is None else row.usd * more
        return seconds, row.machine_seconds * more, usd

    def plan(self) -> Plan:
        """What was chosen."""
        tried, goal = tuple(self.tried.values()), self.goal
        if not any(one.runs for one in self.final):
            if not any(one.row.covered for one in tried):
                raise BadInput(
                    "a plan needs rounds that were done; here the market is over before any is. "
                    "Name a longer one, or less work a round."
                )
            least = min((one.memory for one in tried if one.memory is not None), default=0.0)
            raise BadInput(
                f"no option keeps so little on a worker: the least is {least:.3g} of the data, "
                f"{least * self.work.data_bytes:.4g} bytes. Give more memory or more workers."
            )
        best = goal.pick(self.final)
        ordered = tuple(sorted(self.final, key=goal.key))
        words = why(self.work, best, ordered, goal, self.traces[best.machine, best.workers])
        left = sum(one.memory is not None and one.memory > self.limit for one in tried)
        if left:
            words.append(f"{left} options keep more on a worker than it can, and were left out.")
        return Plan(
            self.work, self.rounds, best, ordered, tried, self.settings, str(goal), tuple(words)
        )


def _key(option: Option) -> tuple[str, int, Candidate]:
    return option.machine, option.workers, option.candidate


def _rungs(count: int, rounds: int, afford: int) -> list[tuple[int, int]]:
    """How many options are played for how many rounds, one after the other."""
    rounds = min(rounds, max(FIRST, afford // (3 * FINAL)))
    some, found = max(FIRST, afford // (3 * count)), []
    while some < rounds and count > FINAL:
        found.append((count, some))
        count, some = max(FINAL, -(-count // KEPT)), KEPT * some
    return [*found, (count, rounds)]
