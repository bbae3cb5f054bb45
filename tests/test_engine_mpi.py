"""The MPI engine keeps the contract, by its own mpiexec and under the user's."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import SOAK, until

pytest.importorskip("mpi4py", reason="kofn[mpi] is not installed")

sys.path.insert(0, str(Path(__file__).parent / "mpi_programs"))

from doors import devices, found
from turns import Turn, Turns

import kofn
from kofn.cli import bare, bare_mpi
from kofn.engines import _mpi_pieces
from kofn.engines import _mpi_setup as mpi_setup
from kofn.engines._mpi_bridge import Bridge
from kofn.engines._mpi_near import Sample
from kofn.engines.mpi import MPIEngine
from kofn.errors import BadInput, CannotDo, Closed, EngineUnavailable
from kofn.model import Joined, Lost, Piece, Task
from kofn.testing._bodies import SHAPES, echo, measure, recall, shaped, toil
from kofn.testing.engines import Desk, EngineChecks, descendants, gone

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
# What mpiexec needs as root in a container, and what keeps it quiet about workers that were killed.
ENVIRONMENT = {**os.environ, **mpi_setup.DAEMON}
NEEDED = {k: v for k, v in ENVIRONMENT.items() if "PRTE_MCA" not in k or "mapping" in k}


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    turns = Turns(lambda: MPIEngine(4))
    yield turns
    turns.close()
    assert not [p for p in descendants() or () if not gone(p)]


def threads(kept: Any, operand: Any) -> Iterator[Piece]:
    import threadpoolctl

    np.ones((50, 50)) @ np.ones((50, 50))
    pools = threadpoolctl.threadpool_info()
    yield Piece(None, [p["num_threads"] for p in pools if p["user_api"] == "blas"])


def writable(kept: Any, operand: Any, argument: Any) -> Iterator[Piece]:
    yield Piece(None, [a.flags.writeable for a in (operand, kept["key"], argument)])


def dies(kept: Any, operand: Any, gate: str) -> Iterator[Piece]:
    yield Piece("before", 1)
    while not Path(gate).exists():  # what has not left a process dies with it
        pass
    os._exit(3)


class TestMPIEngine(EngineChecks):
    kills = 6 * SOAK

    @pytest.fixture
    def engine(self, turns: Turns) -> Iterator[Turn]:
        with turns.turn() as turn:
            yield turn

    def test_one_blas_thread_each(self, desk: Desk) -> None:
        for worker in desk.engine.workers:
            assert set(desk.value(desk.submit(worker, threads))) <= {1}

    def test_workers_read_and_the_master_owns(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        for size in (3, 100_000):
            desk.engine.broadcast(size, np.ones(size))
            desk.engine.put(worker, "key", np.ones(size))
            task = desk.submit(worker, writable, np.ones(size), round=size)
            assert desk.value(task) == [False, False, False]
            value = desk.value(desk.submit(worker, echo, np.ones(size)))[0]
            assert value.flags.writeable

    def test_what_is_sent_is_what_it_was(self, desk: Desk) -> None:
        worker, array = desk.engine.workers[0], np.ones(100_000)
        pid = desk.engine.pid(worker)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            desk.engine.broadcast(1, array)
            task, argument = desk.submit(worker, measure), desk.submit(worker, echo, array)
            array[:] = 7.0
        finally:
            os.kill(pid, signal.SIGCONT)
        assert desk.value(task)[1] == 100_000
        assert desk.value(argument)[0].sum() == 100_000

    def test_rounds_that_nobody_cancels(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        for round in range(200):
            desk.engine.broadcast(round, np.full(10_000, 1.0))
            desk.until_ended(desk.submit(worker, measure, round=round))
        with pytest.raises(BadInput, match="Cancel rounds"):
            desk.submit(worker, measure, round=3)
        assert desk.value(desk.submit(desk.engine.workers[1], measure, round=199))[1] == 10_000

    def test_many_bodies(self, desk: Desk) -> None:
        def make(i: int) -> Any:
            return lambda kept, operand: iter([Piece(i, i)])

        tasks = [desk.submit(w, make(i)) for i in range(600) for w in desk.engine.workers[:2]]
        assert [desk.value(t) for t in tasks] == [i for i in range(600) for _ in range(2)]

    def test_a_queue_of_stale_tasks_goes_fast(self, desk: Desk) -> None:
        worker = desk.engine.workers[0]
        first = desk.submit(worker, toil, 3000)
        queue = [desk.submit(worker, toil, 3000) for _ in range(1000)]
        desk.until(lambda: bool(desk.pieces[first]), "the first piece")
        began = desk.engine.now()
        desk.engine.cancel(1)
        desk.until_ended(first, *queue)
        assert desk.engine.now() - began < 10

    def test_a_worker_that_exits_is_lost_like_one_that_is_killed(
        self, desk: Desk, tmp_path: Path
    ) -> None:
        worker, gate = desk.engine.workers[1], tmp_path / "gate"
        task = desk.submit(worker, dies, str(gate))
        desk.until(lambda: bool(desk.pieces[task]), "the first piece")
        gate.touch()
        assert desk.wait(Lost, worker=worker).tasks == (task,)
        assert [r.what for r in desk.pieces[task]] == ["before"]

    def test_a_frozen_worker_is_lost_when_we_say_so(self, desk: Desk) -> None:
        engine, victim = desk.engine, desk.engine.workers[0]
        pid = engine.pid(victim)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        tasks = [desk.submit(victim, echo, np.ones(100_000)) for _ in range(20)]
        began = engine.now()
        engine.lose(victim)
        assert desk.wait(Lost, worker=victim).tasks == tuple(tasks)
        assert engine.now() - began < 5

    def test_what_cannot_be_pickled_is_refused(self, engine: Turn) -> None:
        with pytest.raises(BadInput, match="pickling"):
            engine.put(engine.workers[0], "key", (i for i in range(3)))
        with pytest.raises(BadInput, match="pickling"):
            engine.submit(Task(0, 1, engine.workers[0], echo, ((i for i in range(3)),)))
        engine.broadcast(1, 1)
        with pytest.raises(BadInput, match="one operand"):
            engine.broadcast(1, 1)

    def test_the_end_of_rank_0_is_the_end_of_all(self, desk: Desk, engine: Turn) -> None:
        inner, (first, *others) = engine.engine, engine.workers
        assert isinstance(inner, MPIEngine)
        link = inner._house.link
        assert isinstance(link, Bridge)
        assert link.carrier is not None
        task = desk.submit(first, toil, 10**9)
        link.carrier.kill()
        assert desk.wait(Lost, worker=first).tasks == (task,)
        for worker in others:
            desk.wait(Lost, worker=worker)
        assert engine.workers == ()
        desk.wait(Lost, worker=engine.join())  # nobody is there to start one
        engine.close()

    @pytest.mark.parametrize("workers", [0, -1, 2.0, "4", True])
    def test_a_wrong_number_of_workers_is_refused(self, workers: Any) -> None:
        with pytest.raises(BadInput, match="at least 1"):
            MPIEngine(workers)


def test_two_engines_at_a_time_and_one_forgotten() -> None:
    one, two = MPIEngine(1), MPIEngine(1)
    for engine in (one, two):
        desk = Desk(engine, 30)
        assert desk.value(desk.submit(0, echo, 1)) == (1,)
    pids = [two.pid(0), *(descendants() or ())]
    one.close()
    with pytest.raises(Closed):
        one.join()
    desk = Desk(two, 30)
    assert desk.value(desk.submit(0, echo, 2, round=2)) == (2,)
    desk.engine = one
    del two, engine
    assert all(gone(pid) for pid in pids if pid)


def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers find something else where our sample should be, as on another machine.

    The machine would have the same host name, and the same process and descriptor numbers.
    """
    true = Sample.__init__

    def false(sample: Sample) -> None:
        true(sample)
        sample.mark = (*sample.mark[:3], "00" * 16)

    monkeypatch.setattr(Sample, "__init__", false)


