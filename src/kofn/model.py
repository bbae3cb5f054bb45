"""What passes between the packages: tasks out, events in, a report at the end. All frozen.

Rows of a share are named by half-open runs ``(first, last)``. A reply's ``what`` says which
part of its task's ``what`` it carries, in the same form; the engine never looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from .display import Displayed

# Makes a named tuple, all of whose fields are given, in half of the time of a call. For what is
# made for every task and event.
new = tuple.__new__

# A body runs on a worker: body(kept, operand, *args) -> pieces. `kept` maps the keys of `put` to
# their values, `operand` is the round's broadcast (None if there was none). Between two pieces the
# worker looks whether the round is stale, so a body cuts its work in slices of about ten
# milliseconds. A generator streams its pieces; a body with one piece returns it in a tuple, and
# costs one message. Arrays that reach a body may be read-only. A body is known by identity and sent
# to a worker once.
Body = Callable[..., Iterable["Piece"]]
RowRange = tuple[int, int]


class Piece(NamedTuple):
    """What a body yields: a finished slice.

    A value of None is a mere stopping point; its `read` is added to the next reply's.
    """

    what: Any
    value: Any
    read: int = 0  # rows of data really read for it, counted by the worker


class Last(Piece):
    """A piece with which its task ends: it needs no message of its own for that."""


class Outline(tuple[tuple[Any, int], ...]):
    """A possible `what` of a task: its pieces known beforehand, each (what, read), in order.

    An engine that skips values yields these, one by one, as if the body had run.
    """

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces, without values."""
        return tuple(Piece(what, None, read) for what, read in self)


@dataclass(frozen=True, slots=True)
class Blank:
    """Stands for a matrix of which only the size is known, where values are skipped."""

    rows: int
    columns: int
    itemsize: int = 8

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        """What it would take."""
        return self.rows * self.columns * self.itemsize


class Task(NamedTuple):
    """One piece of work for one worker in one round."""

    id: int
    round: int
    worker: int
    body: Body
    args: tuple[Any, ...] = ()
    what: Any = None  # all that its replies together will carry
    cost: float = 1.0  # units of work, for delay models
    brief: bool = False  # nobody keeps its values beyond the round: they need not be copied


