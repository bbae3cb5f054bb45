"""What all engines do: each keeps the contract, survives the same scenarios, and leaves nothing."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_scenarios import SCENARIOS
from ranks import finish, mpiexec
from support import PASS, SOAK, until
from turns import Turn, Turns

from kofn.engines._processes import Process
from kofn.errors import BadInput
from kofn.model import Lost
from kofn.testing.engines import EngineChecks, EngineProbe, gone

EXAMPLES = Path(__file__).parent.parent / "examples"
CLASSES = {
    "local": "kofn.engines.local:LocalEngine",
    "virtual": "kofn.engines.virtual:VirtualEngine",
    "dask": "kofn.engines.dask:DaskEngine",
    "ray": "kofn.engines.ray:RayEngine",
    "mpi": "kofn.engines.mpi:MPIEngine",
}
PACKAGES = {"dask": "distributed", "ray": "ray", "mpi": "mpi4py"}
KILLS = {"local": 50, "virtual": 200, "dask": 10, "ray": 5}  # of the storm
NOISE = [
    # Dask leaves a connection to Python's collector if it is told to stop while it greets the other
    # side. What kofn leaves open is counted in tests of their own.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    # Ray drops the processes that it ended before it has asked for their status. That they are gone
    # is tested here; that Ray's objects say so on a busy machine is not ours.
    pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning"),
]
pytestmark = NOISE


def engines(*names: str) -> list[Any]:
    """Parameters of these engines; all but the virtual one start processes."""
    return [pytest.param(n, marks=[] if n == "virtual" else pytest.mark.engine) for n in names]


def needs(engine: str) -> None:
    if engine in PACKAGES and find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"kofn[{engine}] is not installed")


def engine_class(name: str) -> Callable[..., Any]:
    """The class of an engine, whose packages are imported only now."""
    needs(name)
    module, _, attribute = CLASSES[name].partition(":")
    made: Callable[..., Any] = getattr(import_module(module), attribute)
    return made


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A Ray of our own for all tests: to start one takes seconds."""
    with engine_class("ray")(1, address="local"):
        yield


@pytest.fixture(scope="module", params=engines("local", "virtual", "dask", "ray"))
def which(request: pytest.FixtureRequest) -> str:
    """An engine whose master is this process."""
    name: str = request.param
    needs(name)
    if name == "ray":
        request.getfixturevalue("ray")
    return name


@pytest.fixture(scope="module")
def turns(which: str) -> Iterator[Turns]:
    turns = Turns(lambda: engine_class(which)(4))
    yield turns
    turns.close()


class TestEngines(EngineChecks):
    seed = 20 + PASS

    @pytest.fixture
    def engine(self, which: str, turns: Turns) -> Iterator[Turn]:
        self.kills = KILLS[which] * SOAK
        with turns.turn() as turn:
            yield turn


@pytest.mark.engine
@pytest.mark.parametrize("where", ["near", pytest.param("far", marks=pytest.mark.long)])
def test_the_engine_checks_pass_under_mpiexec(where: str) -> None:
    needs("mpi")
    process = mpiexec(5, "mpi_programs/checks.py", *(["far"] if where == "far" else []))
    out = finish(process, 900 * SOAK)
    assert process.returncode == 0, out
    assert re.search(r"^\d+ passed", out, re.MULTILINE), out


# Scenarios.

REAL = engines("local", "dask", "ray", "mpi")
HERE = engines("local", "dask", "ray")  # whose master can be any process
Play = Callable[..., None]


@pytest.fixture
def play(request: pytest.FixtureRequest) -> Play:
    """Play a scenario on an engine with so many workers."""

    def played(name: str, engine: str, workers: int) -> None:
        needs(engine)
        if engine == "mpi":
            out = finish(mpiexec(workers + 1, "engine_scenarios.py", name, str(workers)))
            assert out == "all of it held\n", out
        else:
            if engine == "ray":
                request.getfixturevalue("ray")
            SCENARIOS[name](engine_class(engine), workers)

    return played


@pytest.mark.engine
@pytest.mark.parametrize(
    ("engine", "workers"),
    [
        ("local", 20),
        *((name, 4) for name in PACKAGES),
        *(pytest.param(name, 12, marks=pytest.mark.long) for name in PACKAGES),
    ],
)
def test_half_are_killed_in_flight_then_others_join(play: Play, engine: str, workers: int) -> None:
    play("half_are_killed", engine, workers)


