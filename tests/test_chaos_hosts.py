"""kofn chaos on three hosts, while hosts are cut off, frozen, and their workers killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet.clusters import EACH, FLEETS, Fleet
from hosts import Host, Hosts
from support import PASS, SOAK, command_line
from test_fleet import LETTERS, needs

pytestmark = pytest.mark.hosts
MINUTES = 0.5
# Words of the command lines of workers that may be killed: of Dask, Ray, and ranks of MPI.
WORKERS = (b"spawn_main", b"ray::Worker", b"kofn.cli")
PROGRAM = "from kofn.cli import main; main()"


def workers(host: Host) -> list[int]:
    """The processes of workers on a host, by their numbers outside."""
    lines = {pid: command_line(pid) for pid in host.pids()}
    return [pid for pid, line in lines.items() if any(word in line for word in WORKERS)]


def strikes(host: Host) -> bool:
    """Whether chaos strikes there: before and after it there is peace, and some engines need it."""
    return any(b"_ctrl_c.py" in line for line in map(command_line, host.pids()))


def disturb(fleet: Fleet, over: threading.Event, dice: random.Random) -> Counter[str]:
    """Cut off, freeze and kill on B and C while chaos strikes on A; all is well then."""
    done: Counter[str] = Counter()
    while not strikes(fleet.hosts["A"]) and not over.wait(0.2):
        pass
    acts: dict[str, tuple[Callable[[Host], Any], Callable[[Host], Any]]] = {
        "cut off": (Host.cut, Host.heal),
        "frozen": (Host.freeze, Host.thaw),
        "killed": (lambda host: None, lambda host: None),
    }
    while not over.wait(dice.uniform(1.0, 5.0)) and strikes(fleet.hosts["A"]):
        name = dice.choice([*acts, "cut off"])
        host = fleet.hosts[dice.choice("BC")]
        begin, end = acts[name]
        begin(host)
        try:
            if name == "killed":
                for pid in dice.sample(there := workers(host), min(1, len(there))):
                    os.kill(pid, signal.SIGKILL)
            else:  # now and then for so long that its workers are given up
                over.wait(10.0 if dice.random() < 0.1 else dice.uniform(0.2, 3.0))
        finally:
            end(host)
        done[name] += 1
    return done


@pytest.mark.parametrize("engine", FLEETS)
@pytest.mark.long
def test_chaos_is_survived_on_hosts(
    make_hosts: Callable[..., Hosts], tmp_path: Path, engine: str
) -> None:
    needs(engine)
    seconds = float(os.environ.get("KOFN_CHAOS_SECONDS", 60 * MINUTES * SOAK))
    hosts = make_hosts(*LETTERS, share=[tmp_path])
    fleet = FLEETS[engine](hosts, tmp_path)
    fleet.start()
    words = ["-c", PROGRAM, "chaos", "--engine", engine, "--json", "--seed", str(PASS)]
    words += ["--minutes", str(seconds / 60)]
    if fleet.address is not None:
        words += ["--address", fleet.address, "--workers", str(EACH * len(LETTERS))]
    fleet.program = tuple(words)
    with (tmp_path / "master.log").open("w") as log:
        process = fleet.start_master(stdout=subprocess.PIPE, stderr=log, text=True)
    over, counted = threading.Event(), Counter[str]()

    def watch() -> None:
        counted.update(disturb(fleet, over, random.Random(PASS)))

    disturbing = threading.Thread(target=watch)
    began = time.monotonic()
    disturbing.start()
    try:
        out, _ = process.communicate(timeout=seconds + 600)
    finally:
        over.set()
        disturbing.join()
        fleet.close()
    said = (tmp_path / "master.log").read_text()[-6000:]
    assert "{" in out, f"exit status {process.returncode}, {dict(counted)}: {said}"
    result = json.loads(out[out.index("{") :])
    print(engine, dict(counted), json.dumps(result), f"{time.monotonic() - began:.0f} s")
    assert result["checked"] > 0
    assert counted["cut off"] > 0
