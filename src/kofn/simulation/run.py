"""Codes played in simulated time: the real master, with the price of things."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

import numpy as np

from ..checks import number, whole
from ..cluster import connect
from ..costs import Costs
from ..delays import Delays, SpotTrace
from ..engines._links import Sizes
from ..engines.virtual import VirtualEngine
from ..errors import BadInput, Inaccurate, KofnError, NotDecodable, TooFewWorkers
from .ahead import Ahead
from .codes import Candidate, memory, message_sizes, units
from .draws import Common, Meter, Spent
from .own import Codes, candidates
from .place import Outcome, Place
from .table import Row, Table
from .timings import Market, Timings, assumed, delays_of, market_of, read
from .work import Kind, Work


def simulate(
    work: Work | Kind,
    codes: Codes,
    workers: int,
    timings: Timings,
    market: Market | None = None,
    *,
    rounds: int = 100,
    costs: Costs | str | PathLike[str] | None = None,
    seed: int = 0,
    grows: float | None = None,
    slope: float | None = None,
    seconds: float = float("inf"),
    on_round: Callable[[str], None] | None = None,
) -> Table:
    """Play rounds of some work under each code in simulated time, and compare them.

    work: a kofn.Work, or its kind alone. codes: names with parameters, "uncoded, mds(k=12)", or a
    list of such, and of objects: any code that `parts`, `encode` or `sequence` takes, also one of
    your own; a Stopped one closes its sums early. A dict gives them other names (docs/simulate.md
    has all). workers: how many there are, or are wanted of a market.
    timings: recorded ones (a file, or FILE:NAME) or a model, "exponential(unit=10, mean=0.5)", a
    unit of which is the whole work. market: who comes and goes, recorded; it ends the run too.
    costs: of messages, start-up and the master; a file of `kofn calibrate` (default: kofn.Costs()).
    grows, slope: see `kofn.simulation.delays_of`. seconds: end after so much simulated time.

    All codes meet the same stragglers and losses: a worker's delays in a round depend on the seed
    alone. Codes that so many workers do not allow are left out, with the reason in `left_out` of
    the table; so are those that do not decode, with the error that a cluster would raise. Memory
    is not filled: sizes are enough.
    """
    wanted = work if isinstance(work, Work) else Work(work)
    count = whole(workers, "workers", 1)
    rounds = whole(rounds, "rounds", 1)
    seconds = number(seconds, "seconds", "> 0", "They are simulated ones.", infinite=True)
    prices = Costs.of(costs)
    chosen = candidates(codes, wanted.kind)
    given = read(timings)
    delays = delays_of(given, grows=grows, slope=slope)
    trace = None if market is None else market_of(market, count, seed)
    rows, stage = {}, Stage(wanted, count, delays, trace, prices, seed)
    left_out: dict[str, KofnError] = {}
    for name, candidate in chosen.items():
        on_step = None if on_round is None else (lambda name=name: on_round(name))
        try:
            rows[name] = stage.play(candidate, rounds, seconds, on_step)
        except (BadInput, NotDecodable, Inaccurate) as error:
            left_out[name] = error  # so many workers do not allow it, or it does not decode
    if not rows:
        raise next(iter(left_out.values()))
    live = () if trace is None else tuple(trace.counts())
    reasons = {name: str(why) for name, why in left_out.items()}
    return Table(wanted, count, rows, live, reasons, assumed(given, grows, slope))


class Stage:
    """What all codes of a simulation share: work, workers and their delays."""

    def __init__(
        self,
        work: Work,
        workers: int,
        delays: Delays,
        trace: SpotTrace | None = None,
        costs: Costs = Costs(),  # noqa: B008 - frozen
        seed: int = 0,
    ) -> None:
        self.work, self.workers, self.delays = work, workers, delays
        self.trace, self.costs, self.seed = trace, costs, seed
        self._started = None if trace is None else trace.started(costs.start_up)

    def play(
        self,
        candidate: Candidate,
        rounds: int = 100,
        seconds: float = float("inf"),
        on_round: Callable[[], None] | None = None,
        played: int | None = None,
        fewest: int = 1,
        effort: float = float("inf"),
    ) -> Row:
        """Play so many rounds of one code, in so much simulated time at most.

        The first rounds are the same however many there are: a longer run goes on from them.
        `played`: simulate about so many of them, spread over the run; see `Ahead`. `fewest`:
        machines that are enough, for all that is known. `effort`: seconds of a core that it may
        take, about; the row then has fewer rounds, and those that were done are all there is.
        """
        work, trace = self.work, self.trace
        until = seconds if trace is None else min(seconds, trace.seconds)
        whole_work = units(work, candidate, self.workers)
        delays = Common(self.delays, whole_work, self.seed)
        started = self._started
        membership = None if started is None else started.membership(1.0)
        engine = VirtualEngine(
            self.workers if trace is None else trace.at_start,
            delays=delays,
            membership=membership,
            compute=False,
            seed=self.seed,
            costs=self.costs,
            sizes=Sizes(*message_sizes(work, candidate, self.workers)),
        )
        meter = Meter(engine, delays, work.rows if work.kind == "sum" else 0)
        meter.most = effort
        wait = 0.0 if trace is None else 2 * trace.seconds + 1.0
        outcomes: list[Outcome] = []
        problem, began, done, last, cut = "", 0.0, 0.0, 0.0, False
        if played is None or candidate.code == "dsag":  # all of its rounds are one of the engine
            rounds, played = (rounds, rounds) if played is None else (played, played)
        ahead = Ahead(rounds, played, fewest, started, until)
        with connect(meter, wait=wait, limit=float("inf")) as cluster:
            try:
                outcomes_of = candidate.play(Place(cluster, work, self.workers, rounds))
                began = last = engine.now()
                meter.units = 0.0
                while ahead.done < rounds:
                    outcome = next(outcomes_of, None)
                    if outcome is None:
                        break
                    if outcome.time > until:
                        problem = "the time is over"
                        break
                    outcomes.append(outcome)
                    done = meter.units  # without what is half done when the time is over
                    if on_round is not None:
                        on_round()
                    last = ahead.after(last, outcome.time)
                    delays.skipped = ahead.skipped
                    while engine.now() < last:
                        cluster._driver.settle(last - engine.now())
            except TooFewWorkers as error:  # a round waits for longer than the market lasts
                if trace is None:
                    raise
                problem = f"the market is over; {error.need} machines are needed, not {error.live}"
            except NotDecodable as error:
                if trace is None or error.threshold is not None:  # no market is at fault
                    raise
                problem = str(error)
            except Spent:
                cut = True
                problem = "" if outcomes else "no round was done in all that was simulated"
            if ahead.done == rounds:
                done = meter.settle()
            else:
                last = min(engine.now(), until)
        if not outcomes and not problem:
            problem = "the market ended before the first round"
        ends = np.array([outcome.time for outcome in outcomes])
        return Row(
            ends=ends - began if len(ends) else ends,
            seconds=np.array(ahead.seconds),
            covered=float(np.mean([o.covered for o in outcomes])) if outcomes else 0.0,
            exact_share=float(np.mean([o.exact for o in outcomes])) if outcomes else 0.0,
            decoding_error=float(np.mean([o.error for o in outcomes])) if outcomes else 0.0,
            work=done / whole_work / max(1, len(outcomes)),
            machine_seconds=self.workers * last if trace is None else trace.machine_seconds(last),
            usd=None if trace is None else trace.usd(last),
            memory=memory(work, candidate, self.workers, meter.kept),
            problem=problem if ahead.done < rounds else "",
            began=began,
            counts=np.array(ahead.counts) if ahead.skipped else None,
            took=last - began if ahead.skipped or cut else None,
            effort=meter.effort,
        )
