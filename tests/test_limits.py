"""Limits: what is too large, too many, or finds no room is refused in one error, whole."""

from __future__ import annotations

import errno
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kofn
from kofn import threads
from kofn.engines import _launcher, _sockets, _spares, local, memory
from kofn.engines import _wire as wire
from kofn.engines._mpi_setup import listening
from kofn.engines._processes import available_memory
from kofn.engines._socket_worker import SocketWorker
from kofn.engines.local import LocalEngine
from kofn.errors import CannotWrite, EngineUnavailable, OutOfResources, TooLarge
from kofn.events import EventLog
from kofn.files import save
from kofn.page import Page
from kofn.peers import blobs
from kofn.reproduce import page
from kofn.testing._probe import descendants, open_files

engine = pytest.mark.engine


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Limits of time that the user's program has set for its own sockets.


@pytest.fixture
def default_timeout() -> Iterator[None]:
    socket.setdefaulttimeout(0.01)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("default_timeout")
def test_a_default_timeout_is_none_of_our_sockets() -> None:
    ours, theirs = wire.pair()
    with ours, theirs, wire.adopt(os.dup(ours.fileno())) as adopted:
        assert {end.gettimeout() for end in (ours, theirs, adopted)} == {None}
        assert os.get_blocking(theirs.fileno())  # whoever it is passed to waits, too
    with Page(EventLog(), "virtual", range(2)) as shown:
        assert shown._server.socket.gettimeout() is None  # it would wake up all the time
    with socket.create_server(("", 0)) as users:
        users.setblocking(True)
        assert users.getsockname() in [sock.getsockname() for sock in listening()]
        assert os.get_blocking(users.fileno())


# No program to start workers with.


