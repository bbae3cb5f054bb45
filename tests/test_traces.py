"""Recorded timings and membership: every form is read, what is wrong is named, fits are right."""

from __future__ import annotations

import gzip
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from support import DataFolder

import kofn
from kofn.delays import (
    Exponential,
    Fritchman,
    Lifetimes,
    Pareto,
    Recording,
    SpotTrace,
    TwoState,
    fit,
    read_membership,
    read_spot_trace,
    read_timings,
    slowness,
    write_membership,
    write_timings,
)
from kofn.delays.fits import split
from kofn.delays.traces import Event, Price
from kofn.engines.virtual import VirtualEngine
from kofn.report import read_log
from kofn.simulation import logs, traces


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def one(path: Path) -> SpotTrace:
    (found,) = read_membership(path).values()
    assert isinstance(found, SpotTrace)
    return found


# Timings.


def test_timings_are_written_and_read_again(tmp_path: Path) -> None:
    tables = tuple(np.random.default_rng(i).exponential(1.0, (4, 3)) for i in range(2))
    write_timings(Recording("run", (0.5, 1.0), tables), tmp_path / "run.csv")
    found = read_timings(tmp_path / "run.csv")["run"]
    assert found.loads == (0.5, 1.0)
    for table, again in zip(tables, found.timings, strict=True):
        np.testing.assert_allclose(again, table, rtol=1e-8)  # nine digits are written


