"""A stream of products: submit jobs, take their results in any order or one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import BadInput, Closed, KofnError, NothingYet
from ..model import Command, Record
from ..rounds import RoundDriver
from .codec import JobCodec, Product
from .ledger import Mini
from .report import RoundReport, SequenceReport
from .round import DeadlineRound
from .schemes import SequenceCode, Uncoded
from .tuning import SLACK, SequenceTuner, Shown


class _Timed(JobCodec):
    """A codec and what its work takes, on the engine's clock: rounds read none."""

    encode_seconds = decode_seconds = 0.0

    def give(self, worker: int, slot: int, mini: Mini) -> Sequence[Command]:
        start = self._driver.engine.now()
        try:
            return super().give(worker, slot, mini)
        finally:
            self.encode_seconds += self._driver.engine.now() - start

    def decode(self, number: int) -> None:
        start = self._driver.engine.now()
        try:
            super().decode(number)
        finally:
            self.decode_seconds += self._driver.engine.now() - start


class Ticket:
    """A job that was submitted. `result()` waits for it."""

    def __init__(self, stream: Stream, job: Product) -> None:
        self._stream, self._job = stream, job

    @property
    def job(self) -> int:
        """Its number, from 0, in the order of submission."""
        return self._job.index

    @property
    def done(self) -> bool:
        """Whether its result is there, or can be decoded without another round."""
        return self._job.complete

    @property
    def waits_for(self) -> str:
        """What is still lacking, in a sentence; empty once it is done."""
        return self._stream._waits_for(self._job)

    @property
    def error_bound(self) -> float | None:
        """Bound on the relative error of the result; None until it is decoded."""
        return self._job.error_bound

    def result(self, wait: bool = True) -> NDArray[Any]:
        """Return X Y, (m, p). Runs the rounds that it takes; rounds without a new job if need be.

        wait=False raises NothingYet instead, and says what is lacking.
        """
        return self._stream._take(self._job, wait)

    def drop(self) -> None:
        """Let go of the job: nobody wants its result, and iterating leaves it out. Idempotent.

        A job that has not begun never begins. A result that was taken before stays as it is.
        """
        self._stream._drop(self._job)

    def __repr__(self) -> str:
        return f"<job {self.job}: {self.waits_for or 'done'}>"


