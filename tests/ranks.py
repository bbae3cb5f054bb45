"""Ranks of Open MPI on this machine: mpiexec, with what it needs here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
# What mpiexec needs as root in a container on a machine with fewer cores than ranks.
NEEDED = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# And what keeps it quiet about workers that were killed.
ENVIRONMENT = NEEDED | {
    "PRTE_MCA_state_base_recoverable": "1",
    "PRTE_MCA_prte_allowed_exit_without_sync": "1",
    "PRTE_MCA_prte_report_child_jobs_separately": "1",
    "PRTE_MCA_prte_execute_quiet": "1",
}


def mpiexec(
    ranks: int, name: str, *args: str, ft: bool = True, env: dict[str, str] = ENVIRONMENT
) -> subprocess.Popen[str]:
    return start_ranks(ranks, [sys.executable, str(TESTS / name), *args], ft, env)


def start_ranks(
    ranks: int,
    command: Sequence[str],
    ft: bool = True,
    env: dict[str, str] = ENVIRONMENT,
    cwd: Path | None = None,
    stderr: int | None = subprocess.STDOUT,
) -> subprocess.Popen[str]:
    """Start ranks.

    In a folder of their own, as Open MPI names its own by the number of its process: one that was
    killed leaves it behind, and the next with that number would not start.
    """
    folder = tempfile.mkdtemp(prefix="kofn-")
    process = subprocess.Popen(
        [MPIEXEC, *(["--with-ft", "ulfm"] if ft else []), "-n", str(ranks), *command],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=env | {"TMPDIR": folder},
        cwd=cwd,
    )
    weakref.finalize(process, shutil.rmtree, folder, ignore_errors=True)
    return process


def finish(process: subprocess.Popen[str], timeout: float = 900) -> str:
    """Wait for the end; return what was printed."""
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"no end within {timeout} s; printed so far: {process.communicate()[0]}")
    finally:  # also where Ctrl-C ends the test
        process.kill()