def in_workers(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Have the processes that are started run a line first."""
    boot = mpi_setup._BOOT.replace("    main(*bridge)\n", f"    {line}\n    main(*bridge)\n")
    assert boot != mpi_setup._BOOT
    monkeypatch.setattr(mpi_setup, "_BOOT", boot)


@pytest.mark.parametrize("piece", [1 << 20, 1001], ids=["pieces", "many-pieces"])
def test_workers_of_another_machine_are_sent_messages(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers(monkeypatch)
    monkeypatch.setattr(_mpi_pieces, "piece", piece)
    in_workers(monkeypatch, f"from kofn.engines import _mpi_pieces; _mpi_pieces.piece = {piece}")
    with MPIEngine(2) as engine:
        assert not any(peer.near for peer in engine._live.values())
        X = kofn.connect(engine).encode(np.eye(4), k=1)
        with pytest.raises(CannotDo, match=r"'mpi' cannot do that.*w = f\(X @ w\)"):
            X.iterate(lambda y: y, np.ones(4), rounds=1)
        desk = Desk(engine, 30)
        engine.put(0, "key", np.ones(300_000))
        engine.broadcast(1, np.ones(300_000))
        tasks = [desk.submit(worker, measure) for worker in engine.workers]
        kept = desk.submit(0, recall, "key")
        large = desk.submit(1, shaped, "huge")
        own = desk.submit(0, writable, np.ones(300_000))
        assert [desk.value(task)[1] for task in tasks] == [300_000, 300_000]
        assert desk.value(kept) == ("has", 300_000)
        np.testing.assert_array_equal(desk.value(large), SHAPES["huge"]())
        assert desk.value(own) == [False, False, False]
        values = np.random.default_rng(0).standard_normal((2, 200_001))
        found = desk.value(desk.submit(1, echo, values))[0]
        np.testing.assert_array_equal(found, values)
        assert found.flags.writeable
        for round in range(2, 50):
            engine.broadcast(round, np.full(20_000, float(round)))
            task = desk.submit(round % 2, measure, round=round)
            assert desk.value(task)[2] == round
            engine.cancel(round)


def test_a_process_number_of_another_machine_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strangers(monkeypatch)
    with MPIEngine(2) as engine:
        assert [engine.pid(worker) for worker in engine.workers] == [None, None]
        monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a stranger may have that number"))
        desk = Desk(engine, 30)
        engine.lose(0)  # told to end, as it cannot be killed from here
        desk.wait(Lost, worker=0)
        assert desk.value(desk.submit(1, echo, 1)) == (1,)


def test_who_has_the_number_of_a_lost_worker_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MPIEngine(2) as engine:
        pid = engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: gone(pid), "the end of the worker")
        # From here on the number may be anybody's; the engine has not looked yet.
        monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("somebody else may have it by now"))
        engine.lose(0)
        Desk(engine, 30).wait(Lost, worker=0)


@pytest.mark.skipif(not hasattr(socket, "SO_BINDTODEVICE"), reason="sockets cannot be bound here")
def test_on_one_machine_nobody_outside_can_connect() -> None:
    with MPIEngine(2) as engine:
        Desk(engine, 60).wait(Joined, worker=engine.join())
        daemons = [devices(pid) for pid in descendants() or ()]
        assert {device for each in daemons for device in each} == {"lo"}
        assert [set(each) for each in found(engine)] == [{"lo"}] * 3
    out = finish(mpiexec(3, "mpi_programs/doors.py"))
    assert set(out.split()) == {"doors", "lo"}, out


@pytest.mark.parametrize("ranks", [0, 7])
def test_interrupts_of_any_operation_are_no_harm(ranks: int) -> None:
    count = 25 * SOAK
    args = ["--engine", "mpi", "--count", str(count)]
    command = [sys.executable, str(HERE / "interrupts.py"), *args]
    process = mpiexec(ranks, "interrupts.py", *args) if ranks else start(command)
    out = finish(process, 3600)
    assert f"seed 0: {count} interrupts" in out, out


def test_large_messages_are_cut_and_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mpi_pieces, "piece", 1000)
    monkeypatch.setattr(_mpi_pieces, "SMALL", 3000)
    data = np.random.default_rng(0).bytes(54_321)
    (tag, head), *pieces = _mpi_pieces.cut(data)
    assert (tag, _mpi_pieces.HEAD.unpack(head)) == (_mpi_pieces.DATA, (len(data),))
    assert {tag for tag, _ in pieces} == {_mpi_pieces.LARGE}
    assert max(len(piece) for _, piece in pieces) == 1000  # counts of MPI are of 32 bits

    def receive(room: memoryview) -> int:
        room[:] = pieces.pop(0)[1]
        return len(room)

    arriving = _mpi_pieces.Arriving(len(data), receive)
    while not arriving.arrived():
        assert len(arriving.requests) <= _mpi_pieces.FLIGHT
    assert bytes(arriving.whole) == data


# Without a master.

pagerank = runpy.run_path(str(HERE.parent / "examples" / "pagerank.py"))


def test_pagerank_equals_scipys_while_two_of_eight_are_killed() -> None:
    N, rounds = 10_000, 100
    A, follow = pagerank["links"](N), pagerank["follow"]
    start = np.full(N, 1.0 / N)
    with kofn.connect("mpi", workers=8) as cluster:
        X = cluster.encode(A, k=4)
        kills = [(9, 6), (5, 0)]  # worker 0 leads; who leads after it may not tell of every round

        def on_round(round: int, change: float) -> None:
            if kills and round >= kills[-1][0]:
                cluster.lose(kills.pop()[1])  # kill -9

        ranks = X.iterate(follow, start, rounds=rounds, on_round=on_round)
        report = X.report
        assert sorted(cluster.workers) == [1, 2, 3, 4, 5, 7]
        # What passes the master does not depend on the length of the vector.
        per_round = {N: report.extra["bytes_per_round"]}
        short = cluster.encode(pagerank["links"](500), k=4)
        short.iterate(follow, np.full(500, 1.0 / 500), rounds=rounds)
        per_round[500] = short.report.extra["bytes_per_round"]
    expected = start
    for _ in range(rounds):
        expected = follow(A @ expected)
    assert float(np.abs(ranks - expected).max()) <= 1e-10
    assert set(report.lost) == {0, 6}
    assert report.extra["epochs"] >= 3
    assert not report.restarted
    assert all(20 < size < 1000 for size in per_round.values()), per_round  # a vector is 80,000


def test_a_spawned_worker_takes_part_in_an_iteration() -> None:
    A = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))[0]
    with kofn.connect("mpi", workers=2, wait=60.0) as cluster:
        X = cluster.encode(A, k=2)

        def on_round(round: int, change: float) -> None:
            if round == 5:
                cluster.lose(1)
                cluster.engine.join()  # without it there is no going on

        w = X.iterate(lambda y: y, np.ones(60), rounds=50, on_round=on_round)
        assert X.report.lost == (1,)
        assert X.report.joined == (2,)
        assert X.report.rows_read[2] > 0
    np.testing.assert_allclose(w, np.linalg.matrix_power(A, 50) @ np.ones(60), atol=1e-11)


# What goes wrong at connect.


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_another_mpi_or_an_old_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match=r"there is none: pip install 'kofn\[mpi\]'"):
        MPIEngine(1)
    program(tmp_path / "mpiexec", "echo HYDRA build details: Version: 4.1")
    with pytest.raises(EngineUnavailable, match=r"can survive a lost worker; .* is HYDRA"):
        MPIEngine(1)
    program(tmp_path / "mpiexec", "echo 'mpiexec (Open MPI) 4.1.6'")
    with pytest.raises(EngineUnavailable, match=r"5\.0\.6 or newer; this is 4\.1\.6"):
        MPIEngine(1)
    program(tmp_path / "mpiexec", "echo 'mpiexec (Open MPI) 5.0.11'")  # and starts nothing
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="that ended"):
        MPIEngine(1)
    assert time.monotonic() - began < 20


def test_workers_that_cannot_import_kofn_are_told_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt = "os.environ['OMPI_COMM_WORLD_RANK'] == '2' and sys.modules.update(kofn=None)"
    boot = mpi_setup._BOOT.replace("    import mpi4py\n", f"    {spoilt}\n    import mpi4py\n")
    monkeypatch.setattr(mpi_setup, "_BOOT", boot)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"must be able to import kofn"):
        MPIEngine(2)
    assert time.monotonic() - began < 20
    assert not [p for p in descendants() or () if not gone(p)]


def test_an_address_is_refused() -> None:
    with pytest.raises(BadInput, match="takes no address"):
        kofn.connect("mpi", address="somewhere")


# Under mpiexec.


def mpiexec(
    ranks: int, name: str, *args: str, ft: bool = True, env: dict[str, str] = ENVIRONMENT
) -> subprocess.Popen[str]:
    tolerance = ["--with-ft", "ulfm"] if ft else []
    program = [sys.executable, str(HERE / name), *args]
    return start([MPIEXEC, *tolerance, "-n", str(ranks), *program], env)


def start(command: list[str], env: dict[str, str] = ENVIRONMENT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Wait for the end; return what was printed."""
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"no end within {timeout} s; printed so far: {process.communicate()[0]}")


