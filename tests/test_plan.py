"""Plans: what is tried, what is chosen and why, and that clusters take it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import DataFolder
from typer.testing import CliRunner

import kofn
from kofn.cli import plan as cli_plan
from kofn.cli.app import app
from kofn.delays import Lifetimes, PerUnit, Recording, SpotTrace
from kofn.delays.traces import Event, Price
from kofn.display import figure
from kofn.planning import Option, Plan, search
from kofn.planning.calls import call_of, runs
from kofn.planning.goal import Goal
from kofn.planning.grid import counts, grid, steps, thinned
from kofn.planning.replays import replays
from kofn.planning.risk import need, risk, shortages
from kofn.planning.search import STARTS, _rungs
from kofn.planning.why import why
from kofn.simulation import Candidate, Row, Stage, Work, delays_of
from kofn.simulation.draws import LOSS, STORM
from kofn.simulation.table import interval
from kofn.simulation.timings import begun, markets_of

SLOW = "markov(unit=6, alpha=8, enter=0.1, leave=0.5)"
CALM = "perunit(unit=6)"
COSTS = kofn.Costs(start_up=60.0)
SMALL: dict[str, Work] = {
    "product": Work("product", 600, 10),
    "gradient": Work("gradient", 600, 10),
    "sequence": Work("sequence", 60, 10, 20),
    "sum": Work("sum", 60, 10),
}


def market(losses: int, usd: tuple[float, ...] = (), length: float = 4000.0) -> SpotTrace:
    """Six machines; every so often one is lost, and another comes after a while."""
    events = [Event(0.0, True, f"m{i}") for i in range(6)]
    for i in range(losses):
        time = (i + 0.5) * length / losses
        lost, comes = (f"m{i}", f"m{i + 6}")
        events += [Event(time, False, lost), Event(time + length / 100, True, comes)]
    prices = tuple(Price(i * length / len(usd), one) for i, one in enumerate(usd))
    events.sort(key=lambda event: event.time)
    return SpotTrace(tuple(events), "made up", prices, length)


# What is tried.


def test_numbers_to_try_are_dense_at_first() -> None:
    assert steps(1, 12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert counts(20) == [20, 16, 13, 10, 7, 5]
    assert counts(1) == [1]


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_every_candidate_can_be_played_and_has_a_call(kind: str, n: int) -> None:
    work = SMALL[kind]
    stage = Stage(work, n, delays_of("exponential(unit=3, mean=0.2)"))
    found = grid(work, n, 0.2)
    assert len(set(found)) == len(found)
    for one in thinned(found, 12):
        assert len(stage.play(one, 1).seconds) == 1
        assert 1 <= need(n, one) <= n
        if runs(work, one):
            assert call_of(work, n, one).name in ("encode", "parts", "sequence")


def test_many_are_tried_for_many_workers() -> None:
    wide = Work("sequence", 10_000, 100, 1_000)
    for work in (Work("product"), Work("gradient"), wide):
        assert len(grid(work, 256, 0.0)) >= 50
    assert len(grid(Work("product"), 256, 0.0)) >= 100


def test_ever_fewer_are_played_for_ever_more_rounds() -> None:
    assert _rungs(130, 100, 1170) == [(130, 3), (33, 12), (9, 48), (5, 78)]
    assert _rungs(10, 100, 10_000) == [(10, 100)]  # all can be afforded
    assert _rungs(3, 5, 1) == [(3, 3)]
    assert thinned([Candidate(str(i)) for i in range(9)], 3) == [
        Candidate("0"), Candidate("4"), Candidate("8"),
    ]  # fmt: skip


# What is chosen.


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_with_stragglers_a_code_is_chosen_and_with_none_it_is_not(kind: str) -> None:
    slow = kofn.plan(SMALL[kind], 6, SLOW, rounds=16)
    calm = kofn.plan(SMALL[kind], 6, CALM, rounds=3)
    assert slow.coded
    assert not calm.coded
    assert calm.why[0].startswith("Do not code: ")
    plain = next(o for o in slow.options if not o.coded)
    assert slow.best.seconds < 0.97 * plain.seconds
    assert f"{slow.best.code} takes {slow.best.row.seconds.mean():.4g} s a round" in slow.why[0]
    assert f"without a code it is {plain.row.seconds.mean():.4g} s" in slow.why[0]


@pytest.mark.slow
def test_two_runs_agree_and_the_prediction_is_what_a_simulation_gives() -> None:
    work, trace, rounds = SMALL["product"], market(8, (0.5, 1.5, 1.0), 600.0), 10
    waits = "exponential(unit=6, mean=1)"
    first, second = (kofn.plan(work, 6, waits, trace, rounds=rounds, seed=3) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    best = first.best
    assert best.price is not None
    delays = delays_of(waits)  # of one worker of six, however many there are

    def rows(seed: int) -> list[Row]:
        """From every start that a plan plays."""
        starts = [begun(trace, best.workers, part, seed) for part in STARTS]
        stages = [Stage(work, best.workers, delays, one, seed=seed) for one in starts]
        return [stage.play(best.candidate, rounds) for stage in stages]

    played = rows(3)
    assert np.mean([row.usd for row in played if row.usd]) == pytest.approx(best.price)
    ends = [row.began + row.ends[-1] for row in played]
    assert np.mean(ends) == pytest.approx(best.seconds)
    assert played[0].memory == best.memory
    # With other luck it costs about the same: as far off as seeds differ.
    others = [float(np.mean([row.usd or 0.0 for row in rows(seed)])) for seed in range(10)]
    assert abs(best.price - np.mean(others)) < 4 * np.std(others)


def test_losses_that_come_late_in_a_market_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calm for an hour, then a loss every 40 s: from its start alone nobody would code."""
    events = [Event(0.0, True, f"n{i}") for i in range(6)]
    for i in range(130):
        events += [
            Event(3600.0 + 40 * i, False, f"n{i}"),
            Event(3600.0 + 40 * i, True, f"n{i + 6}"),
        ]
    late = SpotTrace(tuple(events), "late")
    given: Any = (SMALL["product"], 6, "perunit(unit=60)", late)
    assert kofn.plan(*given, rounds=8, costs=COSTS).coded
    monkeypatch.setattr("kofn.planning.search.STARTS", (0.0,))
    assert not kofn.plan(*given, rounds=8, costs=COSTS).coded


