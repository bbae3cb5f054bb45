"""Checks that any any-k-of-n code must pass; inherit them, give a fixture `code`."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from ..codes.linear import Decoder, EliminationDecoder, Weights, amplification, error_bound, solve
from ..errors import NotDecodable

MANY = 200  # sets of shares to look at; all of them where there are no more


class AnyKOfN(Protocol):
    """What a code must offer to be checked."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def generator(self) -> NDArray[np.float64]: ...
    def decoder(self) -> Decoder: ...
    def weights(self, shares: tuple[int, ...], /) -> Weights: ...


def share_sets(n: int, size: int, many: int = MANY) -> list[tuple[int, ...]]:
    """Sorted sets of `size` shares: all when there are at most `many`, else drawn."""
    if math.comb(n, size) <= many:
        return list(itertools.combinations(range(n), size))
    rng = np.random.default_rng(n * 1000 + size)
    draws = (rng.choice(n, size, replace=False).tolist() for _ in range(many))
    return [tuple(sorted(draw)) for draw in draws]


class CodeChecks:
    """Inherit as `class TestMyCode(CodeChecks)` and define the fixture `code`."""

    @pytest.fixture
    def code(self) -> AnyKOfN:
        raise NotImplementedError("define a fixture `code` that returns the code to check")

    def test_generator_is_n_by_k_and_cannot_be_changed(self, code: AnyKOfN) -> None:
        assert code.generator.shape == (code.n, code.k)
        assert code.generator.dtype == np.float64
        assert not code.generator.flags.writeable
        assert np.all(np.linalg.norm(code.generator, axis=1) > 0)

    def test_any_k_shares_recover_the_blocks(self, code: AnyKOfN) -> None:
        rng = np.random.default_rng(0)
        blocks = rng.standard_normal((code.k, 5))
        shares = dict(enumerate(code.generator @ blocks))
        for keys in share_sets(code.n, code.k):
            weights = code.weights(keys)
            assert weights.keys == keys
            error = np.linalg.norm(weights.combine(shares) - blocks) / np.linalg.norm(blocks)
            assert error <= weights.error_bound(code.k, np.float64)

    def test_more_shares_do_not_amplify_more(self, code: AnyKOfN) -> None:
        everyone = tuple(range(code.n))
        for keys in share_sets(code.n, code.k, 20):
            # Both etas carry their own rounding, which grows with eta.
            slack = 1 + error_bound(code.k, np.float64, code.weights(keys).eta)
            assert code.weights(everyone).eta <= code.weights(keys).eta * slack

    def test_fast_decoder_agrees_with_elimination(self, code: AnyKOfN) -> None:
        rng = np.random.default_rng(1)
        for keys in share_sets(code.n, code.k, 50):
            fast, general = code.decoder(), EliminationDecoder(code.k, "all")
            for key in rng.permutation(keys).tolist():
                row = code.generator[key]
                assert fast.offer(key, row) == general.offer(key, row)
                assert fast.offer(key, row) == fast.ready  # a second time changes nothing
            assert fast.ready
            assert fast.arrived == general.arrived
            ours, theirs = fast.weights(), general.weights()
            assert sorted(ours.keys) == sorted(theirs.keys) == list(keys)
            order = [theirs.keys.index(key) for key in ours.keys]
            gap = np.linalg.norm(ours.matrix - theirs.matrix[:, order])
            bound = error_bound(code.k, np.float64, ours.eta)
            assert gap <= 2 * bound * np.linalg.norm(ours.matrix)
            assert abs(ours.eta - theirs.eta) <= 2 * bound * ours.eta

    def test_eta_does_not_change_with_row_scaling(self, code: AnyKOfN) -> None:
        rng = np.random.default_rng(2)
        for keys in share_sets(code.n, min(code.n, code.k + 1), 50):
            rows = code.generator[list(keys)]
            matrix, eta = solve(rows)
            _, scaled = solve(rows * 10.0 ** rng.uniform(-4, 4, (len(keys), 1)))
            assert abs(scaled - eta) <= 2 * error_bound(code.k, np.float64, eta) * eta
            assert math.isclose(amplification(rows, matrix), eta, rel_tol=1e-12)

    def test_below_k_shares_is_an_error(self, code: AnyKOfN) -> None:
        keys = tuple(range(code.k - 1))
        decoder = code.decoder()
        for key in keys:
            assert not decoder.offer(key, code.generator[key])
        for ask in (decoder.weights, lambda: code.weights(keys)):
            with pytest.raises(NotDecodable) as caught:
                ask()
            assert caught.value.arrived == list(keys)
            assert caught.value.need == code.k

    def test_pickles(self, code: AnyKOfN) -> None:
        again = pickle.loads(pickle.dumps(code))
        assert again == code
        assert np.array_equal(again.generator, code.generator)
        keys = tuple(range(code.k))
        weights = pickle.loads(pickle.dumps(code.weights(keys)))
        assert np.array_equal(weights.matrix, code.weights(keys).matrix)
