"""The codec of a sequence encodes operands and decodes results, in small pieces.

Rounds call it while they wait: first it decodes what is finished, then it encodes what the next
round will surely ask for. Each pair of encoded operands goes out once: with its task, or,
under a code that asks again for a mini-task that failed, to be kept by the worker until the job is
done; it is then asked again by name.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import misfit
from ..codes.linear import error_bound
from ..codes.product import ProductCode
from ..errors import Inaccurate, NotDecodable, Overflowed
from ..model import Command, Keep, Task
from ..rounds import RoundDriver
from .ledger import Mini
from .work import multiply

Pair = tuple[()] | tuple[NDArray[Any], NDArray[Any]]  # nothing where values are skipped

_names = count()


@dataclass(eq=False)
class Product:
    """One job's operands, what has come of it, and its result. X and Y are None without values."""

    number: int  # the codec's and the ledger's own: no other job of this sequence ever has it
    index: int  # in the order of submission, which a job that was not added leaves as it is
    shape: tuple[int, int, int]  # m, n, p
    dtype: np.dtype[Any]
    X: NDArray[Any] | None
    Y: NDArray[Any] | None
    worst: float  # η at which the error bound meets the tolerance
    code: ProductCode
    follows: bool = False  # it was submitted before the result of the one before was taken
    made: dict[Mini, Pair] = field(default_factory=dict)  # encoded, to go out with their tasks
    keys: dict[Mini, str] = field(default_factory=dict)  # of what workers keep
    used_keys: Counter[int] = field(default_factory=Counter)  # by slot
    given: set[tuple[int, Mini]] = field(default_factory=set)  # worker, mini-task
    values: dict[int, NDArray[Any]] = field(default_factory=dict)  # by row
    complete: bool = False  # enough has arrived
    decoded: bool = False
    dropped: bool = False  # nobody wants the result
    result: NDArray[Any] | None = None
    eta: float | None = None
    error_bound: float | None = None
    error: Exception | None = None  # why it could not be decoded


