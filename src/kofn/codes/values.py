"""All source values of a code whose rows are sparse, where sums alone are not wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import splu

from .linear import Floats
from .peeling import SparseDecoder

PROBES = 8


class Values:
    """The k source values from the rows that a decoder has, once it is ready.

    The rows are factorised in the decoder's order, without any change of it: sparse but for the
    columns that peeling has put aside. eta is estimated by a few random vectors.
    """

    def __init__(self, decoder: SparseDecoder) -> None:
        keys, columns = decoder.order()
        self.keys, k = keys, decoder.k
        where, start = decoder.table.gather(keys)
        place = np.empty(k, np.intp)
        place[columns] = np.arange(k)
        self._rows = csr_array((np.ones(len(where)), place[where], start), shape=(k, k))
        self._place = place
        lu: Any = splu(
            self._rows.tocsc(),
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0,
            options={"Equil": False},
        )
        self._solve: Callable[[Floats], Floats] = lu.solve
        noise = np.random.default_rng(0).standard_normal((k, PROBES))
        spread = lu.solve(noise * np.sqrt(np.diff(start))[:, None])
        self.eta = float(np.linalg.norm(spread) / np.sqrt(PROBES * k))

    def of(self, replies: NDArray[Any]) -> Floats:
        """The values (k, *value) from the replies (k, *value) to `keys`, with one refinement."""
        flat = replies.reshape(len(replies), -1).astype(np.float64, copy=False)
        values = self._solve(np.ascontiguousarray(flat))
        values += self._solve(flat - self._rows @ values)
        return np.asarray(values[self._place].reshape(replies.shape))