@pytest.mark.slow
def test_a_price_makes_fewer_machines_an_option_and_a_deadline_the_cheapest_win() -> None:
    waits = "exponential(unit=6, mean=1)"  # more machines hardly save time
    dear = kofn.plan(SMALL["product"], 8, waits, price=3.6, rounds=6)
    assert {option.workers for option in dear.tried} == set(counts(8))
    assert dear.goal == "the least time x price"
    assert dear.best.price == pytest.approx(dear.best.machine_seconds * 3.6 / 3600)
    quick = kofn.plan(SMALL["product"], 8, waits, rounds=6)
    assert quick.best.workers == 8
    assert quick.goal == "the least time"
    late = 0.5 * (quick.best.seconds + dear.tried[-1].seconds)
    cheap = kofn.plan(SMALL["product"], 8, waits, price=3.6, deadline=late, rounds=6)
    assert cheap.best.seconds <= late
    fits = [o for o in cheap.options if o.seconds <= late]
    assert cheap.best.cost <= 1.03 * min(o.cost for o in fits)
    never = kofn.plan(SMALL["product"], 4, waits, deadline=1e-3, rounds=5)
    assert "Nothing is done within 0.001 s; this is the quickest." in never.why


def test_memory_leaves_options_out() -> None:
    work = SMALL["gradient"]
    free = kofn.plan(work, 6, SLOW, rounds=8)
    assert free.best.memory is not None
    assert free.best.memory > 0.3
    tight = kofn.plan(work, 6, SLOW, rounds=8, memory_per_worker=0.2 * work.data_bytes)
    assert tight.best.memory is not None
    assert tight.best.memory <= 0.2
    assert "were left out" in tight.why[-1]
    with pytest.raises(kofn.BadInput, match=r"the least is 0\.16\d* of the data"):
        kofn.plan(work, 6, SLOW, rounds=5, memory_per_worker=10)
    with pytest.raises(kofn.BadInput, match="workers keep no data of a sequence"):
        kofn.plan("sequence", 6, SLOW, memory_per_worker=10)


