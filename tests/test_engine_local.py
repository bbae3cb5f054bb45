"""The local engine keeps the contract, and what it promises beyond."""

from __future__ import annotations

import errno
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from bodies import (
    PAGES,
    busy,
    dies,
    draws,
    large_pieces,
    leaves_a_child,
    maps,
    temporaries,
)
from support import until

import kofn
from kofn.engines import _launcher as launching
from kofn.engines import _wire as wire
from kofn.engines import memory
from kofn.engines.local import LocalEngine
from kofn.errors import BadInput, Closed
from kofn.model import Joined, Lost, Reply, Stored, Task
from kofn.testing._bodies import echo, measure, steps
from kofn.testing.engines import EngineProbe, descendants, gone
from kofn.testing.faults import Faults

pytestmark = pytest.mark.engine


class TestOwnPromises:
    @pytest.fixture
    def engine(self) -> Iterator[LocalEngine]:
        with LocalEngine(4) as engine:
            yield engine

    @pytest.fixture
    def probe(self, engine: LocalEngine) -> EngineProbe:
        return EngineProbe(engine, 120)

    def test_nothing_listens_and_nothing_has_a_name(self, engine: LocalEngine) -> None:
        listening = set()
        for table in ("unix", "tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                field = line.split()
                if table == "unix" and int(field[3], 16) & 0x10000:  # __SO_ACCEPTCON
                    listening.add(field[6])
                if table != "unix" and field[3] == "0A":
                    listening.add(field[9])
        ours = descendants()
        assert ours is not None
        assert len(ours) == 5
        for pid in ours:
            files = [f for f in Path(f"/proc/{pid}/fd").iterdir() if int(f.name) > 2]
            links = [os.readlink(f) for f in files]
            sockets = {x[8:-1] for x in links if x.startswith("socket:[")}
            assert not sockets & listening
            assert not [x for x in links if x.startswith(("/dev/shm", "/tmp"))]

    def test_an_operand_is_written_once_for_all(self) -> None:
        with LocalEngine(20) as engine:
            probe = EngineProbe(engine, 120)
            before = engine._transport.pool.written
            engine.broadcast(1, np.ones(100_000))
            for worker in engine.workers:
                probe.submit(worker, measure)
            probe.until_ended()
            assert 800_000 <= engine._transport.pool.written - before < 801_000

    def test_memory_is_reused(self, probe: EngineProbe, engine: LocalEngine) -> None:
        def files() -> int:
            return len(os.listdir("/proc/self/fd"))

        for round in range(500):
            engine.broadcast(round, np.full(20_000 + 40 * round, 1.0))
            for worker in engine.workers:
                probe.submit(worker, echo, np.ones(10_000), round=round)
            probe.until_ended(*list(probe.ends)[-4:])
            engine.cancel(round)
            if round == 50:
                early = files()
        pool = engine._transport.pool
        assert not pool.used
        assert sum(s.size for s in pool.free) <= pool.keep
        assert files() <= early + 8
        mapped = [probe.value(probe.submit(w, maps, round=1000)) for w in engine.workers]
        assert max(mapped) < 50

    def test_a_stream_of_large_replies_reuses_memory(
        self, probe: EngineProbe, engine: LocalEngine
    ) -> None:
        task = probe.submit(0, large_pieces, 200)
        probe.until_ended()
        values = [r.value for r in probe.pieces[task] if r.value is not None]
        assert [v[0] for v in values] == list(range(200))
        assert len(engine._transport._live[0].maps) < 150

    def test_more_large_arguments_than_segments(
        self, probe: EngineProbe, engine: LocalEngine
    ) -> None:
        pid = engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        tasks = [probe.submit(0, echo, np.full(10_000, float(i))) for i in range(300)]
        os.kill(pid, signal.SIGCONT)
        assert [probe.value(t)[0][0] for t in tasks] == list(range(300))
        assert not engine._transport.pool.used

    def test_rounds_that_nobody_cancels_make_room(
        self, probe: EngineProbe, engine: LocalEngine
    ) -> None:
        for round in range(100):
            engine.broadcast(round, np.full(10_000, 1.0))
            probe.until_ended(probe.submit(0, measure, round=round))
        assert len(engine._transport.pool.used) <= 64
        with pytest.raises(BadInput, match="Cancel rounds"):
            probe.submit(0, measure, round=3)

    def test_replies_before_a_death_are_delivered_first(self, probe: EngineProbe) -> None:
        task = probe.submit(0, dies)
        lost = probe.wait(Lost, worker=0)
        assert lost.tasks == (task,)
        assert [r.what for r in probe.pieces[task]] == ["before"]
        assert probe.log.index(probe.pieces[task][0]) < probe.log.index(lost)

    def test_a_grandchild_does_not_hide_a_death(
        self, probe: EngineProbe, engine: LocalEngine
    ) -> None:
        child = probe.value(probe.submit(0, leaves_a_child))
        try:
            engine.lose(0)
            probe.wait(Lost, worker=0)
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_killed_launcher_is_replaced(self, probe: EngineProbe, engine: LocalEngine) -> None:
        assert engine._transport.launcher is not None
        os.kill(engine._transport.launcher.process.pid, signal.SIGKILL)
        pids = [engine.pid(w) for w in engine.workers]
        new = engine.join()
        probe.wait(Joined, worker=new)
        for worker in (*engine.workers[:2], new):
            assert probe.value(probe.submit(worker, echo, 1)) == (1,)
        engine.close()
        until(lambda: all(gone(p) for p in pids if p), "the end of the workers")

    def test_workers_draw_different_random_numbers(
        self, probe: EngineProbe, engine: LocalEngine
    ) -> None:
        probe.wait(Joined, worker=engine.join())
        drawn = [probe.value(probe.submit(w, draws)) for w in engine.workers]
        for numbers in zip(*drawn, strict=True):
            assert len(set(numbers)) == 5

    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc decides what it keeps")
    def test_memory_of_temporary_arrays_is_used_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Who sets it says what is kept. A nanny of Dask leaves it set in the process it began in.
        monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
        with LocalEngine(1) as engine:
            probe = EngineProbe(engine, 120)
            faults = probe.value(probe.submit(engine.workers[0], temporaries))
        assert faults < 10 * PAGES  # four arrays, and what Python itself has; anew each time: 160

    def test_a_put_sent_late_is_whole(self, probe: EngineProbe, engine: LocalEngine) -> None:
        pid = engine.pid(0)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for i in range(200):
            engine.put(0, f"key{i}", np.full(20_000, float(i)))
            engine.put(0, f"small{i}", np.full(2_000, float(i)))
        files = len(os.listdir("/proc/self/fd"))
        os.kill(pid, signal.SIGCONT)
        probe.wait(Stored, key="small199")
        assert len(os.listdir("/proc/self/fd")) < files
        assert len(probe.find(Stored)) == 400


@contextmanager
def run(script: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "script.py"
    path.write_text(script)
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # what fails must not be waited for


DOOMED = """
from kofn.engines.local import LocalEngine
from kofn.model import Task
from kofn.testing._bodies import toil
engine = LocalEngine(3)
for w in engine.workers:
    engine.submit(Task(w, 1, w, toil, (10**9,)))
print(engine._transport.launcher.process.pid, *[engine.pid(w) for w in engine.workers], flush=True)
while True:
    engine.events(60)
"""


@pytest.mark.parametrize("first", ["frozen", "launcher"])
def test_a_frozen_worker_dies_with_its_master_and_launcher(tmp_path: Path, first: str) -> None:
    with run(DOOMED, tmp_path) as process:
        assert process.stdout is not None
        launcher, frozen, *others = [int(p) for p in process.stdout.readline().split()]
        strikes = [(frozen, signal.SIGSTOP), (launcher, signal.SIGKILL)]
        try:
            for pid, sign in strikes if first == "frozen" else strikes[::-1]:
                os.kill(pid, sign)
            process.kill()
            everybody = (launcher, frozen, *others)
            until(lambda: all(gone(p) for p in everybody), "the end of the processes")
        finally:
            if not gone(frozen):
                os.kill(frozen, signal.SIGKILL)


def test_a_stopped_launcher_goes_on_to_end_with_its_master(tmp_path: Path) -> None:
    with run(DOOMED, tmp_path) as process:
        assert process.stdout is not None
        everybody = [int(p) for p in process.stdout.readline().split()]
        for pid in everybody[:2]:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        try:
            until(lambda: all(gone(p) for p in everybody), "the end of the processes")
        finally:
            for pid in everybody:
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)


NO_ROOM = """
import os, errno
fork, before = os.fork, [3]
def full():
    before[0] -= 1
    if before[0] == -1:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = full
"""


def test_one_failed_fork_is_one_error_and_nobody_is_harmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_BOOT", NO_ROOM + launching._BOOT)
    A = np.random.default_rng(0).standard_normal((30, 8))
    with kofn.connect("local", workers=3) as cluster:
        X = cluster.encode(A, k=2, n=5)
        with pytest.raises(kofn.EngineUnavailable, match=r"unavailable.*the others go on"):
            cluster.join()
        assert list(cluster.workers) == [0, 1, 2]
        np.testing.assert_allclose(X @ np.ones(8), A @ np.ones(8))
        assert cluster.join() == 4
        assert list(cluster.workers) == [0, 1, 2, 4]
    with pytest.raises(kofn.EngineUnavailable, match=r"of 4 came .*unavailable"):
        LocalEngine(4)


LIMITED = """
import os, resource
from pathlib import Path
import numpy as np
import kofn
from kofn.engines.local import LocalEngine

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

def files():
    return len(os.listdir("/proc/self/fd")) - 1

def only(more):  # numbers below the limit can be had, and some below those in use may be free
    free = [n for n in range(1024) if not os.path.exists(f"/proc/self/fd/{n}")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], HARD))

def plenty():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, HARD))

def told(action, *kinds):
    try:
        action()
    except kinds as error:
        assert "Raise the limit" in str(error), error
        return True
    return False

before = files()
only(30)
assert told(lambda: LocalEngine(30), kofn.OutOfResources)
plenty()
assert files() == before

with kofn.connect("local", workers=3) as cluster:
    A = np.random.default_rng(0).standard_normal((60_000, 4))
    X = cluster.encode(A, k=2, n=9)
    small = cluster.encode(np.eye(4), k=2, n=9)
    for action in (lambda: X @ np.ones(4), cluster.join):
        before, failed = files(), 0
        for more in range(12):  # at some point of it there is no room any more
            only(more)
            if not told(action, kofn.OutOfResources, kofn.WorkerError):
                break
            failed += 1
            plenty()
            assert action is not cluster.join or files() == before
            assert np.allclose(small @ np.ones(4), 1.0)
        plenty()
        assert 0 < failed < 12
        assert np.allclose(X @ np.ones(4), A @ np.ones(4))
    assert len(cluster.workers) == 4
    for more in range(3):
        only(more)
        if not told(lambda: cluster.lose(cluster.workers[-1]), kofn.OutOfResources):
            break
        plenty()
        assert len(cluster.workers) == 4
    plenty()
    assert more > 0
    assert len(cluster.workers) == 3
    cluster.join()
    B = np.ones((4_000_000, 2))
    status = Path("/proc/self/status").read_text()
    size = int(status[status.index("VmSize:") :].split()[1]) * 1024
    most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), most[1]))
    assert told(lambda: cluster.parts(B, kofn.Uncoded()), kofn.OutOfResources)
    resource.setrlimit(resource.RLIMIT_AS, most)
    assert np.allclose(X @ np.ones(4), A @ np.ones(4))
print("right")
"""


def test_without_descriptors_or_memory_there_is_one_clear_error(tmp_path: Path) -> None:
    with run(LIMITED, tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert (out, err) == ("right\n", "")


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS])
def test_what_the_kernel_lacks_for_a_while_does_not_break_a_channel(number: int) -> None:
    class Short:
        """A socket that fails once."""

        def __init__(self, sock: socket.socket) -> None:
            self.sock, self.due = sock, True

        def send(self, data: bytes) -> int:
            if self.due:
                self.due = False
                raise OSError(number, os.strerror(number))
            return self.sock.send(data)

    ours, theirs = socket.socketpair()
    poll = wire.poller()
    with ours, theirs:
        channel = wire.Channel(ours, poll)
        channel.sock = Short(ours)  # type: ignore[assignment]
        channel.send(wire.frame(1, "first"))
        channel.send(wire.frame(1, "second"))
        assert not channel.broken
        assert poll.poll(0) == [(channel.fd, wire.OUT)]
        channel.flush()
        messages = wire.Reader(theirs).receive()
        assert messages == [(1, "first"), (1, "second")]
        theirs.close()
        channel.sock = ours
        channel.send(b"x")
        assert channel.broken
        poll.close()


