"""Every message between a master and its workers, and how the values in them travel."""

from __future__ import annotations

from typing import Any, NamedTuple

NEVER = -(2**63)  # below every round

# Messages to a worker. Values in them are packed.


class AddBody(NamedTuple):  # a function that later tasks name by its number
    number: int
    code: bytes
    first: int  # those with lower numbers go


class AddOperand(NamedTuple):  # of a round's broadcast: before a worker's first task of the round
    round: int
    value: Any


class DropOperand(NamedTuple):  # of a round that was not cancelled: it makes room for later ones
    round: int


class RunTask(NamedTuple):  # run a body
    task: int
    round: int
    body: int
    args: Any
    cancelled: int  # the highest cancelled round when this was sent


class Put(NamedTuple):  # keep a value, build it, or change what is kept (see kofn.model)
    key: str
    value: Any


class Forget(NamedTuple):  # drop a kept value
    key: str


class Watch(NamedTuple):  # look at a source of notices from now on (see kofn.notices)
    source: int
    code: bytes
    place: str  # which it speaks for
    said: tuple[str, ...]  # of which notices stand


class Cancel(NamedTuple):  # this round and all before it are stale; may overtake other messages
    round: int


# Messages from a worker.


class TaskReply(NamedTuple):  # a piece of a task's work
    task: int
    what: Any
    value: Any
    read: int
    seconds: float
    last: bool  # it ends the task


class TaskFailed(NamedTuple):  # the body raised, or its value could not be packed
    task: int
    error: str
    traceback: str


class TaskDropped(NamedTuple):  # the task was cancelled before its end
    task: int
    read: int = 0  # rows that it had read and not delivered
    wait: float | None = None  # seconds before it began with them
    row: float | None = None  # seconds for each


class PutStored(NamedTuple):  # a put was done
    key: str


class PutFailed(NamedTuple):  # a put raised
    key: str
    error: str
    traceback: str


# What a transport says of a worker itself.


class WorkerUp(NamedTuple):  # the worker is there and can be sent messages
    host: str = ""  # the same for all workers of one machine; empty: nobody knows


class WorkerDown(NamedTuple):  # it is gone, after all that it had sent, or it never came
    reason: str = ""


class WorkerLeaving(NamedTuple):  # it has been told that it will go; the worker may say so itself
    seconds: float  # until then; infinity: it stays after all
    reason: str = ""
    source: int = -1  # the number of the source of notices that says so
    place: str = ""  # a host: all its workers will go


class WatchFailed(NamedTuple):  # from a worker: a source of notices is not there, or in trouble
    source: int
    reason: str


KINDS: tuple[type[Any], ...] = (
    *(AddBody, AddOperand, DropOperand, RunTask, Put, Forget, Cancel),
    *(TaskReply, TaskFailed, TaskDropped, PutStored, PutFailed, WorkerUp, WorkerDown),
    *(WorkerLeaving, Watch, WatchFailed),
)
Message = tuple[Any, ...]  # of one of these kinds
_HEADS = {kind: (number,) for number, kind in enumerate(KINDS)}
Outgoing = list[tuple[int, Message]]


def plain(message: Message) -> tuple[Any, ...]:
    """Return a message as a plain tuple: the number of its kind, then its fields."""
    return _HEADS[type(message)] + message


def typed(fields: tuple[Any, ...]) -> Message:
    """Return the message that `plain` made a tuple of."""
    return tuple.__new__(KINDS[fields[0]], fields[1:])  # quicker than a call


class Values:
    """How values travel inside messages; as they are, unless a transport says otherwise."""

    def pack(self, value: Any, lasting: bool = False) -> Any:
        """Return what travels in place of a value. `lasting`: one worker will keep it."""
        return value

    def own(self, packed: Any) -> Any:
        """Return a packed value that may wait to be sent: the caller may change what is its own."""
        return packed

    def unpack(self, packed: Any) -> Any:
        """Return the value again. At the master its arrays are private and writable."""
        return packed

    def borrow(self, packed: Any) -> Any:
        """The same for a value that is needed for a moment: it may lie where it was written."""
        return self.unpack(packed)

    def release(self, packed: Any) -> None:
        """Let go of a packed value that nobody needs any more."""
