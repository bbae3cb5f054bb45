"""Functions that workers run under chaos: some right, some that raise or eat memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines._processes import memory, where_pids_count

Array = NDArray[np.float64]
Part = tuple[int, Array]  # its number, and its rows
ROOM = 256 << 20  # bytes that a worker may grow by before its own limit
_STEP = 16 << 20


class Asked(Exception):
    """What a function raises because it was asked to."""


def square(part: Part, x: Any) -> Array:
    """A gradient."""
    rows = part[1]
    product: Array = rows.T @ (rows @ x)
    return product


def total(part: Part, x: Any) -> float:
    """A number."""
    return float((part[1] @ x).sum())


def both(part: Part, x: Any) -> tuple[Array, Array]:
    """Two arrays."""
    return part[1].sum(axis=0), square(part, x)


def scaled(factor: float) -> Callable[[Part, Any], Array]:
    """A function that workers have to be taught anew."""
    return lambda part, x: factor * square(part, x)


def raising(part: Part, x: tuple[int, Array]) -> Array:
    """Raises at one part, whose number x has."""
    if part[0] == x[0]:
        raise Asked(f"asked to raise at part {x[0]}")
    return square(part, x[1])


def half(y: Array) -> Array:
    """A step of an iteration, which becomes shorter by it."""
    return y / (2 * len(y))


def growing(part: Part, x: tuple[tuple[Any, ...], bool, Array]) -> Array:
    """One process, which x names, takes memory up to a limit of its own.

    It is killed there, as the kernel kills who takes too much; or raises MemoryError.
    """
    victim, dies, vector = x
    if victim == name_of(os.getpid()):
        _grow(dies)
    return square(part, vector)


def name_of(pid: int) -> tuple[Any, ...]:
    """A process of this machine, which no other machine has."""
    return (pid, *where_pids_count())


def _grow(dies: bool) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory()["VmSize"] + ROOM, limits[1]))
    held: list[bytes] = []
    try:
        while True:
            held.append(os.urandom(1) * _STEP)  # written, or the system would not give it
    except MemoryError:
        held.clear()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
