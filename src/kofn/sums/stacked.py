"""Sums of many small terms: fn takes a stack of parts at a time, in few calls.

Runs on the workers; imports nothing heavy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes.total import Shapes, same_shapes
from ..errors import BadInput
from ..model import Last, Piece
from .work import MEMO, Held, Leaves, Span, function, masked, plain

MOST = 4096  # symbols in one call of fn


class Stack:
    """The parts of a slot on top of each other, and its symbols in their numbering."""

    def __init__(self, held: Held, listed: bool) -> None:
        numbers = sorted(held.parts)
        self.parts = _pile([held.parts[i] for i in numbers], listed)
        place = {number: i for i, number in enumerate(numbers)}
        rows = held.symbols
        self.where = np.array([place[part] for row in rows for part in row.parts], np.intp)
        self.start = np.concatenate([[0], np.cumsum([len(row.parts) for row in rows])])
        self.numbers = np.array(numbers)
        self.again = len(self.where) > len(numbers)  # whether several symbols have a part
        self.coefficients: NDArray[np.float64] | None = None
        if any(row.coefficients is not None for row in rows):
            flat = [c for row in rows for c in row.coefficients or [1.0] * len(row.parts)]
            self.coefficients = np.array(flat)

    def at(self, first: int, last: int) -> NDArray[np.intp]:
        """Where the parts of the symbols `first` up to `last` are, end to end."""
        return self.where[self.start[first] : self.start[last]]

    def take(self, at: NDArray[np.intp]) -> Any:
        """The parts at these places."""
        return _taken(self.parts, at)

    def add(self, first: int, last: int, value: Leaves) -> Leaves:
        """The symbols' values from those of their parts."""
        a, b = self.start[first], self.start[last]
        if self.coefficients is not None:
            by = self.coefficients[a:b]
            value = tuple(leaf * by.reshape(-1, *[1] * (leaf.ndim - 1)) for leaf in value)
        starts = self.start[first:last] - a
        return tuple(np.add.reduceat(leaf, starts, axis=0) for leaf in value)


def worker_body(
    kept: Mapping[str, Any],
    x: Any,
    key: str,
    fn_key: Any,
    flush: float,
    listed: bool,
    span: Span | None = None,
) -> Iterator[Piece]:
    """Evaluate the symbols of a slot in order, as many at a time as take about `flush` seconds.

    A term that several symbols have is evaluated once a round. With `flush` 0 a delay model
    sets the time, and each symbol costs what its terms do.
    """
    held: Held = kept[key]
    fn = function(kept, fn_key)
    stack = held.__dict__.get("stack")
    if stack is None:
        stack = held.__dict__["stack"] = Stack(held, listed)
    terms = _Terms(fn, x, stack, MEMO if flush and stack.again else 0)
    (first, symbols), many = span or (0, len(held.symbols)), 1
    while first < symbols:
        began = time.perf_counter()
        last = min(symbols, first + many)
        leaves, count = terms.at(stack.at(first, last))
        value = stack.add(first, last, leaves)
        kind = Last if last == symbols else Piece
        yield kind((first, last), value if terms.several else value[0], count)
        first = last
        spent = time.perf_counter() - began
        if spent < flush / 2 and flush:
            many = min(2 * many, MOST)
        elif spent > 2 * flush:
            many = max(1, many // 2)


class _Terms:
    """fn's values for parts, each evaluated once as long as all of them fit into `most` bytes."""

    def __init__(self, fn: Any, x: Any, stack: Stack, most: int) -> None:
        self.fn, self.x, self.stack, self.most = fn, x, stack, most
        self.several = False  # whether fn returns a tuple
        self.known = np.zeros(len(stack.numbers), bool)
        self.kept: list[NDArray[Any]] | None = None
        self.shapes: Shapes | None = None

    def at(self, at: NDArray[np.intp]) -> tuple[Leaves, int]:
        """The values of the parts at these places, and how many were evaluated for it."""
        if not self.most:
            return self._evaluated(at), len(at)
        new = np.unique(at[~self.known[at]])
        if len(new):
            leaves = self._evaluated(new)
            if self.kept is None:
                many = len(self.known)
                if many * sum(leaf[0].nbytes for leaf in leaves) > self.most:
                    self.most = 0
                    return self.at(at)
                self.kept = [np.empty((many, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            for i, leaf in enumerate(leaves):
                kind = np.result_type(self.kept[i], leaf)  # stacks may differ in it
                self.kept[i] = self.kept[i].astype(kind, copy=False)
                self.kept[i][new] = leaf
            self.known[new] = True
        assert self.kept is not None
        return tuple(kept[at] for kept in self.kept), len(new)

    def _evaluated(self, at: NDArray[np.intp]) -> Leaves:
        values = self.fn(self.stack.take(at), self.x)
        self.several = isinstance(values, tuple)
        leaves = _leaves(values, len(at))
        shapes = tuple(leaf.shape[1:] for leaf in leaves)
        self.shapes = same_shapes(self.shapes, shapes, f"a stack of {len(at)}")
        return leaves


def _leaves(value: Any, count: int) -> Leaves:
    """What fn returned, as arrays with a row for each part."""
    arrays = tuple(np.asarray(one) for one in plain(value))
    for one in arrays:
        if one.ndim == 0 or len(one) != count:
            raise ValueError(
                f"with vectorised=True fn is given a stack of {count} parts and must return a row "
                f"for each; it returned shape {one.shape}"
            )
    return arrays


def _taken(pile: Any, at: NDArray[np.intp]) -> Any:
    """What lies at these places of a pile."""
    if isinstance(pile, tuple):
        return tuple(_taken(one, at) for one in pile)
    return [pile[i] for i in at.tolist()] if isinstance(pile, list) else pile[at]


def _pile(parts: Sequence[Any], listed: bool) -> Any:
    """Parts on top of each other: arrays are stacked, anything else stays a list.

    Rows cut one by one from an array are rows again, not arrays of one row each.
    """
    if isinstance(parts[0], tuple) and not listed:
        return tuple(_pile([part[i] for part in parts], False) for i in range(len(parts[0])))
    if not isinstance(parts[0], np.ndarray):
        return list(parts)
    numpy: Any = np.ma if masked(parts) else np  # NumPy's own would leave masks out
    if not listed and all(len(part) == 1 for part in parts):
        return numpy.concatenate(parts)
    return numpy.stack(parts)


def check(shapes: Sequence[tuple[int, ...] | None]) -> None:
    """Refuse parts that cannot be stacked; None stands for a part that is no array."""
    if all(shape is None for shape in shapes):
        return
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            both = ["no array" if one is None else one for one in (shapes[0], shape)]
            raise BadInput(
                f"with vectorised=True parts are stacked, so all have one shape; part 0 has "
                f"{both[0]}, part {i} has {both[1]}. Make them equal, or leave vectorised out."
            )
