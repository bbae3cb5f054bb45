"""The programs of examples/ run as they stand; those for Ray, Dask and MPI need their clusters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docs, pytest.mark.engine]

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    "command",
    [
        "pagerank.py 2000",
        "power_method.py 200",
        "simulate.py --out=picture.png",
        "taylor.py 400",
        "timeline.py picture.png",
    ],
)
def test_the_program_runs(command: str, tmp_path: Path) -> None:
    script, argument = command.split()
    if "picture" in argument:
        pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), argument],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
