"""What a paced worker runs. Each one loads this: it imports next to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from typing import Any

from ..model import Body, Last, Piece

LOOK = 0.008  # seconds between two looks of a waiting worker at the current round


def pace(
    body: Body, kept: Any, operand: Any, timing: tuple[float, float], cost: float, *args: Any
) -> Iterator[Piece]:
    """Run a body, and hold back each of its pieces until it is due."""
    wait, seconds = timing
    yield from _until(time.perf_counter() + wait)
    start = time.perf_counter()
    read = 0
    pieces = body(kept, operand, *args)
    left = len(pieces) if isinstance(pieces, Sized) else -1
    for piece in pieces:
        rows, left = Piece(*piece).read, left - 1
        read += rows
        # A piece that counts no rows may hold all the work: it waits for the end.
        part = min(1.0, read / cost) if rows and cost > 0 else 1.0
        yield from _until(start + part * seconds)
        # Where the body would have ended without a message of its own, so does this.
        yield Last(*piece) if left == 0 and part == 1.0 else piece
    yield from _until(start + seconds)


def _until(due: float) -> Iterator[Piece]:
    """Sleep in steps; after each, the worker may look whether the round is stale."""
    while (left := due - time.perf_counter()) > 0:
        time.sleep(min(left, LOOK))
        yield Piece(None, None)
