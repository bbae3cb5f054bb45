"""X.iterate over hosts: workers send each other their pieces; the master makes plans.

See `rounds.mesh` for how all agree, `mesh_body` for what workers do, `kofn.peers` for how pieces
travel. What passes here does not grow with the vector, but for w0, which one worker is sent, and
the last one, which one worker sends back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ..errors import Diverged, KofnError, OutOfTouch, UnknownWorker
from ..exchange import TASK
from ..model import Build, Task
from ..rounds.base import Round
from ..rounds.mesh import AskRound, EpochRound, MeshPlan
from .mesh_body import deliver, join, mesh_body, status, where
from .plan import Plan
from .runs import Count, Laid, Listener, OnRound, conclude, extra
from .worker_body import Loop, scales_key

if TYPE_CHECKING:
    from .matrix import CodedMatrix

LEAST_PAUSE = 0.25  # seconds for which one that was late is left out when it answers; then twice


def iterate(
    X: CodedMatrix, loop: Loop, w0: NDArray[Any], plan: Plan, on_round: OnRound | None
) -> NDArray[Any]:
    """See CodedMatrix.iterate; the driver's lock is held, and the input was checked."""
    run = _Run(X, loop, w0, plan, on_round)
    try:
        return run.go()
    except KofnError as error:
        error.reached = run.newest()
        raise
    finally:
        run.close()


class _Status(NamedTuple):
    """What a worker says of itself."""

    t: int  # the round that its vector goes into, -1 for none
    over: int  # the round at which the run ends, -1 if it does not know
    read: int
    address: tuple[Any, ...]
    host: str


