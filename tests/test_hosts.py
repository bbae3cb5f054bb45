"""Hosts made of this machine: what they share, what they do not, how they fail and go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hosts as module
import pytest
from hosts import Host, Hosts, HostsUnavailable
from support import until

pytestmark = pytest.mark.hosts
Make = Callable[..., Hosts]
PORT = 8000

# Prints what a server on another host says, or how the attempt ended.
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as server:
        print(server.recv(9).decode())
except OSError as error:
    print(type(error).__name__)
"""
SERVE = """
import socket, sys
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].send(b"hello")
"""
# Makes a host with a process on it, says their numbers out here, and waits.
HOLD = """
import sys
from hosts import Hosts
with Hosts("A") as hosts:
    hosts["A"].start(["sleep", "600"])
    while not hosts["A"].pids():
        pass
    print(*hosts["A"].pids(), hosts["A"]._space.pid, flush=True)
    sys.stdin.read()
"""


def serve(host: Host) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    server = host.start([sys.executable, "-c", SERVE, str(PORT)], stdout=pipe, text=True)
    assert server.stdout
    with server.stdout:
        assert server.stdout.readline() == "listening\n"
    return server


def ask(host: Host, other: Host, seconds: float = 100.0) -> str:
    words = [sys.executable, "-c", ASK, other.name, str(PORT), str(seconds)]
    return host.run(words).strip()


def test_a_host_has_its_own_name_address_processes_and_folders(
    make_hosts: Make, tmp_path: Path
) -> None:
    hosts = make_hosts("A", "B", share=[tmp_path])
    for host in hosts:
        assert host.run(["uname", "-n"]).strip() == host.name
        assert host.address in host.run(["ip", "-4", "addr", "show", "eth0"])
        host.run(["touch", f"/tmp/{host.letter}", f"/dev/shm/{host.letter}"])
        host.run(["touch", tmp_path / host.letter])
        numbers = [name for name in host.run(["ls", "/proc"]).split() if name.isdigit()]
        assert len(numbers) == 2  # the first process, and ls
    assert hosts["A"].run(["ls", "/dev/shm"]).split() == ["A"]
    assert "B" not in hosts["A"].run(["ls", "/tmp"]).split()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A", "B"]
    assert not Path("/tmp/A").exists()


def test_a_host_runs_the_python_and_the_repository_of_the_tests(make_hosts: Make) -> None:
    said = make_hosts("A")["A"].run([sys.executable, "-c", "import kofn; print(kofn.__file__)"])
    assert Path(said.strip()) == module.REPOSITORY / "src/kofn/__init__.py"


def test_a_host_that_is_cut_off_is_silent_and_one_whose_processes_died_is_not(
    make_hosts: Make,
) -> None:
    hosts = make_hosts("A", "B")
    a, b = hosts["A"], hosts["B"]
    serve(a)
    assert ask(b, a) == "hello"
    a.cut()
    assert ask(b, a, 0.3) == "TimeoutError"
    a.heal()
    assert ask(b, a) == "hello"
    with a.fuse() as cut:
        assert ask(b, a) == "hello"
        cut()
    assert ask(b, a, 0.3) == "TimeoutError"
    a.heal()
    assert ask(b, a) == "hello"
    a.freeze()
    assert ask(b, a, 0.3) == "TimeoutError"  # connected, by the kernel
    a.thaw()
    assert ask(b, a) == "hello"
    a.kill_all()
    until(lambda: not a.pids(), "the end of its processes")
    assert ask(b, a) == "ConnectionRefusedError"
    server = serve(a)
    a.kill(server)
    assert server.wait(60) != 0
    assert ask(b, a) == "ConnectionRefusedError"
    a.off()
    assert ask(b, a, 0.3) == "TimeoutError"


def test_hosts_of_two_runs_do_not_meet(make_hosts: Make) -> None:
    one, two = make_hosts("A", "B"), make_hosts("A", "B")
    assert one["A"].address == two["A"].address
    serve(one["A"])
    assert ask(one["B"], one["A"]) == "hello"
    assert ask(two["B"], two["A"]) == "ConnectionRefusedError"


def test_a_host_can_be_added(make_hosts: Make) -> None:
    hosts = make_hosts("A")
    serve(hosts["A"])
    assert ask(hosts.add("B"), hosts["A"]) == "hello"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_tests_are_ended(make_hosts: Make, signum: int) -> None:
    make_hosts()  # or skip
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=pipe,
        stdout=pipe,
        stderr=null,
        text=True,
        env={**os.environ, "PYTHONPATH": str(module.REPOSITORY / "tests")},
    ) as child:
        assert child.stdout
        pids = child.stdout.readline().split()
        assert len(pids) == 2
        child.send_signal(signum)
        child.wait(60)
    until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the host's end")


@pytest.mark.parametrize("why", ["takes root", "iproute2", "not permitted"])
def test_it_says_why_hosts_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if why == "takes root" else 0)
    missing = "ip" if why == "iproute2" else None
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == missing else tool)
    if why == "not permitted":  # as in a container
        (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare: not permitted >&2; exit 1\n")
        (tmp_path / "unshare").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(HostsUnavailable, match=why):
        Hosts("A").__enter__()
