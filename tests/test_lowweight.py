"""Low-weight codes: any k of n shares are enough, and all of them are sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import kofn
from kofn.arrays.coding import make_share
from kofn.codes import LowWeightCode, MDSCode
from kofn.testing import CodeChecks


class TestLowWeightCode(CodeChecks):
    @pytest.fixture(params=[(3, 1), (4, 4), (6, 4), (8, 6)])
    def code(self, request: Any) -> LowWeightCode:
        return LowWeightCode(*request.param)


@pytest.mark.parametrize(("n", "k", "weight"), [(3, 1, 1), (6, 6, 1), (6, 4, 2), (20, 18, 3)])
def test_shares_mix_as_few_blocks_as_can_be(n: int, k: int, weight: int) -> None:
    code = LowWeightCode(n, k)
    mixed = np.count_nonzero(code.generator, axis=1)
    assert code.weight == weight == -(-k * (n - k + 1) // n)
    assert (mixed == weight).all()
    # Every block reaches the n - k + 1 shares without which it could be lost with the others.
    assert (np.count_nonzero(code.generator, axis=0) >= n - k + 1).all()


def test_sparse_shares_stay_sparse_and_products_exact() -> None:
    rng = np.random.default_rng(3)
    A: Any = sp.random_array((1800, 90), density=0.02, format="csr", random_state=rng)
    w = rng.standard_normal(90)
    most = {}
    for code in (LowWeightCode(20, 18), MDSCode(20, 18)):
        with kofn.connect("virtual", workers=20) as cluster:
            X = cluster.encode(A, code=code)
            for lost in (0, 1):  # of an MDSCode: two plain blocks
                cluster.engine.lose(lost)
            y = X @ w
            assert X.report.error_bound is not None
            error = np.linalg.norm(y - A @ w) / (np.linalg.norm(A.toarray()) * np.linalg.norm(w))
            assert error <= X.report.error_bound

        most[type(code)] = max(make_share(A, code, share).nnz for share in range(20))
    # No share has more entries than its blocks have together; a dense parity share has most of 18.
    assert most[LowWeightCode] <= 4 * A.nnz / 18 < most[MDSCode] / 3


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(kofn.BadInput, match="1 <= k <= n"):
        LowWeightCode(3, 4)
