"""U Vᵀ, not multiplied out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput


@dataclass(frozen=True, eq=False)
class LowRank:
    """U Vᵀ with U (N, r) and V (d, r); made by `low_rank`."""

    U: NDArray[Any]
    V: NDArray[Any]

    @property
    def T(self) -> LowRank:
        """V Uᵀ."""
        return LowRank(self.V, self.U)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return len(self.U), len(self.V)


def low_rank(U: object, V: object) -> LowRank:
    """Return U Vᵀ for `X += low_rank(U, V)`, without multiplying it out.

    U: (N, r) or (N,). V: (d, r) or (d,).
    """
    given = np.asarray(U), np.asarray(V)
    u, v = (a[:, None] if a.ndim == 1 else a for a in given)
    if u.ndim != 2 or v.ndim != 2 or u.shape[1] != v.shape[1]:
        raise BadInput(
            f"low_rank(U, V) takes U (N, r) and V (d, r) with the same r; got shapes "
            f"{given[0].shape} and {given[1].shape}. Did you mean low_rank(U, V.T)?"
        )
    return LowRank(u, v)
