"""The log on disk: what is written is read back, also as it grows, is rotated or copied."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples, until

import kofn
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput, CannotWrite
from kofn.events import TASK_KINDS, EventLog
from kofn.model import Record
from kofn.report import logs, read_log
from kofn.report.logs import LogReader, LogWriter, Tail, line, parse

KINDS = ("round", "send", "piece", "reply", "dropped", "lost", "joined", "result", "loss")
RECORDS = st.builds(
    Record,
    st.integers(0, 10**12).map(lambda n: n / 1e9),
    st.sampled_from(KINDS),
    *[st.integers(-1, 10**6)] * 3,
    st.integers(0, 10**9),
    st.text(max_size=20),
    st.lists(
        st.tuples(st.text(max_size=5), st.floats(allow_nan=False)), unique_by=lambda p: p[0]
    ).map(tuple),
).filter(lambda record: record.kind != "send" or record.worker >= 0)


def note(time: float, kind: str = "reply", worker: int = 1, task: int = 1) -> Record:
    return Record(time, kind, 1, worker, task, 10)


def writer(path: Path, log: deque[Record]) -> LogWriter:
    return LogWriter(path, log, "virtual", (0, 1), 0.0)


@examples(300)
@given(RECORDS)
def test_a_record_is_one_line_that_says_all(record: Record) -> None:
    text = line(record)
    assert text.count("\n") == 1
    # These have no more to say, unless one that was stopped tells how far it was.
    plain = record.kind in ("send", "piece", "reply", "dropped") and not record.numbers
    expected = record._replace(why="") if plain else record
    assert parse(json.loads(text)) == expected


def test_a_loss_that_is_no_number_is_still_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = line(Record.loss(0.0, 3, float("nan")))
    again = parse(json.loads(text, parse_constant=refuse))
    assert math.isnan(dict(again.numbers)["loss"])


def test_a_tail_has_each_record_once_however_fast_they_come() -> None:
    log: deque[Record] = deque(maxlen=5_000)
    tail, seen = Tail(log), []
    for count in (0, 1, 7, 1024, 1025, 4_000, 0, 4_999):
        new = [note(float(i)) for i in range(count)]
        log.extend(new)
        taken = tail.take()
        assert len(taken) == count
        assert all(a is b for a, b in zip(taken, new, strict=True))
        seen += taken
    assert not tail.missed
    log.extend(note(0.0) for _ in range(5_001))
    assert len(tail.take()) == 5_000
    assert tail.missed


def test_the_marks_of_a_log_are_what_is_not_of_single_tasks() -> None:
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(np.eye(8), k=2)
        X @ np.ones(8)
        cluster.lose(1)
        X @ np.ones(8)
        log, marks = cluster.log, list(cluster._driver.log.marks)
    assert {r.kind for r in log} >= {"send", "reply", "round", "done", "result", "lost", "stored"}
    assert marks == [r for r in log if r.kind not in TASK_KINDS]
    assert list(EventLog(log).marks) == marks


@pytest.mark.engine
def test_memory_and_bytes_of_local_workers_are_in_the_log_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kofn.report.usage.EVERY", 0.1)
    path = tmp_path / "run.jsonl"
    A = np.ones((1000, 1000))

    def told() -> dict[int, dict[str, float]]:
        return {r.worker: dict(r.numbers) for r in read_log(path) if r.kind == "usage"}

    with kofn.connect("local", workers=2, log=path) as cluster:
        cluster.encode(A, k=1)  # each keeps all of A
        until(lambda: all(one["moved"] >= A.nbytes for one in told().values()) and told(), "it")
    assert told().keys() == {0, 1}
    assert all(one["resident"] > 1 << 20 for one in told().values())


def test_what_a_cluster_writes_is_its_log(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with kofn.connect(VirtualEngine(4), log=path) as cluster:
        X = cluster.encode(np.eye(8), k=2)
        X @ np.ones(8)
        cluster.lose(1)
        X @ np.ones(8)
        log = cluster.log
    *records, last = read_log(path)
    assert last.kind == "closed"
    assert records == [record._replace(time=round(record.time, 9)) for record in log]
    head = json.loads(path.read_text().splitlines()[0])
    assert (head["kind"], head["engine"], head["workers"]) == ("log", "virtual", [0, 1, 2, 3])
    results = [record for record in records if record.kind == "result"]
    assert [record.rows for record in results] == [8, 8]
    assert "every row has come from 2 workers" in records[4].why


def test_a_log_is_read_while_it_grows(tmp_path: Path) -> None:
    log: deque[Record] = deque()
    path = tmp_path / "run.jsonl"
    file = writer(path, log)
    reader = LogReader(path)
    assert reader.take() == []
    log.append(note(1.0))
    until(lambda: path.read_text().count("\n") == 2, "the writer's thread")
    assert reader.take() == [note(1.0)]
    with path.open("a") as half:  # as a copy on its way
        text = line(note(2.0))
        half.write(text[:20])
        half.flush()
        assert reader.take() == []
        half.write(text[20:])
    assert reader.take() == [note(2.0)]
    file.close()
    file.close()
    reader.close()


def test_a_full_file_makes_room_and_no_reader_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST", 2_000)
    log: deque[Record] = deque()
    path = tmp_path / "run.jsonl"
    file = writer(path, log)
    reader, followed = LogReader(path), []
    for i in range(200):
        log.append(note(float(i), "joined" if i == 5 else "reply", worker=7))
        if i % 10 == 9:
            file.flush()
            followed += reader.take()
    assert [record.time for record in followed] == list(range(200))
    assert {one.name for one in tmp_path.iterdir()} == {"run.jsonl", "run.jsonl.1"}
    assert all(one.stat().st_size <= 2_000 for one in tmp_path.iterdir())
    late = read_log(path)  # who comes later has the newest two parts
    assert late == followed[-len(late) :]
    assert len(late) > 20
    assert reader.head["part"] > 5
    assert reader.head["workers"] == [0, 1, 7]  # who is live is said again in each part
    file.close()
    reader.close()


def test_a_copy_that_is_made_anew_is_followed(tmp_path: Path) -> None:
    log: deque[Record] = deque()
    path, copy, other = tmp_path / "run.jsonl", tmp_path / "copy.jsonl", tmp_path / "part"
    file = writer(path, log)
    log.append(note(1.0))
    file.flush()
    shutil.copy(path, copy)
    reader = LogReader(copy)
    assert reader.take() == [note(1.0)]
    log.append(note(2.0))
    file.flush()
    shutil.copy(path, other)
    other.replace(copy)  # as rsync does
    assert reader.take() == [note(2.0)]
    assert not reader.anew
    file.close()
    again = writer(path, deque([note(5.0)]))
    again.close()
    shutil.copy(path, other)
    other.replace(copy)
    assert reader.take() == [note(5.0)]
    assert reader.anew  # another run
    reader.close()


def test_a_file_that_another_run_begins_anew_is_not_mixed_with_the_one_before(
    tmp_path: Path,
) -> None:
    """Both runs write to the same place; the second has written more when it is looked at."""
    path = tmp_path / "run.jsonl"
    writer(path, deque([note(1.0)])).close()
    reader = LogReader(path)
    assert reader.take() == [note(1.0)]
    later = [note(5.0 + i) for i in range(20)]
    writer(path, deque(later)).close()
    assert reader.take() == later
    assert reader.anew
    reader.close()


def test_what_is_read_just_before_a_copy_is_made_anew_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is emptied after it was read, and is whole again when its header is looked at."""
    records, path = [note(float(i)) for i in range(6)], tmp_path / "run.jsonl"
    writer(path, deque(records)).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    reader = LogReader(path)
    assert reader.take() == records[:2]
    path.write_bytes(b"".join(lines))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: b"")
        assert reader.take() == records[2:]
    assert reader.take() == []
    reader.close()


