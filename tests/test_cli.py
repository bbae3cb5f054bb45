"""The command: what it prints for people, what it prints for machines."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import Command

from kofn import connect
from kofn.cli.demo_view import JOINED, KILLED, LATE, USED, Lanes, View
from kofn.cli.output import print_text
from kofn.engines.virtual import VirtualEngine
from kofn.model import Record
from kofn.testing import Faults


@pytest.mark.engine
def test_demo_json_is_one_object_and_true(command: Command) -> None:
    done = command("demo", "--json", "--rounds", "60", "--size", "600", "--pace", "0.01")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar in a pipe
    result = json.loads(done.stdout)
    assert result["rounds"] == 60
    assert result["plain_died"].startswith("this needs 6 live workers")
    assert 0 <= result["plain_rounds"] < 60
    assert result["lost"] == 3
    assert result["joined"] == 3
    assert result["restarted"] == 0
    assert result["max_relative_error"] < 1e-12
    assert result["seconds"] > 0
    events = result["events"]
    assert [e["event"] for e in events] == ["lost"] * 3 + ["joined"] * 3
    assert [e["worker"] for e in events][:3] == [1, 4, 2]
    assert {e["worker"] for e in events[3:]} == {6, 7, 8}  # in whichever order they came
    assert [e["live_after"] for e in events] == [5, 4, 3, 4, 5, 6]
    for event in events:
        assert event["ms_per_round_before"] > 0
        assert event["ms_per_round_after"] > 0


def test_the_demo_has_a_line_for_each_worker_and_says_who_is_waited_for() -> None:
    log: deque[Record] = deque()
    lanes = Lanes(log, range(3))

    def happens(kind: str, worker: int = -1, rows: int = 0) -> None:
        log.append(Record(0.0, kind, 1, worker, 1, rows))

    happens("round")
    for worker in range(3):
        happens("send", worker, 10)
    lanes.update()
    assert lanes.waiting == []  # nobody has answered yet
    happens("reply", 0, 10)
    happens("lost", 1)
    lanes.update()
    assert lanes.waiting == [2]
    assert lanes.news == "worker 1 killed"
    happens("done")
    happens("joined", 3)
    lanes.update()
    assert [mine[1] for _, mine in sorted(lanes.cells.items())] == [USED, KILLED, LATE, JOINED]
    assert lanes.waiting == []
    shown = Console(width=80).render_lines(View(lanes, lanes, 9, quiet=True).picture())
    text = "\n".join("".join(segment.text for segment in line).rstrip() for line in shown)
    assert "worker 1 ✕" in text
    assert "round 1 of 9, 3 workers live" in text
    assert max(map(len, text.splitlines())) <= 80
    for _ in range(50):  # more rounds than there is room for
        happens("round")
        happens("done")
    (line,) = Console(width=80).render_lines(lanes.lines(30, True))[1:2]
    assert "".join(segment.text for segment in line).split() == ["worker", "1", "✕"]


def test_sentences_are_broken_between_words_at_a_terminal_and_not_in_a_file() -> None:
    said = "a sentence of more than twenty columns, and not a short one"
    for terminal in (True, False):
        out = io.StringIO()
        print_text(Console(file=out, width=20, force_terminal=terminal, color_system=None), said)
        lines = out.getvalue().splitlines()
        assert " ".join(line.strip() for line in lines) == said
        assert (len(lines) == 1) is not terminal


@pytest.mark.engine
def test_demo_for_people_and_its_picture(command: Command, tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    args = ("--rounds", "60", "--size", "300", "--pace", "0.01", "--plot", str(picture))
    done = command("demo", *args)
    assert done.returncode == 0, done.stderr
    assert "rounds restarted" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Coded: 60 of 60 products right, 3 workers killed. Plain: dead after ")
    assert len(last) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5_000


def test_a_picture_that_cannot_be_written_is_said_before_the_run(
    command: Command, tmp_path: Path
) -> None:
    done = command("demo", "--plot", str(tmp_path / "no" / "such" / "run.png"))
    assert done.returncode == 1
    assert "kofn:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.engine
@pytest.mark.long
def test_bench_overhead_json_has_what_it_measured(command: Command) -> None:
    done = command("bench", "overhead", "--json", "--rounds", "50")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (figure,) = result["figures"].values()
    assert figure["ratio"] == pytest.approx(figure["value"] / figure["limit"])
    assert figure["spread"][0] <= figure["spread"][1]
    assert result["rows_read_per_worker"] == [100] * 6
    assert (result["bench"], result["settings"]) == ("overhead", {"rounds": 50})
    assert result["machine"]["cores"] >= 1


@pytest.mark.engine
def test_bench_verify_json_has_what_it_measured(command: Command) -> None:
    done = command("bench", "verify", "--json", "--rounds", "2", "--rows", "400")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["figures"]) == 6
    for kinds in result["cpu"].values():
        assert all(spent["all_us"] > spent["master_us"] > 0 for spent in kinds.values())
    assert 0 < result["unseen"]["parity"] < result["unseen"]["probe"] < 1e-3
    assert result["kept_of_matrix"]["plain"] == 0


@pytest.mark.engine
def test_bench_reaction_json_has_what_it_measured(command: Command) -> None:
    done = command("bench", "reaction", "--json", "--times", "3")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert all(figure["limit"] > 0 for figure in result["figures"].values())
    assert all(figure["value"] > 0 for figure in result["figures"].values())


def test_engines_are_listed(command: Command) -> None:
    result = json.loads(command("engines", "--json").stdout)
    found = {engine["name"]: engine for engine in result["engines"]}
    assert set(found) >= {"local", "virtual", "ray", "dask", "mpi"}
    assert found["local"]["installed"]
    for engine in found.values():
        assert engine["installed"] == (engine["install"] is None)
    shown = command("engines").stdout
    assert "local" in shown
    for engine in found.values():
        assert engine["install"] is None or engine["install"] in shown


@pytest.mark.engine
def test_help_and_version(command: Command) -> None:
    assert "demo" in command("--help").stdout
    assert command("--version").stdout.startswith("kofn 0.")
    bad = command("demo", "--rounds", "1")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
    # In a process of its own too, in which every warning is an error.
    alone = [sys.executable, "-W", "error", "-m", "kofn", "engines"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_shows_a_run_until_it_is_over(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "run.jsonl"
    engine = Faults().lose(worker=1, round=2).on(VirtualEngine(14))
    with connect(engine, log=log) as cluster:
        X = cluster.encode(np.ones((60, 4)), k=2)
        for _ in range(3):
            X @ np.ones(4)

        def later(seconds: float) -> None:
            X @ np.ones(4)
            cluster.close()

        monkeypatch.setattr("kofn.cli.watch.time.sleep", later)
        assert "4 rounds" in command("watch", str(log)).stdout
    shown = command("watch", str(log), "--once").stdout
    assert "and 1 more" in shown  # workers than there are lines for
    assert "worker 1 was lost" in shown
    assert "\nworker 1 " not in shown


@pytest.mark.parametrize("name", ["foo", "virtual"])
def test_bench_engines_refuses_what_it_cannot_measure(command: Command, name: str) -> None:
    done = command("bench", "engines", "--rounds", "20", name, "local")
    assert (done.returncode, done.stdout) == (1, "")  # before anything is measured
    assert done.stderr.startswith("kofn: ")
    assert f"'{name}'" in done.stderr
    assert "dask, local, mpi, ray" in done.stderr


def test_a_rival_takes_its_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from kofn.cli.bench import bare

    def slow(w: Any) -> Any: ...
    def fast(w: Any) -> Any: ...

    def timed(way: Any, w: Any) -> Any:
        return lambda rounds: [1.0 if way is fast else 2.0] * rounds

    monkeypatch.setattr(bare, "timed", timed)
    assert bare.fastest([slow, fast, slow], np.ones(2)) is fast
