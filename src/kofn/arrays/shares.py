"""Shares of a matrix in memory: dense or sparse, made when a worker needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..codes.mds import MDSCode
from .holders import ShareOf


def shares_of(A: NDArray[Any] | scipy.sparse.csr_array, code: MDSCode) -> ShareOf:
    """Return how to make any share of A. The matrix is kept, not copied."""
    if scipy.sparse.issparse(A):
        return lambda share: sparse_share(code, share, A)
    return lambda share: code.encode_share(share, A)


def sparse_share(code: MDSCode, share: int, A: Any) -> Any:
    """One share of a CSR matrix, as CSR with sorted indices: Σ coefficient · block.

    A parity share holds the non-zeros of up to k blocks: sparse shares are that much denser.
    """
    B, row = code.block_rows(A.shape[0]), code.row(share)
    total: Any = None
    for i in np.flatnonzero(row).tolist():
        block: Any = scipy.sparse.csr_array(A[i * B : (i + 1) * B])
        if block.shape[0] < B:
            block.resize((B, A.shape[1]))
        part = block if row[i] == 1.0 else block * A.dtype.type(row[i])
        total = part if total is None else total + part
    found = scipy.sparse.csr_array(total, dtype=A.dtype)
    found.sort_indices()
    return found
