"""The worker's side of the protocol."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from ...model import Build, Last, Update
from .messages import (
    NEVER,
    AddBody,
    AddOperand,
    Cancel,
    DropOperand,
    Forget,
    Message,
    Put,
    PutFailed,
    PutStored,
    RunTask,
    TaskDropped,
    TaskFailed,
    TaskReply,
    Values,
)


class WorkerProtocol:
    """A worker's books: what it keeps, bodies, operands. Runs one task at a time.

    `look` returns the highest round that is known to be cancelled now, where a transport can tell
    while a body runs; it is asked between two pieces. Cancel messages raise `cancelled`.
    """

    def __init__(self, values: Values, look: Callable[[], int] | None = None) -> None:
        self.kept: dict[str, Any] = {}
        self.cancelled = NEVER
        self._values, self._look = values, look
        self._bodies: dict[int, Any] = {}  # pickled until first used
        self._operands: dict[int, tuple[bool, Any]] = {}  # round -> whether unpacked, the value

    def handle(self, message: Message) -> Iterable[Message]:
        """Do what a message asks for; yields what to send, while it works. Use it up."""
        if isinstance(message, RunTask):
            return self._run(message)
        if isinstance(message, Put):
            return (self._put(message),)
        if isinstance(message, AddBody):
            self._bodies = {n: body for n, body in self._bodies.items() if n >= message.first}
            self._bodies[message.number] = message.code
        elif isinstance(message, AddOperand):
            # Unpacked when a task needs it: what goes wrong is then that task's failure.
            self._operands[message.round] = (False, message.value)
        elif isinstance(message, DropOperand):
            self._operands.pop(message.round, None)
        elif isinstance(message, Forget):
            self.kept.pop(message.key, None)
        elif isinstance(message, Cancel):
            self.cancelled = max(self.cancelled, message.round)
        return ()

    def _stale(self, round: int) -> bool:
        if self._look is not None:
            self.cancelled = max(self.cancelled, self._look())
        return round <= self.cancelled

    def _put(self, message: Put) -> Message:
        key = message.key
        try:
            keep(self.kept, key, self._values.unpack(message.value))
        except BaseException as error:
            return PutFailed(key, *format_error(error))
        return PutStored(key)

    def _run(self, message: RunTask) -> Iterator[Message]:
        """Run one task: each piece is sent when it is finished, the end with it where known."""
        task, round = message.task, message.round
        self.cancelled = max(self.cancelled, message.cancelled)
        stale = self._stale(round)
        if self._operands:
            for old in [r for r in self._operands if r <= self.cancelled]:
                del self._operands[old]
        if stale:
            yield TaskDropped(task)
            return
        pack = self._values.pack
        pieces: Any = None
        rows, spent = 0, 0.0
        try:
            body, operand = self._body(message.body), self._operand(round)
            args = self._values.unpack(message.args)
            start = perf_counter()
            pieces = body(self.kept, operand, *args)
            # A list, or an iterator over one, knows how much is left: its last piece ends the task
            # without a message of its own. A generator is never asked ahead of its reply.
            left = getattr(pieces, "__len__", getattr(pieces, "__length_hint__", None))
            count = left() if left else -1
            for piece in pieces:
                what, value, read = piece
                count = 0 if type(piece) is Last else count - 1
                rows += read
                spent += perf_counter() - start
                if count == 0:
                    reply = TaskReply(task, pack(what), pack(value), int(rows), spent, True)
                    _close(pieces)  # before its end is told, as below
                    yield reply
                    return
                if value is not None:
                    yield TaskReply(task, pack(what), pack(value), int(rows), spent, False)
                    rows, spent = 0, 0.0
                if self._stale(round):
                    _close(pieces)  # first: its operand may be written over from now on
                    yield TaskDropped(task)
                    return
                start = perf_counter()
            spent += perf_counter() - start
        except GeneratorExit:
            raise
        except BaseException as error:
            _close(pieces)
            yield TaskFailed(task, *format_error(error))
            return
        yield TaskReply(task, pack(None), pack(None), int(rows), spent, True)

    def _body(self, number: int) -> Any:
        body = self._bodies[number]
        if type(body) is bytes:
            body = self._bodies[number] = pickle.loads(body)
        return body

    def _operand(self, round: int) -> Any:
        ready, value = self._operands.get(round, (True, None))
        if not ready:
            value = self._values.unpack(value)
            self._operands[round] = (True, value)
        return value


def keep(kept: dict[str, Any], key: str, value: Any) -> None:
    """Do what `put` asks for: keep the value, build it here, or change what is kept."""
    if isinstance(value, Build):
        kept[key] = value.fn(*value.args)
    elif not isinstance(value, Update):
        kept[key] = value
    elif key not in kept:
        kept[key] = value.fn(kept.pop(value.of), *value.args)


def format_error(error: BaseException) -> tuple[str, str]:
    """Return an error's name and its traceback, for a Failed event."""
    try:
        name = repr(error)
    except BaseException:
        name = type(error).__name__
    return name, "".join(traceback.format_exception(error))


def _close(pieces: Any) -> None:
    if isinstance(pieces, Iterator) and hasattr(pieces, "close"):
        try:
            pieces.close()
        except BaseException:  # the body's own clean-up failed; the task has ended already
            traceback.print_exc()
