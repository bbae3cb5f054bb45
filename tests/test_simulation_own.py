"""Codes that are objects are simulated beside those that have names."""

from __future__ import annotations

from typing import Any

import pytest

import kofn
from kofn.codes import MDSCode


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
