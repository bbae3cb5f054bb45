"""Kill -9 of the master of a fit, in the fit and while it writes: see checkpoint_kills.py."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console
from support import PASS, SOAK

from kofn.cli.bench import checkpoint as bench_checkpoint

pytestmark = pytest.mark.engine
HERE = Path(__file__).parent
OTHERS = {"ray": "ray", "dask": "distributed", "mpi": "mpi4py"}


def kills(engine: str, fits: int, writes: int, seed: int) -> str:
    given = ("--engine", engine, "--fits", str(fits), "--writes", str(writes), "--seed", str(seed))
    done = subprocess.run(
        [sys.executable, str(HERE / "checkpoint_kills.py"), *given],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_killed_fit_is_resumed_to_the_same_coefficients() -> None:
    fits = 2 * SOAK
    out = kills("local", fits, fits, PASS)
    assert f"{2 * fits} resumed" in out, out


def test_kofn_bench_checkpoint_measures_all_that_it_prints() -> None:
    result = bench_checkpoint.run(300, 5, workers=2, seconds=1.2)
    for row in result["models"].values():
        assert row["iterations"] > 0
        assert 0.0 <= row["share"] < 1.0
        assert row["written"] == 0 or row["write_seconds"] > 0
    console = Console(record=True, width=120)
    bench_checkpoint.table(console, result)
    text = console.export_text()
    assert all(name in text for name in result["models"])


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_a_killed_fit_is_resumed_on_every_engine(engine: str) -> None:
    if find_spec(OTHERS[engine]) is None:
        pytest.skip(f"needs {OTHERS[engine]}, which is not installed")
    assert "5 resumed" in kills(engine, 5, 0, PASS)