@pytest.mark.parametrize("engine", REAL)
def test_a_frozen_worker_blocks_no_product_and_takes_part_again(play: Play, engine: str) -> None:
    play("one_is_frozen", engine, 3)


@pytest.mark.parametrize("engine", REAL)
def test_a_frozen_worker_is_lost_after_the_users_limit(play: Play, engine: str) -> None:
    play("one_is_given_up", engine, 2)


@pytest.mark.parametrize("engine", REAL)
def test_as_many_kills_as_workers_end_with_as_many_workers(play: Play, engine: str) -> None:
    play("killed_ones_are_replaced", engine, 3)


@pytest.mark.parametrize("which", engines("dask", "ray"), indirect=True)
def test_the_example_runs(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{which}_cluster.py"), run_name="example")["main"]()
    assert capsys.readouterr().out.count("product right to") == 3


@pytest.mark.engine
def test_the_example_runs_under_mpiexec() -> None:
    needs("mpi")
    process = mpiexec(5, "../examples/mpi_cluster.py")
    out = finish(process)
    assert process.returncode == 0, out
    assert out.count("relative error") == 3, out


# Processes.


def disguise(engine: Any, worker: int, pid: int) -> None:
    """As if a worker's process had been another one, which has its number now."""
    transport = engine._transport
    if engine.name == "local":
        transport._live[worker].process = Process(pid, "0")
    elif engine.name == "dask":
        transport._connections[worker].facts["pid"] = pid
    else:
        transport.peers[worker].process = transport.peers[worker].process._replace(pid=pid)


@pytest.mark.parametrize("which", HERE, indirect=True)
def test_lose_kills_no_process_that_has_a_workers_number_by_now(which: str) -> None:
    with engine_class(which)(1) as engine, subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            probe, (victim,) = EngineProbe(engine, 120), engine.workers
            pid = engine.pid(victim)
            os.kill(pid, signal.SIGKILL)
            until(lambda: gone(pid), "the end of the worker")
            disguise(engine, victim, bystander.pid)  # before the engine has heard of it
            engine.lose(victim)
            probe.wait(Lost, worker=victim)
            engine.close()
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize("which", HERE, indirect=True)
def test_a_forgotten_engine_is_closed(which: str) -> None:
    engine = engine_class(which)(1)
    pid = engine.pid(0)
    del engine
    assert gone(pid)


@pytest.mark.parametrize("engine", REAL)
def test_a_wrong_number_of_workers_is_refused(engine: str) -> None:
    for workers in (0, -1, 2.0, "4", True):
        with pytest.raises(BadInput, match=">= 1"):
            engine_class(engine)(workers)


TIMED_OUT = """Future exception was never retrieved
future: <Future finished exception=TimeoutError('Timeout')>
TimeoutError: Timeout
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("engine", "how"),
    [
        *((engine, how) for engine in ("local", "dask", "ray") for how in ("exit", "kill")),
        ("local", "interrupt"),
        *(pytest.param(engine, "interrupt", marks=pytest.mark.long) for engine in ("dask", "ray")),
    ],
)
def test_the_end_of_a_master_without_a_guard_leaves_nothing(engine: str, how: str) -> None:
    needs(engine)
    folder = Path(tempfile.mkdtemp(prefix="kofn-test-", dir="/tmp"))  # short: sockets are in it
    command = [
        sys.executable,
        "-W",
        "error",
        str(Path(__file__).with_name("engine_ends.py")),
        engine,
    ]
    with subprocess.Popen(
        [*command, "exit" if how == "exit" else "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        try:
            assert process.stdout is not None
            pids = [int(pid) for pid in process.stdout.readline().split()]
            assert len(pids) >= 3  # the launcher and the workers at least
            assert process.stdout.readline() == "105.0\n"
            if how != "exit":
                process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()  # what fails must not be waited for
    assert out == ""
    if how == "interrupt":
        assert err.rstrip().endswith("KeyboardInterrupt")
    else:
        # On a busy machine Dask's own client may run into its time limit when the process ends
        # without a close, and asyncio says so as its loop is thrown away: all that may be said.
        assert err.replace(TIMED_OUT, "") == ""
    until(lambda: all(gone(pid) for pid in pids), "the end of the processes")
    until(lambda: not any(folder.iterdir()), "the end of their files")
    shutil.rmtree(folder)
