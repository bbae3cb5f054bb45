"""The data plane between workers, and X.iterate over it: right whoever is lost, late or joins."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from bodies import same
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import Noting, driver_of, examples, held_back, spread, until

import kofn
from kofn import peers
from kofn.arrays import mesh_body
from kofn.delays import Change, Delays, Exponential, PerUnit, Script
from kofn.engines.base import Wrapped
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.exchange import Exchange, ExchangeLayout
from kofn.model import Command, Lost, Reply, Send, Task, Tick
from kofn.peers import Address, Keys, Node, read_keys
from kofn.peers.blobs import PIECE, Blobs
from kofn.peers.place import in_order, own_addresses
from kofn.peers.relay import LARGE, Ticket, Unreached, fetch, lay
from kofn.rounds import Late, RoundDriver
from kofn.rounds.mesh import AskRound
from kofn.rounds.relayed import Relaying
from kofn.testing import _bodies as bodies
from kofn.testing.engines import EngineProbe

Floats = NDArray[np.float64]
TOKEN = b"0123456789abcdef"


def rotation(rng: np.random.Generator, size: int) -> Floats:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


def power(A: Floats, rounds: int) -> Floats:
    w = np.ones(len(A))
    for _ in range(rounds):
        w = A @ w
    return w


# Nodes.


@pytest.fixture(scope="module")
def make_keys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Keys]:
    """Make a certificate that is its own authority, and keys of it."""
    pytest.importorskip("cryptography", reason="kofn[dask] is not installed")
    x509: Any = import_module("cryptography.x509")
    hazmat: Any = import_module("cryptography.hazmat.primitives.asymmetric.ec")
    codes: Any = import_module("cryptography.hazmat.primitives.serialization")
    hashes: Any = import_module("cryptography.hazmat.primitives.hashes")

    def make() -> Keys:
        key = hazmat.generate_private_key(hazmat.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
        builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
        certificate = builder.sign(key, hashes.SHA256()).public_bytes(codes.Encoding.PEM)
        form = codes.PrivateFormat.PKCS8, codes.NoEncryption()
        path = tmp_path_factory.mktemp("keys") / "both.pem"
        path.write_bytes(certificate + key.private_bytes(codes.Encoding.PEM, *form))
        return read_keys(str(path), str(path), str(path))

    return make


WAYS = ("machine", "tcp", "tls")


@contextmanager
def nodes_on(way: str, count: int, make_keys: Callable[[], Keys]) -> Iterator[list[Node]]:
    """Nodes that reach each other by sockets of the machine, by TCP, or that encrypt it."""
    keys = make_keys() if way == "tls" else None
    with nodes(count, same_host=way == "machine", keys=keys) as made:
        yield made


@contextmanager
def nodes(
    count: int, token: bytes = TOKEN, same_host: bool = False, keys: Keys | None = None
) -> Iterator[list[Node]]:
    made = [Node(token, same_host=same_host, keys=keys) for _ in range(count)]
    try:
        yield made
    finally:
        for node in made:
            node.close()


def one_frame(node: Node) -> tuple[dict[str, Any], bytes]:
    found: list[Any] = []
    until(lambda: arrived(node, found, 1), "a frame")
    return found[0][0], bytes(found[0][1])


def arrived(node: Node, found: list[Any], count: int) -> bool:
    found += node.take()
    return len(found) >= count


def fetched(node: Node, size: int) -> bytes:
    until(lambda: node.fetched("blob")[1] is not None, "the blob")
    have, data = node.fetched("blob")
    assert have == size
    return bytes(data or b"")


@pytest.mark.parametrize("way", WAYS)
def test_frames_go_both_ways_in_order(way: str, make_keys: Callable[[], Keys]) -> None:
    with nodes_on(way, 2, make_keys) as (a, b):
        values = np.arange(300_000.0)
        a.send(b.address, {"k": "x", "n": 1}, values)
        a.send(b.address, {"k": "x", "n": 2})
        got: list[Any] = []
        until(lambda: arrived(b, got, 2), "two frames")
        assert [header["n"] for header, _ in got] == [1, 2]
        np.testing.assert_array_equal(np.frombuffer(got[0][1]), values)
        b.send(a.address, {"k": "x", "n": 3}, b"back")
        assert one_frame(a) == ({"k": "x", "n": 3}, b"back")


def test_without_the_token_nobody_gets_in() -> None:
    with nodes(1) as (ours,), nodes(1, b"another token") as (stranger,):
        stranger.send(ours.address, {"k": "x"}, b"secret")
        until(lambda: stranger._failed, "the refusal")
        assert ours.take() == []


def test_what_proves_nothing_is_not_read_beyond_the_proof() -> None:
    with nodes(1) as (ours,), socket.create_connection(("127.0.0.1", ours.address.port)) as raw:
        assert len(raw.recv(100)) == 16
        raw.sendall(bytes(48) + b'\0\0\0\x0b\0\0\0\0\0\0\0\0{"k":"x"}  ')
        raw.settimeout(10)
        with suppress(ConnectionError):
            assert raw.recv(100) == b""
        assert ours.take() == []


def test_with_keys_who_has_the_token_alone_gets_nowhere(make_keys: Callable[[], Keys]) -> None:
    ours = make_keys()
    for keys in (None, make_keys()):
        with nodes(2, keys=ours) as (a, b), nodes(1, keys=keys) as (stranger,):
            stranger.send(a.address, {"k": "x"}, b"let me in")
            a.send(stranger.address, {"k": "x"}, b"secret")
            b.send(a.address, {"k": "x"}, b"on")
            assert one_frame(a)[1] == b"on"
            until(lambda: not (a._links or stranger._links), "the refusals")
            assert a.take() == stranger.take() == []


@contextmanager
def overheard(node: Node) -> Iterator[tuple[Address, bytearray]]:
    """An address at which a node is reached through one who listens, and what that one hears."""
    heard, pipes = bytearray(), list[socket.socket]()

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                heard.extend(data)
                target.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            near, _ = door.accept()
            far = socket.create_connection((node.address.hosts[0], node.address.port))
            pipes.extend((near, far))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=accept, daemon=True).start()
        yield node.address._replace(port=door.getsockname()[1]), heard
        for pipe in pipes:
            pipe.close()


@pytest.mark.parametrize("way", ["tcp", "tls"])
def test_who_listens_hears_what_is_not_encrypted_alone(
    way: str, make_keys: Callable[[], Keys]
) -> None:
    secret = b"a vector of 256 KB" * 1000
    with nodes_on(way, 2, make_keys) as (a, b), overheard(b) as (address, heard):
        a.send(address, {"k": "header"}, secret)
        assert one_frame(b)[1] == secret
        b.offer("blob", secret)
        a.fetch("blob", len(secret), address)
        assert fetched(a, len(secret)) == secret
        assert (b"vector" in heard, b"header" in heard) == (way == "tcp", way == "tcp")


def test_a_node_that_is_another_one_is_not_taken_for_it() -> None:
    with nodes(2) as (a, b):
        wrong = Address("0" * 16, "", b.address.hosts, b.address.port)
        a.send(wrong, {"k": "x"})
        until(lambda: a._failed, "the refusal")
        assert b.take() == []


def test_a_silent_peer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.peers.node._HANDSHAKE", 1e6)  # no wait for the silent one ends
    with nodes(2) as (a, b), socket.create_server(("127.0.0.1", 0)) as deaf:
        silent = Address("0" * 16, "", ("127.0.0.1",), deaf.getsockname()[1])
        closed = Address("1" * 16, "", ("127.0.0.1",), 1)
        for _ in range(100):
            a.send(silent, {"k": "x"}, bytes(100_000))
            a.send(closed, {"k": "x"}, bytes(100_000))
        a.send(b.address, {"k": "x"}, b"on")
        assert one_frame(b)[1] == b"on"


def test_a_peer_that_was_gone_is_reached_again() -> None:
    with nodes(1) as (a,):
        with nodes(1) as (b,):
            a.send(b.address, {"k": "x"}, b"one")
            assert one_frame(b)[1] == b"one"
        with nodes(1) as (b,):
            a.send(b.address, {"k": "x"}, b"two")
            assert one_frame(b)[1] == b"two"


@pytest.mark.parametrize("way", WAYS)
def test_a_blob_is_passed_on_while_it_comes(way: str, make_keys: Callable[[], Keys]) -> None:
    data = np.random.default_rng(0).bytes(5 * PIECE + 17)
    with nodes_on(way, 3, make_keys) as (a, b, c):
        c.fetch("blob", len(data), b.address)  # who has nothing yet
        b.fetch("blob", len(data), a.address)
        a.offer("blob", data)
        for node in (b, c):
            assert fetched(node, len(data)) == data


def test_a_blob_that_is_pushed_is_mapped_by_those_of_one_machine() -> None:
    data = np.random.default_rng(0).bytes(5 * PIECE + 17)
    master = Node(TOKEN, listen=False)
    with nodes(3, same_host=True) as (a, b, c):
        for node in (b, c):
            node.fetch("blob", len(data), a.address)
        master.push("blob", data, [a.address])
        for node in (a, b, c):
            assert fetched(node, len(data)) == data
        assert master.sent == a.sent == 0
    master.close()


def test_the_rest_of_a_blob_comes_from_another() -> None:
    data = np.random.default_rng(0).bytes(3 * PIECE)
    with nodes(3) as (a, b, c):
        c.send(c.address, {"k": "x"})  # a node may send to itself
        half = {"k": "data", "name": "blob", "at": 0, "size": len(data)}
        a.send(c.address, {"k": "push", "name": "blob", "size": len(data)})
        a.send(c.address, half, data[:PIECE])  # pushed, and then it is silent
        until(lambda: c.fetched("blob")[0] == PIECE, "the first part")
        b.offer("blob", data)
        c.fetch("blob", len(data), b.address)
        assert fetched(c, len(data)) == data
        assert b.sent == 2 * PIECE


def test_parts_that_leave_a_gap_or_come_twice_are_dropped() -> None:
    blobs = Blobs()
    blobs.begin("b", 10)

    def part(at: int, size: int) -> dict[str, Any]:
        return {"k": "data", "name": "b", "at": at, "size": 10}

    assert blobs.room(part(4, 2), 2) is None
    assert blobs.room(part(0, 11), 11) is None
    room = blobs.room(part(0, 4), 4)
    assert room is not None
    blobs.came(part(0, 4), room)
    blobs.came(part(0, 4), room)
    assert blobs["b"].have == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["machine", "tls"])
def test_nothing_is_left_of_a_node(way: str, make_keys: Callable[[], Keys]) -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with nodes_on(way, 3, make_keys) as (a, b, c):
            a.send(b.address, {"k": "x"}, b"1")
            c.send(b.address, {"k": "x"}, b"1")
            one_frame(b)
            c.fetch("blob", 2 * PIECE, b.address)
            a.push("blob", bytes(2 * PIECE), [b.address])
            until(lambda: c.fetched("blob")[1] is not None, "the blob")
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_nothing_is_unpickled() -> None:
    for path in Path(peers.__file__).parent.glob("*.py"):
        assert "import pickle" not in path.read_text()


def test_the_address_most_like_ours_is_tried_first() -> None:
    mine = ("10.1.2.3", "172.17.0.1")
    assert (
        in_order(["172.17.0.1", "192.168.0.9", "10.1.2.9"], mine)
        == [
            "10.1.2.9",
            "192.168.0.9",
            "172.17.0.1",
        ]
        or in_order(["172.17.0.1", "10.1.2.9"], mine)[0] == "10.1.2.9"
    )
    assert all(not ip.startswith("127.") or len(own_addresses()) == 1 for ip in own_addresses())


# X.iterate on processes whose memory is not shared.


class Apart(Wrapped):
    """An engine whose workers share no memory."""

    name = "apart"

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        return None


def kill(cluster: kofn.Cluster, worker: int, signum: int = signal.SIGKILL) -> None:
    pid = cluster.engine.pid(worker)
    assert pid is not None
    os.kill(pid, signum)


def thread_names(cluster: kofn.Cluster) -> set[str]:
    """Of all workers."""
    engine, driver = cluster.engine, driver_of(cluster)
    with driver.lock:
        probe, round = EngineProbe(engine, 120), driver.next_round()
        asked = [probe.submit(w, bodies.thread_names, round=round) for w in engine.workers]
        return {name for task in asked for name in probe.value(task)}


@pytest.mark.engine
def test_two_of_six_are_killed_and_all_is_right(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(1), 300)
    with kofn.connect(Noting(Apart(LocalEngine(6)), tmp_path)) as cluster:
        X = cluster.encode(A, k=3)
        spread(cluster, X)
        kills = [(35, 0), (10, 4)]

        def on_round(round: int, change: float) -> None:
            noted = len(kills) == 2 or (tmp_path / "0").exists()
            if kills and noted and round >= kills[-1][0]:
                kill(cluster, kills.pop()[1])

        f = held_back(same, tmp_path, times=2, each=30)
        w = X.iterate(f, np.ones(300), rounds=100, on_round=on_round)
        np.testing.assert_allclose(w, power(A, 100), atol=1e-12)
        assert set(X.report.lost) == {0, 4}
        assert X.report.extra["rounds"] == 100
        assert X.report.extra["epochs"] >= 3
        np.testing.assert_allclose(X @ w, A @ w, atol=1e-12)


@pytest.mark.engine
def test_bytes_through_the_master_do_not_grow_with_the_vector() -> None:
    with kofn.connect(Apart(LocalEngine(4))) as cluster:
        passed = {}
        for size in (100, 3000):
            X = cluster.encode(np.eye(size), k=2, late=None)
            X.iterate(same, np.ones(size), rounds=30)
            passed[size] = X.report.extra["bytes_through_master"]
        assert passed[3000] < passed[100] + 12_000, passed  # a vector is 24,000 bytes


@pytest.mark.engine
def test_a_stopped_worker_is_left_out_and_comes_back(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(1), 60)
    with kofn.connect(Apart(LocalEngine(4))) as cluster:
        X = cluster.encode(A, k=2)
        spread(cluster, X)
        stopped: list[int] = []
        back: list[int] = []

        def on_round(round: int, change: float) -> None:
            # Not every round is seen by the master, where workers are quicker.
            if round >= 10 and not stopped:
                kill(cluster, 2, signal.SIGSTOP)
                stopped.append(round)
                (tmp_path / "0").touch()
            elif round >= 300 and not back:
                kill(cluster, 2, signal.SIGCONT)
                back.append(round)
                (tmp_path / "1").touch()

        f = held_back(same, tmp_path, times=2, each=300)
        try:
            w = X.iterate(f, np.ones(60), rounds=3000, on_round=on_round)
        finally:
            kill(cluster, 2, signal.SIGCONT)
        np.testing.assert_allclose(w, power(A, 3000), atol=1e-10)
        assert stopped
        assert back
        assert 2 in X.report.late
        assert X.report.lost == ()


@pytest.mark.engine
def test_below_the_threshold_a_joiner_saves_the_run(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(1), 60)
    with kofn.connect(Apart(LocalEngine(3)), wait=300.0) as cluster:
        X = cluster.encode(A, k=3)
        kills = [1]

        def on_round(round: int, change: float) -> None:
            if round >= 10 and kills:
                kill(cluster, kills.pop())
                cluster.engine.join()
                (tmp_path / "0").touch()

        f = held_back(same, tmp_path)
        w = X.iterate(f, np.ones(60), rounds=100, on_round=on_round)
        np.testing.assert_allclose(w, power(A, 100), atol=1e-12)
        assert X.report.joined == (3,)


@pytest.mark.engine
def test_tolerance_divergence_errors_and_what_is_left() -> None:
    with kofn.connect(Apart(LocalEngine(3))) as cluster:
        X = cluster.encode(np.eye(40) * 0.5, k=2)
        w = X.iterate(same, np.ones(40), tol=1e-6)
        assert X.report.extra["converged"]
        assert X.report.extra["rounds"] < 40
        assert 0 < np.linalg.norm(w) < 1e-5
        Y = cluster.encode(np.eye(4) * 1e200, k=1)
        with pytest.raises(kofn.Diverged, match=r"after round 2 entry \[0\] is inf") as caught:
            Y.iterate(same, np.ones(4), rounds=50)
        assert caught.value.reached is not None
        assert caught.value.reached[0] == 1
        np.testing.assert_allclose(caught.value.reached[1], np.full(4, 1e200))

        def brittle(y: Floats) -> Floats:
            if y[0] < 0.2:
                raise ArithmeticError("too small for me")
            return y

        with pytest.raises(kofn.WorkerError, match="too small for me"):
            X.iterate(brittle, np.ones(40), rounds=50)
        assert "kofn-peers" not in thread_names(cluster)


# Large operands.


class Copying(Wrapped):
    """An engine that says that it sends each worker a copy; counts the operands that it sends."""

    name = "copying"

    def __init__(self, workers: int) -> None:
        super().__init__(LocalEngine(workers))
        self.capabilities = replace(self.engine.capabilities, copies=True)
        self.sent = 0

    def broadcast(self, round: int, value: Any) -> None:
        self.sent += 1
        self.engine.broadcast(round, value)


def large(seed: int, order: Literal["C", "F"] = "C", columns: int = 10) -> Floats:
    values = np.random.default_rng(seed).standard_normal((LARGE // 80 + 1, columns))
    return np.asarray(values, order=order)


def passed_on(engine: Copying, X: kofn.CodedMatrix) -> bool:
    """Whether workers passed on a large operand: each of them within half a second."""
    before = engine.sent
    X @ large(0)
    return engine.sent == before


def test_with_peers_off_no_worker_connects_to_another() -> None:
    engine = Apart(VirtualEngine(3))
    engine.capabilities = replace(engine.capabilities, copies=True, exchange=True)
    with kofn.connect(engine, peers=False) as cluster:
        assert driver_of(cluster).engine is engine  # so it sends large operands itself
        X = cluster.encode(np.eye(4), k=2)
        with pytest.raises(kofn.CannotDo, match="opened with peers=False"):
            X.iterate(same, np.ones(4), rounds=2)


@pytest.mark.engine
def test_large_operands_are_passed_on_and_right_whoever_leaves() -> None:
    A = np.random.default_rng(0).standard_normal((12, LARGE // 80 + 1))
    engine = Copying(5)
    with kofn.connect(engine) as cluster:
        assert cluster.engine is engine
        X = cluster.encode(A, k=2)
        for seed in range(8):
            W = large(seed, "F" if seed % 2 else "C")
            np.testing.assert_allclose(X @ W, A @ W, atol=1e-9)
            W[:] = 0.0  # what was sent may be changed
            if seed == 4:
                kill(cluster, 0)
        cluster.join()
        for seed in range(4):
            W = large(seed).astype(np.float32)
            np.testing.assert_allclose(X @ W, A @ W, atol=1e-9)
        until(partial(passed_on, engine, X), "an operand that is passed on")
        sent = engine.sent
        np.testing.assert_allclose(X @ np.ones(A.shape[1]), A.sum(axis=1), atol=1e-9)
        assert engine.sent == sent + 1  # a small one goes with the task


@pytest.mark.engine
def test_one_that_passes_nothing_on_keeps_nobody_waiting() -> None:
    A = np.random.default_rng(0).standard_normal((12, LARGE // 80 + 1))
    engine = Copying(5)
    with kofn.connect(engine) as cluster:
        X = cluster.encode(A, k=2)
        until(partial(passed_on, engine, X), "an operand that is passed on")
        kill(cluster, 0, signal.SIGSTOP)  # whom the master pushes to
        try:
            for seed in range(3):
                W = large(seed)
                np.testing.assert_allclose(X @ W, A @ W, atol=1e-9)
        finally:
            kill(cluster, 0, signal.SIGCONT)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sets(st.integers(0, 39)))
def test_everybody_is_reached(machines: list[int], busy: set[int]) -> None:
    at = {w: Address(f"node {w}", str(machine), (), 0) for w, machine in enumerate(machines)}
    sources, reached = lay(at, busy, "0", 31)
    assert sources.keys() == at.keys()
    assert len(reached) == len({at[worker].machine == "0" for worker in reached})
    names = {at[worker].id for worker in reached}
    for _ in at:
        names |= {at[w].id for w, some in sources.items() if some and some[0][0] in names}
    assert len(names) == len(at)
    over = [w for w, some in sources.items() if some and some[0][1] != at[w].machine]
    firsts = {at[w].machine for w in over} | {at[w].machine for w in reached}
    assert len(over) + len(reached) == len(firsts)  # one of each machine


def test_what_does_not_come_is_said() -> None:
    with nodes(1) as (node,):
        ticket = Ticket("operand-1", "<f8", (10,), "C", 80, ())
        assert list(fetch(node, ticket))[-1] == Unreached("operand-1")


def test_a_users_error_of_that_name_is_his_own() -> None:
    """Workers' threads pass the operand on, in this process. His function runs once a part."""

    class Unreached(Exception): ...

    def fn(part: int, x: Floats) -> Floats:
        if x[0]:
            calls.append(part)
            raise Unreached("mine")
        return x[:1]

    calls: list[int] = []
    driver = RoundDriver(Relaying(VirtualEngine(4)), 0.0, 300.0, float("inf"))
    with kofn.Cluster(driver) as cluster:
        parts = cluster.parts([0, 1, 2, 3], kofn.FractionalRepetition(c=1))
        for first in (0.0, 1.0):  # the first operand is sent by the engine
            x = np.full(LARGE // 8, first)
            with pytest.raises(kofn.WorkerError, match="mine") if first else nullcontext():
                parts.sum(fn, x)
    assert calls
    assert len(calls) == len(set(calls))


# The same master and the same workers' code in simulated time: losses at any piece of work.


class SimulatedNet:
    """Frames between simulated workers: each takes its own time, and may die with its sender."""

    def __init__(self, engine: VirtualEngine, rng: np.random.Generator, slowest: float) -> None:
        self.engine, self.rng, self.slowest = engine, rng, slowest
        self.nodes: dict[str, SimulatedNode] = {}
        self.cut = False  # nothing arrives

    def node(
        self, token: bytes, everywhere: bool = False, keys: Keys | None = None
    ) -> SimulatedNode:
        return SimulatedNode(self)


class SimulatedNode:
    """A Node without sockets."""

    def __init__(self, net: SimulatedNet) -> None:
        self.net, self.machine, self.id = net, "one", str(len(net.nodes))
        self.same_host = False
        self.address = Address(self.id, "", ("127.0.0.1",), 1)
        self.blobs, self.inbox, self.closed = Blobs(), list[Any](), False
        net.nodes[self.id] = self
        self.now = net.engine.now

    def send(self, to: Address, header: dict[str, Any], payload: Any = None) -> None:
        net = self.net
        data = b"" if payload is None else bytes(memoryview(payload).cast("B"))
        outlives = bool(net.rng.random() < 0.5)  # it was on its way when the sender died

        def arrive() -> None:
            there = net.nodes.get(to.id)
            if there is None or there.closed or net.cut:
                return
            if outlives or not self.closed:
                there.receive(self, header, memoryview(bytearray(data)))
                net.engine._wake()

        net.engine._at(net.engine.now() + net.rng.random() * net.slowest, arrive)

    def receive(self, sender: SimulatedNode, header: dict[str, Any], payload: memoryview) -> None:
        if header["k"] == "want":
            self._pass_on(self.blobs.wanted(sender, header))
        elif header["k"] == "data":
            room = self.blobs.room(header, len(payload))
            if room is not None:
                room[:] = payload
                self._pass_on(self.blobs.came(header, room))
        else:
            self.inbox.append((header, payload))

    def _pass_on(self, parts: Any) -> None:
        for link, header, payload, _ in parts:
            self.send(link.address, header, payload)

    def take(self) -> list[Any]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def wait(self, seconds: float) -> None:
        pass

    def offer(self, name: str, payload: Any) -> None:
        self._pass_on(self.blobs.offer(name, memoryview(payload).cast("B")))

    def withdraw(self, name: str) -> None:
        self.blobs.drop(name)

    def fetch(self, name: str, size: int, source: Address) -> None:
        blob = self.blobs.begin(name, size)
        if not blob.complete:
            self.send(source, {"k": "want", "name": name, "at": blob.have})

    def fetched(self, name: str) -> tuple[int, memoryview | None]:
        blob = self.blobs[name]
        if blob is None:
            return 0, None
        return blob.have, blob.buffer if blob.complete else None

    def keep_only(self, ids: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Silent(Delays):
    """Some never end what they are asked for from a certain round on."""

    workers: set[int]
    since: list[int] = field(default_factory=list)

    def seconds(self, rng: np.random.Generator, worker: int, round: int, cost: float) -> float:
        silent = worker in self.workers and self.since and round >= self.since[0]
        return 1e9 if silent else 1e-4 * cost


class ApartVirtual(VirtualEngine):
    """Simulated workers that share no memory."""

    def exchange(self, layout: ExchangeLayout) -> Exchange | None:
        return None


@contextmanager
def simulated(engine: VirtualEngine, seed: int, slowest: float) -> Iterator[SimulatedNet]:
    net = SimulatedNet(engine, np.random.default_rng(seed), slowest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh_body, "Node", net.node)
        yield net


@examples(60)
@given(st.data())
def test_right_under_any_losses_joins_and_delays(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    k = data.draw(st.integers(1, n))
    size, rounds = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 25))
    seed = data.draw(st.integers(0, 2**32))
    seconds = rounds * 2e-3
    when = st.floats(1e-6, seconds)  # once all have their shares
    changes = [Change(time, -1) for time in data.draw(st.lists(when, max_size=n + 3))]
    changes += [Change(time, None) for time in data.draw(st.lists(when, max_size=4))]
    changes += [Change(seconds + i, None) for i in range(n)]  # in the end there are enough
    delays = data.draw(
        st.sampled_from(
            [PerUnit(1e-4), PerUnit(1e-4, {0: 1e3}), Exponential(1e-5, 1e-3), Exponential(0, 0.05)]
        )
    )
    slowest = data.draw(st.sampled_from([0.0, 1e-3, 0.05]))
    engine = ApartVirtual(n, delays=delays, membership=Script(tuple(changes)), seed=1)
    A = rotation(np.random.default_rng(seed), size)
    with simulated(engine, seed, slowest), kofn.connect(engine, wait=1e3) as cluster:
        X = cluster.encode(A, k=k, tolerance=1.0)
        w = X.iterate(same, np.ones(size), rounds=rounds)
        limit = X.report.error_bound
        assert limit is not None
        error = float(np.linalg.norm(w - power(A, rounds)) / np.sqrt(size))
        assert error <= rounds * max(limit, 1e-13)
        assert X.report.extra["rounds"] == rounds


def test_right_whoever_is_killed_or_told_to_leave_at_whichever_step() -> None:
    """Each moment at which anything happens in a run, one after the other."""
    A, moments, n = rotation(np.random.default_rng(0), 12), set[float](), 3

    class Noting(ApartVirtual):
        def _at(self, time: float, action: Any) -> None:
            moments.add(time)
            super()._at(time, action)

    def run(*changes: Change) -> None:
        engine = Noting(n, delays=PerUnit(1e-4), membership=Script(changes), seed=1)
        with simulated(engine, 0, 1e-3), kofn.connect(engine, limit=100.0) as cluster:
            w = cluster.encode(A, k=2).iterate(same, np.ones(12), rounds=5)
            np.testing.assert_allclose(w, power(A, 5), atol=1e-13)

    run()
    assert len(moments) > 30
    for moment in sorted(moments):
        run(Change(moment, 0))
        run(Change(moment, n - 1))
        run(*(Change(moment, worker, moment + 1e-3) for worker in range(n)))


def test_a_question_that_lost_an_answer_is_not_waited_for_without_end() -> None:
    def asks(id: int, worker: int, share: int) -> Task:
        return Task(worker, id, worker, same, ())

    round = AskRound(1, {0: 0, 1: 1, 2: 2}, asks, Late(), 2, "X")
    round.start(0.0)
    for worker in (0, 1):
        round.on(Reply(1.0, worker, 1, worker, None, "here", 0, 0.0, True))
    due = round.wake
    assert due < float("inf")  # worker 2 is late then
    round.on(Lost(1.0, 1, ()))
    round.on(Tick(due))
    assert not round.done
    assert round.wake > due  # or the driver would look again at once, for ever


def ask_round(holders: int, threshold: int, others: int = 0) -> AskRound:
    """Workers from 0 on are asked, those after them are not."""

    def asks(id: int, worker: int, share: int) -> Task:
        return Task(worker, id, worker, same, ())

    first = {w: w for w in range(holders)}
    rest = {w: w for w in range(holders, holders + others)}
    return AskRound(1, first, asks, Late().between(), threshold, "X", rest)


def answer(round: AskRound, time: float, worker: int) -> list[int]:
    """Have a worker answer; returns who is asked then."""
    return asked(round.on(Reply(time, worker, 1, worker, None, worker, 0, 0.0, True)))


def asked(commands: Sequence[Command]) -> list[int]:
    return [command.task.worker for command in commands if isinstance(command, Send)]


def test_where_too_few_answer_others_are_asked() -> None:
    round = ask_round(holders=2, threshold=2, others=3)
    assert asked(round.start(0.0)) == [0, 1]
    assert answer(round, 0.01, 0) == []
    assert asked(round.on(Tick(round.wake))) == [2]  # 1 is silent
    before, first = round.wake, round.wake - 0.01
    assert asked(round.on(Tick(before))) == [3]
    assert round.wake - before > first  # each time they have longer
    assert asked(round.on(Lost(before, 3, ()))) == []  # two still owe an answer
    assert asked(round.on(Lost(before, 2, ()))) == []
    assert asked(round.on(Lost(before, 1, ()))) == [4]  # nobody does
    assert not round.done
    assert answer(round, before + 0.1, 4) == []
    assert round.done
    assert set(round.answers) == {0, 4}
    assert round.live == 2


def test_a_few_answers_that_are_enough_end_a_question() -> None:
    round = ask_round(holders=6, threshold=1)
    round.start(0.0)
    answer(round, 0.01, 5)
    assert not round.done
    round.on(Tick(round.wake))  # five are frozen
    assert round.done
    assert round.late == [0, 1, 2, 3, 4]


def test_a_question_to_one_goes_on_to_the_next() -> None:
    round = ask_round(holders=1, threshold=0, others=1)
    round.start(0.0)
    assert asked(round.on(Tick(round.wake))) == [1]
    assert answer(round, 5.0, 1) == []
    round.on(Tick(round.wake))
    assert round.done
    assert round.answers == {1: 1}
    nobody = ask_round(holders=0, threshold=0)
    nobody.start(0.0)
    assert nobody.done


@pytest.mark.engine
def test_those_that_were_late_stand_in_for_one_that_stops(tmp_path: Path) -> None:
    A = rotation(np.random.default_rng(1), 60)
    with kofn.connect(Apart(LocalEngine(4))) as cluster:
        X = cluster.encode(A, k=2)
        spread(cluster, X)
        done: list[str] = []

        def on_round(round: int, change: float) -> None:
            if not done:
                kill(cluster, 0, signal.SIGSTOP)
                kill(cluster, 1, signal.SIGSTOP)
                done.append("two are stopped")
                (tmp_path / "0").touch()
            elif len(done) == 1 and round >= 100:  # so the other two went on without them
                kill(cluster, 0, signal.SIGCONT)
                kill(cluster, 1, signal.SIGCONT)
                kill(cluster, 2, signal.SIGSTOP)
                done.append("those are back, and one of the others is stopped")
                (tmp_path / "1").touch()

        f = held_back(same, tmp_path, times=2, each=200)
        try:
            w = X.iterate(f, np.ones(60), rounds=3000, on_round=on_round)
        finally:
            kill(cluster, 2, signal.SIGCONT)
        np.testing.assert_allclose(w, power(A, 3000), atol=1e-10)
        assert len(done) == 2
        assert {0, 1, 2} <= set(X.report.late)


@pytest.mark.parametrize(
    ("silent", "delivers"), [({0}, False), ({0, 1, 2, 3}, False), ({0}, True), ({0, 1, 2, 3}, True)]
)
def test_who_falls_silent_is_not_waited_for_where_others_are_enough(
    silent: set[int], delivers: bool
) -> None:
    """In the middle; or when it is asked for the vector, which others have, too."""
    delays, A = Silent(silent), rotation(np.random.default_rng(0), 40)
    engine = ApartVirtual(6, delays=delays)
    with simulated(engine, 0, 1e-3), kofn.connect(engine, limit=100.0) as cluster:
        X, driver = cluster.encode(A, k=2), driver_of(cluster)
        before = driver._ended
        X.iterate(same, np.ones(40), rounds=20)
        epoch, last = X.report.round, driver._ended
        delays.since.append(last + (last if delivers else epoch) - before)
        began = engine.now()
        w = X.iterate(same, np.ones(40), rounds=20)
        assert engine.now() - began < 100  # nobody waited until the limit
        np.testing.assert_allclose(w, power(A, 20), atol=1e-12)
        assert X.report.late == tuple(silent)


@pytest.mark.parametrize("lost_after", [float("inf"), 30.0])
@pytest.mark.parametrize(("n", "k"), [(2, 2), (3, 2), (4, 2), (4, 4)])
def test_workers_that_cannot_reach_each_other_say_so(n: int, k: int, lost_after: float) -> None:
    engine = ApartVirtual(n, delays=PerUnit(1e-4))
    with (
        simulated(engine, 0, 1e-3) as net,
        kofn.connect(engine, limit=100.0, lost_after=lost_after) as cluster,
    ):
        X = cluster.encode(np.eye(20), k=k)
        stopped: list[float] = []

        def on_round(round: int, change: float) -> None:
            if round == 5:
                net.cut = True
                stopped.append(engine.now())

        with pytest.raises(kofn.Stalled, match=r"cannot reach each other.*w = f\(X @ w\)") as got:
            X.iterate(same, np.ones(20), rounds=60, on_round=on_round)
        assert got.value.reached is not None
        assert 5 <= got.value.reached[0] < 60
        assert 100 <= engine.now() - stopped[0] < 210
        net.cut = False
        np.testing.assert_allclose(X.iterate(same, np.ones(20), rounds=60), 1.0, atol=1e-13)


@pytest.mark.parametrize("delays", [PerUnit(1e-4), PerUnit(1.0, {0: 40.0})])
def test_rounds_of_a_slow_network_or_longer_than_the_limit_end(delays: PerUnit) -> None:
    engine = ApartVirtual(2, delays=delays)
    with simulated(engine, 0, 20.0), kofn.connect(engine, limit=100.0) as cluster:
        X = cluster.encode(np.eye(20), k=2)
        np.testing.assert_array_equal(X.iterate(same, np.ones(20), rounds=5), np.ones(20))


def chaos(y: Floats) -> Floats:
    return 1.0 - 2.0 * np.minimum(np.abs(y), 1.0)  # doubles every error: rounding is all in 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_all_workers_have_the_same_vector_to_the_last_bit(seed: int) -> None:
    """Else their pieces would not belong together, and the next vector would not be f(X w)."""

    def run(rounds: int) -> Floats:
        changes = tuple(Change(float(t), None if i % 2 else -1) for i, t in enumerate(times))
        delays = Exponential(1e-6, 1e-3)
        engine = ApartVirtual(6, delays=delays, membership=Script(changes), seed=seed)
        with simulated(engine, seed, 1e-3), kofn.connect(engine, wait=1e3) as cluster:
            X = cluster.encode(A, k=3)
            found: Floats = X.iterate(chaos, start, rounds=rounds)
            lost.append(len(X.report.lost))
            return found

    lost: list[int] = []
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 0.4, 12))
    A = rotation(rng, 40)[rng.permutation(40)]
    start = rng.uniform(-1, 1, 40)
    before, after = run(150), run(151)
    np.testing.assert_allclose(after, chaos(A @ before), atol=1e-12)
    assert max(lost) >= 3
