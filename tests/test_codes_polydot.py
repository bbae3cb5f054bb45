"""PolyDot: any threshold of replies decodes either product, one fewer does not."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import examples

import kofn
from kofn.arrays.grid import encode_grid
from kofn.codes import EliminationDecoder
from kofn.codes.polydot import PolyDotCode, PolyDotPass
from kofn.codes.threshold import mix
from kofn.engines.virtual import VirtualEngine
from kofn.testing import Faults


@st.composite
def codes(draw: st.DrawFn) -> PolyDotCode:
    small = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (3, 2), (2, 3)]
    m, p = draw(st.sampled_from([*small, (3, 3), (4, 4)]))
    least = max(m * (2 * p - 1), p * (2 * m - 1))
    # Points of a large grid take seconds to find: two numbers of workers are enough.
    spare = st.integers(0, 4) if m * p < 9 else st.just(2)
    return PolyDotCode(least + draw(spare), m, p)


def replies(
    one: PolyDotPass, A: NDArray[Any], x: NDArray[Any], live: tuple[int, ...]
) -> dict[int, NDArray[Any]]:
    """What workers would send: the coded block times the coded operand."""
    found = {}
    for s in live:
        share = one.code.encode_share(s, A)
        coded = mix(one.operand(s), x)
        found[s] = (share if one.kind == "forward" else share.T) @ coded
    return found


@examples(100)
@given(codes(), st.data())
def test_random_live_sets_decode_either_product_to_the_bound(
    code: PolyDotCode, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    one = data.draw(st.sampled_from([code.forward, code.backward]))
    N, d, c = (data.draw(st.integers(1, 30)) for _ in range(3))
    A = rng.standard_normal((N, d))
    target = A if one.kind == "forward" else A.T
    x = rng.standard_normal((target.shape[1], c))
    count = data.draw(st.integers(one.k, code.n))
    live = tuple(sorted(rng.permutation(code.n)[:count].tolist()))
    decoder = one.decoder()
    for number, s in enumerate(live, 1):
        assert decoder.offer(s, one.row(s)) == (number >= one.k)
    weights = decoder.weights()
    blocks = weights.combine(replies(one, A, x, live)).reshape(-1, c)
    exact = target @ x
    error = np.linalg.norm(blocks[: len(target)] - exact)
    bound = weights.error_bound(target.shape[1], np.float64)
    assert error <= bound * np.linalg.norm(A) * np.linalg.norm(x)
    assert blocks[len(target) :] == pytest.approx(0, abs=bound * 1e3)  # padding


@pytest.mark.parametrize(("n", "m", "p"), [(8, 2, 2), (7, 1, 3), (7, 3, 1), (11, 3, 2), (11, 2, 3)])
def test_the_threshold_is_exactly_as_stated(n: int, m: int, p: int) -> None:
    code = PolyDotCode(n, m, p)
    assert code.forward.k == m * (2 * p - 1)
    assert code.backward.k == p * (2 * m - 1)
    assert code.stored.k == m * p
    assert code.k == max(code.forward.k, code.backward.k)
    for one in (code.forward, code.backward, code.stored):
        rows = np.array([one.row(s) for s in range(n)])
        wanted = np.eye(one.k)[list(one.wanted)]
        for live in combinations(range(n), one.k):
            assert np.linalg.matrix_rank(rows[list(live)]) == one.k
            np.testing.assert_allclose(
                one.weights(live).matrix @ rows[list(live)], wanted, atol=1e-8
            )
        for live in combinations(range(n), one.k - 1):
            # One fewer: no wanted coefficient lies in the span, so none can be had.
            span = np.linalg.qr(rows[list(live)].T)[0]
            assert (np.linalg.norm(wanted - wanted @ span @ span.T, axis=1) > 1e-6).all()
            with pytest.raises(kofn.NotDecodable, match=f"needs {one.k} replies"):
                one.weights(live)


@pytest.mark.parametrize(("m", "p"), [(2, 2), (3, 3), (4, 4)])
def test_products_of_a_grid_are_right_to_1e_8_from_any_replies(m: int, p: int) -> None:
    """With one reply more than the threshold, and with just the threshold, at random."""
    code, rng = (
        PolyDotCode(max(m * (2 * p - 1), p * (2 * m - 1)) + 2, m, p),
        np.random.default_rng(3),
    )
    A = rng.standard_normal((120, 96))
    for one in (code.forward, code.backward):
        target = A if one.kind == "forward" else A.T
        x = rng.standard_normal((target.shape[1], 3))
        every = replies(one, A, x, tuple(range(code.n)))
        for trial in range(40):
            live = rng.permutation(code.n)[: one.k + trial % 2].tolist()
            made = one.weights(live).combine({s: every[s] for s in live}).reshape(-1, 3)
            error = np.linalg.norm(made[: len(target)] - target @ x)
            assert error <= 1e-8 * np.linalg.norm(target @ x)


def test_weights_are_those_of_the_general_decoder() -> None:
    code = PolyDotCode(9, 2, 2)
    for one in (code.forward, code.backward):
        general = EliminationDecoder(one.k)
        for s in range(1, 9):
            general.offer(s, one.row(s))
        all_of_them = general.weights().matrix[list(one.wanted)]
        np.testing.assert_allclose(one.weights(tuple(range(1, 9))).matrix, all_of_them, atol=1e-10)


@pytest.mark.parametrize("n", range(6, 13))
def test_two_by_two_is_well_placed(n: int) -> None:
    code = PolyDotCode(n, 2, 2)
    u, v = code.points
    assert np.abs([u, v]).max() <= 1
    assert len({*zip(u.tolist(), v.tolist(), strict=True)}) == n
    for one in (code.forward, code.backward):
        for first in range(n):
            window = tuple(sorted((first + i) % n for i in range(one.k)))
            assert one.weights(window).eta < 100  # no extra reply while nobody is lost


def test_bad_codes_get_one_clear_error() -> None:
    with pytest.raises(kofn.BadInput, match="2 x 3 grid needs 10 workers: 10 forward, 9 backward"):
        PolyDotCode(9, 2, 3)
    with pytest.raises(kofn.BadInput, match="m of PolyDotCode must be a whole number >= 1; got 0"):
        PolyDotCode(9, 0, 3)
    with pytest.raises(kofn.BadInput, match="share 6 was asked for"):
        PolyDotCode(6, 2, 2).row(6)
    with kofn.connect("virtual", workers=5) as cluster:
        with pytest.raises(kofn.BadInput, match="needs 6 workers"):
            encode_grid(cluster, np.ones((4, 4)))
        with pytest.raises(kofn.BadInput, match=r"n \(shares\) must be a whole number >= 5"):
            encode_grid(cluster, np.ones((4, 4)), n=4)
        with pytest.raises(kofn.BadInput, match="grid takes a dense matrix"):
            encode_grid(cluster, scipy.sparse.eye_array(4, format="csr"))
        X = encode_grid(cluster, np.ones((4, 4)), (1, 2))
        with pytest.raises(kofn.CannotDo, match="cut by rows"):
            X.iterate(lambda w: w, np.ones(4))


@examples(40)
@given(st.data())
def test_a_grid_multiplies_and_moves_through_losses_and_joins(data: st.DataObject) -> None:
    m, p = data.draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 2)]))
    need = max(m * (2 * p - 1), p * (2 * m - 1))
    n = need + data.draw(st.integers(0, 3))
    N, d = data.draw(st.tuples(st.integers(1, 60), st.integers(1, 60)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    faults, spare = Faults(), n - need
    for round in range(1, 7):
        if spare and data.draw(st.booleans()):
            faults = faults.lose(worker=data.draw(st.integers(0, n - 1)), round=round)
            spare -= 1
        if data.draw(st.booleans()):
            faults = faults.join(round=round)
    A = rng.standard_normal((N, d))
    with kofn.connect(faults.on(VirtualEngine(n))) as cluster:
        X = encode_grid(cluster, A, (m, p))
        velocity = np.zeros_like(A)
        for _ in range(4):
            for operand, target, Y in ((d, A, X), (N, A.T, X.T)):
                x = rng.standard_normal((operand, 3))
                found = Y @ x
                bound = X.report.error_bound
                assert bound is not None
                scale = np.linalg.norm(A) * np.linalg.norm(x)
                # Up to three updates of a share and its velocity, and a rebuilding: 10 roundings.
                assert np.linalg.norm(found - target @ x) <= 10 * bound * scale
                assert not X.report.restarted
            U, V = rng.standard_normal((N, 2)), rng.standard_normal((d, 2))
            X.move(kofn.low_rank(U, V), 0.5)
            velocity = 0.5 * velocity + U @ V.T
            A = A + velocity
        np.testing.assert_allclose(X.toarray(), A, atol=1e-9)
        X += np.ones((N, d))
        np.testing.assert_allclose(X.T @ np.ones(N), (A + 1).sum(axis=0), atol=1e-8)


def test_each_worker_reads_its_part_of_a_small_share() -> None:
    A = np.random.default_rng(0).standard_normal((400, 240))
    with kofn.connect("virtual", workers=12) as cluster:
        X = encode_grid(cluster, A)
        X @ np.ones(240)
        # 6 of 12 read each of the 200 rows of a share, so each worker reads half of them.
        assert set(X.report.rows_read.values()) == {100}
        X.T @ np.ones(400)
        assert set(X.report.rows_read.values()) == {60}  # of its 120 columns
        for worker in range(6):
            cluster.lose(worker)
        np.testing.assert_allclose(X @ np.ones(240), A.sum(axis=1), atol=1e-9)
        assert set(X.report.rows_read.values()) == {200}
        cluster.lose(6)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            X @ np.ones(240)
