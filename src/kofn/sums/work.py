"""What workers do with their parts. Runs where the parts are; imports nothing heavy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes.assignment import Row
from ..codes.total import Shapes, same_shapes
from ..model import Last, Piece, new
from .functions import load
from .scattered import Scattered, wide

# Seconds between two messages of a worker, at least: what is there sooner rides with the next.
FLUSH = 0.005
MEMO = 64 << 20  # bytes of terms that a worker keeps during a round

Leaves = tuple[Any, ...]  # arrays, or Scattered ones
Span = tuple[int, int]  # of symbols


class Held:
    """The parts of one slot, and the symbols that its holder evaluates."""

    def __init__(self, parts: Mapping[int, Any], symbols: Sequence[Row]) -> None:
        self.parts, self.symbols = parts, symbols
        self._again: frozenset[int] | None = None

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the parts, as far as they say so."""
        return sum(getattr(part, "nbytes", 0) for part in self.parts.values())

    @property
    def again(self) -> frozenset[int]:
        """The parts that several symbols have."""
        if self._again is None:
            uses = Counter(part for row in self.symbols for part in row.parts)
            self._again = frozenset(part for part, times in uses.items() if times > 1)
        return self._again


def grown(held: Held, more: Held) -> Held:
    """What a slot holds under another code: `more` has its symbols, and the parts that lacked."""
    wanted = {part for row in more.symbols for part in row.parts}
    kept = {part: value for part, value in held.parts.items() if part in wanted}
    return Held({**kept, **more.parts}, more.symbols)


def function(kept: Mapping[str, Any], key: Any) -> Callable[..., Any]:
    """The function kept under a key, unpickled here once; or itself, in the caller's process."""
    return load(key, kept[key]) if isinstance(key, str) else key


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


_NO_MEMO = _Memo(())


def worker_body(
    kept: Mapping[str, Any],
    x: Any,
    key: str,
    fn_key: Any,
    flush: float = FLUSH,
    span: Span | None = None,
) -> Iterator[Piece]:
    """Evaluate the symbols of a slot in order; each message is a run of them with their values.

    `span`: from which symbol on, and up to which; None for all.

    `flush`: seconds between two messages, at least; 0 where a delay model sets the time, and each
    symbol must cost what its terms do. Else a term of several symbols is evaluated once a round.
    """
    held: Held = kept[key]
    fn = function(kept, fn_key)
    begin, end = span or (0, len(held.symbols))
    memo = _Memo(held.again) if flush and held.again else _NO_MEMO
    here = fn is fn_key  # the caller's own, in the caller's process
    start, read, values = begin, 0, []
    shapes: Shapes | None = None
    several = False  # whether fn returns a tuple
    sent = time.perf_counter()
    rows = held.symbols if span is None else held.symbols[begin:end]
    for i, row in enumerate(rows, begin):
        value = None
        for j, part in enumerate(row.parts):
            known = memo.get(part)
            if known is None:
                term, several = leaves(fn, held.parts[part], x, part)
                if shapes != (own := tuple([one.shape for one in term])):
                    shapes = same_shapes(shapes, own, f"part {part}")
                if here or i + 1 < end or j + 1 < len(row.parts):
                    term = tuple([one.copy() for one in term])  # fn may write its next over this
                memo.keep(part, term)
                read += 1
            else:
                term = known
            value = add(value, term, 1.0 if row.coefficients is None else row.coefficients[j])
            if j + 1 < len(row.parts):
                yield Piece(None, None, read)  # a place to stop at
                read = 0
        assert value is not None
        values.append(value)
        last = i + 1 == end
        if last or time.perf_counter() - sent >= flush:
            kind = Last if last else Piece
            yield new(kind, ((start, i + 1), stack(values, several), read))
            start, read, values = i + 1, 0, []
            sent = time.perf_counter()
        else:
            yield Piece(None, None, read)
            read = 0


def leaves(fn: Callable[..., Any], part: Any, x: Any, number: int) -> tuple[Leaves, bool]:
    """fn's value for one part as a tuple, and whether it was one; what fn raises names the part."""
    try:
        value = fn(part, x)
        return plain(value), isinstance(value, tuple)
    except Exception as error:
        error.add_note(f"(kofn: in fn(part, x) for part {number})")
        raise


def plain(value: Any) -> Leaves:
    """What fn returned as a tuple of arrays, in types to add in; masks and labels are refused."""
    if not isinstance(value, tuple):
        return (_plain(value),)
    if not value or any(isinstance(one, tuple) for one in value):
        what = "a tuple is nested in it" if value else "an empty tuple is none"
        raise TypeError(f"fn must return an array or a tuple of arrays; {what}")
    return tuple(map(_plain, value))


def _plain(value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype.char in "dfDF":
        return value
    name = type(value).__name__
    if masked(value):
        raise TypeError(
            f"fn must return numbers that all count; it returned {name} with masked entries. "
            f"Return x.filled(0), or leave them out"
        )
    if hasattr(getattr(value, "index", None), "equals"):  # pandas
        raise TypeError(
            f"a sum adds entries by place and knows no labels; fn returned {name}. Return "
            f"x.to_numpy(), in an order that is the same for every part"
        )
    try:
        array = value if isinstance(value, Scattered) else np.asarray(value)
    except ValueError as error:
        raise TypeError(
            f"fn must return numbers, an array or a tuple of arrays; it returned {name}, of which "
            f"NumPy makes none: {error}"
        ) from None
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"fn must return numbers, an array or a tuple of arrays; it returned {name}"
            + (f" of type {array.dtype}" if array.shape else "")
        )
    kind = wide(array.dtype)
    return array if array.dtype == kind else array.astype(kind)


def masked(value: Any) -> bool:
    """Whether an array, or one in a sequence, has masked entries: NumPy would count them."""
    if isinstance(value, list | tuple):
        return any(map(masked, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def add(total: Leaves | None, new: Leaves, scale: float) -> Leaves:
    """total + scale · new, leaf by leaf; never in place, for fn may keep what it returned."""
    if scale != 1.0:
        new = tuple(scale * one for one in new)
    return new if total is None else tuple(a + b for a, b in zip(total, new, strict=True))


def stack(values: Sequence[Leaves], several: bool) -> Leaves | NDArray[Any]:
    """Values of several symbols as one: a leading axis on every leaf."""
    if len(values) == 1:
        stacked = tuple([one[None] for one in values[0]])
    else:
        stacked = tuple(np.stack(parts) for parts in zip(*values, strict=True))
    return stacked if several else stacked[0]
