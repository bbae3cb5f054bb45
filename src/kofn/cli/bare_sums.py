"""Plain mpi4py loops for sums of gradients: what kofn is held against (the ways: bare_mpi.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import bare_mpi
from .bare import WORKERS, Rows

Floats = NDArray[np.float64]


class Slopes(Rows):
    """Some rows, and the gradient of ½‖rows · w‖²."""

    def product(self, w: Floats) -> Floats:
        return np.asarray(self.rows.T @ (self.rows @ w))


def main(folder: str, seconds: float) -> None:
    """Every rank: rank 0 holds no rows."""
    bare_mpi.run(
        folder,
        seconds,
        Slopes,
        lambda rows, columns: columns,
        lambda replies: replies.reshape(WORKERS, -1).sum(axis=0),
    )
