"""Long runs, until the time is over: `make soak MINUTES=20`.

    python tests/soak.py --minutes 20

One pass has eight steps: the fault search, its state machines, every other property, altered files
and command lines, the checks of every engine with their kills, chaos (kills, freezes and interrupts
at random moments of all kinds of work), masters that are killed, and clusters of several hosts
(where this is root on Linux). All have ten times as many examples as in `make test`. Passes follow
one another, each with other seeds. A step has at most its part of the time, so that each has its
turn; it is cut by Ctrl-C, which random scripts and properties take between two of them. The first
failure ends the run; the command that is shown repeats it. A step that does not end when it is cut
shows where it is. The fault search takes some twenty minutes of a core for its 200,000 scripts, and
says how far it came if it is cut.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

TESTS = Path(__file__).parent
FACTOR = 10
CUT = 2  # pytest's exit status after Ctrl-C
GRACE = 120.0  # seconds that a step has to end in when its time is over
LEAST = 30.0  # seconds of a step: what is cut while it imports may end anyhow
SEARCHED = 200_000  # scripts of the fault search in a pass: ten times those of `make test-all`
SCRIPTS = ("test_protocol.py", "test_search.py::TestMachine", "test_verify.py")
CHECKS = r"class (\w+)\(EngineChecks\)"
OTHERS = ("the_engine_checks_pass",)  # of MPI
CHAOS = "chaos_is_survived or interrupted_start_or_end"


def files(pattern: str, content: str, number: int) -> list[str]:
    """Test files with such a content, in each pass beginning with another: a step may be cut."""
    found = [str(p) for p in sorted(TESTS.glob(pattern)) if re.search(content, p.read_text())]
    return found[number % len(found) :] + found[: number % len(found)]


def steps(number: int) -> dict[str, list[str]]:
    """The commands of one pass, by name."""
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=1800"]
    pytest += ["-m", "", f"--hypothesis-seed={number}"]
    engines = files("test_*.py", "|".join((CHECKS, *OTHERS)), number)
    checks = [name for path in engines for name in re.findall(CHECKS, Path(path).read_text())]
    first = ["--first", str(number * SEARCHED), "--count", str(SEARCHED)]
    names = ("test_chaos.py", "test_interrupts.py", "test_engine_mpi.py", "test_chaos_hosts.py")
    attacks = [str(TESTS / name) for name in names]
    attacks = attacks[number % len(attacks) :] + attacks[: number % len(attacks)]
    dying = ["-k", "resumed", str(TESTS / "test_checkpoint_kills.py")]
    return {
        "search": [str(TESTS / "search.py"), *first],
        "scripts": [*pytest, *(str(TESTS / name) for name in SCRIPTS)],
        "properties": [
            *(*pytest, "-m", "hypothesis and not engine"),
            *files("test_*.py", "@given", number),
        ],
        "files": [*pytest, str(TESTS / "test_fuzz.py")],
        "engines": [*pytest, "-k", " or ".join([*checks, *OTHERS]), *engines],
        "chaos": [*pytest, "-k", CHAOS, *attacks],
        "masters": [*pytest, *dying],
        "hosts": [
            *(*pytest, "-k", "every_scenario or has_its_token"),
            *(str(TESTS / name) for name in ("test_doors.py", "test_fleet.py")),
        ],
    }


def run(command: list[str], env: dict[str, str], seconds: float) -> int:
    """Run a step, at most so long; return its exit status, CUT if its time was over."""
    env = {**os.environ, "PYTHONFAULTHANDLER": "1", **env}
    with subprocess.Popen([sys.executable, *command], env=env) as process:
        for patience in (seconds, *[GRACE / 4] * 4):
            try:
                status = process.wait(patience)
            except subprocess.TimeoutExpired:  # a script may take a signal for one of its own
                process.send_signal(signal.SIGINT)
            else:  # one that has only begun to import dies of the signal
                return CUT if status == -signal.SIGINT else status
        process.send_signal(signal.SIGABRT)  # faulthandler says where it is
        return process.wait()


def main() -> None:
    """Run passes until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    whole = 60 * parser.parse_args().minutes
    if whole <= LEAST:
        parser.error(f"a step takes {LEAST:g} seconds at least")
    # A background job ignores SIGINT, and so would its children, which are cut by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    last = 0
    began, ran = time.monotonic(), dict.fromkeys(steps(0), 0.0)
    for number in count():
        env = {"KOFN_SOAK": str(FACTOR), "KOFN_PASS": str(number)}
        for name, command in steps(number).items():
            spent = time.monotonic() - began
            if spent >= whole - LEAST:
                each = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in ran.items())
                print(f"soak: nothing failed in {spent / 60:.1f} minutes, seeds 0 to {last}")
                print(f"soak: minutes of each step: {each}")
                return
            last = number
            settings = (f"{variable}={value}" for variable, value in env.items())
            shown = " ".join([*settings, shlex.join([sys.executable, *command])])
            print(f"soak: minute {spent / 60:.1f}, seed {number}, {name}: {shown}", flush=True)
            status = run(command, env, min(whole - spent, max(LEAST, whole / len(ran))))
            ran[name] += time.monotonic() - began - spent
            if status == CUT:
                print(f"soak: {name} was cut when its time was over", flush=True)
            elif status:
                sys.exit(f"soak: {name} failed, exit status {status}: {shown}")


if __name__ == "__main__":
    main()
