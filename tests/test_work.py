"""What workers do with a share: slices to stop after, and few messages."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from kofn.arrays import work
from kofn.model import Last

RUNS = [((0, 23),), ((0, 5), (9, 20)), ((0, 4), (4, 9)), ((3, 4),), ((0, 4),)]


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("runs", RUNS, ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_long_product_may_stop_after_each_slice_and_sends_some_at_a_time(
    runs: tuple[tuple[int, int], ...],
    width: int | None,
    sparse: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "SLICE_WORK", 40)
    rng = np.random.default_rng(0)
    dense, w = rng.standard_normal((23, 10)), rng.standard_normal((10, width) if width else 10)
    share = scipy.sparse.csr_array(dense) if sparse else dense
    step = work.slice_rows(share, width or 1)
    pieces = list(work.product({"key": share}, w, "key", runs))
    sent = [piece for piece in pieces if piece.value is not None]
    rows = [row for piece in sent for a, b in piece.what for row in range(a, b)]
    assert rows == list(chain(*(range(*run) for run in runs)))
    # Each value has the rows of its runs; sums of ten products, in whichever order.
    np.testing.assert_allclose(
        np.concatenate([piece.value for piece in sent]), dense[rows] @ w, atol=1e-13
    )
    assert sum(piece.read for piece in pieces) == len(rows)
    assert max(piece.read for piece in pieces) <= step
    slices = len(list(work.slices(runs, step)))
    assert len(sent) == 1 if len(rows) <= step else len(sent) == -(-slices // work.SENT)
    # The end needs no message of its own: it is marked, or the number of pieces is known.
    assert len(pieces) == 1 or isinstance(pieces[-1], Last)
    if len(sent) == 1:  # as it was planned, which is quicker to note
        assert runs == ((0, 4), (4, 9)) or sent[0].what == runs


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_has_the_type_of_its_operand(
    sparse: bool, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 is converted a few rows at a time, also where it is a transpose."""
    monkeypatch.setattr(work, "CONVERTED", 40)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((23, 10)).astype(np.float32)
    share: Any = scipy.sparse.csr_array(A) if sparse else A
    share, A = (share.T, A.T) if turned else (share, A)
    for shape in (A.shape[1:], (A.shape[1], 3), (A.shape[1], 0)):
        b = rng.standard_normal(shape)
        found = work.times(share, b)
        assert found.dtype == np.float64
        # Sums of up to 23 products, in whichever order.
        np.testing.assert_allclose(found, A.astype(float) @ b, rtol=0, atol=1e-13)
        narrow = work.times(share.astype(np.float64), b.astype(np.float32))
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, found, rtol=0, atol=1e-4)
