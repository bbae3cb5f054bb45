"""Long runs, until the time is over: `make soak MINUTES=20`.

    python tests/soak.py --minutes 20

One pass: ten times as many examples of every property, random scripts and kills as `make test`
has, the checks of every engine, and interrupts at random moments. Passes follow one another, each
with other seeds. The first failure ends the run; the command that is shown repeats it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parent.parent
FACTOR = 10
SCRIPTS = ("test_rounds_scripts.py", "test_rounds_master.py", "test_protocol.py")
ENGINES = ("Local", "Virtual", "Dask", "Ray", "MPI")
INTERRUPTS = {"local": 3000, "virtual": 1000, "dask": 100, "mpi": 100, "ray": 30}


def steps(number: int) -> list[list[str]]:
    """The commands of one pass."""
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=3600"]
    scripts = [str(path) for name in SCRIPTS if (path := ROOT / "tests" / name).exists()]
    checks = " or ".join(f"Test{engine}Engine" for engine in ENGINES)
    engines = [str(path) for path in sorted((ROOT / "tests").glob("test_engine_*.py"))]
    attack = [str(ROOT / "tests" / "interrupts.py"), "--seed", str(number)]
    return [
        [*pytest, *scripts],
        [*pytest, "-m", "hypothesis and not engine", str(ROOT / "tests")],
        [*pytest, "-k", checks, *engines],
        *(
            [*attack, "--engine", engine, "--count", str(times)]
            for engine, times in INTERRUPTS.items()
        ),
    ]


def main() -> None:
    """Run passes until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    began, minutes = time.monotonic(), parser.parse_args().minutes
    for number in count():
        env = {"KOFN_SOAK": str(FACTOR), "KOFN_PASS": str(number)}
        for step in steps(number):
            spent = (time.monotonic() - began) / 60
            if spent >= minutes:
                print(f"soak: {number} whole passes, {spent:.1f} minutes, nothing failed")
                return
            shown = " ".join([*(f"{k}={v}" for k, v in env.items()), sys.executable, *step])
            print(f"soak: minute {spent:.1f}, pass {number}: {shown}", flush=True)
            done = subprocess.run([sys.executable, *step], env={**os.environ, **env}, check=False)
            if done.returncode:
                sys.exit(f"soak: failed after {spent:.1f} minutes: {shown}")


if __name__ == "__main__":
    main()