def test_what_is_needed_briefly_is_read_where_it_lies_and_given_back() -> None:
    with LocalEngine(1) as engine:

        def replies(round: int, pieces: int, brief: bool = True) -> list[np.ndarray]:
            found: list[np.ndarray] = []
            engine.submit(Task(round, round, 0, large_pieces, (pieces,), brief=brief))
            last = False
            while not last:
                for event in engine.events(60.0):
                    assert isinstance(event, Reply)
                    found += [] if event.value is None else [event.value]
                    last = event.last
            assert [value[0] for value in found] == list(range(pieces))
            return found

        (peer,) = engine._transport.peers.values()
        first = replies(1, 3)
        assert len(peer.lent) == 3
        first[0] += 7.0  # private and writable, as others
        child = os.fork()  # what it lets go of is still ours
        if child == 0:
            first.clear()
            os._exit(0)
        os.waitpid(child, 0)
        many = replies(2, memory.LENT + 5)  # the rest is copied, and the worker finds room
        assert len(peer.lent) == memory.LENT
        for value, number in zip((*first, *many), (7.0, 1.0, 2.0, *range(len(many))), strict=True):
            assert (value == number).all()
        view = many[7][5:][::2]  # as long as any view of it is there
        del value, many
        assert len(peer.lent) == 4
        replies(3, 5)
        assert (view == 7.0).all()
        del view, first
        before = len(peer.maps)
        replies(4, 5)
        assert len(peer.lent) == 0
        assert len(peer.maps) <= before  # written to again
        kept = replies(5, 2, brief=False)
        assert len(peer.lent) == 0
    assert (kept[1] == 1.0).all()


