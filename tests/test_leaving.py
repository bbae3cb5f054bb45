"""Workers that announce their leaving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from typing import Any

import numpy as np
import pytest
from acting import Acting
from support import spread
from test_rounds_master import begun, reply, sent

import kofn
from kofn.delays import Announced, Change, PerUnit, Script, Spot
from kofn.delays.traces import Event as TraceEvent
from kofn.delays.traces import SpotTrace
from kofn.engines.protocol import MasterProtocol, Values, WorkerDown, WorkerLeaving, WorkerUp
from kofn.engines.virtual import VirtualEngine
from kofn.market import Market, script
from kofn.model import Joined, Leaving, Lost, ProductReport, Record, Stored
from kofn.report import timeline
from kofn.report.spans import lanes
from kofn.rounds.copying import SILENCE
from kofn.rounds.leaving import CLOCKS, GRACE, MARGIN, Departures, Due, Usual, in_time
from kofn.rounds.roster import Roster
from kofn.testing import Faults

GONE, FIRST = 35.03, 5.03  # 30 s after the notice, in the middle of a round
A = np.random.default_rng(0).standard_normal((1200, 20))
W, Z = np.ones(20), np.ones(1200)


# From a message to the roster.


def test_a_notice_becomes_an_event_on_the_masters_clock() -> None:
    master = MasterProtocol(Values())
    assert master.received(3, WorkerLeaving(30.0, "early"), 1.0) == []  # nobody knows it
    master.received(3, WorkerUp(), 2.0)
    assert master.received(3, WorkerLeaving(30.0, "spot"), 5.0) == [Leaving(5.0, 3, 35.0, "spot")]
    assert master.received(3, WorkerLeaving(inf), 6.0) == [Leaving(6.0, 3, inf)]


def test_the_roster_knows_who_leaves_and_when() -> None:
    roster = Roster([0, 1])
    roster.note(Leaving(1.0, 0, 31.0))
    roster.note(Leaving(1.0, 1, 31.0))
    roster.note(Leaving(1.0, 7, 31.0))  # not live
    assert roster.leaving == {0: 31.0, 1: 31.0}
    roster.note(Leaving(2.0, 0, inf))  # it stays after all
    roster.note(Lost(3.0, 1))
    roster.note(Joined(4.0, 2))
    assert roster.leaving == {}


def test_the_lost_are_told_once() -> None:
    master = MasterProtocol(Values())
    master.received(3, WorkerUp(), 2.0)
    master.received(3, WorkerDown("gone"), 3.0)
    assert master.received(3, WorkerLeaving(30.0), 4.0) == []


# The rule, and what becomes of one whose time is over.


def test_a_round_must_be_likely_to_end_in_time() -> None:
    assert in_time(10.0, 9.9, 0.0)  # nothing is known of how long it takes
    assert not in_time(10.0, 10.0, 0.0)
    assert in_time(10.0, 7.9, 1.0)
    assert not in_time(10.0, 10.0 - MARGIN, 1.0)
    usual = Usual()
    for seconds in (3.0, 1.0, 2.0):
        usual.learn(seconds)
    assert usual.seconds == 3.0
    assert usual.too_soon({1: 6.0, 2: 6.1}, 0.0) == {1}
    for _ in range(8):
        usual.learn(1.0)
    assert usual.seconds == 1.0  # what was long ago is forgotten


def test_who_is_silent_after_its_deadline_is_asked_and_then_ended() -> None:
    roster = Roster([0, 1])
    departures = Departures(roster)
    assert departures.next() == inf
    roster.note(Leaving(1.0, 0, 10.0))
    assert (list(departures.due(5.0)), departures.next()) == ([], 10.0)
    assert list(departures.due(10.0)) == [Due(0, over=True)]
    assert (list(departures.due(11.0)), departures.next()) == ([], 10.0 + GRACE)
    assert list(departures.due(12.0 + GRACE)) == [Due(0, ask=True)]
    assert (list(departures.due(13.0 + GRACE)), departures.next()) == ([], 12.0 + 2 * GRACE)
    assert list(departures.due(12.0 + 2 * GRACE)) == [Due(0, end=True)]
    assert (list(departures.due(1e9)), departures.next()) == ([], inf)
    roster.note(Lost(20.0, 0))
    assert list(departures.due(1e9)) == []


def test_who_says_something_when_asked_stays() -> None:
    roster = Roster([0, 1])
    departures = Departures(roster)
    roster.note(Leaving(1.0, 0, 10.0))
    late = 10.0 + GRACE
    assert departures.returned([Stored(late, 0, "other")]) == []  # it was not asked yet
    assert list(departures.due(late)) == [Due(0, over=True, ask=True)]
    assert departures.returned([Stored(late, 1, "x"), Lost(late, 0)]) == []
    (back,) = departures.returned([Stored(late, 0, "x")])
    assert (back.worker, back.deadline) == (0, inf)
    roster.note(back)
    assert departures.next() == inf
    roster.note(Leaving(50.0, 0, 60.0))  # and once more
    assert list(departures.due(60.0)) == [Due(0, over=True)]


# A round: events in, commands out.


def test_a_notice_in_mid_round_asks_others_if_it_would_not_end_in_time() -> None:
    round, _ = begun()
    round.usual = 4.0
    assert sent(round.on(Leaving(11.0, 3, 10.0 + 2 * 4.0 + 0.1))) == []  # from 10 on it has 8 s
    asked = sent(round.on(Leaving(11.0, 3, 17.0)))
    assert (
        asked == [(1, ((0, 100),)), (2, ((0, 100),))]
        or sum(last - first for _, runs in asked for first, last in runs) == 200
    )
    assert sent(round.on(Leaving(11.5, 3, 17.0))) == []  # asked once
    for worker in (0, 1, 2):
        round.on(reply(round, worker))
    assert not round.done
    round.on(reply(round, 3))  # what it says still counts
    assert round.done
    assert round.lost == []


def test_at_its_deadline_others_do_what_it_owes() -> None:
    round, _ = begun()
    assert sent(round.on(Leaving(11.0, 3, 17.0))) == []  # nobody knows how long a round takes
    assert len(sent(round.on(Leaving(17.0, 3, 17.0)))) > 0
    assert sent(round.on(Lost(18.0, 3))) == []  # nothing is asked twice


def test_a_notice_that_is_taken_back_counts_on_the_worker_again() -> None:
    round, _ = begun()
    round.on(Leaving(11.0, 3, 11.0))
    assert 3 in round._slow
    round.on(Stored(12.0, 3, "other"))
    assert 3 in round._slow  # whatever it says
    round.on(Leaving(13.0, 3, inf))
    assert 3 not in round._slow


def test_who_has_stored_the_share_of_one_that_goes_takes_its_place() -> None:
    round, _ = begun(n=2)
    assert sent(round.on(Leaving(11.0, 1, 11.0))) == []  # nobody else can stand in
    assert sent(round.on(Stored(12.0, 9, "share", slot=1))) == [(9, ((0, 400),))]
    round.on(Lost(13.0, 1))
    assert round.lost == []  # it had no part in it any more


@pytest.mark.parametrize("end", [Lost(13.0, 1), Leaving(13.0, 1, 13.0)])
def test_who_is_next_takes_over_at_the_end(end: Any) -> None:
    round, _ = begun(n=2)
    assert sent(round.on(Leaving(11.0, 1, 20.0))) == []
    assert sent(round.on(Stored(12.0, 9, "share", slot=1))) == []  # the other has time enough
    assert sent(round.on(end)) == [(9, ((0, 400),))]
    round.on(reply(round, 0))
    round.on(reply(round, 9))
    assert round.done


def test_who_was_next_and_is_lost_is_forgotten() -> None:
    round, _ = begun(n=2)
    round.on(Leaving(11.0, 1, 20.0))
    round.on(Stored(12.0, 9, "share", slot=1))
    round.on(Lost(12.5, 9))
    assert sent(round.on(Lost(13.0, 1))) == []
    assert round.missing == 1


# Whole runs in virtual time.


def run(
    changes: Sequence[Change],
    *,
    n: int = 12,
    k: int = 6,
    rounds: int = 400,
    back: bool = False,
    X: Callable[[kofn.Cluster], kofn.CodedMatrix] | None = None,
) -> tuple[list[ProductReport], list[float], list[Record]]:
    """Products of a tenth of a second each: their reports, when each ended, and the log."""
    engine = VirtualEngine(n, delays=PerUnit(1e-3), membership=Script(tuple(changes)))
    reports, ends = [], []
    with kofn.connect(engine) as cluster:
        matrix = cluster.encode(A, k) if X is None else X(cluster)
        exact = matrix.toarray() if X is not None else A
        for _ in range(rounds):
            if back:
                np.testing.assert_allclose(matrix.T @ Z, exact.T @ Z, atol=1e-9)
            else:
                np.testing.assert_allclose(matrix @ W, exact @ W, atol=1e-9)
            reports.append(matrix.report)
            ends.append(engine.now())
        return reports, ends, cluster.log


NOTICE = (Change(FIRST, 3, GONE), Change(GONE, 3))
both_ways = pytest.mark.parametrize("back", [False, True], ids=["X @ w", "X.T @ z"])


@both_ways
def test_with_a_notice_no_row_is_topped_up_and_no_round_is_slow(back: bool) -> None:
    reports, ends, _ = run(NOTICE, back=back)
    usual = median(report.seconds["total"] for report in reports)
    (went,) = (i for i, end in enumerate(ends) if end - reports[i].seconds["total"] <= GONE < end)
    assert 3 in reports[went].lost or 3 not in reports[went].live
    assert [report.rows_topped_up for report in reports] == [0] * len(reports)
    assert max(report.seconds["total"] for report in reports) <= 1.2 * usual
    # It had a window until shortly before its end.
    assert all(3 in r.live for r, end in zip(reports, ends, strict=True) if end < GONE - 0.3)


@pytest.mark.slow
@both_ways
def test_a_notice_that_comes_to_nothing_costs_nothing(back: bool) -> None:
    plain = run((), back=back)
    for stays in (GONE - 1.0, 10.0):
        told = run((Change(FIRST, 3, GONE), Change(stays, 3, inf)), back=back)
        assert told[1] == plain[1]
        assert [r.live for r in told[0]] == [r.live for r in plain[0]]


def test_one_that_is_there_after_its_time_is_asked_and_counted_on_again() -> None:
    reports, ends, log = run((Change(FIRST, 3, 10.03),), rounds=200)
    out = [end for r, end in zip(reports, ends, strict=True) if 3 not in r.live]
    assert 10.03 - 0.3 < out[0] < out[-1] < 10.03 + GRACE + 0.3
    assert [r.kind for r in log if r.kind in ("leaving", "staying", "lost")] == [
        "leaving",
        "staying",
    ]
    assert 3 in reports[-1].live


@pytest.mark.parametrize(("back", "slow", "topped_up"), [(False, 0.117, 100), (True, 0.155, 600)])
def test_a_loss_without_notice_is_as_it_was_before_there_were_any(
    back: bool, slow: float, topped_up: int
) -> None:
    # Measured before notices were known.
    reports, ends, _ = run((Change(5.03, 3),), rounds=80, back=back)
    times = [0.1] * 50 + [slow] + [0.11] * 29
    assert [r.seconds["total"] for r in reports] == pytest.approx(times, abs=1e-9)
    assert [r.rows_topped_up for r in reports] == [0] * 50 + [topped_up] + [0] * 29
    assert ends == pytest.approx(np.cumsum(times).tolist(), abs=1e-9)


@both_ways
def test_a_free_worker_has_the_share_before_the_deadline(back: bool) -> None:
    joined = Change(1.0, None)  # worker 12: no share is free
    reports, ends, log = run((joined, *NOTICE), back=back)
    assert [r.seconds["total"] for r in reports] == pytest.approx([0.1] * len(reports))
    assert [r.rows_topped_up for r in reports] == [0] * len(reports)
    stored = [r.time for r in log if r.kind == "stored" and r.worker == 12]
    assert len(stored) == 1
    assert FIRST <= stored[0] < FIRST + 0.2
    assert all(len(r.live) == 12 for r in reports)
    assert all(12 in r.live for r, end in zip(reports, ends, strict=True) if end > FIRST + 0.3)


def test_a_joiner_takes_the_share_of_one_that_leaves() -> None:
    reports, _, _ = run((*NOTICE, Change(20.0, None)))
    assert [r.rows_topped_up for r in reports] == [0] * len(reports)
    assert [r.seconds["total"] for r in reports] == pytest.approx([0.1] * len(reports))
    assert {len(r.live) for r in reports} == {12}


def test_who_shared_a_share_gets_a_free_one_when_both_stay() -> None:
    changes = (Change(1.0, None), Change(2.0, 3, 30.0), Change(4.0, 3, inf), Change(6.0, 5))
    reports, _, _ = run(changes, rounds=100)
    assert reports[-1].live == (0, 1, 2, 3, 4, 12, 6, 7, 8, 9, 10, 11)  # in the order of shares
    assert sum(r.rows_topped_up > 0 for r in reports) == 1


def updated(cluster: kofn.Cluster) -> kofn.CodedMatrix:
    X = cluster.encode(A, 6)
    X += kofn.low_rank(np.ones((1200, 2)), np.ones((20, 2)))
    return X


@both_ways
def test_a_share_of_an_updated_matrix_is_copied_from_the_one_that_leaves(back: bool) -> None:
    reports, _, log = run((Change(1.0, None), *NOTICE), X=updated, back=back)
    assert [r.rows_topped_up for r in reports] == [0] * len(reports)
    rounds = {r.round for r in reports}
    fetched = [
        r for r in log if r.kind == "send" and r.round not in rounds and FIRST < r.time < GONE
    ]
    assert {(r.worker, r.rows) for r in fetched} == {(3, 200)}  # one share, from its holder
    assert 12 in reports[-1].live


def test_a_share_that_cannot_be_copied_is_rebuilt_from_others() -> None:
    # A share of 200 rows takes 0.2 s to fetch: it is gone before that.
    changes = (Change(1.0, None), Change(5.03, 3, 5.2), Change(5.2, 3))
    reports, _, log = run(changes, X=updated, rounds=100)
    assert 12 in reports[-1].live
    rounds = {r.round for r in reports}
    fetched = {r.worker for r in log if r.kind == "send" and r.round not in rounds and r.time > 5}
    assert 3 in fetched
    assert len(fetched) > 1


@pytest.mark.parametrize("known", [False, True])
def test_a_product_waits_for_no_copy_from_one_that_is_silent(known: bool) -> None:
    """It is frozen, then told to leave: its share is rebuilt from others."""
    engine = Acting(VirtualEngine(6, delays=PerUnit(1e-3)))
    with kofn.connect(engine) as cluster:
        X = cluster.encode(A[:, :8], 3)
        X += kofn.low_rank(np.ones((1200, 1)), np.ones((8, 1)))
        cluster.announce(1, 60.0)
        assert cluster.log[-1].kind == "leaving"
        engine.frozen[1] = []
        for _ in range(3 * known):
            X @ np.ones(8)
        joined, began = cluster.join(), engine.now()
        for _ in range(2):
            assert np.allclose(X @ np.ones(8), (A[:, :8] + 1) @ np.ones(8))
        assert X.shares[joined] == 1
        # Two products of 0.24 s, fetches that take as long, and waits for who is late.
        assert engine.now() - began < 1.0 + (not known) * SILENCE


def test_everybody_leaving_is_no_reason_to_stop() -> None:
    changes = [Change(1.0, worker, 4.0 + worker) for worker in range(12)]
    reports, _, _ = run(changes, rounds=40)
    assert sum(len(r.live) for r in reports) >= 39 * 6


# Sums, iterations, sequences.


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


@pytest.mark.parametrize("code", [kofn.FractionalRepetition(2), kofn.Uncoded()])
@pytest.mark.parametrize("joins", [False, True])
def test_sums_go_on(code: kofn.codes.SumCode, joins: bool) -> None:
    changes = [Change(1.0, None)] * joins + [Change(2.03, 3, 8.03), Change(8.03, 3)]
    engine = VirtualEngine(6, delays=PerUnit(0.1), membership=Script(tuple(changes)))
    with kofn.connect(engine) as cluster:
        parts = cluster.parts(A, code)
        seconds = []
        for _ in range(100):
            try:
                found = parts.sum(total)
            except kofn.TooFewWorkers:
                assert not joins
                assert isinstance(code, kofn.Uncoded)
                assert engine.now() >= 8.03
                return
            assert found.exact
            np.testing.assert_allclose(found.value, A.sum(axis=0), atol=1e-9)
            seconds.append(found.report.seconds["total"])
        assert engine.now() > 9
        assert joins or isinstance(code, kofn.FractionalRepetition)
        # Two copies are summed from both ends: one that is alone takes twice as long.
        assert max(seconds) <= (1.2 if joins else 2.2) * min(seconds)


def same(y: Any) -> Any:
    return y


@pytest.mark.parametrize("joins", [False, True])
def test_an_iteration_leaves_out_who_goes_before_it_is_gone(joins: bool) -> None:
    changes = [Change(0.5, None)] * joins + [Change(1.03, 3, 4.03), Change(4.03, 3)]
    engine = VirtualEngine(6, delays=PerUnit(0.1), membership=Script(tuple(changes)))
    P = np.roll(np.eye(60), 1, axis=0)
    with kofn.connect(engine) as cluster:
        X = cluster.encode(P, 3)
        start = np.arange(60.0)
        w = X.iterate(same, start, rounds=80)
        np.testing.assert_allclose(w, np.roll(start, 80), atol=1e-9)
        assert engine.now() > 4.03
        assert 3 in X.report.lost
        assert not X.report.restarted
        if joins:
            assert len(X.report.live) == 6  # who had its share too has taken it over


def test_a_notice_taken_back_brings_a_worker_back_into_an_iteration() -> None:
    changes = (Change(1.03, 3, 4.03), Change(5.0, 3, inf))
    engine = VirtualEngine(6, delays=PerUnit(0.1), membership=Script(changes))
    P = np.roll(np.eye(60), 1, axis=0)
    with kofn.connect(engine) as cluster:
        X = cluster.encode(P, 3)
        w = X.iterate(same, np.arange(60.0), rounds=80)
        np.testing.assert_allclose(w, np.roll(np.arange(60.0), 80), atol=1e-9)
        assert engine.now() > 5.0
        assert 3 in X.report.live


@pytest.mark.parametrize("joins", [False, True])
def test_a_sequence_goes_on(joins: bool) -> None:
    changes = [Change(0.01, None)] * joins + [Change(0.2, 2, 0.5), Change(0.5, 2)]
    engine = VirtualEngine(6, delays=PerUnit(1e-5), membership=Script(tuple(changes)))
    B = np.random.default_rng(1).standard_normal((60, 40))
    with (
        kofn.connect(engine) as cluster,
        cluster.sequence(kofn.DIP(x=2, y=3, delay=3, lam=1)) as products,
    ):
        for _ in range(60):
            products.submit(B, B.T)
        for product in products:
            np.testing.assert_allclose(product, B @ B.T, atol=1e-6)
        assert engine.now() > 0.5
        if joins:
            assert set(products._slots) == {0, 1, 3, 4, 5, 6}


# Notices of scripts, markets and users; the log and its picture.


def test_each_loss_is_announced_ahead() -> None:
    losses = Script((Change(1.0, 0), Change(4.0, None), Change(5.0, -1), Change(6.0, 2)))
    found = list(Announced(losses, 3.0).changes(np.random.default_rng(0)))
    assert found == [
        Change(0.0, 0, 1.0),
        Change(1.0, 0),
        Change(2.0, -1, 5.0),
        Change(3.0, 2, 6.0),
        Change(4.0, None),
        Change(5.0, -1),
        Change(6.0, 2),
    ]
    with pytest.raises(kofn.BadInput, match="seconds"):
        Announced(losses, -1.0)


def test_a_worker_that_was_drawn_is_the_one_that_goes() -> None:
    with VirtualEngine(50, membership=Announced(Spot(2.0, 3.0), 5.0), seed=4) as engine:
        told: dict[int, float] = {}
        lost = 0
        for event in (e for _ in range(60) for e in engine.events(10.0)):
            if isinstance(event, Leaving):
                assert event.worker not in told
                told[event.worker] = event.deadline
            elif isinstance(event, Lost):
                assert told.pop(event.worker) == event.time
                lost += 1
        assert lost > 10


def test_a_market_announces_its_losses() -> None:
    events = [(0.0, True, "a"), (0.0, True, "b"), (50.0, True, "c"), (60.0, False, "c")]
    events += [(100.0, False, "a")]
    trace = SpotTrace(tuple(TraceEvent(*event) for event in events))
    steps = [(step.due, step.event.node, step.due < step.event.time) for step in script(trace, 30)]
    assert steps == [
        (0.0, "a", False),
        (0.0, "b", False),
        (50.0, "c", False),
        (50.0, "c", True),
        (60.0, "c", False),
        (70.0, "a", True),
        (100.0, "a", False),
    ]
    assert [step.due for step in script(trace, 0)] == [time for time, _, _ in events]
    changes = trace.membership(10.0, 30.0).changes(np.random.default_rng(0))
    assert Change(7.0, 0, 10.0) in list(changes)


def test_users_and_scripts_can_say_it() -> None:
    engine = Faults().leave(worker=1, seconds=30.0, round=2).on(VirtualEngine(4))
    with kofn.connect(engine) as cluster:
        X = cluster.encode(A, 2)
        for _ in range(3):
            X @ W
        cluster.announce(2, 60.0, "the scheduler says so")
        cluster.announce(1, inf)
        leaving = [(r.kind, r.worker) for r in cluster.log if r.kind in ("leaving", "staying")]
        assert leaving == [("leaving", 1), ("leaving", 2), ("staying", 1)]
        lane = lanes(cluster.log).lanes
        assert [len(one.leaving) for one in lane] == [0, 1, 1, 0]
        assert [len(one.staying) for one in lane] == [0, 1, 0, 0]
        with pytest.raises(kofn.BadInput, match="seconds"):
            cluster.announce(2, -1.0)
        with pytest.raises(kofn.UnknownWorker):
            cluster.announce(9, 1.0)


@pytest.mark.engine
def test_a_market_on_real_workers_announces_a_loss_before_it_comes() -> None:
    events = [*(TraceEvent(0.0, True, node) for node in "abc"), TraceEvent(1e4, False, "b")]
    trace = SpotTrace(tuple(events))
    with kofn.connect("local", workers=3) as cluster:
        X = cluster.encode(A, 2)
        spread(cluster, X)
        with Market(cluster, trace, None, shares=3, notice=4e3) as market:
            market.advance(7e3)
            market.settle()
            assert [(r.kind, r.worker) for r in cluster.log if r.kind == "leaving"] == [
                ("leaving", 1)
            ]
            np.testing.assert_allclose(X @ W, A @ W, atol=1e-9)
            assert 1 in X.report.live  # there is time enough
            market.advance(1e4)
            market.settle()
            assert market.killed == [1]
            np.testing.assert_allclose(X @ W, A @ W, atol=1e-9)
            assert cluster.workers == (0, 2)


def test_the_timeline_marks_notices() -> None:
    pytest.importorskip("matplotlib")
    engine = Faults().leave(worker=1, seconds=30.0, round=2).leave(1, inf, 3).on(VirtualEngine(4))
    with kofn.connect(engine) as cluster:
        X = cluster.encode(A, 2)
        for _ in range(4):
            X @ W
        labels = timeline(cluster.log).axes[0].get_legend_handles_labels()[1]
    assert {"leaving announced", "stays after all"} <= set(labels)


@pytest.mark.parametrize("notice", [False, True])
def test_a_slot_with_two_holders_counts_once_in_a_sum(notice: bool) -> None:
    """Four equal terms of 2: any two of them make the estimate 8."""
    script = (Change(0.1, None), *((Change(0.2, 0, 0.3),) if notice else ()))
    slow = PerUnit(1.0, {0: 5.0, 1: 6.0, 2: 20.0, 3: 20.0})
    with kofn.connect(VirtualEngine(4, delays=slow, membership=Script(script))) as cluster:
        parts = cluster.parts(np.ones((8, 1)), kofn.Uncoded(stream="whole"))
        two = parts.sum(lambda part, _: part.sum(), stop=kofn.first(2), weights="unbiased")
    assert two.value == pytest.approx(8.0, rel=1e-12)
    assert len(two.report.finished) == 2


def test_a_sum_that_lost_a_slot_lacks_workers_and_blames_no_code() -> None:
    script = (Change(0.1, None), Change(0.2, 0, 0.3), Change(7.0, 2))
    slow = PerUnit(1.0, {0: 5.0, 1: 6.0, 2: 20.0})
    with kofn.connect(VirtualEngine(3, delays=slow, membership=Script(script))) as cluster:
        parts = cluster.parts(np.ones((8, 1)), kofn.Uncoded(), n=3)
        with pytest.raises(kofn.errors.TooFewWorkers):
            parts.sum(lambda part, _: part.sum())


def test_a_deadline_that_another_machine_told_may_be_off() -> None:
    """Of rounds of a few milliseconds, one was begun so late that its worker was cut off in it."""
    assert in_time(10.0, 10.0 - CLOCKS - 3 * MARGIN * 1e-3, 1e-3)
    assert not in_time(10.0, 10.0 - MARGIN * 1e-3 - CLOCKS / 2, 1e-3)
