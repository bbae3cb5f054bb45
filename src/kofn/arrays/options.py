"""How a coded matrix multiplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..rounds import Late
from .shares import Shares
from .verify import Verify

TOLERANCE = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 1e-2}


@dataclass(frozen=True)
class Options:
    """How a coded matrix multiplies; see Cluster.encode."""

    tolerance: float | None = None
    check_finite: bool = True
    margin: int = 0
    late: Late | None = Late()  # noqa: RUF009 - frozen
    measured_loads: bool = True
    still: bool = False  # windows move nothing when workers leave or join
    verify: Verify | None = None
    # Where k and the margin are left to kofn: the shares for another k.
    recode: Callable[[int], Shares] | None = None