def test_two_engines_at_a_time_and_a_closed_one() -> None:
    with LocalEngine(1) as one, LocalEngine(2) as two:
        for engine in (one, two):
            probe = EngineProbe(engine, 120)
            probe.submit(0, steps, 3)
            (end,) = probe.until_ended()
            assert isinstance(end, Reply)
        one.close()
        with pytest.raises(Closed):
            one.join()
        assert EngineProbe(two, 120).engine.events(0) == []


def test_a_default_timeout_of_sockets_is_for_the_users_own() -> None:
    A = np.random.default_rng(0).standard_normal((60, 20))
    socket.setdefaulttimeout(0.01)
    try:
        with kofn.connect("local", workers=3, keep=3) as cluster:
            X = cluster.encode(A, k=2)
            pid = cluster.engine.pid(0)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: cluster.workers == (1, 2, 3), "the one that is ordered")
            np.testing.assert_allclose(X @ A[0], A @ A[0])
    finally:
        socket.setdefaulttimeout(None)


def _known(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_signals_that_the_users_program_blocks_are_not_blocked_in_workers() -> None:
    blocked = {signal.SIGCHLD, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        with LocalEngine(2) as engine:
            pids = [pid for worker in engine.workers if (pid := engine.pid(worker))]
            os.kill(pids[0], signal.SIGKILL)
            os.kill(pids[1], signal.SIGTERM)
            probe = EngineProbe(engine, 120)
            for worker in (0, 1):
                probe.wait(Lost, worker=worker)
            until(lambda: not any(map(_known, pids)), "their parent to reap them")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_faults_strike_by_script() -> None:
    faults = Faults().lose(worker=3, round=2).slow(worker=1, by=10.0).join(round=3)
    faults = faults.freeze(worker=0, round=2, rounds=1)
    with faults.on(LocalEngine(4)) as engine:
        probe = EngineProbe(engine, 120)
        slow = probe.submit(1, busy, round=10)
        own = probe.value(slow)
        # Ten times as long as its own work took at least, whatever else runs on this machine.
        assert sum(r.seconds for r in probe.pieces[slow]) > 9.9 * own
        assert engine.workers == (0, 1, 2, 3)
        frozen, well, doomed = (probe.submit(w, echo, round=20) for w in (0, 2, 3))
        assert probe.wait(Lost, worker=3).tasks in ((doomed,), ())
        assert isinstance(probe.until_ended(well)[0], Reply)
        assert not probe.ends[frozen]
        probe.submit(2, echo, round=30)
        assert isinstance(probe.until_ended(frozen)[0], Reply)
        probe.wait(Joined)
        assert engine.workers == (0, 1, 2, 4)
    assert "slow worker 1 in every round" in faults.script
    assert Faults().script == ()