def test_tolerance_lets_a_sum_be_closed_early() -> None:
    exact = kofn.plan(SMALL["gradient"], 6, SLOW, rounds=8)
    assert exact.stop is None
    assert all(option.row.exact_share == 1 for option in exact.options)
    near = kofn.plan(SMALL["gradient"], 6, SLOW, rounds=8, tolerance=0.34)
    assert near.best.seconds < exact.best.seconds
    assert near.best.row.covered >= 0.66
    assert near.stop is not None
    assert "stop=kofn.fraction(0.66)" in near.python


@pytest.mark.slow
def test_the_kind_of_machine_is_chosen(tmp_path: Path) -> None:
    good, bad = np.full(60, 4, dtype=np.int8), np.tile([4, 1], 30).astype(np.int8)
    prices = np.full(60, 2.0)
    kinds = {"a": (bad, prices), "b": (good, prices), "c": (good, 9 * prices)}
    arrays: dict[str, Any] = {}
    for name, (available, usd) in kinds.items():
        arrays |= {f"{name}/available": available, f"{name}/price_usd_per_h": usd}
        arrays[f"{name}/gap_seconds"] = 3.0
    np.savez(tmp_path / "m.npz", **arrays)
    found = kofn.plan(SMALL["product"], 4, CALM, tmp_path / "m.npz", rounds=8)
    assert found.best.machine == "b"
    assert {option.machine for option in found.tried} == {"a", "b", "c"}
    some = kofn.plan(SMALL["product"], 4, CALM, f"{tmp_path / 'm.npz'}:[ac]", rounds=4)
    assert some.best.machine in ("a", "c")
    with pytest.raises(kofn.BadInput, match=r"has a, b, c, and got 'd\*'"):
        kofn.plan("product", 4, CALM, f"{tmp_path / 'm.npz'}:d*")


def option(code: str, seconds: float, memory: float, **more: Any) -> Option:
    row = Stage(SMALL["product"], 1, PerUnit(1.0)).play(Candidate("uncoded"), 1)
    object.__setattr__(row, "memory", memory)
    return Option(
        Candidate.parse(code), 6, "", row, seconds, seconds, 6 * seconds, more.get("price"),
        more.get("risk"), more.get("runs", True),
    )  # fmt: skip


def test_no_code_unless_it_is_worth_it_and_little_risk_and_memory_where_it_is_all_one() -> None:
    goal = Goal(None, False)
    plain, large = option("uncoded", 102.0, 0.1), option("mds(k=2)", 100.0, 0.5)
    small, rival = option("mds(k=3)", 100.9, 0.3), option("gc(s=1)", 90.0, 0.1, runs=False)
    assert goal.pick([large, plain]) is plain  # two percent
    worse = option("uncoded", 104.0, 0.1)
    assert goal.pick([large, worse, rival]) is large
    assert goal.pick([large, worse, small]) is small
    risky = option("mds(k=3)", 100.9, 0.3, risk=0.4)
    assert goal.pick([risky, large]) is large
    in_time = Goal(101.0, False)
    assert in_time.pick([large, plain]) is large  # without a code it is too late
    assert [in_time.late(one) for one in (plain, large)] == [True, False]


# Risk.


def test_risk_is_the_part_of_the_starts_from_which_too_few_are_met() -> None:
    events = [Event(0.0, True, "a"), Event(0.0, True, "b"), Event(50.0, False, "b")]
    trace = SpotTrace((*events, Event(60.0, True, "b")), length=100.0)

    def chance(k: int, seconds: float) -> float:
        below = shortages(trace, 3, Candidate("mds", (("k", k),)))
        return risk(below, trace.seconds, seconds)

    assert chance(1, 20.0) == 0.0
    # Of the starts from 0 to 80, those from 30 to 60.
    assert chance(2, 20.0) == pytest.approx(30 / 80)
    assert chance(3, 20.0) == pytest.approx(1.0)
    assert chance(2, 100.0) == 1.0
    found = kofn.plan(SMALL["product"], 6, CALM, market(40), rounds=8).best
    assert found.risk is not None
    assert 0 <= found.risk <= 1