def test_the_engine_checks_pass_under_mpiexec() -> None:
    process = mpiexec(5, "mpi_programs/checks.py")
    out = finish(process, 240)
    assert process.returncode == 0, out
    assert re.search(r"^\d+ passed in", out, re.MULTILINE), out
    (segment,) = re.findall(r"segment (\S+)", out)
    assert not Path("/dev/shm", segment).exists()


def test_six_of_twelve_killed_in_flight_two_join_one_is_frozen() -> None:
    process = mpiexec(13, "mpi_programs/scenario.py")
    out = finish(process, 240)
    assert process.returncode == 0, out
    assert "every product right" in out


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        *((how, 3) for how in ("raises", "vanishes", "freezes", "joins", "int", "kill")),
        *((how, 0) for how in ("raises", "exits", "joins", "int", "kill")),
    ],
)
def test_every_end_leaves_no_process(how: str, ranks: int) -> None:
    name = "mpi_programs/ends.py"
    command = [sys.executable, str(HERE / name), how]
    process = mpiexec(ranks, name, how) if ranks else start(command)
    assert process.stdout is not None
    first = process.stdout.readline()
    pids = [int(pid) for pid in first.split()[1:]]
    assert len(pids) == 4, first + finish(process)
    if how == "int":  # as a terminal does
        process.send_signal(signal.SIGINT)
    elif how == "kill":
        os.kill(pids[0], signal.SIGKILL)
    out = finish(process)
    until(lambda: all(gone(p) for p in pids), f"the end of the processes; they said {out}")
    if how == "raises":
        assert "on purpose" in out
        assert process.returncode == 1
    if how in ("exits", "freezes", "joins"):
        assert process.returncode == 0


