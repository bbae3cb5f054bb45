"""kofn reproduce erasurehead, whole, on small made-up data of the real ones' form."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from claimed import citing, holds, holds_in
from rich.console import Console
from scipy.sparse import csr_array
from support import DataFolder, unresolved
from test_datasets import (
    made_amazon,
    made_covtype,
    made_houses,
    made_recordings,
)

import kofn
from kofn.cli import reproduce
from kofn.delays import Exponential
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.reproduce import (
    datasets,
    erasure_theory,
    erasurehead,
    erasurehead_page,
    erasures,
    figures,
    page,
    stand_ins,
    straggling,
)
from kofn.reproduce.datasets import Dataset
from kofn.reproduce.erasurehead import Settings, simulated
from kofn.reproduce.inventory import claims
from kofn.reproduce.kept import Kept
from kofn.reproduce.training import Run, reached

pytestmark = pytest.mark.papers

SMALL = Settings(
    workers=6,
    wait=3,
    iterations=5,
    time_scale=0.002,
    virtual_iterations=5,
    plain_iterations=2,
    simulated=20,
    draws=20_000,
    rivals=straggling.Grid(6, (1.0, 0.5), (0.5,), (2,), (4,), (3.0,)),
    theory=erasure_theory.Sizes(4, 2, draws=10_000, fleets=(30, 240), rounds=40),
    more=erasures.Sizes(iterations=3, fractions=(0.5,), rounds=5),
    processes=False,  # so that its figures are the same on any machine
)
METHODS = {"uncoded", "ignore", "egc2", "egc3", "agc2", "agc3"}


def made(where: Path) -> Path:
    made_amazon(where, 60)
    made_covtype(where, 200)
    made_houses(where, 40)
    made_recordings(where, straggling.RECORDING, erasures.RECORDING)
    return where


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One small run on made-up data: its folder and its results."""
    where = tmp_path_factory.mktemp("erasurehead")
    told: list[str] = []
    measure = erasurehead.measure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(straggling, "WORKERS", 8)
        patch.setattr(
            erasurehead,
            "measure",
            lambda data, settings, tell, kept: measure(data, settings, told.append, kept),
        )
        # All pictures take three seconds to draw: most are left to a long test.
        sentences = erasurehead_page.sentences
        patch.setattr(erasurehead_page, "sentences", lambda found: few(sentences(found)))
        out, data = where / "out", made(where)
        found = reproduce.run("erasurehead", out, data, False, None, quiet=True, settings=SMALL)
    assert len(told) == SMALL.progress_steps  # the bar ends where it should
    return out, found


def few(sentences: dict[str, str]) -> dict[str, str]:
    """Those of two pictures of ErasureHead's page."""
    return {name: sentences[name] for name in ("figure_2", "theory")}


@pytest.mark.long
def test_all_pictures(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    page.publish(erasurehead_page, written[1], tmp_path)
    pictures = {path.stem for path in tmp_path.glob("*.png") if path.stat().st_size > 5_000}
    assert pictures == set(erasurehead_page.sentences(written[1]))
    assert len(pictures) == 11


@pytest.mark.long
def test_by_the_wall_clock(tmp_path: Path) -> None:
    data = made(tmp_path)
    with LocalEngine(6) as engine:
        settings = replace(SMALL, processes=True)
        loaded = datasets.load("kc_house", data)
        found = erasurehead.one(loaded, settings, engine, lambda what: None)
    assert min(found["wall_seconds_per_iteration"].values()) > 0
    runs = found["curves"]
    assert np.allclose(runs["egc2"]["metric"], runs["uncoded"]["metric"], atol=1e-9)


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_erasurehead.py::test_claims_in_one_small_run")
)
def test_claims_in_one_small_run(claim: str, written: tuple[Path, dict[str, Any]]) -> None:
    holds_in(claim, written[1])


def test_claims_on_recorded_delays(data_folder: DataFolder) -> None:
    folder = data_folder(datasets.TIMINGS)
    found = {"figure_1": erasures.completion(folder, 30, 11, erasures.Sizes(rounds=5))}
    holds_in("erasurehead: Figure 1", found)
    seconds = found["figure_1"]["recordings"][erasures.RECORDING]["seconds_per_iteration"]
    holds("erasurehead: Figure 4", seconds["agc2"], seconds["uncoded"])


@pytest.mark.claim("erasurehead: Remark 1")
def test_dropping_stragglers_is_a_code_of_one_copy() -> None:
    sums = {}
    for code in (kofn.Uncoded("whole"), kofn.FractionalRepetition(1, "whole")):
        engine = VirtualEngine(6, delays=Exponential(0.0, 2.0), seed=3)
        with kofn.connect(engine) as cluster:
            parts = cluster.parts(np.arange(12.0), code, parts=6)
            results = [parts.sum(_square, stop=kofn.first(4)) for _ in range(5)]
        sums[code] = [(float(each.value), each.covered, each.report.finished) for each in results]
    uncoded, one_copy = sums.values()
    assert uncoded == one_copy
    assert all(covered == 4 / 6 for _, covered, _ in uncoded)
    assert len({finished for _, _, finished in uncoded}) > 1  # others are dropped each time


