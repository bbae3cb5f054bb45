"""The Dask engine keeps the contract, and what it promises beyond."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doors import doors
from engine_scenarios import COLUMNS, ROWS, check, until_it_takes_part
from support import until
from turns import Turn, Turns
from typer.testing import CliRunner

pytest.importorskip("distributed", reason="kofn[dask] is not installed")

import distributed
from dask import config as dask_config

import kofn
from kofn.cli.app import app
from kofn.engines import _launcher
from kofn.engines.base import Engine
from kofn.engines.dask import DaskEngine
from kofn.errors import BadInput, CannotDo, Closed, EngineUnavailable
from kofn.model import Build, Joined, Lost, Piece
from kofn.peers import Address, Node
from kofn.peers.relay import open_node
from kofn.testing._bodies import echo, hears, measure, reached, toil
from kofn.testing.engines import EngineChecks, EngineProbe, descendants, gone

pytestmark = [
    pytest.mark.engine,
    # Dask leaves a connection to Python's collector if it is told to stop while it greets the other
    # side. What kofn leaves open is counted in tests of their own.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

ROOT = Path(__file__).parent.parent
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


WITHOUT_KOFN = "import sys; sys.modules['kofn'] = None"


@contextlib.contextmanager
def dask(kind: str, *options: str, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A `dask scheduler` or `dask worker` as a user starts it; `before` runs first in it."""
    code = f"{before}\nfrom distributed.cli.dask_{kind} import main; main()"
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [sys.executable, "-c", code, "--host", "127.0.0.1", "--no-dashboard", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "DASK_TEMPORARY_DIRECTORY": directory,
                # Dask looks at every thread a hundred times a second, whatever it does.
                "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
            },
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def dask_worker(address: str, *options: str, before: str = "") -> Any:
    return dask("worker", address, "--nthreads", "1", *options, before=before)


@contextlib.contextmanager
def dask_scheduler() -> Iterator[str]:
    """A scheduler without kofn; its address."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "scheduler.json"
        with dask("scheduler", "--port", "0", "--scheduler-file", str(file), before=WITHOUT_KOFN):
            until(lambda: _read(file).endswith(b"}"), "the scheduler's address")
            yield json.loads(file.read_text())["address"]


def keys(engine: DaskEngine) -> list[str]:
    """The options with which a `dask worker` may join a cluster of kofn's own."""
    security = engine.security
    return [
        *("--tls-ca-file", security.tls_ca_file),
        *("--tls-cert", security.tls_worker_cert),
        *("--tls-key", security.tls_worker_key),
    ]


def warm(address: str, workers: int) -> None:
    """Wait until so many workers are there and know kofn: to start takes seconds, or many."""
    with distributed.Client(address, timeout=240, set_as_default=False) as client:  # type: ignore[no-untyped-call,unused-ignore]
        client.wait_for_workers(workers, timeout=120)
        client.run(import_module, "kofn.engines._dask_worker")


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """The address of a running cluster with four workers, open to anyone as Dask's are."""
    paths = f"import sys; sys.path[:] = {sys.path!r}"  # bodies are in this file
    with dask_scheduler() as address, contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(dask_worker(address, "--no-nanny", before=paths))
        warm(address, 4)
        yield address


def dies(kept: Any, operand: Any, gate: str) -> Iterator[Piece]:
    yield Piece("before", np.ones(50_000))
    while not Path(gate).exists():  # what has not left a process dies with it
        pass
    os._exit(3)


FORKS_THAT_FAIL = """
import itertools, os
def fork(fork=os.fork, forks=itertools.count(1)):
    if next(forks) == 4:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = fork
"""


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    turns = Turns(lambda: DaskEngine(4))
    yield turns
    turns.close()


@pytest.mark.long
class TestSessions(EngineChecks):
    """Sessions on a running cluster: nobody is started or ended there."""

    @pytest.fixture
    def engine(self, running: str) -> Iterator[DaskEngine]:
        with DaskEngine(address=running) as engine:
            yield engine

    def end(self, engine: Engine, worker: int) -> None:
        engine.lose(worker)

    def test_close_leaves_nothing(self, probe: EngineProbe) -> None:
        engine = probe.engine
        pids = [engine.pid(worker) for worker in engine.workers]
        engine.close()
        engine.close()
        assert not any(gone(pid) for pid in pids if pid)  # see also `settled` below

    def test_a_frozen_worker_is_lost_when_we_say_so(self, probe: EngineProbe) -> None:
        engine, victim = probe.engine, probe.engine.workers[0]
        pid = engine.pid(victim)
        with probe.frozen(victim):
            owed = [probe.submit(victim, echo, np.ones(100_000)) for _ in range(20)]
            engine.lose(victim)
            assert probe.wait(Lost, worker=victim).tasks == tuple(owed)
        assert pid is not None
        assert not gone(pid)