def test_lifetimes_are_a_market_too() -> None:
    lives = Lifetimes((30.0, 60.0, 90.0, 500.0), (True, True, True, False))
    found = kofn.plan(SMALL["product"], 4, CALM, lives, rounds=6, price=1.0)
    assert found.best.risk is not None
    assert found.best.price is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["product", "gradient", "sum"])
def test_a_plan_says_that_machines_are_gone_before_they_answer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it does not play every option through all losses to find out."""
    monkeypatch.setattr(search, "MARKET", 1.0)
    lives, ticks = Lifetimes((0.001, 0.002, 0.003), (True,) * 3), list[int]()
    work, slow = SMALL[kind], "exponential(unit=40, mean=1)"
    text = "gone before it answers.*lived 1 s or less. Name a market whose machines live longer"
    with pytest.raises(kofn.BadInput, match=text):
        kofn.plan(work, 6, slow, lives, rounds=20, on_round=lambda total, _: ticks.append(total))
    assert len(ticks) == ticks[-1]  # the bar comes to its end


def test_what_a_run_may_take_is_counted_by_what_happens_and_not_by_a_clock() -> None:
    lives = Lifetimes((20.0, 40.0), (True, True)).offer(6)
    stage = Stage(SMALL["product"], 6, delays_of(SLOW), lives)
    whole = stage.play(Candidate.parse("mds(k=3)"), 40)
    part = stage.play(Candidate.parse("mds(k=3)"), 40, effort=whole.effort / 2)
    assert 0 < len(part.seconds) < 40 == len(whole.seconds)
    assert np.array_equal(part.seconds, whole.seconds[: len(part.seconds)])
    assert not part.problem
    assert part.took is not None
    assert part.took >= part.ends[-1]
    nothing = stage.play(Candidate.parse("mds(k=3)"), 40, effort=1e-9)
    assert nothing.problem == "no round was done in all that was simulated"


def test_losses_in_one_round_take_the_more_effort_the_more_they_are() -> None:
    """Each has the master share out anew what its worker, and those before it, owed."""
    events = [Event(0.0, True, f"m{i}") for i in range(6)]
    for i in range(60):
        time = 1.0 + i / 100
        events += [Event(time, False, f"m{i}"), Event(time, True, f"m{i + 6}")]
    calm = [e._replace(time=60 * e.time) if e.time else e for e in events]
    efforts = []
    for some in (events, calm):
        trace = SpotTrace(tuple(some), length=1e4)
        stage = Stage(SMALL["product"], 6, delays_of("perunit(unit=24)"), trace)
        efforts.append(stage.play(Candidate.parse("mds(k=3)"), 20).effort)
    assert efforts[0] > 60 * (LOSS + 6 * STORM / 2)
    assert efforts[1] < efforts[0]


def test_a_repetition_code_lacks_machines_when_all_holders_of_a_part_are_gone() -> None:
    """Not as soon as two of any are: that is its threshold, whichever they are."""
    events = [Event(0.0, True, f"n{i}") for i in range(6)]
    for time, nodes in ((10.0, "02"), (30.0, "1"), (50.0, "5")):
        events += [Event(time, False, f"n{i}") for i in nodes]
    trace = SpotTrace((*events, Event(70.0, True, "m")), length=100.0)

    def short(code: str) -> list[tuple[float, float]]:
        return shortages(trace, 6, Candidate.parse(code))

    assert need(6, Candidate.parse("fractional(c=2)")) == 5
    assert short("uncoded") == [(10.0, 100.0)]
    assert short("fractional(c=2)") == [(30.0, 70.0)]  # 0 and 1 share parts; the next takes one
    assert short("fractional(c=2, covered=0.6)") == []
    assert short("cyclic(c=2)") == [(30.0, 100.0)]  # parts of 0 and 1, and those of 1 and 2
    assert short("cyclic(c=4)") == [(50.0, 70.0)]  # 3 and 4 have all but one
    assert short("cyclic(c=5)") == []
    assert short("mds(k=3)") == [(50.0, 70.0)]


def dips(length: float = 7200.0) -> SpotTrace:
    """Six machines; of each half hour four alone are there for nine minutes, not at its start."""
    events = [Event(0.0, True, f"n{i}") for i in range(6)]
    for start in range(0, int(length), 1800):
        for i in (4, 5):
            events += [
                Event(start + 900.0, False, f"n{i}"),
                Event(start + 1440.0, True, f"n{i}"),
            ]
    return SpotTrace(tuple(sorted(events, key=lambda e: e.time)), "dips", length=length)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["mds(k=5)", "mds(k=4)", "mds(k=2, margin=1)", "uncoded"])
def test_what_is_not_played_takes_as_long_as_if_it_were(code: str) -> None:
    """Waits for machines in it: they are met wherever in the market they are."""
    work, one = SMALL["product"], Candidate.parse(code)
    stage = Stage(work, 6, delays_of(SLOW), dips(14400.0))
    fewest = need(6, one)
    exact = stage.play(one, 1200)
    part = stage.play(one, 1200, played=150, fewest=fewest)
    assert exact.took is None
    assert part.took is not None
    assert len(part.seconds) < 300
    assert part.rounds == 1200
    assert part.took == pytest.approx((part.counts * part.seconds).sum())  # type: ignore[operator]
    # As far off as the mean may be by what was played.
    low, high = interval(part.seconds, part.counts)
    assert abs(part.took - exact.ends[-1]) / 1200 < high - low
    waits = [float(row.seconds[row.seconds > 300].sum()) for row in (exact, part)]
    assert waits[0] == pytest.approx(waits[1], abs=60.0)


def test_without_a_market_the_luck_of_the_whole_run_is_met() -> None:
    """A recording in which somebody is slow in its second half alone."""
    seconds = np.ones((400, 6))
    seconds[200:, 2] = 5.0
    stage = Stage(SMALL["product"], 6, delays_of(Recording("late", (1.0,), (seconds,))))
    part = stage.play(Candidate("uncoded"), 400, played=40)
    assert part.rounds == 400
    assert part.took == pytest.approx(200 * 1 + 200 * 5, rel=0.03)


@pytest.mark.slow
def test_the_pick_has_no_risk_that_a_little_redundancy_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All machines are there at the start: who looks at that alone buys too little."""
    monkeypatch.setattr("kofn.planning.search.BUDGET", 1.0)
    given: Any = (SMALL["product"], 6, SLOW, dips())
    found = kofn.plan(*given, rounds=600, price=0.5)
    assert found.best.risk == 0
    assert found.met
    assert found.best.row.played[0] < 3 * 600
    assert "of the 600 rounds" in found.why[-1].lower()
    plain = [o for o in found.tried if not o.coded]
    best = min(plain, key=lambda o: o.seconds * o.cost)
    assert best in found.options  # played as long as the pick
    costs = f"{figure(best.seconds)} s and {figure(best.cost)} USD"
    assert f"without a code, on {best.workers} machines, takes {costs}" in found.why[0]
    for one in found.options:
        assert one.mean * 600 == pytest.approx(one.seconds - one.row.began)


