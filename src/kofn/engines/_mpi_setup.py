"""What Open MPI needs to be told before it starts, and what can be wrong with it."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi4py

from ._processes import ONE_THREAD, beside, interpreter, where_pids_count

# MPI starts first: a Spawn is over when it has, and the next one need not wait for our imports. The
# word that follows (URGENT) has arrived when it is sent: see MPITransport._greet_spawned.
# Who cannot go on is killed: MPI tells of those, not of who exits. If the master dies meanwhile,
# the start of MPI never ends, and no code of ours runs in it: so the kernel kills it at the end of
# the master's lifeline, which is found by its process and inode; on another machine an alarm does.
_BOOT = """
import fcntl, json, os, signal, sys, traceback
os.environ.update(json.loads(sys.argv[1]))
def tie(boot, space, pid, fd, inode):
    with open('/proc/sys/kernel/random/boot_id') as file:
        here = file.read().strip(), os.path.basename(os.path.realpath('/proc/self/ns/pid'))
    if here != (boot, space):
        return
    if not os.path.exists(f'/proc/{pid}'):
        os.kill(os.getpid(), 9)
    own = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDONLY | os.O_NONBLOCK)
    if str(os.fstat(own).st_ino) == inode:
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, 9)
        fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        try:
            os.read(own, 1)
            os.kill(os.getpid(), 9)
        except BlockingIOError:
            pass
try:
    tie(*sys.argv[2].split())
except (OSError, AttributeError):
    pass
sys.path[:] = sys.argv[3:]
try:
    import mpi4py
    mpi4py.rc.finalize = False
    signal.alarm(120)
    from mpi4py import MPI
    MPI.Comm.Get_parent().Ssend([b'', MPI.BYTE], 0, 3)
    signal.alarm(0)
    from kofn.engines import _mpi_setup, _mpi_worker
    _mpi_setup.bind_to_loopback()
    _mpi_worker.serve(MPI, MPI.Comm.Get_parent())
except BaseException:
    traceback.print_exc()
    os.kill(os.getpid(), 9)
"""
AGAIN = "mpiexec --with-ft ulfm -n 7 python script.py  (a master and 6 workers)"
_FT = "OMPI_MCA_mpi_ft_enable"  # how mpiexec --with-ft ulfm tells its processes

# The heartbeat detector, where a user turns it on, takes a busy worker for dead without a thread.
_ALWAYS = {"OMPI_MCA_mpi_ft_detector_thread": "1"}
# Where all ranks are on one machine. Shared memory does not reach from one mpiexec job to the next,
# so joiners are spoken to over TCP.
_INTERFACE = "OMPI_MCA_btl_tcp_if_include"
_HERE = {"OMPI_MCA_btl": "self,sm,tcp", _INTERFACE: "lo"}
_SEGMENT = "/sm_segment."  # of the files' paths, in whichever folder
_guard: Any = None  # of this rank, until it is greeted
_told: dict[str, str] = {}  # of these, what the user had not set


def start() -> Any:
    """Start MPI in this process, if nobody has, and return mpi4py.MPI."""
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", 0)
    here = size == os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    settings = _ALWAYS | _HERE if here else _ALWAYS
    _told.update((name, settings[name]) for name in settings.keys() - os.environ.keys())
    os.environ.update(_told)
    mpi4py.rc.thread_level = "multiple"  # for Spawn in the background
    mpi4py.rc.finalize = False  # it would wait for workers that are gone
    ours = _sockets()
    if here and os.environ.get("PMIX_RANK", "0") != "0":
        # MPI tells nobody of a rank 0 that ends before it has started MPI: its start, or the wait
        # for a greeting, would never end. On several machines nobody knows where to look.
        global _guard
        guard = str(Path(__file__).with_name("_mpi_guard.py"))
        _guard = beside(guard, str(os.getpid()), stdin=subprocess.PIPE)
    from mpi4py import MPI

    bind_to_loopback(but=ours)
    return MPI


def greeted() -> None:
    """The master knows of this rank: from now on it is told of its end."""
    if _guard is not None:
        _guard.communicate()  # ends with its input


def unname_memory() -> None:
    """Take the names of the memory that ranks of this machine share: nothing is left by a kill -9.

    mpiexec removes them at its end, where it comes to that. Once every rank has started MPI it has
    mapped all of them, and nobody looks for them again.
    """
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for path in {line.split(maxsplit=5)[-1].rstrip() for line in maps if _SEGMENT in line}:
            with suppress(OSError):  # another has done it
                os.unlink(path)


def command(lifeline: int) -> list[str]:
    """Return what a spawned worker runs; Spawn does not pass on what MPI was told here."""
    paths = [entry or os.getcwd() for entry in sys.path]
    _, boot, space = where_pids_count()
    tied = f"{boot} {space} {os.getpid()} {lifeline} {os.fstat(lifeline).st_ino}"
    return [interpreter(), "-c", _BOOT, json.dumps(ONE_THREAD | _told), tied, *paths]


def problem(MPI: Any, size: int, workers: int | None) -> str | None:
    """Say why no engine can be had under this mpiexec, on every rank alike; None if it can."""
    about = MPI.Get_library_version()
    match = re.match(r"Open MPI v(\d+)\.(\d+)\.(\d+)", about)
    if match is None or tuple(map(int, match.groups())) < (5, 0, 6):
        return (
            f"engine 'mpi' needs Open MPI 5.0.6 or newer, which can survive a lost worker; this is "
            f"{about.split(',')[0].strip()}: pip install -U 'kofn[mpi]'."
        )
    if os.environ.get(_FT, "").lower() not in ("1", "true", "yes", "enabled"):
        return (
            f"engine 'mpi' needs a run that survives a lost worker; this mpiexec was started "
            f"without fault tolerance. Start it so: {AGAIN}."
        )
    rule = "rank 0 is the master and the other ranks are its workers; this mpiexec started"
    if size < 2:
        return f"{rule} one rank, so no worker. Start it so: {AGAIN}."
    if workers is not None and workers > size - 1:
        return (
            f"{rule} {size - 1} workers, {workers} were asked for. Start it with -n {workers + 1}, "
            f"or leave workers= out and call join()."
        )
    return None


# Where MPI listens: on one machine, at its loopback device alone. Open MPI listens on every
# interface, whichever it is told to use, and takes what comes there for its own. But a socket that
# listens can still be bound to a device: from then on nobody else's packets reach it.


def bind_to_loopback(but: frozenset[int] = frozenset()) -> None:
    """Where MPI speaks to this machine alone, bind all sockets `but` these to its loopback."""
    if os.environ.get(_INTERFACE) == "lo" and hasattr(socket, "SO_BINDTODEVICE"):
        for sock in listening(but):
            with suppress(OSError):  # where the system does not let us, it stays open
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")


def _sockets() -> frozenset[int]:
    entries = Path("/proc/self/fd").glob("*")
    return frozenset(int(entry.name) for entry in entries if entry.is_socket())


def listening(but: frozenset[int] = frozenset()) -> Iterator[socket.socket]:
    """Return the sockets of this process that listen for more than this machine."""
    for fd in _sockets() - but:
        with suppress(OSError):
            blocking = os.get_blocking(fd)
            with socket.socket(fileno=os.dup(fd)) as sock:
                os.set_blocking(fd, blocking)  # socket.setdefaulttimeout changes it
                if (
                    sock.family in (socket.AF_INET, socket.AF_INET6)
                    and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and not _loopback(sock.getsockname()[0])
                ):
                    yield sock


def _loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