class TestDaskEngine:
    """Clusters of our own."""

    @pytest.fixture
    def engine(self, turns: Turns) -> Iterator[Turn]:
        with turns.turn() as turn:
            yield turn

    @pytest.fixture
    def probe(self, engine: Turn) -> EngineProbe:
        return EngineProbe(engine, 120)

    def test_own_processes_listen_on_loopback_only(self, engine: Turn) -> None:
        launcher = engine.engine._transport.launcher.process.pid
        ours = {launcher} | {p for p in descendants() or () if parent(p) == launcher}
        assert len(ours) == 6
        found = doors(ours)
        assert len([door for door in found if door.kind == "tcp"]) >= 5  # a scheduler, four workers
        assert all(door.near for door in found)

    def test_a_stranger_cannot_use_own_processes(self, engine: Turn) -> None:
        """Another user of this machine can reach the ports; that must be all."""
        own = engine.engine
        connect: Any = import_module("distributed.comm").connect
        live = own._transport._connections.values()
        addresses = [own.scheduler_address, *(each.facts["address"] for each in live)]
        assert len(addresses) == 5
        strangers = (
            distributed.Security(),  # type: ignore[no-untyped-call,unused-ignore]
            distributed.Security.temporary(),  # type: ignore[no-untyped-call,unused-ignore]
        )

        async def run(address: str, security: Any) -> Any:
            comm = await connect(address, 2, **security.get_connection_args("client"))
            await comm.write({"op": "identity", "reply": True})
            return await comm.read()

        for address in addresses:
            assert address.startswith("tls://127.0.0.1:")
            plain = address.replace("tls", "tcp")
            for at, security in zip((plain, address), strangers, strict=True):
                with pytest.raises(OSError):  # noqa: PT011 (refused, or it says nothing)
                    asyncio.run(asyncio.wait_for(run(at, security), 5))
            assert asyncio.run(run(address, own.security))["id"]  # with the keys it goes

    def test_keys_of_a_running_cluster_pass_through(self, engine: Turn) -> None:
        """A cluster with TLS, as somebody else may have started it."""
        own = engine.engine
        address, eye = own.scheduler_address, np.eye(4)
        with kofn.connect("dask", 2, address=address, security=own.security) as cluster:
            assert np.array_equal(cluster.encode(eye, k=1) @ np.ones(4), np.ones(4))
        with pytest.raises(EngineUnavailable, match=r"needs certificates.*security="):
            kofn.connect("dask", address=address)
        stranger = distributed.Security.temporary()  # type: ignore[no-untyped-call,unused-ignore]
        with pytest.raises(EngineUnavailable, match="none answered"):
            kofn.connect("dask", address=address, security=stranger)
        plain = address.replace("tls", "tcp")
        with pytest.raises(EngineUnavailable, match="none answered"):
            kofn.connect("dask", address=plain)

    def test_workers_connections_are_encrypted_as_dask_s_own_are(
        self, probe: EngineProbe, engine: Turn, running: str
    ) -> None:
        encryption, worker, token = engine.encryption, engine.workers[0], b"token"
        assert encryption is not None
        build = Build(open_node, (token, "another machine", encryption.find))
        engine.put(worker, "node", build)
        address = Address(*probe.value(probe.submit(worker, reached)))
        stranger = Node(token, listen=False, same_host=False)
        ours = Node(token, listen=False, same_host=False, keys=encryption.master)
        for number, node in enumerate((stranger, ours)):
            node.send(address, {"k": "value"}, np.array([number]))
        assert probe.value(probe.submit(worker, hears, 1)) == [1]
        until(lambda: not stranger._links, "the end of one that has no keys")
        stranger.close()
        ours.close()
        with DaskEngine(1, address=running) as plain:
            assert plain.encryption is None  # as that cluster is

    def test_keys_of_own_processes_are_for_the_user_alone(self, engine: Turn) -> None:
        directory = Path(engine.engine.security.tls_client_key).parent
        assert directory.stat().st_mode & 0o077 == 0
        keys = [path for path in directory.iterdir() if b"PRIVATE" in _read(path)]
        assert keys
        assert all(path.stat().st_mode & 0o077 == 0 for path in keys)

    def test_a_fork_that_fails_is_one_joiner_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_launcher, "_BOOT", FORKS_THAT_FAIL + _launcher._BOOT)
        with DaskEngine(2) as engine:  # forks 1 to 3
            probe = EngineProbe(engine, 120)
            probe.wait(Lost, worker=engine.join())
            assert engine.workers == (0, 1)
            probe.wait(Joined, worker=engine.join())
            assert [probe.value(probe.submit(w, echo, 7)) for w in engine.workers] == [(7,)] * 3

    def test_replies_before_a_death_come_before_the_lost(
        self, probe: EngineProbe, tmp_path: Path
    ) -> None:
        victim, gate = probe.engine.workers[0], tmp_path / "gate"
        task = probe.submit(victim, dies, str(gate))
        probe.until(lambda: bool(probe.pieces[task]), "the first piece")
        gate.touch()
        lost = probe.wait(Lost, worker=victim)
        assert lost.tasks == (task,)
        assert [r.what for r in probe.pieces[task]] == ["before"]
        assert probe.log.index(probe.pieces[task][0]) < probe.log.index(lost)

    def test_a_lost_launcher_is_said_at_the_next_join(self, engine: Turn) -> None:
        process = engine.engine._transport.launcher.process
        pids = [engine.pid(w) for w in engine.workers]
        process.kill()
        process.wait()
        with pytest.raises(CannotDo, match="connect again"):
            engine.join()
        # The others see that they have no parent, and end too.
        until(lambda: all(gone(p) for p in pids if p), "the end of the workers")
        engine.close()

    def test_without_a_scheduler_a_join_says_so(self, engine: Turn) -> None:
        engine.engine._transport.launcher.kill("scheduler")
        cluster, ended = kofn.connect(engine), "Dask scheduler at tls://.* has ended"
        for _ in range(2):  # the second is refused, as that is known by then
            with pytest.raises(EngineUnavailable, match=ended):
                cluster.join()
        cluster.close()

    def test_a_joiner_that_dies_on_its_way_is_lost(self, probe: EngineProbe, engine: Turn) -> None:
        before = descendants() or set()
        worker = engine.join()
        until(lambda: (descendants() or set()) - before, "the process of the joiner")
        for pid in (descendants() or set()) - before:
            os.kill(pid, signal.SIGKILL)
        probe.wait(Lost, worker=worker)