def test_what_was_written_just_before_a_file_was_full_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on between two calls of the reader's: after it has read, before it looks."""
    log: deque[Record] = deque([note(0.0)])
    path = tmp_path / "run.jsonl"
    file = writer(path, log)
    file.flush()
    reader = LogReader(path)
    assert reader.take() == [note(0.0)]
    replaced, later = reader._replaced, [note(1.0 + i) for i in range(9)]

    def meanwhile() -> bool:
        log.extend(later[:3])
        file.flush()
        monkeypatch.setattr(logs, "MOST", 0)
        log.extend(later[3:])
        file.flush()
        return replaced()

    monkeypatch.setattr(reader, "_replaced", meanwhile)
    assert reader.take() == later
    file.close()
    reader.close()


def test_two_runs_at_once_do_not_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = writer(path, deque([note(1.0)]))
    with pytest.raises(CannotWrite, match="another run is writing it"):
        writer(path, deque())
    file.close()
    assert read_log(path) == [note(1.0)]  # what it had written is still there
    writer(path, deque()).close()


@pytest.mark.engine
def test_a_forked_child_does_not_keep_the_log_from_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = writer(path, deque())
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    try:
        file.close()
        writer(path, deque([note(1.0)])).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert read_log(path) == [note(1.0)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line"),
        ('{"time": 1, "kind": "reply"}\n', "first line"),
        ('{"kind": "log", "format": 9}\n', "format 1"),
        ('{"kind": "log", "format": 1}\n', "run"),
        ('{"kind":"log","format":1,"run":"a","part":0,"engine":"","workers":[{}]}\n', "workers"),
        ("HEAD" + "[" * 100_000 + "\n", "line 2"),
        ('HEAD{"time": 0, "kind": "reply", "round": Infinity}\n', "line 2"),
        ('HEAD{"time": NaN, "kind": "reply"}\n', "line 2"),
        ('HEAD{"time": 0, "kind": "send", "round": 1, "task": 1}\n', "line 2"),
        ("HEAD{\n", "line 2"),
        ("HEAD[1, 2]\n", "line 2"),
        ('HEAD{"kind": "reply"}\n', "line 2"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, why: str) -> None:
    head = '{"kind": "log", "format": 1, "run": "a", "part": 0, "engine": "", "workers": []}\n'
    path = tmp_path / "x"
    path.write_text(text.replace("HEAD", head))
    with pytest.raises(BadInput, match=why):
        read_log(path)


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not there"):
        read_log(tmp_path / "x")


def test_a_place_that_takes_no_log_is_said_before_the_run(tmp_path: Path) -> None:
    engine = VirtualEngine(2)
    with pytest.raises(CannotWrite, match="log must be a file"):
        kofn.connect(engine, log=tmp_path / "no" / "run.jsonl")


def test_a_disk_that_fills_up_ends_the_log_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: deque[Record] = deque()
    file = writer(tmp_path / "run.jsonl", log)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "_write", full)
    log.append(note(1.0))
    with pytest.warns(kofn.LogWarning, match="No space left on device. The run goes on."):
        file.flush()
    monkeypatch.undo()
    log.append(note(2.0))
    file.close()
    assert read_log(tmp_path / "run.jsonl") == []


@pytest.mark.engine
def test_a_forked_child_does_not_write_into_the_log(tmp_path: Path) -> None:
    log: deque[Record] = deque()
    file = writer(tmp_path / "run.jsonl", log)
    child = os.fork()
    if child == 0:
        log.append(note(1.0))
        file.flush()
        file.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log.append(note(2.0))
    file.close()
    assert read_log(tmp_path / "run.jsonl") == [note(2.0)]