def _square(part: Any, x: Any) -> Any:
    return (part**2).sum()


def test_no_method_is_later_than_theorem_3_says() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 18))
    on = erasure_theory.Ridge(X, X @ rng.standard_normal(18) + 0.1 * rng.standard_normal(1200))
    few = erasure_theory.Sizes(iterations=6, repeats=2)
    descents = erasure_theory.descents(on, 30, 6, 24, few, lambda what: None)
    found = {"theory": {"more": descents}}
    holds_in("erasurehead: Theorem 3, uncoded", found)
    holds_in("erasurehead: Theorem 3, exact", found)
    holds_in("erasurehead: Theorem 3, approximate", found)


def test_results_have_what_they_must(written: tuple[Path, dict[str, Any]]) -> None:
    out, found = written
    assert json.loads((out / "results.json").read_text()) == found
    assert set(found["shapes"]) == {"amazon", "covtype", "kc_house"}
    assert found["shapes"]["kc_house"][0] == 32
    assert found["all_rows"]["kc_house"] == 40
    assert set(found["virtual_seconds_per_iteration"]) == METHODS
    for name in found["shapes"]:
        assert set(found["time_to_target"][name]) == METHODS
        assert found["time_to_target"][name]["uncoded"] is not None
        runs = found["curves"][name]
        # Exact codes walk where uncoded descent does.
        assert np.allclose(runs["egc2"]["metric"], runs["uncoded"]["metric"], atol=1e-9)
        assert found["covered"][name]["egc3"] == 1.0
        assert found["covered"][name]["agc2"] <= 1.0
        assert set(found["estimates"][name]) == {"wait", "uncoded", *erasures.ESTIMATES}
        assert set(found["sweep"][name]["by_copies"]) == {"1", "2", "3"}
        assert found["cyclic"][name]["cyclic_exact"]["mean_covered"] == 1.0
        assert set(found["recorded"][name]["methods"]) == METHODS
    assert found["wall_speedup"]["agc2_over_uncoded"] > 0
    assert {"agc2_over_egc2", "agc3_over_egc3"} <= set(found["wall_speedup"])
    descents = found["theory"]["more"]  # of several methods, each below its bound
    assert max(descents["largest_over_bound"].values()) <= 1
    exactly = found["theory"]["exact_from"]
    assert exactly["as_printed"] == 7
    assert exactly["sets_as_printed_that_miss_a_block"] == 144
    for inverse, best in found["theory"]["best_copies"].items():
        assert str(best["lemma_8"]) == inverse
    assert found["lemma8"]["2"]["exact_as_printed"] < found["lemma8"]["2"]["stated"]["exact"]
    assert set(found["figure_1"]["recordings"]) == {straggling.RECORDING, erasures.RECORDING}
    assert "MNIST" in found["network"]["problem"]  # tests/test_learn_torch.py has some
    assert unresolved(claims("erasurehead"), found) == []


def test_rivals_have_as_many_settings_and_a_code_survives_lost_rows(
    written: tuple[Path, dict[str, Any]],
) -> None:
    rivals, unequal = written[1]["rivals"], written[1]["unequal"]
    assert {name.split("_")[0] for name in rivals["methods"]} == set(rivals["best"])
    assert rivals["kofn_faster_than"]["uncoded"] is not None
    assert "ignore" in rivals["kofn_faster_than"]
    assert unequal["sorted_lost"]["uncoded"] is None  # nobody has those rows
    assert unequal["sorted_lost"]["egc2"]["mean_covered"] == 1.0
    assert unequal["sorted_lost"]["ignore_4"]["mean_covered"] < 1.0
    assert rivals["tried"] == dict.fromkeys(straggling.KINDS, 2)  # like for like
    assert set(rivals["by_portion"]) == {"1", "0.5"}
    for kind in ("kofn", "dsag", "backups"):
        rows = rivals["by_portion"].values()
        each = [row[kind] for row in rows if row[kind] is not None]
        assert rivals["best"][kind] is None or rivals["best"][kind]["seconds"] == min(each)


def test_page_pictures_and_tables(written: tuple[Path, dict[str, Any]]) -> None:
    out, found = written
    # These are no figures of Amazon's data or King County's, and nothing says so.
    assert not found["made_up"]
    assert found["foreign"].startswith("These are not the published data: Amazon has 48 x ")
    text = (out / "index.html").read_text()
    assert found["foreign"] in text
    assert "on other data of the form of Amazon uncoded descent is" in text
    for name in erasurehead_page.DATA.values():
        assert text.count(name) == text.count(f"form of {name}") + found["foreign"].count(name)
    for name in few(erasurehead_page.sentences(found)):
        assert (out / f"{name}.png").stat().st_size > 5_000
    printed = StringIO()
    reproduce.table(Console(file=printed, width=160), found)
    assert "settings tried in all" in printed.getvalue()