@pytest.fixture(scope="module")
def A() -> Matrix:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


# Clusters that are not ours.


def state(client: Any) -> Any:
    """What a guest could leave behind."""

    def scheduler(dask_scheduler: Any) -> Any:
        plugins = {name.split("-")[0] for name in dask_scheduler.plugins}
        working = [len(w.processing) for w in dask_scheduler.workers.values()]
        return set(dask_scheduler.clients), plugins, dict(dask_scheduler.tasks), working

    def worker(dask_worker: Any) -> Any:
        import threading

        threads = sum(t.name.startswith("kofn") for t in threading.enumerate())
        return set(dask_worker.handlers), set(dask_worker.plugins), threads, set(dask_worker.data)

    return client.run_on_scheduler(scheduler), client.run(worker)


def settled(client: Any, before: Any) -> bool:
    """Whether all is as it was, within the moment that a session takes to end."""
    until(lambda: state(client) == before, "the session to end")
    return True


def fails_at_work(address: str) -> None:
    with DaskEngine(address=address) as engine:
        probe = EngineProbe(engine, 120)
        tasks = [probe.submit(worker, toil, 10**9) for worker in engine.workers]
        probe.until(lambda: all(probe.pieces[t] for t in tasks), "the first pieces")
        raise ZeroDivisionError


def test_a_users_client_and_cluster_are_left_as_they_were(running: str, A: Matrix) -> None:
    with distributed.Client(running) as client:  # type: ignore[no-untyped-call,unused-ignore]
        before = state(client)
        with kofn.connect("dask", address=client) as cluster:
            check(cluster.encode(A, k=2), A)
            # Dask sees that its workers are in use: it would shut an idle cluster down.
            until(lambda: all(client.processing().values()), "the workers to be in use")
            assert client.submit(sum, [1, 2]).result() == 3  # and has room for other work
            cluster.lose(0)
            until(lambda: 0 not in cluster.workers, "the loss")
            with pytest.raises(CannotDo, match="dask worker tcp://127"):
                cluster.join()
        assert settled(client, before)
        assert distributed.default_client() is client  # type: ignore[no-untyped-call,unused-ignore]
        assert client.submit(sum, [1, 2]).result() == 3

        with pytest.raises(ZeroDivisionError):
            fails_at_work(running)
        assert settled(client, before)
    with pytest.raises(EngineUnavailable, match="this one is closed"):
        DaskEngine(address=client)


