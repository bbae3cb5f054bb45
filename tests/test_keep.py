"""Keep n workers: others are ordered for those that leave, on every engine, and never too often."""

from __future__ import annotations

import logging
import os
import signal
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import driver_of, examples, until

import kofn
from kofn import market
from kofn.delays import Announced, Change, PerUnit, Script
from kofn.delays.traces import Event as SpotEvent
from kofn.delays.traces import SpotTrace
from kofn.engines.base import Capabilities, Engine, Wrapped
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput, CannotDo, EngineUnavailable
from kofn.model import Event, Joined, Leaving, Lost, Record
from kofn.rounds.keep import CEILING, FIRST, LEAD, STEADY, Keeper
from kofn.rounds.roster import Roster

A = np.random.default_rng(1).standard_normal((120, 7))
SLOW = PerUnit(0.05)  # a product takes about a second


def times(log: list[Record], kind: str) -> list[float]:
    return [record.time for record in log if record.kind == kind]


# The keeper alone: it is told who is there and what time it is.


def kept(keeper: Keeper, roster: Roster, now: float, ids: list[int]) -> int:
    """Order what the keeper wants; return how many."""
    count = keeper.orders(roster, now)
    for _ in range(count):
        ids.append(len(ids))
        keeper.ordered.add(ids[-1])
    return count


def test_who_is_on_the_way_is_not_ordered_again() -> None:
    keeper, roster, ids = Keeper(4), Roster(range(3)), list(range(3))
    assert kept(keeper, roster, 0.0, ids) == 1
    assert kept(keeper, roster, 5.0, ids) == 0
    assert keeper.look == inf  # it comes or it does not: an event
    roster.note(Joined(6.0, 3))
    assert kept(keeper, roster, 6.0, ids) == 0
    roster.note(Lost(7.0, 0))
    assert kept(keeper, roster, 7.0, ids) == 1


def test_more_than_wanted_are_let_be() -> None:
    assert Keeper(2).orders(Roster(range(5)), 0.0) == 0


def test_who_leaves_is_replaced_before_it_is_gone_but_not_hours_before() -> None:
    keeper, roster, ids = Keeper(3), Roster(range(3)), list(range(3))
    roster.note(Leaving(0.0, 0, 1000.0))
    assert kept(keeper, roster, 0.0, ids) == 0
    assert keeper.look == 1000.0 - LEAD
    assert kept(keeper, roster, keeper.look, ids) == 1
    roster.note(Leaving(900.0, 1, 930.0))  # half a minute ahead: at once
    assert kept(keeper, roster, 900.0, ids) == 1
    roster.note(Leaving(901.0, 0, inf))  # both stay after all, and both are there
    roster.note(Leaving(901.0, 1, inf))
    assert kept(keeper, roster, 901.0, ids) == 0


def test_who_dies_as_soon_as_it_has_come_is_not_replaced_without_end() -> None:
    keeper, roster, ids = Keeper(5), Roster(range(5)), list(range(5))
    now, ordered = 0.0, 0
    while now < 100.0:
        for worker in list(roster.kept):
            roster.note(Lost(now, worker))
        ordered += kept(keeper, roster, now, ids)
        for worker in list(keeper.ordered):
            roster.note(Joined(now, worker))
        now = max(now + 0.01, min(keeper.look, now + 1.0))
    assert ordered == pytest.approx(5 + 100, abs=2)  # five at once, then one a second


def test_who_is_lost_long_after_it_came_has_not_come_in_vain() -> None:
    """Nobody looks between two rounds: of ten minutes' losses all are heard at once."""
    keeper, roster, ids = Keeper(2), Roster(range(2)), list(range(2))
    for now in range(0, 6000, 600):
        for worker in list(roster.kept):
            roster.note(Lost(float(now), worker))
        assert kept(keeper, roster, float(now), ids) == 2
        for worker in sorted(keeper.ordered):
            roster.note(Joined(float(now), worker))
        assert kept(keeper, roster, float(now), ids) == 0
    assert keeper.news is None


def test_newcomers_to_a_machine_that_will_go_are_not_ordered_without_end() -> None:
    """As on one machine that is told its end: whoever comes there is told it too."""
    keeper, roster, ids = Keeper(3), Roster(range(3)), list(range(3))
    for worker in range(3):
        roster.note(Leaving(0.0, worker, 120.0))
    for now in range(120):
        kept(keeper, roster, float(now), ids)
        for worker in sorted(keeper.ordered):
            roster.note(Joined(float(now), worker))
            roster.note(Leaving(float(now), worker, 120.0))
    assert len(ids) <= 3 + 3 + 7  # there at first, ordered at once, and 1, 2, 4, … seconds later
    assert keeper.news is not None
    assert "it came to a machine that will be gone" in keeper.news.why
    for worker in ids[1:]:
        roster.note(Lost(121.0, worker))
    roster.note(Leaving(121.0, 0, inf))  # it was a false alarm for one
    assert kept(keeper, roster, 200.0, ids) == 1
    roster.note(Joined(201.0, ids[-1]))  # and this one is elsewhere: as usual again
    assert kept(keeper, roster, 201.0, ids) == 1


