"""Running a body on a worker: the same on every engine that runs processes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from ..model import Body, Build, Last, Update

# what, value, rows read, the worker's seconds over it, whether it is the task's last
Say = Callable[[Any, Any, int, float, bool], None]


def run(
    body: Body,
    kept: Mapping[str, Any],
    operand: Any,
    args: tuple[Any, ...],
    stale: Callable[[], bool],
    say: Say,
) -> bool:
    """Run one task: each piece is said when it is finished, the end with it where known.

    Returns False when the round went stale meanwhile. What the body raises is raised; either way
    the body has been closed by then, so that its operand may be written over.
    """
    pieces: Any = None
    try:
        start = perf_counter()
        pieces = body(kept, operand, *args)
        ended = _stream(pieces, start, stale, say)
    except BaseException:
        _close(pieces)
        raise
    if not ended:
        _close(pieces)
    return ended


def _stream(pieces: Any, start: float, stale: Callable[[], bool], say: Say) -> bool:
    # A list, or an iterator over one, knows how much is left: its last piece ends the task
    # without a message of its own. A generator is never asked ahead of saying.
    left = getattr(pieces, "__len__", getattr(pieces, "__length_hint__", None))
    count = left() if left else -1
    rows, spent = 0, 0.0
    for piece in pieces:
        what, value, read = piece
        count = 0 if type(piece) is Last else count - 1
        rows += read
        spent += perf_counter() - start
        if value is not None or count == 0:
            say(what, value, rows, spent, count == 0)
            rows, spent = 0, 0.0
        if count == 0:
            return True
        if stale():
            return False
        start = perf_counter()
    spent += perf_counter() - start
    say(None, None, rows, spent, True)
    return True


def keep(kept: dict[str, Any], key: str, value: Any) -> None:
    """Do what `put` asks for: keep the value, build it here, or change what is kept."""
    if isinstance(value, Build):
        kept[key] = value.fn(*value.args)
    elif isinstance(value, Update):
        if key not in kept:
            kept[key] = value.fn(kept.pop(value.of), *value.args)
    else:
        kept[key] = value


def story(error: BaseException) -> tuple[str, str]:
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
