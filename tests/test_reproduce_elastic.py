"""kofn reproduce elastic: what it writes, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claimed import citing, holds_in
from rich.console import Console
from support import DataFolder, unresolved
from typer.testing import CliRunner

from kofn.cli import reproduce
from kofn.cli.app import app
from kofn.errors import BadInput
from kofn.reproduce import elastic, elastic_more, linear, moved, timing
from kofn.reproduce.datasets import house_prices
from kofn.reproduce.inventory import claims

pytestmark = pytest.mark.papers

# The clock of the workers is simulated, so that figures are the same on any machine.
TINY = replace(
    elastic.QUICK,
    simulated=True,
    rounds=1,
    rows=2400,
    columns=10,
    share_seconds=0.1,
    straggler_seconds=0.04,
    speeds_seconds=0.05,
    virtual_rounds=1,
    sequences=20,
    linear=replace(linear.QUICK, iterations=8, timed=1, simulated=True),
    more=elastic_more.Settings(
        widths=(784, 12, 10),
        batch=20,
        steps=1,
        repeats=1,
        iterations=6,
        trials=20,
        codes=1,
        simulated=True,
    ),
)
MACHINES = [str(n) for n in range(10, 21)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("reproduce") / "new" / "folder"
    reproduce.run("elastic", out, None, True, quiet=True, settings=TINY)
    return out


@pytest.fixture(scope="module")
def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_elastic.py::test_the_figure_of_a_claim")
)
def test_the_figure_of_a_claim(claim: str, results: Any) -> None:
    holds_in(claim, results)


def test_every_key_that_is_promised_is_there(results: Any) -> None:
    for key in ("adaptive_over_nonadaptive", "virtual_adaptive_over_nonadaptive"):
        assert list(results[key]) == MACHINES
    assert set(results["straggler"]) >= {"margin", "top_up", "neither", "uncoded"}
    assert set(results["rows_moved"]) >= {"6-5", "4-3", "20-19", "11-10"}
    assert results["settings"]["rounds"] == 1
    assert "sleeps" in results["stood_in"]
    for row in results["theorem_2_2"]:
        assert row["kept_over_bound"] == row["used_over_bound"] == 1.0
        assert row["used_by_one_over_bound"] < 1.03
        assert row["sent_again"] == 0
    assert results["section_3_3"]["lost"] == 10
    assert {"here", "rows, no code", "2 x 2", "3 x 3", "4 x 4"} == set(results["grids"])
    for run in results["grids"].values():
        assert run.get("weights_apart", 0.0) < 1e-8
    for row in results["stop_the_world"]:
        assert row["coded"] >= row["stop_the_world"] > 0
    rows = results["rateless_rows"]
    assert rows["ideal"]["mean"] <= rows["lt"]["mean"] <= rows["uncoded"]["mean"]
    assert rows["rateless"]["mean"] <= rows["uncoded"]["mean"]
    assert rows["lt_symbols"] >= 10_000
    stay = results["windows_that_stay"]
    assert all(row["moved"] == 0 for n in ("6-3", "20-10") for row in stay[n].values())
    assert all(row["load"] < 1.1 for row in stay["6-3"].values())


def test_every_claim_of_the_paper_has_a_value_or_a_reason(results: Any) -> None:
    assert unresolved(claims("elastic"), results) == []


def test_the_simulated_ratio_is_the_bound(results: Any) -> None:
    for n, ratio in results["virtual_adaptive_over_nonadaptive"].items():
        # Windows are cut at whole rows: one row of a share of 10,000, at most.
        assert ratio == pytest.approx(10 / int(n), abs=1.1e-4)


def test_late_machines_cost_what_the_model_says(results: Any) -> None:
    late = results["straggler"]
    assert late["neither"] == pytest.approx(10.0)
    # One of 12 is ten times slower, threshold 8, so a window is 8/12 of a share: with one
    # machine more for each row it is 9/12.
    assert late["margin"] == pytest.approx(9 / 8)
    assert 1.5 < late["top_up"] < 1.6
    assert results["speeds_1_2_4"] == pytest.approx(7 / 3, rel=0.01)
    for n, ratio in results["adaptive_over_nonadaptive"].items():
        # Windows are cut at whole rows: one row of a share of 240, at most.
        assert ratio == pytest.approx(10 / int(n), abs=1 / 240)


def test_rows_moved_is_at_most_a_quarter_of_cyclic(results: Any) -> None:
    for total in results["rows_moved_total"].values():
        assert total["ours"] <= 0.25 * total["cyclic"]
    table = results["rows_moved"]
    assert table["6-5"]["cyclic"] == pytest.approx(2 / 45)  # by hand: 6, 6, 12 ... of 180 rows
    assert table["6-5"]["ours"] == pytest.approx(1 / 90)
    assert all(row["ours"] <= row["cyclic"] for row in table.values())


def test_rows_moved_by_hand() -> None:
    # Machine 1 leaves 0, 1, 2 at threshold 2: everyone reads everything, no row must move.
    assert moved.transitions(3, 2, [(1,)]) == {"3-2": {"cyclic": 0.0, "ours": 0.0}}


# Gradient descent on a market.


def test_the_coded_losses_are_the_noiseless_ones_while_machines_come_and_go(results: Any) -> None:
    curves, runs = results["loss_curves"], results["linear_runs"]
    for exact in ("coded", "replication"):
        assert curves[exact] == pytest.approx(curves["noiseless"], abs=1e-8)
        assert runs[exact]["restarted"] == 0
        assert runs[exact]["stopped"] is None
    assert results["max_loss_difference"] <= 1e-8
    assert results["restarted"] == 0
    for name in ("coded", "ignore", "distr_bgd"):
        # Two minutes an iteration; what is due in the last two may or may not have happened.
        assert 3 <= runs[name]["killed"] + runs[name]["added"] <= 10
        assert len(curves[name]) == len(results["live_workers"][name]) == 8
    assert min(results["live_workers"]["coded"]) < 20
    assert results["linear_data"] == "made up"


def test_ignoring_and_stale_gradients_go_other_ways(results: Any) -> None:
    curves = results["loss_curves"]
    for name in ("ignore", "distr_bgd"):
        apart = [abs(a - b) for a, b in zip(curves[name], curves["noiseless"], strict=True)]
        assert max(apart) > 1e-6


def test_half_the_machines_take_twice_the_time(results: Any) -> None:
    times = results["virtual_figure_2b_seconds"]
    assert times["coded_all"] == pytest.approx(times["uncoded"], rel=0.01)
    assert set(results["figure_2b_seconds"]) == {"uncoded", "coded_all", "coded_half"}


@pytest.mark.engine
def test_workers_are_processes_where_they_are_not_simulated() -> None:
    A = np.arange(8.0).reshape(4, 2)
    for simulated in (False, True):
        with timing.paced(2, 4, 0.01, simulated=simulated) as cluster:
            assert (cluster.engine.pid(0) is None) == simulated
            start = cluster.engine.now()
            np.testing.assert_allclose(cluster.encode(A, k=1) @ np.ones(2), A.sum(axis=1))
            assert cluster.engine.now() - start >= 0.005  # half of a share each


def test_house_prices_of_the_published_size(data_folder: DataFolder) -> None:
    prices = house_prices(data_folder("kc_house"))
    assert prices.X.shape == (20_000, 3352)
    assert prices.X_test.shape == (1613, 3352)
    for start in linear.STARTS:
        trace = prices.trace.since(60.0 * start).at_most(20)
        assert (trace.at_start, trace.most) == (20, 20)


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"kc_house/kc_onehot_3352\.npz.*made-up data"):
        house_prices(tmp_path)


def test_pictures_and_page(out: Path, results: Any) -> None:
    names = ["distr_bgd.png", "figure_2a.png", "figure_2b.png", "figure_2cd.png", "grids.png"]
    names += ["rows_moved.png", "speeds.png", "straggler.png"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*names, "index.html", "results.json"]
    )
    for name in names:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    assert f"{results['speeds_1_2_4']:.2f} times faster" in page
    assert 'src="http' not in page


def test_the_results_are_printed_for_a_person(results: Any) -> None:
    console = Console(width=120, record=True)
    reproduce.table(console, results)
    text = console.export_text()
    assert "distr_bgd" in text
    assert "0 rounds were restarted" in text


def test_bad_places_are_told_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(BadInput, match="--out"):
        reproduce.run("elastic", file, None, True, quiet=True)
    with pytest.raises(BadInput, match="--data"):
        reproduce.run("elastic", tmp_path, tmp_path / "none", True, quiet=True)


def test_the_command_is_there() -> None:
    done = CliRunner().invoke(app, ["reproduce", "elastic", "--help"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    for option in ("--data", "--out", "--quick", "--json"):
        assert option in done.stdout
