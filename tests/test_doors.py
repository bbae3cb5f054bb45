"""Doors: by what a running cluster can be reached, and that strangers get nowhere.

A stranger is a process on another host, or of another user on the same one. It tries every door
that the cluster has: it sends pickles, frames and noise, and looks for files that it can read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from doors import Door
from hosts import Host, Hosts
from mpi_hosts import ENVIRONMENT

HERE = Path(__file__).parent
NOBODY = 65534
PACKAGE = {"ray": "ray", "dask": "distributed", "mpi": "mpi4py"}
# Doors that are open to everybody for a reason: of mpiexec itself, whose user has started it.
LAUNCHER = ("mpiexec", "prterun")
Make = Callable[..., Hosts]


def command(engine: str) -> list[str]:
    program = [sys.executable, str(HERE / "host_programs" / "opens.py"), engine]
    if engine != "mpi":
        return program
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    return [mpiexec, "--with-ft", "ulfm", "--oversubscribe", "-n", "3", *program]


def stranger(host: Host, at: str, user: int = 0, **more: Any) -> dict[str, Any]:
    """Try the doors from a host, as a user; return what became of each."""
    asked = json.dumps({"host": at, "user": user, **more})
    out = host.run([sys.executable, str(HERE / "doors.py"), asked], timeout=240)
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.hosts
@pytest.mark.parametrize(
    "engine", ["local", "dask", pytest.param("ray", marks=pytest.mark.long), "mpi"]
)
def test_strangers_get_nowhere(engine: str, make_hosts: Make, tmp_path: Path) -> None:
    if engine in PACKAGE and find_spec(PACKAGE[engine]) is None:
        pytest.skip(f"kofn[{engine}] is not installed")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o777)
    hosts = make_hosts("A", "B", share=[tmp_path])
    pipe = subprocess.PIPE
    master = hosts["A"].start(
        command(engine), ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert master.stdin is not None
    assert master.stdout is not None
    line = master.stdout.readline()
    assert line.startswith("{"), line + str(master.stderr and master.stderr.read())
    told = json.loads(line)
    found = [Door(*door) for door in told["doors"]]
    beyond = {door for door in found if not door.near}
    if engine == "local":
        assert found == []  # nothing listens at all
    if engine in ("local", "dask", "ray"):
        assert beyond == set()

    trace = tmp_path / "ran"
    asked = {"doors": told["doors"], "trace": str(trace)}
    outside = stranger(hosts["B"], hosts["A"].address, **asked)
    reached = {Door(*door) for *door, what in outside["doors"] if what.startswith("open")}
    assert {door.program for door in reached if door.kind == "tcp"} <= set(LAUNCHER), outside

    # Another user of the same machine reaches ports and names, and that must be all.
    own = {"pids": told["pids"], "folders": told["folders"]}
    inside = stranger(hosts["A"], "127.0.0.1", NOBODY, **asked, **own)
    assert inside["read"] == []
    paths = {door[2] for door in inside["doors"] if door[1] == "unix" and door[2][0] != "@"}
    assert {door[-1] for door in inside["doors"] if door[2] in paths} <= {"forbidden", "refused"}

    assert not trace.exists()  # nobody has run what they sent
    master.stdin.write("\n")
    master.stdin.flush()
    out, err = master.communicate(timeout=120)
    assert out.split()[:1] == ["right"], out + err


JOINS = """
import sys, numpy as np, kofn
try:
    with kofn.connect("ray", 1, address=sys.argv[1]) as cluster:
        print(cluster.encode(np.eye(2), k=1) @ np.ones(2))
except kofn.EngineUnavailable as error:
    print(error)
"""


@pytest.mark.hosts
@pytest.mark.long  # Ray takes long to refuse somebody
def test_a_ray_cluster_of_others_takes_who_has_its_token(make_hosts: Make) -> None:
    pytest.importorskip("ray", reason="kofn[ray] is not installed")
    hosts = make_hosts("A", "B")
    head, other = hosts["A"], hosts["B"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    address = f"{head.address}:6379"
    memory = "--object-store-memory=200000000"
    start = ["ray", "start", "--num-cpus=2", "--include-dashboard=false", memory]
    at = f"--node-ip-address={head.address}"
    head.run([*start, "--head", "--port=6379", at], token, timeout=120)
    join = [sys.executable, "-c", JOINS, address]
    assert head.run(join, token, timeout=120) == "[1. 1.]\n"
    for wrong in ({}, {**token, "RAY_AUTH_TOKEN": "b" * 64}):
        assert "[1. 1.]" not in head.run(join, wrong, timeout=120)
        refused = other.start(
            [*start[:2], f"--address={address}", f"--node-ip-address={other.address}", memory],
            wrong,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert refused.wait(240) != 0  # nor does another machine become a part of it
    assert head.run(join, token, timeout=120) == "[1. 1.]\n"
