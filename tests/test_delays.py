"""Delay models: what they say in the mean, and recordings replayed as they were."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from support import DataFolder, driver_of, rested

import kofn
from kofn.codes.repetition import FractionalRepetition
from kofn.delays import (
    Delays,
    Exponential,
    ExponentialByLoad,
    Recording,
    Scaled,
    read_spot_trace,
    read_timings,
)
from kofn.delays.traces import Event, SpotTrace
from kofn.engines.local import LocalEngine
from kofn.engines.paced import Paced
from kofn.engines.virtual import VirtualEngine
from kofn.reproduce.timing import drain


def mean(delays: Delays, cost: float, draws: int = 40_000) -> float:
    rng = np.random.default_rng(0)
    return float(np.mean([delays.seconds(rng, 0, 1, cost) for _ in range(draws)]))


@pytest.mark.parametrize("cost", [0.0, 1.0, 5.0])
def test_the_load_independent_wait_is_the_same_for_all(cost: float) -> None:
    # A mean of so many exponentials has a standard error of 2 / sqrt(draws); five of them.
    within = 5 * 2 / np.sqrt(40_000)
    assert abs(mean(Exponential(0.1, 2.0, 0.5), cost) - (0.5 + 0.1 * cost + 2.0)) < within


@pytest.mark.parametrize("cost", [0.0, 1.0, 5.0])
def test_the_load_dependent_wait_grows_with_the_work(cost: float) -> None:
    within = 5 * (cost / 30) * 2 / np.sqrt(40_000)
    assert abs(mean(ExponentialByLoad(30, rate=0.5), cost) - cost / 30 * (1 + 2)) <= within


def write(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_a_recording_is_replayed_by_round_and_worker(tmp_path: Path) -> None:
    table = np.arange(1.0, 13.0).reshape(3, 4)
    known = read_timings(write(tmp_path / "t.npz", alone=table))["alone"]
    assert (known.rounds, known.workers, known.loads) == (3, 4, (1.0,))
    rng = np.random.default_rng(0)
    delays = known.delays(work=0.0)
    for round in range(1, 8):
        for worker in range(6):
            expected = table[(round - 1 + worker // 4) % 3, worker % 4]  # others a round apart
            assert delays.seconds(rng, worker, round, 7.0) == expected
    assert known.delays(start=2, work=0.0).seconds(rng, 1, 1, 1.0) == table[2, 1]
    assert Scaled(delays, 0.5).seconds(rng, 3, 2, 1.0) == table[1, 3] / 2
    again = pickle.loads(pickle.dumps(delays))
    assert again.seconds(rng, 2, 2, 1.0) == table[1, 2]
    assert rng.random() == np.random.default_rng(0).random()  # nothing was drawn


def test_of_more_workers_than_were_recorded_the_others_are_not_slow_together() -> None:
    """One of four is slow in four of forty rounds; of twelve never three are at once."""
    table = np.ones((40, 4))
    table[::13, 1] = 9.0
    delays, rng = Recording("r", (1.0,), (table,)).delays(work=0.0), np.random.default_rng(0)
    played = np.array([[delays.seconds(rng, w, r, 1.0) for w in range(12)] for r in range(1, 41)])
    assert (played > 1).sum(axis=1).max() == 1
    assert (played > 1).sum() == 3 * (table > 1).sum()


def test_loads_between_the_recorded_ones_keep_their_stragglers(tmp_path: Path) -> None:
    half, full = np.array([[1.0, 1.0, 9.0]]), np.array([[2.0, 2.0, 2.0]])
    path = write(tmp_path / "t.npz", **{"run_load0.5": half, "run_load1.0": full})
    known = read_timings(path)["run"]
    assert known.loads == (0.5, 1.0)
    assert np.allclose(known.at(0.5), half)
    assert np.allclose(known.at(0.7), half + 0.4)
    assert np.allclose(known.at(0.8), full - 0.4)
    assert np.allclose(known.at(2.0), full + 2.0)  # beyond, along the last line
    assert np.allclose(known.at(0.0), [[0.0, 0.0, 8.0]])
    delays = known.delays(whole=10.0)
    rng = np.random.default_rng(0)
    assert delays.seconds(rng, 2, 1, 5.0) == 9.0
    assert delays.seconds(rng, 2, 1, 10.0) == 2.0
    assert known.delays(work=0.0).seconds(rng, 2, 1, 5.0) == 2.0
    # The medians are 1 s at half of the load and 2 s at all of it, so none takes no time at all.
    assert delays.timing(rng, 2, 1, 5.0) == (8.0, 1.0)
    assert delays.timing(rng, 0, 1, 10.0) == (0.0, 2.0)
    # Stated: a quarter of a time at the largest load is work.
    assert known.delays(10.0, work=0.25).timing(rng, 2, 1, 5.0) == (1.5, 0.25)
    assert known.delays(10.0, work=1.0).timing(rng, 2, 1, 30.0) == (0.0, 6.0)
    with pytest.raises(kofn.BadInput, match=r"run has 2 loads, and whole, .* is not given"):
        known.delays()


def round_seconds(delays: Delays, copies: int) -> float:
    """The mean round of an exact sum over six parts, streamed."""
    engine = VirtualEngine(6, delays=delays, compute=False)
    with kofn.connect(engine) as cluster:
        parts = cluster.parts(np.ones((6, 1)), FractionalRepetition(copies, "parts"))
        for _ in range(20):
            parts.sum(lambda part, x: part.sum(axis=0), stop=kofn.exact())
        return cluster.engine.now() / 20


def test_repetition_is_not_flattered_by_a_recording_of_one_load(tmp_path: Path) -> None:
    """No round is shorter than the shortest time in which one part was ever done."""
    table = 1.0 + np.random.default_rng(0).exponential(0.3, (20, 6))
    known = read_timings(write(tmp_path / "t.npz", one=table))["one"]
    with pytest.raises(kofn.BadInput, match=r"measured by several loads; one has one\. State it"):
        known.delays()
    with pytest.raises(kofn.BadInput, match="measured by several loads"):
        known.delays(whole=1.0)
    for copies in (1, 2, 3):
        assert round_seconds(known.delays(work=0.0), copies) >= table.min()
        # Load 1 is one part. All of it work: so many parts take so many times as long, and
        # somebody has to do his first.
        for work in (0.3, 1.0):
            assert round_seconds(known.delays(1.0, work=work), copies) >= table.min()
    rng = np.random.default_rng(0)
    wait, work = known.delays(whole=1.0, work=0.3).timing(rng, 0, 1, 4.0)
    assert wait == pytest.approx(0.7 * table[0, 0])
    assert work == pytest.approx(4 * 0.3 * table[0, 0])


def test_a_split_that_is_none(tmp_path: Path) -> None:
    known = read_timings(write(tmp_path / "t.npz", one=np.ones((1, 1))))["one"]
    with pytest.raises(kofn.BadInput, match=r"work=0\.5 grows with the load; got whole=None"):
        known.delays(work=0.5)
    for bad in (-0.1, 1.5, float("nan"), "guessed", None, [0.5]):
        with pytest.raises(kofn.BadInput, match="from 0 to 1; got"):
            known.delays(whole=1.0, work=bad)  # type: ignore[arg-type]


def test_mini_batch_times(tmp_path: Path) -> None:
    lines = ["job,worker,gpu,time,batch_time_norm"]
    lines += [f"2,{w},25,{10 * r},{100 * w + r}" for r in (1, 0) for w in (1, 0)]
    lines += ["2,1,25,99,7"]  # seen once more than the other
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    known = read_timings(tmp_path / "b.csv.gz")["job2"]
    assert np.allclose(known.timings[0], [[0.0, 0.1], [0.001, 0.101]])


def test_recordings_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match="is not there"):
        read_timings(tmp_path / "no.npz")
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(kofn.BadInput, match=r"got t\.txt"):
        read_timings(tmp_path / "t.txt")
    with pytest.raises(kofn.BadInput, match="shape"):
        read_timings(write(tmp_path / "a.npz", a=np.zeros(3)))
    with pytest.raises(kofn.BadInput, match="nan in round 0, worker 1"):
        read_timings(write(tmp_path / "a.npz", a=np.array([[0.0, np.nan]])))
    (tmp_path / "b.csv").write_text("job,worker,gpu,time,batch_time_norm\n1,x,2,3,4\n")
    with pytest.raises(kofn.BadInput, match="line 2"):
        read_timings(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("job,worker,gpu,time,batch_time_norm\n")
    with pytest.raises(kofn.BadInput, match="empty"):
        read_timings(tmp_path / "c.csv")
    known = read_timings(write(tmp_path / "a.npz", a=np.ones((1, 1))))["a"]
    with pytest.raises(kofn.BadInput, match="whole"):
        known.delays(whole=0.0, work=0.0)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"job,worker,time" * 99)[:-9])
    with pytest.raises(kofn.BadInput, match="cut or damaged"):
        read_timings(tmp_path / "cut.csv.gz")
    whole = (tmp_path / "a.npz").read_bytes()
    for i, bad in enumerate((whole[:-30], b"", b"no", whole.replace(b"NUMPY", b"NUMPI"))):
        (tmp_path / f"bad{i}.npz").write_bytes(bad)
        with pytest.raises(kofn.BadInput, match="cannot be read"):
            read_timings(tmp_path / f"bad{i}.npz")


def test_the_virtual_engine_replays_it(tmp_path: Path) -> None:
    table = np.array([[1.0, 2.0, 50.0], [60.0, 3.0, 4.0]])
    known = read_timings(write(tmp_path / "t.npz", t=table))["t"]
    with kofn.connect(VirtualEngine(3, delays=known.delays(work=0.0))) as cluster:
        X = cluster.encode(np.eye(6), k=2, margin=1, late=None, loads="equal")
        X @ np.ones(6)
        assert np.isclose(X.report.seconds["total"], 2.0)
        drain(cluster)  # worker 2 drops its stale task within a slice
        X @ np.ones(6)
        assert np.isclose(X.report.seconds["total"], 4.0)


@pytest.mark.engine
def test_real_workers_wait_as_recorded_and_drop_what_is_stale(tmp_path: Path) -> None:
    table = np.array([[0.0, 0.0, 900.0], [900.0, 0.0, 0.0]])
    known = read_timings(write(tmp_path / "t.npz", t=table))["t"]
    delays = Scaled(known.delays(work=0.0), by=0.1)
    with kofn.connect(Paced(LocalEngine(3), delays)) as cluster:
        X = cluster.encode(np.eye(6), k=2, margin=1, late=None, loads="equal")
        for _ in range(4):
            # Whoever was to sleep for 90 s in one round answers the next one: it drops the sleep.
            assert np.allclose(X @ np.arange(6.0), np.arange(6.0))
            assert len(X.report.live) == 3
            rested(cluster)
        dropped = [record.worker for record in cluster.log if record.kind == "dropped"]
    assert dropped == [2, 0, 2, 0]


def test_the_real_recordings(data_folder: DataFolder) -> None:
    folder = data_folder("straggler_traces") / "straggler_traces"
    known = read_timings(folder / "aws_lambda_256workers_2022.npz")
    assert sum(t.size for r in known.values() for t in r.timings) == 112_640
    cnn = known["cnn_desktop_Canada_batch2048"]
    assert cnn.loads == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert (cnn.rounds, cnn.workers) == (20, 256)
    # More work takes longer, in the middle of each recording.
    medians = [float(np.median(cnn.at(load))) for load in np.linspace(0, 1, 9)]
    assert medians == sorted(medians)
    batches = read_timings(folder / "alibaba_minibatch_times_2020.csv.gz")
    assert batches["job1"].timings[0].shape == (300, 10)
    assert batches["job2"].timings[0].shape == (239, 10)


def test_a_node_whose_name_comes_back_is_another_worker() -> None:
    """a leaves and comes back as worker 3: then it is 3 that is lost, and 1 stays."""
    told = [(0, True, "a"), (0, True, "b"), (0, True, "c"), (1, False, "a"), (2, True, "a")]
    told += [(3, True, "d"), (4, False, "a"), (5, False, "d")]
    trace = SpotTrace(tuple(Event(float(t), added, node) for t, added, node in told))
    engine = VirtualEngine(3, membership=trace.membership(scale=1.0))
    with kofn.connect(engine) as cluster:
        while cluster.engine.now() < 6:
            driver_of(cluster).settle(1.0)
        assert cluster.workers == (1, 2)
        assert [r.worker for r in cluster.log if r.kind == "lost"] == [0, 3, 4]


def test_spot_traces_gzipped_unsorted_or_of_another_kind(tmp_path: Path) -> None:
    text = b"time_ms,event,node\n900,remove,a\n0,add,a\n0,add,b\n"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.warns(kofn.TraceWarning, match="steps back at line 3"):
        found = read_spot_trace(tmp_path / "t.csv.gz")
    with pytest.warns(kofn.TraceWarning):
        assert found.events == read_spot_trace(tmp_path / "t.csv").events
    assert found.events[-1] == Event(0.9, False, "a")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(kofn.BadInput, match="cut or damaged"):
        read_spot_trace(tmp_path / "cut.csv.gz")
    for path in (write(tmp_path / "t.npz", a=np.ones((9, 9))), tmp_path):
        with pytest.raises(kofn.BadInput, match="is a CSV file, gzipped or not"):
            read_spot_trace(path)
    (tmp_path / "twice.csv").write_text("time_ms,event,node\n0,add,a\n9,remove,a\n5,add,a\n")
    with (
        pytest.warns(kofn.TraceWarning, match="steps back at line 4"),
        pytest.raises(kofn.BadInput, match=r"line 4 .* would add 'a', which is there already"),
    ):
        read_spot_trace(tmp_path / "twice.csv")
    (tmp_path / "nan.csv").write_text("time_ms,event,node\nnan,add,a\n")
    with pytest.raises(kofn.BadInput, match="line 2"):
        read_spot_trace(tmp_path / "nan.csv")
