"""Who is to do which mini-task in which round, and when a round may end: no clock, no values.

A ledger thinks in slots 0 … P-1. Whoever is lost leaves its slot empty, a straggler in every round
until a joiner takes the slot. It is driven by `begin`, `deliver`, `may_end` and `end`, by the real
master and by the exhaustive tests alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..codes.product import POOR
from .models import StragglerModel


class Mini(NamedTuple):
    """A mini-task: row `row` of the product code, for one job. Rows below k are uncoded."""

    job: int
    row: int


Batch = Mapping[int, Mini]  # at most one mini-task a slot

# How much the decode of a job from these rows would amplify rounding (see codes.linear).
Eta = Callable[[int, Sequence[int]], float]


def perfect(job: int, rows: Sequence[int]) -> float:
    """Any k rows are as good as others: where values are not computed."""
    return 1.0


@dataclass(eq=False)
class Job:
    """What is known of one job. `worst` is the η at which its error bound meets its tolerance."""

    number: int
    began: int
    due: int
    k: int
    worst: float = float("inf")
    rows: list[int] = field(default_factory=list)  # delivered, in order of arrival
    units: int = 0  # uncoded rows given out so far
    coded: int = 0  # coded rows given out so far
    reach: int = 0  # results that there can be by the end of this round
    done: bool = False
    ended: int = 0  # the round in which it was done

    def fresh(self) -> Mini:
        """The next coded mini-task."""
        self.coded += 1
        return Mini(self.number, self.k + self.coded - 1)

    def unit(self) -> Mini:
        """The next uncoded mini-task."""
        self.units += 1
        return Mini(self.number, self.units - 1)


class Ledger(ABC):
    """The bookkeeping of one stream under one code. Each job begins in a round of its own.

    `k` is of the jobs to begin: those that have begun keep theirs.
    """

    least = 1  # slots that must be taken, or the code cannot keep a deadline by itself
    prompt = False  # whether a round ends as soon as its job is done, without waiting for others

    def __init__(self, k: int, slots: int, delay: int, eta: Eta = perfect) -> None:
        self.k, self.slots, self.delay = k, slots, delay
        self.round = 0
        self.jobs: dict[int, Job] = {}  # not done, or done in this round
        self.stragglers: frozenset[int] = frozenset()  # of the round before
        self._eta = eta

    def begin(self, job: int | None, worst: float = float("inf")) -> list[Batch]:
        """Begin a round, with a new job or without one; return its mini-tasks, in order.

        A trivial mini-task (of a job that is done) is left out: it costs nothing.
        """
        self.round += 1
        if job is not None:
            self.jobs[job] = Job(job, self.round, self.round + self.delay, self.k, worst)
        batches = self._assign()
        for one in self.jobs.values():
            one.reach = len(one.rows)
        for mini in (mini for batch in batches for mini in batch.values()):
            self.jobs[mini.job].reach += 1
        return batches

    def ahead(self, job: int | None) -> list[Batch]:
        """Mini-tasks that the next round will surely hold if `job` begins in it: in their order.

        Known while this round is running, so that their operands can be made meanwhile.
        """
        return []

    def deliver(self, mini: tuple[int, int]) -> bool:
        """Count a result; True if its job is done by it."""
        number, row = mini
        job = self.jobs.get(number)
        if job is None or job.done or row in job.rows:
            return False
        job.rows.append(row)
        self._look(job, POOR)  # one more, if its deadline allows it
        return job.done

    @property
    def due(self) -> Job | None:
        """The job that must be done in this round and is not yet."""
        for job in self.jobs.values():
            if job.due <= self.round and not job.done:
                return job
        return None

    def settle(self) -> list[int]:
        """Accept, for due jobs, what decodes well enough; return the jobs that are done by it.

        Called when nothing better will come in time: no straggler is waited for only to gain
        digits that the caller did not ask for.
        """
        due = [job for job in self.jobs.values() if job.due <= self.round and not job.done]
        for job in due:
            self._look(job, job.worst)
        return [job.number for job in due if job.done]

    def may_end(self, finished: Collection[int]) -> bool:
        """Whether the round may end with these slots having finished all that they were given."""
        return self.due is None

    def conforms(self, finished: Collection[int]) -> bool:
        """Whether the stragglers so far are a pattern that the code is made for."""
        return True

    def more(self, slots: Collection[int]) -> Batch:
        """One more coded mini-task of the due job for each of these slots."""
        job = self.due
        return {} if job is None else {slot: job.fresh() for slot in sorted(slots)}

    def end(self, finished: Collection[int]) -> None:
        """End the round; slots that did not finish were stragglers in it."""
        self.stragglers = frozenset(range(self.slots)).difference(finished)
        self.jobs = {number: job for number, job in self.jobs.items() if not job.done}

    def begun(self, rounds_ago: int) -> Job | None:
        """The job that began so many rounds ago, if it is not done."""
        for job in self.jobs.values():
            if job.began == self.round - rounds_ago and not job.done:
                return job
        return None

    def _look(self, job: Job, worst: float) -> None:
        if len(job.rows) >= job.k and self._eta(job.number, job.rows) <= worst:
            job.done, job.ended = True, self.round

    @abstractmethod
    def _assign(self) -> list[Batch]:
        """The mini-tasks of the round that has just begun."""

    def _everyone(self, job: Job) -> Batch:
        return {slot: job.fresh() for slot in range(self.slots)}

    def _uncoded(self, job: int) -> Batch:
        return {slot: Mini(job, slot) for slot in range(self.slots)}


class OneRound(Ledger):
    """Jobs that begin and end in one round: one mini-task a slot. Uncoded, or polynomial code."""

    prompt = True

    def __init__(self, k: int, slots: int, coded: bool, eta: Eta = perfect) -> None:
        super().__init__(k, slots, 0, eta)
        self._coded, self.least = coded, k

    def _assign(self) -> list[Batch]:
        job = self.begun(0)
        if job is None:
            return []
        return [self._everyone(job) if self._coded else self._uncoded(job.number)]

    def ahead(self, job: int | None) -> list[Batch]:
        if job is None:
            return []
        coming = Job(job, self.round + 1, 0, self.k)
        return [self._everyone(coming) if self._coded else self._uncoded(job)]


class Diagonal(Ledger):
    """Algorithm 1 (DIP): each job not done gets one mini-task a worker; the due one what it lacks.

    Of the due job, of which γ results are there, everyone gets ceil((k - γ) / lam) mini-tasks: so
    any lam workers are enough. As printed, every mini-task is coded. With `plain`, the first k
    mini-tasks of a job are uncoded if the number of workers divides k: less work for the master.
    """

    def __init__(
        self, k: int, slots: int, delay: int, lam: int, eta: Eta = perfect, *, plain: bool = False
    ) -> None:
        super().__init__(k, slots, delay, eta)
        self._lam = self.least = lam
        self._plain = plain

    def _assign(self) -> list[Batch]:
        batches = []
        for ago in range(self.delay):
            if job := self.begun(ago):
                batches.append(self._everyone(job))
        if job := self.begun(self.delay):
            lacking = max(1, job.k - len(job.rows))  # one more where those there decode poorly
            batches += [self._everyone(job) for _ in range(-(-lacking // self._lam))]
        return batches

    def ahead(self, job: int | None) -> list[Batch]:
        new = [] if job is None else [Job(job, self.round + 1, 0, self.k)]
        old = [one for ago in range(self.delay) if (one := self.begun(ago)) is not None]
        coming = [replace(one) for one in (*new, *old) if one.reach < one.k]
        return [self._everyone(one) for one in coming]

    def _everyone(self, job: Job) -> Batch:
        tight = self._plain and job.k % self.slots == 0
        if tight and job.units + self.slots <= job.k:
            return {slot: job.unit() for slot in range(self.slots)}
        return super()._everyone(job)


class Improved(Ledger):
    """Algorithm 2 (IDIP), for the stragglers of a model.

    A mini-task that failed is given to the same slot again. A new one is uncoded where the model
    says that the slot cannot straggle until the job is due. Line 9 is read once a job and round.
    """

    def __init__(self, k: int, slots: int, model: StragglerModel, eta: Eta = perfect) -> None:
        super().__init__(k, slots, model.life - 1, eta)
        self._model = model
        # Stragglers of the rounds before. A run of them may be longer than any window.
        self._before: deque[frozenset[int]] = deque(maxlen=2 * model.W)
        self._given: dict[int, Batch] = {}  # job -> its mini-tasks of the round before

    def _assign(self) -> list[Batch]:
        batches: list[Batch] = []
        given: dict[int, Batch] = {}
        before = tuple(self._before)
        for ago in range(self.delay + 1):
            job = self.begun(ago)
            if job is None:
                continue
            last = self._given.get(job.number, {})
            batch = {slot: mini for slot, mini in last.items() if mini.row not in job.rows}
            free = [slot for slot in range(self.slots) if slot not in batch]
            enough, left = self.k - job.units >= len(free), self._model.life - ago
            for slot in free:
                safe = enough and self._model.cannot_straggle(before, slot, left)
                batch[slot] = job.unit() if safe else job.fresh()
            batches.append(batch)
            given[job.number] = batch
        self._given = given
        return batches

    def ahead(self, job: int | None) -> list[Batch]:
        # Who gets what depends on who straggles in this round, unless nobody can for so long.
        if job is None or self.k < self.slots:
            return []
        always = all(
            self._model.cannot_straggle((), s, self._model.life) for s in range(self.slots)
        )
        return [self._uncoded(job)] if always else []

    def may_end(self, finished: Collection[int]) -> bool:
        return super().may_end(finished) and self.conforms(finished)

    def conforms(self, finished: Collection[int]) -> bool:
        late = [slot for slot in range(self.slots) if slot not in finished]
        return self._model.conforms(tuple(self._before), late)

    def end(self, finished: Collection[int]) -> None:
        super().end(finished)
        self._before.append(self.stragglers)