def test_a_limit_on_risk() -> None:
    given: Any = (Work("product", 600, 10), 6, "perunit(unit=600)", dips())
    free = kofn.plan(*given, rounds=2)
    assert free.best.risk is not None
    assert free.best.risk > 0.05
    (safer,) = (line for line in free.why if line.startswith("Safer is "))
    assert "with a risk of 0%" in safer
    safe = kofn.plan(*given, rounds=2, risk=0.05)
    assert safe.met
    assert safe.best.risk == 0
    assert safe.goal == "the least time, at a risk of 0.05 at most"
    lost = (Event(7100.0, False, f"n{i}") for i in range(6))
    gone = SpotTrace((*dips().events, *lost), length=7200.0)
    never = kofn.plan(given[0], 6, "perunit(unit=600)", gone, rounds=2, risk=0.0)
    assert not never.met
    assert never.why[0] == "Nothing has a risk of 0 or less; this has the least."


@pytest.mark.slow
def test_the_lines_for_a_market_keep_machines_and_wait_for_them() -> None:
    found = kofn.plan(SMALL["product"], 6, SLOW, dips(), rounds=40)
    count, wait, keep = found.arguments("connect")
    assert (count, keep) == (found.workers, found.workers)
    assert wait >= 2 * found.best.short
    assert f"workers={count}, keep={count}, wait={wait:g})" in found.python
    assert found.python.startswith("import kofn\n")
    with kofn.connect("virtual", found) as cluster:
        assert cluster.keep == count
        cluster.lose(0)
        X = cluster.encode(np.ones((60, 4)), found)
        np.testing.assert_allclose(X @ np.ones(4), 4.0)
        assert len(cluster.workers) == count
    with kofn.connect("virtual", found, keep=2) as cluster:
        assert cluster.keep == 2


