"""Decoding straight into the result is what combining all replies gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kofn import checks
from kofn.arrays import decode, wide
from kofn.codes.mds import MDSCode
from kofn.rounds import Layout, fill


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 1), (2, 2), (6, 4), (7, 3), (20, 10)])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (200, 1), (53, 3), (3000, 1)])
@pytest.mark.parametrize("speeds", ["equal", "unequal"])
def test_few_numbers_are_decoded_in_few_calls(
    n: int, k: int, rows: int, width: int, dtype: type, speeds: str
) -> None:
    rng = np.random.default_rng([n, k, rows, width])
    code, shares = MDSCode(n, k), tuple(range(n))
    blocks: np.ndarray[Any, Any] = rng.standard_normal((k, rows, width)).astype(dtype)
    every: np.ndarray[Any, Any] = np.tensordot(code.generator, blocks.astype(np.float64), 1)
    every = every.astype(dtype)
    loads = None if speeds == "equal" else fill(range(1, n + 1), k)
    windows = Layout(k, fractions=loads).lay(shares, rows, offset=rows // 3)
    plan = decode.segments(code, shares, windows.cuts, windows.asked)
    mix = decode.mix(code, plan, windows, width)
    assert mix is not None
    replies = [
        (share, runs, np.concatenate([every[share, a:b] for a, b in runs]))
        for share, runs in windows.work.items()
    ]
    values = [value for _, _, value in replies]
    found = decode.combine_mixed(mix, values).reshape(k, rows, width)
    gathered = decode.gather(replies, windows.places, (n, rows, width))
    assert found.dtype == dtype
    eta = max(segment.weights.eta for segment in plan)
    # Both make the same sums of k products, in another order; a block that came is itself.
    bound = 4 * k * np.finfo(dtype).eps * eta * np.abs(blocks).max() * np.sqrt(k)
    np.testing.assert_allclose(found, decode.combine(plan, gathered), rtol=0, atol=bound)
    assert_came(code, plan, found, blocks)


def assert_came(
    code: MDSCode, plan: Sequence[decode.Segment], found: NDArray[Any], blocks: NDArray[Any]
) -> None:
    """Check that rows of a block of which just enough replies came are what its worker sent."""
    for first, last, places, _ in plan:
        for share in places.tolist() if len(places) == code.k else ():
            if (block := decode.plain(code, share)) is not None:
                assert np.array_equal(found[block, first:last], blocks[block, first:last])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 1), (2, 2), (6, 4), (20, 10)])
@pytest.mark.parametrize(("rows", "width"), [(700, 1), (300, 7), (4100, 32)])
def test_blocks_go_where_they_belong(n: int, k: int, rows: int, width: int, dtype: type) -> None:
    rng = np.random.default_rng([n, k, rows, width])
    code = MDSCode(n, k)
    blocks: np.ndarray[Any, Any] = rng.standard_normal((k, rows, width)).astype(dtype)
    coded = np.tensordot(code.generator, blocks.astype(np.float64), 1)
    every: np.ndarray[Any, Any] = coded.astype(dtype)
    cuts = np.unique(np.concatenate([[0, rows], rng.integers(1, rows, 5)]))
    have = np.zeros((n, len(cuts) - 1), dtype=bool)
    for column in have.T:  # k replies of some rows, more of others
        column[rng.permutation(n)[: rng.integers(k, min(n, k + 2) + 1)]] = True
    replies = [
        (share, ((int(cuts[j]), int(cuts[j + 1])),), every[share, cuts[j] : cuts[j + 1]].copy())
        for share in range(n)
        for j in np.flatnonzero(have[share])
    ]
    shares = tuple(range(n))
    plan = decode.segments(code, shares, cuts, have)
    found = wide.decode(code, plan, shares, replies, (rows, width))
    gathered = decode.gather(replies, {s: s for s in shares}, (n, rows, width))
    assert found.dtype == dtype
    eta = max(segment.weights.eta for segment in plan)
    # Both make the same sums of k products, in another order; a block that came is itself.
    bound = 4 * k * np.finfo(dtype).eps * eta * np.abs(blocks).max() * np.sqrt(k)
    np.testing.assert_allclose(found, decode.combine(plan, gathered), rtol=0, atol=bound)
    assert_came(code, plan, found, blocks)


def test_sums_of_squares_by_few_numbers_at_a_time() -> None:
    x = np.random.default_rng(0).standard_normal((5, 3 * checks.ON_ONE_THREAD + 7))
    assert checks.squares(x) == pytest.approx(float(np.vdot(x, x)), rel=1e-12)
    assert checks.length(x.T) == pytest.approx(float(np.linalg.norm(x)), rel=1e-12)
    x[3, -1] = np.inf
    assert not checks.is_finite(x)
    x[3, -1] = 1e200  # its square is infinite, it is not
    assert checks.is_finite(x)
