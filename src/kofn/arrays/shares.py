"""Shares of a matrix in memory: dense or sparse, made when a worker needs one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from .. import checks
from ..codes import AnyKOfN
from ..codes.mds import MDSCode
from ..errors import BadInput
from ..rounds.holders import ShareOf
from .coding import make_share
from .decode import DataCode
from .scales import Scales


@dataclass(frozen=True)
class Shares:
    """What a coded matrix must know of its shares, wherever they are.

    `share_of(s)` is share s, (ceil(N / k), d), or a Build that a worker runs to have it. `scales`
    is what the rows were divided by before they were coded.
    """

    code: DataCode
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    share_of: ShareOf
    sparse: bool = False
    scales: Scales | None = None


def shares_of(A: Any, code: AnyKOfN, scales: Scales | None = None) -> Shares:
    """Return the shares of A, its rows divided by `scales`. It is kept, not copied.

    A sparse parity share holds the non-zeros of up to k blocks: it is that much denser.
    """
    sparse = bool(scipy.sparse.issparse(A))
    plain = scales is None and not sparse

    def share_of(share: int) -> Any:
        # Sums of huge entries may overflow: products look at what comes out.
        with np.errstate(over="ignore", invalid="ignore"):
            if plain:
                return code.encode_share(share, A)
            return make_share(A, code, share, scales=scales)

    return Shares(code, A.shape, A.dtype, share_of, sparse, scales)


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
