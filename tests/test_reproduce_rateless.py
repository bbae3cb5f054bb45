"""kofn reproduce rateless and kofn bench decode: what they write, at a small size."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claimed import citing, holds, holds_in
from rich.console import Console
from support import DataFolder, unresolved
from test_datasets import made_recordings
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
    trials=24,
    recorded_trials=6,
    codes=1,
    needed=4,
    decodes=3,
    orders=6,
    rounds=1,
    own_trials=3,
    precoded=4,
    scale=0.02,
    simulated=True,  # so that its figures are the same on any machine
)
SMALL = (("lt1", 200, 1), ("lt2", 200, 2), ("lt1_10000", 400, 1))


@pytest.fixture(scope="module")
def written(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """One small run, on the recorded waits if there are any, else on made-up ones."""
    out = tmp_path_factory.mktemp("rateless")
    given: str | None = pytestconfig.getoption("--data")
    if given is None or not Path(given, datasets.TIMINGS).exists():
        given = str(out)
        made_recordings(out, rateless.RECORDING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rateless, "M", 60)
        patch.setattr(rateless, "WORKERS", 2)
        patch.setattr(decoding, "CASES", SMALL)
        patch.setattr(decoding, "SIZES", (1000,))
        patch.setattr(rateless_own, "R_VALUES", (1, 4))
        result = reproduce.run(
            "rateless", out / "out", Path(given), True, quiet=True, settings=TINY
        )
    return out / "out", result


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_rateless.py::test_claims_on_simulated_waits")
)
def test_claims_on_simulated_waits(claim: str, written: tuple[Path, dict[str, Any]]) -> None:
    holds_in(claim, written[1])


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_rateless.py::test_claims_on_recorded_waits")
)
def test_claims_on_recorded_waits(
    claim: str, data_folder: DataFolder, written: tuple[Path, dict[str, Any]]
) -> None:
    data_folder(datasets.TIMINGS)
    holds_in(claim, written[1])


def test_two_symbols_a_worker_on_recorded_waits(data_folder: DataFolder) -> None:
    """M' symbols of the fastest workers decode where terms are short, and not where they are long:
    then the fastest are those with symbols of few terms."""
    waits = rateless.check(data_folder(datasets.TIMINGS))
    long, short = "0.005", rateless_own.SHORT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rateless_own, "TERMS", (float(long), float(short)))
        own = rateless_own.two_symbols_each(waits, 1000, 20, 0, lambda what: None)
    found = {"own_experiment": own}
    holds_in("rateless: Section V, two symbols a worker, LT-1", found)
    holds_in("rateless: Section V, two symbols a worker, LT-2", found)
    holds_in("rateless: Section V, how often that decodes, LT-1", found)
    holds_in("rateless: Section V, how often that decodes, LT-2", found)
    for kind, at_most in (("lt1", 0.7), ("lt2", 0.4)):
        assert own["by_term"][long][kind]["decodes_peeling"] < at_most


def test_symbols_needed_at_the_papers_size() -> None:
    """99 % of 25 codes is nearly the most of them: it varies by a tenth."""
    needed = {}
    for r in (1, 2):
        case = decoding.Case(replace(decoding.PEELING, r=r), 1000)
        counts = decoding.symbols_needed(case, 25, 0)
        needed[f"peeling_lt{r}"] = float(np.quantile(counts, 0.99))
    holds_in("rateless: Section III-B, symbols enough, LT-1", {"symbols_99": needed})
    holds_in("rateless: Section III-C, symbols enough, LT-2", {"symbols_99": needed})


def test_peeling_reads_so_many_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SIZES", (1000, 3000))
    found = {"decode_growth": decoding.growth(3)}
    holds_in("rateless: Section III-B, decoding is O(m log m)", found)
    holds_in("rateless: Section III-C, LT-2 is decoded with less work", found)


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
    assert len(result["own_experiment"]["by_term"]) == len(rateless_own.TERMS)
    assert {row["code"] for row in result["precoded"]["rows"]} == set(decoding.PRECODED)
    for row in result["precoded"]["rows"]:
        assert row["symbols_median"] >= 200
        assert row["worst_relative_error"] < 1e-9
    assert set(result["by_r"]) == {"1", "4"}


def test_every_claim_of_the_paper_has_a_value_or_a_reason(
    written: tuple[Path, dict[str, Any]],
) -> None:
    assert unresolved(claims("rateless"), written[1]) == []


@pytest.mark.long
def test_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rateless, "M", 60)
    monkeypatch.setattr(rateless, "WORKERS", 2)
    settings, waits = replace(TINY, simulated=False), np.ones((4, 8))
    found = rateless._wall_clock(settings, waits, lambda what: None, 0, 1)
    assert found["worst_relative_error"] <= 1e-12
    assert {"one", "lt1"} <= set(found["seconds"])
    # Each waits for a second first, made short.
    assert min(min(seconds) for seconds in found["seconds"].values()) >= 0.02


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


def test_latency_by_formula_is_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """At mₑ = 2m and without a limit, for as many symbols as really came."""
    m = 300
    monkeypatch.setattr(rateless, "M", m)
    settings = rateless.Settings(codes=1)
    delays = Exponential(unit=rateless.TAU, mean=1 / rateless.MU)
    ratios = {}
    for each in (2, 32):
        times, _, came = rateless.latencies("lt1", each * m, delays, 8, settings)
        args = (each, 1, m, m, rateless.TAU, rateless.MU)
        known = float(np.mean([rateless_own.latency(count, *args) for count in came]))
        ratios[each] = float(np.mean(times)), known
    holds("rateless: Finite m_e", *ratios[2])
    assert 0.9 <= ratios[32][0] / ratios[32][1] <= 1.1
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