def test_the_command_fits_on_a_running_cluster(running: str, tmp_path: Path) -> None:
    X, out = np.random.default_rng(0).standard_normal((60, 3)), tmp_path / "model"
    np.savetxt(
        tmp_path / "data.csv", np.c_[X, X @ [1.0, 2.0, 3.0]], delimiter=",", header="a,b,c,y"
    )
    words = [tmp_path / "data.csv", "--model", "ridge", "--k", 2, "--out", out, "--json"]
    words += ["--engine", "dask", "--address", running]
    found = CliRunner().invoke(app, ["fit", *map(str, words)])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["engine"] == "dask"
    assert len(kofn.learn.load(out).coef_) == 3


def test_some_of_the_workers_and_two_masters_at_a_time(running: str) -> None:
    with DaskEngine(2, address=running) as one, DaskEngine(address=running) as two:
        assert (len(one.workers), len(two.workers)) == (2, 4)
        assert {one.pid(w) for w in one.workers} < {two.pid(w) for w in two.workers}
        for engine in (one, two):
            probe = EngineProbe(engine, 120)
            engine.put(0, "key", id(engine))
            engine.broadcast(1, np.full(3, float(id(engine))))
            assert probe.value(probe.submit(0, measure))[2] == id(engine)
        probe = EngineProbe(one, 120)
        probe.wait(Joined, worker=one.join())
        assert one.workers == (0, 1, 2)
        one.close()
        with pytest.raises(Closed):
            one.join()
        assert len(two.workers) == 4
        assert not [e for e in two.events(0.1) if isinstance(e, Lost)]


def test_a_worker_that_was_given_up_joins_again_when_it_answers(running: str, A: Matrix) -> None:
    # In half a second a busy machine may let those wait that are well.
    with kofn.connect("dask", address=running, lost_after=5.0) as cluster:
        X = cluster.encode(A, k=2)
        until_it_takes_part(1, X, A)
        pid = cluster.engine.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: check(X, A) and 1 not in cluster.workers, "the loss of the frozen")
        finally:
            os.kill(pid, signal.SIGCONT)
        until_it_takes_part(4, X, A)  # it has a new number
        assert cluster.engine.pid(4) == pid
        cluster.lose(4)  # whoever is ended on purpose does not come again
        until(lambda: cluster.workers == (0, 2, 3), "the loss of the worker that came again")


def test_a_cluster_started_by_hand() -> None:
    with (
        dask_scheduler() as address,
        dask_worker(address, "--nanny"),
        contextlib.ExitStack() as stack,
    ):
        warm(address, 1)
        engine = stack.enter_context(DaskEngine(1, address=address))
        client: Any = distributed.Client(address, set_as_default=False)  # type: ignore[no-untyped-call,unused-ignore]
        stack.enter_context(client)
        probe = EngineProbe(engine, 120)
        assert probe.value(probe.submit(0, echo, 7)) == (7,)
        until(lambda: all(client.processing().values()), "Dask to see that they are in use")
        pid = engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        probe.wait(Lost, worker=0)
        probe.wait(Joined, worker=1)  # the nanny's replacement
        assert probe.value(probe.submit(1, echo, 7)) == (7,)


def test_a_cluster_object_is_asked_for_those_that_are_missing(A: Matrix) -> None:
    """Also where a nanny brings back who was killed: what was ordered does not come twice."""
    local: Any = distributed.LocalCluster
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "host": "127.0.0.1"}
    with (
        local(n_workers=2, **options) as dask_cluster,
        kofn.connect("dask", address=dask_cluster, keep=3, wait=60.0) as cluster,
    ):
        X = cluster.encode(A, k=2)
        check(X, A)
        cluster.wait_for(3)
        for _ in range(2):
            victim = cluster.workers[0]
            pid = cluster.engine.pid(victim)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while check(X, A) and victim in cluster.workers:
                pass
            cluster.wait_for(3)
            check(X, A)
        assert len(dask_cluster.plan) == 3
        log = cluster.log
        ordered = [record.worker for record in log if record.kind == "ordered"]
        assert [record.worker for record in log if record.kind == "joined"] == ordered
        assert len(cluster.workers) == 3
    # Dask's nannies start it here; nothing public ends it, and other tests count processes.
    tracker: Any = resource_tracker
    tracker._resource_tracker._stop()


