"""Notices from end to end: what a machine is told reaches the master, on every engine."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from metadata import EC2, Silent
from support import until

import kofn
from kofn.engines.local import LocalEngine
from kofn.model import Leaving, Lost, Piece
from kofn.notices import AWS, DaskRetirement, Notice, RayDrain, SigTerm, Source
from kofn.testing._bodies import echo
from kofn.testing.engines import EngineProbe

pytestmark = pytest.mark.engine

CLOSE = 30.0  # seconds by which a deadline may be off on a busy machine, of hundreds ahead


def expected(at: float) -> Any:
    """A Unix time on the clock of an engine."""
    return pytest.approx(at - time.time() + time.monotonic(), abs=CLOSE)


@pytest.fixture
def ec2() -> Iterator[EC2]:
    with EC2() as service:
        yield service


# Local processes.


def test_a_notice_of_the_machine_is_told_for_all_its_workers_by_one(ec2: EC2) -> None:
    with LocalEngine(3) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([AWS(base=ec2.base, every=0.02)])
        until(lambda: ec2.count("GET", "rebalance") >= 3, "some looks")
        assert ec2.count("PUT") == 1  # one watcher, whoever else is there
        at = ec2.announce(300.0)
        for worker in engine.workers:
            event = probe.wait(Leaving, worker=worker)
            assert event.deadline == expected(at)
            assert event.reason == "AWS spot: terminate"
        new = engine.join()  # on the same machine: it hears of it at once
        assert probe.wait(Leaving, worker=new).deadline == expected(at)
        ec2.said.clear()
        for worker in engine.workers:
            assert probe.wait(Leaving, worker=worker, deadline=inf).reason == "it stays"


def test_when_the_watcher_is_lost_the_next_takes_over(ec2: EC2) -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([AWS(base=ec2.base, every=0.02)])
        ec2.announce(300.0)
        (watcher,) = engine._protocol.notices._watchers.values()
        probe.wait(Leaving, worker=1 - watcher)
        engine.lose(watcher)
        probe.wait(Lost, worker=watcher)
        ec2.said.clear()  # maybe while nobody looks
        probe.wait(Leaving, worker=1 - watcher, deadline=inf)
        assert ec2.count("PUT") == 2


def test_workers_that_are_still_there_after_their_time_say_that_they_stay(ec2: EC2) -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([AWS(base=ec2.base, every=0.02, linger=0.1)])

        def all_told() -> bool:
            ec2.announce(2.0)  # again: on a busy machine its time may be over before the look
            return all(probe.find(Leaving, worker=worker) for worker in engine.workers)

        probe.until(all_told, "the notices")
        for worker in engine.workers:
            (first, *_) = probe.find(Leaving, worker=worker)
            last = probe.wait(Leaving, worker=worker, deadline=inf)
            assert first.deadline <= last.time


def test_products_go_on_and_the_log_tells(ec2: EC2) -> None:
    A = np.random.default_rng(0).standard_normal((60, 5))
    source = AWS(base=ec2.base, every=0.02)
    with kofn.connect("local", workers=3, notices=[source]) as cluster:
        X = cluster.encode(A, k=2)
        ec2.announce(300.0)
        until(lambda: sum(r.kind == "leaving" for r in cluster.log) == 3, "the notices")
        np.testing.assert_allclose(X @ np.ones(5), A @ np.ones(5))


def waits_for(kept: Any, operand: Any, file: str) -> Iterator[Piece]:
    yield Piece(None, "begun")
    until(lambda: Path(file).exists(), file)
    yield Piece(None, "done")


def test_a_notice_does_not_wait_for_a_task(ec2: EC2, tmp_path: Path) -> None:
    file = tmp_path / "go"
    with LocalEngine(1) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([AWS(base=ec2.base, every=0.02)])
        task = probe.submit(0, waits_for, str(file))
        probe.until_begun(task)
        ec2.announce(300.0)
        probe.wait(Leaving, worker=0)
        assert not probe.ends[task]
        file.touch()
        assert probe.values(task) == ["begun", "done"]


def test_a_service_that_hangs_delays_no_task() -> None:
    with Silent() as service, LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([AWS(base=service.base)])
        until(lambda: service.asked, "the first request")
        assert [probe.value(probe.submit(w, echo, w)) for w in engine.workers] == [(0,), (1,)]


@dataclass(kw_only=True)
class Broken(Source):
    """Raises what no source should."""

    name: ClassVar[str] = "broken"

    def look(self) -> Sequence[Notice]:
        raise ZeroDivisionError("by mistake")


def test_a_watcher_that_raises_is_logged_once_and_ends_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([Broken()])
        probe.until(lambda: "by mistake" in caplog.text, "the warning")
        assert [probe.value(probe.submit(w, echo, w)) for w in engine.workers] == [(0,), (1,)]
    (record,) = caplog.records
    assert record.name == "kofn"
    assert record.getMessage().startswith("notices 'broken', on worker ")
    assert ": it failed and is not asked again: " in record.getMessage()


def test_auto_is_silent_where_nothing_is_there(
    ec2: EC2, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for whoever asks in a container without any cloud."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", ec2.base)  # AWS is all there is
    monkeypatch.setenv("GCE_METADATA_HOST", ec2.base.removeprefix("http://"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with kofn.connect("local", workers=2, notices="auto") as cluster:
        probe = EngineProbe(cluster.engine, 120)
        at = ec2.announce(300.0)
        assert probe.wait(Leaving, worker=0).deadline == expected(at)
        until(lambda: ec2.count("GET", "preempted"), "the question for Google")
    assert caplog.records == []


def test_a_named_source_that_is_not_there_is_said_to_be_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with kofn.connect("local", workers=2, notices="aws") as cluster:
        probe = EngineProbe(cluster.engine, 120)
        probe.until(lambda: bool(caplog.records), "the warning")
    (message,) = caplog.messages
    assert message.startswith("notices 'aws', on worker ")
    assert message.endswith(": AWS_EC2_METADATA_DISABLED is set.")


# SIGTERM.


def pid_of(engine: Any, worker: int) -> int:
    pid = engine.pid(worker)
    assert pid is not None
    return int(pid)


def test_a_worker_goes_on_after_sigterm_until_its_grace_is_over() -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([SigTerm(grace=1.0)])
        probe.value(probe.submit(1, echo))  # it has taken the signal by now
        os.kill(pid_of(engine, 1), signal.SIGTERM)
        event = probe.wait(Leaving, worker=1)
        assert event.reason == "SIGTERM"
        assert event.deadline <= event.time + 1.0
        assert probe.wait(Lost, worker=1).time >= event.time
        assert probe.find(Leaving, worker=0) == []


def test_work_is_done_after_sigterm() -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([SigTerm(grace=3600.0)])
        probe.value(probe.submit(1, echo))
        os.kill(pid_of(engine, 1), signal.SIGTERM)
        probe.wait(Leaving, worker=1)
        os.kill(pid_of(engine, 1), signal.SIGTERM)  # again: it changes nothing
        assert probe.value(probe.submit(1, echo, 7)) == (7,)
        assert len(probe.find(Leaving, worker=1)) == 1


def test_without_notices_sigterm_ends_a_worker_at_once() -> None:
    with LocalEngine(2) as engine:
        probe = EngineProbe(engine, 120)
        os.kill(pid_of(engine, 1), signal.SIGTERM)
        probe.wait(Lost, worker=1)
        assert probe.find(Leaving) == []


def sorts(kept: Any, operand: Any) -> list[Piece]:
    """Be told in the middle of a product: in C, without a step of Python in the main thread."""
    values = np.random.default_rng(0).standard_normal(10_000_000)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    np.sort(values)
    return [Piece(None, "done")]


def test_sigterm_is_told_while_a_product_runs() -> None:
    with LocalEngine(1) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([SigTerm(grace=3600.0)])
        task = probe.submit(0, sorts)
        assert probe.value(task) == "done"
        leaving = probe.wait(Leaving, worker=0)
        assert probe.log.index(leaving) < probe.log.index(probe.ends[task][0])


def forks(kept: Any, operand: Any) -> list[Piece]:
    """End a child by SIGTERM, as multiprocessing does; reply with how it ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # whatever else fails, it ends
        signal.pause()
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    return [Piece(None, os.waitpid(child, 0)[1])]


