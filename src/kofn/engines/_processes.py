"""Processes of this machine, told apart by more than a number that may be another's by now.

As a program it waits for the end of its parent, then ends what works in a folder and removes that:
`python _processes.py FOLDER PARENT`. For this it needs nothing but Python itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "KOFN_FOLDER"  # in the environment of what works in a folder, and is to end with it
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
        with contextlib.suppress(ProcessLookupError):
            # Whoever it is by now: the descriptor stays the same one's.
            fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
            try:
                if Process.of(self.pid) != self:
                    return
                if fd < 0:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                if fd >= 0:
                    os.close(fd)


def where_pids_count() -> tuple[str, str]:
    """Tell where a process id means the same: the host, and its name space of processes."""
    return os.uname().nodename, os.path.basename(os.path.realpath("/proc/self/ns/pid"))


def _stat(pid: int) -> list[str]:
    """Return what the kernel says after the name: state, parent, ...; [19] is its start."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def end_folder(folder: str) -> None:
    """Kill all that were started with this folder as their MARK, then remove it.

    Not for ever, as a process may be deep in the kernel.
    """
    limit = time.monotonic() + _END_LIMIT
    found: set[Process] = set()  # one that is about to end has no environment any more
    while time.monotonic() < limit:
        found.update(_working_in(folder))
        if not any(process.running() for process in found):
            break
        for process in found:
            process.kill()
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


def _working_in(folder: str) -> Iterator[Process]:
    mark = f"{MARK}={folder}\0".encode()
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # not ours, or gone
            process = Process.of(int(entry.name))
            if mark in (entry / "environ").read_bytes() + b"\0" or _writes(entry, folder):
                yield process


def _writes(entry: Path, folder: str) -> bool:
    """Tell whether a process of Ray has files of the folder open.

    Those that write their title over their command line write it over their environment too. Not
    any process: one that was forked from the master has its log open, and is the user's.
    """
    if not (entry / "cmdline").read_bytes().startswith(b"ray::"):
        return False
    for fd in (entry / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            if os.readlink(fd).startswith(folder):
                return True
    return False


def watch(folder: str) -> subprocess.Popen[bytes]:
    """Have the folder, and what works in it, ended with this process, be it by kill -9."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C, and the end of a terminal, are not for it
    )


def _main(folder: str, parent: int) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    while os.getppid() == parent:
        time.sleep(0.2)
    end_folder(folder)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