def test_after_a_failure_one_at_a_time_and_ever_more_rarely() -> None:
    keeper, roster, ids = Keeper(6), Roster(range(4)), list(range(4))
    assert kept(keeper, roster, 0.0, ids) == 2
    now, tries, told = 0.5, [], []
    while now < 1000.0:
        for worker in list(keeper.ordered):
            roster.note(Lost(now, worker, (), "no room."))
        if kept(keeper, roster, now, ids):
            tries.append(now)
        if keeper.news is not None:
            told.append(keeper.news)
            keeper.news = None
        now = now + 0.001 if keeper.ordered else keeper.look
    gaps = [b - a for a, b in pairwise([0.5, *tries])]
    doubled = [min(CEILING, FIRST * 2**i) for i in range(len(gaps))]
    assert gaps == pytest.approx(doubled, abs=0.01)
    (record,) = told
    assert record.kind == "refused"
    assert "keep=6" in record.why
    assert "4 are live, and no other can be had (no room)." in record.why
    # As soon as one comes, all that are missing are ordered; and the next trouble is told again.
    (worker,) = keeper.ordered or {ids[-1]}
    keeper.ordered.add(worker)
    roster.unborn.pop(worker, None)
    roster.note(Joined(now, worker))
    assert kept(keeper, roster, now, ids) == 1
    roster.note(Joined(now, ids[-1]))
    assert kept(keeper, roster, now, ids) == 0
    keeper.refused(roster, now, -1, "")
    assert keeper.news is not None
    assert "(it was lost before it came)" in keeper.news.why


@given(data=st.data(), keep=st.integers(1, 30))
@examples(60)
def test_whatever_happens_the_limits_hold_and_in_the_end_all_are_there(
    data: st.DataObject, keep: int
) -> None:
    keeper, roster, ids = Keeper(keep), Roster(range(keep)), list(range(keep))
    now, orders = 0.0, list[float]()

    def turn() -> None:
        before = keep - len(roster.kept) + len(roster.leaving) - len(keeper.ordered)
        count = kept(keeper, roster, now, ids)
        assert count <= max(0, before) or keeper.ordered
        orders.extend([now] * count)
        missing = keep - len(roster.kept) - len(keeper.ordered)
        assert missing <= 0 or keeper.ordered or keeper.look > now or roster.leaving

    kinds = st.sampled_from(["lose", "leave", "stay", "come", "fail", "raise", "wait", "look"])
    for kind in data.draw(st.lists(kinds, max_size=60)):
        live, coming = sorted(roster.kept), sorted(keeper.ordered)
        if kind == "lose" and live:
            roster.note(Lost(now, data.draw(st.sampled_from(live))))
        elif kind in ("leave", "stay") and live:
            deadline = inf if kind == "stay" else now + data.draw(st.floats(0, 2 * LEAD))
            roster.note(Leaving(now, data.draw(st.sampled_from(live)), deadline))
        elif kind == "come" and coming:
            roster.note(Joined(now, coming[0]))
        elif kind == "fail" and coming:
            roster.note(Lost(now, coming[0]))
        elif kind == "raise":
            keeper.refused(roster, now, -1, "no")
        elif kind == "look" and keeper.look < inf:
            now = max(now, keeper.look)
        else:
            now += data.draw(st.floats(0, 20))
        turn()
    rate = max(1.0, keep / STEADY)
    for i, first in enumerate(orders):
        for j in range(i + keep, len(orders)):
            assert j - i + 1 <= keep + (orders[j] - first) * rate + 1e-6
    # From now on whoever is ordered comes.
    for _ in range(10 * keep + 10):
        for worker in sorted(keeper.ordered):
            roster.note(Joined(now, worker))
        turn()
        if keeper.look < inf:
            now = max(now, keeper.look)
    assert len(roster.kept) >= keep


# Exactly, on the virtual engine.


class Announcing(Wrapped):
    """An engine that also says what it was told to, each at its time."""

    def __init__(self, engine: Engine, *said: Event) -> None:
        super().__init__(engine)
        self.said = sorted(said)

    def events(self, timeout: float) -> list[Event]:
        if self.said:
            timeout = min(timeout, max(0.0, self.said[0].time - self.now()))
        events = self.engine.events(timeout)
        while self.said and self.said[0].time <= self.now():
            events.append(self.said.pop(0))
        return events