def test_the_sigterm_of_a_child_is_not_the_workers() -> None:
    with LocalEngine(1) as engine:
        probe = EngineProbe(engine, 120)
        engine.watch([SigTerm(grace=3600.0)])
        assert probe.run(forks) == signal.SIGTERM
        assert probe.run(forks) == signal.SIGTERM
        os.kill(pid_of(engine, 0), signal.SIGTERM)
        assert len([probe.wait(Leaving, worker=0)]) == len(probe.find(Leaving)) == 1


# Dask.


def test_a_notice_reaches_the_master_on_dask(ec2: EC2) -> None:
    pytest.importorskip("distributed", reason="kofn[dask] is not installed")
    source = AWS(base=ec2.base, every=0.02)
    with kofn.connect("dask", workers=2, notices=[source, SigTerm(optional=True)]) as cluster:
        probe = EngineProbe(cluster.engine, 120)
        at = ec2.announce(300.0)
        for worker in (0, 1):
            assert probe.wait(Leaving, worker=worker).deadline == expected(at)
        assert ec2.count("PUT") == 1
        assert probe.value(probe.submit(0, echo, 1)) == (1,)


def test_a_worker_that_dask_retires_is_leaving(caplog: pytest.LogCaptureFixture) -> None:
    distributed: Any = pytest.importorskip("distributed", reason="kofn[dask] is not installed")
    source = DaskRetirement(seconds=300.0)
    with kofn.connect("dask", workers=2, notices=[source, "sigterm"]) as cluster:
        engine: Any = cluster.engine
        probe = EngineProbe(engine, 120)
        address = engine._transport._connections[1].facts["address"]
        options = {"security": engine.security, "set_as_default": False}
        with distributed.Client(engine.scheduler_address, **options) as client:
            client.retire_workers([address], close_workers=False, remove=False)
            event = probe.wait(Leaving, worker=1)
            assert event.deadline == expected(time.time() + 300.0)
            assert event.reason == "Dask retires it"
        assert probe.find(Leaving, worker=0) == []
        assert probe.value(probe.submit(1, echo, 1)) == (1,)
    assert "On Dask use notices='dask'" in caplog.text


