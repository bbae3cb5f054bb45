"""The other side of the Ray engine: the actor that is one worker, and how values travel to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np
import ray
from threadpoolctl import threadpool_limits

from .. import __version__
from .memory import LARGE, dumps, solid
from .running import keep, run, story

F = TypeVar("F", bound=Callable[..., Any])

# Kinds of what a worker says.
REPLY, DROPPED, FAILED, STORED, UNPUT = range(5)


def split(value: Any) -> tuple[bytes, list[Any], list[Any]]:
    """Pickle: return the head, its buffers (None where large), and the large ones.

    What is small travels inside a message of bytes, which Ray hands over as it is; what is large
    stands beside the message and goes by the object store.
    """
    head, found = dumps(value)
    inside: list[Any] = []
    large: list[Any] = []
    for buffer in found:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            inside.append(raw.tobytes())
        else:
            inside.append(None)
            large.append(np.frombuffer(raw, np.uint8))
    return head, inside, large


def unite(
    head: bytes,
    inside: Iterable[Any],
    large: Iterable[Any],
    copy: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value again; `copy`, if given, is applied to every buffer first."""
    rest = iter(large)
    buffers = [next(rest) if part is None else part for part in inside]
    return pickle.loads(head, buffers=[copy(b) for b in buffers] if copy else buffers)


def frozen(buffer: Any) -> Any:
    """Copy a buffer out of the object store, read-only like all that workers are given."""
    mine = private(buffer)
    mine.flags.writeable = False
    return mine


def private(buffer: Any) -> Any:
    """Copy a buffer out of the object store: it is not meant to hold what is kept for long."""
    return np.array(np.frombuffer(buffer, np.uint8))


def look() -> list[dict[str, Any]]:
    """Ask Ray for the machines of its cluster, also the dead ones."""
    nodes: Any = ray.nodes
    return list(nodes())


def place() -> tuple[str, str]:
    """Tell where a process id means the same: the host, and its name space of processes."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return socket.gethostname(), space


def _in(group: str, returns: int = 1) -> Callable[[F], F]:
    """Have Ray run a method in the thread of this group; what returns nothing is not waited for."""
    return cast(Callable[[F], F], ray.method(concurrency_group=group, num_returns=returns))


class Worker:
    """One worker: runs tasks in the order sent, with one BLAS thread.

    Ray runs each group of methods in a thread of its own. What ends a task is the return of its
    call, so a task with one piece costs one call. Pieces before the last leave by `listen`, a
    standing call that also fails when the worker dies. Returns are numbered, so that the master
    can take them in the order in which they were made, whichever way they came.
    """

    def __init__(self) -> None:
        threadpool_limits(1)
        # Ray runs workers at nice 15. Being as important as the master may take a privilege.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self.cancelled = -(2**63)  # the highest cancelled round
        self.kept: dict[str, Any] = {}
        self.operands: dict[int, Any] = {}  # as they came until first used, then [value]
        self.functions: dict[int, Any] = {}  # bytes until first used
        self.changed = threading.Condition()
        self.outbox: list[tuple[tuple[Any, ...], list[Any]]] = []
        self.returns = 0

    @_in("control")
    def hello(self) -> tuple[Any, ...]:
        """Say who and where this is."""
        return os.getpid(), place(), __version__

    @_in("control", returns=0)
    def cancel(self, round: int) -> None:
        """Make rounds stale: a running body is asked between two pieces."""
        self.cancelled = max(self.cancelled, round)

    @_in("control")
    def nodes(self) -> Any:
        """Look at the machines of the cluster, in place of the master, who must not wait."""
        return look()

    @_in("listen")
    def listen(self) -> Any:
        """Return pieces as soon as there are any."""
        with self.changed:
            while not self.outbox:
                self.changed.wait()
            return self._return()

    @_in("work", returns=0)
    def forget(self, key: str) -> None:
        """Drop a kept value."""
        self.kept.pop(key, None)

    @_in("work")
    def put(self, key: str, head: bytes, inside: list[Any], *large: Any) -> Any:
        """Keep a value, or build it here."""
        try:
            keep(self.kept, key, unite(head, inside, large, frozen))
        except BaseException as error:
            return self._end((UNPUT, key, *story(error)))
        return self._end((STORED, key))

    @_in("work")
    def task(self, message: bytes, *large: Any) -> Any:
        """Run one task; return its end, and the pieces that have not left yet."""
        cancelled, task, round, number, function, operand, head, inside = pickle.loads(message)
        if cancelled > self.cancelled:
            self.cancelled = cancelled
        for old in [r for r in self.operands if r <= cancelled]:
            del self.operands[old]
        if function is not None:
            floor, self.functions[number] = function
            for old in [n for n in self.functions if n < floor]:
                del self.functions[old]  # the master has forgotten them
        if operand is not None:
            # By the object store it came beside the message, as Ray resolved it.
            stored, large = (large[:1], large[1:]) if operand == () else ((operand,), large)
            self.operands[round] = stored[0]
        if round <= self.cancelled:
            return self._end((DROPPED, task))
        ends: list[tuple[tuple[Any, ...], list[Any]]] = []

        def say(what: Any, value: Any, read: int, seconds: float, last: bool) -> None:
            packed, inner, outer = split((what, solid(value)))
            said = ((REPLY, task, int(read), seconds, last, packed, inner), outer)
            if last:
                ends.append(said)
                return
            with self.changed:
                self.outbox.append(said)
                self.changed.notify()

        try:
            body, args = self._body(number), unite(head, inside, large)
            ended = run(
                body, self.kept, self._operand(round), args, lambda: round <= self.cancelled, say
            )
        except BaseException as error:
            return self._end((FAILED, task, *story(error)))
        return self._end(*ends[0]) if ended else self._end((DROPPED, task))

    def _end(self, said: tuple[Any, ...], large: Iterable[Any] = ()) -> Any:
        with self.changed:
            self.outbox.append((said, list(large)))
            return self._return()

    def _return(self) -> Any:
        """Return all that is to be said, as bytes if it can be: Ray passes these on unchanged."""
        said, self.outbox = self.outbox, []
        message = pickle.dumps((self.returns, [s for s, _ in said]), 5)
        self.returns += 1
        large = [buffer for _, buffers in said for buffer in buffers]
        return (message, *large) if large else message

    def _body(self, number: int) -> Any:
        function = self.functions[number]
        if type(function) is bytes:
            function = self.functions[number] = pickle.loads(function)
        return function

    def _operand(self, round: int) -> Any:
        found = self.operands.get(round)
        if type(found) is tuple:  # unpickled here, so that what goes wrong is the task's failure
            found = self.operands[round] = [unite(found[0], found[1], found[2:])]
        return found[0] if found else None
