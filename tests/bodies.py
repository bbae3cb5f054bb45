"""Functions that tests have workers run. Every worker imports this file, so it imports little.

A function of a test file would have each new worker import that, and pytest with it.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kofn.model import Piece

Floats = NDArray[np.float64]


def says_and_goes(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply, and end the process at once."""
    yield Piece(None, "the last", 1)
    os._exit(0)


def same(y: Floats) -> Floats:
    """For X.iterate."""
    return y


def gradient(part: Any, w: Floats) -> Floats:
    """A term of a sum."""
    A, b = part
    return np.asarray(A.T @ (A @ w - b))


def gaussian(part: Floats, x: Floats) -> Floats:
    """One term: the Gaussian kernel of a row (1, d) and inputs (b, d)."""
    return np.asarray(np.exp(-((part - x) ** 2).sum(axis=1)))


def gaussians(rows: Floats, x: Floats) -> Floats:
    """The same for rows (E, d): (E, b)."""
    return np.asarray(np.exp(-((rows[:, None, :] - x) ** 2).sum(axis=2)))


def busy(kept: Any, operand: Any) -> Iterator[Piece]:
    """Work for ten milliseconds; reply with how long that was."""
    began = time.process_time()
    while time.process_time() < began + 0.01:
        pass
    yield Piece(None, time.process_time() - began)


def draws(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with two random numbers."""
    yield Piece(None, (float(np.random.random()), random.random()))  # noqa: NPY002


def maps(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply with how many segments of shared memory are mapped."""
    yield Piece(None, Path("/proc/self/maps").read_text().count("memfd:kofn"))


PAGES = (512 << 10) // resource.getpagesize()


def temporaries(kept: Any, operand: Any) -> Iterator[Piece]:
    """Make arrays that are dropped at once; reply with the page faults."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        first = np.ones(64 << 10)  # of PAGES pages
        _ = first * 2.0 + np.ones(64 << 10)
    yield Piece(None, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def leaves_a_child(kept: Any, operand: Any) -> Iterator[Piece]:
    """Leave a process behind; reply with its id."""
    pid = os.fork()  # holds every descriptor of the worker open
    if pid == 0:
        signal.pause()
        os._exit(0)
    yield Piece(None, pid)


def dies(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply, and die."""
    yield Piece("before", np.ones(50_000))
    os._exit(3)


def large_pieces(kept: Any, operand: Any, pieces: int) -> Iterator[Piece]:
    """Reply with large arrays."""
    for i in range(pieces):
        yield Piece(i, np.full(100_000, float(i)))
