"""Processes of this machine, told apart by more than a number that may be another's by now.

As a program it waits for the end of its parent, then ends what works in a folder and removes that:
`python _processes.py FOLDER PARENT`. For this it needs nothing but Python itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "KOFN_FOLDER"  # in the environment of what works in a folder, and is to end with it
ONE_THREAD = {  # one BLAS thread a worker: several workers share a machine
    f"{name}_{'MAXIMUM' if name == 'VECLIB' else 'NUM'}_THREADS": "1"
    for name in ("OPENBLAS", "OMP", "MKL", "VECLIB", "NUMEXPR", "BLIS")
}
_END_LIMIT = 5.0  # seconds for what was killed to be gone
_PROC = Path("/proc")


class Process(NamedTuple):
    """One process of this machine, and not another one that was given its number later."""

    pid: int
    began: str  # clock ticks since the machine was booted; "" where nobody knows

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now. Raises OSError where there is no descriptor."""
        stat = _stat(pid)
        return cls(pid, stat[19] if stat else "")

    def running(self) -> bool:
        """Tell whether it has not ended; a zombie has."""
        if self.began:
            with contextlib.suppress(OSError):  # no descriptor is left to look closer
                stat = _stat(self.pid)
                return bool(stat) and stat[19] == self.began and stat[0] not in "ZX"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # not ours
            pass
        return True

    def kill(self) -> None:
        """Kill it with SIGKILL, if it is still there, and nobody else.

        Raises OSError where there are no descriptors to tell who it is; it goes on then.
        """
        self.send(signal.SIGKILL)

    def send(self, signum: int) -> bool:
        """Send it a signal, and nobody else; return whether it is there. Raises as `kill` does."""
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "pidfd_open"):
                fd = os.pidfd_open(self.pid)  # it stays the same one's, whoever that is by now
                try:
                    if Process.of(self.pid) == self:
                        signal.pidfd_send_signal(fd, signum)
                        return True
                finally:
                    os.close(fd)
            elif Process.of(self.pid) == self:
                os.kill(self.pid, signum)
                return True
        return False


def where_pids_count() -> tuple[str, str, str]:
    """Tell where a process id means the same: the host, its start, its name space of processes."""
    boot = ""  # two machines may have one name
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename, boot, os.path.basename(os.path.realpath("/proc/self/ns/pid"))


def _stat(pid: int) -> list[str]:
    """Return what the kernel says after the name: state, parent, ...; [19] is its start."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def available_memory() -> int | None:
    """Bytes that this machine, or its container, can still give; None where nobody tells."""
    sizes: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = (_PROC / "meminfo").read_text()
        sizes.append(int(text[text.index("MemAvailable:") :].split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max": there is no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text())
        sizes.append(limit - used + int(stat["inactive_file"]))  # those pages can be had again
    return max(0, min(sizes)) if sizes else None


def memory(pid: int | str | None = "self") -> dict[str, int]:
    """Bytes of a process by name, as Linux has them: VmRSS resident, VmHWM at most; else {}."""
    with contextlib.suppress(OSError):
        sizes = re.findall(r"(\w+):\s*(\d+) kB", (_PROC / str(pid) / "status").read_text())
        return {name: 1024 * int(size) for name, size in sizes}
    return {}


def family(roots: Iterable[Process]) -> set[Process]:
    """Return these processes, and all that descend from those that are there."""
    parents: dict[Process, int] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # no descriptor is left to look closer
            if stat := _stat(int(entry.name)):
                parents[Process(int(entry.name), stat[19])] = int(stat[1])
    members = set(roots)
    new = parents.keys() & members
    while new:
        pids = {process.pid for process in new}
        new = {process for process, parent in parents.items() if parent in pids} - members
        members |= new
    return members


def end(processes: set[Process], grace: float = 0.0) -> None:
    """Kill processes after a grace of so many seconds, and wait until they are gone."""
    began, passed = time.monotonic(), 0.0
    # Not for ever, as one may be deep in the kernel.
    while any(process.running() for process in processes) and passed < grace + _END_LIMIT:
        for process in processes if passed >= grace else ():
            process.kill()
        time.sleep(0.005)
        passed = time.monotonic() - began


def end_folder(folder: str) -> None:
    """End all that were started with this folder as their MARK, and their family; remove it."""
    for _ in range(3):  # again, for who was only just forked
        end(family(_working_in(folder)))
    shutil.rmtree(folder, ignore_errors=True)


def _working_in(folder: str) -> Iterator[Process]:
    return marked(f"{MARK}={folder}", lambda entry: _writes(entry, folder))


def marked(mark: str, other: Callable[[Path], bool] = lambda _: False) -> Iterator[Process]:
    """The processes that have this in their environment, or that are known by `other`."""
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # not ours, or gone
            process = Process.of(int(entry.name))
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0") or other(entry):
                yield process


def _writes(entry: Path, folder: str) -> bool:
    """Tell whether a process of Ray has files of the folder open.

    Those that write their title over their command line write it over their environment too. Not
    any process: one that was forked from the master has its log open, and is the user's.
    """
    if not (entry / "cmdline").read_bytes().startswith(b"ray::"):
        return False
    return any(os.path.realpath(fd).startswith(folder) for fd in (entry / "fd").iterdir())


def interpreter() -> str:
    """The program that runs Python, for a process to be started with."""
    path = sys.executable
    if path and shutil.which(path):
        return path
    from ..errors import EngineUnavailable  # as a program this file has only Python

    raise EngineUnavailable(
        f"workers are started with the program in sys.executable; got {path!r}, where "
        f"there is none: Python may run within another program. Set sys.executable to "
        f"the path of python3 before connect."
    )


def watch(folder: str) -> subprocess.Popen[bytes]:
    """Have the folder, and what works in it, ended with this process, be it by kill -9."""
    return beside(__file__, folder, str(os.getpid()))


def beside(*program: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a program that needs nothing but Python itself, by its file and its arguments."""
    command, null = [interpreter(), "-I", "-S", *program], subprocess.DEVNULL
    # A session of its own: Ctrl-C, and the end of a terminal, are not for it.
    return subprocess.Popen(command, stdin=stdin, stdout=null, stderr=null, start_new_session=True)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    parent, ends = int(sys.argv[2]), list[int]()
    with contextlib.suppress(AttributeError, OSError):
        ends.append(os.pidfd_open(parent))  # seen at once: orphans are known by descent no more
    while os.getppid() == parent:
        select.select(ends, [], [], 0.2)
    end_folder(sys.argv[1])
