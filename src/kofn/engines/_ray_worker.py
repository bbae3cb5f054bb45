"""The other side of the Ray engine: the actor that is one worker, and how values travel to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import ray
from threadpoolctl import threadpool_limits

from .. import __version__
from ._processes import Process
from .memory import contiguous, dumps
from .running import keep, run, story

F = TypeVar("F", bound=Callable[..., Any])

LARGE = 64 * 1024  # bytes; from here on the object store is faster than a copy for each worker

ONE_THREAD = {
    f"{name}_NUM_THREADS": "1"
    for name in ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "NUMEXPR", "BLIS")
} | {"VECLIB_MAXIMUM_THREADS": "1"}

# Kinds of what a worker says.
REPLY, DROPPED, FAILED, STORED, UNPUT = range(5)


def split(value: Any) -> tuple[bytes, list[Any], list[Any]]:
    """Pickle: return the head, its buffers (None where they stand apart), and those apart.

    What is small all in all travels in a message of bytes, which Ray hands over as it is. Else
    the large buffers stand apart, for the object store.
    """
    head, found = dumps(value)
    raws = [buffer.raw() for buffer in found]
    apart = 4096 if len(head) + sum(raw.nbytes for raw in raws) >= LARGE else LARGE
    return (
        head,
        [raw.tobytes() if raw.nbytes < apart else None for raw in raws],
        [np.frombuffer(raw, np.uint8) for raw in raws if raw.nbytes >= apart],
    )


def large(head: bytes, inside: list[Any], apart: list[Any]) -> bool:
    """Tell whether a split value is too large to be sent once per worker."""
    return bool(apart) or len(head) + sum(map(len, inside)) >= LARGE


def unite(
    head: bytes,
    inside: Iterable[Any],
    apart: Iterable[Any],
    copy: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value again; `copy`, if given, is applied to every buffer first."""
    rest = iter(apart)
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

    def __init__(self, paths: Sequence[str]) -> None:
        # Bodies are known by the names of their modules, which the master may find elsewhere.
        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        os.environ.update(ONE_THREAD)  # for libraries that are loaded later
        threadpool_limits(1)
        # Ray runs workers at nice 15. Being as important as the master may take a privilege.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self.cancelled = -(2**63)  # the highest cancelled round
        self.kept: dict[str, Any] = {}
        self.operands: dict[int, Any] = {}  # as they came until first used, then [value]
        self.functions: dict[int, Any] = {}  # bytes until first used
        self.changed = threading.Condition()
        self.outbox: list[tuple[tuple[Any, ...], Sequence[Any]]] = []
        self.returns = 0

    @_in("control")
    def hello(self) -> tuple[Any, ...]:
        """Say who and where this is."""
        return Process.of(os.getpid()), place(), __version__

    @_in("control", returns=0)
    def cancel(self, round: int) -> None:
        """Make rounds stale: a running body is asked between two pieces."""
        self.cancelled = max(self.cancelled, round)

    @_in("look")
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
    def put(self, key: str, head: bytes, inside: list[Any], apart: list[Any]) -> Any:
        """Keep a value, build it here, or change what is kept."""
        try:
            keep(self.kept, key, unite(head, inside, apart, frozen))
        except BaseException as error:
            return self._end((UNPUT, key, *story(error)))
        return self._end((STORED, key))

    @_in("work")
    def task(self, message: bytes, stored: Any = None, apart: Sequence[Any] = ()) -> Any:
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
        if operand is not None or stored is not None:
            self.operands[round] = stored or operand
        if round <= self.cancelled:
            return self._end((DROPPED, task))
        ends: list[tuple[tuple[Any, ...], Sequence[Any]]] = []

        def say(what: Any, value: Any, read: int, seconds: float, last: bool) -> None:
            *packed, buffers = split((what, contiguous(value)))
            said = ((REPLY, task, int(read), seconds, last, *packed), buffers)
            if last:
                ends.append(said)
                return
            with self.changed:
                self.outbox.append(said)
                self.changed.notify()

        try:
            body, args = self._body(number), unite(head, inside, apart)
            ended = run(
                body, self.kept, self._operand(round), args, lambda: round <= self.cancelled, say
            )
        except BaseException as error:
            return self._end((FAILED, task, *story(error)))
        return self._end(*ends[0]) if ended else self._end((DROPPED, task))

    def _end(self, said: tuple[Any, ...], apart: Sequence[Any] = ()) -> Any:
        with self.changed:
            self.outbox.append((said, apart))
            return self._return()

    def _return(self) -> Any:
        """Return all that is to be said, as bytes if it can be: Ray passes these on unchanged."""
        said, self.outbox = self.outbox, []
        message = pickle.dumps((self.returns, [s for s, _ in said]), 5)
        self.returns += 1
        apart = [buffer for _, buffers in said for buffer in buffers]
        return (message, *apart) if apart else message

    def _body(self, number: int) -> Any:
        function = self.functions[number]
        if type(function) is bytes:
            function = self.functions[number] = pickle.loads(function)
        return function

    def _operand(self, round: int) -> Any:
        found = self.operands.get(round)
        if type(found) is tuple:  # unpickled here, so that what goes wrong is the task's failure
            found = self.operands[round] = [unite(*found)]
        return found[0] if found else None
