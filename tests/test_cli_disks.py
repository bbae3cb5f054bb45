"""The command where a disk is full, a limit is reached or the output goes nowhere: one line."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Command, Done

import kofn
from kofn.cli import app, places, running
from kofn.cli.fit import Fit, run
from kofn.engines.virtual import VirtualEngine
from kofn.errors import CannotWrite
from kofn.files import Place
from kofn.learn import load

pytestmark = pytest.mark.engine

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
SIMULATED = ("--work", "product", "--workers", 4, "--timings", "exponential(unit=8)", "--rounds", 2)
X = np.random.default_rng(0).standard_normal((60, 4))
Y = (X[:, 0] > 0).astype(int)


def command(*args: object, **more: Any) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-W", "error", "-c", "from kofn.cli import main; main()"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.run([*run, *map(str, args)], timeout=200, check=False, **options)


def is_one_line(done: subprocess.CompletedProcess[str], problem: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("kofn: ")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return {"data": tmp_path / "X.npy", "labels": tmp_path / "y.npy"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield path
    subprocess.run(["umount", str(path)], capture_output=True, check=True)


@needs_full
@pytest.mark.parametrize(
    "args",
    [
        ("engines",),
        pytest.param(("engines", "--json"), marks=pytest.mark.long),
        pytest.param(("--version",), marks=pytest.mark.long),
        ("encode", "X.npy", "store", "--n", 3, "--k", 2, "--json"),
        ("fit", "X.npy", "--labels", "y.npy", "--model", "svm", "--engine", "virtual", "--json"),
    ],
    ids=lambda args: " ".join(map(str, args)),
)
def test_output_that_goes_nowhere(
    args: tuple[object, ...], data: dict[str, Any], tmp_path: Path
) -> None:
    with FULL.open("w") as full:
        done = command(*args, stdout=full, cwd=tmp_path)
    is_one_line(done, "No space left on device")


@pytest.mark.parametrize(
    ("args", "unbuffered"),
    [
        (("--help",), ""),
        (("engines", "--json"), "1"),
        (("simulate", *SIMULATED), ""),
        pytest.param(("simulate", *SIMULATED), "1", marks=pytest.mark.long),
    ],
)
def test_output_whose_reader_left(args: tuple[object, ...], unbuffered: str) -> None:
    """As in `kofn simulate ... | head -1`: 141, as the shell says of cat, and not a word."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    try:
        done = command(*args, stdout=write, env=env)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("closed", "args", "code"), [(1, ["engines"], 0), (2, ["export"], 2)])
def test_an_output_that_is_closed(closed: int, args: list[str], code: int) -> None:
    done = command(*args, preexec_fn=lambda: os.close(closed))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@needs_full
def test_a_model_that_cannot_be_written_is_kept_elsewhere(
    data: dict[str, Any], tmp_path: Path
) -> None:
    args = ("fit", data["data"], "--labels", data["labels"], "--model", "svm")
    (tmp_path / "t").mkdir()
    done = command(
        *args,
        "--engine",
        "virtual",
        "--json",
        "--out",
        FULL,
        env={**os.environ, "TMPDIR": str(tmp_path / "t")},
    )
    is_one_line(done, "/dev/full: it cannot be written: No space left on device")
    assert FULL.is_char_device()  # not replaced by a file
    result = json.loads(done.stdout)  # what was found is told all the same
    assert result["score"] > 0.9
    kept = re.search(r"It is in (\S+) instead", done.stderr)
    assert kept is not None
    assert Path(kept[1]).parent == tmp_path / "t"
    assert load(kept[1]).score(X, Y) == result["score"]


