"""A sum of values that come one by one, in a type that holds them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import BadInput

Shapes = tuple[tuple[int, ...], ...]


class Total:
    """Adds up tuples of arrays, in place; what stands for an array may be added too (Scattered).

    A value of another type makes the total wider: its type must not depend on who was first.
    `least`: a type that it has at least. Values must have the same shapes: see `same_shapes`.
    """

    def __init__(self, least: DTypeLike | None = None) -> None:
        self.leaves: list[NDArray[Any]] | None = None
        self._least = least

    def add(self, value: Sequence[Any]) -> None:
        """Add a value."""
        if self.leaves is None:
            least = self._least
            kinds = [least and np.result_type(one.dtype, least) for one in value]
            self.leaves = [np.array(one, kind) for one, kind in zip(value, kinds, strict=True)]
            return
        self._apply(np.add, value)

    def subtract(self, value: Sequence[Any]) -> None:
        """Take out a value that was added."""
        self._apply(np.subtract, value)

    def _apply(self, ufunc: np.ufunc, value: Sequence[Any]) -> None:
        assert self.leaves is not None
        for i, one in enumerate(value):
            total = self.leaves[i]
            if one.dtype != total.dtype:
                kind = np.result_type(total.dtype, one.dtype)
                self.leaves[i] = total = total.astype(kind, copy=False)
            ufunc(total, one, total)


def same_shapes(before: Shapes | None, shapes: Shapes, who: str) -> Shapes:
    """The shapes of a value, after a look whether they are those before."""
    if before is not None and shapes != before:
        raise BadInput(
            f"fn must return the same shapes for every part; {who} returned {list(shapes)}, "
            f"another {list(before)}. Let fn return arrays whose shape does not depend on the part."
        )
    return shapes
