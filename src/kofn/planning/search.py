"""The search: many options for a few rounds, the best of them for more, a few for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from statistics import mean, median
from typing import NamedTuple

from ..checks import number, whole
from ..costs import Costs
from ..delays import SpotTrace
from ..errors import BadInput
from ..simulation import Candidate, Row, Stage, Work, delays_of
from ..simulation.table import merged
from ..simulation.timings import Market, Timings, assumed, begun, markets_of, read
from ..simulation.work import Kind
from .calls import runs
from .goal import Goal, plain
from .grid import counts, grid, thinned, uncoded
from .options import Option, Plan
from .replays import replays
from .risk import need, shortages
from .risk import risk as risk_of
from .why import played, why

BUDGET = 30.0  # seconds that a search may take, by the estimate below
MARKET = 60.0  # and as many at most where machines come and go: what that takes is seen on the way
PER_WORKER, PER_TERM = 1e-4, 2e-5  # seconds of a core for a round: a worker, a term of a sum
FIRST = 3  # rounds that every option is played for, at least
KEPT = 4  # of so many options one goes on, for so many times the rounds
FINAL = 5  # options that are played to the end, at least
STARTS = (0.0, 1 / 3, 2 / 3)  # parts of a market at which a run is begun
EACH = 4  # options of each kind and number of machines, at least


OnRound = Callable[[], None]


class Lot(NamedTuple):
    """Options that share machines: of a kind (or ""), so many, and their delays.

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
        self, candidate: Candidate, rounds: int, played: int, effort: float, on_round: OnRound
    ) -> list[Row]:
        """The rounds of a candidate, from each start; about so many are played, with this effort.

        on_round is called for each of them, also if a run does not come to it.
        """
        some = played if played < rounds else None
        fewest, rows = need(self.stage.workers, candidate), list[Row]()
        for at, one in enumerate(self.stages):
            most = (effort - sum(row.effort for row in rows)) / (len(self.stages) - at)
            rows.append(one.play(candidate, rounds, float("inf"), on_round, some, fewest, most))
            for _ in range(played - len(rows[-1].seconds)):
                on_round()
        return rows

    @property
    def trace(self) -> SpotTrace | None:
        """The market of these machines."""
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
    risk: float = 1.0,
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
    deadline: seconds for all rounds. risk: the chance, at most, that a run lacks machines at some
    time. on_round: called for each round of an option, also if the market is over before, with how
    many there will be in all, as far as is known, and the code.

    Without a deadline the least time wins or, with prices, the least time x price; with one, the
    least price, or machine seconds, of those that meet it. No code wins unless one is better by
    3 %. If no option keeps within the risk and the deadline, `met` of the plan is False. Takes up
    to a minute of a core. Two runs agree.
    """
    wanted = work if isinstance(work, Work) else Work(work)
    most, rounds = whole(workers, "workers", 1), whole(rounds, "rounds", 1)
    tolerance = number(tolerance, "tolerance", "in [0, 1)", "It is the part that may be missing.")
    if price is not None:
        price = number(price, "price", ">= 0", "It is for an hour of one machine.")
    if deadline is not None:
        deadline = number(deadline, "deadline", "> 0", "It counts seconds, for all rounds.")
    risk = number(risk, "risk", "in [0, 1]", "It is the chance to lack machines at some time.")
    limit = _limit(memory_per_worker, wanted)
    known = Costs.of(costs)
    given = read(timings)
    delays = delays_of(given, grows=grows, slope=slope)
    kinds = {"": None} if market is None else markets_of(market)
    traces = [one for one in kinds.values() if isinstance(one, SpotTrace)]
    own = any(offer.usd_per_hour > 0 for one in traces for offer in one.prices)
    goal = Goal(deadline, own if price is None else price > 0, risk)
    fewer = goal.priced or deadline is not None

    lots = []
    for name, one in kinds.items():
        there = most
        if isinstance(one, SpotTrace):
            there = min(most, max(live for _, live in one.counts()))
        for n in (counts(there) if fewer else [there]) if there else []:
            starts = [None] if one is None else [begun(one, n, part, seed) for part in STARTS]
            stages = tuple(Stage(wanted, n, delays, trace, known, seed) for trace in starts)
            lots.append(Lot(name if len(kinds) > 1 else "", stages, grid(wanted, n, tolerance)))
    if not lots:
        raise BadInput("a plan needs machines; this market never has any. Name another one.")
    search = _Search(wanted, rounds, price, limit, tolerance, goal)
    search.run(lots, on_round)
    return search.plan(assumed(given, grows, slope))


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
        self.left = float("inf")  # effort
        self._lacks: dict[tuple[str, int, Candidate], list[tuple[float, float]]] = {}
        self._on_round: Callable[[int, str], None] | None = None
        self._played = self._total = 0  # rounds

    def run(self, lots: list[Lot], on_round: Callable[[int, str], None] | None) -> None:
        """Try all, then ever fewer, for ever more rounds."""
        self._on_round = on_round
        starts = max(len(lot.stages) for lot in lots)
        cost = starts * max(PER_WORKER * lot.stage.workers for lot in lots)
        cost += PER_TERM * self.work.rows if self.work.kind == "sum" else 0.0
        afford = int(BUDGET / cost)
        each = max(EACH, afford // (3 * FIRST * len(lots)))
        going = [(lot, one) for lot in lots for one in thinned(lot.candidates, each)]
        rungs = _rungs(len(going), self.rounds, afford)
        self.settings += len(going)
        self.traces = {(lot.machine, lot.stage.workers): lot.trace for lot in lots}
        if any(self.traces.values()):
            self.left = MARKET
        while rungs:
            self._total = self._played + starts * sum(count * rounds for count, rounds in rungs)
            (_, rounds), *rungs = rungs
            share, tried = self.left / (len(rungs) + 1), []
            for at, (lot, one) in enumerate(going):
                option = self._option(lot, one, rounds, share / (len(going) - at))
                share -= option.row.effort
                self.tried[_key(option)] = option
                if self._fits(option):
                    tried.append((lot, option))
            self.final = [option for _, option in tried]
            if not any(option.row.rounds for option in self.final):
                rungs = rungs[-1:]  # the last is what can be done
            if rungs:
                keep = set(map(id, self.goal.kept(self.final, rungs[0][0])))
                going = [(lot, one.candidate) for lot, one in tried if id(one) in keep]
        for lot in lots:
            if self.work.kind == "gradient" and lot.trace is None and lot.stage.workers > 1:
                self._replay(lot)
        self._compare(lots, rounds)

    def _compare(self, lots: list[Lot], rounds: int) -> None:
        """Play what the best one is compared with as long as it.

        That is no code on its machines, and no code on those where it is best.
        """
        able = [one for one in self.final if one.runs]
        if not able:
            return
        best = self.goal.pick(able)
        known = {(lot.machine, lot.stage.workers): lot for lot in lots}
        without = uncoded(self.work, best.workers)
        if without is not None:
            self._play(known[best.machine, best.workers], without, rounds)
        while (one := plain(filter(self._fits, self.tried.values()), self.goal)) is not None:
            if not self._play(known[one.machine, one.workers], one.candidate, rounds):
                return

    def _play(self, lot: Lot, candidate: Candidate, rounds: int) -> bool:
        """Play one as long as the last ones; whether it was not yet."""
        key = lot.machine, lot.stage.workers, candidate
        if any(_key(one) == key for one in self.final):
            return False
        self._total += len(lot.stages) * rounds
        self._add(self._option(lot, candidate, rounds, max(o.row.effort for o in self.final)))
        return True

    def _replay(self, lot: Lot) -> None:
        rows, tried = replays(lot.stage, self.rounds)
        self.settings += tried
        for candidate, row in rows.items():
            self._add(self._figures(lot, candidate, [row]))

    def _add(self, option: Option) -> None:
        self.tried[_key(option)] = option
        if self._fits(option):
            self.final.append(option)

    def _fits(self, option: Option) -> bool:
        if option.memory is not None and option.memory > self.limit:
            return False
        return option.row.covered >= 1 - self.tolerance - 1e-9

    def _option(self, lot: Lot, candidate: Candidate, rounds: int, effort: float) -> Option:
        """The option by so many rounds of it, played with this effort at most."""

        def on_round() -> None:
            self._played += 1
            if self._on_round is not None:
                self._on_round(max(self._played, self._total), str(candidate))

        rows = lot.play(candidate, self.rounds, rounds, effort, on_round)
        self.left -= sum(row.effort for row in rows)
        return self._figures(lot, candidate, rows)

    def _figures(self, lot: Lot, candidate: Candidate, rows: list[Row]) -> Option:
        """The option by its played runs: figures of all rounds, in the mean over the starts."""
        n, able = lot.stage.workers, runs(self.work, candidate)
        row, each = merged(rows), []
        ends = [
            float("inf") if one.trace is None else one.trace.seconds
            for one in lot.stages[: len(rows)]
        ]
        pace = sum(map(_took, rows, ends)) / max(0.5, sum(one.rounds for one in rows))
        for until, one in zip(ends, rows, strict=True):
            each.append(self._scaled(one, until, lot.stage.costs, 0 if able else n, pace))
        a_round, seconds = mean(one[0] for one in each), mean(one[1] for one in each)
        used = mean(one[2] for one in each)
        prices = [one[3] for one in each if one[3] is not None]
        usd = mean(prices) if len(prices) == len(each) else None
        if self.price is not None:
            usd = self.price * used / 3600
        chance, short = None, 0.0
        if lot.trace is not None:
            up = lot.trace.started(lot.stage.costs.start_up)
            key = lot.machine, n, candidate
            if key not in self._lacks:
                self._lacks[key] = shortages(up, n, candidate)
            below = self._lacks[key]
            chance = risk_of(below, up.seconds, seconds)
            short = max((last - first for first, last in below), default=0.0)
        over = any(one.problem for one in rows)
        return Option(
            candidate, n, lot.machine, row, a_round, seconds, used, usd, chance, able, short, over
        )

    def _scaled(
        self, row: Row, until: float, costs: Costs, placed: int, pace: float
    ) -> tuple[float, float, float, float | None]:
        """Seconds of a round; seconds, machine seconds and USD of all, by those that were done.

        Rivals place no data in simulation. So the shares of `placed` workers are added.
        """
        took = _took(row, until)
        all_rounds = took + (self.rounds - row.rounds) * pace  # the rest, as with all starts
        seconds = row.began + all_rounds
        seconds += costs.transfer(placed * (row.memory or 0.0) * self.work.data_bytes)
        more = seconds / (row.began + took)
        usd = None if row.usd is None else row.usd * more
        return all_rounds / self.rounds, seconds, row.machine_seconds * more, usd

    def plan(self, taken: str) -> Plan:
        """The plan, with what was chosen, and what was taken for granted of the timings."""
        tried, goal = tuple(self.tried.values()), self.goal
        if not any(one.runs for one in self.final):
            if not any(one.row.covered for one in tried):
                raise BadInput(_hopeless(self.traces.values()))
            least = min((one.memory for one in tried if one.memory is not None), default=0.0)
            raise BadInput(
                f"no option keeps so little on a worker: the least is {least:.3g} of the data, "
                f"{least * self.work.data_bytes:.4g} bytes. Give more memory or more workers."
            )
        best = goal.pick(self.final)
        ordered = tuple(sorted(self.final, key=goal.key))
        words = why(self.work, best, ordered, goal, self.traces[best.machine, best.workers])
        words.append(played(best, self.rounds))
        if taken:
            words.append(f"{taken.capitalize()}: this part of a time grows with the work.")
        left = sum(one.memory is not None and one.memory > self.limit for one in tried)
        if left:
            words.append(f"{left} options keep more on a worker than it can, and were left out.")
        return Plan(
            self.work,
            self.rounds,
            best,
            ordered,
            tried,
            self.settings,
            str(goal),
            goal.met(best),
            tuple(words),
        )


def _hopeless(traces: Iterable[SpotTrace | None]) -> str:
    """Why no option has done a round."""
    lives: list[float] = []
    for trace in filter(None, traces):
        since = {}
        for time, added, node, _ in trace.events:
            if added:
                since[node] = time
            else:
                lives.append(time - since.pop(node))
        if len(lives) < trace.at_start:
            return (
                "a plan needs rounds that were done; here the market is over before any is. Name "
                "a longer one, or less work a round."
            )
    return (
        f"a plan needs rounds that were done; here every machine is gone before it answers, "
        f"whatever the code: half of those that are lost lived {median(lives):.3g} s or less. Name "
        f"a market whose machines live longer, or less work a round."
    )


def _took(row: Row, until: float) -> float:
    """Seconds of the rounds that were done, and of those that were not while the market lasted."""
    if row.problem:  # a market of no length has no risk: any number will do
        return until - row.began if until > row.began else 1.0
    return float(row.ends[-1]) if row.took is None else row.took


def _key(option: Option) -> tuple[str, int, Candidate]:
    return option.machine, option.workers, option.candidate


def _rungs(count: int, rounds: int, afford: int) -> list[tuple[int, int]]:
    """How many options are played for how many rounds, one after the other."""
    rounds = min(rounds, max(FIRST, afford // (3 * FINAL)))
    some, rungs = max(FIRST, afford // (3 * count)), []
    while some < rounds and count > FINAL:
        rungs.append((count, some))
        count, some = max(FINAL, -(-count // KEPT)), KEPT * some
    return [*rungs, (count, rounds)]
