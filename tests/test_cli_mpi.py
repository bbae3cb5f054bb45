"""The command under mpiexec: rank 0 reads and prints, the other ranks are its workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="kofn[mpi] is not installed")

from hosts import Hosts
from mpi_hosts import MPIHosts
from ranks import NEEDED, finish, start_ranks
from test_reproduce_svm import made_up

KOFN = str(Path(sys.executable).parent / "kofn")
Make = Callable[..., Hosts]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("nowhere.csv",), "nowhere.csv is not. Check the path."),
        (("data.csv", "--workers", "5"), "started 2 workers, 5 were asked for."),
    ],
    ids=["no-file", "too-few"],
)
def test_what_is_wrong_is_told_once_and_all_ranks_end(
    tmp_path: Path, args: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "data.csv").write_text("x,y\n1,a\n2,b\n")
    words = [KOFN, "fit", *args, "--model", "svm", "--engine", "mpi"]
    process = start_ranks(3, words, env=NEEDED, cwd=tmp_path)
    out = finish(process)
    assert out.count("kofn: ") == 1, out
    assert problem in " ".join(out.split())
    assert process.returncode == 1


def launched(mpi: MPIHosts, ranks: dict[str, int], *args: str | Path) -> dict[str, Any]:
    """Run the command on these hosts; return what it prints as JSON."""
    pipe = subprocess.PIPE
    words = [KOFN, *args, "--engine", "mpi", "--json"]
    process = mpi.start(words, ranks, stdout=pipe, stderr=pipe, text=True)
    out, errors = process.communicate(timeout=240)
    assert out.startswith("{"), out + errors
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.hosts
@pytest.mark.long
def test_the_elastic_svm_on_five_hosts(tmp_path: Path, make_hosts: Make) -> None:
    """As in the report: a master and four workers, a host each; here two workers are killed.

    The data are on the master's host alone.
    """
    folder, data = tmp_path / "shared", tmp_path / "data"
    folder.mkdir()
    data.mkdir()
    hosts = make_hosts("A", "B", "C", "D", "E", share=[folder])
    packed = subprocess.run(["tar", "-cC", made_up(data), "."], check=True, capture_output=True)
    (folder / "data.tar").write_bytes(packed.stdout)
    hosts["A"].run(["tar", "-xf", folder / "data.tar", "-C", "/tmp"])
    with MPIHosts(hosts, folder) as mpi:
        args = ("reproduce", "svm", "--data", "/tmp", "--out", folder / "out")
        result = launched(mpi, dict.fromkeys("ABCDE", 1), *args)
    assert result["engine"] == "mpi"
    assert sorted(result["killed"]) == [1, 3]
    assert result["joined"] == [4]
    assert result["max_coef_difference"] <= 1e-8
    assert json.loads((folder / "out" / "results.json").read_text()) == result


@pytest.mark.hosts
@pytest.mark.long
def test_a_search_on_two_hosts(tmp_path: Path, make_hosts: Make) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.sign(X @ rng.standard_normal(5) + rng.standard_normal(200)))
    hosts = make_hosts("A", "B", share=[tmp_path])
    with MPIHosts(hosts, tmp_path) as mpi:
        args = ("fit", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", "--model", "svm")
        more = ("--workers", "3", "--k", "2", "--search", "C=0.001,0.1")
        result = launched(mpi, {"A": 2, "B": 2}, *args, *more)
    assert result["search"]["chosen"]["C"] in (0.001, 0.1)
    assert result["score"] > 0.7