def test_timings_without_a_load_and_packed(tmp_path: Path) -> None:
    lines = ["round,worker,seconds", "7,2,0.5", "7,0,0.25", "3,0,1", "3,2,2"]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = read_timings(tmp_path / "t.csv.gz")["t"]
    assert found.loads == (1.0,)
    assert found.timings[0].tolist() == [[1.0, 2.0], [0.25, 0.5]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("round,worker,seconds\n", "it is empty"),
        ("round,worker,seconds\n0,0,1\n0,1\n", r"line 3 of .* has fewer"),
        ("round,worker,seconds\n0,0,1,7\n", r"line 2 of .* has more"),
        ("round,worker,seconds\n0,0,1\n1,0,-2\n", r"finite and >= 0; line 3"),
        ("round,worker,seconds\n0,0,inf\n", r"finite and >= 0; line 2"),
        ("round,worker,seconds\n0,0,quick\n", r"all numbers; line 2"),
        ("round,worker,seconds\n0,0,1\n0,1,1\n1,0,1\n", r"none of worker 1 in round 1"),
        ("round,worker,seconds\n0,0,1\n0,0,2\n", r"line 3 of .* is a second one of worker 0"),
        ("round,seconds\n0,1\n", r"has round, seconds; worker is missing"),
        ("worker,seconds\n0,1,2\n", r"has worker, seconds; round is missing"),
        ("Round,worker,seconds\n0,0,1\n", r"has Round, worker, seconds; round is missing"),
        ("0,0,1\n0,1,2\n", r"has 0, 0, 1; round, worker, seconds are missing"),
        ("# my run\nround,worker,seconds\n0,0,1\n", r"the first line .* has # my run; round"),
        ("job,worker,time\n1,1,1\n", r"has job, worker, time; batch_time_norm is missing"),
        ("round|worker|seconds\n0|0|1\n", r"commas between its columns"),
        ("round,worker,seconds,seconds\n0,0,1,2\n", r"has 'seconds' twice"),
        ("round;worker;seconds\n0;0;1,5\n", r"commas between its columns"),
        ("round,worker,seconds\n0,,1\n", r"all numbers; line 2"),
        ("round,worker,seconds\n0.5,0,1\n", r"all numbers; line 2"),
        ("round,worker,seconds\ninf,0,1\n", r"all numbers; line 2"),
        ("round,worker,seconds\n0,-1,1\n", r"finite and >= 0; line 2"),
        ("round,worker,seconds\n0,a,1\n0,b,1\n1,a,1\n", r"none of worker b in round 1"),
    ],
)
def test_timings_that_are_none_say_where(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(kofn.BadInput, match=problem):
        read_timings(written(tmp_path / "t.csv", text))


def test_timings_as_spreadsheets_and_pandas_write_them(tmp_path: Path) -> None:
    """A byte order mark, spaces, whole numbers with a point, names of machines."""
    text = "\ufeffround, worker, seconds\r\n"
    text += "".join(f"{r}.0, ip-{w}, {1 + r + 10 * w}\r\n" for r in range(2) for w in (1, 0))
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert read_timings(tmp_path / "t.csv")["t"].timings[0].tolist() == [[1, 11], [2, 12]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_columns_in_any_order_among_others_with_spaces_about_them(tmp_path: Path, end: str) -> None:
    lines = ["host ,seconds , worker,round ", "a ,2,1 ,0", "b,1,0,0", "a,4,1,1", "b,3,0 ,1", ""]
    (tmp_path / "t.csv").write_bytes(end.join(lines).encode())
    assert read_timings(tmp_path / "t.csv")["t"].timings[0].tolist() == [[1, 2], [3, 4]]


def test_values_with_spaces_about_them(tmp_path: Path) -> None:
    times = "job ,worker,time,batch_time_norm\n1 ,0,1,1000\n1,1 ,2,2000 \n"
    (recording,) = read_timings(written(tmp_path / "t.csv", times)).values()
    assert recording.timings[0].tolist() == [[1, 2]]
    plain, spaced = (
        "time_s,event,node\n0,add,a\n5,remove,a\n",
        "time_s ,event , node\n0 ,add , a\n5 ,remove ,a \n",
    )
    machines = [read_membership(written(tmp_path / "m.csv", text)) for text in (plain, spaced)]
    assert machines[0] == machines[1]


def test_a_table_that_lacks_a_column_of_timings_is_taken_for_timings(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "round,worker,took\n0,0,1\n")
    with pytest.raises(kofn.BadInput, match="has round, worker, took; seconds is missing"):
        traces.read_trace(path)


def test_numbers_of_workers_are_in_order_and_names_come_last(tmp_path: Path) -> None:
    text = "round,worker,seconds\n0,b,4\n0,10,2\n0,9,1\n0,a,3\n"
    assert read_timings(written(tmp_path / "t.csv", text))["t"].timings[0].tolist() == [
        [1, 2, 3, 4]
    ]


def test_arrays_that_are_no_recording(tmp_path: Path) -> None:
    two = {"a_load0.5": np.ones((2, 2)), "a_load.5": np.ones((2, 2))}
    np.savez(tmp_path / "t.npz", **two)  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match=r"second one of a at load 0\.5, a_load\.5"):
        read_timings(tmp_path / "t.npz")
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, np.ones((2, 2)))
    with pytest.raises(kofn.BadInput, match=r"one array, an \.npy file"):
        read_timings(tmp_path / "t.npz")


def test_arrays_that_are_no_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", run=np.array([["a", "b"]]))
    with pytest.raises(kofn.BadInput, match=r"are numbers; run of .* holds <U1"):
        read_timings(tmp_path / "t.npz")


def test_a_stated_slope_takes_the_place_of_the_recorded_one() -> None:
    known = Recording("t", (0.5, 1.0), (np.array([[3.0]]), np.array([[9.0]])))
    rng = np.random.default_rng(0)
    assert known.delays(1.0, slope=4.0).timing(rng, 0, 1, 0.25) == (1.0, 1.0)
    assert known.delays(1.0, slope=8.0).timing(rng, 0, 1, 1.0) == (0.0, 8.0)  # no wait is below 0
    for bad in ({"whole": None, "slope": 1.0}, {"whole": 1.0, "slope": -1.0}):
        with pytest.raises(kofn.BadInput, match="slope is the seconds"):
            known.delays(**bad)


# Membership.