def multiply(cluster: kofn.Cluster, rounds: int, k: int = 3) -> kofn.CodedMatrix:
    """So many products, all right."""
    X = cluster.encode(A, k=k)
    for i in range(rounds):
        w = np.arange(7.0) + i
        assert np.allclose(X @ w, A @ w)
    return X


def test_losses_are_made_up_for_at_once() -> None:
    losses = [0.5, 0.5, 1.5, 3.5, 9.0]
    script = Script(tuple(Change(time, -1) for time in losses))
    with kofn.connect(VirtualEngine(6, membership=script, delays=SLOW, seed=3), keep=6) as cluster:
        multiply(cluster, 20)
        log = cluster.log
        assert times(log, "lost") == losses
        assert times(log, "ordered") == losses
        assert times(log, "joined") == losses
        assert len(cluster.workers) == 6
        first = next(record for record in log if record.kind == "ordered")
        assert first.why == "keep=6; 4 live, 0 leaving, 0 ordered"


def test_a_newcomer_takes_part_before_the_one_that_leaves_is_gone() -> None:
    engine = VirtualEngine(4, membership=Script((Change(60.0, 1),)), delays=SLOW)
    notice = Leaving(30.0, 1, 60.0, "spot")
    with kofn.connect(Announcing(engine, notice), keep=4) as cluster:
        X = cluster.encode(A, k=2, n=5)
        read = []
        while engine.now() < 70.0:
            X @ np.ones(7)
            read.append((engine.now(), set(X.report.rows_read)))
        ordered = [record for record in cluster.log if record.kind == "ordered"]
        assert [(record.time, record.worker) for record in ordered] == [(30.0, 4)]
        assert ordered[0].why == "keep=4; 4 live, 1 leaving, 0 ordered"
        assert any(4 in who for time, who in read if time < 60.0)
        assert cluster.workers == (0, 2, 3, 4)


def test_with_notices_the_newcomer_has_the_share_in_time() -> None:
    """Nobody stands by: whom `keep` orders at the notice takes the place of the one that leaves."""
    losses = Announced(Script((Change(40.0, 3), Change(80.0, 0))), seconds=30.0)
    engine = VirtualEngine(6, delays=PerUnit(0.01), membership=losses)
    with kofn.connect(engine, keep=6) as cluster:
        X, topped_up = cluster.encode(A, k=3), 0
        while engine.now() < 90.0:
            X @ np.ones(7)
            topped_up += X.report.rows_topped_up
        assert topped_up == 0
        assert times(cluster.log, "ordered") == [10.0, 50.0]
        assert cluster.workers == (1, 2, 4, 5, 6, 7)
        assert sorted(X.shares.values()) == list(range(6))


def test_they_are_ordered_between_rounds_too() -> None:
    with kofn.connect(VirtualEngine(3), keep=3) as cluster:
        cluster.lose(0)
        assert cluster.workers == (1, 2, 3)
        cluster.engine.lose(1)
        cluster.wait_for(3)
        assert cluster.workers == (2, 3, 4)


def test_fewer_than_wanted_are_made_up_for_when_connecting() -> None:
    with kofn.connect("virtual", workers=2, keep=5) as cluster:
        assert len(cluster.workers) == 5
        assert cluster.keep == 5
        assert "5 workers, keep=5" in repr(cluster)


def test_a_worker_of_the_users_own_counts() -> None:
    with kofn.connect(VirtualEngine(3), keep=3) as cluster:
        cluster.engine.lose(0)
        assert cluster.join() == 3  # asked for before the loss is known
        assert cluster.workers == (1, 2, 3)
        assert cluster.join() == 4  # and more than that are let be
        assert len(cluster.workers) == 4
        assert len(times(cluster.log, "ordered")) == 2


def test_shares_and_slots_are_made_for_those_to_come() -> None:
    class Slow(Wrapped):
        """Nobody comes before the products begin."""

        def join(self) -> int:
            raise EngineUnavailable("not yet.")

    with kofn.connect(Slow(VirtualEngine(4)), keep=6) as cluster:
        assert multiply(cluster, 1, 3).code.n == 6
        assert cluster.encode(A).code.k == 3
        assert cluster.parts(A, kofn.FractionalRepetition(2)).assignment.n == 6