def test_a_script_for_one_master_just_works() -> None:
    process = mpiexec(3, "mpi_programs/asks.py")
    out = finish(process)
    assert out.splitlines() == ["workers (0, 1)", "moved 9.0", "again (0,) 3"], out
    assert process.returncode == 0


def test_who_joined_ends_without_a_stain() -> None:
    # Only what a user must set in a container: nothing that makes mpiexec overlook the killed.
    process = mpiexec(3, "mpi_programs/joins.py", env=NEEDED)
    assert finish(process) == "took part 2\n"
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


def test_the_example_runs() -> None:
    process = mpiexec(5, "../examples/mpi_cluster.py")
    out = finish(process)
    assert process.returncode == 0, out
    assert out.count("relative error") == 3, out


def test_the_rival_of_kofn_bench_engines_does_the_same_in_every_way() -> None:
    A = np.random.default_rng(0).standard_normal((20, 3))
    w = np.arange(3.0)
    rounding = 3 * np.finfo(float).eps * float((np.abs(A) @ w).max())
    with bare.mpi_ranks(A, 0.0) as ranks:
        for way in bare_mpi.WAYS:
            np.testing.assert_allclose(ranks.by(way)(w), A @ w, rtol=0, atol=rounding)
            assert len(ranks.by(way).block(2)) == 2
