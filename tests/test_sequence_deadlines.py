"""Deadlines: every job of every conforming pattern is done in time, at the least load there is.

Against the ledgers alone: no clock and no values. A straggler returns nothing in its round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from kofn.delays import adversary
from kofn.delays.stragglers import Pattern
from kofn.errors import BadInput
from kofn.sequence import DIP, IDIP, BurstIDIP, Polynomial, Uncoded
from kofn.sequence.ledger import Diagonal, Improved, Ledger, Mini
from kofn.sequence.models import Arbitrary, Bursts


class Outcome:
    """What a ledger made of a pattern. One job begins in each round; then rounds without."""

    def __init__(self, ledger: Ledger, pattern: Pattern) -> None:
        self.late: list[int] = []
        self.most = 0  # mini-tasks of one worker in one round
        self.failed_uncoded: set[Mini] = set()
        self.uncoded = 0
        self.slack = 10**9  # least number of results beyond k that a job had at its deadline
        P, T = ledger.slots, ledger.delay
        asked: set[Mini] = set()
        came: Counter[int] = Counter()  # results by job, also those beyond k
        for t in range(len(pattern)):
            batches = ledger.begin(t if t < len(pattern) - T else None)
            self.most = max(self.most, len(batches))
            fine = [slot for slot in range(P) if not pattern[t, slot]]
            for batch in batches:
                units = {mini for mini in batch.values() if mini.row < ledger.k}
                asked |= units
                for slot in fine:
                    if slot in batch:
                        ledger.deliver(batch[slot])
                        came[batch[slot].job] += 1
                        asked.discard(batch[slot])
            for job in ledger.jobs.values():
                if job.due == ledger.round:
                    self.slack = min(self.slack, came[job.number] - ledger.k)
                if job.due <= ledger.round and not job.done:
                    self.late.append(job.number)
                if job.done or job.due <= ledger.round:
                    mine = {mini for mini in asked if mini.job == job.number}
                    self.failed_uncoded |= set() if job.done and job.ended < job.due else mine
                    self.uncoded += job.units
                    asked -= mine
            ledger.end(fine)


def factors(k: int) -> tuple[int, int]:
    x = max(i for i in range(1, int(k**0.5) + 1) if k % i == 0)
    return x, k // x


def codes(P: int, N: int, W: int) -> list[Callable[[], Ledger]]:
    """DIP and IDIP at the least load, and IDIP for bursts that rule nothing out."""
    k = P * W - N
    return [
        lambda: DIP(*factors(k), delay=W - 1, lam=P).ledger(P),
        lambda: IDIP(*factors(k), delay=W - 1, N=N, W=W).ledger(P),
    ]


def may_fail(ledger: Ledger) -> bool:
    """Whether uncoded mini-tasks may: DIP has some in place of as many coded ones."""
    return isinstance(ledger, Diagonal) and ledger.k < ledger.slots * (ledger.delay + 1)


SMALL = [
    (P, N, W, rounds)
    for P, W, rounds in ((1, 2, 7), (1, 3, 8), (2, 2, 5), (2, 3, 5), (3, 2, 4), (3, 1, 3))
    for N in range(P * W)
]


@pytest.mark.slow
@pytest.mark.claim("sequential: Algorithm 2 (IDIP)")
@pytest.mark.parametrize(("P", "N", "W", "rounds"), SMALL)
def test_every_conforming_pattern_meets_every_deadline(P: int, N: int, W: int, rounds: int) -> None:
    load = 1 / (P - Fraction(N, W))
    count = 0
    for pattern in adversary.every(rounds, P, N, W):
        count += 1
        for make in codes(P, N, W):
            found = Outcome(make(), pattern)
            assert found.late == []
            assert found.failed_uncoded == set() or may_fail(make())
            assert Fraction(found.most, P * W - N) <= load
    assert count > 1 or N == 0


@pytest.mark.claim("sequential: Algorithm 1 (DIP)")
@pytest.mark.slow
@pytest.mark.parametrize(("P", "N", "W"), [(4, 10, 4), (4, 4, 4), (6, 7, 5), (8, 20, 5), (5, 2, 6)])
def test_no_search_finds_a_conforming_pattern_that_misses_a_deadline(
    P: int, N: int, W: int
) -> None:
    rng = np.random.default_rng(P * 100 + N)
    for make in codes(P, N, W):
        tightest = 10**9

        def badness(pattern: Pattern, make: Callable[[], Ledger] = make) -> float:
            return -Outcome(make(), pattern).slack

        for _ in range(4):
            start = adversary.random(rng, 4 * W, P, N, W)
            found = Outcome(make(), start)
            assert not found.late
            # The adversary leaves as few results beyond k as it can at some deadline.
            pattern, worst = adversary.worst(rng, start, N, W, badness, steps=40)
            assert adversary.conforms(pattern, N, W)
            last = Outcome(make(), pattern)
            assert not last.late
            assert not last.failed_uncoded or may_fail(make())
            assert Fraction(last.most, P * W - N) <= 1 / (P - Fraction(N, W))
            tightest = min(tightest, -int(worst))
        assert tightest == 0  # the search does reach the edge: one straggler more would be late


def test_one_straggler_too_many_is_late() -> None:
    """The tests above can fail: beyond the model, deadlines are missed."""
    P, N, W = 2, 2, 2
    pattern = np.zeros((4, P), dtype=bool)
    pattern[1:3, 0] = pattern[1, 1] = True
    assert not adversary.conforms(pattern, N, W)
    assert set(Outcome(IDIP(1, 2, 1, N, W).ledger(P), pattern).late) == {1}


@examples(40)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_bursts_let_more_mini_tasks_be_uncoded_and_none_fails(
    P: int, W: int, burst: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    N = int(rng.integers(1, P * W))
    pattern = adversary.random(rng, 4 * W, P, N, W)
    for t, worker in np.argwhere(pattern).tolist():  # cut what is longer than a burst
        if pattern[max(0, t - burst) : t + 1, worker].sum() > burst:
            pattern[t, worker] = False
    assert adversary.conforms(pattern, N, W, burst)
    k = P * W - N
    plain = Outcome(Improved(k, P, Arbitrary(N, W)), pattern)
    tailored = Outcome(Improved(k, P, Arbitrary(N, W, burst)), pattern)
    for found in (plain, tailored):
        assert found.late == []
        assert found.failed_uncoded == set()
    assert tailored.uncoded >= plain.uncoded


def bursty(pattern: Pattern, B: int, W: int, lam: int) -> bool:
    """The definition, window by window: at most lam workers, each within a span of B rounds."""
    for first in range(max(1, len(pattern) - W + 1)):
        window = pattern[first : first + W]
        if window.any(axis=0).sum() > lam:
            return False
        for worker in window.T:
            at = np.flatnonzero(worker)
            if len(at) and at[-1] - at[0] + 1 > B:
                return False
    return True


@pytest.mark.claim("sequential: Supplement 3.2.3, IDIP for bursts")
@pytest.mark.parametrize(
    ("P", "B", "W", "lam", "rounds"),
    [(2, 1, 2, 1, 5), (2, 1, 3, 2, 5), (2, 2, 3, 1, 6), (2, 2, 3, 2, 6), (3, 1, 2, 2, 4)],
)
def test_every_pattern_of_bursts_meets_every_deadline(
    P: int, B: int, W: int, lam: int, rounds: int
) -> None:
    """And the model says of each pattern what the definition says: all patterns there are."""
    life = W - 1 + B
    code = BurstIDIP(*factors(life * P - B * lam), delay=life - 1, B=B, W=W, lam=lam)
    count = 0
    for bits in range(2 ** (rounds * P)):
        pattern = np.array([bits >> i & 1 for i in range(rounds * P)], dtype=bool)
        pattern = pattern.reshape(rounds, P)
        late = [frozenset(np.flatnonzero(row).tolist()) for row in pattern]
        model = Bursts(B, W, lam)
        fits = all(model.conforms(late[:r], now) for r, now in enumerate(late))
        assert fits == bursty(pattern, B, W, lam)
        if fits:
            count += 1
            found = Outcome(code.ledger(P), pattern)
            assert found.late == []
            assert found.failed_uncoded == set()
            assert found.most <= life
    assert count > 1


def test_idip_for_bursts_says_what_is_wrong() -> None:
    with pytest.raises(BadInput, match="B < W; got B=3 and W=3"):
        BurstIDIP(3, 4, delay=4, B=3, W=3, lam=2)
    with pytest.raises(BadInput, match=r"Use delay=3\."):
        BurstIDIP(3, 4, delay=4, B=2, W=3, lam=2)
    with pytest.raises(BadInput, match="Choose x·y = 12"):
        BurstIDIP(2, 5, delay=3, B=2, W=3, lam=2).ledger(4)
    with pytest.raises(BadInput, match="Use lam <= 4"):
        BurstIDIP(2, 3, delay=3, B=2, W=3, lam=5).ledger(4)


@pytest.mark.claim("sequential: Section 3.2.2, other patterns")
def test_idip_waits_until_the_pattern_conforms() -> None:
    ledger = Improved(6, 4, Arbitrary(10, 4))
    for round in range(3):
        ledger.begin(round)
        assert ledger.conforms([0])
        ledger.end([0])  # three stragglers a round
    ledger.begin(3)
    assert not ledger.conforms([0, 1])
    assert ledger.conforms([0, 1, 2])  # nine before, and one now


def test_idip_for_bursts_waits_for_one_that_lasts_too_long() -> None:
    ledger = Improved(12, 4, Arbitrary(4, 4, burst=2))
    for round in range(2):
        ledger.begin(round)
        ledger.end([1, 2, 3])
    ledger.begin(2)
    assert not ledger.conforms([1, 2, 3])
    assert ledger.conforms([0, 2, 3])


def test_dip_gives_the_due_job_what_it_lacks() -> None:
    ledger = Diagonal(k=6, slots=4, delay=1, lam=2)
    first = ledger.begin(0)
    assert first == [{slot: Mini(0, 6 + slot) for slot in range(4)}]
    for slot in (0, 1, 2):
        ledger.deliver(first[0][slot])
    assert ledger.may_end([0, 1, 2])
    ledger.end([0, 1, 2])
    second = ledger.begin(1)
    assert [next(iter(batch.values())).job for batch in second] == [1, 0, 0]  # ceil(3 / 2) of job 0
    assert not ledger.may_end(range(4))
    for slot in (0, 1):
        for batch in second[1:]:
            ledger.deliver(batch[slot])
    assert ledger.may_end([0, 1])


def test_dip_as_printed_codes_every_mini_task() -> None:
    for plain, least in ((True, 0), (False, 4)):
        ledger = DIP(2, 2, delay=2, lam=2, plain=plain).ledger(4)
        assert [mini.row for mini in ledger.begin(0)[0].values()] == list(range(least, least + 4))
        ledger.end([0])
        # Then nothing is left that could be uncoded.
        assert all(mini.row >= 4 for batch in ledger.begin(1)[1:] for mini in batch.values())
    assert DIP(2, 3, delay=2, lam=2).ledger(4).begin(0)[0][0] == Mini(0, 6)  # 4 does not divide 6


def test_what_a_round_will_hold_is_known_before_where_it_is_sure() -> None:
    for ledger in (
        Diagonal(6, 4, 3, 1),
        Improved(13, 4, Arbitrary(3, 4)),
        Polynomial(2, 1).ledger(4),
        Uncoded(2, 2).ledger(4),
    ):
        for t in range(8):
            before = ledger.ahead(t)
            now = ledger.begin(t)
            for batch in before:
                assert batch in now
            for batch in now:
                for slot in range(3):
                    if slot in batch:
                        ledger.deliver(batch[slot])
            if not ledger.prompt:
                ledger.end(range(3))
            else:
                ledger.deliver(now[0][3])
                ledger.end(range(4))
        assert ledger.ahead(8)


def test_idip_at_ten_of_sixteen_assigns_no_uncoded_mini_task_at_first() -> None:
    """As errata say of N = 10: whoever straggles may do so for a whole window."""
    ledger = IDIP(2, 3, 3, N=10, W=4).ledger(4)
    assert all(mini.row >= 6 for mini in ledger.begin(0)[0].values())
    sure = IDIP(1, 13, 3, N=3, W=4).ledger(4)
    assert all(mini.row < 13 for mini in sure.begin(0)[0].values())


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: IDIP(2, 9, 3, N=0, W=4).ledger(4), "x·y"),
        (lambda: IDIP(2, 3, 3, N=16, W=4).ledger(4), "N < 16"),
        (lambda: IDIP(2, 3, 2, N=10, W=4), "delay=3"),
        (lambda: Polynomial(3, 2).ledger(4), "kofn.DIP"),
        (lambda: Uncoded(3, 2).ledger(4), "x·y = 4"),
        (lambda: DIP(2, 3, 3, lam=5).ledger(4), "lam <= 4"),
        (lambda: DIP(2, 3, -1, lam=1), "delay"),
    ],
)
def test_codes_that_cannot_work_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        make()


def test_random_patterns_conform_and_are_full() -> None:
    rng = np.random.default_rng(0)
    pattern = adversary.random(rng, 20, 4, 6, 3)
    assert adversary.conforms(pattern, 6, 3)
    for t, worker in np.argwhere(~pattern).tolist():
        pattern[t, worker] = True
        assert not adversary.conforms(pattern, 6, 3)
        pattern[t, worker] = False


@pytest.mark.claim("sequential: Section 3.2.1, (N, W) model")
def test_all_patterns_are_all_of_them() -> None:
    """By the definition of the (N, W)-arbitrary model, window by window, and round by round."""
    rng, (rounds, P, N, W) = np.random.default_rng(0), (4, 2, 2, 2)
    found = {pattern.tobytes() for pattern in adversary.every(rounds, P, N, W)}
    model, brute = Arbitrary(N, W), set()
    for bits in range(1 << rounds * P):
        pattern = np.array([bits >> i & 1 for i in range(rounds * P)], bool).reshape(rounds, P)
        windows = [pattern[first : first + W].sum() for first in range(rounds - W + 1)]
        conforms = max(windows) <= N
        late = [frozenset(np.flatnonzero(row).tolist()) for row in pattern]
        assert all(model.conforms(late[:r], now) for r, now in enumerate(late)) == conforms
        assert adversary.conforms(pattern, N, W) == conforms
        brute |= {pattern.tobytes()} if conforms else set()
    assert found == brute
    assert adversary.random(rng, rounds, P, N, W).tobytes() in found
