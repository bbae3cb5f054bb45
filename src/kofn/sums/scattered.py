"""Values of a sum that are mostly zero: only the other entries travel and are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput


class Scattered:
    """An array (length,) that is `values` at `indices` and zero elsewhere.

    For fn of `parts.sum`: a gradient that touches few of many parameters costs in proportion to
    those, on the way and at the master. Values of a repeated index add up. The sum is an array.
    """

    __slots__ = ("length", "pieces")

    def __init__(self, indices: NDArray[Any], values: NDArray[Any], length: int) -> None:
        if np.ma.is_masked(indices) or np.ma.is_masked(values):
            raise BadInput(
                "Scattered takes numbers that all count; got masked entries. Leave them out, or "
                "fill them with zeros."
            )
        at, what = np.asarray(indices), np.asarray(values)
        if at.ndim != 1 or at.shape != what.shape or at.dtype.kind not in "iu":
            raise BadInput(
                f"Scattered takes as many whole-numbered indices as values; got {at.dtype} "
                f"{at.shape} and {what.shape}."
            )
        if at.size and not (at.min() >= 0 and at.max() < length):
            raise BadInput(f"indices must be from 0 to {length - 1}; got {at.min()} to {at.max()}.")
        if at.size > 1 and not (at[1:] > at[:-1]).all():
            # `total[at] += what` would keep but one of those that repeat.
            once, where = np.unique(at, return_inverse=True)
            if once.size < at.size:
                summed = np.zeros(once.size, wide(what.dtype))
                np.add.at(summed, where, what)
                at, what = once, summed
        self.pieces: tuple[tuple[NDArray[Any], NDArray[Any]], ...] = ((at, what),)
        self.length = int(length)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that it stands for."""
        return (self.length,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""
        return np.result_type(*(what for _, what in self.pieces))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Scattered) and other.length == self.length:
            return _made((*self.pieces, *other.pieces), self.length)
        return np.asarray(self) + other

    def __mul__(self, scale: float) -> Scattered:
        return _made(tuple((at, scale * what) for at, what in self.pieces), self.length)

    __rmul__ = __mul__

    def astype(self, dtype: np.dtype[Any]) -> Scattered:
        """The same, its values of another type."""
        pieces = tuple((at, what.astype(dtype, copy=False)) for at, what in self.pieces)
        return _made(pieces, self.length)

    def copy(self) -> Scattered:
        """The same, in memory of its own."""
        pieces = tuple((at.copy(), what.copy()) for at, what in self.pieces)
        return _made(pieces, self.length)

    def __getitem__(self, index: None) -> Rows:
        return Rows([self])

    def __reduce__(self) -> Any:
        return _made, (self.pieces, self.length)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        array = np.zeros(self.length, self.dtype if dtype is None else dtype)
        self.add_to(array)
        return array

    def add_to(self, total: NDArray[Any], scale: float = 1.0) -> None:
        """total += scale · this, in place. Raises TypeError where its type does not hold that."""
        for at, what in self.pieces:
            if not np.can_cast(what.dtype, total.dtype, "same_kind"):  # += would cut it off
                raise TypeError(f"{what.dtype} values cannot be added to an array of {total.dtype}")
            total[at] += what if scale == 1.0 else scale * what

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.get("out", (None,))[0]
        if method == "__call__" and ufunc in (np.add, np.subtract) and out is inputs[0]:
            self.add_to(out, 1.0 if ufunc is np.add else -1.0)
            return out
        dense = [np.asarray(one) if isinstance(one, Scattered) else one for one in inputs]
        return getattr(ufunc, method)(*dense, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.stack and all(isinstance(one, Scattered) for one in args[0]):
            return Rows(list(args[0]))
        if func is np.result_type:
            return func(*(one.dtype if isinstance(one, Scattered) else one for one in args))
        return func(*(_dense(one) for one in args), **kwargs)


class Rows:
    """Several of them, one after the other: shape (count, length)."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Scattered]) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """How many there are, and how long each is."""
        return (len(self.rows), self.rows[0].length)

    def __getitem__(self, index: int) -> Scattered:
        return self.rows[index]


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that values are added in: whole numbers would wrap around, halves lose digits."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.result_type(dtype, np.float32) if dtype.kind in "fc" else dtype


def _made(pieces: tuple[tuple[NDArray[Any], NDArray[Any]], ...], length: int) -> Scattered:
    """A `Scattered` of pieces that were checked before."""
    scattered = Scattered.__new__(Scattered)
    scattered.pieces, scattered.length = pieces, length
    return scattered


def _dense(one: Any) -> Any:
    if isinstance(one, Scattered):
        return np.asarray(one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return type(one)(_dense(item) for item in one)  # type: ignore[call-arg]
    return one