# Rivals.


def test_sequential_gradient_codes_are_options_where_nobody_leaves() -> None:
    stage = Stage(SMALL["gradient"], 6, delays_of("exponential(unit=60, mean=1)"))
    rows, tried = replays(stage, 12)
    assert [one.code for one in rows] == ["gc", "sr_sgc", "m_sgc"]
    assert tried > 20
    assert all(len(row.seconds) == 12 for row in rows.values())
    # Any 6 - 0 of 6 is the work without a code: the same luck, and the same time.
    (gc,) = (row for one, row in rows.items() if one == Candidate("gc", (("s", 0),)))
    plain = stage.play(Candidate("uncoded"), 12)
    np.testing.assert_allclose(gc.seconds, plain.seconds, rtol=1e-3)


def test_a_rival_that_would_be_better_is_named() -> None:
    work, goal = SMALL["gradient"], Goal(None, False)
    ours, plain = option("cyclic(c=2)", 100.0, 0.3), option("uncoded", 120.0, 0.2)
    rival = option("m_sgc(B=1, W=2, lam=2)", 90.0, 0.2, runs=False)
    words = why(work, ours, [ours, plain, rival], goal, None)
    assert words[-1].startswith(
        "m_sgc(B=1, W=2, lam=2) would be better by 10.0%; its gradients come "
    )
    assert "so 2 models are trained in turn; kofn has no master for it" in words[-1]
    assert len(why(work, ours, [ours, plain], goal, None)) == 1
    found = kofn.plan(work, 6, SLOW, rounds=10)
    assert {o.candidate.code for o in found.options if not o.runs} >= {"gc", "sr_sgc", "m_sgc"}
    assert found.best.runs
    gone = kofn.plan(work, 6, SLOW, market(3), rounds=3)
    assert not any(o.candidate.code in ("gc", "sr_sgc", "m_sgc") for o in gone.tried)


# Clusters take it.


def first(n: int, kind: str, **more: Any) -> Plan:
    return kofn.plan(SMALL[kind], n, SLOW, rounds=6, **more)


def test_a_cluster_takes_a_plan() -> None:
    rng = np.random.default_rng(0)
    A, w = rng.standard_normal((60, 8)), rng.standard_normal(8)
    scale = float(np.linalg.norm(A) * np.linalg.norm(w))
    product = first(6, "product")
    k, n, margin, _, loads = product.arguments("encode")
    with kofn.connect("virtual", product) as cluster:
        assert len(cluster.workers) == product.workers == n == 6
        X = cluster.encode(A, product)
        assert (X.code.k, X.code.n) == (k, n)
        assert f"k={k}" in product.python
        found, bound = X @ w, X.report.error_bound
        assert bound is not None
        np.testing.assert_allclose(found, A @ w, rtol=0, atol=bound * scale)
        assert margin <= n - k
        assert loads == "measured"
        gradient = first(6, "gradient", tolerance=0.3)
        parts = cluster.parts(A, gradient)
        assert type(parts.code).__name__ in gradient.python
        assert parts.sum(add, w, stop=gradient.stop).covered >= 0.7
        sequence = first(6, "sequence")
        jobs = cluster.sequence(sequence)
        ticket = jobs.submit(A, A.T)
        far = np.linalg.norm(ticket.result() - A @ A.T) / np.linalg.norm(A) ** 2
        assert far <= (ticket.error_bound or 0.0)
        terms = cluster.parts([np.ones(2)] * 60, first(6, "sum"))
        assert terms.sum(plain_term).value == pytest.approx(np.full(2, 60.0))
        with pytest.raises(kofn.BadInput, match=r"for a product, and got to cluster\.parts"):
            cluster.parts(A, product)


