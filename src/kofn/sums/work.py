"""What workers do with their parts. Runs where the parts are; imports nothing heavy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..codes.assignment import Row
from ..model import Last, Piece
from .scattered import Scattered

# Seconds between two messages of a worker, at least: what is there sooner rides with the next.
FLUSH = 0.005
MEMO = 64 << 20  # bytes of terms that a worker keeps during a round

Leaves = tuple[Any, ...]  # arrays, or Scattered ones
Shapes = tuple[tuple[int, ...], ...]

_loaded: dict[str, Callable[..., Any]] = {}  # functions by key, the newest last
_MOST = 16


class Held:
    """The parts of one seat, and the symbols that its holder walks."""

    def __init__(self, parts: Mapping[int, Any], symbols: Sequence[Row]) -> None:
        self.parts, self.symbols = parts, symbols
        self._again: frozenset[int] | None = None

    @property
    def again(self) -> frozenset[int]:
        """The parts that several symbols have."""
        if self._again is None:
            uses = Counter(part for row in self.symbols for part in row.parts)
            self._again = frozenset(part for part, times in uses.items() if times > 1)
        return self._again


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


class _Memo:
    """Terms that a later symbol has too, as long as they fit into MEMO bytes."""

    def __init__(self, again: Collection[int]) -> None:
        self.again = again
        self.known: dict[int, Leaves] = {}
        self.left = MEMO
        self.get = self.known.get

    def keep(self, part: int, value: Leaves) -> None:
        """Keep a term, if it is worth it."""
        if part in self.again and self.left > 0:
            self.left -= sum(one.nbytes for one in value if isinstance(one, np.ndarray))
            self.known[part] = value


def walk(
    kept: Mapping[str, Any], x: Any, key: str, fn_key: str, flush: float = FLUSH
) -> Iterator[Piece]:
    """Evaluate the symbols of a seat in order; what is said is a run of them and their values.

    `flush`: seconds between two messages, at least. A term that several symbols have is evaluated
    once a round. Not with `flush` 0, which says that the time is given and not the work's own: each
    symbol then costs what its terms do.
    """
    held: Held = kept[key]
    fn = function(kept, fn_key)
    symbols = held.symbols
    memo = _Memo(held.again if flush else ())
    here = not isinstance(kept[fn_key], bytes)  # fn is the caller's own, in the caller's process
    said, read, values = 0, 0, []
    shapes: Shapes | None = None
    several = False  # whether fn returns a tuple
    spoke = time.perf_counter()
    for i, row in enumerate(symbols):
        value = None
        for j, part in enumerate(row.parts):
            known = memo.get(part)
            if known is None:
                new, several = leaves(fn, held.parts[part], x, part)
                shapes = same(shapes, new, part)
                if here or i + 1 < len(symbols) or j + 1 < len(row.parts):
                    new = tuple(map(own, new))  # fn may write its next value over this one
                memo.keep(part, new)
                read += 1
            else:
                new = known
            value = add(value, new, 1.0 if row.coefficients is None else row.coefficients[j])
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
        if any(isinstance(one, tuple) for one in made):
            raise TypeError("fn must return an array or a tuple of arrays; a tuple is nested in it")
        arrays = tuple(map(_wide, made))
    except Exception as error:
        error.add_note(f"(kofn: in fn(part, x) for part {number})")
        raise
    if not arrays or any(one.dtype.kind not in "biufc" for one in arrays):
        raise TypeError(
            f"fn must return numbers, an array or a tuple of arrays; for part {number} it returned "
            f"{type(found).__name__}"
        )
    return arrays, isinstance(found, tuple)


def own(value: Any) -> Any:
    """A copy: fn may write its next value over the one that it returned."""
    return value.copy()


def _wide(value: Any) -> Any:
    if not isinstance(value, Scattered):
        value = np.asarray(value)
        if value.dtype.char in "dfFD" or value.dtype.kind not in "biuf":
            return value
        return value.astype(wide(value.dtype))
    return value * 1.0 if value.dtype.kind in "biu" else value


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that values are added in: whole numbers would wrap around, halves lose digits."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.result_type(dtype, np.float32)


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