@pytest.mark.parametrize("path", ["", None, "/no/python", os.curdir])
def test_where_python_runs_within_another_program_it_is_said(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    monkeypatch.setattr(sys, "executable", path)
    with pytest.raises(EngineUnavailable, match=r"Set sys\.executable to the path of python3"):
        LocalEngine(1)
    assert open_files() <= before  # of earlier tests some may be closed only now


# Too large for one piece.


def test_a_frame_takes_what_the_limit_says_and_no_more() -> None:
    # Zeros that nobody has read take no memory.
    large = np.zeros(memory.FRAME + 1, np.uint8)
    with pytest.raises(ValueError, match="unmarshallable"):
        wire.frame(large.data)
    packed, _ = memory.pack(large)
    with pytest.raises(TooLarge, match=r"at most 2,147,483,647 bytes.* has 2,147,483,648") as told:
        memory.framed(packed)
    assert (told.value.size, told.value.limit) == (memory.FRAME + 1, memory.FRAME)
    assert memory.framed(memory.pack(large[1:])[0])


def test_what_is_copied_out_of_memory_for_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, segment = memory.pack(np.arange(10_000.0), lambda size: memory.fresh(size))
    assert segment is not None
    assert memory.unpack(memory.inline(packed, segment)).shape == (10_000,)
    monkeypatch.setattr(memory, "FRAME", 79_999)
    with pytest.raises(TooLarge, match="80,000"):
        memory.inline(packed, segment)
    segment.close()


def test_a_worker_refuses_a_reply_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    word = memory.Segment(8)
    with ours, theirs:
        worker = SocketWorker(theirs, word.map)
        monkeypatch.setattr(worker.pool, "take", lambda size: None)  # no room in shared memory
        reply = np.zeros(20_000)
        assert worker.pack(reply)[2] is None
        monkeypatch.setattr(memory, "FRAME", 159_999)
        with pytest.raises(TooLarge, match="160,000"):
            worker.pack(reply)
        worker.word.release()
    word.close()


@engine
def test_a_task_that_is_too_large_is_refused_and_the_cluster_goes_on(
    cluster: kofn.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = np.random.default_rng(0).standard_normal((4000, 60))
    X, w = cluster.encode(A, k=2), np.ones(60)
    transport = cluster.engine._transport  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for module, name in ((_sockets, "fresh"), (_spares, "reserve")):  # no room in shared memory
            patch.setattr(module, name, lambda *_: None)
        patch.setattr(transport.pool, "take", lambda size: None)
        patch.setattr(memory, "FRAME", 40_000)
        with pytest.raises(TooLarge, match=r"960,000\. Make it smaller"):
            cluster.encode(A, k=2)
        with pytest.raises(TooLarge, match="48,000"):
            X @ np.ones((60, 100))
        assert np.allclose(X @ w, A @ w)
    assert np.allclose(X @ np.ones((60, 100)), A @ np.ones((60, 100)))
    assert np.allclose(cluster.encode(A, k=2) @ w, A @ w)


@engine
def test_what_could_not_be_sent_is_sent_with_the_next(
    cluster: kofn.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = np.random.default_rng(0).standard_normal((40, 6))
    X, w = cluster.encode(A, k=2), np.ones(6)
    transport = cluster.engine._transport  # type: ignore[attr-defined]
    send, sent = transport.send, 0

    def refusing(worker: int, message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            raise TooLarge("it", 2, 1)
        send(worker, message)

    with monkeypatch.context() as patch:
        patch.setattr(transport, "send", refusing)
        with pytest.raises(TooLarge):
            X @ w
    assert np.allclose(X @ w, A @ w)


# Too many.


@engine
@pytest.mark.parametrize("lack", ["descriptors", "memory"])
def test_workers_without_room_are_refused_before_any_is_started(
    lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any) -> Any:
        pytest.fail("something was started")

    monkeypatch.setattr(_launcher.Launcher, "__init__", started)
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if lack == "memory":
        monkeypatch.setattr(local, "available_memory", lambda: 100 << 20)
        told = r"LocalEngine\(500\).*10000 MB of memory are needed, and 100 are free"
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1000), hard))
        told = r"LocalEngine\(500\).* file descriptors are needed, and 1000 are allowed\. Raise"
    try:
        with pytest.raises(OutOfResources, match=told):
            LocalEngine(500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == before


@engine
@pytest.mark.long  # 500 processes take a while to start
def test_500_workers_work() -> None:
    before = open_files()
    A = np.random.default_rng(0).standard_normal((5000, 30))
    with kofn.connect("local", workers=500, limit=600.0) as cluster:
        X = cluster.encode(A, k=20)
        for _ in range(3):
            assert np.allclose(X @ np.ones(30), A @ np.ones(30))
        for worker in cluster.workers[:5]:
            cluster.lose(worker)
        assert np.allclose(X @ np.ones(30), A @ np.ones(30))
    assert not descendants()
    assert open_files() == before


@engine
def test_a_worker_takes_no_more_than_is_counted_for_it() -> None:
    """Or workers would be started for which there is no room."""
    available = available_memory()
    assert available is None or available > 0
    before = open_files()
    with LocalEngine(8) as workers:
        each = (open_files() - before - local._SPARE) / 8
        assert each <= local._DESCRIPTORS
        assert statistics.median(map(own_memory, map(workers.pid, workers.workers))) < local._MEMORY


def own_memory(pid: int | None) -> int:
    """Bytes that only this process has: what it shares with the others that were forked is not."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


@pytest.mark.parametrize("had", [0, 1])
def test_without_more_threads_one_does_the_work(had: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun, done = threading.Thread.start, list[Any](), list[int]()

    def start(thread: threading.Thread) -> None:
        if len(begun) == had:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threads, "cores", lambda: 3)
    monkeypatch.setattr(threading.Thread, "start", start)
    threads.each(done.append, range(5))
    assert set(done) == set(range(5))
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda one: 1 // one, range(5))
    assert not any(thread.is_alive() for thread in begun)


# No room on a disk.


@engine
@pytest.mark.parametrize("why", [errno.EPERM, errno.ENOSYS])
def test_memory_that_the_system_refuses_is_a_file(
    why: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    A = np.random.default_rng(0).standard_normal((4000, 60))
    with kofn.connect("local", workers=3) as cluster:
        assert np.allclose(cluster.encode(A, k=2) @ np.ones((60, 100)), A @ np.ones((60, 100)))
    assert blobs.allocate(blobs.PIECE).fd is None
    monkeypatch.delattr(os, "memfd_create")
    assert blobs.allocate(blobs.PIECE).fd is None


@engine
def test_a_share_for_which_there_is_no_room_is_one_error(
    cluster: kofn.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = np.random.default_rng(0).standard_normal((4000, 60))
    with monkeypatch.context() as patch:
        patch.setattr(memory.Segment, "_write", full)
        with pytest.raises(OutOfResources, match=r"a share needs .*No space left"):
            cluster.encode(A, k=2)
    assert np.allclose(cluster.encode(A, k=2) @ np.ones(60), A.sum(axis=1))


@engine
def test_a_limit_on_the_size_of_files_is_one_error(cluster: kofn.Cluster) -> None:
    A = np.random.default_rng(0).standard_normal((60, 60))
    X, before = cluster.encode(A, k=2), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OutOfResources, match="File too large"):
            X.iterate(np.sign, np.ones(60), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert np.array_equal(X.iterate(np.sign, np.ones(60), 1), np.sign(A @ np.ones(60)))


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shown:
        TITLE = "A title"

        @staticmethod
        def sentences(_: Any) -> dict[str, str]:
            return {"figure": "A sentence."}

        @staticmethod
        def figure(_: Any) -> Any:
            class Figure:
                def savefig(self, file: Any) -> None:
                    assert isinstance(file, BytesIO)
                    file.write(b"picture")

            return Figure()

    results = {"settings": {"cores": 2}, "stood_in": "Nothing."}
    page.publish(Shown, results, tmp_path)
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(path.name for path in old) == ["figure.png", "index.html"]

    def half(file: Any, view: memoryview) -> None:
        file.write(view[: len(view) // 2])
        full()

    with monkeypatch.context() as patch:
        patch.setattr("kofn.files.write_all", half)
        with pytest.raises(CannotWrite, match=r"figure\.png: it cannot be written: No space left"):
            page.publish(Shown, {**results, "stood_in": "All."}, tmp_path)
        with pytest.raises(CannotWrite, match="the text cannot be written"):
            save(tmp_path / "new", b"12345", "the text")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


@engine
@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_cluster_without_room_for_its_folder_is_one_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"dask": "distributed"}.get(name, name), reason=f"no kofn[{name}]")
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(OutOfResources, match=rf"a {name.title()} cluster needs .*No space left"):
        kofn.connect(name, workers=1)


@engine
def test_a_full_object_store_of_ray_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="kofn[ray] is not installed")
    from kofn.engines.ray import RayTransport

    def no_room(_: object) -> Any:
        raise ray.exceptions.ObjectStoreFullError("the store has 100 bytes")

    monkeypatch.setattr(ray, "put", no_room)
    transport = object.__new__(RayTransport)  # packing needs nothing of it
    assert not transport.pack(np.ones(3)).large
    with pytest.raises(OutOfResources, match=r"object store needs .*the store has 100 bytes"):
        transport.pack(np.ones(100_000))


@engine
def test_a_launcher_that_cannot_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(OSError, match="No space"):
        _launcher.Launcher("kofn.engines._dask_launch", str(folder))
    assert not folder.exists()


def test_the_error_says_rule_fact_and_remedy() -> None:
    error = TooLarge("a share", 3_000_000_000, memory.FRAME)
    assert "3,000,000,000" in str(error)
    assert "encode with a larger k" in str(error)