class JobCodec:
    """Encodes and decodes the jobs of one sequence."""

    def __init__(
        self,
        driver: RoundDriver,
        tolerance: float | None,
        asks_again: bool,
        check_finite: bool = True,
    ) -> None:
        self.jobs: dict[int, Product] = {}  # neither decoded nor given up
        self._driver, self._tolerance, self._asks_again = driver, tolerance, asks_again
        self._check_finite = check_finite
        self._name = f"sequence-{next(_names)}"
        self._values = driver.engine.capabilities.values
        self._to_decode: deque[int] = deque()
        self._ahead: deque[tuple[int, int, Mini]] = deque()  # worker, slot, mini-task
        self._over: list[Product] = []  # jobs that have enough, since the last round

    def drop(self, number: int) -> None:
        """Let go of a job: its result was taken or is not wanted, or it was not to begin."""
        if number in self._to_decode:
            self._to_decode.remove(number)
        self._ahead = deque(item for item in self._ahead if item[2].job != number)
        if number in self.jobs:
            self._forget(self.jobs.pop(number))

    def recode(self, job: Product, code: ProductCode) -> None:
        """Give a job that has not begun another code. What was encoded ahead of it is lost."""
        job.code, job.made = code, {}
        self._ahead = deque(item for item in self._ahead if item[2].job != job.number)

    def eta(self, job: int, rows: Sequence[int]) -> float:
        """How much a decode from these rows amplifies rounding; 1 where values are skipped."""
        if not self._values:
            return 1.0
        try:
            return self.jobs[job].code.weights(rows).eta
        except NotDecodable:
            return float("inf")

    def worst(self, n: int, dtype: np.dtype[Any]) -> float:
        """The η up to which a product of inner dimension n is within the tolerance."""
        tolerance = self._tolerance
        if tolerance is None:
            tolerance = 1e-2 if dtype == np.float32 else 1e-6
        least = error_bound(n, dtype, 1.0)
        if least > tolerance:
            raise Inaccurate(least, tolerance, 1.0)
        return tolerance / least

    # What rounds ask for.

    @property
    def busy(self) -> bool:
        """Whether there is something to decode, or to encode ahead."""
        return bool(self._to_decode or self._ahead)

    def ready(self, worker: int, mini: Mini) -> bool:
        """Whether the operands are encoded, and at this worker if it is to keep them."""
        job = self.jobs.get(mini.job)
        if self._asks_again and not self._values:  # theirs are asked for in the ledger's order
            return True
        return job is not None and (mini in job.made or (worker, mini) in job.given)

    def give(self, worker: int, slot: int, mini: Mini) -> Sequence[Command]:
        """Encode the operands, unless that has been done: one pass over X and over Y."""
        job = self.jobs.get(mini.job)
        if job is None or job.decoded or self.ready(worker, mini):
            return ()
        pair: Pair = ()
        if job.X is not None and job.Y is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is judged later
                pair = job.code.encode_left(mini.row, job.X), job.code.encode_right(mini.row, job.Y)
        if not self._asks_again:
            job.made[mini] = pair
            return ()
        if mini not in job.keys:
            # Slots share the names: a job's operands are forgotten in a few calls.
            job.keys[mini] = f"{self._name}/{job.number}/{job.used_keys[slot]}"
            job.used_keys[slot] += 1
        job.given.add((worker, mini))
        return (Keep(worker, job.keys[mini], pair),)

    def task(self, round: int, worker: int, mini: Mini) -> Task:
        """Make a task whose operands the worker has."""
        job = self.jobs[mini.job]
        args = (tuple(mini), job.keys.get(mini), *job.made.pop(mini, ()))
        id = self._driver.next_task()
        return Task(id, round, worker, multiply, args, tuple(mini), self.cost(mini.job))

    def cost(self, job: int) -> float:
        """Multiply-adds of one mini-task of a job."""
        return self.jobs[job].code.cost(self.jobs[job].shape)

    def wrong(self, mini: tuple[int, int], value: Any) -> str | None:
        """Why this cannot be the result of a mini-task, if so."""
        job = self.jobs.get(mini[0])
        if job is None or not self._values:
            return None
        m, _, p = job.shape
        return misfit(value, (-(-m // job.code.x), -(-p // job.code.y)))

    def take(self, mini: tuple[int, int], value: Any) -> None:
        """Keep a result, unless its job has enough."""
        job = self.jobs.get(mini[0])
        if job is not None and not job.complete and value is not None:
            job.values[mini[1]] = value

    def complete(self, jobs: Iterable[int]) -> None:
        """Decode these, when there is time."""
        for number in jobs:
            job = self.jobs[number]
            job.complete = True
            self._over.append(job)
            if not job.dropped:
                self._to_decode.append(number)

    def idle_work(self) -> Sequence[Command]:
        """Decode one job, or encode one mini-task ahead of its round."""
        if self._to_decode:
            self.decode(self._to_decode[0])
        elif self._ahead:
            worker, slot, mini = self._ahead.popleft()
            return self.give(worker, slot, mini)
        return ()

    # Between rounds.

    def prepare(self, work: Iterable[tuple[int, int, Mini]]) -> None:
        """Encode these (worker, slot, mini-task) for the round after this one, when there is time.

        Those that are not ready by then are encoded while the others are at work.
        """
        self._ahead = deque(item for item in work if item[2].job in self.jobs)

    def decode(self, number: int) -> None:
        """Decode a job now, if that has not been done."""
        if number in self._to_decode:
            self._to_decode.remove(number)
        job = self.jobs[number]
        if job.decoded:
            return
        try:
            self._decode(job)
        except Exception as error:
            job.error = error
        job.decoded, job.X, job.Y, job.values = True, None, None, {}

    def _decode(self, job: Product) -> None:
        m, n, p = job.shape
        self._driver.engine.spend(partial(float, job.code.k * m * p))
        if not self._values:
            return
        weights = job.code.weights(list(job.values))
        job.eta = weights.eta
        job.error_bound = weights.error_bound(n, job.dtype)
        if weights.eta > job.worst:
            tolerance = job.worst * error_bound(n, job.dtype, 1.0)
            raise Inaccurate(job.error_bound, tolerance, weights.eta)
        with np.errstate(over="ignore", invalid="ignore"):
            job.result = job.code.assemble(job.code.blocks(weights, job.values), (m, p))
            finite = not self._check_finite or bool(np.isfinite(job.result.sum()))
        if not finite and not np.isfinite(job.result).all():
            raise Overflowed(
                f"the result of job {job.index} must be finite; sums of {n} products left the "
                f"range of {job.dtype}. Scale the operands down, or use float64."
            )

    def end_round(self) -> None:
        """Forget the operands of jobs that have enough; their tasks are stale by now."""
        self._ahead.clear()
        while self._over:
            job = self._over.pop()
            self._forget(job)
            if job.dropped:
                self.drop(job.number)

    def _forget(self, job: Product) -> None:
        """Let go of all that was encoded of a job, here and at the workers."""
        if job.keys:
            self._driver.unwanted.extend(set(job.keys.values()))
        job.made, job.keys, job.given = {}, {}, set()
