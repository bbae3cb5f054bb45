"""Shares of a matrix in memory: dense or sparse, made when a worker needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from ..codes.mds import MDSCode
from ..rounds.holders import ShareOf
from .coding import make_share


def shares_of(A: Any, code: MDSCode) -> ShareOf:
    """Return how to make any share of A. The matrix is kept, not copied.

    A sparse parity share holds the non-zeros of up to k blocks: it is that much denser.
    """
    sparse = scipy.sparse.issparse(A)

    def share_of(share: int) -> Any:
        # Sums of huge entries may overflow: products look at what comes out.
        with np.errstate(over="ignore", invalid="ignore"):
            return make_share(A, code, share) if sparse else code.encode_share(share, A)

    return share_of