class Stream(Iterator[NDArray[Any]]):
    """Jobs in order, each done at most `delay` rounds after it began. See Cluster.sequence.

    A round begins when somebody waits for a result, or when delay + 1 jobs are waiting to begin and
    another one is submitted; one job begins in each. Iterating yields the results in order, those
    taken or dropped left out: the others are kept for it, also where nobody keeps their tickets.
    """

    def __init__(
        self,
        driver: RoundDriver,
        code: SequenceCode | None = None,
        slack: float | None = None,
        tolerance: float | None = None,
        check_finite: bool = True,
    ) -> None:
        if not (code is None or isinstance(code, SequenceCode)):
            raise BadInput(
                f"a sequence runs under a code such as kofn.DIP(x=2, y=3, delay=3, lam=1); got "
                f"{code!r}."
            )
        if slack is not None:
            slack = checks.number(slack, "slack", ">= 0")
        if tolerance is not None:
            tolerance = checks.number(tolerance, "tolerance", "> 0")
        workers = driver.some_workers()
        self._driver, self._check_finite = driver, check_finite
        self._tuner: SequenceTuner | None = None
        if code is None and len(workers) > 1:
            self._tuner = SequenceTuner(len(workers), slack)
            code, slack = self._tuner.code, self._tuner.now.slack
        self.code = Uncoded(1, 1) if code is None else code
        self.slack = SLACK if slack is None and self._tuner is None else slack
        self._product = self.code.product  # of the jobs to begin
        self._codec = _Timed(driver, tolerance, self.code.asks_again, check_finite)
        self._ledger = self.code.ledger(len(workers), self._codec.eta)
        self._slots = driver.roster.slots(len(workers))
        self._slots.update({worker: slot for slot, worker in enumerate(workers)})
        self._before = tuple(self._slots)  # workers that had a slot when the last round ended
        self._queue: deque[Product] = deque()  # not begun
        self._kind: tuple[Any, Any] | None = None  # shape and code of what the last round began
        self._untaken: dict[int, Product] = {}  # by number, in order: for who iterates
        self._last = -1  # number of the job submitted last
        self._rounds: list[RoundReport] = []
        self._overdue: list[int] = []
        self._jobs = self._done = 0
        self._numbers = count()  # also of jobs that were not added: traces of them may be left
        self._worst: tuple[float, float] | None = None  # η and error bound
        self._closed = False

    @property
    def delay(self) -> int:
        """Rounds after the one in which a job began, by which it is done."""
        return self.code.delay

    def submit(self, X: Any, Y: Any) -> Ticket:
        """Add the job X Y, for X (m, n) and Y (n, p): float64, or float32 if both are.

        Operands are copied, unless they are read-only, so they may be changed afterwards. Jobs may
        differ in shape. Raises BadInput before any worker is touched. Where it raises anything, the
        job was not added.
        """
        self._open()
        X, Y = checks.factors(X, Y, self._check_finite)
        (m, n), p = X.shape, Y.shape[1]
        return self._add((m, n, p), X.dtype, X, Y)

    def submit_size(self, m: int, n: int, p: int) -> Ticket:
        """Add a job of which only the size is known: for engines that simulate time alone."""
        self._open()
        if self._driver.engine.capabilities.values:
            raise BadInput(
                f"submit_size is for engines that compute no values, such as VirtualEngine(..., "
                f"compute=False); this is engine {self._driver.engine.name!r}. Use submit(X, Y)."
            )
        return self._add((m, n, p), np.dtype(np.float64), None, None)

    def close(self) -> None:
        """Take no more jobs; results of those submitted can still be taken. Idempotent."""
        self._closed = True

    def __next__(self) -> NDArray[Any]:
        """Return the next result in order, those taken with result() left out.

        A job that could not be decoded raises its error once; the next one to be asked for is the
        one after it.
        """
        with self._driver.lock:
            job = next(iter(self._untaken.values()), None)
        if job is None:
            raise StopIteration
        return self._take(job, wait=True)

    @property
    def report(self) -> SequenceReport:
        """What has been done so far. Raises NothingYet before the first round."""
        if not self._rounds:
            raise NothingYet("no round has run yet; ask for a result first.")
        eta, bound = self._worst if self._worst is not None else (None, None)
        spent = self._codec.encode_seconds, self._codec.decode_seconds
        rounds, overdue = tuple(self._rounds), tuple(self._overdue)
        return SequenceReport(rounds, self._done, overdue, eta, bound, *spent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sequence of products under {self.code}, {self._jobs} jobs, {self._done} done>"

    def _open(self) -> None:
        self._driver.check()
        if self._closed:
            raise Closed("this sequence is closed and takes no more jobs; open another one.")

    def _add(self, shape: tuple[int, int, int], dtype: np.dtype[Any], X: Any, Y: Any) -> Ticket:
        worst = self._codec.worst(shape[1], dtype)  # says so if it cannot be accurate enough
        with self._driver.lock:
            job = Product(next(self._numbers), self._jobs, shape, dtype, X, Y, worst, self._product)
            job.follows = self._last in self._untaken
            self._codec.jobs[job.number] = job
            self._queue.append(job)
            try:
                entered = self._driver.engine.now()
                while len(self._queue) > self.delay + 1:
                    entered = self._round(entered)
            except BaseException:
                self._queue.pop()  # it is the last, and has not begun: earlier ones were to begin
                self._codec.drop(job.number)
                raise
            self._jobs += 1
            self._untaken[job.number], self._last = job, job.number
        return Ticket(self, job)

    def _drop(self, job: Product) -> None:
        with self._driver.lock:
            if self._untaken.pop(job.number, None) is None:
                return  # taken before, or dropped
            job.dropped, job.result = True, None
            if job in self._queue:
                self._queue.remove(job)
            if job.number not in self._ledger.jobs:  # else the round in which it is done does that
                self._codec.drop(job.number)

    def _take(self, job: Product, wait: bool) -> NDArray[Any]:
        if job.dropped:
            raise Closed(f"job {job.index} was dropped by its ticket; submit it again.")
        if not job.complete and not wait:
            raise NothingYet(f"{self._waits_for(job)} Call result() to wait for it.")
        with self._driver.lock:
            entered = self._driver.engine.now()
            while not job.decoded:
                # With another job waiting to begin, decoding is done while its round runs.
                if job.complete and not self._queue:
                    self._codec.decode(job.number)
                    continue
                try:
                    self._driver.check()
                    entered = self._round(entered)
                except KofnError:
                    if not job.complete:
                        raise
                    self._codec.decode(job.number)  # whoever needs a round gets the error
            self._codec.drop(job.number)
            self._untaken.pop(job.number, None)  # also with an error: it stays as it is
            if job.error is not None:
                raise job.error
            if job.eta is not None and job.error_bound is not None:
                before = self._worst or (0.0, 0.0)
                self._worst = max(before[0], job.eta), max(before[1], job.error_bound)
            if job.result is None:
                return np.broadcast_to(np.nan, job.shape[::2])  # nothing was computed
            return job.result

    def _round(self, entered: float) -> float:
        """Run one round; `entered` is when it could have begun. Returns when it ended."""
        driver, ledger, codec = self._driver, self._ledger, self._codec
        driver.settle()
        lost, joined = self._take_slots()
        tuned = self._tune()
        new = self._queue.popleft() if self._queue else None
        batches = ledger.begin(None) if new is None else ledger.begin(new.number, new.worst)
        following = ledger.ahead(self._queue[0].number if self._queue else None)
        codec.prepare(
            (worker, slot, batch[slot])
            for batch in following
            for worker, slot in self._slots.items()
            if slot in batch
        )
        known = {*self._slots, *driver.roster.leaving}
        spare = [worker for worker in driver.roster.kept if worker not in known]
        round = DeadlineRound(
            driver.next_round(), batches, ledger, codec, self._slots, self.slack, spare
        )
        load = sum(codec.cost(next(iter(batch.values())).job) for batch in batches)
        kind = None if new is None else (new.shape, new.code)
        # Where each job waits for the result of the one before, codes would take two rounds a job.
        steady = new is not None and new.follows and kind == self._kind
        self._kind = kind
        began = driver.engine.now()
        try:
            driver.run(round, None, lambda worker: None)
        finally:
            ended = driver.engine.now()
            # With nothing to send there was nothing to hold up.
            waited = (began if round.first_sent is None else round.first_sent) - entered
            ready = {codec.jobs[job.number].index: job for job in ledger.jobs.values() if job.done}
            done = tuple(ready)
            self._overdue += [index for index, job in ready.items() if job.ended > job.due]
            self._done += len(done)
            enough = len(round.slots) >= ledger.least and ledger.conforms(round.finished)
            alone = round.done and not (round.waited or round.topped_up)
            if self._tuner is not None and new is not None and steady and not round.lost:
                shown = Shown(round.firsts, round.lasts, load, ended - began)
                if round.done:
                    self._tuner.learn(shown, new.shape)
            ledger.end(round.finished)
            self._before = tuple(round.slots)
            codec.end_round()
            self._rounds.append(
                RoundReport(
                    ledger.round,
                    None if new is None else new.index,
                    done,
                    len(batches),
                    load,
                    ended - entered,
                    round.fastest,
                    tuple(sorted(ledger.stragglers.difference(round.in_time))),
                    round.unanswered,
                    round.waited,
                    enough and alone,
                    round.topped_up,
                    (*lost, *round.lost),
                    (*joined, *round.joined),
                    round.held + waited,
                    tuned,
                )
            )
        return ended

    def _tune(self) -> tuple[str, ...]:
        """Do what the tuner finds better by now, with jobs to begin; and what that is, and why."""
        if self._tuner is None or (change := self._tuner.change()) is None:
            return ()
        now = self._driver.engine.now()
        self._driver.log.append(Record(now, "tuned", -1, -1, -1, 0, change.why))
        self.code, self.slack, self._product = change.code, change.slack, change.code.product
        self._ledger.k = self._product.k
        for job in self._queue:
            self._codec.recode(job, self._product)
        return (change.why,)

    def _take_slots(self) -> tuple[list[int], list[int]]:
        """Let newcomers take the slots of those that are lost, or leaving; return lost and new."""
        slots, leaving = self._slots, self._driver.roster.leaving
        lost = [worker for worker in self._before if worker not in slots]
        newcomers = [worker for worker in self._driver.roster.workers if worker not in slots]
        newcomers.sort(key=leaving.__contains__)
        staying = sum(worker not in leaving for worker in newcomers)
        going = sorted(slots.keys() & leaving.keys(), key=leaving.__getitem__)
        for worker in going[: max(0, staying - len(slots.free()))]:
            del slots[worker]
        taken = dict(zip(newcomers, slots.free(), strict=False))
        slots.update(taken)
        return lost, list(taken)

    def _waits_for(self, job: Product) -> str:
        if job.dropped:
            return "it was dropped."
        if job.complete:
            return ""
        ran, known = self._ledger.round, self._ledger.jobs.get(job.number)
        if known is None:
            before = [other.number for other in self._queue].index(job.number)
            return (
                f"job {job.index} begins {before + 1} round(s) from now and is done at most "
                f"{self.delay} round(s) later; {ran} rounds have run."
            )
        return (
            f"job {job.index} is done by round {known.due}; {ran} rounds have run, and "
            f"{len(known.rows)} of the {self._ledger.k} results that it needs are there."
        )