def add(part: Any, x: Any) -> Any:
    """A gradient."""
    return part.T @ (part @ x)


def plain_term(part: Any, x: Any) -> Any:
    """A term that is the part itself."""
    return part


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_the_lines_of_python_do_what_the_plan_does(kind: str) -> None:
    found = first(6, kind)
    lines = found.python.replace('"local"', '"virtual"')
    names: dict[str, Any] = {
        "kofn": kofn, "A": np.ones((60, 4)), "data": [np.ones(2)] * 60, "fn": plain_term, "x": None,
    }  # fmt: skip
    exec(lines, names)
    if kind == "product":
        assert names["X"].code.k == found.arguments("encode")[0]
    elif kind == "sequence":
        assert names["jobs"] is not None
    else:
        assert names["parts"].code == found.arguments("parts")[0]
        assert names["r"].exact


# Recorded markets.


def test_prices_hold_on_every_market_that_has_them(data_folder: DataFolder) -> None:
    path = data_folder("spot_traces") / "spot_traces/aws_gcp_spot_availability_2022_2023.npz"
    priced = [one for one in markets_of(path).values() if isinstance(one, SpotTrace) and one.prices]
    assert len(priced) == 6
    work, timings, costs = Work("product", 1_000_000, 100), "exponential(unit=2400, mean=3)", COSTS
    for one in priced:
        best = kofn.plan(work, 1, timings, one, rounds=60, costs=costs).best
        # Begun at moments that the plan did not play, as far as all rounds are done before the end.
        starts = [begun(one, 1, i / 12) for i in range(1, 11) if i / 12 not in STARTS]
        stages = [Stage(work, 1, delays_of(timings), start, costs) for start in starts]
        rows = [stage.play(best.candidate, 60) for stage in stages]
        done = [row.usd for row in rows if len(row.seconds) == 60]
        assert done
        for usd in done:
            assert best.price == pytest.approx(usd, rel=0.1)


# The command.


