"""kofn reproduce erasurehead, whole, on small made-up data of the real ones' form."""

from __future__ import annotations

import json
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.sparse import csr_array
from support import unresolved
from test_datasets import (
    made_amazon,
    made_covtype,
    made_houses,
)

import kofn
from kofn.cli import reproduce
from kofn.reproduce import (
    datasets,
    erasure_theory,
    erasurehead,
    erasurehead_page,
    erasures,
    figures,
    network,
    stand_ins,
    straggling,
)
from kofn.reproduce.datasets import Dataset
from kofn.reproduce.erasurehead import Settings, lemmas, simulated
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
    theory=erasure_theory.Sizes(iterations=4, repeats=2, draws=500),
    more=erasures.Sizes(iterations=3, fractions=(0.5,), rounds=5),
    network=network.Sizes(steps=2, batch=0.5, every=1, fresh=(2,)),
)
METHODS = {"uncoded", "ignore", "egc2", "egc3", "agc2", "agc3"}


def made(where: Path) -> Path:
    made_amazon(where, 60)
    made_covtype(where, 200)
    made_houses(where, 40)
    (where / "straggler_traces").mkdir()
    rng = np.random.default_rng(0)
    loads = {
        f"{name}_load{load:.3f}": (1 + load + rng.exponential(0.3, (4, 8))).astype(np.float32)
        for name in (straggling.RECORDING, network.RECORDING)
        for load in (0.0, 0.25, 0.5, 1.0)
    }
    (where / "mnist").mkdir()
    for part, rows in (("train", 48), ("t10k", 20)):
        labels = rng.integers(0, 10, rows, dtype=np.uint8)
        images = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (where / f"mnist/{part}-{kind}-ubyte").write_bytes(head + array.tobytes())
    np.savez(where / datasets.TIMINGS, **loads)  # type: ignore[arg-type]
    return where


