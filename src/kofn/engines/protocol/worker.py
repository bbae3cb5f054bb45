"""The worker's side of the protocol."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from types import GeneratorType
from typing import Any

from ...model import Build, Last, Update, new
from ...notices.watch import Watcher, begin
from . import messages as msg
from .messages import NEVER, Message, Values

# Bytes. glibc gives the memory of an array of 128 KB or more back to the system when it is freed,
# unless a larger one was freed before. To have it anew, page by page, may take longer than work.
# (Where MALLOC_TRIM_THRESHOLD_ is set, as Dask's nannies do, that is what decides.)
TEMPORARY = 8 << 20
# What was received, and how to unpack it: when a task first needs it, whose failure it then is.
Received = tuple[Callable[[Any], Any] | None, Any]


class WorkerProtocol:
    """A worker's books: what it keeps, bodies, operands. Runs one task at a time.

    `look` returns the highest round that is known to be cancelled now, where a transport can tell
    while a body runs; it is asked between two pieces. Cancel messages raise `cancelled`.

    `outlet` returns what other threads may send messages with; it is called once, when one needs
    it. `host` is what the engine has for its own sources of notices.
    """

    def __init__(
        self,
        values: Values,
        look: Callable[[], int] | None = None,
        outlet: Callable[[], Callable[[Message], None]] | None = None,
        host: Any = None,
    ) -> None:
        bytearray(TEMPORARY)  # is freed at once
        self.kept: dict[str, Any] = {}
        self.cancelled = NEVER
        self._values, self._look = values, look
        self._bodies: dict[int, Received] = {}
        self._operands: dict[int, Received] = {}  # by round
        self._outlet, self._host = outlet, host
        self._send: Callable[[Message], None] | None = None  # for other threads
        self._watchers: list[Watcher] = []

    def handle(self, message: Message) -> Iterable[Message]:
        """Do what a message asks for; yields what to send, while it works. Use it up."""
        if type(message) is msg.RunTask:  # for every task: no call that can be left out
            return self._run(message)
        if type(message) is msg.AddOperand:
            self._operands[message[0]] = (self._values.unpack, message[1])
        elif isinstance(message, msg.Put):
            return (self._put(message),)
        elif isinstance(message, msg.AddBody):
            self._bodies = {n: body for n, body in self._bodies.items() if n >= message.first}
            self._bodies[message.number] = (pickle.loads, message.code)
        elif isinstance(message, msg.DropOperand):
            self._operands.pop(message.round, None)
        elif isinstance(message, msg.Forget):
            self.kept.pop(message.key, None)
        elif isinstance(message, msg.Cancel):
            self.cancelled = max(self.cancelled, message.round)
        elif isinstance(message, msg.Watch):
            return self._watch(message)
        return ()

    def _watch(self, message: msg.Watch) -> Iterable[Message]:
        """Look at a source of notices from now on, in a thread."""
        number, code, place, said = message
        if self._outlet is None:
            return (msg.WatchFailed(number, "this engine's workers cannot tell notices."),)
        send = self._send = self._send or self._outlet()

        def emit(seconds: float, reason: str, at: str) -> None:
            send(msg.WorkerLeaving(seconds, reason, number, at or place))

        def fail(why: str) -> None:
            send(msg.WatchFailed(number, why))

        self._watchers += begin(code, self._host, emit, fail, said)
        return ()

    def close(self) -> None:
        """Have the threads that watch end."""
        for watcher in self._watchers:
            watcher.stop()

    def _stale(self, round: int) -> bool:
        if self._look is not None and (seen := self._look()) > self.cancelled:
            self.cancelled = seen
        return round <= self.cancelled

    def _put(self, message: msg.Put) -> Message:
        key = message.key
        try:
            keep(self.kept, key, self._values.unpack(message.value))
        except BaseException as error:
            return msg.PutFailed(key, *format_error(error))
        return msg.PutStored(key)

    def _run(self, message: msg.RunTask) -> Iterator[Message]:
        """Run one task: each piece is sent when it is finished, the end with it where known."""
        task, round, number, packed, cancelled = message
        if cancelled > self.cancelled:
            self.cancelled = cancelled
        stale = self._stale(round)
        for old in [r for r in self._operands if r <= self.cancelled]:
            del self._operands[old]
        if stale:
            yield msg.TaskDropped(task)
            return
        pack = self._values.pack
        pieces: Any = None
        end: Message
        rows, spent = 0.0, 0.0  # a part of a row, where the body tells of it
        first: tuple[float, float] | None = None  # since when it reads: seconds so far, and rows
        try:
            body, operand = _ready(self._bodies, number), _ready(self._operands, round)
            args = self._values.unpack(packed)
            start = perf_counter()
            pieces = body(self.kept, operand, *args)
            # A list, or an iterator over one, knows how much is left: its last piece ends the task
            # without a message of its own. A generator is never asked ahead of its reply.
            count = len(pieces) if type(pieces) is tuple else -1
            if count < 0 and type(pieces) is not GeneratorType:
                left = getattr(pieces, "__len__", None) or getattr(pieces, "__length_hint__", None)
                count = left() if left else -1
            for piece in pieces:
                what, value, read = piece
                count = 0 if type(piece) is Last else count - 1
                rows += read
                spent += perf_counter() - start
                if first is None and rows:
                    first = (spent, rows)
                if count == 0:
                    fields = (task, pack(what), pack(value), int(rows), spent, True)
                    end = new(msg.TaskReply, fields)
                    break
                if value is not None:
                    yield msg.TaskReply(task, pack(what), pack(value), int(rows), spent, False)
                    rows, spent, first = 0.0, 0.0, None
                if self._stale(round):
                    end = msg.TaskDropped(task, int(rows), *_pace(first, spent, rows))
                    break
                start = perf_counter()
            else:
                pieces = None
                spent += perf_counter() - start
                end = msg.TaskReply(task, pack(None), pack(None), int(rows), spent, True)
        except GeneratorExit:
            raise
        except BaseException as error:
            end = msg.TaskFailed(task, *format_error(error))
        if type(pieces) is not tuple and hasattr(pieces, "close") and hasattr(pieces, "__next__"):
            try:
                pieces.close()  # first: its operand may be written over from now on
            except BaseException:  # the body's own clean-up failed; the task has ended already
                traceback.print_exc()
        yield end


def _pace(
    first: tuple[float, float] | None, spent: float, rows: float
) -> tuple[float | None, float | None]:
    """Seconds of a task before it read rows, and for each row since it had read the first."""
    if first is None or rows <= first[1]:
        return None, None
    row = (spent - first[0]) / (rows - first[1])
    return max(0.0, first[0] - first[1] * row), row


def _ready(received: dict[int, Received], number: int) -> Any:
    unpack, value = received.get(number, (None, None))
    if unpack is not None:
        value = unpack(value)
        received[number] = (None, value)
    return value


def keep(kept: dict[str, Any], key: str, value: Any) -> None:
    """Do what `put` asks for: keep the value, build it here, or change what is kept."""
    if isinstance(value, Build):
        kept[key] = value.fn(*value.args)
    elif not isinstance(value, Update):
        kept[key] = value
    elif key not in kept:
        old = kept[value.of] if value.keeps else kept.pop(value.of)
        kept[key] = value.fn(old, *value.args)


def format_error(error: BaseException) -> tuple[str, str]:
    """Return an error's name and its traceback, for a Failed event."""
    try:
        name = repr(error)
    except BaseException:
        name = type(error).__name__
    return name, "".join(traceback.format_exception(error))
