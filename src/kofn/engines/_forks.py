"""Processes and those that they were forked from: what a child lets go of, and how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import sys
import weakref
from typing import Any

import numpy as np

# Transports, whose `abandon` is called in every child that is forked while they live: with the
# parent's sockets in a child, nobody would see their end.
watched: weakref.WeakSet[Any] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [each.abandon() for each in list(watched)])


def serve_a_master() -> None:
    """Leave Ctrl-C, which goes to the whole group, to the master; flush every line at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def reseed() -> None:
    """In a forked worker: draw other random numbers than its siblings, who have the same state."""
    random.seed()
    np.random.seed()  # noqa: NPY002 - what bodies may use
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


class Lifeline:
    """A pipe that a master holds open; at its end the kernel kills all that are tied to it.

    So a worker that is stopped dies with its master too, even when the launcher that would see to
    it has been killed. Nothing is ever written.
    """

    def __init__(self) -> None:
        self.fd, held = os.pipe()  # what the others need; what nobody else may have
        self.held = open(held, "wb", buffering=0)  # noqa: SIM115 - a forked child lets go of it

    def close(self) -> None:
        """Kill all that are tied to it."""
        os.close(self.fd)
        self.held.close()


def tie(fd: int) -> None:
    """Let this process be killed at the end of a lifeline, of which this is a descriptor.

    Where the kernel does not offer that (it is Linux's own) nothing happens.
    """
    with contextlib.suppress(OSError):
        # A description of our own: whom to kill belongs to it, and a descriptor that was passed
        # shares the sender's.
        signal_at_end(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK), signal.SIGKILL)
    os.close(fd)


def signal_at_end(fd: int, signum: int) -> None:
    """Have the kernel send this process a signal when a pipe or socket ends, or has news.

    SIGKILL and SIGCONT reach a process that is stopped, too. Nothing happens where the kernel does
    not offer that.
    """
    ask = getattr(fcntl, "F_SETSIG", None)
    if ask is not None:
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, ask, signum)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
