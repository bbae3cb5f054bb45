"""In a notebook: tables, pictures, and lines of the logger that was asked for."""

from __future__ import annotations

import logging
import pydoc
import sys
import types
from typing import Any

import numpy as np
import pytest

import kofn
from kofn.display import figure, grid
from kofn.learn import LogisticRegression
from kofn.report import timeline


def test_what_is_made_shows_itself(caplog: pytest.LogCaptureFixture) -> None:
    A = np.arange(12.0).reshape(6, 2)
    with (
        caplog.at_level(logging.INFO, logger="kofn"),
        kofn.connect("virtual", workers=4) as cluster,
    ):
        X = cluster.encode(A, 2)
        X @ np.ones(2)
        cluster.lose(1)
        X @ np.ones(2)
        total = cluster.parts(A, parts=3).sum(lambda part, x: part.sum(axis=0), 0.0)
        assert "<th style='text-align:left'>workers</th>" in cluster._repr_html_()
        assert "6 x 2 float64" in X._repr_html_()
        assert "error bound" in X.report._repr_html_()
        assert ">total" not in X.report._repr_html_()
        assert "total: " in X.report._repr_html_()
        assert "ndarray of shape (2,)" in total._repr_html_()
        assert "exact" in total._repr_html_()
        picture = timeline(cluster.log)._repr_png_()  # type: ignore[attr-defined]
        assert picture.startswith(b"\x89PNG")
    assert "closed" in cluster._repr_html_()
    assert any("worker 1 is lost" in record.getMessage() for record in caplog.records)
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_a_fit_in_a_notebook_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class ZMQInteractiveShell:
        pass

    class Handle:
        update = lines.append

    def display(line: str, display_id: bool) -> Handle:
        lines.append(line)
        return Handle()

    here, there = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    here.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    there.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", here)
    monkeypatch.setitem(sys.modules, "IPython.display", there)
    X = np.random.default_rng(0).standard_normal((30, 3))
    LogisticRegression(cluster="virtual", verbose=True).fit(X, X[:, 0] > 0)
    assert lines[0] == "iteration 0"
    assert "workers live" in lines[-1]
    assert lines[-1]._repr_html_().startswith("<pre>iteration")  # type: ignore[attr-defined]


def test_values_cannot_bring_markup_along() -> None:
    from kofn.display import table

    assert "<b>" not in table("<b>", {"<b>": "<b>", "x": ("<b>", 0.12345678)})
    assert "0.1235" in table("t", {"x": 0.12345678})


def test_a_plan_and_a_simulation_show_what_was_compared() -> None:
    given: dict[str, Any] = {"workers": 4, "timings": "exponential(unit=8, mean=1)", "rounds": 4}
    table = kofn.simulate("product", "uncoded, mds(k=2)", **given)
    assert "<td style='text-align:left'>mds(k=2)</td>" in table._repr_html_()
    assert "usd" not in table._repr_html_()
    plan = kofn.plan("product", **given)
    shown = plan._repr_html_()
    assert all(one.code in shown for one in plan.options[:3])
    assert "<pre>import kofn" in shown
    assert "<b>" not in grid("<b>", ["<b>"], [["<b>"], [None]])


def test_large_numbers_are_printed_whole() -> None:
    assert [figure(x) for x in (0.12345, 999.96, 28754.6, -28754.6)] == [
        "0.1235", "1000", "28,755", "-28,755",
    ]  # fmt: skip
    assert [figure(2e10), figure(1234.5, ".3g"), figure(0.5, ".0%")] == ["2e+10", "1,234", "50%"]


def test_nothing_is_said_unless_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        cluster.lose(1)
        cluster.encode(np.eye(4), 2) @ np.ones(4)
    assert capfd.readouterr().err == ""


def test_help_introduces() -> None:
    text = pydoc.plain(pydoc.render_doc(kofn))
    for word in ("connect", "encode", "kofn.learn", "KofnError", "kofn demo"):
        assert word in text[:3000]