def test_events_with_notices(tmp_path: Path) -> None:
    text = "time_s,event,node,notice_s\n0,add,a,0\n0,add,b,0\n60,remove,a,30\n90,add,a,0\n"
    trace = one(written(tmp_path / "m.csv", text))
    assert trace.counts() == [(0.0, 2), (60.0, 1), (90.0, 2)]
    engine = VirtualEngine(2, membership=trace.membership(10.0))  # ten seconds of it a second
    with kofn.connect(engine) as cluster:
        cluster._driver.settle(100.0)
        while engine.now() < 9.0:
            cluster._driver.settle(1.0)
        kinds = [(r.time, r.kind, r.worker) for r in cluster.log]
    assert kinds == [(3.0, "leaving", 0), (6.0, "lost", 0), (9.0, "joined", 2)]
    write_membership(trace, tmp_path / "again.csv")
    assert one(tmp_path / "again.csv").events == trace.events


@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("time_s", ("0", "3600", "3600", "7200")),
        ("time_h", ("0", "1", "1", "2")),
        ("time_ms", ("0", "3600000", "3600000", "7200000")),
        ("time_local", tuple(f"2024-05-01T{h:02}:00:00" for h in (8, 9, 9, 10))),
    ],
)
def test_counts_are_steps(tmp_path: Path, column: str, times: tuple[str, ...]) -> None:
    counts = zip(times, (3, 3, 1, 2), strict=True)
    lines = [f"{column},instances", *(f"{time},{count}" for time, count in counts)]
    trace = one(written(tmp_path / "c.csv", "\n".join(lines)))
    assert trace.counts() == [(0.0, 3), (3600.0, 1), (7200.0, 2)]
    assert trace.machine_seconds(7200.0) == 3 * 3600 + 1 * 3600
    assert trace.usd(7200.0) is None
    assert trace.seconds == 7200.0


