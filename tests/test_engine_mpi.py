"""The MPI engine keeps the contract under mpiexec, on one machine and as if on several."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="kofn[mpi] is not installed")

from ranks import ENVIRONMENT, MPIEXEC, NEEDED, finish, mpiexec, start_ranks
from support import PASS, SOAK, until

import kofn
from kofn.cli.bench import bare, bare_mpi
from kofn.cli.bench import engines as bench_engines
from kofn.engines._mpi_setup import problem
from kofn.errors import BadInput, EngineUnavailable
from kofn.testing.engines import gone

pytestmark = pytest.mark.engine
LONG = pytest.mark.long

PATIENCE = 4  # times as long on a machine that is busy with other tests


# What goes wrong at connect.


def test_without_mpiexec_the_remedy_is_told() -> None:
    with pytest.raises(
        EngineUnavailable, match=r"mpiexec --with-ft ulfm -n 7 .*connect\('local'\)"
    ):
        kofn.connect("mpi", workers=2)


def test_an_old_open_mpi_is_refused() -> None:
    def told(library: str) -> str:
        return problem(SimpleNamespace(Get_library_version=lambda: library), 1, None) or ""

    assert "5.0.6 or newer" not in told("Open MPI v5.0.11, package: Open MPI")
    old = told("Open MPI v4.1.6, package: Open MPI")
    assert "5.0.6 or newer, which can survive a lost worker; this is Open MPI v4.1.6:" in old
    assert "5.0.6 or newer, which can survive" in told("MPICH Version: 4.2.0")


def test_an_address_is_refused() -> None:
    with pytest.raises(BadInput, match="takes no address"):
        kofn.connect("mpi", address="somewhere")


# Under mpiexec.


def test_workers_of_another_machine_are_sent_messages() -> None:
    process = mpiexec(3, "mpi_programs/far.py")
    assert finish(process).splitlines()[-1] == "all of it held"
    assert process.returncode == 0


def test_who_was_given_up_is_used_again_when_it_answers() -> None:
    out = finish(mpiexec(4, "mpi_programs/again.py"))
    assert out.splitlines() == ["given up", "used again", "all of it held"], out


@LONG
def test_pagerank_equals_scipys_while_two_of_eight_are_killed() -> None:
    process = mpiexec(9, "mpi_programs/iterates.py")
    out = finish(process)
    assert out.splitlines() == ["ranks right", "newcomer took part"], out


@pytest.mark.skipif(not hasattr(socket, "SO_BINDTODEVICE"), reason="sockets cannot be bound here")
def test_on_one_machine_nobody_outside_can_connect() -> None:
    out = finish(mpiexec(3, "mpi_programs/listens.py"))
    assert set(out.split()) == {"listens", "lo"}, out


@LONG
def test_chaos_is_survived() -> None:
    args = ("chaos", "--engine", "mpi", "--seed", str(PASS), "--minutes", str(0.05 * SOAK))
    out = finish(start_ranks(7, [sys.executable, "-m", "kofn", *args, "--json"]), 3600)
    result = json.loads(out[out.index("{") :])
    assert result["checked"] > 0
    assert result["kills"] + result["freezes"] + result["interrupts"] > 0


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, marks=LONG) for how in ("raises", "vanishes", "freezes", "joins")),
        *("int", pytest.param("kill", marks=LONG), "both"),
    ],
)
def test_every_end_leaves_no_process_and_no_memory(how: str) -> None:
    process = mpiexec(3, "mpi_programs/ends.py", how)
    assert process.stdout is not None
    first = process.stdout.readline()
    pids = [int(pid) for pid in first.split()[1:]]
    assert len(pids) == 4, first + finish(process)
    segments: list[str] = []
    if how == "int":  # as a terminal does
        process.send_signal(signal.SIGINT)
    elif how in ("kill", "both"):
        maps = Path(f"/proc/{pids[0]}/maps").read_text().splitlines()
        segments = [line.split()[5] for line in maps if "/sm_segment." in line]
        assert segments
        if how == "both":  # so nobody is left who would tidy up
            process.kill()
        os.kill(pids[0], signal.SIGKILL)
    out = finish(process)
    until(lambda: all(gone(p) for p in pids), f"the end of the processes; they said {out}")
    assert not any(Path(path).exists() for path in segments)
    if how == "raises":
        assert "on purpose" in out
        assert process.returncode == 1
    if how in ("freezes", "joins"):
        assert process.returncode == 0


def marked(mark: str) -> list[int]:
    """Processes with this in their environment, zombies aside."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


