"""Checks that any code must pass; inherit them, give a fixture `code`.

`CodeChecks` is for any-k-of-n codes (`cluster.encode(A, code=...)`), `SumCodeChecks` for codes of
sums (`cluster.parts(data, code)`).
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ..cluster import connect
from ..codes import AnyKOfN, Assignment, EliminationDecoder, SumCode
from ..codes.linear import amplification, error_bound, solve
from ..errors import NotDecodable, OutOfSymbols, TooFewWorkers

MANY = 200  # sets of shares to look at; all of them where there are no more


def share_sets(n: int, size: int, many: int = MANY) -> list[tuple[int, ...]]:
    """Sorted sets of `size` shares: all when there are at most `many`, else drawn."""
    if math.comb(n, size) <= many:
        return list(itertools.combinations(range(n), size))
    rng = np.random.default_rng(n * 1000 + size)
    draws = (rng.choice(n, size, replace=False).tolist() for _ in range(many))
    return [tuple(sorted(draw)) for draw in draws]


class CodeChecks:
    """Inherit as `class TestMyCode(CodeChecks)` and define the fixture `code`: an AnyKOfN."""

    @pytest.fixture
    def code(self) -> AnyKOfN:
        """The code to check."""
        raise NotImplementedError("define a fixture `code` that returns the code to check")

    def test_generator_is_n_by_k_and_cannot_be_changed(self, code: AnyKOfN) -> None:
        assert code.generator.shape == (code.n, code.k)
        assert code.generator.dtype == np.float64
        assert not code.generator.flags.writeable
        assert np.isfinite(code.generator).all()
        assert np.all(np.linalg.norm(code.generator, axis=1) > 0)

    def test_any_k_shares_recover_the_blocks(self, code: AnyKOfN) -> None:
        rng = np.random.default_rng(0)
        blocks = rng.standard_normal((code.k, 5))
        shares = dict(enumerate(code.generator @ blocks))
        for keys in share_sets(code.n, code.k):
            weights = code.weights(keys)
            assert weights.keys == keys
            error = np.linalg.norm(weights.combine(shares) - blocks) / np.linalg.norm(blocks)
            assert error <= weights.error_bound(code.k, np.float64) < 1  # else no digit is left

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
        assert hash(again) == hash(code)
        assert np.array_equal(again.generator, code.generator)
        keys = tuple(range(code.k))
        weights = pickle.loads(pickle.dumps(code.weights(keys)))
        assert np.array_equal(weights.matrix, code.weights(keys).matrix)

    def test_products_on_a_cluster_of_which_k_workers_are_left(self, code: AnyKOfN) -> None:
        rng = np.random.default_rng(3)
        A = rng.standard_normal((3 * code.k + 1, 4))
        w, z = rng.standard_normal(4), rng.standard_normal(len(A))
        with connect("virtual", workers=code.n) as cluster:
            X = cluster.encode(A, code=code, tolerance=float("inf"))
            for lost in (0, code.n - code.k):
                for worker in range(lost):
                    cluster.lose(worker)
                for product, exact, operand in ((X @ w, A @ w, w), (X.T @ z, A.T @ z, z)):
                    size = np.linalg.norm(A) * np.linalg.norm(operand)
                    bound = X.report.error_bound
                    assert bound is not None
                    assert np.linalg.norm(product - exact) <= bound * size


Values = dict[int, NDArray[Any]]


class SumCodeChecks:
    """Inherit as `class TestMyCode(SumCodeChecks)` and define the fixture `code`: a SumCode.

    `sizes` are the pairs (parts, workers) that it is tried with; say others where it needs them.
    """

    sizes: tuple[tuple[int, int], ...] = ((12, 6), (25, 6))

    @pytest.fixture
    def code(self) -> SumCode:
        """The code to check."""
        raise NotImplementedError("define a fixture `code` that returns the code to check")

    @pytest.fixture
    def assignments(self, code: SumCode) -> list[Assignment]:
        """The code for each of the sizes."""
        return [code.assign(m, n) for m, n in self.sizes]

    def test_it_assigns_as_many_parts_and_slots_as_it_is_told(self, code: SumCode) -> None:
        for m, n in self.sizes:
            one = code.assign(m, n)
            assert (one.m, one.n) == (m, n)
            assert 1 <= one.k <= n

    def test_rows_name_parts_that_there_are(self, assignments: list[Assignment]) -> None:
        for one in assignments:
            for slot in range(one.n):
                assert len(one.symbols(slot)) > 0
                for row in one.symbols(slot):
                    assert row.parts
                    assert len(set(row.parts)) == len(row.parts)
                    assert all(0 <= part < one.m for part in row.parts)
                    if row.coefficients is not None:
                        assert len(row.coefficients) == len(row.parts)
                        assert np.isfinite(row.coefficients).all()

    def test_every_part_is_in_some_slot(self, assignments: list[Assignment]) -> None:
        for one in assignments:
            held = {part for slot in range(one.n) for part in one.parts(slot)}
            assert held == set(range(one.m))

    def test_the_same_code_assigns_the_same(self, code: SumCode) -> None:
        # Parts are placed once for each code: codes that are equal must be alike.
        again = pickle.loads(pickle.dumps(code))
        assert again == code
        assert hash(again) == hash(code)
        for m, n in self.sizes:
            first, second = code.assign(m, n), again.assign(m, n)
            for slot in range(n):
                assert list(first.symbols(slot)) == list(second.symbols(slot))

    def test_any_k_slots_give_the_sum(self, assignments: list[Assignment]) -> None:
        rng = np.random.default_rng(0)
        for one in assignments:
            terms = rng.standard_normal((one.m, 3))
            values = _values(one, terms)
            for slots in share_sets(one.n, one.k, 50):
                keys = [key for key in values if key % one.n in slots]
                decoder = one.decoder()
                for key in rng.permutation(keys).tolist():
                    decoder.offer(key, one.row(key))
                assert decoder.ready, _too_low(one, slots)
                weights = decoder.weights()
                assert set(weights.keys) <= set(keys)
                value, total = weights.combine(values), terms.sum(axis=0)
                assert value.shape == total.shape  # Weights(..., wanted="sum") sees to that
                error = np.abs(value - total)
                bound = error_bound(one.m, np.float64, weights.eta)
                assert np.all(error <= bound * np.abs(terms).sum(axis=0))

    def test_the_decoder_is_ready_only_when_the_sum_is_there(
        self, assignments: list[Assignment]
    ) -> None:
        rng = np.random.default_rng(1)
        for one in assignments:
            ours, general = one.decoder(), EliminationDecoder(one.m, "sum")
            with pytest.raises(NotDecodable):
                ours.weights()
            for key in rng.permutation(_keys(one)).tolist():
                general.offer(key, one.row(key))
                assert ours.offer(key, one.row(key)) == ours.ready
                assert ours.offer(key, one.row(key)) == ours.ready  # again: nothing changes
                assert general.ready or not ours.ready
                assert ours.reached is None or 0 <= ours.reached <= 1
            assert ours.ready

    def test_what_it_says_of_its_rows_is_true(self, assignments: list[Assignment]) -> None:
        for one in assignments:
            rows = [[set(row.parts) for row in one.symbols(slot)] for slot in range(one.n)]
            if one.disjoint:
                for a, b in itertools.combinations(itertools.chain(*rows), 2):
                    assert a == b or not a & b
                assert all(row.coefficients is None for s in range(one.n) for row in one.symbols(s))
            if one.copies is not None:
                for part in range(one.m):
                    assert sum(part in row for slot in rows for row in slot) == one.copies

    def test_sums_on_a_cluster_of_which_k_workers_are_left(self, code: SumCode) -> None:
        for m, n in self.sizes:
            terms = np.random.default_rng(2).standard_normal((m, 3))
            with connect("virtual", workers=n) as cluster:
                parts = cluster.parts(terms, code, parts=m)
                for lost in (0, n - parts.assignment.k):
                    for worker in range(lost):
                        cluster.lose(worker)
                    try:
                        result = parts.sum(_total)
                    except (TooFewWorkers, OutOfSymbols):
                        raise AssertionError(_too_low(parts.assignment, range(lost, n))) from None
                    assert result.exact
                    assert result.report.error_bound is not None
                    assert result.value.shape == terms[0].shape
                    error = np.abs(result.value - terms.sum(axis=0))
                    assert np.all(error <= result.report.error_bound * np.abs(terms).sum(axis=0))


def _too_low(one: Assignment, slots: Iterable[int]) -> str:
    return (
        f"the assignment of {one.m} parts to {one.n} workers says that any {one.k} of them give "
        f"the sum; workers {sorted(slots)} do not"
    )


def _total(part: NDArray[Any], x: object) -> NDArray[Any]:
    total: NDArray[Any] = part.sum(axis=0)
    return total


def _keys(one: Assignment) -> list[int]:
    """Of all symbols."""
    return [i * one.n + slot for slot in range(one.n) for i in range(len(one.symbols(slot)))]


def _values(one: Assignment, terms: NDArray[Any]) -> Values:
    """What every symbol of an assignment comes to, by its key."""
    return {key: one.row(key).dense(one.m) @ terms for key in _keys(one)}