class Room(Protocol):
    """Memory for an array that is to be `put` at one worker, which will keep it.

    All of its rows must be filled: an earlier array may have been there.
    """

    def fill(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows from row `first` on, from any thread: contiguous, of the array's own dtype."""

    def twin(self) -> Room | None:
        """The same memory, to be `put` at another worker; neither worker changes it.

        None where there is none to be had: put the array itself.
        """


@dataclass(frozen=True, slots=True)
class Build:
    """A value for `put` that the worker makes itself, where the data is: fn(*args)."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """A value for `put` made of what is kept under the key `of`: fn(kept value, *args).

    That is kept no longer, also when fn raises: it may be half changed. With `keeps` it stays, and
    fn must leave it as it is. Where the new value is there already nothing is done, so an update
    that may not have been sent can be sent again.
    """

    of: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keeps: bool = False


# Events. `time` is the engine's clock on receipt: worker clocks disagree.


class Reply(NamedTuple):
    """A piece of a task's work; `last` ends the task (its value may then be None)."""

    time: float
    worker: int
    round: int
    task: int
    what: Any
    value: Any
    read: int
    seconds: float  # the worker's own time over this piece
    last: bool


class Failed(NamedTuple):
    """A task raised, or a put could not be kept (`task` is None, `key` says which)."""

    time: float
    worker: int
    round: int
    task: int | None
    error: str
    traceback: str
    key: str | None = None


class Dropped(NamedTuple):
    """A cancelled task ended without finishing: the worker is free again.

    `read`: rows that it had read and not delivered. `wait` and `row`: seconds before, and for each
    row, where they are known.
    """

    time: float
    worker: int
    round: int
    task: int
    read: int = 0
    wait: float | None = None
    row: float | None = None


class Lost(NamedTuple):
    """A worker is gone for good, and `tasks` with it."""

    time: float
    worker: int
    tasks: tuple[int, ...] = ()
    reason: str = ""  # where the engine knows more than that


class Joined(NamedTuple):
    """A new worker is there; its id was never used before."""

    time: float
    worker: int


class Leaving(NamedTuple):
    """A worker will be gone at a known time; it works until then, and may stay after all."""

    time: float
    worker: int
    deadline: float  # on the engine's clock; infinity takes an earlier notice back
    reason: str = ""


class Stored(NamedTuple):
    """A put has been kept by its worker. The driver adds the slot that it fills, if it does."""

    time: float
    worker: int
    key: str
    slot: int | None = None


class Tick(NamedTuple):
    """The time that a round asked to be woken at has come."""

    time: float


class Observed(NamedTuple):
    """The memory that workers write, as it was when a round asked for it with Observe."""

    time: float
    value: Any
    held: bool


Event = Reply | Failed | Dropped | Lost | Joined | Leaving | Stored | Tick | Observed


# Commands, from a round to driver.py.


class Send(NamedTuple):
    """Submit this task."""

    task: Task


class Supply(NamedTuple):
    """Give this worker the data that a round of this kind needs."""

    worker: int


class Keep(NamedTuple):
    """Have this worker keep a value under a key, before any task sent to it later."""

    worker: int
    key: str
    value: Any


class Assign(NamedTuple):
    """Let this worker have a slot of these, which are the roster's; None takes it away."""

    slots: MutableMapping[int, int]
    worker: int
    slot: int | None


class Accuse(NamedTuple):
    """A reply of this worker cannot be right; the round goes on as if it had not come."""

    worker: int
    task: int
    why: str


class Observe(NamedTuple):
    """Read memory that workers write; the round gets it at once, as Observed.

    `held`: whether workers complete no round from then on, until something is published.
    """

    read: Callable[[], Any]
    held: bool = False


class Publish(NamedTuple):
    """Write this where workers read it; `asks`: of others than before."""

    write: Callable[[bytes], None]
    data: bytes
    asks: bool


Command = Send | Supply | Keep | Assign | Accuse | Observe | Publish


class Record(NamedTuple):
    """One line of the event log, the only thing that pictures are drawn from.

    kind: round, send, piece (a streamed part of a task), reply (the end of one), dropped, failed,
    lost, joined, leaving, staying (a notice is taken back), stored, ordered (a worker that is to
    join), refused (no such worker can be had, or none stays), wrong (a reply that was not used),
    aside (a worker that is given no more work), tuned (what is done otherwise from now on, and
    why), done (the end of a round), raised, result (what came of a round), loss (of a fit, after an
    iteration), usage (bytes that a worker takes; only readers of a run that goes on make these) or
    closed.

    `rows` are rows or parts: asked for (send), read (piece, reply), read and not delivered
    (dropped), used (result); of a round they are its threshold, of a loss the iteration.
    """

    time: float
    kind: str
    round: int
    worker: int
    task: int
    rows: int
    why: str = ""  # where known, of lost, leaving, ordered, refused, wrong, aside, tuned; a rule
    numbers: tuple[tuple[str, float], ...] = ()  # of a result, a loss, usage, a drop: by name

    @classmethod
    def result(cls, time: float, report: Report) -> Record:
        """The line of the log for what came of a round."""
        used, numbers = report.counts()
        for name, value in (("eta", report.eta), ("error_bound", report.error_bound)):
            numbers += () if value is None else ((name, float(value)),)
        return cls(time, "result", report.round, -1, -1, used, "", numbers)

    @classmethod
    def loss(cls, time: float, iteration: int, loss: float) -> Record:
        """The line of the log for the loss of a fit after an iteration."""
        return cls(time, "loss", -1, -1, -1, iteration, "", (("loss", float(loss)),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Displayed):
    """What one round did; seconds are the engine's clock.

    A worker is late when the round did not wait for its answer: others stood in for it, enough had
    come without it, or it was not asked because it still owed an earlier answer or would be gone
    too soon. A worker that is gone is in `lost`.
    """

    round: int
    live: tuple[int, ...]  # workers that could take part when the round began
    late: tuple[int, ...]
    lost: tuple[int, ...]
    joined: tuple[int, ...]
    seconds: Mapping[str, float]  # wait, decode, total
    eta: float | None  # how much the decode may amplify rounding; None when values are skipped
    # Relative to the size of the terms of the result; of X @ w it holds for the k rows that are
    # coded together (docs/numerics.md) by themselves, whatever the size of other rows.
    error_bound: float | None
    restarted: bool = False  # some worker had to do again rows that it had delivered
    wrong: tuple[int, ...] = ()  # workers whose replies could not be right, and were not used
    tuned: tuple[str, ...] = ()  # what was changed before the round, of what was left to kofn; why
    extra: Mapping[str, Any] = field(default_factory=dict)

    def counts(self) -> tuple[int, tuple[tuple[str, float], ...]]:
        """Rows or parts that were used; and others by name: read, wasted, topped_up."""
        return 0, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductReport(Report):
    """What one product, or X.iterate, did. Rows are rows of shares."""

    rows_read: Mapping[int, int]  # by worker, as counted by the workers themselves
    rows_used: int
    rows_wasted: int = 0  # delivered, and not needed
    rows_topped_up: int = 0  # asked a second time from others, after a loss or a delay
    rows_moved: int = 0  # read now by workers that did not before, beyond what their load has grown
    # With verify=: a wrong reply that moves the result by more than this, in the units of
    # error_bound, is seen (docs/verify.md). None where replies were not checked.
    unseen: float | None = None

    def counts(self) -> tuple[int, tuple[tuple[str, float], ...]]:
        read = sum(self.rows_read.values())
        more = (("wasted", self.rows_wasted), ("topped_up", self.rows_topped_up))
        return self.rows_used, (("read", read), *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumReport(Report):
    """What one coded sum did. Parts are terms of the sum; a symbol is what a worker sends of some.

    A part that several workers hold may be read by each of them, and is used once.
    """

    parts_read: Mapping[int, int]  # by worker, as counted by the workers themselves
    parts_used: int  # different ones, in the sum
    parts_wasted: int  # read beyond those
    finished: tuple[int, ...]  # workers that did all the work of their slot first, in that order
    symbols_used: int
    symbols_wasted: int  # delivered, and known already
    # Of an approximate sum, in which term i counts vᵢ times: the mean of (vᵢ - 1)². That is the
    # square of the error, relative to Σ |term|², if terms have nothing to do with each other.
    decoding_error: float = 0.0

    def counts(self) -> tuple[int, tuple[tuple[str, float], ...]]:
        read = sum(self.parts_read.values())
        return self.parts_used, (("read", read), ("wasted", self.parts_wasted))
