"""kofn reproduce rateless and kofn bench decode: what they write, at a small size."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import DataFolder, unresolved
from typer.testing import CliRunner

from kofn.cli import reproduce
from kofn.cli.app import app
from kofn.cli.bench import decode as bench_decode
from kofn.delays import Exponential
from kofn.errors import BadInput
from kofn.reproduce import datasets, decoding, rateless, rateless_own, rateless_page
from kofn.reproduce.inventory import claims
from kofn.reproduce.kept import Kept

pytestmark = pytest.mark.papers

TINY = rateless.Settings(
    trials=4,
    recorded_trials=3,
    codes=1,
    needed=4,
    decodes=3,
    orders=6,
    rounds=2,
    own_trials=3,
    precoded=4,
    scale=0.02,
)


SMALL = (("lt1", 200, 1), ("lt2", 200, 2), ("lt1_10000", 400, 1))


@pytest.fixture(scope="module")
def data(data_folder: DataFolder) -> Path:
    return data_folder(datasets.TIMINGS)


@pytest.fixture(scope="module")
def written(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("rateless")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rateless, "M", 100)  # a tenth of the paper's size
        patch.setattr(rateless, "WORKERS", 4)
        patch.setattr(decoding, "CASES", SMALL)
        patch.setattr(rateless_own, "R_VALUES", (1, 4))
        result = reproduce.run("rateless", out, data, True, quiet=True, settings=TINY)
    return out, result


def test_results_have_what_they_must(written: tuple[Path, dict[str, Any]]) -> None:
    out, result = written
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(result))
    for model in ("exp", "pareto", "lambda_trace"):
        assert set(result[model]) == {"one", "uncoded", "replication2", "lt1", "lt2", "groups"}
        for found in result[model].values():
            assert {"mean", "median", "p99", "tail"} <= set(found)
            times, above = np.array(found["tail"]).T
            assert np.all(np.diff(times) >= 0)
            assert np.all(np.diff(above) < 0)
            assert above[-1] == pytest.approx(0.0, abs=1e-12)
            assert found["tail"][0][0] <= found["median"] <= found["p99"] <= times[-1]
    names = {"peeling_lt1", "peeling_lt2", "inactivation_lt1", "inactivation_lt2"}
    assert set(result["symbols_99"]) == names
    assert set(result["decode_ms"]) == {"lt1", "lt2", "lt1_10000"}
    assert min(result["decode_ms"].values()) > 0
    said = result["decode_ms_is"]
    assert "CPU" in said["time"]
    assert said["default_decoder"] == "inactivation"
    for name, value in result["decode_ms"].items():
        found = result["decode_ms_by_decoder"][name]
        assert found[said["decoder"]]["cpu"] == value
        assert set(found[said["default_decoder"]]) == {"wall", "cpu"}
    assert max(result["decoders_agree"]["worst_relative_error"].values()) <= 1e-12
    assert result["wall_clock"]["worst_relative_error"] <= 1e-12
    assert {"one", "lt1"} <= set(result["wall_clock"])
    own = result["own_experiment"]
    assert own["uncoded"]["mean"] >= own["lt1"]["mean"] > 0
    assert {row["code"] for row in result["precoded"]["rows"]} == set(decoding.PRECODED)
    for row in result["precoded"]["rows"]:
        assert row["symbols_median"] >= 200
        assert row["worst_relative_error"] < 1e-9
    assert set(result["by_r"]) == {"1", "4"}


def test_every_claim_of_the_paper_has_a_value_or_a_reason(
    written: tuple[Path, dict[str, Any]],
) -> None:
    assert unresolved(claims("rateless"), written[1]) == []


def test_figures_and_page_are_drawn_from_the_results(
    written: tuple[Path, dict[str, Any]],
) -> None:
    out, result = written
    page = (out / "index.html").read_text()
    for name, text in rateless_page.sentences(result).items():
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert text.split("'")[0][:60] in page
    assert page.count("data:image/png;base64,") == 4


def test_only_latencies_without_a_mean_are_marked(written: tuple[Path, dict[str, Any]]) -> None:
    _, result = written
    console = Console(record=True, width=120, file=StringIO())
    reproduce.table(console, result)
    text = console.export_text()
    assert "∞ /" not in text
    for kind, (label, _, _) in rateless_page.LOOKS.items():
        row = next(line for line in text.splitlines() if label in line and "│" in line)
        assert f"{result['pareto'][kind]['mean']:.3g}" in row
        assert ("*" in row) == (kind in ("one", "uncoded"))


def test_the_propositions_at_the_paper_s_size() -> None:
    theory = rateless.theory()
    assert theory["proposition_1_uncoded"] == pytest.approx(37.43, abs=0.01)
    assert theory["proposition_1_replication2"] == pytest.approx(16.99, abs=0.01)
    assert theory["proposition_2_one"] == pytest.approx(10.0)
    assert theory["theorem_1_lt1"] == pytest.approx(5 + 0.01 * 10.534, abs=0.001)


def test_latency_by_formula_is_what_is_simulated() -> None:
    """At mₑ = 2m and without a limit: within 3 %, for as many symbols as really came."""
    settings = rateless.Settings(codes=1)
    delays = Exponential(unit=rateless.TAU, mean=1 / rateless.MU)
    for each in (2, 32):
        times, _, came = rateless.latencies("lt1", each * 1000, delays, 8, settings)
        args = (each, 1, 1000, 1000, rateless.TAU, rateless.MU)
        known = np.mean([rateless_own.latency(count, *args) for count in came])
        error = np.std(times) / 8**0.5
        assert abs(np.mean(times) - known) <= 0.03 * known + 2 * error
    assert rateless_own.latency(2000, 2, 1, 1000, 1000, rateless.TAU, rateless.MU) == np.inf


def test_data_that_is_not_there_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="straggler_traces"):
        reproduce.run("rateless", tmp_path / "out", tmp_path, True, quiet=True)
    assert not (tmp_path / "out").exists()


def test_bench_decode_takes_the_time_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CASES", SMALL)
    ran = CliRunner().invoke(app, ["bench", "decode", "--times", "3", "--rows", "200", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)["decode"]
    for kinds in found.values():
        assert set(kinds) == {"peeling", "inactivation"}
        for one in kinds.values():
            assert set(one["steps"]) == set(decoding.STEPS)
            assert one["best"] <= one["median"]
            assert one["worst_relative_error"] < 1e-9
        assert [kind for kind in kinds if kinds[kind]["default"]] == ["inactivation"]
    console = Console(record=True, width=80, file=StringIO())
    bench_decode.table(console, json.loads(ran.stdout))
    text = console.export_text()
    assert "LT-1 10,000" in text
    assert "inactivation*" in text
    assert "…" not in text


def test_a_long_run_that_was_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for where, name in (
        *((rateless, one) for one in ("_latency", "_by_symbols", "_by_r", "_decoding")),
        (rateless_own, "two_symbols_each"),
        (decoding, "precodes"),
        (rateless, "_wall_clock"),
    ):

        def note(*_: Any, name: str = name) -> dict[str, Any]:
            ran.append(name)
            if name == "_wall_clock" and ran.count(name) == 1:
                raise KeyboardInterrupt
            times = {"seconds": {"lt1": [1.0]}, "worst_relative_error": 0.0}
            return {name: len(ran)} if name != "_wall_clock" else times

        monkeypatch.setattr(where, name, note)
    monkeypatch.setattr(rateless, "check", lambda data: np.ones(3))
    with pytest.raises(KeyboardInterrupt):
        rateless.measure(tmp_path, TINY, lambda what: None, Kept(tmp_path, {}))
    before = list(ran)
    found = rateless.measure(tmp_path, TINY, lambda what: None, Kept(tmp_path, {}))
    assert ran == [*before, "_wall_clock"]
    assert found["wall_clock"]["lt1"]["trials"] == 1
    assert found["exp"]["lt1"] == {"_latency": 4}
