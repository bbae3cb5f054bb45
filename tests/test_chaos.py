"""kofn chaos: it strikes all kinds of work, and finds what is wrong, hangs or is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import PASS, SOAK, command_line, until

import kofn
from kofn.arrays import CodedMatrix
from kofn.chaos import leaks, work
from kofn.chaos.leaks import Footprint, grown, left
from kofn.chaos.run import ChaosFailed, Settings, run
from kofn.chaos.strikes import KINDS
from kofn.chaos.tally import Wrong
from kofn.chaos.work import Bench
from kofn.engines._processes import Process, family
from kofn.report import read_log

MINUTES = {"local": 0.1, "virtual": 0.03, "ray": 0.05, "dask": 0.05}


def nobody(left: float, counts: dict[str, int]) -> None:
    """Looks at the live line."""


def command(*args: str, program: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{program}\nfrom kofn.cli import main; main()"
    words = [sys.executable, "-c", code, "chaos", *args]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.engine
@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=[] if name == "local" else pytest.mark.long) for name in MINUTES],
)
def test_chaos_is_survived(engine: str, tmp_path: Path) -> None:
    if engine in ("ray", "dask"):
        module = {"dask": "distributed"}.get(engine, engine)
        pytest.importorskip(module, reason=f"kofn[{engine}] is not installed")
    # In a process of its own: pytest and hypothesis run code that must not be interrupted.
    minutes = str(MINUTES[engine] * SOAK)
    log = tmp_path / "run.jsonl"
    shown = ("--page", "--log", str(log)) if engine == "local" else ()
    how = ("--engine", engine, "--minutes", minutes, "--json", *shown)
    strikes, operations, runs = Counter[str](), set[str](), 0

    def all_kinds() -> bool:  # how much is done in so many seconds is the machine's affair
        nonlocal runs
        done = command(*how, "--seed", str(PASS + 1000 * runs))
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["worst"] <= 1
        strikes.update({kind: result[kind] for kind in ("kills", "freezes", "interrupts")})
        strikes["checked"] += result["checked"]
        operations.update(result["operations"])
        runs += 1
        if engine != "local":
            return strikes["checked"] > 0
        assert "The page: http://127.0.0.1:" in done.stderr
        assert any(record.kind == "lost" for record in read_log(log)) == (result["kills"] > 0)
        every = {"X @ w", "X.T @ z", "iterate", "fit", "result", "X.move"}
        return every <= operations and min(strikes.values()) > 0

    until(all_kinds, "every kind of work and of strike", 900.0)


@pytest.fixture
def cluster() -> Any:
    with kofn.connect("virtual", workers=6) as cluster:
        yield cluster


WRONG: dict[str, tuple[Any, str, Any]] = {
    "product": (CodedMatrix, "_product", lambda right: lambda X, w: right(X, w) * (1 + 1e-11)),
    "columns": (CodedMatrix, "_product", lambda right: lambda X, w: right(X, w)[::-1]),
    "adjoint": (CodedMatrix, "_back", lambda right: lambda X, z: right(X, z) + 1e-11),
    "update": (CodedMatrix, "_update", lambda right: lambda X, change, momentum: None),
    "sum": (work.Bench, "_terms", lambda right: lambda *args: right(*args[:-1], args[-1][1:])),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(
    cluster: kofn.Cluster, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    bench = Bench(cluster, 6, (PASS, 0), KINDS, tmp_path)
    getattr(bench, name)()
    owner, method, broken = WRONG[name]
    monkeypatch.setattr(owner, method, broken(getattr(owner, method)))
    with pytest.raises(Wrong, match=r"times as far from NumPy's|X\.updates went from"):
        getattr(bench, name)()


def test_an_error_has_to_be_true(cluster: kofn.Cluster, tmp_path: Path) -> None:
    bench = Bench(cluster, 6, (PASS, 0), KINDS, tmp_path)

    def claims(live: int) -> Any:
        raise kofn.TooFewWorkers(live, 3, 0.0)

    assert bench._attempt("claim", lambda: claims(2)) == (False, None)
    assert bench.tally.refused == {"TooFewWorkers": 1}
    with pytest.raises(Wrong, match="claim says this needs 3 live workers; 3 are live"):
        bench._attempt("claim", lambda: claims(3))
    with pytest.raises(kofn.Stalled):  # nothing is silent for so long
        bench._attempt("claim", lambda: (_ for _ in ()).throw(kofn.Stalled(1, 60.0, [0])))


def test_a_failure_names_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodedMatrix._product
    monkeypatch.setattr(CodedMatrix, "_product", lambda X, w: 2 * right(X, w))
    settings = Settings("virtual", 6, 9, 7, ("interrupts", "errors"))
    with pytest.raises(ChaosFailed, match=r"X @ .* times as far") as failed:
        run(settings, nobody)
    assert failed.value.command in str(failed.value)
    assert failed.value.command == (
        "kofn chaos --engine virtual --seed 7 --minutes 9 --workers 6 "
        "--only interrupts --only errors"
    )


@pytest.mark.engine
def test_a_wrong_result_ends_the_command_with_its_seed() -> None:
    breaks = (
        "from kofn.arrays import CodedMatrix; right = CodedMatrix._back\n"
        "CodedMatrix._back = lambda X, z: right(X, z) * (1 + 1e-9)"
    )
    done = command("--engine", "virtual", "--seed", "11", "--minutes", "9", program=breaks)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kofn: under chaos every result is right")
    assert last.endswith("kofn chaos --engine virtual --seed 11 --minutes 9 --workers 6")


@pytest.mark.engine
def test_a_hang_ends_the_command_with_its_seed() -> None:
    breaks = (
        "import threading; from kofn.chaos import run, work; run.HANG = 0.5\n"
        "work.Bench.fit = lambda bench: threading.Event().wait()"
    )
    done = command("--engine", "virtual", "--seed", "5", "--minutes", "9", program=breaks)
    assert done.returncode == 3
    assert "nothing has ended for" in done.stderr
    assert "--seed 5" in done.stderr
    assert "live and keeping: {" in done.stderr
    assert "Record(" in done.stderr


@pytest.mark.engine
def test_what_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_PATIENCE", 0.0)
    # Other tests of this process have children that stay, as the tracker of joblib does.
    others = set(family([Process.of(os.getpid())]))
    monkeypatch.setattr(leaks, "family", lambda roots: set(family(roots)) - others)
    before = Footprint.now()
    assert left([], before, 0) == ""
    held = os.open(os.devnull, os.O_RDONLY)
    try:
        assert "descriptors are open" in left([], before, 0)
        assert left([], before, 1) == ""
    finally:
        os.close(held)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = Process.of(child.pid)
        assert left([], Footprint.now(), 0) == f"processes [{child.pid}] are left"
        assert left([found], Footprint.now(), 0) == f"processes [{child.pid}] are left"
    finally:
        child.communicate()
    assert left([found], before, 0) == ""


def test_growth_is_found() -> None:
    before = Footprint(10, 3, 100 << 20)
    assert grown(before, Footprint(58, 3, 164 << 20), 0) == ""
    assert "59 descriptors, after 10" in grown(before, Footprint(59, 3, 100 << 20), 0)
    assert "165 MB of memory" in grown(before, Footprint(10, 3, 165 << 20), 0)
    assert grown(before, Footprint(10, 3, 165 << 20), 10_000) == ""  # which the log takes


def sends_ctrl_c(process: Process) -> bool:
    """Whether this is the program that interrupts the master: it is there when it has begun."""
    return b"_ctrl_c.py" in command_line(process.pid)


@pytest.mark.engine
def test_ctrl_c_of_a_user_ends_it_in_order() -> None:
    words = [sys.executable, "-c", "from kofn.cli import main; main()", "chaos", "--json"]
    with subprocess.Popen(
        [*words, "--minutes", "60", "--workers", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            master = Process.of(process.pid)
            until(lambda: any(map(sends_ctrl_c, family([master]))), "its beginning", 600.0)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["seconds"] < 60 * 60