class _Run:
    def __init__(
        self, X: CodedMatrix, loop: Loop, w0: NDArray[Any], plan: Plan, on_round: OnRound | None
    ) -> None:
        self.X, self.driver, self.loop, self.w0 = X, X._driver, loop, w0
        self.began = self.driver.engine.now()
        self.key = f"mesh-{self.driver.next_task()}"
        self.token = secrets.token_bytes(32)
        encryption = self.driver.engine.encryption
        self.find = None if encryption is None else encryption.find
        self.count = Count(self.driver)
        self.listener = Listener(on_round, loop.report_every, self.count)
        self.laid = Laid(X, plan)
        late = X._options.late
        self.late = None if late is None else late.between()
        self.everywhere: bool | None = None  # whether nodes are to be reached from other machines
        self.given: set[int] = set()  # workers that were given a node
        self.pauses: dict[int, float] = {}  # of those that were late: as long as they are left out
        self.out: set[int] = set()  # of these, who are now
        self.seen: dict[int, _Status] = {}  # as last told
        self.lists: tuple[list[int], list[int], list[int]] = ([], [], [])  # late, lost, joined
        self.shares: set[int] = set()  # all that took part
        self.idle = 0.0  # seconds that epochs have run since anything was computed
        self.reached = -1  # the newest vector that was heard of
        self.before = (-1, 0)  # as everybody was last asked: the newest vector, and rows read

    def go(self) -> NDArray[Any]:
        """Epoch after epoch, until the run ends."""
        X, driver, loop = self.X, self.driver, self.loop
        hosts = set(self._ask(where, (), X._holders.ready(), {}).answers.values())
        self.everywhere = len(hosts) > 1
        epoch, change = 0, float("inf")
        while True:
            members = self._status()
            newest = max(self.seen[w].t for w in members)
            owners = [w for w in members if self.seen[w].t == newest]
            ends = {self.seen[w].over for w in members} - {-1}
            if newest >= loop.rounds or newest in ends:
                delivered = self._deliver(owners)
                if delivered is None or delivered[0] < newest:
                    continue  # all were lost in that moment
                break
            self._check_moving(members, newest)
            epoch += 1
            plan, start = self._plan(epoch, members, newest)
            rest = {w: self.pauses[w] for w in self.out}
            back = self.out - driver.roster.owing(self.out)
            round = EpochRound(
                driver.next_round(),
                {share: worker for worker, share in members.items()},
                partial(self._task, start),
                self.listener.on_round,
                X.code.k,
                X._holders.key,
                rest,
                back,
                self.idle,
                driver.limit,
            )
            driver.run(round, plan, self._supply)
            self.idle = round.idle_at(driver.engine.now())
            self.reached = max(newest, round.reached)
            self._note(round, (*round.late, *round.behind))
            if round.broken is not None:
                raise Diverged(*round.broken)
            change = round.change
        round.late, round.lost, round.joined = (list(dict.fromkeys(one)) for one in self.lists)
        X._planner.ended(round)
        passed, reached = self.count.total(), delivered[0]
        about = extra(reached, change, (loop.rounds, loop.tol), epoch, self.w0.nbytes)
        about["bytes_through_master"] = None if passed is None else passed - self.w0.nbytes
        about["bytes_per_round"] = self.listener.per_round(passed, reached)
        read = {worker: state.read for worker, state in self.seen.items()}
        who = members, self.shares
        conclude(X, round, who, (read, 0, 0), self.laid.eta, about, self.began, self.w0.dtype)
        return delivered[1]

    def newest(self) -> tuple[int, NDArray[Any]]:
        """The newest vector that can still be had."""
        with suppress(KofnError):
            newest = self._ask(status, (self.key,), *self._members(), least=0).answers
            delivered = self._deliver(sorted(newest, key=lambda w: -newest[w][0]))
            if delivered is not None and delivered[0] >= 0:
                return delivered
        return 0, self.w0.copy()

    def close(self) -> None:
        """Have everybody close its node."""
        self.driver.forget(self.key)
        if self.X._scales is not None:
            self.driver.forget(scales_key(self.key))

    # What workers are given.

    def _provide(self, worker: int) -> None:
        """Give a worker its node, and what the rows of the matrix were divided by."""
        with suppress(UnknownWorker):  # it left meanwhile
            if self.X._scales is not None:
                with self.count.aside():
                    self.driver.put(worker, scales_key(self.key), self.X._scales)
            build = Build(join, (self.token, self.everywhere, self.find))
            self.driver.put(worker, self.key, build)
            self.given.add(worker)

    def _supply(self, worker: int) -> None:
        """Give a newcomer its share, and its node."""
        holders = self.X._holders
        if worker not in holders.shares:
            with self.count.aside():
                holders.supply(worker)
        if worker in holders.shares and worker not in self.given and self.everywhere is not None:
            self._provide(worker)

    def _task(self, start: int, id: int, worker: int, share: int) -> Task:
        """A worker's task of an epoch; the one with the share `start` is sent w0."""
        X, w0 = self.X, self.w0
        shape = X._rows, len(w0), w0.dtype.str
        first = w0 if share == start else None
        args = (self.key, X._holders.key, share, shape, self.loop, self.late, first)
        return Task(self.driver.next_task(), id, worker, mesh_body, args, TASK)

    # Between two epochs.

    def _members(self) -> tuple[dict[int, int], dict[int, int]]:
        """Those that can take part, worker -> share; and the late, if those are too few."""
        ready = {w: s for w, s in self.X._holders.ready().items() if w in self.given}
        late = {w: s for w, s in ready.items() if w in self.out}
        return {w: s for w, s in ready.items() if w not in late}, late

    def _ask(
        self,
        body: Any,
        args: tuple[Any, ...],
        holders: Mapping[int, int],
        others: Mapping[int, int],
        least: int | None = None,
    ) -> AskRound:
        driver, X = self.driver, self.X

        def asks(id: int, worker: int, share: int) -> Task:
            return Task(driver.next_task(), id, worker, body, args)

        need = X.code.k if least is None else least
        key = X._holders.key
        round = AskRound(driver.next_round(), holders, asks, self.late, need, key, others)
        driver.run(round, None, self._supply)
        self._note(round, round.late)
        return round

    def _status(self) -> dict[int, int]:
        """Ask everybody how far it is; returns who takes part from now on, with its share."""
        while True:
            for worker in list(self.driver.roster.kept):  # who came, or stood by when one was lost
                self._supply(worker)
            asked = self._ask(status, (self.key,), *self._members())
            self.seen |= {w: _Status(*answer) for w, answer in asked.answers.items()}
            ready = self.X._holders.ready()
            # A connection goes by the loopback alone where all were on one host at the beginning.
            here = {self.seen[w].host for w in asked.answers}
            members = {w: ready[w] for w in sorted(asked.answers) if w in ready}
            if not self.everywhere and len(here) > 1:
                common = self.seen[min(members)].host
                members = {w: s for w, s in members.items() if self.seen[w].host == common}
            if len(members) >= self.X.code.k:
                self.out -= members.keys()
                return members

    def _check_moving(self, members: Mapping[int, int], newest: int) -> None:
        """Raise OutOfTouch where all have answered, and nothing was computed for too long."""
        last, rows = self.before
        read = sum(state.read for state in self.seen.values())
        if newest > self.reached or (newest == last and read > rows):
            self.idle = 0.0
        if self.idle >= self.driver.limit:
            raise OutOfTouch(newest, self.idle, sorted(members))
        self.before = newest, read

    def _plan(self, epoch: int, members: Mapping[int, int], newest: int) -> tuple[MeshPlan, int]:
        """The plan, and the share whose holder is sent w0 (-1: nobody)."""
        seen = {share: self.seen[worker] for worker, share in members.items()}
        windows = self.laid.windows(sorted(seen)).work
        owners = tuple(s for s in sorted(seen) if seen[s].t == newest >= 0)
        start = -1 if owners else min(windows)
        owners = owners or (start,)
        others = tuple(s for s in sorted(seen) if s not in owners)
        leader = min([s for s in owners if s in windows] or windows)
        addresses = {share: one.address for share, one in seen.items()}
        self.shares |= seen.keys()
        plan = MeshPlan(epoch, max(0, newest), windows, leader, addresses, owners, others)
        return plan, start

    def _deliver(self, owners: Sequence[int]) -> tuple[int, NDArray[Any]] | None:
        """The newest vector that one of these has, the first if it answers; None: all are lost."""
        ready = self.X._holders.ready()
        others = {w: ready[w] for w in owners if w in ready}  # asked one by one, as it needs them
        with self.count.aside():
            answers = self._ask(deliver, (self.key,), {}, others, least=0).answers.values()
        return max(answers, key=itemgetter(0), default=None)

    def _note(self, round: Round, late: Sequence[int]) -> None:
        """Note who came and went; leave the late out for a while, the longer the oftener."""
        lost = [worker for worker in round.lost if worker in self.given]
        for all, some in zip(self.lists, (late, lost, round.joined), strict=True):
            all += some
        for worker in late:
            self.pauses[worker] = 2 * self.pauses.get(worker, LEAST_PAUSE / 2)
            self.out.add(worker)
        self.out &= self.driver.roster.kept.keys()