@pytest.mark.slow
def test_the_command_prints_a_plan(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "knee.png"
    line = ["plan", "--work", "product", "--workers", "6", "--timings", SLOW, "--rounds", "4"]
    line += ["--size", "600x10", "--price", "0.9", "--memory-per-worker", "1MB"]
    shown = CliRunner().invoke(app, [*line, "--json", "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["best"]["price"] > 0
    assert result["options"][0]["code"]
    assert result["settings"] >= 10
    assert picture.stat().st_size > 10_000
    assert result == kofn.plan(SMALL["product"], 6, SLOW, rounds=4, price=0.9).to_dict()
    console = Console(record=True, width=160)
    cli_plan.table(console, result)
    text = console.export_text()
    assert result["why"][0] in text
    assert "uncoded" in text
    for width in (160, 40):
        console = Console(record=True, width=width)
        cli_plan.table(console, result)
        assert result["python"] in console.export_text()  # whole lines, to be pasted


@pytest.mark.slow
def test_what_the_picture_leaves_out_and_the_timings_do_not_tell_is_named() -> None:
    pytest.importorskip("matplotlib")
    seconds = np.ones((20, 6))
    seconds[np.arange(20), np.arange(20) % 6] = 100.0  # somebody is slow in each round
    late = Recording("late", (1.0,), (seconds,))
    found = kofn.plan(SMALL["product"], 6, late, rounds=20)
    assert found.why[-1].startswith("One load recorded, grows=1: ")
    (legend,) = found.plot().legends
    names = [text.get_text() for text in legend.get_texts()]
    least = min(option.seconds for option in found.tried if not option.coded)
    assert names == [f"uncoded (not in view: from {figure(least)} s on)", "mds", "picked"]


def test_only_what_was_played_to_the_end_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("kofn.planning.search.BUDGET", 0.5)  # too little to play all of them
    found = kofn.plan(SMALL["product"], 6, SLOW, rounds=60, price=0.9)
    most = len(found.best.row.seconds)
    played = [o for o in found.tried if 2 * len(o.row.seconds) > most]
    assert len(played) < len(found.tried)
    drawn = found.plot().axes[1].collections
    points = {tuple(xy) for dots in drawn for xy in np.asarray(dots.get_offsets()).tolist()}
    assert points == {(option.cost, option.seconds) for option in played}


def test_the_command_says_first_that_a_deadline_cannot_be_met() -> None:
    line = ["plan", "--work", "product", "--workers", "4", "--timings", CALM, "--rounds", "3"]
    line += ["--size", "600x10", "--deadline", "0.001"]
    shown = CliRunner().invoke(app, line)
    assert shown.exit_code == 1
    assert shown.output.startswith("Not met: Nothing is done within 0.001 s; this is the quickest.")
    asked = CliRunner().invoke(app, [*line, "--json"])
    assert asked.exit_code == 1
    result = json.loads(asked.stdout)
    assert result["met"] is False
    assert {one["code"] for one in result["tried"]} >= {"uncoded", "mds(k=2)"}
    assert all(one["memory_bytes"] == one["memory"] * 48_000 for one in result["tried"])
    late = CliRunner().invoke(app, [*line[:-1], "1000"])
    assert late.exit_code == 0


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4e9), ("4e9", 4e9), ("512 M", 512e6), ("10", 10.0)]
)
def test_sizes_of_memory(text: str, size: float) -> None:
    assert cli_plan.size_of(text) == size


@pytest.mark.parametrize("text", ["much", "4 XB", "1.2.3G", ""])
def test_no_sizes_of_memory(text: str) -> None:
    with pytest.raises(kofn.BadInput, match="as 4e9 or 4GB"):
        cli_plan.size_of(text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tolerance": 1.0}, "tolerance"),
        ({"price": -1}, "price"),
        ({"deadline": 0}, "deadline"),
        ({"rounds": 0}, "rounds"),
        ({"workers": 0}, "workers"),
        ({"market": SpotTrace((Event(0.0, True, "a"), Event(0.0, False, "a")), length=9.0)}, "any"),
        ({"market": SpotTrace((Event(0.0, True, "a"),), length=1e-3)}, "over before any is"),
        ({"market": SpotTrace((Event(0.0, True, "a"),))}, "over before any is"),
        ({"timings": Recording("r", (0.0,), (np.ones((2, 3)),))}, "slope"),
    ],
)
def test_what_cannot_be_planned(change: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"work": "product", "workers": 3, "timings": CALM}
    with pytest.raises(kofn.BadInput, match=problem):
        kofn.plan(**(given | change))


@pytest.mark.parametrize("deadline", [None, 1e6])
def test_machines_for_nothing_are_planned_by_time(deadline: float | None) -> None:
    events = tuple(Event(0.0, True, f"n{i}") for i in range(3))
    free = SpotTrace(events, "free", (Price(0.0, 0.0),), 1e5)
    for market, price in ((free, None), (None, 0.0)):
        given: Any = {"price": price, "deadline": deadline, "rounds": 3}
        plan = kofn.plan(SMALL["product"], 3, SLOW, market, **given)
        assert plan.best.price == 0.0
        assert plan.why


@pytest.mark.parametrize("width", [40, 80])
def test_no_number_of_a_table_is_cut_on_a_narrow_terminal(width: int) -> None:
    made = kofn.plan(SMALL["product"], 4, SLOW, rounds=5, price=1.0).to_dict()
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    cli_plan.table(console, made)
    text = console.export_text()
    assert "…" not in text
    assert f"{made['best']['mean']:.4g}" in text
