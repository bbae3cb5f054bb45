"""kofn bench fleet runs, and measures what it says; no timing is a pass mark."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import kofn
from kofn.cli.bench import fleet as bench_fleet
from kofn.delays.traces import Event, SpotTrace
from kofn.reproduce import datasets

# Three machines at first; one goes, is replaced, and in the end two are left.
TRACE = SpotTrace(
    (
        *(Event(0.0, True, node) for node in "abc"),
        Event(30.0, False, "a"),
        Event(50.0, True, "d"),
        Event(90.0, False, "b"),
    ),
    "a short market",
)


def test_the_time_at_full_rate_is_that_of_undisturbed_iterations() -> None:
    tally = bench_fleet.Tally(done=[2, 2, 4], calm=[(2, 1.0), (2, 3.0), (4, 1.0)])
    figures = tally.figures(wall=10.0)
    assert figures["effective"] == pytest.approx((2.0 + 2.0 + 1.0) / 10.0)
    assert figures["iterations"] == 3
    assert np.isnan(bench_fleet.Tally(done=[2]).figures(wall=10.0)["effective"])


@pytest.mark.engine
def test_each_way_goes_through_the_market(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "market", lambda data: TRACE)
    monkeypatch.setattr(bench_fleet, "THRESHOLD", 2)
    monkeypatch.setattr(bench_fleet, "ITERATION", 0.01)
    monkeypatch.setattr(bench_fleet, "ROWS", 96)
    costs = bench_fleet.Costs(notice=10.0, download=2.0, restart=2.0, checkpoint=5.0)
    found = bench_fleet.run(None, 3.0, costs)
    assert (found["events"], found["at_start"], found["most"]) == (6, 3, 3)
    for figures in found["ways"].values():
        assert figures["iterations"] > 0
        assert not figures["effective"] <= 0
        assert figures["killed"] <= 2
    assert found["ways"]["coded, with notices"]["thrown_away"] == 0
    assert found["ways"]["restart from checkpoint"]["restarts"] >= 1
    text = StringIO()
    bench_fleet.table(Console(file=text, width=160), found)
    assert "stop the world" in text.getvalue()


def test_a_folder_without_the_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kofn.KofnError, match="spot_traces"):
        bench_fleet.run(tmp_path, 5.0)