@pytest.mark.parametrize("how", ["raises", "never comes"])
def test_when_machines_cannot_be_had_it_is_said_once_and_tried_rarely(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(VirtualEngine):
        calls: ClassVar[list[float]] = []

        def join(self) -> int:
            self.calls.append(self.now())
            if how == "raises":
                raise EngineUnavailable("the cloud has no machine left.")
            worker = next(self._ids)
            self._at(self._now + 0.25, lambda: Lost(self._now, worker, (), "no machine is left"))
            return worker

    Full.calls = []
    script = Script((Change(10.0, 2), Change(10.0, 3)))
    engine = Full(6, membership=script, delays=SLOW)
    with kofn.connect(engine, keep=6) as cluster, caplog.at_level(logging.WARNING, "kofn"):
        X = cluster.encode(A, k=3)
        rounds = 0
        while engine.now() < 610.0:
            assert np.allclose(X @ np.ones(7), A @ np.ones(7))
            rounds += 1
        assert rounds > 300  # as fast as four workers are: nobody was waited for
        assert len(cluster.workers) == 4
        # 1, 2, 4, … 32 seconds, then once a minute; at the first attempt two were to be had.
        assert 14 <= len(engine.calls) <= 16
        assert max(b - a for a, b in pairwise(engine.calls)) <= CEILING + 2.0
        (refused,) = [record for record in cluster.log if record.kind == "refused"]
        assert "left). It is tried again, in the end once a minute." in refused.why
        assert [record.message for record in caplog.records] == [refused.why]


def test_it_goes_on_when_there_is_room_again() -> None:
    class Hour(VirtualEngine):
        """Machines cannot be had in the first hour."""

        def join(self) -> int:
            if self.now() < 3600.0:
                raise RuntimeError("whatever an engine may raise")
            return super().join()

    with kofn.connect(Hour(5, delays=PerUnit(1.0)), keep=6) as cluster:
        X = cluster.encode(A, k=2)
        while cluster.engine.now() < 3700.0:
            X @ np.ones(7)
        assert len(cluster.workers) == 6
        (joined,) = times(cluster.log, "joined")
        assert 3600.0 <= joined <= 3660.0
        assert len(times(cluster.log, "refused")) == 1


def test_a_round_that_waits_for_joiners_gets_them() -> None:
    script = Script(tuple(Change(0.001, worker) for worker in range(4)))
    engine = VirtualEngine(6, membership=script, delays=PerUnit(1.0))
    with kofn.connect(engine, keep=6, wait=60.0) as cluster:
        multiply(cluster, 3, k=4)
        assert len(cluster.workers) == 6


# What is refused.


@pytest.mark.parametrize("keep", [0, -1, 2.5, "6", True])
def test_a_wrong_number_is_refused(keep: Any) -> None:
    with pytest.raises(BadInput, match=r"keep .* from 1 to 1000000; got .* Leave it out"):
        kofn.connect("virtual", keep=keep)


def test_an_engine_that_cannot_start_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cannot = Capabilities(processes=False, can_lose=True, can_join=False)
    engine = Wrapped(VirtualEngine(3))
    engine.capabilities = cannot
    with pytest.raises(CannotDo, match=r"keep=4 needs an engine that can start workers; engine"):
        kofn.connect(engine, keep=4)
    engine.events(0.0)  # it is the user's, and stays open

    class Fixed(VirtualEngine):
        closed = False

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.capabilities = cannot

        def close(self) -> None:
            Fixed.closed = True

    monkeypatch.setattr("kofn.engines.known.find", lambda name: Fixed)
    with pytest.raises(CannotDo, match="keep=4"):
        kofn.connect("fixed", keep=4)
    assert Fixed.closed


def test_a_market_and_keep_do_not_go_together() -> None:
    trace = SpotTrace(tuple(SpotEvent(0.0, True, str(i)) for i in range(3)))
    with (
        kofn.connect(VirtualEngine(3), keep=3) as cluster,
        pytest.raises(
            BadInput, match=r"a market decides which workers leave .* Connect without keep\."
        ),
    ):
        market.Market(cluster, trace, None, 3)


def test_without_keep_nobody_is_ordered() -> None:
    with kofn.connect(
        VirtualEngine(3, membership=Script((Change(0.5, 1),)), delays=SLOW)
    ) as cluster:
        multiply(cluster, 3, k=2)
        assert cluster.keep is None
        assert cluster.workers == (0, 2)
        assert not times(cluster.log, "ordered")


# Real kills.


@pytest.mark.engine
def test_a_join_that_takes_long_makes_nobody_wait() -> None:
    """A launcher that is stopped forks nobody; products go on, and it is counted as on its way."""
    with kofn.connect("local", workers=4, keep=4) as cluster:
        X = multiply(cluster, 1, k=2)
        launcher = driver_of(cluster).engine._transport.launcher  # type: ignore[attr-defined]
        os.kill(launcher.process.pid, signal.SIGSTOP)
        try:
            pid = cluster.engine.pid(cluster.workers[0])
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: len(cluster.workers) == 3, "the loss")
            for _ in range(20):
                assert np.allclose(X @ np.ones(7), A @ np.ones(7))
            assert len(times(cluster.log, "ordered")) == 1
        finally:
            os.kill(launcher.process.pid, signal.SIGCONT)
        cluster.wait_for(4)


