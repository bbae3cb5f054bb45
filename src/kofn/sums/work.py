"""What workers do with their parts. Runs where the parts are; imports nothing heavy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..codes.assignment import Row
from ..model import Last, Piece
from .scattered import Scattered

# Seconds between two messages of a worker, at least: what is there sooner rides with the next.
FLUSH = 0.005

Leaves = tuple[Any, ...]  # arrays, or Scattered ones
Shapes = tuple[tuple[int, ...], ...]

_loaded: dict[str, Callable[..., Any]] = {}  # functions by key, the newest last
_MOST = 16


class Held:
    """The parts of one seat, and the symbols that its holder walks."""

    def __init__(self, parts: Mapping[int, Any], symbols: Sequence[Row]) -> None:
        self.parts, self.symbols = parts, symbols


def function(kept: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """The function kept under a key: itself, or pickled and unpickled here once."""
    fn = kept[key]
    if not isinstance(fn, bytes):
        return fn  # type: ignore[no-any-return]
    found = _loaded.get(key)
    if found is None:
        while len(_loaded) >= _MOST:
            del _loaded[next(iter(_loaded))]
        found = _loaded[key] = cloudpickle.loads(fn)
    return found


def walk(
    kept: Mapping[str, Any], x: Any, key: str, fn_key: str, flush: float = FLUSH
) -> Iterator[Piece]:
    """Evaluate the symbols of a seat in order; what is said is a run of them and their values.

    `flush`: seconds between two messages, at least.
    """
    held: Held = kept[key]
    fn = function(kept, fn_key)
    symbols = held.symbols
    said, read, values = 0, 0, []
    shapes: Shapes | None = None
    several = False  # whether fn returns a tuple
    spoke = time.perf_counter()
    for i, row in enumerate(symbols):
        value = None
        for j, part in enumerate(row.parts):
            new, several = leaves(fn, held.parts[part], x, part)
            shapes = same(shapes, new, part)
            value = add(value, new, 1.0 if row.coefficients is None else row.coefficients[j])
            read += 1
            if j + 1 < len(row.parts):
                yield Piece(None, None, read)  # a place to stop at
                read = 0
        assert value is not None
        values.append(value)
        last = i + 1 == len(symbols)
        if last or time.perf_counter() - spoke >= flush:
            kind = Last if last else Piece
            yield kind((said, i + 1), stack(values, several), read)
            said, read, values = i + 1, 0, []
            spoke = time.perf_counter()
        else:
            yield Piece(None, None, read)
            read = 0


def leaves(fn: Callable[..., Any], part: Any, x: Any, number: int) -> tuple[Leaves, bool]:
    """fn's value for one part, as a tuple of arrays, and whether it was one.

    What fn raises says which part it was.
    """
    try:
        found = fn(part, x)
        made = found if isinstance(found, tuple) else (found,)
        arrays = tuple(one if isinstance(one, Scattered) else np.asarray(one) for one in made)
    except Exception as error:
        error.add_note(f"(kofn: in fn(part, x) for part {number})")
        raise
    if not arrays or any(one.dtype.kind not in "biufc" for one in arrays):
        raise TypeError(
            f"fn must return numbers, an array or a tuple of arrays; for part {number} it returned "
            f"{type(found).__name__}"
        )
    return arrays, isinstance(found, tuple)


def same(before: Shapes | None, new: Leaves, part: int) -> Shapes:
    """The shapes of a value, after a look whether they are those before."""
    shapes = tuple(one.shape for one in new)
    if before is not None and shapes != before:
        raise ValueError(
            f"fn must return the same shapes for every part; for part {part} it returned "
            f"{list(shapes)}, for another {list(before)}"
        )
    return shapes


def add(total: Leaves | None, new: Leaves, scale: float) -> Leaves:
    """total + scale · new, leaf by leaf; never in place, for fn may keep what it returned."""
    if scale != 1.0:
        new = tuple(scale * one for one in new)
    return new if total is None else tuple(a + b for a, b in zip(total, new, strict=True))


def stack(values: Sequence[Leaves], several: bool) -> Leaves | NDArray[Any]:
    """Values of several symbols as one: a leading axis on every leaf."""
    if len(values) == 1:
        found = tuple(one[None] for one in values[0])
    else:
        found = tuple(np.stack(parts) for parts in zip(*values, strict=True))
    return found if several else found[0]
