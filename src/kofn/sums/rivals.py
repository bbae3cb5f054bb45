"""Sums without a code, as others do them: what coding is compared with. Same master, same engines.

The simplest need nothing of their own: `parts.sum(fn, x, code=Uncoded())`, with `stop=first(r)`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import checks
from ..codes.total import Total, same_shapes
from ..errors import BadInput
from ..model import Outline, Piece, Task
from ..rounds import Late
from ..rounds.holders import HasDriver, Holders
from ..rounds.replicated import ReplicatedRound
from ..rounds.stale import StaleRound
from .data import cut
from .functions import Sent, load
from .work import Leaves, leaves

Function = Callable[[Any, Any], Any]
REMEMBERED = 10  # rounds whose tasks show how long a task may take


class _Terms:
    """A body: fn of some parts at the operand, or at x where one is given, each sent by itself."""

    def __init__(self, name: str, fn: Function | bytes) -> None:
        self.name, self.fn = name, fn

    def __call__(
        self, kept: Mapping[str, Any], operand: Any, key: str, parts: Sequence[int], x: Any = None
    ) -> Iterator[Piece]:
        at = operand if x is None else x
        fn = load(self.name, self.fn) if isinstance(self.fn, bytes) else self.fn
        for part in parts:
            value, _ = leaves(fn, kept[key][part], at, part)
            yield Piece(part, tuple(one.copy() for one in value), 1)


class _Dealt:
    """Parts dealt to the live workers in runs; each worker also keeps the runs after its own."""

    def __init__(self, where: HasDriver, data: Any, parts: int | None, copies: int) -> None:
        self._driver = driver = where._driver
        driver.check()
        driver.settle()
        n = len(driver.engine.workers)
        self.m, part = cut(data, parts, n)
        if not 1 <= copies <= n:
            raise BadInput(f"copies must be from 1 to the {n} workers; got {copies}.")
        if self.m < n:
            raise BadInput(
                f"every worker needs a part; got {self.m} parts and {n} workers. Cut the data into "
                f"{n} parts or more, or connect fewer workers."
            )
        edges = [b * self.m // n for b in range(n + 1)]
        self.runs = [tuple(range(a, b)) for a, b in pairwise(edges)]
        self.slots = [tuple((slot + i) % n for i in range(copies)) for slot in range(n)]
        runs, slots = self.runs, self.slots
        self._holders = Holders(
            driver, n, lambda slot: {i: part(i) for block in slots[slot] for i in runs[block]}
        )
        self._holders.place()
        self.key = self._holders.key
        self._body: _Terms | None = None
        self._sent = Sent()

    def _use(self, fn: Function) -> None:
        """Take a function as it is now: its body is known by identity, and sent once."""
        sent = self._sent(fn) if self._driver.engine.capabilities.processes else fn
        if self._body is None or self._body.fn is not sent:
            self._body = _Terms(f"{self.key}-fn-{self._driver.next_task()}", sent)

    def _task(self, round: int, worker: int, parts: tuple[int, ...], *x: Any) -> Task:
        assert self._body is not None
        task, what = self._driver.next_task(), Outline((part, 1) for part in parts)
        args = (self.key, parts, *x)
        return Task(task, round, worker, self._body, args, what, float(len(parts)))


class Backups(_Dealt):
    """Backup tasks: each run of parts on `copies` workers, one of which is asked.

    The next holder is asked too when the first is later than `factor` times the time in which half
    of this round's replies came. Or, with `quantile`, when it is later than so many of the tasks of
    the last rounds were: a hedged request. Every sum is exact.
    """

    def __init__(
        self,
        where: HasDriver,
        data: Any,
        *,
        parts: int | None = None,
        copies: int = 2,
        factor: float = 3.0,
        quantile: float | None = None,
    ) -> None:
        factor = checks.number(factor, "factor, of the median,", "> 1", infinite=True)
        if quantile is not None:
            quantile = checks.number(quantile, "quantile, of the tasks' seconds,", "in (0, 1]")
        super().__init__(where, data, parts, copies)
        # Of the first round nothing is known: it is hedged at no time.
        self._late = Late(factor=factor) if quantile is None else Late(after=float("inf"))
        self._quantile, self._seconds = quantile, deque[list[float]](maxlen=REMEMBERED)
        self.asked_again = 0  # backup tasks so far
        self.parts_read = 0  # by all workers, in the last sum

    def sum(self, fn: Function, x: Any = None) -> Any:
        """Σ fn(part, x); an array, or a tuple of them if there are several leaves."""
        driver = self._driver
        driver.check()
        with driver.lock:
            driver.settle()
            self._holders.enlist()
            self._use(fn)
            ready = self._holders.ready()
            round = ReplicatedRound(driver.next_round(), self.slots, ready, self, self._late)
            driver.run(round, x, self._holders.supply)
            self.asked_again += len(round.asked_again)
            self.parts_read = sum(round.read.values())
            if self._quantile is not None:
                self._seconds.append(round.task_seconds())
                known = [one for seconds in self._seconds for one in seconds]
                self._late = Late(after=float(np.quantile(known, self._quantile)))
        if not driver.engine.capabilities.values:
            return None
        total, shapes = Total(), None
        for part, value in (piece for pieces in round.values.values() for piece in pieces.items()):
            new = tuple(leaf.shape for leaf in value)
            shapes = same_shapes(shapes, new, f"part {part}")
            total.add(value)
        assert total.leaves is not None
        return total.leaves[0] if len(total.leaves) == 1 else tuple(total.leaves)

    def task(self, round: int, worker: int, slot: int, block: int) -> Task:
        """Make the task of a run of parts."""
        return self._task(round, worker, self.runs[block])


class Stale(_Dealt):
    """DSAG: the newest gradient of every part is kept, however stale; see `rounds.stale`."""

    def __init__(self, where: HasDriver, data: Any, *, parts: int | None = None) -> None:
        super().__init__(where, data, parts, 1)
        self.round: StaleRound | None = None  # the last one that was begun

    def run(
        self,
        fn: Function,
        x: Any,
        advance: Callable[[int, float, Any, float], Any],
        fresh: int,
        *,
        margin: float = 0.02,
        portion: float = 1.0,
        balance: bool = True,
    ) -> StaleRound:
        """Iterate until `advance(t, time, total, covered)` returns no next point but None.

        `time` is the engine's clock; `total` is Σ over the known parts, a `covered` fraction of
        all. x travels with every task, not as a broadcast: workers are at different points.
        """
        driver = self._driver
        driver.check()
        n = len(self.slots)
        checks.whole(fresh, "fresh", 1, n, "It counts workers.")
        checks.number(portion, "portion", "in (0, 1]")

        def on_step(t: int, time: float, total: Leaves | None, covered: float) -> Any:
            one = total[0] if total is not None and len(total) == 1 else total
            return advance(t, time, one, covered)

        with driver.lock:
            driver.settle()
            self._use(fn)
            slots = {w: self.runs[slot] for w, slot in self._holders.ready().items()}
            options: dict[str, Any] = {"margin": margin, "portion": portion, "balance": balance}
            round = StaleRound(driver.next_round, slots, self.task, x, on_step, fresh, **options)
            self.round = round
            driver.run(round, None, lambda worker: None)
        return round

    def task(self, round: int, worker: int, parts: Sequence[int], x: Any) -> Task:
        """Make the task that evaluates these parts at x."""
        return self._task(round, worker, tuple(parts), x)
