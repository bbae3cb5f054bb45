"""The other side of the Ray engine: the actor that is one worker, and how messages travel to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import ray
from threadpoolctl import threadpool_limits

from .. import __version__
from ..peers.keys import Keys, read_keys
from ._processes import ONE_THREAD, Process, where_pids_count
from .memory import contiguous, dumps
from .protocol import NEVER, Message, Values, WorkerProtocol, plain, typed
from .protocol.messages import TaskReply

F = TypeVar("F", bound=Callable[..., Any])

LARGE = 64 * 1024  # bytes; from here on the object store is faster than a copy for each worker
_TINY = 4096  # bytes; below this a buffer of a large value stays in the message
# Which group's thread runs a method of an actor; without returns it is not waited for.
_method: Callable[..., Callable[[F], F]] = cast(Any, ray.method)
list_nodes: Any = ray.nodes  # of the machines of the cluster, also the dead ones


class Packed(NamedTuple):
    """A pickled value. One that is `large` travels beside its message, by the object store."""

    head: bytes
    parts: list[Any]  # its buffers
    large: bool
    lasting: bool  # the worker keeps it, and copies it: the object store is not for that


def pack(value: Any, lasting: bool = False) -> Packed:
    """Pickle a value. Buffers of a large one are views, those of a small one are copies."""
    head, buffers = dumps(value)
    raws = [buffer.raw() for buffer in buffers]
    large = len(head) + sum(raw.nbytes for raw in raws) >= LARGE
    size = _TINY if large else LARGE
    parts = [r.tobytes() if r.nbytes < size else np.frombuffer(r, np.uint8) for r in raws]
    return Packed(head, parts, large, lasting)


def join(messages: Iterable[Message], number: int = 0) -> tuple[Any, ...]:
    """Return messages as bytes, which Ray passes on unchanged, and what travels beside them."""
    beside: list[Any] = []

    def inside(field: Any) -> Any:
        if isinstance(field, ray.ObjectRef) or (type(field) is Packed and field.large):
            beside.append(field)
            return ...  # which is no field of any message
        return field

    fields = [tuple(map(inside, plain(message))) for message in messages]
    return (pickle.dumps((number, fields), 5), *beside)


def split(data: bytes, *beside: Any) -> tuple[int, list[Message]]:
    """Return the number and the messages that `join` was given."""
    rest = iter(beside)
    number, plains = pickle.loads(data)
    return number, [typed(tuple(next(rest) if f is ... else f for f in p)) for p in plains]


def own_keys() -> Keys:
    """Return those of this process's Ray: the same variables say where they are, on any machine."""
    files = (os.environ[f"RAY_TLS_{name}"] for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT"))
    return read_keys(*files)


class _WorkerValues(Values):
    """How values travel, as a worker sees it: what it is given is read-only."""

    def pack(self, value: Any, lasting: bool = False) -> Packed:
        return pack(contiguous(value))

    def unpack(self, packed: Packed) -> Any:
        parts = packed.parts
        if packed.large and packed.lasting:
            parts = [memoryview(bytearray(part)).toreadonly() for part in parts]
        return pickle.loads(packed.head, buffers=parts)


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
        self.cancelled = NEVER  # the highest cancelled round
        self.protocol = WorkerProtocol(_WorkerValues(), lambda: self.cancelled, lambda: self.emit)
        self.changed = threading.Condition()
        self.outbox: list[Message] = []
        self.returns = 0

    @_method(concurrency_group="control")
    def hello(self) -> tuple[Any, ...]:
        return Process.of(os.getpid()), where_pids_count(), __version__

    @_method(concurrency_group="control", num_returns=0)
    def cancel(self, round: int) -> None:
        """Make rounds stale: a running body is asked between two pieces."""
        self.cancelled = max(self.cancelled, round)

    @_method(concurrency_group="nodes")
    def nodes(self) -> Any:
        """List the machines of the cluster, in place of the master, who must not wait."""
        return list_nodes()

    @_method(concurrency_group="listen")
    def listen(self) -> Any:
        """Return pieces as soon as there are any."""
        with self.changed:
            self.changed.wait_for(lambda: self.outbox)
            return self._return()

    def emit(self, message: Message) -> None:
        """Have a message leave by `listen`, or by what returns before."""
        with self.changed:
            self.outbox.append(message)
            self.changed.notify()

    @_method(concurrency_group="work")
    def run(self, *call: Any) -> Any:
        """Handle messages; return the end of the task, and the pieces that have not left yet."""
        ends: list[Message] = []
        for message in split(*call)[1]:
            for reply in self.protocol.handle(message):
                if not isinstance(reply, TaskReply) or reply.last:
                    ends.append(reply)
                    continue
                # A copy, as the body may write to the same array before it has left.
                parts = [p if type(p) is bytes else p.copy() for p in reply.value.parts]
                self.emit(reply._replace(value=reply.value._replace(parts=parts)))
        with self.changed:
            self.outbox += ends
            return self._return()

    def _return(self) -> Any:
        """Return all that is to be said, as bytes alone if it can be."""
        messages, self.outbox = self.outbox, []
        call = join(messages, self.returns)
        self.returns += 1
        return call if len(call) > 1 else call[0]