def test_it_writes_its_results_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straggling, "WORKERS", 8)
    out = tmp_path / "out"
    told: list[str] = []
    measure = erasurehead.measure
    monkeypatch.setattr(
        erasurehead,
        "measure",
        lambda data, settings, tell, kept: measure(data, settings, told.append, kept),
    )
    found = reproduce.run(
        "erasurehead", out, made(tmp_path), False, None, quiet=True, settings=SMALL
    )
    assert json.loads((out / "results.json").read_text()) == found
    # These are no figures of Amazon's data or King County's, and nothing says so.
    assert not found["made_up"]
    assert found["foreign"].startswith("These are not the published data: Amazon has 48 x ")
    page = (out / "index.html").read_text()
    assert found["foreign"] in page
    assert "on other data of the form of Amazon uncoded descent is" in page
    for name in erasurehead_page.DATA.values():
        assert page.count(name) == page.count(f"form of {name}") + found["foreign"].count(name)
    assert len(told) == SMALL.progress_steps  # the bar ends where it should
    assert set(found["shapes"]) == {"amazon", "covtype", "kc_house"}
    assert found["shapes"]["kc_house"][0] == 32
    assert set(found["lemma2"]["2"]) == {"p", "q", "p_monte_carlo", "q_monte_carlo"}
    assert set(found["virtual_seconds_per_iteration"]) == METHODS
    for name in found["shapes"]:
        assert set(found["time_to_target"][name]) == METHODS
        assert found["time_to_target"][name]["uncoded"] is not None
        runs = found["curves"][name]
        # Exact codes walk where uncoded descent does.
        assert np.allclose(runs["egc2"]["metric"], runs["uncoded"]["metric"], atol=1e-9)
        assert found["covered"][name]["egc3"] == 1.0
        assert found["covered"][name]["agc2"] <= 1.0
    assert found["wall_speedup"]["agc2_over_uncoded"] > 0
    assert {"agc2_over_egc2", "agc3_over_egc3"} <= set(found["wall_speedup"])
    rivals = found["rivals"]
    assert {name.split("_")[0] for name in rivals["methods"]} == set(rivals["best"])
    assert rivals["kofn_faster_than"]["uncoded"] is not None
    assert "ignore" in rivals["kofn_faster_than"]
    unequal = found["unequal"]
    assert unequal["sorted_lost"]["uncoded"] is None  # nobody has those rows
    assert unequal["sorted_lost"]["egc2"]["mean_covered"] == 1.0
    assert unequal["sorted_lost"]["ignore_4"]["mean_covered"] < 1.0
    tried = rivals["tried"]  # like for like
    assert tried == dict.fromkeys(straggling.KINDS, 2)
    assert set(rivals["by_portion"]) == {"1", "0.5"}
    for kind in ("kofn", "dsag", "backups"):
        each = [found[kind] for found in rivals["by_portion"].values() if found[kind] is not None]
        assert rivals["best"][kind] is None or rivals["best"][kind]["seconds"] == min(each)
    assert unresolved(claims("erasurehead"), found) == []
    descents = found["theory"]["more"]  # of several methods, each below its bound
    assert max(descents["largest_over_bound"].values()) <= 1 + 1e-9
    assert found["theory"]["lemmas"]["2"]["lemma_3"]["stated"] > 0
    for name in found["shapes"]:
        assert set(found["estimates"][name]) == {"wait", "uncoded", *erasures.ESTIMATES}
        assert set(found["sweep"][name]["by_copies"]) == {"1", "2", "3"}
        assert found["cyclic"][name]["cyclic_exact"]["mean_covered"] == 1.0
        assert set(found["recorded"][name]["methods"]) == METHODS
    assert set(found["figure_1"]["recordings"]) == {straggling.RECORDING, network.RECORDING}
    if "problem" not in found["network"]:  # torch is here
        learnt = found["network"]["curves"]
        assert {"uncoded", "egc2", "agc3", "dsag_2"} <= set(learnt)
        # Exact sums of the same batches learn the same, whoever holds them.
        assert learnt["egc2"]["accuracy"] == learnt["uncoded"]["accuracy"]
        assert (out / "network.png").stat().st_size > 5_000
    for name in ("theory", "estimates", "sweep", "figure_1", "figure_4_recorded"):
        assert (out / f"{name}.png").stat().st_size > 5_000
    text = StringIO()
    reproduce.table(Console(file=text, width=160), found)
    assert "settings tried in all" in text.getvalue()
    for name in ("figure_2.png", "figure_3.png", "figure_4.png", "rivals.png", "index.html"):
        assert (out / name).stat().st_size > 5_000


def test_the_lemmas_agree_with_chance() -> None:
    found = lemmas(Settings(draws=100_000))
    for c in ("2", "3"):
        two, eight = found["lemma2"][c], found["lemma8"][c]
        for name in ("p", "q"):
            # Five standard errors of a mean of so many zeros and ones.
            assert abs(two[name] - two[f"{name}_monte_carlo"]) < 5 * 0.5 / np.sqrt(100_000)
        for name, stated in eight["stated"].items():
            assert eight["monte_carlo"][name] == pytest.approx(stated, rel=0.01)
        assert eight["exact_as_printed"] < 0.95 * eight["stated"]["exact"]


def test_simulated_times_are_those_of_the_model() -> None:
    def harmonic(n: int) -> float:
        return float(sum(1 / i for i in range(1, n + 1)))

    found: Any = simulated(Settings(simulated=120))
    times = found["virtual_seconds_per_iteration"]
    # Within five standard errors of a mean of 120, and the slice of 10 ms in which a cancelled
    # worker looks up.
    assert times["uncoded"] == pytest.approx(2 * harmonic(30), rel=0.17)
    assert times["egc2"] == pytest.approx(harmonic(15), rel=0.17)
    assert times["egc3"] == pytest.approx(2 / 3 * harmonic(10), rel=0.17)
    assert times["agc2"] == pytest.approx(2 * (harmonic(30) - harmonic(19)), rel=0.17)
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
