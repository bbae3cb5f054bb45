"""Coded sums on real processes and in simulated time: right, or near and said so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from support import ENGINES, driver_of, examples, rested

import kofn
from kofn import stop
from kofn.delays import Change, Exponential, PerUnit, Script
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.rounds.stop import RoundStatus
from kofn.testing import Faults

rng = np.random.default_rng(0)
X, y, w = rng.standard_normal((120, 7)), rng.standard_normal(120), rng.standard_normal(7)
TRUE = X.T @ (X @ w - y)


def _made() -> Any:
    # A function of a function travels by value: workers need not import this module.
    def gradient(part: Any, w: Any) -> Any:
        A, b = part
        return A.T @ (A @ w - b)

    return gradient


gradient = _made()


def close(value: Any, true: Any = TRUE) -> bool:
    # Sums of 120 terms in another order: a few hundred roundings of the largest.
    return bool(np.abs(value - true).max() <= 200 * np.finfo(float).eps * np.abs(true).max() * 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[kofn.Cluster]:
    with kofn.connect("local", workers=6) as found:
        yield found


@pytest.fixture(scope="module", params=ENGINES)
def either(request: pytest.FixtureRequest) -> Iterator[kofn.Cluster]:
    with kofn.connect(request.param, workers=6) as found:
        yield found


CODES = [
    None,
    kofn.Uncoded(),
    kofn.Uncoded("whole"),
    kofn.FractionalRepetition(3),
    kofn.FractionalRepetition(2, "whole"),
    kofn.CyclicRepetition(4),
    kofn.CyclicRepetition(2, "whole"),
    kofn.CyclicRepetition(2, "whole", "random"),
]


@pytest.mark.engine
@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("m", [6, 17])
def test_exact_sums_with_every_code(cluster: kofn.Cluster, code: Any, m: int) -> None:
    parts = cluster.parts((X, y), code, parts=m)
    for stop_rule in (None, stop.all(), kofn.exact(), kofn.fraction(1.0)):
        found = parts.sum(gradient, w, stop=stop_rule)
        assert found.exact
        assert found.covered == 1.0
        assert found.missing == ()
        assert close(found.value)
    assert parts.report is found.report
    assert found.report.seconds["total"] > 0


@pytest.mark.engine
def test_any_data_and_any_value(cluster: kofn.Cluster) -> None:
    words = ["any", "k", "of", "n", "are", "enough", "of", "n"]
    found = cluster.parts(words).sum(lambda word, x: len(word) * x, 2)
    assert found.value == 2 * sum(map(len, words))
    S: Any = scipy.sparse.random(60, 9, 0.2, format="csc", random_state=0)
    one = cluster.parts((S, np.arange(60.0)), kofn.FractionalRepetition(2), parts=12)
    both = one.sum(lambda part, x: (part[0].T @ part[1], part[1].sum(), len(part[1])))
    assert isinstance(both.value, tuple)
    assert close(both.value[0], S.T @ np.arange(60.0))
    assert both.value[1] == pytest.approx(1770.0)
    assert both.value[2] == 60
    texts = cluster.parts(np.array(["a", "bc", "def", "g", "h", "i"]))
    assert texts.sum(lambda part, x: sum(map(len, part))).value == 9


@pytest.mark.engine
def test_stop_rules_close_a_round_with_what_is_there() -> None:
    faults = Faults().freeze(4, rounds=100).freeze(5, rounds=100)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        for rule in (
            kofn.first(4),
            kofn.deadline(0.3) & kofn.first(4),
            kofn.fraction(0.5),
            kofn.first(4) | kofn.exact(),
        ):
            found = parts.sum(gradient, w, stop=rule)
            assert not found.exact
            assert 0 < found.covered < 1
            assert 4 in found.missing or 5 in found.missing
            plain = parts.sum(gradient, w, stop=rule, weights="plain")
            there = [i for i in range(6) if i not in plain.missing]
            rows = [row for i in there for row in range(20 * i, 20 * i + 20)]
            assert close(plain.value, X[rows].T @ (X[rows] @ w - y[rows]))
        found = parts.sum(gradient, w, stop=kofn.fraction(0.6) & kofn.first(4))
        assert {4, 5} <= {*found.report.late} | {4, 5} - {*found.report.live}  # or they rested


def test_half_done_stragglers_count() -> None:
    # Both holders of each half are slow: each has one of its two parts quickly enough, or nobody.
    for stream, seconds in (("parts", 1.0), ("whole", 2.0)):
        with kofn.connect(VirtualEngine(4, delays=PerUnit(1.0))) as cluster:
            parts = cluster.parts((X, y), kofn.FractionalRepetition(2, stream))  # type: ignore[arg-type]
            found = parts.sum(gradient, w)
            assert close(found.value)
            assert found.report.seconds["total"] == pytest.approx(seconds)


@pytest.mark.engine
def test_a_worker_killed_in_the_middle_of_each_of_a_hundred_rounds() -> None:
    faults = Faults()
    for round in range(1, 101):
        faults = faults.slow(round - 1, by=1e5, round=round).lose(round - 1, round=round)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        for round in range(1, 101):
            rested(cluster, round - 1)
            if round % 2:
                found = parts.sum(gradient, w)
                assert found.exact
                assert close(found.value)
            else:
                found = parts.sum(gradient, w, stop=kofn.first(5))
                assert found.covered == 1.0 - len(found.missing) / 6
                assert found.exact == (found.missing == ())
                if found.exact:
                    assert close(found.value)
            assert not found.report.restarted
            driver_of(cluster).await_lost(round - 1)
            cluster.join()
        assert len(cluster.workers) == 6


@pytest.mark.engine
def test_exact_while_coverage_allows_then_a_clear_error_then_a_joiner() -> None:
    faults = Faults().slow(0, 1e5, round=1).lose(0, round=1)
    faults = faults.slow(1, 1e5, round=2).lose(1, round=2)
    with kofn.connect(faults.on(LocalEngine(6))) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        assert parts.sum(gradient, w).exact
        driver_of(cluster).await_lost(0)
        rested(cluster, 1)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            parts.sum(gradient, w)
        with pytest.raises(kofn.TooFewWorkers, match="needs 6 live workers; 4 are live"):
            parts.sum(gradient, w, code=kofn.Uncoded())
        found = parts.sum(gradient, w, stop=kofn.first(6))  # as many as live
        assert found.missing == (0, 1)
        assert found.covered == pytest.approx(2 / 3)
        cluster.join()
        assert parts.sum(gradient, w).exact


def test_a_joiner_in_the_round_is_enough() -> None:
    changes = (Change(0.5, 0), Change(0.5, 1), Change(3.0, None))
    engine = VirtualEngine(6, delays=PerUnit(1.0), membership=Script(changes))
    with kofn.connect(engine, wait=10.0) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2, "whole"))
        found = parts.sum(gradient, w)
        assert found.exact
        assert close(found.value)
        assert found.report.joined == (6,)
        assert found.report.seconds["total"] == pytest.approx(5.0)


@examples(60)
@given(st.data())
def test_right_under_any_losses_joins_and_delays(data: st.DataObject) -> None:
    c = data.draw(st.integers(1, 3))
    n = c * data.draw(st.integers(1, 4))
    code = data.draw(
        st.sampled_from(
            [
                kofn.FractionalRepetition(c),
                kofn.CyclicRepetition(c),
                kofn.CyclicRepetition(c, "whole"),
            ]
        )
    )
    when = st.floats(1e-3, 8.0)  # once all have their parts
    changes = [Change(time, -1) for time in data.draw(st.lists(when, max_size=n + 2))]
    changes += [Change(time, None) for time in data.draw(st.lists(when, max_size=3))]
    told = st.tuples(st.integers(0, n), when, st.sampled_from([0.0, 1.0, 5.0, float("inf")]))
    for worker, time, ahead in data.draw(st.lists(told, max_size=4)):
        changes.append(Change(time, worker, time + ahead))
    changes += [Change(20.0 + i, None) for i in range(2 * n)]  # in the end there are enough
    delays = data.draw(
        st.sampled_from([PerUnit(0.1), Exponential(0.1, 1.0), Exponential(0.0, 5.0)])
    )
    engine = VirtualEngine(n, delays=delays, membership=Script(tuple(changes)), seed=1)
    with kofn.connect(engine, wait=1e3) as cluster:
        parts = cluster.parts((X, y), code, parts=data.draw(st.integers(n, 40)))
        for _ in range(3):
            found = parts.sum(gradient, w)
            assert found.exact
            assert close(found.value)
            near = parts.sum(gradient, w, stop=kofn.first(max(1, n // 2)), weights="plain")
            assert near.exact == (near.covered == 1.0)
            assert near.missing == () or not near.exact


def test_values_skipped_the_times_are_the_same() -> None:
    totals = []
    for compute in (True, False):
        engine = VirtualEngine(30, delays=Exponential(1e-3, 2.0), compute=compute, seed=3)
        with kofn.connect(engine) as cluster:
            parts = cluster.parts((X, y), kofn.FractionalRepetition(2), parts=60)
            founds = [parts.sum(gradient, w, stop=kofn.first(11)) for _ in range(5)]
            totals.append([(f.report.seconds["total"], f.covered) for f in founds])
            assert all((f.value is None) != compute for f in founds)
    assert totals[0] == totals[1]


@pytest.mark.engine
def test_a_straggler_drops_stale_work_and_the_next_sum_starts_at_once() -> None:
    engine = Faults().slow(3, by=1e6, round=1).on(LocalEngine(4))
    with kofn.connect(engine) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        first = parts.sum(gradient, w)
        assert first.exact
        assert 3 in first.report.late
        second = parts.sum(gradient, w, stop=stop.all())
        assert 3 in second.report.finished


@pytest.mark.engine
def test_a_frozen_worker_is_not_given_work_without_end() -> None:
    engine = Faults().freeze(1, round=1, rounds=40).on(LocalEngine(4))
    with kofn.connect(engine) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        asked = [1 in parts.sum(gradient, w).report.live for _ in range(60)]
        assert not all(asked)
        assert all(parts.sum(gradient, w).exact for _ in range(20))


@pytest.mark.engine
@pytest.mark.parametrize("kind", [np.uint8, np.bool_, np.int32, np.float16])
@pytest.mark.parametrize("vectorised", [False, True])
def test_small_types_do_not_wrap_around(cluster: kofn.Cluster, kind: Any, vectorised: bool) -> None:
    D = np.random.default_rng(0).integers(0, 255, (60, 2)).astype(kind)
    true = D.astype(np.float64).sum(axis=0)
    codes = [kofn.LT(r=2), kofn.RandomGroups(10), kofn.FractionalRepetition(2, "whole")]
    parts = cluster.parts(D, parts=60)
    for code in codes:
        found = parts.sum(
            (lambda q, x: q) if vectorised else (lambda q, x: q[0]),
            code=code,
            vectorised=vectorised,
        )
        assert found.exact
        # Halves are added in single precision.
        few = 1e-4 if kind is np.float16 else 1e-9
        np.testing.assert_allclose(found.value, true, rtol=few)


@pytest.mark.engine
def test_a_term_is_evaluated_once_a_round(cluster: kofn.Cluster) -> None:
    parts = cluster.parts([1.0] * 40, kofn.RandomGroups(10))
    found = parts.sum(lambda part, x: part, stop=stop.all())
    assert found.value == pytest.approx(40.0)
    assert all(read <= 40 for read in found.report.parts_read.values())


@pytest.mark.engine
def test_many_codes_on_the_same_parts(cluster: kofn.Cluster) -> None:
    parts = cluster.parts(np.ones((30, 2)), parts=30)
    for seed in range(30):
        assert parts.sum(lambda q, x: q[0], code=kofn.LT(r=2, seed=seed)).exact
    assert len(parts._sums) <= 9
    assert parts.sum(lambda q, x: q[0], code=kofn.LT(r=2, seed=0)).exact


@pytest.mark.engine
def test_who_is_late_with_its_parts_knows_the_function_all_the_same() -> None:
    engine = Faults().freeze(1, round=1, rounds=2).on(LocalEngine(4))
    with kofn.connect(engine) as cluster:
        parts = cluster.parts((X, y), kofn.FractionalRepetition(2))
        parts.sum(gradient, w)
        for code in (kofn.CyclicRepetition(2), kofn.CyclicRepetition(3), kofn.RandomGroups(2)):
            assert parts.sum(gradient, w, code=code).exact  # placed while worker 1 is stopped
        assert close(parts.sum(gradient, w, stop=stop.all()).value)


def test_unbiased_weights_have_the_sum_as_their_mean() -> None:
    with kofn.connect(VirtualEngine(6, delays=Exponential(0.0, 2.0), seed=5)) as cluster:
        parts = cluster.parts([1.0] * 12, kofn.FractionalRepetition(2, "whole"))
        drawn = [
            parts.sum(lambda part, x: part, stop=kofn.first(3), weights="unbiased")
            for _ in range(600)
        ]
        values = np.array([one.value for one in drawn])
        # Three standard errors of the mean, and a seed that does not change.
        assert abs(values.mean() - 12.0) <= 3 * values.std() / np.sqrt(len(values))
        assert not any(one.exact for one in drawn)
        assert parts.sum(lambda part, x: part, stop=kofn.first(6), weights="unbiased").exact
        with pytest.raises(kofn.BadInput, match="half-done work counts too"):
            parts.sum(lambda part, x: part, weights="unbiased", code=kofn.FractionalRepetition(2))


@pytest.mark.engine
def test_a_newcomer_sits_where_nobody_is(cluster: kofn.Cluster) -> None:
    with kofn.connect("local", workers=4) as few:
        parts = few.parts(list(range(12)), kofn.FractionalRepetition(2))
        for worker in (0, 2, 3):
            few.lose(worker)
        with pytest.raises(kofn.TooFewWorkers, match="1 missing"):
            parts.sum(lambda part, x: part)
        few.join()
        assert parts.sum(lambda part, x: part).value == 66
        spare = few.parts(list(range(12)), kofn.FractionalRepetition(2), n=4)
        assert spare.sum(lambda part, x: part).value == 66


# Bad input: one clear error each, before a worker is touched where that is possible.


@pytest.mark.engine
def test_bad_input(cluster: kofn.Cluster) -> None:
    with pytest.raises(kofn.BadInput, match=r"c to divide.*c=4 and 6"):
        cluster.parts((X, y), kofn.FractionalRepetition(4))
    with pytest.raises(kofn.BadInput, match="a part for each of the 6 workers; got 3"):
        cluster.parts([1, 2, 3], kofn.Uncoded())
    with pytest.raises(kofn.BadInput, match="from 1 to 120; got 121"):
        cluster.parts((X, y), parts=121)
    with pytest.raises(kofn.BadInput, match=r"equally many rows; got \[120, 119\]"):
        cluster.parts((X, y[:-1]))
    with pytest.raises(kofn.BadInput, match="at least one part"):
        cluster.parts([])
    with pytest.raises(kofn.BadInput, match="data is set"):
        cluster.parts({1, 2})
    with pytest.raises(kofn.BadInput, match="needs some"):
        cluster.parts(np.float64(3.0))
    with pytest.raises(kofn.BadInput, match="one for sums"):
        cluster.parts(X, "frc")  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="n must be at least"):
        cluster.parts(X, n=2)
    with pytest.raises(kofn.BadInput, match="lose its mask"):
        cluster.parts(np.ma.masked_less(X, 0))
    parts = cluster.parts((X, y))
    before = len(cluster.log)
    with pytest.raises(kofn.BadInput, match=r"first\(7\) waits for 7 workers; there are 6"):
        parts.sum(gradient, w, stop=kofn.first(7))
    with pytest.raises(kofn.BadInput, match="stop must be a stop rule"):
        parts.sum(gradient, w, stop=3)  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="weights must be one of"):
        parts.sum(gradient, w, weights="best")  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="one for sums"):
        parts.sum(gradient, w, code="frc")  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match=r"Let it take both, also where it uses no x"):
        parts.sum(lambda part: 1, w)  # type: ignore[arg-type, misc]
    with pytest.raises(kofn.BadInput, match="fn must be a function"):
        parts.sum("gradient", w)  # type: ignore[arg-type]
    with pytest.raises(kofn.BadInput, match="must be picklable"):
        parts.sum(lambda part, x: cluster, w)
    assert len(cluster.log) == before
    with pytest.raises(kofn.NothingYet):
        _ = parts.report


@pytest.mark.engine
def test_a_function_that_raises_or_returns_odd_things(cluster: kofn.Cluster) -> None:
    parts = cluster.parts([1, 2, 3, 0, 5, 6], kofn.FractionalRepetition(2))

    def fussy(part: int, x: int) -> float:
        return x / part

    with pytest.raises(kofn.WorkerError, match=r"(?s)ZeroDivisionError.*for part 3"):
        parts.sum(fussy, 1)
    for code in (None, kofn.FractionalRepetition(2, "whole"), kofn.Uncoded()):
        with pytest.raises((kofn.WorkerError, kofn.BadInput), match="same shapes for every part"):
            parts.sum(lambda part, x: np.ones(part), 1, code=code, stop=stop.all())
    with pytest.raises(kofn.WorkerError, match="fn must return numbers"):
        parts.sum(lambda part, x: "no", 1)
    assert parts.sum(lambda part, x: part * x, 2).value == 34  # and the cluster goes on


def test_rules_are_small_and_pure() -> None:
    seen = RoundStatus(seconds=1.0, finished=3, owing=2, covered=0.75, exact=False)
    assert kofn.first(3).met(seen)
    assert not kofn.first(4).met(seen)
    assert kofn.fraction(0.75).met(seen)
    assert (kofn.exact() | kofn.deadline(1.0)).met(seen)
    assert not (kofn.exact() & kofn.deadline(1.0)).met(seen)
    assert (kofn.first(9) | kofn.deadline(0.5)).after(0.0) == 0.5
    assert kofn.first(2) == kofn.first(2)
    (kofn.first(9) | kofn.exact()).check(6)  # one of them can be met
    with pytest.raises(kofn.BadInput):
        (kofn.first(9) & kofn.exact()).check(6)
    wrong: list[Any] = [(kofn.first, 0), (kofn.fraction, 1.5), (kofn.deadline, 0.0)]
    for rule, value in wrong:
        with pytest.raises(kofn.BadInput, match=r"got .*\. (As in|It counts) .*\."):
            rule(value)
    with pytest.raises(kofn.BadInput, match="a stop rule is"):
        kofn.first(2) | 3  # type: ignore[operator]
    with pytest.raises(kofn.BadInput, match=r"first\(2\)\. Combine rules with \| and &"):
        kofn.first(2) or kofn.exact()
    with pytest.raises(kofn.BadInput, match="Combine rules"):
        (kofn.first(2) | kofn.exact()) and kofn.exact()


def _buffered() -> Any:
    class Buffered:
        """Writes each value over the one before."""

        out: Any = None

        def __call__(self, part: Any, x: Any) -> Any:
            if self.out is None:
                self.out = np.empty(2)
            self.out[:] = part
            return self.out

    return Buffered()


@pytest.mark.parametrize("code", CODES, ids=str)
def test_fn_may_return_the_same_buffer_each_time(either: kofn.Cluster, code: Any) -> None:
    parts = either.parts([float(i) for i in range(12)], code)
    for _ in range(3):
        found = parts.sum(_buffered())
        assert found.exact
        np.testing.assert_allclose(found.value, [66.0, 66.0], rtol=1e-9)


def test_unbiased_says_exact_only_where_it_is() -> None:
    terms = [float(i * i) for i in range(6)]
    for code in (kofn.CyclicRepetition(2, "whole"), kofn.FractionalRepetition(2, "whole")):
        for r in range(1, 7):
            slow = dict.fromkeys(range(r, 6), 10000.0)
            with kofn.connect(VirtualEngine(6, delays=PerUnit(1.0, slow))) as cluster:
                parts = cluster.parts(terms, code)
                found = parts.sum(lambda part, x: part, stop=kofn.first(r), weights="unbiased")
                assert found.exact == (found.value == pytest.approx(55.0))
                assert found.exact or r < 6


@pytest.mark.parametrize("weights", ["unbiased", "plain"])
@pytest.mark.engine
def test_random_coefficients_cannot_be_added_as_they_are(cluster: Any, weights: Any) -> None:
    parts = cluster.parts((X, y), kofn.CyclicRepetition(2, "whole", "random"))
    with pytest.raises(kofn.BadInput, match="they say combinations of their parts"):
        parts.sum(gradient, w, stop=kofn.first(3), weights=weights)


def test_a_rule_with_two_times_wakes_for_both() -> None:
    with kofn.connect(VirtualEngine(3, delays=PerUnit(0.1, {2: 1e5}))) as cluster:
        parts = cluster.parts([0, 1, 2], kofn.Uncoded())
        rules = {
            (kofn.deadline(1.0) & kofn.exact()) | kofn.deadline(3.0): 3.0,
            kofn.deadline(1.0) & kofn.deadline(2.0): 2.0,
            kofn.deadline(0.7): 0.7,
        }
        for rule, seconds in rules.items():
            found = parts.sum(lambda part, x: 1.0, stop=rule)
            assert found.report.seconds["wait"] == pytest.approx(seconds)
            assert not found.exact


class StandStill(stop.Exact):
    """Wants to be asked again at the time that it is."""

    def after(self, seconds: float) -> float:
        return seconds if seconds else 0.5


def test_a_rule_that_would_stop_the_clock_is_refused() -> None:
    with kofn.connect(VirtualEngine(2, delays=PerUnit(10.0))) as cluster:
        parts = cluster.parts([0, 1], kofn.Uncoded())
        for rule in (StandStill(), StandStill() & kofn.first(2)):
            with pytest.raises(kofn.BadInput, match=r"StandStill\(\).* gave 0\.5 for 0\.5\."):
                parts.sum(lambda part, x: 1.0, stop=rule)
        assert parts.sum(lambda part, x: 1.0).exact  # and the cluster goes on


@pytest.mark.engine
@pytest.mark.parametrize(
    "rule", [stop.all(), kofn.first(4), kofn.deadline(30.0) | kofn.exact()], ids=str
)
def test_who_is_behind_is_asked_before_a_rule_gives_up_on_it(rule: Any) -> None:
    faults = Faults().freeze(3, round=1, rounds=8)  # it goes on when the ninth round begins
    with kofn.connect(faults.on(LocalEngine(4))) as cluster:
        parts = cluster.parts([0, 1, 2, 3], kofn.Uncoded())
        for _ in range(8):
            near = parts.sum(lambda part, x: float(part), stop=kofn.first(3))
            assert 3 in near.report.late
        found = parts.sum(lambda part, x: float(part), stop=rule)
        assert 3 not in found.report.live  # it was far behind when the round began
        assert found.exact
        assert found.value == 6.0


def test_a_fraction_is_met_by_just_so_many_parts() -> None:
    for m in range(1, 31):
        seen = [RoundStatus(0.0, 0, 0, j / m, False) for j in range(1, m + 1)]
        assert all(kofn.fraction(j / m).met(one) for j, one in enumerate(seen, 1))
    with kofn.connect("virtual", workers=5) as cluster:
        parts = cluster.parts([0, 1, 2, 3, 4], kofn.Uncoded())
        for worker in range(3):
            cluster.lose(worker)
        found = parts.sum(lambda part, x: 1.0, stop=kofn.fraction(0.4))
        assert found.covered == 0.4
        with pytest.raises(kofn.TooFewWorkers, match="needs 3 live workers; 2 are live"):
            parts.sum(lambda part, x: 1.0, stop=kofn.fraction(0.6))


def test_a_function_that_closes_over_something_else_is_another(either: kofn.Cluster) -> None:
    class Scaled:
        def __init__(self) -> None:
            self.by = 1.0

        def __call__(self, part: Any, x: Any) -> Any:
            return part * self.by

        def method(self, part: Any, x: Any) -> Any:
            return part * self.by

    scaled, k = Scaled(), 1.0

    def closure(part: Any, x: Any) -> Any:
        return part * k

    parts = either.parts([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], kofn.Uncoded())
    for k in (1.0, 2.0, 3.0):
        scaled.by = k
        for fn in (closure, closure, scaled, scaled.method):
            assert parts.sum(fn).value == 21.0 * k


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kinds", [("f8", "c16"), ("f4", "f8"), ("f8", "c8")], ids=str)
def test_types_of_parts_may_differ_whoever_is_first(order: Any, kinds: Any) -> None:
    delays = PerUnit(1.0, {order[0]: 2.0})
    with kofn.connect(VirtualEngine(2, delays=delays)) as cluster:
        parts = cluster.parts([0, 1], kofn.Uncoded())
        found = parts.sum(lambda part, x: np.full(3, part + 1, kinds[part]))
        assert found.value.dtype == np.result_type(*kinds)
        np.testing.assert_array_equal(found.value, [3, 3, 3])


@pytest.mark.engine
def test_tuples_in_tuples_and_numpy_numbers(cluster: kofn.Cluster) -> None:
    parts = cluster.parts((X, y))
    with pytest.raises(kofn.WorkerError, match="a tuple is nested in it"):
        parts.sum(lambda part, x: (1.0, (2.0,)))
    two: Any = np.int64(2)
    half: Any = np.float32(0.5)
    rule = kofn.first(two) | kofn.fraction(half) | kofn.deadline(np.float64(9))
    assert parts.sum(lambda part, x: 1.0, stop=rule).covered > 0


@pytest.mark.engine
@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_slot_whose_parts_are_on_their_way_is_waited_for(all_of_them: bool) -> None:
    with kofn.connect("local", workers=3, limit=60.0) as cluster:
        parts = cluster.parts((X, y), kofn.Uncoded())
        pids = []
        for worker in (0, 1, 2) if all_of_them else (2,):
            cluster.lose(worker)
            pid = cluster.engine.pid(cluster.join())
            assert pid is not None
            pids.append(pid)

        def go_on() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(1.0, go_on)
        timer.start()
        try:
            assert close(parts.sum(gradient, w).value)
        finally:
            timer.join()


@pytest.mark.engine
def test_who_stands_by_takes_a_lost_slot_within_the_round() -> None:
    faults = Faults().slow(2, by=1e5, round=1).lose(2, round=1)  # or it may answer before the kill
    with kofn.connect(faults.on(LocalEngine(3))) as cluster:
        parts = cluster.parts((X, y), kofn.Uncoded())
        cluster.join()
        found = parts.sum(gradient, w)
        assert found.report.lost == (2,)
        assert close(found.value)


def test_fewer_parts_than_workers_under_fractional_repetition() -> None:
    """FRC(n, k, c) of Wang et al., 2019 with n < k: three parts, each on two of six workers."""
    with kofn.connect("virtual", workers=6) as cluster:
        parts = cluster.parts([1.0, 2.0, 4.0], kofn.FractionalRepetition(2))
        for lost in (0, 3, 4):  # one of each group
            cluster.lose(lost)
            found = parts.sum(lambda part, x: part)
            assert found.exact
            assert found.value == 7.0
