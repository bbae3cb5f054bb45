"""What opens descriptors, threads or processes and fails half-way leaves none of them behind.

Each call of the system's that opening makes fails in turn, as where there are no descriptors left.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support import until

import kofn
from kofn.engines._processes import Process, family
from kofn.peers import Node

# Who has the functions that ask something of the system. Of these some give back, or only look.
SYSTEM = {"posix", "_socket", "_posixsubprocess", "_thread", "socket", "epoll"}
GIVE_BACK = {"close", "detach", "release", "unregister"}
LOOK = {"allocate_lock", "fileno", "fspath", "get_ident", "gethostname", "getpid", "inet_ntoa"}
LOOK |= {"listdir", "lstat", "readlink", "sched_getaffinity", "stat", "sysconf", "uname", "urandom"}
LOOK |= {"read"}  # by Popen, of a child that it has started: Python leaves it then


class Steps:
    """Counts the system's calls; the one of this number raises what a lack of descriptors does."""

    def __init__(self, fail: int) -> None:
        self.fail, self.seen, self.failed = fail, 0, ""

    def __call__(self, frame: FrameType, event: str, call: Any) -> None:
        if event != "c_call" or call.__name__ in GIVE_BACK | LOOK:
            return
        of = getattr(call, "__module__", None) or type(call.__self__).__name__
        if of not in SYSTEM:
            return
        if self.seen == self.fail:
            self.failed = f"{of}.{call.__name__} of {frame.f_code.co_qualname}"
            if of == "_thread":  # an exception ends this profile
                raise RuntimeError("can't start new thread")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.seen += 1


def held() -> dict[str, Any]:
    """Descriptors of this process and what they are of, and its mappings of shared memory."""
    gc.collect()
    descriptors = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            descriptors.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            continue  # that of this look
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": sorted(descriptors),
        "memory": sum("/memfd:kofn" in line for line in maps),
    }


def running() -> set[int | str]:
    """Threads, and children of this process and theirs."""
    threads = {thread.name for thread in threading.enumerate()}
    return threads | {p.pid for p in family([Process.of(os.getpid())]) if p.running()}


@contextmanager
def node() -> Iterator[None]:
    opened = Node(b"token", everywhere=True)
    try:
        yield
    finally:
        opened.close()


@contextmanager
def page() -> Iterator[None]:
    with kofn.connect("virtual", workers=2) as cluster, cluster.page():
        yield


@contextmanager
def logged(log: Path) -> Iterator[None]:
    with kofn.connect("local", workers=2, keep=2, log=log):
        yield


OPENED = ("cluster", "node", "page")


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what is left")
@pytest.mark.parametrize(
    ("what", "every"),
    [
        *((what, 7) for what in OPENED),
        *(pytest.param(what, 1, marks=pytest.mark.long) for what in OPENED),
    ],
)
def test_nothing_is_left_of_what_failed_half_way(what: str, every: int, tmp_path: Path) -> None:
    openers: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "cluster": lambda: logged(tmp_path / "log"),
        "node": node,
        "page": page,
    }
    opener = openers[what]
    with opener():  # what is there once for all is there from now on
        pass
    fail, before, others = 0, held(), running()
    while True:
        steps = Steps(fail)
        opening = opener()
        sys.setprofile(steps)
        try:
            opening.__enter__()
        except (kofn.KofnError, OSError, RuntimeError):
            pass
        else:
            sys.setprofile(None)
            opening.__exit__(None, None, None)
        finally:
            sys.setprofile(None)
        del opening
        until(lambda: running() <= others, f"the end of what {steps.failed} has left running")
        assert held() == before, f"after the failure of {steps.failed}"
        if not steps.failed:
            break  # there are no more
        fail += every
    assert fail > 5
