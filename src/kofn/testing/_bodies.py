"""Bodies for the engine checks. No pytest here: every worker imports this module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..model import Piece


def echo(kept: Any, operand: Any, *args: Any) -> Iterator[Piece]:
    """Reply with the arguments, in a list that says how long it is."""
    return iter([Piece("echo", args, 1)])


def steps(kept: Any, operand: Any, pieces: int) -> Iterator[Piece]:
    """Reply with a small array per piece."""
    for i in range(pieces):
        yield Piece((i, i + 1), np.full(3, i), 1)


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


def exits(kept: Any, operand: Any, error: type[BaseException]) -> Iterator[Piece]:
    """Fail with what usually ends a process."""
    raise error("not today")
    yield


def locks(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with what cannot leave a process."""
    yield Piece(None, threading.Lock())


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


def make(size: int) -> Any:
    """Build a value where it is kept."""
    return np.ones(size)


def append(value: Any, more: float) -> Any:
    """Make a value of one that is kept."""
    return np.append(value, more)


def spoil(*_: Any) -> Any:
    """Fail to build one."""
    raise ArithmeticError("cannot be built")
