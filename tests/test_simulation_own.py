"""Codes that are objects are simulated beside those that have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kofn
from kofn.cli.simulate import defaults
from kofn.codes import AnyKOfN, MDSCode
from kofn.delays import PerUnit, Recording
from kofn.simulation import Stopped, candidates


@pytest.mark.parametrize(
    ("kind", "code", "named"),
    [
        ("product", MDSCode(6, 4), "mds(k=4)"),
        ("gradient", kofn.CyclicRepetition(2), "cyclic(c=2)"),
        ("sequence", kofn.Polynomial(2, 2), "polynomial(x=2, y=2)"),
        ("sum", kofn.RandomGroups(5), "groups(d=5)"),
    ],
)
def test_a_code_that_is_an_object_plays_as_the_one_that_has_a_name(
    kind: Any, code: Any, named: str
) -> None:
    work = kofn.Work(kind, rows=60, columns=8, width=4)
    table = kofn.simulate(work, [code, named], 6, "exponential(unit=6, mean=1)", rounds=6)
    mine, other = table.rows.values()
    assert list(table.rows) == [repr(code), named]
    assert mine.summary() == other.summary()


@dataclass(frozen=True)
class ProductCode(AnyKOfN):
    """Rows, columns and their sums of a 2 x 2 grid of blocks: some sets of four do not decode."""

    n: int = 9
    k: int = 4

    @property
    def generator(self) -> NDArray[np.float64]:
        side = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        return np.kron(side, side)


@dataclass(frozen=True)
class Hilbert(AnyKOfN):
    """All shares decode, and lose all digits."""

    n: int = 12
    k: int = 12

    @property
    def generator(self) -> NDArray[np.float64]:
        index = np.arange(float(self.n))
        return 1 / (1 + index[:, None] + index)


@pytest.mark.parametrize(
    ("code", "error"), [(ProductCode(), kofn.NotDecodable), (Hilbert(), kofn.Inaccurate)]
)
def test_a_code_that_does_not_decode_on_a_cluster_does_not_in_simulation(
    code: AnyKOfN, error: type[kofn.KofnError]
) -> None:
    with kofn.connect("virtual", workers=code.n) as cluster:
        X = cluster.encode(np.ones((60, 3)), code=code)
        with pytest.raises(error) as raised:
            X @ np.ones(3)
    work, named = kofn.Work("product", rows=60, columns=3), f"mds(k={code.k})"
    table = kofn.simulate(work, {"mine": code, "mds": named}, code.n, PerUnit(6.0), rounds=2)
    assert list(table.rows) == ["mds"]
    assert table.left_out == {"mine": str(raised.value)}
    with pytest.raises(error, match="depend on each other" if error is kofn.NotDecodable else None):
        kofn.simulate(work, code, code.n, PerUnit(6.0), rounds=2)


def test_an_object_that_is_no_code_of_this_work_is_refused() -> None:
    wrong: list[tuple[Any, Any]] = [
        ("product", kofn.Uncoded()),
        ("gradient", MDSCode(6, 4)),
        ("sum", 3),
    ]
    for kind, code in wrong:
        with pytest.raises(kofn.BadInput, match="or with objects of"):
            kofn.simulate(kind, code, 6, "perunit(unit=6)")
    with pytest.raises(kofn.BadInput, match="at least the number of live workers"):
        kofn.simulate("product", [MDSCode(5, 4)], 6, "perunit(unit=6)")


def test_a_code_may_be_stopped_early_and_have_another_name() -> None:
    rule = kofn.first(4) | kofn.exact()
    mine = kofn.FractionalRepetition(2, "whole")
    table = kofn.simulate(
        "gradient",
        {"mine": Stopped(mine, rule), "as named": "erasurehead(c=2, r=4)", "exact": mine},
        6,
        "exponential(unit=6, mean=3)",
        rounds=12,
    )
    assert list(table.rows) == ["mine", "as named", "exact"]
    rows = table.rows
    assert rows["mine"].summary() == rows["as named"].summary()
    assert rows["mine"].mean < rows["exact"].mean
    assert rows["exact"].decoding_error == 0 < rows["mine"].decoding_error
    # Four of six workers miss one group of three or none: half as much again of the two others.
    missing = 1 - rows["mine"].exact_share
    assert rows["mine"].decoding_error == pytest.approx(missing * (2 / 3 * 0.5**2 + 1 / 3))
    text = "fractional(stream=whole, stop=first(4) | exact(), weights='least-squares')"
    (name,) = kofn.simulate("gradient", text, 6, PerUnit(6.0), rounds=2).rows
    assert name == ("fractional(stream='whole', stop=first(4) | exact(), weights='least-squares')")
    assert repr(Stopped(mine, rule, "plain")).endswith("stop=first(4) | exact(), weights='plain'")
    with pytest.raises(kofn.BadInput, match="or with objects of"):
        kofn.simulate("product", Stopped(mine, rule), 6, PerUnit(6.0))


def test_equal_codes_are_refused_but_under_two_names() -> None:
    given = 4, PerUnit(4.0)
    for codes in ("uncoded, mds(k=3), mds( k=3 )", [MDSCode(4, 3), MDSCode(4, 3)]):
        with pytest.raises(kofn.BadInput, match="more than once"):
            kofn.simulate("product", codes, *given, rounds=2)
    table = kofn.simulate("product", {"one": "mds(k=3)", "two": "mds(k=3)"}, *given, rounds=2)
    assert table.rows["one"].summary() == table.rows["two"].summary()


@pytest.mark.parametrize("kind", ["product", "gradient", "sequence", "sum"])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_commands_own_codes_are_there_for_any_number_of_workers(
    kind: Any, workers: int
) -> None:
    assert candidates(defaults(kofn.Work(kind), workers), kind)


def test_the_decoding_error_is_that_of_the_sum() -> None:
    # Terms that are unit vectors: what each counts for is seen in the sum itself.
    codes: list[tuple[kofn.SumCode, Any]] = [
        (kofn.Uncoded(), "covered"),
        (kofn.Uncoded(), "plain"),
        (kofn.CyclicRepetition(2, "whole"), "least-squares"),
        (kofn.CyclicRepetition(2, "whole", "random"), "covered"),
        (kofn.CyclicRepetition(2, "whole", "random"), "least-squares"),
        (kofn.FractionalRepetition(2, "whole"), "unbiased"),
    ]
    for code, weights in codes:
        with kofn.connect("virtual", workers=6) as cluster:
            parts = cluster.parts(np.eye(12), code, parts=12)
            total = parts.sum(lambda part, x: part.sum(axis=0), stop=kofn.first(2), weights=weights)
        off = float(np.square(total.value - 1).mean())
        assert total.report.decoding_error == pytest.approx(off)
        assert off > 0


def test_codes_as_published_can_be_named() -> None:
    table = kofn.simulate(
        "gradient",
        ["tandon(c=2)", kofn.CyclicRepetition(2, "whole", "random")],
        5,
        "exponential(unit=5, mean=1)",
        rounds=4,
    )
    mine, other = table.rows.values()
    assert mine.summary() == other.summary()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fractional(stop=3)", "stop is a stop rule"),
        ("fractional(stop=first(0))", r"r of first\(r\) must be a whole number"),
        ("fractional(stop=first(2) | 3)", "a value is a number, a word, or a stop rule"),
        ("fractional(stop=second(2))", "a value is a number, a word, or a stop rule"),
        ("fractional(covered=0.5, stop=first(2))", "Leave one of them out, or join them"),
        ("cyclic(weights=unbiased, stop=first(2))", "weights='unbiased' divides"),
    ],
)
def test_stop_rules_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(kofn.BadInput, match=problem):
        kofn.simulate("gradient", text, 6, PerUnit(6.0))


def test_rules_are_shown_as_they_are_written() -> None:
    rule = (kofn.first(3) | kofn.fraction(0.9)) & kofn.deadline(2.0) | kofn.exact()
    shown = "((first(3) | fraction(0.9)) & deadline(2.0)) | exact()"
    assert repr(rule) == shown
    assert repr(kofn.stop.all()) == "all()"


def test_the_heading_says_what_is_assumed_of_one_load() -> None:
    one = Recording("mine", (0.5,), (np.ones((4, 2)),))
    two = Recording("mine", (0.5, 1.0), (np.ones((4, 2)), 2 * np.ones((4, 2))))

    def heading(timings: Any, **more: float) -> str:
        table = kofn.simulate("gradient", "uncoded", 2, timings, rounds=2, **more)  # type: ignore[arg-type]
        assert table.to_dict()["assumed"] == table.assumed
        return str(table).splitlines()[0]

    assert "simulated, one load recorded, grows=1; best" in heading(one)
    assert "one load recorded, grows=0.5; best" in heading(one, grows=0.5)
    for line in (heading(two), heading(one, slope=1.0), heading("perunit")):
        assert "gradient, 2 workers, simulated; best" in line
