"""What a paced worker runs. Each one loads this: it imports next to nothing."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sized
from typing import Any

from ..model import Body, Last, Piece

LOOK = 0.008  # seconds between two looks of a waiting worker at the current round
GRAIN = 1024  # parts of a row that are told of: a power of two, so that they add up without error


def pace(
    body: Body, kept: Any, operand: Any, timing: tuple[float, float], cost: float, *args: Any
) -> Iterator[Piece]:
    """Run a body, and hold back each of its pieces until it is due."""
    wait, seconds = timing
    yield from _until(time.perf_counter() + wait)
    start = time.perf_counter()
    read, since = 0.0, start
    pieces = body(kept, operand, *args)
    left = len(pieces) if isinstance(pieces, Sized) else -1
    for piece in pieces:
        rows, left = Piece(*piece).read, left - 1
        read += rows
        # A piece that counts no rows may hold all the work: it waits for the end.
        part = min(1.0, read / cost) if rows and cost > 0 else 1.0
        counted = yield from _until(start + part * seconds, rows, since)
        since = start + part * seconds
        piece = Piece(*piece)._replace(read=rows - counted)  # type: ignore[arg-type]
        # Where the body would have ended without a message of its own, so does this.
        yield Last(*piece) if left == 0 and part == 1.0 else piece
    yield from _until(start + seconds)


def _until(due: float, rows: float = 0.0, since: float = 0.0) -> Generator[Piece, None, float]:
    """Sleep in steps; after each, the worker may look whether the round is stale.

    `rows` are read evenly `since` then. Returns how many of them the steps have counted.
    """
    counted = 0.0
    while (left := due - time.perf_counter()) > 0:
        time.sleep(min(left, LOOK))
        part = (time.perf_counter() - since) / (due - since) if rows else 0.0
        done = min(rows, int(GRAIN * part * rows) / GRAIN)
        yield Piece(None, None, done - counted)  # type: ignore[arg-type]  # a part of a row
        counted = done
    return counted
