"""Shares of an array in memory: views where they are blocks, made two at a time where not."""

from __future__ import annotations

import numpy as np
import pytest

from kofn.arrays.shares import Plain, shares_of
from kofn.arrays.wide import plain
from kofn.codes.mds import MDSCode


@pytest.mark.parametrize("N", [1, 7, 39, 40, 41])
@pytest.mark.parametrize(("n", "k"), [(3, 1), (4, 4), (6, 4), (7, 3)])
def test_every_share_is_the_codes_own(n: int, k: int, N: int) -> None:
    code = MDSCode(n, k)
    A = np.random.default_rng(N).standard_normal((N, 5))
    share_of = shares_of(A, code, copied=True).share_of
    assert isinstance(share_of, Plain)
    orders = [list(range(n)), list(range(n))[::-1], [0, n - 1, *range(n), n - 1]]
    # Sums of k products each, in another order.
    bound = 2 * k * np.finfo(float).eps * np.abs(code.generator).max() * np.abs(A).max() * k
    for share in [share for order in orders for share in order]:
        value = share_of(share)
        np.testing.assert_allclose(value, code.encode_share(share, A), rtol=0, atol=bound)
        block = plain(code, share)
        whole = block is not None and (block + 1) * code.block_rows(N) <= N
        assert np.shares_memory(value, A) == whole
    share_of.clear()
    assert not share_of._ahead
