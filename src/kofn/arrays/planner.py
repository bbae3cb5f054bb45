"""Who takes part in the next round of a matrix, and what each of them reads."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..rounds import ElasticRound, Layout, RoundDriver
from ..rounds.holders import Holders
from ..rounds.iterate import IterateRound
from ..rounds.reduce import SumRound
from .decode import Code
from .plan import Paces, Plan

SILENT = 0.25  # seconds: who owes an answer from an earlier round for so long is left out


class Planner:
    """Plans for the rounds of one matrix, made anew only when something has changed.

    `rebuild(worker, share)` gives a worker a share that is made from `least` others; `need` of them
    are enough for a product.
    """

    def __init__(
        self,
        driver: RoundDriver,
        holders: Holders,
        rebuild: Callable[[int, int], None],
        least: int,
        need: int,
        measured: bool,
    ) -> None:
        self._driver, self._holders, self._rebuild = driver, holders, rebuild
        self._least, self._need = least, need
        self._paces = Paces() if measured else None
        self._plans: dict[tuple[Code, int], Plan] = {}  # by code and margin
        self._laggards: set[int] = set()  # late, and still at it

    def plan(self, code: Code, rows: int, margin: int) -> Plan:
        """The plan for those that can take part now."""
        ready = self.answering(self._ready(), code.k)
        loads = None if self._paces is None else self._paces.loads(ready, code.k + margin)
        plan = self._plans.get((code, margin))
        if plan is None or plan.holders != ready or Paces.differ(plan.layout.fractions, loads):
            values = self._driver.engine.capabilities.values
            plan = Plan(code, ready, Layout(code.k, margin, loads), rows, plan, values=values)
            self._plans[code, margin] = plan
        return plan

    def members(self, plan: Plan) -> tuple[dict[int, int], Collection[int]]:
        """Live workers with their shares, and those among them that have no part in a plan."""
        if len(self._holders.shares) == len(plan.holders):
            return plan.holders, ()
        ready = self._holders.ready()
        return ready, ready.keys() - plan.holders.keys()

    def ended(self, round: ElasticRound | SumRound | IterateRound) -> None:
        """Note who was late in a round."""
        self._laggards = self._driver.roster.owing([*self._laggards, *round.late])

    def learn(self, round: ElasticRound | SumRound) -> None:
        """Take in how fast each worker was."""
        if self._paces is not None:
            self._paces.learn(round.read, round.spent)

    def answering(self, ready: dict[int, int], need: int) -> dict[int, int]:
        """Those without whom is still at the work of an earlier round, if they are enough.

        It is stopped, or far behind, and counted on again as soon as it answers.
        """
        silent = self._driver.silent(SILENT) | self._driver.roster.owing(self._laggards)
        if not silent or len(ready.keys() - silent) < need:
            return ready
        return {worker: share for worker, share in ready.items() if worker not in silent}

    def await_enough(self) -> None:
        """Wait for joiners until a product can begin; or raise TooFewWorkers."""
        self._driver.settle()
        self._driver.await_enough(lambda: len(self._ready()), self._need)

    def _ready(self) -> dict[int, int]:
        """Live workers with their shares; when few, those fetching theirs are waited for."""
        holders = self._holders
        holders.enlist()
        for worker, share in holders.vacant():
            if len(holders.ready()) >= self._least:
                self._rebuild(worker, share)
        ready = holders.ready()
        if len(ready) < self._need:
            holders.wait()
            ready = holders.ready()
        return ready
