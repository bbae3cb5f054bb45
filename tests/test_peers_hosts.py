"""X.iterate and large operands over several hosts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Hosts
from mpi_hosts import MPIHosts
from support import command_line, until

pytestmark = [pytest.mark.hosts, pytest.mark.long]
Make = Callable[..., Hosts]
PROGRAMS = Path(__file__).parent / "host_programs"


def python(*words: str | Path) -> list[str | Path]:
    return [sys.executable, *words]


def dask(
    hosts: Hosts, workers: str, each: int, env: Mapping[str, str] | None = None
) -> tuple[str, list[subprocess.Popen[Any]]]:
    """Start a scheduler on the first host, and so many workers on each of these.

    `env`: variables of theirs, the keys of TLS.
    """
    pytest.importorskip("distributed", reason="kofn[dask] is not installed")
    first = next(iter(hosts))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = ["dask", "scheduler", "--host", first.address, "--no-dashboard"]
    kind = "tls" if env else "tcp"
    first.start([*command, "--protocol", kind], env, **quiet)
    where = f"{kind}://{first.address}:8786"
    worker = ["dask", "worker", where, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    started = [hosts[letter].start(worker, env, **quiet) for letter in workers for _ in range(each)]
    return where, started


def check(found: list[dict[str, Any]]) -> None:
    short, long, killed = found
    for run in found:
        assert run["error"] <= 1e-12, run
    # The vector grows by 16,000 bytes, which would pass here 90 times and more. Heartbeats of Dask
    # pass besides, less than 100,000 bytes a second, for as long as it takes.
    assert long["bytes"] < short["bytes"] + 16_000 * 90 / 2 + 1e5 * long["seconds"], found
    assert len(killed["lost"]) == 1
    assert killed["epochs"] > len(killed["took_part"])  # the others go on in an epoch without it


def test_iterate_on_dask_over_three_hosts(make_hosts: Make, tmp_path: Path) -> None:
    hosts = make_hosts("M", "A", "B", "C", share=[tmp_path])
    where, workers = dask(hosts, "ABC", 2)
    hosts["M"].run(python("-c", READY, where, "6"))
    program = python(PROGRAMS / "iterates_over_hosts.py", "dask", tmp_path, where)
    master = hosts["M"].start(program, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "kill").exists() or master.poll() is not None, "the moment")
    hosts["B"].kill(workers[2])
    (tmp_path / "killed").touch()
    found = json.loads(master.communicate(timeout=900)[0])
    print(json.dumps(found))  # for the record
    check(found)


def test_iterate_on_mpi_over_three_hosts(make_hosts: Make, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="kofn[mpi] is not installed")
    hosts = make_hosts("A", "B", "C", "D", share=[tmp_path])
    program = python(PROGRAMS / "iterates_over_hosts.py", "mpi", tmp_path)
    with MPIHosts(hosts, tmp_path) as mpi:
        ranks = {"A": 1, "B": 2, "C": 2, "D": 2}
        out = tmp_path / "out"
        with out.open("w") as file:
            master = mpi.start(program, ranks, stdout=file)
        until(lambda: (tmp_path / "kill").exists() or master.poll() is not None, "the moment")
        victim = next(pid for pid in hosts["C"].pids() if _runs(pid, "iterates_over_hosts.py"))
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "killed").touch()
        until(lambda: "[{" in out.read_text() or master.poll() is not None, "the figures")
        found = json.loads(out.read_text())
    print(json.dumps(found))  # for the record
    check(found)


def _runs(pid: int, name: str) -> bool:
    words = command_line(pid).split(b"\0")
    return len(words) > 1 and words[1].endswith(name.encode())


READY = """
import sys
from distributed import Client
Client(sys.argv[1]).wait_for_workers(int(sys.argv[2]), timeout=600)
"""


TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], 9000)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(1 << 20)
    while True:
        left = 8_000_000
        while left:
            count = connection.recv_into(buffer, min(left, len(buffer)))
            if not count:
                sys.exit()
            left -= count
        connection.sendall(b"1")
"""


def taker(host: Host) -> str:
    """Start what takes copies on a host; returns its address."""
    command = python("-c", TAKE, host.address)
    process = host.start(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == "listening\n"
    return f"{host.address}:9000"


def narrow(hosts: Hosts) -> None:
    """Let each host send one gigabit a second, as many networks do; skip where that cannot be."""
    if not shutil.which("tc"):
        pytest.skip("links are made slower by tc (iproute2), which is not installed")
    rule = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "15ms")
    for host in hosts:
        host.run(["tc", "qdisc", "add", "dev", "eth0", "root", *rule])


def test_a_large_operand_is_passed_on_dask(make_hosts: Make) -> None:
    hosts = make_hosts("M", "A", "B", "C")
    where, _ = dask(hosts, "ABC", 4)
    hosts["M"].run(python("-c", READY, where, "12"))
    narrow(hosts)
    program = python(PROGRAMS / "broadcasts.py", "dask", taker(hosts["A"]), "9", where)
    found = json.loads(hosts["M"].run(program, timeout=900))
    print(json.dumps(found))
    assert found["workers"] == 12
    copy = found["bytes"]["copy"]
    # One copy; more where a worker of a busy machine waits for half a second and asks another one.
    assert found["least"] < 3 * copy
    assert found["bytes"]["one_by_one"] > 10 * copy


LISTENS = """
import socket, sys, threading
heard = 0
def listen():
    global heard
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        print("listening", flush=True)
        while True:
            heard += bytes.fromhex(sys.argv[1]) in wire.recv(1 << 17)
threading.Thread(target=listen, daemon=True).start()
sys.stdin.read()
print(heard)
"""

SENDS = """
import sys, numpy as np, kofn
number, where = float(sys.argv[1]), sys.argv[2]
with kofn.connect("dask", address=where) as cluster:
    X = cluster.encode(np.eye(300), k=2)
    for _ in range(4):  # the first is sent by the engine, and opens the connections
        assert np.allclose(X @ np.full((300, 200), number), number)
    assert len(cluster._driver.engine._met) == 4
    assert np.allclose(X.iterate(lambda y: y, np.full(300, number), rounds=20), number)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_on_the_wire_is_what_dask_s_own_connections_show(
    kind: str, make_hosts: Make, tmp_path: Path
) -> None:
    keys: dict[str, str] = {}
    if kind == "tls":
        distributed: Any = pytest.importorskip("distributed", reason="kofn[dask] is not installed")
        made = distributed.Security.temporary()
        file = tmp_path / "tls.pem"
        file.write_text(made.tls_ca_file + made.tls_client_key)
        names = [f"{w}__{k}" for w in ("SCHEDULER", "WORKER", "CLIENT") for k in ("CERT", "KEY")]
        names = [f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in (*names, "CA_FILE")]
        keys = dict.fromkeys(names, str(file))
    hosts = make_hosts("M", "A", "B", share=[tmp_path])
    where, _ = dask(hosts, "AB", 2, keys)
    hosts["M"].run(python("-c", READY, where, "4"), keys)
    number = 1234.5678
    pattern = struct.pack("<d", number) * 3
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    listener: Any = hosts["A"].start(python("-c", LISTENS, pattern.hex()), **pipe)
    assert listener.stdout.readline() == "listening\n"
    hosts["M"].run(python("-c", SENDS, str(number), where), keys)
    assert (int(listener.communicate(timeout=60)[0]) > 0) == (kind == "tcp")
