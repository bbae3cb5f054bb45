"""Shares of a matrix in memory: dense or sparse, made when a worker needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from .. import checks
from ..codes import AnyKOfN
from ..codes.mds import MDSCode
from ..errors import BadInput
from ..rounds.holders import ShareOf
from .coding import make_share
from .scales import Scales


def shares_of(A: Any, code: AnyKOfN, scales: Scales | None = None) -> ShareOf:
    """Return how to make any share of A, its rows divided by `scales`. It is kept, not copied.

    A sparse parity share holds the non-zeros of up to k blocks: it is that much denser.
    """
    plain = scales is None and not scipy.sparse.issparse(A)

    def share_of(share: int) -> Any:
        # Sums of huge entries may overflow: products look at what comes out.
        with np.errstate(over="ignore", invalid="ignore"):
            if plain:
                return code.encode_share(share, A)
            return make_share(A, code, share, scales=scales)

    return share_of


def threshold(k: object, n: object) -> MDSCode:
    """Return the code for a threshold k over n shares, or say what is wrong with them."""
    count = checks.whole(n, "n (shares)", 1)
    need = checks.whole(k, "k (the threshold)", 1)
    if need > count:
        raise BadInput(
            f"k must be at most the number of shares; got k={need} and n={count}. "
            f"Use k <= {count}, or more workers."
        )
    return MDSCode(count, need)