def test_a_model_that_cannot_be_written_anywhere(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = Fit(**data, model="svm", workers=2, engine="virtual", out=tmp_path / "m.kofn")
    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", full)
        patch.setattr("tempfile.mkstemp", full)
        result = run(job, quiet=True)
    assert "No space left on device. Nor can it be kept elsewhere" in result["trouble"][1]
    with pytest.raises(CannotWrite, match=r"m\.kofn"):
        running.show(result, True, None)
    assert list(tmp_path.glob("*m.kofn*")) == []  # no half files, no room held


def test_a_disk_without_room_for_the_model_is_told_before_the_fit(
    data: dict[str, Any], disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("kofn.cli.fit.connect", lambda *_, **__: pytest.fail("workers started"))
        job = Fit(**data, model="svm", workers=2, engine="virtual", out=disk / "m.kofn")
        with pytest.raises(kofn.BadInput, match=r"room for it.*No space left on device"):
            run(job, quiet=True)
    assert list(disk.iterdir()) == []


def test_a_limit_on_the_size_of_files_is_told_before_the_fit(
    data: dict[str, Any], tmp_path: Path
) -> None:
    done = command(
        *("fit", data["data"], "--labels", data["labels"], "--model", "svm", "--engine", "virtual"),
        *("--out", tmp_path / "m.kofn"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    is_one_line(done, "File too large")
    assert list(tmp_path.glob("*m.kofn*")) == []


@pytest.mark.parametrize("model", ["ridge", "logistic", "svm", "mlp"])
def test_the_room_that_is_held_is_enough(
    model: str, data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    room = places.room

    def noted(path: Path, size: int) -> Any:
        held.append(size)
        return room(path, size)

    monkeypatch.setattr(places, "room", noted)
    wide = np.random.default_rng(1).standard_normal((60, 5000))  # the numbers are what counts
    np.save(tmp_path / "X.npy", wide)
    out = tmp_path / "m.kofn"
    job = Fit(**data, model=model, workers=2, engine="virtual", out=out, hidden="50", epochs=2)
    result = run(job, quiet=True)
    assert result["trouble"] is None
    size = out.stat().st_size + (tmp_path / "m.kofn.report.json").stat().st_size
    assert size <= held[0] < size + 500_000
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["X.npy", "y.npy", "m.kofn", "m.kofn.report.json"]
    )


def test_a_model_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "m.kofn", tmp_path / "link.kofn"
    places.save(path, b"old")
    link.symlink_to(path)

    def half(file: Any, view: memoryview) -> None:
        file.write(view[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("kofn.files.write_all", half)
        with pytest.raises(CannotWrite, match=r"It is in .* instead") as caught:
            places.save(path, b"newer")
    kept = re.search(r"It is in (\S+) instead", str(caught.value))
    assert kept is not None
    assert Path(kept[1]).read_bytes() == b"newer"
    Path(kept[1]).unlink()
    assert path.read_bytes() == b"old"
    places.save(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.kofn", "m.kofn"]


def test_a_pipe_is_written_by_the_name_of_its_descriptor() -> None:
    """As in `kofn trace record run.log --timings /dev/stdout | gzip`."""
    read, write = os.pipe()
    try:
        Place.of(f"/dev/fd/{write}").write(b"lines")
        assert os.read(read, 100) == b"lines"
    finally:
        os.close(read)
        os.close(write)


def test_a_picture_on_a_full_disk(tmp_path: Path, disk: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    (disk / "rest").write_bytes(bytes(250_000))
    done = command("demo", "--pace", 0.01, "--size", 60, "--json", "--plot", disk / "run.png")
    is_one_line(done, "the picture cannot be written: No space left on device")
    assert json.loads(done.stdout)["rounds"] == 60
    assert [p.name for p in disk.iterdir()] == ["rest"]


# What writes a file: the command, and the option that names it.
WRITES = [
    (("plan", *SIMULATED), "--plot", "p.png"),
    (("simulate", *SIMULATED), "--plot", "p.svg"),
    (("trace", "show", "t.csv"), "--plot", "p.pdf"),
    (("trace", "record", "run.log"), "--timings", "seconds.csv"),
    (("trace", "record", "run.log"), "--membership", "machines.csv"),
    (("calibrate", "--workers", 2), "--out", "costs.json"),
]


@pytest.fixture(params=WRITES, ids=lambda one: f"{one[0][0]} {one[0][1]} {one[1]}")
def writes(
    request: pytest.FixtureRequest,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Path], tuple[Done, str, Path]]:
    """A command that writes into a folder; returns what it said, its option, and the file."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("round,worker,seconds\n0,0,1\n0,1,2\n1,0,1\n1,1,2\n")
    with kofn.connect(VirtualEngine(2), log="run.log") as cluster:
        coded = cluster.encode(X, k=2)
        for _ in range(3):
            coded @ np.ones(4)
    words, option, name = request.param

    def write(folder: Path) -> tuple[Done, str, Path]:
        path = folder / name
        return command(*map(str, words), "--json", option, str(path)), option, path

    return write


def test_a_folder_that_is_not_there_is_named_with_its_option(
    writes: Callable[[Path], tuple[Done, str, Path]], tmp_path: Path
) -> None:
    done, option, _ = writes(tmp_path / "no")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"kofn: {option} must be a file in a directory that is there; {tmp_path / 'no'} is not. "
        f"Make the directory first.\n"
    )


def test_a_folder_that_takes_no_files_is_told_before_the_work(
    writes: Callable[[Path], tuple[Done, str, Path]], disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done, option, _ = writes(disk)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"kofn: {option} must be where files can be written; {disk}")


def test_a_full_disk_has_no_half_file_and_what_was_found_is_told(
    writes: Callable[[Path], tuple[Done, str, Path]], disk: Path
) -> None:
    with pytest.raises(OSError, match="No space"):
        (disk / "rest").write_bytes(bytes(1_000_000))
    done, option, path = writes(disk)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kofn: {path}: ")
    assert "cannot be written: No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [p.name for p in disk.iterdir()] == ["rest"]
    if option not in ("--timings", "--membership"):  # these are what was asked for
        assert json.loads(done.stdout)["trouble"][0] == str(path)


def test_two_traces_in_one_file_are_refused(command: Command, tmp_path: Path) -> None:
    one = str(tmp_path / "t.csv")
    done = command("trace", "record", "run.log", "--timings", one, "--membership", one)
    assert (done.returncode, done.stderr) == (
        1,
        f"kofn: --timings and --membership are two files; got {one} for both.\n",
    )


def test_a_benchmark_finds_out_before_it_runs_that_it_cannot_be_kept(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("kofn.cli.bench.commands.measure", lambda *_, **__: pytest.fail("measured"))
    done = command("bench", "overhead", "--out", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "--out must be a directory" in done.stderr


def test_costs_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(file: Any, view: memoryview) -> None:
        file.write(view[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, before = tmp_path / "costs.json", kofn.Costs(start_up=60.0)
    before.save(path)
    monkeypatch.setattr("kofn.files.write_all", half)
    with pytest.raises(CannotWrite, match="the costs cannot be written: No space left"):
        kofn.Costs().save(path)
    assert kofn.Costs.load(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_results_of_a_measurement_are_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Place, "write", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CannotWrite, match=r"results\.json: it cannot be written"):
        places.results(tmp_path / "out", {"a": 1})
    (kept,) = tmp_path.glob("kofn-results-*.json")
    assert json.loads(kept.read_text()) == {"a": 1}


def test_out_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left() -> None:
        raise MemoryError

    monkeypatch.setattr(app, "app", none_left)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("kofn: there is not enough memory")