# Some time after it was started, the rank that joins is in MPI's start, which then never ends.
@pytest.mark.parametrize(
    ("when", "how", "later"),
    [pytest.param("before", "raise", 0.0, marks=LONG), ("join", "kill", 0.3)],
)
def test_the_end_of_rank_0_at_any_time_is_that_of_all(
    tmp_path: Path, when: str, how: str, later: float
) -> None:
    # Everything that mpiexec starts, and spawned ranks that nobody knows yet, has this.
    mark = f"KOFN_TEST_MARK={tmp_path}"
    env = ENVIRONMENT | {"KOFN_TEST_MARK": str(tmp_path)}
    process = mpiexec(3, "mpi_programs/dies.py", when, how, str(later), env=env)
    assert process.stdout is not None
    # What it raises with goes another way, and may be here first.
    assert any(line.startswith("ends") for line in process.stdout)
    try:
        until(lambda: not marked(mark), "the end of all ranks and of mpiexec", 5.0 * PATIENCE)
    finally:
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_script_for_one_master_just_works() -> None:
    process = mpiexec(3, "mpi_programs/asks.py")
    out = finish(process)
    assert out.splitlines() == ["workers (0, 1)", "moved 9.0", "again (0,) 3"], out
    assert process.returncode == 0


def test_who_joined_ends_without_a_stain() -> None:
    # Only what a user must set in a container: nothing that makes mpiexec overlook the killed.
    process = mpiexec(3, "mpi_programs/joins.py", env=NEEDED)
    assert finish(process) == "took part 2\nstreams 1\n"
    assert process.returncode == 0


def test_fewer_workers_than_ranks() -> None:
    process = mpiexec(4, "mpi_programs/asks.py", "2")
    assert finish(process).startswith("workers (0, 1)\n")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("ranks", "asked", "ft", "message"),
    [
        (1, "", True, "started one rank, so no worker. Start it so: mpiexec --with-ft ulfm -n 7"),
        (3, "", False, "without fault tolerance. Start it so: mpiexec --with-ft ulfm -n 7"),
        (3, "5", True, "started 2 workers, 5 were asked for. Start it with -n 6"),
    ],
    ids=["alone", "no-ulfm", "too-few"],
)
def test_what_cannot_work_is_said_once_at_connect(
    ranks: int, asked: str, ft: bool, message: str
) -> None:
    process = mpiexec(ranks, "mpi_programs/asks.py", *([asked] if asked else []), ft=ft)
    out = finish(process)
    assert message in out
    assert out.count("EngineUnavailable") == 1
    assert process.returncode == 0


@LONG
def test_the_rival_of_kofn_bench_engines_does_the_same_in_every_way() -> None:
    A = np.random.default_rng(0).standard_normal((20, 3))
    w = np.arange(3.0)
    rounding = 3 * np.finfo(float).eps * float((np.abs(A) @ w).max())
    with bare.mpi_ranks(A, 0.0) as ranks:
        for way in bare_mpi.WAYS:
            np.testing.assert_allclose(ranks.by(way)(w), A @ w, rtol=0, atol=rounding)
            assert len(ranks.by(way).block(2)) == 2


@LONG
def test_what_a_killed_mpiexec_left_stops_no_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f"left/pmix.{socket.gethostname()}.tool"
    left.parent.mkdir()
    left.touch()
    again = tmp_path / "mpiexec"  # by a number that one had before
    again.write_text(f'#!/bin/sh\ncp -r {left.parent} {tmp_path}/ompi.$$\nexec {MPIEXEC} "$@"\n')
    again.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(bare, "mpiexec", lambda: str(again))
    with bare.mpi_ranks(np.eye(6), 0.0) as ranks:
        product = ranks.by(next(iter(bare_mpi.WAYS)))
        np.testing.assert_array_equal(product(np.arange(6.0)), np.arange(6.0))


@LONG
def test_kofn_bench_engines_measures_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_engines, "MANY", 2)
    found = bench_engines.run(["mpi"], rounds=20)
    assert found["problems"] == []
    assert set(found["figures"]) == {
        "mpi, tiny",
        "mpi, 5 ms",
        "mpi, operand of 800 KB to 2 workers",
    }
    assert found["engines"]["mpi"]["tiny"]["kofn"]["rounds"] == 20
