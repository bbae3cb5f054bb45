"""Where MPI listens: on one machine, at its loopback device alone.

Open MPI and its daemon listen on every interface, whichever they are told to use, and take what
comes there for their own. But a socket that listens can still be bound to a device: from then on
nobody else's packets reach it. What connects within this machine comes by that device too.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress

DEVICE = b"lo"
_GETFD = 438  # the number of pidfd_getfd, on every kind of machine


def close_doors(pid: int = 0, but: frozenset[int] = frozenset()) -> None:
    """Bind what a process (0: this one) listens at to the loopback device.

    `but`: descriptors that are left as they are. Where the system does not let us, it stays open.
    """
    if hasattr(socket, "SO_BINDTODEVICE"):
        for sock in listening(pid, but):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE)


def doors(pid: int = 0) -> frozenset[int]:
    """Return the descriptors of the sockets that a process has."""
    folder, found = f"/proc/{pid or 'self'}/fd", set()
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if stat.S_ISSOCK(os.stat(f"{folder}/{name}").st_mode):
                    found.add(int(name))
    return frozenset(found)


def listening(pid: int = 0, but: frozenset[int] = frozenset()) -> Iterator[socket.socket]:
    """Return the sockets of a process that listen for more than this machine, one at a time."""
    process = os.pidfd_open(pid) if pid else -1
    try:
        for fd in doors(pid) - but:
            with suppress(OSError), socket.socket(fileno=_duplicate(process, fd)) as sock:
                if _listens(sock):
                    yield sock
    finally:
        if pid:
            os.close(process)


def _listens(sock: socket.socket) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    return not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _duplicate(process: int, fd: int) -> int:
    if process < 0:
        return os.dup(fd)
    found = ctypes.CDLL(None, use_errno=True).syscall(_GETFD, process, fd, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(found)