def test_simulated_times_are_those_of_the_model() -> None:
    def harmonic(n: int) -> float:
        return float(sum(1 / i for i in range(1, n + 1)))

    found: Any = simulated(Settings(workers=12, wait=4, simulated=120))
    times = found["virtual_seconds_per_iteration"]
    # Within five standard errors of a mean of 120, and the slice of 10 ms in which a cancelled
    # worker looks up.
    assert times["uncoded"] == pytest.approx(2 * harmonic(12), rel=0.2)
    assert times["egc2"] == pytest.approx(harmonic(6), rel=0.25)
    assert times["egc3"] == pytest.approx(2 / 3 * harmonic(4), rel=0.25)
    assert times["agc2"] == pytest.approx(2 * (harmonic(12) - harmonic(8)), rel=0.25)
    # What a straggler has half done counts: exact sums come sooner.
    whole = found["virtual_seconds_per_iteration_by_load"]
    streamed = found["virtual_seconds_per_iteration_by_load_streamed"]
    assert streamed["egc2"] < 0.95 * whole["egc2"]
    assert streamed["egc3"] < 0.95 * whole["egc3"]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match="--data"):
        reproduce.run("erasurehead", tmp_path, tmp_path / "no", True, None, quiet=True)
    with pytest.raises(kofn.BadInput, match="--time-scale"):
        reproduce.run("erasurehead", tmp_path, tmp_path, True, -1.0, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(kofn.BadInput, match="is a file"):
        reproduce.run("erasurehead", tmp_path / "file", None, True, None, quiet=True)


def test_all_files_that_are_missing_are_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput) as caught:
        reproduce.run("erasurehead", tmp_path / "out", tmp_path, True, None, quiet=True)
    for name, origin in datasets.SOURCES.items():
        assert f"{name} from {origin}" in str(caught.value)
    assert not (tmp_path / "out").exists()
    made_houses(tmp_path)
    made_covtype(tmp_path, 20)
    with pytest.raises(
        kofn.BadInput, match=r"Get amazon_access/train.csv from [^,]*; needs a login\)"
    ):
        datasets.complete(tmp_path)


def test_without_data_they_are_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def measured(data: Path, *_others: Any) -> dict[str, Any]:
        seen.append(data)
        return {"shapes": {name: datasets.load(name, data).shape for name in datasets.LOADERS}}

    monkeypatch.setattr(erasurehead, "_measure", measured)
    monkeypatch.setattr(stand_ins, "ROWS", 300)
    erasurehead.check(None)
    found: Any = erasurehead.measure(None, SMALL, lambda what: None, Kept(tmp_path, {}))
    assert found["made_up"]
    assert found["shapes"]["kc_house"][0] == 240
    said = erasurehead_page.foreign(found) or ""
    assert "made up: nothing here is a figure of the paper" in said
    assert not seen[0].exists()
    right = {"shapes": {name: list(shape) for name, shape in datasets.PUBLISHED.items()}}
    assert erasurehead_page.foreign(right) is None


def test_without_recordings_the_rivals_say_so(tmp_path: Path) -> None:
    made_houses(tmp_path)
    found = straggling.table(
        datasets.load("kc_house", tmp_path), tmp_path, SMALL.rivals, lambda what: None
    )
    assert "straggler_traces" in found["problem"]


def test_a_target_is_reached_when_the_metric_is_there_for_the_first_time() -> None:
    def data(regression: bool) -> Dataset:
        X = csr_array(np.eye(2))
        return Dataset("made", X, np.zeros(2), X, np.array([1.0, -1.0]), regression)

    def run(*errors: float) -> Run:
        points = [np.array([1.0, -1.0]) + np.sqrt(error) for error in errors]
        return Run([float(i + 1) for i in range(len(errors))], points, [1.0] * len(errors))

    bounces = run(9.0, 1.0, 4.0, 5.0, 6.0, 0.5, 2.0)
    assert reached(data(True), bounces, 1.0) == 2.0
    assert reached(data(True), bounces, 0.75) == 6.0
    assert reached(data(True), bounces, 0.1) is None


def test_a_quick_run_says_so_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[Any]] = {"quick": [], "full": []}
    for kind in told:
        figure = figures.sheet(2, 2)
        shown = SimpleNamespace(
            TITLE="Title",
            a=partial(_same, figure),
            sentences=lambda results: {"a": "A picture."},
            tables=lambda results: ["A line."],
        )
        monkeypatch.setitem(reproduce.PAPERS, "some", (None, shown))
        results = {"paper": "some", "settings": {"cores": 2}, "stood_in": ""}
        found = reproduce.publish(tmp_path, results, kind == "quick", shown)
        text = StringIO()
        reproduce.table(Console(file=text), found)
        page = (tmp_path / "index.html").read_text()
        told[kind] = [
            found["quick"],
            "quick run" in page,
            [t.get_text() for t in figure.texts],
            "quick run" in text.getvalue(),
        ]
    assert told["quick"][0]
    assert told["quick"][1:] == [True, ["quick run"], True]
    assert told["full"] == [None, False, [], False]


def _same(figure: Any, results: dict[str, Any]) -> Any:
    return figure
