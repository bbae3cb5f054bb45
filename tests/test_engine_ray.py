"""The Ray engine keeps the contract, and what it promises beyond."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doors import doors, family
from engine_scenarios import COLUMNS, ROWS, check, until_it_takes_part
from support import until
from turns import Turn, Turns

pytest.importorskip("ray", reason="kofn[ray] is not installed")

import ray

import kofn
from kofn.engines import _ray_runtime
from kofn.engines._ray_runtime import Machines
from kofn.engines.ray import RayEngine
from kofn.errors import BadInput, Closed, EngineUnavailable
from kofn.model import Joined, Lost, Piece
from kofn.testing._bodies import echo, measure
from kofn.testing.engines import EngineProbe, descendants, gone

pytestmark = [
    pytest.mark.engine,
    # Ray drops the processes that it ended before it has asked for their status. That they are gone
    # is tested here; that Ray's objects say so on a busy machine is not ours.
    pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning"),
]

ROOT = Path(__file__).parent.parent
Array = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def total(kept: Any, operand: Any) -> tuple[Piece]:
    return (Piece(None, np.sum(operand)),)


@pytest.fixture(scope="class")
def turns() -> Iterator[Turns]:
    """Engines in a Ray of our own, one for many tests: starting four actors takes seconds."""
    with RayEngine(1, address="local"):
        turns = Turns(lambda: RayEngine(4))
        yield turns
        turns.close()


class TestRayEngine:
    @pytest.fixture
    def engine(self, turns: Turns) -> Iterator[Turn]:
        with turns.turn() as turn:
            yield turn

    @pytest.fixture
    def probe(self, engine: Turn) -> EngineProbe:
        return EngineProbe(engine, 120)

    def test_a_large_operand_is_stored_once_a_small_one_never(
        self, probe: EngineProbe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored: list[Any] = []
        put = ray.put

        def spy(value: Any) -> Any:
            stored.append(value)
            return put(value)

        monkeypatch.setattr(ray, "put", spy)
        operands: list[Any] = [np.ones(100_000), np.ones(3), [float(i) for i in range(20_000)]]
        for round, operand in enumerate(operands):
            probe.engine.broadcast(round, operand)
            for worker in probe.engine.workers:
                probe.submit(worker, total, round=round)
        probe.until_ended()
        assert len(stored) == 2
        for task, pieces in probe.pieces.items():
            assert pieces[0].value == np.sum(operands[task // 4])

    def test_an_operand_is_let_go_with_its_round(self, probe: EngineProbe) -> None:
        for round in range(1, 30):
            probe.engine.broadcast(round, np.full(2_000_000, 1.0))
            for worker in probe.engine.workers:
                probe.submit(worker, measure, round=round)
            probe.until_ended()
            probe.engine.cancel(round)
        for worker in probe.engine.workers:  # each hears of the last cancel
            probe.value(probe.submit(worker, echo, round=100))
        resources: Any = ray.cluster_resources, ray.available_resources
        total, free = (r().get("object_store_memory", 0) for r in resources)
        assert total - free < 10 * 16_000_000

    def test_a_frozen_worker_of_another_machine_can_be_lost(
        self, probe: EngineProbe, engine: Turn
    ) -> None:
        worker = engine.workers[0]
        pid = engine.pid(worker)
        assert pid is not None
        engine.engine._transport.peers[worker].process = None  # so Ray has to end it
        os.kill(pid, signal.SIGSTOP)
        task = probe.submit(worker, echo)
        engine.lose(worker)
        probe.listen(0.0)  # told at once: Ray ends what is frozen some seconds later
        assert probe.find(Lost, worker=worker)[0].tasks == (task,)
        probe.until(lambda: gone(pid), "the frozen process to end")

    def test_nothing_listens_beyond_this_machine(self, engine: Turn) -> None:
        assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
        found = doors(family(os.getpid()))
        assert len([door for door in found if door.kind == "tcp"]) > 4
        assert [door for door in found if not door.near] == []
        folder = str(_ray_runtime._session.temp)
        paths = [door.where for door in found if door.kind == "unix" and door.where[0] != "@"]
        assert paths
        assert all(path.startswith(folder) for path in paths)  # whom it is for, see below

    def test_a_worker_of_another_version_is_refused(
        self, turns: Turns, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kofn.engines.ray.__version__", "99.9")
        with pytest.raises(EngineUnavailable, match=r"is installed on .* 'kofn\[ray\]==99\.9'"):
            RayEngine(1)

    # Engines beside each other.

    def test_a_second_engine_shares_the_ray_of_the_first(self, turns: Turns) -> None:
        with RayEngine(1) as one, RayEngine(1) as two:
            assert one.pid(0) != two.pid(0)
            one.close()
            with pytest.raises(Closed):
                one.join()
            probe = EngineProbe(two, 120)
            assert probe.value(probe.submit(0, echo, 1)) == (1,)
            with pytest.raises(BadInput, match="one Ray cluster at a time"):
                RayEngine(1, address="127.0.0.1:1")
        assert ray.is_initialized()


@pytest.fixture(scope="module")
def A() -> Array:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


# A cluster that runs already, of several machines.


@pytest.fixture(scope="class")
def running() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # Below it are sockets, whose paths must be short; and nobody else is to find this cluster.
    temp = tempfile.mkdtemp(prefix="kofn-test-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", temp)
        cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        try:
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(temp, ignore_errors=True)


class TestRunningCluster:
    def test_machines_leave_and_come(self, running: Any, A: Array) -> None:
        """Three workers a machine; (6, 3): a machine may go."""
        doomed = [running.add_node(num_cpus=3) for _ in range(2)][-1]
        with kofn.connect("ray", address=running.address, wait=60.0) as cluster:
            cluster.wait_for(6)  # a busy machine's may come later than the others
            assert len(cluster.workers) == 6
            X = cluster.encode(A, k=3)
            check(X, A)
            there = set(cluster.workers)
            running.remove_node(doomed)
            until(lambda: check(X, A) and len(cluster.workers) == 3, "the loss of the machine")
            check(X, A)
            running.add_node(num_cpus=3)
            cluster.wait_for(6)  # nothing else is asked of the user
            newcomers = set(cluster.workers) - there
            assert len(newcomers) == 3
            for newcomer in newcomers:
                until_it_takes_part(newcomer, X, A)
        assert not ray.is_initialized()

    @pytest.mark.long
    def test_a_machine_that_is_down_but_listed(
        self, running: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("kofn.engines.ray._SILENT", 2.0)
        # Six Python processes that start beside other tests: on two cores that took over 30 s once.
        monkeypatch.setattr("kofn.engines.ray._START_LIMIT", 200.0)
        frozen = running.add_node(num_cpus=2)
        pid = frozen.all_processes["raylet"][0].process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with RayEngine(address=running.address) as engine:
                assert 0 < len(engine.workers) <= 6
                assert "They join when they answer" in caplog.text
                probe = EngineProbe(engine, 120)
                probe.wait(Joined, worker=engine.join())  # where somebody answers
                os.kill(pid, signal.SIGCONT)
                probe.until(lambda: len(engine.workers) == 9, "the workers of that machine")
        finally:
            os.kill(pid, signal.SIGCONT)
            running.remove_node(frozen)

    @pytest.mark.long
    def test_machines_are_asked_for_where_a_join_finds_no_room(self, running: Any) -> None:
        """Where no autoscaler runs, the wish is only kept by Ray, where one would look for it."""

        def wish() -> Any:
            return json.loads(kv._internal_kv_get(b"autoscaler_resource_request") or b"[]")

        kv: Any = import_module("ray.experimental.internal_kv")
        ray.init(address=running.address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            resources: Any = ray.cluster_resources
            cpus = int(resources().get("CPU", 0))
            with RayEngine(cpus + 1) as engine:
                probe = EngineProbe(engine, 120)
                probe.wait(Joined, worker=engine.join())
                probe.until(lambda: bool(wish()), "the wish")
                assert wish() == [{"CPU": 1}] * (cpus + 2)
            assert wish() == []
        finally:
            ray.shutdown()

    def test_a_cluster_that_runs_is_left_as_it_was(self, running: Any) -> None:
        ray.init(address=running.address, log_to_driver=False, logging_level=logging.ERROR)
        try:

            class Counter:
                """An actor of somebody else."""

                def __init__(self) -> None:
                    self.count = 0

                def more(self) -> int:
                    self.count += 1
                    return self.count

            counter: Any = ray.remote(num_cpus=0)(Counter).remote()
            assert ray.get(counter.more.remote()) == 1
            resources: Any = ray.cluster_resources
            before = resources()
            pids = raising(None, frozen=False)
            assert all(gone(p) for p in pids)
            assert ray.is_initialized()
            assert ray.get(counter.more.remote()) == 2
            assert resources() == before
        finally:
            ray.shutdown()

    def test_a_ray_that_is_shut_down_under_us(self, running: Any) -> None:
        ray.init(address=running.address, log_to_driver=False, logging_level=logging.ERROR)
        engine = RayEngine(1)
        ray.shutdown()
        with pytest.raises(Closed, match="shut down under"):
            engine.events(0)
        engine.close()
        assert not ray.is_initialized()

    @pytest.mark.long
    def test_a_machine_that_cannot_import_kofn(self, running: Any, tmp_path: Path) -> None:
        (tmp_path / "kofn").mkdir()
        (tmp_path / "kofn" / "__init__.py").write_text(
            "raise ModuleNotFoundError(\"No module named 'kofn'\", name='kofn')"
        )
        with RayEngine(1, address=running.address) as engine:
            running.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
            probe = EngineProbe(engine, 120)
            with pytest.warns(RuntimeWarning, match="one of them cannot") as told:
                probe.until(lambda: bool(told.list), "the warning")
            assert probe.value(probe.submit(0, echo, 1)) == (1,)
        with pytest.raises(EngineUnavailable, match=r"pip install 'kofn\[ray\]=="):
            RayEngine(address=running.address)
        assert not ray.is_initialized()


# Where workers go.


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def test_workers_are_spread_over_what_machines_offer() -> None:
    machines = Machines()
    nodes = [node("a", CPU=2), node("b", CPU=8, kofn=3), node("c"), node("d", False, CPU=9)]
    assert sorted(machines.learn(nodes)) == ["a", "a", "b", "b", "b"]
    assert machines.spread(None) == ["a", "b", "a", "b", "b"]
    assert machines.resource == "kofn"
    assert machines.learn([*nodes, node("e", CPU=64)]) == ["e"] * 64
    assert machines.spread(4) == ["a", "b", "e", "a"]
    assert machines.learn([*nodes, node("f", CPU=64), node("g", CPU=1)]) == ["f", "f", "g"]
    assert machines.emptiest(list("abbfg"), live=set()) == "f"
    assert machines.learn([]) == []
    with pytest.raises(EngineUnavailable, match="no machine left"):
        machines.emptiest(list("abbfg"), live=set())


def test_machines_without_cpus() -> None:
    machines = Machines()
    assert machines.learn([node("head")]) == []
    with pytest.raises(EngineUnavailable, match="1 machines of this cluster offer none"):
        machines.spread(None)
    assert machines.spread(2) == ["head", "head"]
    assert machines.learn([node("head"), node("next", CPU=8)]) == ["next", "next"]


# What goes wrong at connect.


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Ray itself would try for 40 s, and cannot be stopped.
    monkeypatch.setattr(ray, "init", lambda *args, **options: pytest.fail("Ray tries, too"))
    with pytest.raises(EngineUnavailable, match=f"tried to connect to 127.0.0.1 port {port}"):
        kofn.connect("ray", address=f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(EngineUnavailable, match="as RAY_ADDRESS says"):
        kofn.connect("ray")
    with pytest.raises(EngineUnavailable, match="no Ray cluster answers"):
        kofn.connect("ray", address="no-such-host.invalid:6379")
    assert not ray.is_initialized()


GRPC = (
    b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x10\1\5\0\0\0\1" + b"\0\x0bgrpc-status\x0212"
)  # no such method


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", GRPC, b""], ids=["http", "grpc", "silent"]
)
def test_somebody_else_at_the_address(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ray_runtime, "_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # until the server is shut down
                while True:
                    client, _ = server.accept()
                    with client, contextlib.suppress(ConnectionError):
                        if client.recv(4096):
                            client.sendall(answer)
                            client.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(EngineUnavailable, match="not Ray" if answer else "timed out"):
            kofn.connect("ray", address=f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("somewhere", "host:port"),
        (":6379", "host:port"),
        (6379, "is a string"),
        ("ray://somewhere:10001", "goes through a proxy"),
    ],
)
def test_an_address_that_is_none(address: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        kofn.connect("ray", address=address)


@pytest.mark.parametrize("last", [None, "127.0.0.1:1"], ids=["none", "ended"])
def test_no_running_cluster(monkeypatch: pytest.MonkeyPatch, last: str | None) -> None:
    monkeypatch.setattr(_ray_runtime, "_canonical", lambda _: last)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(EngineUnavailable, match="none was found"):
        kofn.connect("ray", address="auto")
    assert _ray_runtime._find(None) == (None, "")  # a new one


def test_a_ray_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.9.3")
    with pytest.raises(EngineUnavailable, match=r"Ray 2\.52 or later; 2\.9\.3 is installed"):
        kofn.connect("ray")


# The end.


HEADLESS = """
import os
from pathlib import Path
import kofn
from kofn.testing.engines import descendants

