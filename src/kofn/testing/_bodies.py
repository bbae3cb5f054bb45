"""Bodies for the engine checks. No pytest here: every worker imports this module."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..model import Body, Last, Piece
from ..peers import Address


def echo(kept: Any, operand: Any, *args: Any) -> Iterator[Piece]:
    """Reply with the arguments, in a list that says how long it is."""
    return iter([Piece("echo", args, 1)])


def steps(kept: Any, operand: Any, pieces: int) -> Iterator[Piece]:
    """Reply with a small array per piece."""
    for i in range(pieces):
        yield Piece((i, i + 1), np.full(3, i), 1)


def listed(kept: Any, operand: Any, pieces: int) -> list[Piece]:
    """Reply with a number per piece, all at once."""
    return [Piece(i, i, 1) for i in range(pieces)]


def ends_early(kept: Any, operand: Any) -> Iterator[Piece]:
    """End with a Last; who asks on is told."""
    yield Piece(0, "first", 1)
    yield Last(1, "last", 1)
    raise AssertionError("asked for more than the last piece")


def counts(kept: Any, operand: Any) -> Iterator[Piece]:
    """Read rows between the replies, too."""
    yield from [Piece(None, None, 2), Piece(None, None, 3), Piece("some", 1.0, 1)]
    yield Piece(None, None, 4)


def uneven(kept: Any, operand: Any, pieces: int) -> Iterator[Piece]:
    """Reply with small and large arrays by turns."""
    for i in range(pieces):
        yield Piece(i, np.full(100_000 if i % 3 else 2, float(i)))


def nothing(kept: Any, operand: Any) -> Any:
    """Return no pieces, by mistake."""


def toil(kept: Any, operand: Any, pieces: int) -> Iterator[Piece]:
    """Reply at once, then work long in small slices without a word."""
    yield Piece("begun", 1.0)
    for _ in range(pieces):
        sum(range(20_000))
        yield Piece(None, None)


def recall(kept: Any, operand: Any, key: str) -> Iterator[Piece]:
    """Reply with what is kept under a key."""
    yield Piece(key, ("has", np.sum(kept[key])) if key in kept else ("no",))


def measure(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with what tells one operand from another."""
    if operand is None:
        yield Piece(None, "none")
    else:
        yield Piece(None, (operand.shape, float(operand.sum()), float(operand.flat[-1])))


def raises(kept: Any, operand: Any, after: int) -> Iterator[Piece]:
    """Fail after some pieces."""
    yield from steps(kept, operand, after)
    raise ValueError("the raising line")


def exits(kept: Any, operand: Any) -> Iterator[Piece]:
    """Fail with what usually ends a process."""
    raise SystemExit("not today")
    yield


def interrupts(kept: Any, operand: Any) -> Iterator[Piece]:
    """Fail as Ctrl-C does."""
    raise KeyboardInterrupt("not today")
    yield


def locks(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with what cannot leave a process."""
    yield Piece(None, threading.Lock())


class Poison:
    """What can be pickled, and read only by the process that made it."""

    def __reduce__(self) -> Any:
        return _only_there, (os.getpid(),)


def _only_there(pid: int) -> Any:
    if pid != os.getpid():
        raise ValueError("only where it was made")


def poisons(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with what the master cannot read, and go on."""
    yield Piece(None, Poison())
    yield Piece(None, 1)


BAD: dict[str, tuple[Body, str]] = {  # bodies that fail, and what the failure says
    "exit": (exits, "not today"),
    "interrupt": (interrupts, "not today"),
    "cannot travel": (locks, ""),
    "unreadable": (poisons, "only where it was made"),
}


def flags(kept: Any, operand: Any, argument: Any) -> Iterator[Piece]:
    """Reply with whether the operand, what is kept and the argument are writable and aligned."""
    arrays = (operand, kept["key"], argument)
    yield Piece(None, [(a.flags.writeable, a.flags.aligned) for a in arrays])


def threads(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with the threads of each BLAS in use."""
    import threadpoolctl

    np.ones((50, 50)) @ np.ones((50, 50))
    pools = threadpoolctl.threadpool_info()
    yield Piece(None, [p["num_threads"] for p in pools if p["user_api"] == "blas"])


def offers(kept: Any, operand: Any, slot: int) -> Iterator[Piece]:
    """Write a vector where the others can take it, and stamp it."""
    exchange = kept["exchange"]
    exchange.offer(slot, slot, np.full(5, float(slot)))
    exchange.stamp(slot, 1, slot, 7)
    yield Piece(None, slot)


def takes(kept: Any, operand: Any, round: int) -> Iterator[Piece]:
    """Reply with a vector that another worker offers."""
    yield Piece(None, kept["exchange"].take(round))


def reached(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with the address of this worker's node."""
    yield Piece(None, tuple(kept["node"].node.address))


def calls(kept: Any, operand: Any, to: Any, value: int) -> Iterator[Piece]:
    """Send a number to the node of another worker."""
    kept["node"].node.send(Address(*to), {"k": "value"}, np.array([value]))
    yield Piece(None, value)


def hears(kept: Any, operand: Any, count: int) -> Iterator[Piece]:
    """Reply with so many numbers that others have sent."""
    heard: list[int] = []
    while len(heard) < count:
        kept["node"].node.wait(0.01)
        heard += [int(np.frombuffer(value, np.int64)[0]) for _, value in kept["node"].node.take()]
        yield Piece(None, None)
    yield Piece(None, heard)


def thread_names(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with the names of this process's threads."""
    yield Piece(None, [thread.name for thread in threading.enumerate()])


SHAPES: dict[str, Callable[[], Any]] = {
    "huge": lambda: np.arange(8_000_000.0),
    "empty": lambda: np.zeros((0, 3)),
    "scalar": lambda: np.array(2.5),
    "strided": lambda: np.arange(100_000.0)[::-3],
    "fortran": lambda: np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
    "transposed": lambda: np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    "tuple": lambda: (np.arange(3), np.arange(60_000.0), np.zeros(0), "text"),
    "float32": lambda: np.ones((4, 4), np.float32),
    "bool": lambda: np.array([True, False]),
    "strings": lambda: np.array(["a", "bcd"]),
}


def shaped(kept: Any, operand: Any, name: str) -> Iterator[Piece]:
    """Reply with a value of a named shape."""
    yield Piece(name, SHAPES[name]())


def miscounts(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with a large value and rows that are no number, which is found out late."""
    yield Piece("large", np.full(60_000, -1.0), float("nan"))  # type: ignore[arg-type]


def labels(kept: Any, operand: Any, size: int) -> Iterator[Piece]:
    """Say twice with much what the value is of."""
    for i in range(2):
        yield Piece(np.full(size, i), np.ones(size))


def make(size: int) -> Any:
    """Build a value where it is kept."""
    return np.ones(size)


def append(value: Any, more: float) -> Any:
    """Make a value of one that is kept."""
    return np.append(value, more)


def spoil(*_: Any) -> Any:
    """Fail to build one."""
    raise ArithmeticError("cannot be built")