def test_availability_with_prices(tmp_path: Path) -> None:
    arrays = {
        "zone/a/available": np.array([2, 2, 0, 1], dtype=np.int8),
        "zone/a/gap_seconds": np.array(1800.0),
        "zone/a/price_usd_per_h": np.array([1.0, 3.0, 3.0, 2.0]),
        "zone/b/available": np.array([1], dtype=np.int8),
        "zone/b/gap_seconds": np.array(60.0),
    }
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    found = read_membership(tmp_path / "a.npz")
    assert list(found) == ["zone/a", "zone/b"]
    trace = found["zone/a"]
    assert isinstance(trace, SpotTrace)
    assert trace.prices == (Price(0.0, 1.0), Price(1800.0, 3.0), Price(5400.0, 2.0))
    # Two machines for half an hour at 1, two at 3, none, one at 2.
    assert trace.usd(7200.0) == pytest.approx(1.0 + 3.0 + 0.0 + 1.0)
    assert trace.usd(2700.0) == pytest.approx(1.0 + 1.5)
    later = trace.since(1800.0)
    assert later.usd(5400.0) == pytest.approx(4.0)
    assert later.until(1800.0).usd(1800.0) == pytest.approx(3.0)
    for broken, problem in [
        ({"zone/a/available": np.array([1, -1], dtype=np.int8)}, "-1 at tick 1"),
        ({"zone/a/available": np.array([0.5])}, "one count for each tick"),
        ({"zone/a/gap_seconds": np.array(0.0)}, "gap_seconds > 0"),
        ({"zone/a/gap_seconds": np.array("hour")}, "gap_seconds > 0"),
        ({"zone/a/available": np.array([1, 2**30])}, "1,000,000 at most"),
        ({"zone/a/price_usd_per_h": np.array([1.0])}, "1 prices and 4 ticks"),
        ({"zone/a/price_usd_per_h": np.full(4, np.nan)}, "nan at tick 0"),
    ]:
        np.savez(tmp_path / "bad.npz", **(arrays | broken))  # type: ignore[arg-type]
        with pytest.raises(kofn.BadInput, match=problem):
            read_membership(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("time_s,instances\n", "it is empty"),
        ("time_s,instances\n0,1\n5\n", r"line 3 of .* has fewer"),
        ("time_s,instances\n0,1\n5,-1\n", r"instances of a trace is a number >= 0; line 3"),
        ("time_s,instances\n0,1.5\n", r"are counted; line 2"),
        ("time_s,instances\n0,many\n", r"line 2 of .* has 'many'"),
        ("time_s,instances\n0,1e9\n", r"1,000,000 at most; line 2"),
        ("time_s,instances\n-1,1\n", r"time_s of a trace .* line 2"),
        ("time_local,instances\nnoon,1\n", r"a date and time; line 2"),
        ("time_s,event,node\n0,add,a\n1,add,a\n", r"line 3 of .* would add 'a', which is there"),
        ("time_s,event,node\n0,remove,a\n", r"line 2 of .* would remove 'a', which is not there"),
        ("time_s,event,node\n0,stop,a\n", r"add or remove a named node.*line 2"),
        ("time_s,machines\n0,1\n", r"a trace of machines has a time"),
        ("lifetime_s,end_event\n-4,preempted\n", r"lifetime_s .* line 2"),
        ("lifetime_s,end_event\n4,stop\n", r"none of the 1 of"),
    ],
)
def test_membership_that_is_none_says_where(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(kofn.BadInput, match=problem):
        read_membership(written(tmp_path / "m.csv", text))


def test_a_clock_that_counts_from_1970_begins_at_its_first_line(tmp_path: Path) -> None:
    text = "time_ms,event,node\n1700000000000,add,a\n1700000060000,remove,a\n"
    assert one(written(tmp_path / "m.csv", text)).counts() == [(0.0, 1), (60.0, 0)]


def test_local_times_do_not_depend_on_the_zone_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hour of a night in March is missing, where clocks are put forward."""
    text = "time_local,instances\n2024-03-10T01:30:00,3\n2024-03-10T03:30:00,2\n"
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert one(written(tmp_path / "m.csv", text)).seconds == 7200.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_clock_that_steps_back_is_told_and_sorted(tmp_path: Path) -> None:
    text = "time_s,instances\n0,1\n20,3\n10,2\n30,4\n25,0\n"
    with pytest.warns(kofn.TraceWarning, match="steps back at line 4, and 1 times more"):
        trace = one(written(tmp_path / "c.csv", text))
    assert [count for _, count in trace.counts()] == [1, 2, 3, 0, 4]


def test_what_a_market_offers_to_one_who_wants_so_many() -> None:
    def event(time: float, text: str) -> Event:
        return Event(time, text[0] == "+", text[1:])

    script = [(0, "+a"), (5, "+b"), (5, "+c"), (9, "-b"), (12, "-a"), (20, "+d")]
    trace = SpotTrace(tuple(event(float(t), text) for t, text in script))
    offered = trace.offer(2)
    # It begins when two are there. When b is lost c, which stood by, comes at once.
    assert offered.events == (
        *(Event(0.0, True, node) for node in "ab"),
        *(Event(4.0, False, "b"), Event(4.0, True, "c")),
        *(Event(7.0, False, "a"), Event(15.0, True, "d")),
    )
    assert offered.seconds == 15.0
    started = offered.started(4.0)
    assert [(e.time, e.added, e.node) for e in started.events[2:]] == [
        (4.0, False, "b"),
        (7.0, False, "a"),
        (8.0, True, "c"),
        (19.0, True, "d"),
    ]
    # c is lost before it was up, and never seen.
    assert [e.node for e in offered.started(100.0).events] == ["a", "b", "b", "a", "c", "d"]
    gone = SpotTrace((*offered.events, Event(16.0, False, "d")))
    assert "d" not in {e.node for e in gone.started(4.0).events}


def test_machines_that_do_not_live_are_not_drawn_for_a_whole_day() -> None:
    trace = Lifetimes((0.0,), (True,)).offer(4)
    assert sum(not event.added for event in trace.events) == 800
    assert trace.seconds == 200.0
    long = Lifetimes((600.0, 900.0), (True, True)).offer(4)
    assert long.seconds == 86400.0
    many = Lifetimes((0.0,), (True,)).offer(256)
    assert sum(not event.added for event in many.events) == 10_000


def test_lifetimes_count_those_that_were_stopped_alive() -> None:
    """Kaplan-Meier by hand: 4 there at 1 h, of the 2 left at 3 h one is taken back."""
    known = Lifetimes((1.0, 2.0, 3.0, 4.0), (True, False, True, False))
    moments, left = known.survival
    assert moments.tolist() == [1.0, 3.0]
    assert left.tolist() == [0.75, 0.375]
    drawn = known.draw(np.random.default_rng(0), 40_000)
    for value, chance in ((1.0, 0.25), (3.0, 0.375), (4.0, 0.375)):
        spread = np.sqrt(chance * (1 - chance) / 40_000)
        assert abs((drawn == value).mean() - chance) < 5 * spread
    trace = known.offer(5, seconds=100.0)
    assert {count for _, count in trace.counts()} == {5}
    assert known.offer(5, seconds=100.0) == trace
    assert known.offer(5, seed=1, seconds=100.0) != trace


def test_a_file_of_lifetimes_is_no_spot_trace(tmp_path: Path) -> None:
    path = written(tmp_path / "l.csv", "lifetime_s,end_event\n5,preempted\n7,stop\n")
    found = read_membership(path)["l"]
    assert found == Lifetimes((5.0, 7.0), (True, False), str(path))
    with pytest.raises(kofn.BadInput, match="has their lifetimes"):
        read_spot_trace(path)


# Fits.

COUNT = (200, 50)  # rounds, workers


def test_fits_find_what_the_waits_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    n = COUNT[0] * COUNT[1]
    waits = 0.5 + rng.exponential(2.0, COUNT)
    found = fit(Recording("t", (1.0,), (waits,)))["exponential"]
    model = found.delays
    assert isinstance(model, Exponential)
    assert abs(model.mean - 2.0) < 5 * 2.0 / np.sqrt(n)
    assert abs(model.shift - 0.5) < 5 * 2.0 / n  # the least of n exponentials
    assert found.distance < 2 / np.sqrt(n)  # Kolmogorov's: 1.95 with a chance of 0.001
    waits = 0.5 * (1 + rng.pareto(3.0, COUNT))
    found = fit(Recording("t", (1.0,), (waits,)))["pareto"]
    model = found.delays
    assert isinstance(model, Pareto)
    assert abs(model.shape - 3.0) < 5 * 3.0 / np.sqrt(n)
    assert found.distance < 2 / np.sqrt(n)


def test_who_is_slow_for_how_long() -> None:
    chain = Fritchman(enter=0.05, leave=0.4, seed=3)
    slow = chain.pattern(2000, 40)
    waits = np.where(slow, 3.0, 1.0) + np.random.default_rng(0).uniform(0, 0.1, slow.shape)
    seen = slowness((waits,))
    assert seen.share == slow.mean()
    # A binomial of as many steps as there were in each state.
    assert abs(seen.enter - 0.05) < 5 * np.sqrt(0.05 * 0.95 / (~slow).sum())
    assert abs(seen.leave - 0.4) < 5 * np.sqrt(0.4 * 0.6 / slow.sum())
    assert abs(seen.burst - 1 / 0.4) < 5 * np.sqrt(0.6) / 0.4 / np.sqrt(slow.sum() * 0.4)
    model = fit(Recording("t", (1.0,), (waits,)), seed=1)["markov"].delays
    assert isinstance(model, TwoState)
    rng = np.random.default_rng(0)
    again = [[model.timing(rng, w, r, 1.0)[0] for w in range(20)] for r in range(1, 1001)]
    share = (np.array(again) > 2).mean()
    # Bursts of 2.5 rounds: so much fewer independent ones.
    assert abs(share - chain.share) < 5 * np.sqrt(chain.share * 5 / 20_000)


def test_wait_and_work_are_taken_apart_where_loads_differ() -> None:
    waits = np.random.default_rng(0).exponential(1.0, (30, 20))
    tables = tuple(waits + 4.0 * load for load in (0.25, 0.5, 1.0))
    known = split(Recording("t", (0.25, 0.5, 1.0), tables))
    assert known.unit == pytest.approx(4.0)
    for one_load in known.waits:
        np.testing.assert_allclose(one_load, waits, atol=1e-12)
    single = Recording("t", (0.5,), (np.full((2, 2), 3.0),))
    assert split(single).unit == 0.0
    assert split(single, grows=1.0).unit == 6.0


# Of a real run.


def test_the_log_of_a_run_gives_its_traces(tmp_path: Path) -> None:
    table = np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 2.0]])
    delays = Recording("t", (1.0,), (table,)).delays(work=0.0)
    path = tmp_path / "run.jsonl"
    with kofn.connect(VirtualEngine(3, delays=delays), log=path) as cluster:
        X = cluster.encode(np.eye(6), k=3, late=None, loads="equal")
        for _ in range(4):
            X @ np.ones(6)
        cluster.lose(1)
        cluster.join()
        for _ in range(2):
            X @ np.ones(6)
        log = cluster.log
    *saved, closed = read_log(path)
    assert saved == log
    assert closed.kind == "closed"
    found = logs.record(saved, whole=6.0)
    # Worker 3 has the column of worker 1, and the times of recorded worker 3 % 3 = 0.
    expected = np.array([*table, *table, [1.0, 1.0, 3.0], [1.5, 1.5, 2.0]])
    np.testing.assert_allclose(found.timings.timings[0], expected, atol=1e-8)
    assert found.timings.loads[0] == pytest.approx(1 / 3)
    assert (found.stopped, found.filled) == (0, 0)
    names = [(e.added, e.node) for e in found.membership.events]
    assert names == [
        *((True, f"worker{w}") for w in range(3)),
        *((False, "worker1"), (True, "worker3")),
    ]
    write_timings(found.timings, tmp_path / "t.csv")
    write_membership(found.membership, tmp_path / "m.csv")
    assert read_timings(tmp_path / "t.csv")["t"].workers == 3
    assert one(tmp_path / "m.csv").at_start == 3


def test_who_was_stopped_and_who_was_not_there_is_counted() -> None:
    delays = Recording("t", (1.0,), (np.array([[1.0, 2.0, 50.0]]),)).delays(work=0.0)
    with kofn.connect(VirtualEngine(3, delays=delays)) as cluster:
        X = cluster.encode(np.eye(6), k=2, margin=1, late=None, loads="equal")
        X @ np.ones(6)
        cluster.lose(2)
        X @ np.ones(6)
        found = logs.record(cluster.log)
    assert found.timings.timings[0].shape == (2, 3)
    assert (found.stopped, found.filled) == (1, 1)
    with pytest.raises(kofn.BadInput, match="this one has none"):
        logs.record([r for r in cluster.log if r.kind != "send"])


# The public files.


@pytest.mark.slow
def test_every_public_trace_is_read_described_and_replayed(data_folder: DataFolder) -> None:
    seen = 0
    for folder in ("straggler_traces", "spot_traces"):
        for path in sorted((data_folder(folder) / folder).iterdir()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", kofn.TraceWarning)
                found = traces.read_trace(path)
            for trace in found.values():
                seen += 1
                about = traces.describe(trace)
                if isinstance(trace, Recording):
                    assert about["rounds"] >= 10
                    assert {"exponential", "pareto", "markov", "empirical"} == set(about["fits"])
                    continue
                offered = trace.offer(4)
                assert 1 <= offered.at_start <= 4
                changes = list(offered.membership(1.0).changes(np.random.default_rng(0)))
                assert len(changes) == sum(e.time > 0 for e in offered.events)
    assert seen >= 2 + 6 + 6 + 34 + 1


def test_a_trace_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_timings(Recording("t", (1.0,), (np.ones((3, 2)),)), tmp_path / "t.csv")
    written(tmp_path / "m.csv", "time_s,instances,price_usd_per_h\n0,3,1\n9,1,2\n")
    written(tmp_path / "l.csv", "lifetime_s,end_event\n5,preempted\n7,stop\n")
    for name, axes in (("t", 3), ("m", 2), ("l", 1)):  # with the bar of colours
        figure = traces.draw(tmp_path / f"{name}.csv", None, tmp_path / f"{name}.png")
        assert len(figure.axes) == axes
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    with pytest.raises(kofn.BadInput, match="has t; got 'x'"):
        traces.draw(tmp_path / "t.csv", "x", tmp_path / "t.png")