def test_on_dask_a_watcher_ends_with_its_session(ec2: EC2) -> None:
    distributed: Any = pytest.importorskip("distributed", reason="kofn[dask] is not installed")
    cluster = distributed.LocalCluster(
        2, processes=False, dashboard_address="127.0.0.1:0", protocol="tcp", threads_per_worker=1
    )
    with cluster:
        address = cluster.scheduler_address
        source = AWS(base=ec2.base, every=0.02)
        with kofn.connect("dask", address=address, notices=source) as used:
            probe = EngineProbe(used.engine, 120)
            ec2.announce(300.0)
            probe.wait(Leaving, worker=0)
        names = [f"kofn-{source.name}"]
        until(lambda: not threads_named(*names), "the end of the watcher")


def threads_named(*names: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


# Ray.


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """A Ray cluster of two machines, as far as Ray knows."""
    pytest.importorskip("ray", reason="kofn[ray] is not installed")
    from ray.cluster_utils import Cluster

    temp = tempfile.mkdtemp(prefix="kofn-test-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", temp)
        cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2)
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(temp, ignore_errors=True)


def test_a_node_that_ray_drains_is_told_for_its_workers(running: Any) -> None:
    raylet: Any = import_module("ray._raylet")
    reasons: Any = import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
    source = RayDrain(every=0.1)
    with kofn.connect("ray", address=running.address, notices=source) as cluster:
        engine: Any = cluster.engine
        cluster.wait_for(4, timeout=120.0)  # a busy machine's may come later than the others
        probe = EngineProbe(engine, 120)
        peers = engine._transport.peers
        node = peers[0].node
        there = {worker for worker, peer in peers.items() if peer.node == node}
        assert len(there) == 2
        at = time.time() + 300.0
        client = raylet.GcsClient(address=running.address)
        preemption = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = client.drain_node(node, preemption, "test", int(at * 1000))
        assert accepted, why
        for worker in there:
            assert probe.wait(Leaving, worker=worker).deadline == expected(at)
        assert {event.worker for event in probe.find(Leaving)} == there
        for worker in engine.workers:
            assert probe.value(probe.submit(worker, echo, worker)) == (worker,)


@pytest.mark.long
def test_a_notice_reaches_the_master_on_ray_from_each_machine(
    running: Any, ec2: EC2, caplog: pytest.LogCaptureFixture
) -> None:
    source = AWS(base=ec2.base, every=0.02)
    running.add_node(num_cpus=2)  # one has been drained by the test before
    with kofn.connect("ray", address=running.address, notices=[source, "sigterm"]) as cluster:
        cluster.wait_for(4, timeout=120.0)
        probe = EngineProbe(cluster.engine, 120)
        at = ec2.announce(300.0)
        for worker in cluster.engine.workers:
            assert probe.wait(Leaving, worker=worker).deadline == expected(at)
        peers = cluster.engine._transport.peers.values()  # type: ignore[attr-defined]
        assert ec2.count("PUT") == len({peer.node for peer in peers})
        probe.until(lambda: "On Ray use notices='ray'" in caplog.text, "the warning")


# MPI.


@pytest.mark.parametrize("where", ["near", pytest.param("far", marks=pytest.mark.long)])
def test_notices_under_mpiexec(where: str) -> None:
    pytest.importorskip("mpi4py", reason="kofn[mpi] is not installed")
    from ranks import finish, mpiexec

    out = finish(mpiexec(3, "mpi_programs/notices.py", where))
    assert out.splitlines()[-1] == "all of it held", out
