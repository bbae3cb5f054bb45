"""Parts of the data on workers, and their coded sums.

One `parts.sum(fn, x)` goes: the code's assignment (which symbols for which slot; made once) →
`sums.gather` (one task a slot) → `rounds.driver` → engines (`sums.work.worker_body` on the
workers) → `sums.tally` (what has come) → the stop rule → the value and its report.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..checks import in_memory, number, one_of
from ..codes.assignment import Assignment, SumCode
from ..codes.linear import Row
from ..display import Displayed
from ..errors import BadInput, NothingYet, OutOfSymbols, TooFewWorkers
from ..model import Body, Outline, Record, SumReport, Task, Update, new
from ..rounds import RoundDriver
from ..rounds.holders import Holders
from ..rounds.lateness import UsualHalf
from ..rounds.leaving import Usual
from ..rounds.stop import Stop, exact
from . import stacked
from .audit import Audit
from .data import cut, finer
from .functions import KNOWN, Sent, same_method
from .gather import GatherRound
from .given import Function, Slots, check_weights, parts_of_slots, takes_two
from .lead import RULE, LeadRound
from .tally import KINDS, Kind, lacking_beyond, tally_of
from .tuning import SLICE, SumTuner
from .work import FLUSH, Held, Span, grown, worker_body

_CODES = 8  # besides the first, placed at a time
_BEHIND = 4  # rounds: who has not answered for so long is not asked until it does


@dataclass(frozen=True, eq=False)
class Sum(Displayed):
    """What a sum came to. `value` is an array, or a tuple of arrays where fn returns one."""

    value: Any
    exact: bool
    covered: float  # fraction of the parts that are in it
    missing: tuple[int, ...]  # the parts that are not
    report: SumReport


class Parts:
    """m parts on the workers of a cluster, under a code. Made by `cluster.parts`."""

    def __init__(
        self, driver: RoundDriver, data: Any, code: SumCode | None, parts: int | None, n: int
    ) -> None:
        self._driver = driver
        in_memory(data, "data")
        if code is None and parts is None:
            parts = finer(data, n)
        self.m, self._part = cut(data, parts, n)
        self._listed = isinstance(data, list)
        self._stackable = False  # as far as is known
        self._looked_at: Function | None = None
        self._tuner: SumTuner | None = None
        if code is None:
            size = sum(Held({i: self._part(i)}, ()).nbytes for i in range(self.m))
            given = driver.engine.capabilities.given_time
            self._tuner = SumTuner(self.m, n, float(size), SLICE if given else None)
            code, n = self._tuner.code, self._tuner.n
        self.code, self._n = code, n
        self._sums: dict[SumCode, _Placed] = {}
        self._report: SumReport | None = None
        began = driver.engine.now()
        self._place(self.code)
        if self._tuner is not None:
            self._tuner.placing = (driver.engine.now() - began) / self._tuner.copies

    def __repr__(self) -> str:
        return f"<{self.m} parts on {self._n} workers under {self.code}>"

    @property
    def assignment(self) -> Assignment:
        """Which parts lie on which slot, and what decodes."""
        return self._place(self.code).code

    @property
    def report(self) -> SumReport:
        """What the last sum did. Raises NothingYet before the first."""
        if self._report is None:
            raise NothingYet("a report describes the last sum; there was none yet. Call sum.")
        return self._report

    def sum(
        self,
        fn: Function,
        x: Any = None,
        *,
        stop: Stop | None = None,
        weights: Kind = "covered",
        code: SumCode | None = None,
        vectorised: bool = False,
        verify: float = 0.0,
    ) -> Sum:
        """Σ fn(part, x) over all parts, or over those that are there when `stop` closes the round.

        fn returns a number, an array, a kofn.Scattered one (mostly zeros), or a tuple of such, of
        the same shapes for every part; it must be picklable (functions of the calling script are)
        and deterministic. It is sent once, and again when it has changed; what changes from sum to
        sum belongs in x, which goes to every worker once. stop: see kofn.stop (default: exact).
        weights: what stands for parts that are missing: "covered" scales up by all / covered,
        "unbiased" by 1 / P(covered) for as many workers drawn at random (always, so that its mean
        is the sum; only where workers send one sum each), "plain" leaves them out, "least-squares"
        fits the all-ones row. code: another code for this sum; its parts are placed at its first
        use. vectorised: fn takes a stack of parts, one on top of the other (a list, where they are
        no arrays), and returns a row for each: many small terms then cost few calls. verify: a
        fraction of the parts, drawn anew for each sum, on which two workers must agree; where they
        do not, fn is called here, which shows who is wrong (docs/verify.md). Needs a code that has
        parts on two workers.

        Returns at once when the rule is met: stragglers drop what they are at. Raises
        TooFewWorkers when the rule cannot be met by those that live and nobody joins in time, and
        WorkerError, with the worker's traceback and the part's number, when fn raises.
        """
        self._driver.check()
        rule = exact() if stop is None else stop
        if not isinstance(rule, Stop):
            raise BadInput(
                f"stop must be a stop rule, as kofn.exact() or kofn.first(3); got {stop!r}."
            )
        one_of(weights, "weights", KINDS)
        if not callable(fn):
            raise BadInput(f"fn must be a function of a part and x; got {fn!r}.")
        if fn is not self._looked_at:
            takes_two(fn)
            self._looked_at = fn
        if vectorised and not self._stackable:
            stacked.check([getattr(self._part(i), "shape", None) for i in range(self.m)])
            self._stackable = True
        rate = number(verify, "verify", "in [0, 1]", "It is a fraction of the parts; 0 is none.")
        with self._driver.lock:
            tuner = self._tuner if stop is None and code is None and not rate else None
            tuned = () if tuner is None else self._tune(tuner)
            placed = self._place(self.code if code is None else code)
            rule.check(placed.code.n)
            check_weights(weights, placed.code)
            listed = (self._listed,)
            placed.body = (stacked.worker_body, listed) if vectorised else (worker_body, ())
            result = placed.sum(fn, x, rule, weights, rate, tuner, tuned)
        self._report = result.report
        return result

    def _tune(self, tuner: SumTuner) -> tuple[str, ...]:
        """Do what the tuner finds better by now; and what that is, and why."""
        if (change := tuner.change()) is not None:
            now = self._driver.engine.now()
            self._driver.log.append(Record(now, "tuned", -1, -1, -1, 0, change.why))
        if (code := tuner.code) != self.code:  # or an interrupt came in the middle of it
            self._place(code, self._sums[self.code])
            self.code, old = code, self.code
            del self._sums[old]  # the workers forget its parts
        return () if change is None else (change.why,)

    def _place(self, code: SumCode, before: _Placed | None = None) -> _Placed:
        if not isinstance(code, SumCode):
            raise BadInput(
                f"code must be one for sums, as kofn.FractionalRepetition(c=2); got {code!r}."
            )
        placed = self._sums.get(code)
        if placed is None:
            others = [known for known in self._sums if known != self.code]
            if len(others) >= _CODES:
                del self._sums[others[0]]  # the workers forget its parts
            assigned = code.assign(self.m, self._n)
            slots = parts_of_slots(code, assigned)
            placed = _Placed(self._driver, assigned, slots, self._part, before)
            self._sums[code] = placed
        return placed


class _Placed:
    """The parts under one code: which worker holds which, and the functions that workers know.

    A worker with a slot of `before` keeps its number, and is sent only the parts that it lacks.
    """

    def __init__(
        self,
        driver: RoundDriver,
        code: Assignment,
        slots: Slots,
        part: Callable[[int], Any],
        before: _Placed | None = None,
    ) -> None:
        self.code, self._driver = code, driver
        self._part, self._slots = part, slots

        def held(slot: int) -> Held:  # without self: the closure keeps the parts only
            return Held({i: part(i) for i in slots[slot]}, code.symbols(slot))

        self._holders = Holders(driver, code.n, held, slots)
        self.key = self._holders.key
        self._known: dict[str, bytes] = {}  # functions by key, the newest last
        self._have: set[tuple[int, str]] = set()
        self._processes = driver.engine.capabilities.processes
        self._work: dict[tuple[int, Span | None], tuple[Any, int]] = {}  # same in every round
        self._fn_key: Any = ""  # or the function itself: see _function
        self._taught: Any = None  # the state of the holders as of which all know the function
        self._args: tuple[Any, ...] = ()  # of the body, in the tasks of a round
        self._sent = Sent()
        self._usual = Usual()
        self._kind: Any = None  # of rounds in which slots are asked for their own parts first
        self._kind_usual = UsualHalf()
        self._laggards: Collection[int] = ()  # who was late, and has not answered since
        self.body: tuple[Body, tuple[Any, ...]] = (worker_body, ())  # and more arguments of it
        weakref.finalize(self, lambda known: driver.unwanted.extend(known), self._known)
        if before is not None:
            for worker, slot in before._holders.ready().items():
                self._holders.give(worker, slot, before.grown(slot, held(slot)))
        self._holders.place(enough=code.k)

    def grown(self, slot: int, wanted: Held) -> Update | Held:
        """What makes `wanted` of what the holder of a slot has: the parts that it lacks."""
        had = set(self._slots[slot])
        if had.isdisjoint(wanted.parts):
            return wanted
        more = {part: value for part, value in wanted.parts.items() if part not in had}
        return Update(self.key, grown, (Held(more, wanted.symbols),), keeps=True)

    def _evaluate(self, fn: Function, x: Any, row: Row) -> tuple[Any, ...]:
        """The value of one symbol, computed here."""
        body, more = self.body
        kept = {self.key: Held({i: self._part(i) for i in row.parts}, (row,))}
        pieces = list(body(kept, x, self.key, fn, FLUSH, *more))
        value = next(piece.value for piece in pieces if piece.value is not None)
        return tuple(leaf[0] for leaf in (value if isinstance(value, tuple) else (value,)))

    def sum(
        self,
        fn: Function,
        x: Any,
        stop: Stop,
        kind: Kind,
        verify: float = 0.0,
        tuner: SumTuner | None = None,
        tuned: tuple[str, ...] = (),
    ) -> Sum:
        driver, engine = self._driver, self._driver.engine
        driver.settle()
        ready = self._holders.known(self._holders.enlisted)
        if not ready:
            driver.await_enough(self._enlisted, 1, lambda: driver.wait)
            ready = self._holders.ready()
        fn_key = self._function(fn)
        if fn_key is not self._fn_key:  # equal ones may be different
            self._fn_key, self._args = fn_key, ()
            self._taught = self._kind = None
        flush = 0.0 if engine.capabilities.given_time else FLUSH
        args = (self.key, self._fn_key, flush, *self.body[1])
        if args != self._args:
            self._args = args  # the same object each time is packed once: see Values
        resting = {*driver.roster.behind(_BEHIND), *driver.roster.owing(self._laggards)}
        resting &= ready.keys()
        if driver.roster.leaving:
            resting |= self._going(ready.keys() - resting)
        if self._taught != self._holders.state:
            self._teach(self._holders.shares)  # also those whose parts are still on the way
            self._taught = self._holders.state
        tally = tally_of(self.code)
        given = driver.next_round(), ready, self, tally, stop, resting
        if tuner is None:
            round = GatherRound(*given)
        else:
            if self._kind != tuner.at_once:
                self._kind, self._kind_usual = tuner.at_once, UsualHalf()
            rule = RULE.knowing(self._kind_usual.seconds)
            round = LeadRound(*given, own=None if tuner.at_once else tuner.own, late=rule)
        round.usual, round.standby = self._usual.seconds, self._holders.second()
        if verify and engine.capabilities.values:
            round.audit = Audit(self.code, verify, partial(self._evaluate, fn, x))
        began = engine.now()
        if driver.wait == 0 and self.code.disjoint and len(self._holders.shares) < self.code.n:
            slots = set(self._holders.shares.values())
            more = lacking_beyond(self.code, slots, stop)
            if more:  # now, and not after the work of those that live
                raise TooFewWorkers(len(slots), len(slots) + more, 0.0)
        try:
            driver.run(round, x, self._supply)
        except TooFewWorkers as error:
            if round.exhausted:
                held = sum(len(self.code.symbols(slot)) for slot in range(self.code.n))
                raise OutOfSymbols(self.code.decoder().name, held, self.code.needs) from None
            raise TooFewWorkers(error.live, error.need, error.waited, round.lost) from None
        waited = engine.now()
        self._usual.learn(round.took)
        self._laggards = driver.roster.owing([*self._laggards, *round.late])
        if tuner is not None and isinstance(round, LeadRound):
            tuner.learn(round)
            self._kind_usual.learn(round.half)
        tally, finished = round.tally, len(round.finished)
        value, eta = tally.value(kind, finished)
        missing = tally.missing
        used = self.code.m - len(missing)
        report = round.report(
            SumReport,
            sorted(ready.keys() - resting),
            (began, waited, engine.now()),
            parts_read=dict(round.read),
            parts_used=used,
            parts_wasted=max(0, sum(round.read.values()) - used),
            finished=tuple(round.finished.values()),
            symbols_used=round.used,
            symbols_wasted=round.wasted,
            eta=eta,
            error_bound=tally.bound(value, eta),
            tuned=tuned,
            decoding_error=tally.off,
        )
        driver.log.append(Record.result(engine.now(), report))
        out = None if value is None else value[0] if not tally.several else value
        return Sum(out, tally.exactly(kind, finished), tally.covered, missing, report)

    def _going(self, workers: Collection[int]) -> set[int]:
        """Those that will be gone before the end, if the others are enough for the code."""
        going = self._usual.too_soon(self._driver.roster.leaving, self._driver.engine.now())
        going &= set(workers)
        return going if len(workers) - len(going) >= self.code.k else set()

    def task(self, round: int, worker: int, slot: int, span: Span | None = None) -> Task:
        """Make the task of a slot: all its symbols, in order, or those of a span."""
        known = self._work.get((slot, span))
        if known is None:
            known = self._work_of(slot, span)
            if not span or not span[0]:  # the others are rarely the same
                self._work[slot, span] = known
        what, cost = known
        args = self._args if span is None else (*self._args, span)
        number = self._driver.next_task()
        # The values of its replies are brief: they are added up at once, or at the round's end.
        return new(Task, (number, round, worker, self.body[0], args, what, cost, True))

    def _work_of(self, slot: int, span: Span | None) -> tuple[Any, int]:
        """What all replies to a task together carry, and its cost."""
        symbols = self.code.symbols(slot)
        first, last = span or (0, len(symbols))
        reads = [len(symbols[i].parts) for i in range(first, last)]
        if self._driver.engine.capabilities.values:
            return (first, last), sum(reads)
        return Outline(((i, i + 1), read) for i, read in enumerate(reads, first)), sum(reads)

    def _enlisted(self) -> int:
        """Who has parts, or is being given some: a round waits for those."""
        self._holders.enlist()
        return sum((w, self.key) not in self._driver.roster.refused for w in self._holders.shares)

    def _supply(self, worker: int) -> None:
        self._holders.supply(worker)
        if worker in self._holders.shares:
            self._teach([worker])

    def _function(self, fn: Function) -> Any:
        """The key of a function as it is now; in the caller's own process it is just itself."""
        if not self._processes:
            if fn is self._fn_key or same_method(fn, self._fn_key):
                return self._fn_key
            self._sent(fn)  # what would not travel is refused here too
            return fn
        blob = self._sent(fn)
        key = next((key for key, known in self._known.items() if known == blob), None)
        if key is None:
            while len(self._known) >= KNOWN:
                old = next(iter(self._known))
                del self._known[old]
                self._have = {pair for pair in self._have if pair[1] != old}
                self._driver.unwanted.append(old)
            key = f"{self.key}-fn-{self._driver.next_task()}"
            self._known[key] = blob
        return key

    def _teach(self, workers: Iterable[int]) -> None:
        if not self._processes:
            return
        key, have = self._fn_key, self._have
        for worker in [worker for worker in workers if (worker, key) not in have]:
            if worker in self._driver.roster.kept:
                self._driver.put(worker, key, self._known[key])
                have.add((worker, key))  # noted last: if Ctrl-C comes before, it is sent again