@pytest.mark.engine
def test_a_cluster_is_closed_while_somebody_is_on_the_way() -> None:
    cluster = kofn.connect("local", workers=2, keep=4)
    assert len(driver_of(cluster).keeper.ordered) == 2
    cluster.close()
    cluster.close()
    assert "closed" in repr(cluster)


class Fatal(Wrapped):
    """An engine on which whoever joins dies at once, as where its share is too large for it."""

    name: ClassVar[str] = "fatal"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.doomed: list[int] = []

    def events(self, timeout: float) -> list[Event]:
        doomed, self.doomed = self.doomed, []
        for worker in doomed:
            self.engine.lose(worker)
        found = self.engine.events(min(timeout, 0.1))
        self.doomed = [event.worker for event in found if type(event) is Joined]
        return list(found)


@pytest.mark.parametrize("wait", [5.0, 30.0])
def test_a_round_does_not_wait_for_ever_for_workers_that_come_and_die(
    wait: float, caplog: pytest.LogCaptureFixture
) -> None:
    with kofn.connect(Fatal(VirtualEngine(4)), keep=4, wait=wait) as cluster:
        X = multiply(cluster, 1, k=3)
        for worker in (0, 1):
            cluster.lose(worker)
        began = cluster.engine.now()
        with pytest.raises(kofn.TooFewWorkers):
            X @ np.ones(7)
        # One a second comes and dies; ten in vain are two too many of each worker that is kept.
        assert wait <= cluster.engine.now() - began <= max(wait, 12.0) + 2.0
        (record,) = (record for record in cluster.log if record.kind == "refused")
    assert "the last 8 that came were lost within 5 s" in record.why
    assert caplog.text.count("were lost within 5 s") == 1


def test_workers_that_come_and_die_disturb_nobody_who_is_enough() -> None:
    """Two of four are enough, and take longer than ten newcomers live."""
    with kofn.connect(Fatal(VirtualEngine(4, delays=SLOW)), keep=4, wait=5.0) as cluster:
        X = cluster.encode(np.repeat(A, 20, axis=0), k=2)
        for worker in (0, 1):
            cluster.lose(worker)
        assert np.allclose(X @ np.ones(7), np.repeat(A, 20, axis=0) @ np.ones(7))
        assert len(times(cluster.log, "ordered")) > 12


@pytest.mark.parametrize("keep", [2, 3])
def test_workers_that_are_all_too_slow_are_not_replaced_without_end(keep: int) -> None:
    """Tasks of 4 s, and who is silent for 3 s is ended: nobody will ever answer."""
    engine = VirtualEngine(keep, delays=PerUnit(0.2 * keep))
    with kofn.connect(engine, keep=keep, lost_after=3.0, limit=20.0, wait=5.0) as cluster:
        X = cluster.encode(np.ones((20, 3)), k=2)
        with pytest.raises(kofn.errors.Stalled, match="lost_after") as caught:
            X @ np.ones(3)
        # Each worker counts once: two for each that is kept, and those that are there, and one.
        ended = {record.worker for record in cluster.log if record.kind == "lost"}
        assert len(ended | {*caught.value.owing}) == 3 * keep + 1
    assert len(times(cluster.log, "ordered")) <= 4 * keep


def test_what_is_placed_while_nobody_is_live_waits_for_newcomers() -> None:
    def empty(wait: float) -> kofn.Cluster:
        changes = (Change(0.0, 0), Change(0.0, 1), Change(5.0, None))
        return kofn.connect(VirtualEngine(2, membership=Script(changes)), wait=wait)

    with empty(60.0) as cluster:
        assert np.allclose(cluster.encode(A) @ np.ones(7), A.sum(axis=1))
    with empty(60.0) as cluster:
        parts = cluster.parts(A, kofn.FractionalRepetition(1))
        assert np.allclose(parts.sum(lambda part, _: part.sum(axis=0)).value, A.sum(axis=0))
    with empty(1.0) as cluster, pytest.raises(kofn.TooFewWorkers, match=r"after waiting 1\.0 s"):
        cluster.encode(A)
