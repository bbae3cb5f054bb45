"""Decision trees as terms of a sum. NumPy alone: workers need no scikit-learn to evaluate them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tree(NamedTuple):
    """A fitted tree: for each node its children (-1 for a leaf), its test, and its value (…, v).

    Inputs go left where input[feature] <= threshold; a missing value goes where `missing` says.
    """

    left: NDArray[np.intp]
    right: NDArray[np.intp]
    feature: NDArray[np.intp]
    threshold: NDArray[np.float64]
    missing: NDArray[np.bool_]
    value: NDArray[np.float64]

    def __call__(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """The values of the leaves that inputs (b, d) come to: (b, v). A step a level."""
        at = np.zeros(len(inputs), np.intp)
        going = np.flatnonzero(self.left[at] >= 0)
        while len(going):
            node = at[going]
            seen = inputs[going, self.feature[node]]
            down = np.where(np.isnan(seen), self.missing[node], seen <= self.threshold[node])
            at[going] = np.where(down, self.left[node], self.right[node])
            going = going[self.left[at[going]] >= 0]
        return self.value[at]


def terms(trees: Sequence[Tree], inputs: NDArray[Any]) -> NDArray[np.float64]:
    """A stack of trees' values for inputs (b, d): (trees, b, v)."""
    return np.stack([tree(inputs) for tree in trees])
