"""The state of a run, from logs written by hand and by the virtual engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_report import LOGS

import kofn
from kofn.delays import Change, Delays, Exponential, PerUnit, Script
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput
from kofn.events import TASK_KINDS, EventLog
from kofn.model import Record
from kofn.report import RunState, Span, lanes, uncoded
from kofn.report.counts import Series
from kofn.report.metrics import metrics
from kofn.report.uncoded import Asked, Compared, Pace
from kofn.report.words import headline, seconds
from kofn.simulation.draws import Common

SIX = range(6)


def state_of(log: list[Record], price: float | None = None, step: int | None = None) -> RunState:
    state = RunState("virtual", SIX, price)
    step = step or max(1, len(log))
    for i in range(0, len(log), step):
        state.take(log[i : i + step])
    return state


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("step", [1, 7, None])
def test_the_state_has_what_the_timeline_has(name: str, step: int | None) -> None:
    log = LOGS[name]()
    state, seen = state_of(log, step=step), lanes(log)
    ended = [
        (lane.worker, span.round, span.state, round(span.end - seen.start, 6))
        for lane in seen.lanes
        for span in lane.spans
        if span.state != "open"
    ]
    drawn = [(s[0], s[4], s[5], s[2]) for s in state.spans.items]
    # A log may begin with storing, which the timeline leaves out.
    shift = seen.start - (state.zero or 0.0)
    assert shift == pytest.approx(0.0, abs=1e-9)
    assert Counter(drawn) == Counter(ended)
    rows = {row[0]: row for row in state.rounds.items}
    assert [(r.id, int(r.done)) for r in seen.rounds] == [(id, rows[id][3]) for id in rows]
    head = state.head()
    assert head["lost"] == sum(lane.lost is not None for lane in seen.lanes)
    assert head["joined"] == sum(lane.joined is not None for lane in seen.lanes)
    assert head["rounds"] == sum(r.done for r in seen.rounds)
    json.dumps(state.whole(), allow_nan=False)


def test_a_log_in_pieces_gives_the_same_figures_as_at_once() -> None:
    log = LOGS["changes"]()
    whole, bit = state_of(log, 2.0).head(), state_of(log, 2.0, step=3).head()
    for name in ("rate", "story"):  # the rate is of the last looks at the log
        whole[name] = bit[name] = 0
    assert whole == pytest.approx(bit)


def test_a_cursor_has_what_is_new() -> None:
    log = LOGS["changes"]()
    state = RunState("virtual", SIX)
    cursor = state.cursor()
    gathered: dict[str, list[object]] = {name: [] for name in state.since()}
    for i in range(0, len(log), 5):
        state.take(log[i : i + 5])
        for name, items in state.since(cursor).items():
            gathered[name] += items
        cursor = state.cursor()
    assert gathered == state.since()
    assert all(not items for items in state.since(cursor).values())
    assert len(gathered["levels"]) >= 5


@pytest.mark.parametrize("most", [None, 0, 1, 3, 100])
def test_a_series_gives_what_was_added_since_and_no_more_than_asked(most: int | None) -> None:
    series, added = Series(7), list(range(20))
    for item in added:
        series.add(item)
        for count in range(item + 2):
            kept = added[max(count, item + 1 - 7) : item + 1]
            assert series.since(count, most) == kept[:most]


def test_rounds_that_are_not_followed_count_all_the_same() -> None:
    with kofn.connect(VirtualEngine(50)) as cluster:
        X = cluster.encode(np.eye(100), k=5)
        for i in range(40):
            X @ np.ones(100)
            if i == 20:
                cluster.lose(3)  # after the 21st round, before the next
        log = cluster.log
    whole, some = RunState("", range(50)), RunState("", range(50))
    whole.take(log)
    looked_at = some.take(log, most=1_000)
    assert looked_at < 0.35 * len(log)
    a, b = whole.head(), some.head()
    same = ("rounds", "lost", "used", "read", "topped_up", "live", "k", "p50", "p99")
    assert [a[name] for name in same] == [b[name] for name in same]
    assert 1 <= b["followed"] < a["followed"] == 40
    assert 21 in {row[0] for row in some.rounds.items}  # a loss is looked at
    assert "of 40, those that were followed" in " ".join(b["story"])


def test_a_stretch_of_which_the_marks_alone_are_known_counts_all_the_same() -> None:
    log = EventLog(LOGS["changes"]())
    whole, some, none = (RunState("virtual", SIX) for _ in range(3))
    whole.take(log)
    none.pass_over(log.marks)
    half = next(i for i, r in enumerate(log) if r.kind == "round" and r.round == 3) + 4
    some.take(list(log)[:half])  # in the middle of a round
    assert some.unsettled
    known = sum(r.kind not in TASK_KINDS for r in list(log)[:half])
    some.pass_over(list(log.marks)[known:])
    assert not some.unsettled
    same = ("rounds", "lost", "joined", "used", "read", "topped_up", "live", "k", "p50")
    want = [whole.head()[name] for name in same]
    for state in (some, none):
        assert [state.head()[name] for name in same] == want
    assert [state.head()["followed"] for state in (whole, some, none)] == [6, 2, 0]
    # What was open when the stretch began is not drawn, then or later.
    assert {span[4] for span in some.spans.items} == {1, 2}
    drawn = some.spans.count
    some.take([Record(9e9, "lost", -1, w, -1, 0) for w in SIX])
    assert some.spans.count == drawn


def test_wrong_replies_and_who_is_put_aside_are_told_with_the_reason() -> None:
    state = RunState("local", range(2))
    state.take([Record(1.0, kind, 3, 1, -1, 0, "a probe") for kind in ("wrong", "aside")])
    told = [event[3] for event in state.events.items]
    assert told[0] == "worker 1 sent a wrong reply, which was not used: a probe"
    assert told[1] == "worker 1 is put aside: a probe"


def test_bytes_by_worker_are_shown_until_it_is_lost() -> None:
    state = RunState("local", range(2))
    numbers = (("resident", 3e7), ("moved", 5e6))
    state.take([Record(1.0, "usage", -1, w, -1, 0, "", numbers) for w in range(2)])
    head, text = state.head(), metrics(state)
    assert (head["resident"], head["resident_most"], head["moved"]) == (6e7, 3e7, 1e7)
    assert 'kofn_worker_resident_memory_bytes{worker="1"} 30000000.0' in text
    assert 'kofn_worker_moved_bytes_total{worker="1"} 5000000.0' in text
    state.take([Record(2.0, "lost", -1, 1, -1, 0)])
    head, text = state.head(), metrics(state)
    assert (head["resident"], head["moved"]) == (3e7, 1e7)
    assert 'memory_bytes{worker="1"}' not in text
    assert 'moved_bytes_total{worker="1"}' in text
    assert [row.get("resident") for row in state.everyone()] == [3e7, None]


# Without coding.


def task(
    end: float, state: str = "used", asked: int = 10, came: int = 10, until: float = 0
) -> Asked:
    used_until = end if state == "used" else until
    return Asked(0, 0.0, Span(0.0, end, 1, 1, state, used_until, asked, came), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([task(1.0), task(2.0)], (2.0, False, 0)),
        # Late: it answered after the round, and would have been waited for.
        ([task(1.0), task(9.0, "late", came=0)], (9.0, False, 0)),
        # Stopped after half of its rows came in 3 s.
        ([task(1.0), task(4.0, "wasted", came=5, until=3.0)], (6.0, False, 0)),
        ([task(1.0), task(4.0, "wasted", came=0)], (4.0, True, 0)),
        ([task(1.0), task(4.0, "open", came=0)], (4.0, True, 0)),
        # Lost after 0.5 s; the others took 1 s and 2 s.
        ([task(1.0), task(2.0), task(0.5, "lost", came=0)], (2.0, False, 1)),
        ([task(1.0), task(2.0), task(1.5, "lost", came=0)], (3.0, False, 1)),
        ([task(0.5, "lost", came=0)], (0.5, True, 1)),
        # A fast worker was asked for more than its part: both have 10 rows without coding.
        ([task(1.0, asked=15), task(1.0, asked=5)], (2.0, False, 0)),
    ],
)
def test_the_time_without_coding_is_that_of_the_last(
    asked: list[Asked], expected: tuple[float, bool, int]
) -> None:
    found = uncoded(0.0, asked, {}, 10 * len(asked))
    assert (found.seconds, found.at_least, found.restarts) == pytest.approx(expected)


def test_a_worker_that_rested_would_have_been_asked_without_coding() -> None:
    found = uncoded(0.0, [task(1.0), task(1.0)], {7: Pace(1.0, 0.4)}, 30)
    assert found.seconds == pytest.approx(5.0)
    assert found.slowest == 7


# What is done: an operation, and whether tasks come in pieces of ten rows; or a sum under a code.
WORK: dict[str, tuple[str, bool] | kofn.SumCode] = {
    "products in pieces": ("X @ w", True),
    "products in one piece": ("X @ w", False),
    "transposed in pieces": ("X.T @ z", True),
    "transposed in one piece": ("X.T @ z", False),
    "sums, part by part": kofn.FractionalRepetition(2),
    "sums, sent whole": kofn.CyclicRepetition(3, stream="whole"),
    "rateless sums": kofn.LT(),
}
RUNS: dict[str, Callable[[], tuple[Delays, Script | None]]] = {
    "equal": lambda: (PerUnit(0.6), None),
    "one slow": lambda: (PerUnit(0.6, slow={5: 6.0}), None),
    "two slow": lambda: (PerUnit(0.6, slow={1: 2.0, 5: 9.0}), None),
    "random": lambda: (Exponential(unit=0.6, mean=0.1), None),
    "random, more of it": lambda: (Exponential(unit=0.1, mean=0.3), None),
    "lost": lambda: (PerUnit(0.6), Script((Change(0.05, 2), Change(0.051, None)))),
}


def play(
    work: str, run: str, coded: bool, rounds: int, patch: pytest.MonkeyPatch
) -> tuple[RunState, float]:
    """The state after some rounds on six workers, and how long these took.

    Any 6 of 6 is no code, nor is a sum of which every part lies on one worker: all are waited for.
    """
    (delays, changes), what = RUNS[run](), WORK[work]
    whole = 120 if work == "rateless sums" else 6 if isinstance(what, kofn.SumCode) else 600
    # A worker has the same luck in a round with coding and without.
    engine = VirtualEngine(6, delays=Common(delays, whole, seed=3), membership=changes)
    A = np.random.default_rng(0).standard_normal((600, 4))
    with kofn.connect(engine, wait=60) as cluster:
        if isinstance(what, kofn.SumCode):
            parts = cluster.parts(A, what if coded else kofn.FractionalRepetition(1), parts=whole)
            for _ in range(rounds):
                parts.sum(lambda p, _: p.sum(0), None)
        else:
            patch.setattr("kofn.arrays.work.SLICE_WORK", 40 if what[1] else 1 << 30)
            more: dict[str, Any] = {} if coded else {"late": None, "loads": "equal"}
            X = cluster.encode(A, k=3 if coded else 6, n=6, **more)
            for _ in range(rounds):
                X @ np.ones(4) if what[0] == "X @ w" else X.T @ A[:, 0]
        return state_of(cluster.log), engine.now()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("work", WORK)
def test_the_figure_without_coding_is_that_of_a_run_without_coding(
    work: str, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded, took = play(work, run, True, 20, monkeypatch)
    _, without = play(work, run, False, 20, monkeypatch)
    head = coded.head()
    assert head["followed"] == 20
    assert head["took"] == pytest.approx(took)
    assert head["without"] == pytest.approx(without, rel=0.1)
    assert not head["at_least"]


def test_rounds_wait_for_the_pace_of_a_worker_that_was_behind() -> None:
    """Worker 1 answers once, after 9 s; the second and third round do not ask it."""
    log = [Record(0.0, "round", 1, -1, -1, 1, "sum: x")]
    log += [Record(0.0, "send", 1, w, w, 1) for w in (0, 1)]
    for round in (1, 2, 3):
        if round > 1:
            log.append(Record(round - 1.0, "round", round, -1, -1, 1, "sum: x"))
            log.append(Record(round - 1.0, "send", round, 0, round * 10, 2))
        log.append(Record(float(round), "reply", round, 0, round * 10 if round > 1 else 0, 2))
        log.append(Record(float(round), "done", round, -1, -1, 0))
        log.append(Record(float(round), "result", round, -1, -1, 2))
    told = (("wait", 0.0), ("row", 9.0))
    answer = Record(9.0, "dropped", 1, 1, 1, 1, "", told)
    for step in (1, None):
        state = RunState("", range(2))
        for i in range(0, len(log), step or len(log)):
            state.take(log[i : i + (step or len(log))])
        assert state.unsettled
        state.take([answer])
        assert state.head()["without"] == pytest.approx(3 * 9.0)
        assert not state.unsettled
        assert not state.head()["at_least"]


def test_what_a_stopped_worker_only_waited_is_added_to_its_usual_time() -> None:
    stopped = Span(0.0, 5.0, 1, 1, "wasted", 0.0, 10, 0)
    found = uncoded(0.0, [task(1.0), Asked(1, 0.0, stopped, Pace(0.0, 0.5))], {}, 20)
    assert found.seconds == pytest.approx(10.0)


def test_a_worker_that_rested_and_was_lost_is_a_restart_too() -> None:
    """The second round does not ask worker 2, which dies then: without coding it had work."""
    log = []
    for round, asked in ((1, (0, 1, 2)), (2, (0, 1))):
        begin, ids = 10.0 * round, [10 * round + w for w in asked]
        log.append(Record(begin, "round", round, -1, -1, 2, "X @ w"))
        log += [Record(begin, "send", round, w, id, 4) for w, id in zip(asked, ids, strict=True)]
        log += [Record(begin + 0.5, "lost", -1, 2, -1, 0)] if round == 2 else []
        done = zip(asked, ids, strict=True)
        log += [Record(begin + 4.0, "reply", round, w, id, 4) for w, id in done]
        log.append(Record(begin + 4.0, "done", round, -1, -1, 0))
        log.append(Record(begin + 4.0, "result", round, -1, -1, 12))
    head = state_of(log).head()
    assert head["restarts"] == 1
    assert head["without"] == pytest.approx(4.0 + 0.5 + 4.0)


def test_a_task_that_still_runs_and_has_had_its_part_is_over() -> None:
    running = Span(0.0, 9.0, 1, 1, "open", 8.0, 100, 80, (1.0, 10))
    found = uncoded(0.0, [task(1.0), Asked(1, 0.0, running, None)], {}, 20)
    assert found.seconds == pytest.approx(1.0)


def test_time_begins_with_the_run_and_not_with_those_who_look() -> None:
    """Memory is told of as soon as there is a page; the data may come much later."""
    state = RunState("local", range(2), price=3600.0)
    usage = (("resident", 3e7),)
    state.take([Record(1.0, "usage", -1, 0, -1, 0, "", usage)])
    assert (state.head()["time"], state.head()["cost"]) == (0.0, None)
    state.take([Record(31.0, "stored", -1, 0, -1, 0), Record(32.0, "round", 1, -1, -1, 2, "X @ w")])
    state.take([Record(34.0, "done", 1, -1, -1, 0)])
    assert state.head()["time"] == 3.0
    assert [row[:3] for row in state.rounds.items] == [[1, 1.0, 3.0]]
    assert state.levels.items[0] == (0.0, 2, 0)


def test_of_sums_it_is_not_said_that_any_so_many_workers_are_enough() -> None:
    with kofn.connect(VirtualEngine(6)) as cluster:
        parts = cluster.parts(list(range(6)), kofn.FractionalRepetition(2))
        parts.sum(lambda part, _: float(part), None)
        head = state_of(cluster.log).head()
        assert (
            head["story"][0] == "6 workers are live. A round is over when the exact sum is there."
        )
        X = cluster.encode(np.eye(12), k=2)
        X @ np.ones(12)
        state = state_of(cluster.log)
    assert state.head()["story"][0].startswith("6 workers are live; any 2 of them are enough")
    assert [level[2] for level in state.levels.items] == [0, 0, 2]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), "much"])
def test_a_price_is_a_number(price: Any) -> None:
    with pytest.raises(BadInput, match="price must be a number >= 0"):
        RunState("", range(2), price)


def test_what_is_no_product_and_no_sum_is_not_compared() -> None:
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(np.eye(8), k=2)
        X @ np.ones(8)
        X.iterate(lambda y: y, np.ones(8), rounds=3)
        state = RunState("", range(4))
        state.take(cluster.log)
    assert state.totals.rounds == 2
    assert state.compared.rounds == 1


def test_money_is_workers_times_time_times_price() -> None:
    state = RunState("virtual", range(4), price=3600.0)
    state.take([Record(0.0, "round", 1, -1, -1, 2), Record(10.0, "lost", -1, 0, -1, 0)])
    state.take([Record(20.0, "done", 1, -1, -1, 0)])
    assert state.head()["cost"] == pytest.approx(4 * 10 + 3 * 10)


@pytest.mark.parametrize(
    ("length", "words"),
    [(0.0012, "1.2 ms"), (2.5, "2.5 s"), (214, "3 min 34 s"), (7300, "2 h 1 min")],
)
def test_seconds_in_words(length: float, words: str) -> None:
    assert seconds(length) == words


# Metrics.


def test_the_metrics_are_read_by_prometheus_own_parsers() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    strict = pytest.importorskip("prometheus_client.openmetrics.parser")
    state = state_of(LOGS["changes"]())
    state.take([Record(9.0, "usage", -1, 0, -1, 0, "", (("resident", 3e7), ("moved", 5.0)))])
    text = metrics(state)
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert families["kofn_workers_live"].samples[0].value == 6
    assert families["kofn_workers_lost"].samples[0].value == 2
    assert families["kofn_workers_lost"].type == "counter"
    assert families["kofn_worker_resident_memory_bytes"].samples[0].value == 3e7
    assert families["kofn_worker_moved_bytes"].samples[0].labels == {"worker": "0"}
    histogram = {
        s.labels.get("le", s.name): s.value for s in families["kofn_round_seconds"].samples
    }
    assert histogram["+Inf"] == histogram["kofn_round_seconds_count"] == 6
    assert histogram["kofn_round_seconds_sum"] == pytest.approx(state.totals.seconds)
    # The strict parser takes OpenMetrics, where the type of a counter has no _total.
    lines = [
        line.replace("_total", "") if line.startswith("#") else line for line in text.splitlines()
    ]
    families = {
        f.name: f for f in strict.text_string_to_metric_families("\n".join([*lines, "# EOF\n"]))
    }
    assert families["kofn_round_seconds"].type == "histogram"


def test_a_task_in_one_piece_that_was_stopped_says_how_far_it_had_come() -> None:
    """Workers whose tasks come in one piece, one of them six times as slow: it never answers."""
    delays = PerUnit(1e-3, slow={5: 6.0})
    A = np.random.default_rng(0).standard_normal((600, 4))
    with kofn.connect(VirtualEngine(6, delays=delays, seed=1)) as cluster:
        X = cluster.encode(A, k=3, loads="equal")
        for _ in range(5):
            X @ np.ones(4)
        head = state_of(cluster.log).head()
    assert head["without"] == pytest.approx(5 * 0.6, rel=0.1)
    assert not head["at_least"]


def test_the_wait_of_a_stopped_task_is_no_part_of_its_pace() -> None:
    # A wait of 3 s and then a row a second; stopped at 5 s of the 13 that it would have taken.
    span = Span(0.0, 5.0, 1, 1, "wasted", 0.0, 10, 0, None, 2, 5.0, 3.0)
    found = uncoded(0.0, [task(1.0), Asked(1, 0.0, span, None)], {}, 20)
    assert found.seconds == pytest.approx(13.0)
    assert not found.at_least


@pytest.mark.parametrize(
    ("lost", "without", "again", "slowest", "words"),
    [
        (0, 10.0, 0.0, 1, "So far nobody is slow, and nobody has died."),
        (1, 10.2, 0.2, 1, "1 worker died, and the work went on. No time was lost."),
        (
            3,
            40.0,
            29.0,
            1,
            "3 workers died; the work went on. Saved so far: 30 s, 75 % of the time.",
        ),
        (
            *(1, 40.0, 5.0, 2),
            "1 worker died and worker 2 was slow; the work went on. "
            "Saved so far: 30 s, 75 % of the time.",
        ),
        (
            *(0, 20.0, 0.0, None),
            "Now and then a worker was slow, and was not waited for. "
            "Saved so far: at least 10 s, 50 % of the time.",
        ),
    ],
)
def test_the_headline_says_what_happened_and_what_it_saved(
    lost: int, without: float, again: float, slowest: int | None, words: str
) -> None:
    head: dict[str, Any] = {"lost": lost, "took": 10.0, "without": without, "again": again}
    head |= {"at_least": "at least" in words, "slowest": slowest, "closed": False}
    head["slowest_died"] = False
    assert headline(head) == words
    if lost and "slow;" in words:
        one = headline(head | {"slowest_died": True})
        assert one.startswith("1 worker died, which was slow (worker 2); the work went on.")
        both = headline(head | {"slowest_died": True, "lost": 2})
        assert both.startswith("2 workers died, one of which was slow (worker 2);")
    over = headline(head | {"closed": True})
    assert "so far" not in over
    assert "Saved: " in over or "Saved" not in words


def test_what_was_saved_is_told_apart_who_was_slow_and_what_was_begun_anew() -> None:
    """Six workers, one of which takes six times as long; another is lost in the second round."""
    changes = Script((Change(0.35, 2), Change(0.351, None)))
    engine = VirtualEngine(6, delays=PerUnit(1e-3, slow={5: 6.0}), membership=changes, seed=1)
    with kofn.connect(engine, wait=60) as cluster:
        X = cluster.encode(np.random.default_rng(0).standard_normal((600, 4)), k=3, loads="equal")
        for _ in range(5):
            X @ np.ones(4)
        head = state_of(cluster.log).head()
    assert (head["restarts"], head["slowest"]) == (1, 5)
    assert head["again"] == 0.0  # the slow one would have been waited for anyhow
    told = " ".join(head["story"])
    assert "worker 5 would have been waited for (" in told
    assert "and work would have been started again once." in told
    # Two rounds: in one a worker is waited for, in the other begun anew what a lost one had.
    both = Compared()
    both.add(1.0, uncoded(0.0, [task(1.0), task(9.0, "late", came=0)], {}, 20), None)
    gone = uncoded(0.0, [task(1.0), task(2.0), task(1.5, "lost", came=0)], {}, 30)
    both.add(2.0, gone, None)
    assert (both.without, both.again, both.restarts) == pytest.approx((12.0, 1.0, 1))
    assert both.slowest == 0
    both.add(2.0, gone, gone)  # what is known of a round may change
    assert (both.rounds, both.took, both.without, both.restarts) == pytest.approx((2, 3, 12.0, 1))


def test_an_altered_log_that_names_a_worker_nobody_knows_is_shown_all_the_same() -> None:
    log = [
        Record(0.0, "round", 1, -1, -1, 1, "X @ w"),
        Record(0.0, "send", 1, 0, 1, 10),
        Record(0.0, "send", 1, 7, 2, 10),
        Record(0.1, "reply", 1, 0, 1, 10),
        Record(0.2, "done", 1, -1, -1, 0),
        Record(0.2, "result", 1, -1, -1, 10),
    ]
    state = RunState("local", [0])
    state.take(log)
    assert state.head()["rounds"] == 1