cluster = kofn.connect("ray", 1, address="local", limit=30.0)  # Ray ends this process after 60 s
for pid in descendants():
    if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text().split("\\0")[0]:
        os.kill(pid, 9)
try:
    cluster.join()
except kofn.EngineUnavailable as error:
    print(error, flush=True)
cluster.close()
"""


@pytest.mark.long
def test_without_a_head_a_join_says_so() -> None:
    command = [sys.executable, "-c", HEADLESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "Ray's head at 127.0.0.1:" in done.stdout, done
    assert "does not answer" in done.stdout


EARLY = """
import os, signal, sys, threading, time
import kofn
from kofn.engines import _ray_runtime
from kofn.testing.engines import descendants

init = _ray_runtime.ray.init
def interrupted(**options):  # when Ray has begun to start processes
    def strike():
        while len(descendants()) < 3:  # the first watches over the folder
            pass
        time.sleep(0.05)  # Python swallows what is raised in a hook of its fork
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=strike).start()
    init(**options)
_ray_runtime.ray.init = interrupted
try:
    kofn.connect("ray", address="local")
except KeyboardInterrupt:
    print(*descendants())
"""


def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "early.py"
    path.write_text(EARLY)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("\n", 0), done


def raising(
    address: str | None, frozen: bool, inside: Callable[[], None] = lambda: None
) -> list[int]:
    """Leave a cluster by an exception; return the process ids of its workers."""
    pids: list[int] = []
    with contextlib.suppress(ZeroDivisionError), kofn.connect("ray", 2, address=address) as cluster:
        for worker in cluster.workers:
            pid = cluster.engine.pid(worker)
            assert pid is not None
            pids.append(pid)
        if frozen:
            os.kill(pids[0], signal.SIGSTOP)
        inside()
        pids.append(0 // 0)
    return pids


def test_close_leaves_the_process_as_it_was() -> None:
    def one(*_: object) -> None: ...
    def two(*_: object) -> None: ...

    def inside() -> None:
        """SIGTERM is the user's all the time, and what is secret for the user alone."""
        assert signal.signal(signal.SIGTERM, two) is one
        folder = Path(_ray_runtime._session.temp or "")
        folders.append(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert token.parent == folder
        assert token.stat().st_mode & 0o777 == 0o600
        assert raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN

    folders: list[Path] = []
    raylet: Any = import_module("ray._raylet")
    handler = signal.signal(signal.SIGTERM, one)
    try:
        variables, before = dict(os.environ), descendants()
        pids = raising("local", frozen=True, inside=inside)
        assert all(gone(p) for p in pids)
        assert [folder.exists() for folder in folders] == [False]
        assert signal.getsignal(signal.SIGTERM) is two
        assert dict(os.environ) == variables
        assert not ray.is_initialized()
        if before is not None:
            assert (descendants() or set()) <= before
    finally:
        signal.signal(signal.SIGTERM, handler)