class Scaled:
    """A cluster object that cannot give more."""

    def __init__(self, address: str) -> None:
        self.scheduler_address, self.security = address, None
        self.plan, self.asked = {0, 1}, list[int]()

    def scale(self, n: int) -> None:
        self.asked.append(n)
        raise RuntimeError("the quota is used up")


def test_a_cluster_object_that_gives_no_more(
    running: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster_object = Scaled(running)
    with kofn.connect("dask", address=cluster_object) as cluster:
        count = len(cluster.workers)
        with pytest.raises(EngineUnavailable, match="the quota is used up"):
            cluster.join()
    with kofn.connect("dask", address=cluster_object, keep=count + 2) as cluster:
        until(lambda: len(cluster.workers) and caplog.records, "the warning")
        assert "the quota is used up" in caplog.text
    assert cluster_object.asked[:2] == [count + 1, count + 2]


def test_keep_needs_a_cluster_that_can_be_asked(running: str) -> None:
    with pytest.raises(CannotDo, match="keep=9 needs an engine that can start workers"):
        kofn.connect("dask", address=running, keep=9)


def test_who_is_started_with_the_keys_joins_and_without_kofn_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with DaskEngine(1) as engine:
        probe = EngineProbe(engine, 120)
        address = engine.scheduler_address
        with dask_worker(address, "--no-nanny", *keys(engine)) as process:
            probe.wait(Joined, worker=1)
            assert engine.pid(1) == process.pid
        probe.wait(Lost, worker=1)
        with dask_worker(address, "--no-nanny", *keys(engine), before=WITHOUT_KOFN):
            with caplog.at_level(logging.WARNING, "kofn"):
                probe.until(lambda: bool(caplog.records), "the warning")
            assert "cannot import kofn" in caplog.text
            assert "pip install kofn" in caplog.text
            assert engine.workers == (0,)
            with DaskEngine(address=engine) as other:  # the others are of use
                assert len(other.workers) == 1
            engine.lose(0)
            probe.wait(Lost, worker=0)
            with pytest.raises(EngineUnavailable, match=r"cannot import kofn.*pip install kofn"):
                DaskEngine(address=engine)


# Bad input.


def test_no_such_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from kofn.engines import _dask_link

    assert _dask_link.CONNECT <= 10
    monkeypatch.setattr(_dask_link, "CONNECT", 3.0)
    with (  # Dask itself would try for longer than any test may take
        dask_config.set({"distributed.comm.timeouts.connect": "1h"}),
        pytest.raises(EngineUnavailable, match=r"tcp://127\.0\.0\.1:1 in \d+ s of trying"),
    ):
        kofn.connect("dask", address="tcp://127.0.0.1:1")


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:99", "", 5])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(BadInput, match="must be like 'tcp://host:8786'"):
        kofn.connect("dask", address=address)


def test_a_tls_address_needs_certificates() -> None:
    with pytest.raises(EngineUnavailable, match="needs certificates"):
        DaskEngine(address="tls://127.0.0.1:1")


def test_keys_go_with_an_address() -> None:
    keys = distributed.Security()  # type: ignore[no-untyped-call,unused-ignore]
    with pytest.raises(BadInput, match=r"has keys of its own\. Leave it out"):
        kofn.connect("dask", 2, security=keys)
    with pytest.raises(BadInput, match=r"must be a distributed\.Security; got 'secret'"):
        kofn.connect("dask", address="tls://127.0.0.1:1", security="secret")
    with pytest.raises(BadInput, match="engine 'local' takes no security"):
        kofn.connect("local", 2, security=keys)


def test_fewer_workers_than_asked(running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.engines.dask._COME", 5.0)
    with pytest.raises(EngineUnavailable, match=r"9 are needed.*4 came within 5 s.*dask worker"):
        DaskEngine(9, address=running)


def test_an_old_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.engines.dask.version", lambda package: "2024.7.1")
    with pytest.raises(EngineUnavailable, match=r"needs distributed 2024\.8 or newer; 2024\.7\.1"):
        kofn.connect("dask", workers=2)


def test_an_own_cluster_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.engines.dask.find_spec", lambda package: None)
    with pytest.raises(EngineUnavailable, match=r"needs the package cryptography.*kofn\[dask\]"):
        kofn.connect("dask", workers=2)
