"""The command: what it prints for people, what it prints for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

from kofn.cli import demo


def kofn(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", "from kofn.cli import main; main()", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, **options
    )


@pytest.mark.engine
def test_demo_json_is_one_object_and_true() -> None:
    done = kofn("demo", "--json", "--rounds", "120", "--size", "600")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar in a pipe
    result = json.loads(done.stdout)
    assert result["rounds"] == 120
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


@pytest.mark.engine
def test_demo_tells_the_last_event_last(monkeypatch: pytest.MonkeyPatch) -> None:
    news: list[str] = []
    update = Progress.update

    def noted(self: Progress, *args: Any, **fields: Any) -> None:
        news.extend([fields["news"]] if "news" in fields else [])
        update(self, *args, **fields)

    monkeypatch.setattr(Progress, "update", noted)
    for _ in range(3):  # who joins between two rounds is in no round's report
        result = demo.run(60, 60, 0, None, quiet=True)
        assert [e["event"] for e in result["events"]] == ["lost"] * 3 + ["joined"] * 3
        assert f"worker {result['events'][-1]['worker']} joined" in news[-1]


@pytest.mark.engine
def test_demo_for_people_and_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    done = kofn("demo", "--rounds", "100", "--size", "300", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "rounds restarted" in done.stdout
    assert "3 of 6 workers were killed" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5_000


@pytest.mark.engine
def test_a_picture_that_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    done = kofn("demo", "--plot", str(tmp_path / "no" / "such" / "run.png"))
    assert done.returncode == 1
    assert "kofn:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.engine
def test_bench_overhead_json_has_what_it_measured() -> None:
    done = kofn("bench", "overhead", "--json", "--rounds", "50")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    tiny, cast = result["tiny_round"], result["broadcast"]
    assert tiny["ratio"] == pytest.approx(tiny["kofn"]["median_us"] / tiny["bare"]["median_us"])
    assert tiny["rows_read_per_worker"] == [100] * 6
    assert cast["workers"] == 20
    assert cast["ratio"] > 0


@pytest.mark.engine
def test_bench_verify_json_has_what_it_measured() -> None:
    done = kofn("bench", "verify", "--json", "--rounds", "2", "--rows", "400")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for times in result["times"].values():
        for kind in ("probe", "parity"):
            both = times[kind]["median_us"] / times["plain"]["median_us"]
            assert times[kind]["ratio"] == pytest.approx(both)
            assert times[kind]["cpu_us"] > times[kind]["master_us"] > 0
    assert 0 < result["unseen"]["parity"] < result["unseen"]["probe"] < 1e-3
    assert result["kept_of_matrix"]["plain"] == 0


@pytest.mark.engine
def test_bench_reaction_json_has_what_it_measured() -> None:
    done = kofn("bench", "reaction", "--json", "--times", "3")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["cancel_ms"]["median"] < 5_000  # generous: this machine may be busy
    assert result["kill_noticed_ms"]["median"] < 5_000


@pytest.mark.engine
def test_engines_are_listed() -> None:
    result = json.loads(kofn("engines", "--json").stdout)
    found = {engine["name"]: engine for engine in result["engines"]}
    assert set(found) >= {"local", "virtual", "ray", "dask", "mpi"}
    assert found["local"]["installed"]
    for engine in found.values():
        assert engine["installed"] == (engine["install"] is None)
    shown = kofn("engines").stdout
    assert "local" in shown
    for engine in found.values():
        assert engine["install"] is None or engine["install"] in shown


@pytest.mark.engine
def test_help_and_version() -> None:
    assert "demo" in kofn("--help").stdout
    assert kofn("--version").stdout.startswith("kofn 0.")
    bad = kofn("demo", "--rounds", "1")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


@pytest.mark.engine
@pytest.mark.parametrize("name", ["foo", "virtual"])
def test_bench_engines_refuses_what_it_cannot_measure(name: str) -> None:
    done = kofn("bench", "engines", "--rounds", "20", name, "local")
    assert (done.returncode, done.stdout) == (1, "")  # before anything is measured
    assert done.stderr.startswith("kofn: ")
    assert f"'{name}'" in done.stderr
    assert "dask, local, mpi, ray" in done.stderr


def test_a_rival_takes_its_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from kofn.cli import bare

    def slow(w: Any) -> Any: ...
    def fast(w: Any) -> Any: ...

    def timed(way: Any, w: Any) -> Any:
        return lambda rounds: [1.0 if way is fast else 2.0] * rounds

    monkeypatch.setattr(bare, "timed", timed)
    assert bare.fastest([slow, fast, slow], np.ones(2)) is fast
