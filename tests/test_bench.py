"""kofn bench: the frame that all benchmarks share, and what each prints for machines, tiny."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import kofn
from kofn.cli import app as app_module
from kofn.cli.bench import commands, encode, frame, history, latency, many, peers, products, turns
from kofn.cli.bench.frame import Figure
from kofn.cli.bench.systems import child, libraries, settings, works
from kofn.cli.bench.turns import interleaved

app = app_module.app
KEYS = {"value", "unit", "limit", "of", "ratio", "spread"}


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["bench", *args])


def test_a_ratio_above_one_is_worse_than_the_limit() -> None:
    assert Figure(3.0, "ms", 2.0).ratio == 1.5
    assert Figure(0.5, "effective", 1.0, more_is_better=True).ratio == 2.0
    assert Figure(3.0, "ms").ratio is None
    assert Figure(3.0, "ms", 0.0).ratio is None
    assert Figure(float("nan"), "s", 1.0).row()["ratio"] is None
    assert set(Figure(1.0, "s").row()) == KEYS


def test_turns_give_a_ratio_and_its_spread() -> None:
    calls: list[str] = []

    def block(name: str, seconds: float) -> Any:
        def run(rounds: int) -> list[float]:
            calls.append(name)
            return [seconds] * rounds

        return run

    turns = interleaved({"a": block("a", 3e-6), "b": block("b", 2e-6)}, rounds=10, most=4)
    assert calls == ["a", "b"] * 6  # once to warm up, then five turns of two
    figure = turns.figure("a", "b", "b")
    np.testing.assert_allclose((figure.value, figure.limit or 0.0), (3.0, 2.0))
    np.testing.assert_allclose(figure.spread or (), (1.5, 1.5))
    assert turns.row("a")["rounds"] == 10


def test_the_machine_is_not_named() -> None:
    facts = json.dumps(frame.machine())
    assert os.uname().nodename not in facts
    assert "numpy" in facts


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kofn bench scale` with next to nothing to do: a benchmark that starts no process."""
    from kofn.cli.bench import scale

    monkeypatch.setattr(scale, "COUNTS", (10,))


@pytest.mark.usefixtures("tiny")
def test_a_result_is_printed_kept_and_drawn(tmp_path: Path) -> None:
    kept = tmp_path / "history"
    for _ in range(2):
        ran = invoke("scale", "--quick", "--json", "--out", str(kept))
        assert ran.exit_code == 0, ran.output
        result = json.loads(ran.stdout)
        assert result["settings"] == {"most": 1000}
        assert all(set(row) == KEYS for row in result["figures"].values())
    (path, *_) = kept.glob("scale-*.json")
    again = json.loads(path.read_text())
    again["when"] = "2000-01-01T00:00:00+00:00"
    (kept / "scale-20000101000000.json").write_text(json.dumps(again))
    page = tmp_path / "figures.html"
    assert invoke("figures", str(kept), "--out", str(page)).exit_code == 0
    text = page.read_text()
    assert text.count("<h2>") == 1
    assert "operand passed on to 10" in text
    assert "<polyline" in text  # two runs make a line
    assert "http" not in text  # self-contained
    shown = invoke("scale", "--quick")
    assert "limit is" in shown.output
    assert "kofn bench scale" in shown.output


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match="folder"):
        history.read(tmp_path / "no")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(kofn.BadInput, match=r"x\.json is not a result"):
        history.read(tmp_path)


def made(ratio: float) -> dict[str, Any]:
    return {"bench": "scale", "figures": {"one": Figure(ratio, "ms", 1.0, "a limit").row()}}


@pytest.mark.parametrize(
    ("ratios", "code", "tries"),
    [((1.15,), 0, 1), ((1.3, 1.1), 0, 2), ((1.3, 1.4, 1.25), 1, 3), ((2.0, 2.0, 1.0), 0, 3)],
)
def test_check_fails_when_a_ratio_is_worse_in_three_tries(
    ratios: tuple[float, ...],
    code: int,
    tries: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, left = tmp_path / "recorded.json", list(ratios)
    monkeypatch.setattr(many, "apart", lambda *_: made(1.0))
    arguments = ("check", str(recorded), "--only", "scale")
    assert invoke(*arguments, "--record").exit_code == 0
    assert json.loads(recorded.read_text()) == {"check": {"scale": {"one": 1.0}}, "results": {}}
    monkeypatch.setattr(many, "apart", lambda *_: made(left.pop(0)))
    ran = invoke(*arguments)
    assert ran.exit_code == code, ran.output
    assert left == []
    assert f"{tries} tries" in ran.output
    assert ("1.25" in ran.output) == bool(code)  # the best of the three


def test_all_leaves_out_what_needs_data_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(name: str, quick: bool, data: Path | None) -> dict[str, Any] | str:
        if name == "fleet":
            return "kofn: no market today"
        return made(1.5) | {"bench": name, "seconds": 0.1, "when": "2026-01-01T00:00:00+00:00"}

    monkeypatch.setattr(many, "apart", apart)
    monkeypatch.delenv("KOFN_DATA", raising=False)
    ran = invoke("all", "--quick", "--out", str(tmp_path))
    assert ran.exit_code == 1
    assert "rivals: left out" in ran.output
    assert "fleet: kofn: no market today" in ran.output
    assert len(list(tmp_path.glob("*.json"))) == len(commands.BENCHES) - 2


def test_the_last_result_of_each_is_recorded_and_the_ratios_stay(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps({"check": {"scale": {"one": 1.0}}, "results": {"old": {}}}))
    kept = made(1.5) | {"settings": {}, "seconds": 0.1, "machine": {"cores": 2}}
    for day in ("2026-01-02", "2026-01-01"):
        frame.keep(kept | {"when": f"{day}T00:00:00+00:00"}, tmp_path / "history")
    assert invoke("record", str(tmp_path / "history"), str(recorded)).exit_code == 0
    both = json.loads(recorded.read_text())
    assert both["check"] == {"scale": {"one": 1.0}}
    assert both["results"]["old"] == {}
    assert both["results"]["scale"]["when"].startswith("2026-01-02")
    assert both["results"]["scale"]["figures"]["one"]["ratio"] == 1.5


def test_the_recorded_ratios_are_of_benchmarks_that_are_checked() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "recorded.json"
    recorded = json.loads(path.read_text())["check"]
    assert set(recorded) == set(many.CHECKED)
    assert all(ratio > 0 for figures in recorded.values() for ratio in figures.values())


def test_an_encode_is_beside_the_limit_of_its_own_kind() -> None:
    kinds = turns.Turns(("first", "second", "again", "there", "fresh", "file", "disk"))
    seconds = {"first": 0.3, "second": 0.2, "again": 0.12, "there": 0.1, "fresh": 0.9}
    for kind, one in (seconds | {"file": 1.0, "disk": 2.0}).items():
        kinds.turns[kind] = [[one]] * 3
    rows = [(name, f.ratio, f.of) for name, f in encode.figures(kinds, "640 MB").items()]
    assert [(name.removeprefix("640 MB"), round(ratio or 0, 2)) for name, ratio, _ in rows] == [
        (" into fresh memory: the first of a session", 0.33),
        (" over a dropped matrix", 1.2),
        (" over a dropped matrix: the second of a session", 2.0),
        (" of a file", 0.5),
        (", the first of a session, beside another kind of limit", 3.0),
    ]
    assert ["fresh" in of for *_, of in rows] == [True, False, False, False, False]
    path = Path(__file__).parent.parent / "benchmarks" / "recorded.json"
    recorded = json.loads(path.read_text())["check"]
    assert set(recorded["encode"]) == set(encode.figures(kinds, "(20, 10), 64 MB"))


@pytest.mark.engine
@pytest.mark.long
def test_benchmarks_measure_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from kofn.cli.bench import broadcast, memory, sparse

    monkeypatch.setattr(products, "CODES", ((2, 1),))
    monkeypatch.setattr(sparse, "N", 4)
    monkeypatch.setattr(sparse, "K", 2)
    for result, count in (
        (encode.run(8, 1), 5),
        (broadcast.run(5, 2), 1),
        (products.run(200, 1), 3),
        (sparse.run(1, 400, None), 6),
        (latency.run(1.0, 20), 6),
    ):
        assert len(result["figures"]) == count
        for figure in result["figures"].values():
            assert figure.value > 0
            assert figure.ratio is not None
            assert figure.of
    assert result["messages_to_workers"]["plain"] == 6 * 21  # one more to see that it is right
    assert result["messages_to_workers"]["hedged"] >= 6 * 21
    assert 10e6 < memory.peak() < 10e9


def test_nothing_is_measured_while_threads_of_numpy_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [0.0, 0.03, 0.038, 0.0381]  # of the processor, at each look
    waits: list[float] = []
    monkeypatch.setattr("kofn.cli.bench.turns.time", SimpleNamespace(sleep=waits.append))
    turns.rest(lambda: used.pop(0))
    assert len(waits) == 3
    assert used == []


def test_words_choose_cells_of_the_peers() -> None:
    cells = [f"{peer}, {work}, quiet" for peer in ("kofn", "Spark") for work in ("sums", "svd")]
    for only, count in (("all", 4), ("sums", 2), ("sums+-Spark", 1), ("-Spark+-kofn", 0)):
        assert sum(peers.chosen(only, cell) for cell in cells) == count


# The peers: what they do is right, whatever it takes them.


def small(folder: Path) -> works.Data:
    return works.make(folder, works.Sizes(60, 12, 300, (12, 8, 10), 4), None)


@pytest.mark.parametrize("name", works.WORKS)
def test_a_work_is_the_same_in_blocks_and_ends(name: str, tmp_path: Path) -> None:
    data, work = small(tmp_path), works.WORKS[name]
    blocks, rounds = data.blocks(work), 0
    steps = work.steps(data, 24)
    operand = next(steps)
    with suppress(StopIteration):
        while True:
            pairs = zip(blocks, work.operands(operand), strict=True)
            value = work.combine([work.fn(block, x) for block, x in pairs])
            whole = None if work.array is None else data.array(work.array)
            exact = work.fn(whole, operand)
            rounding = 300 * np.finfo(float).eps * float(np.abs(exact).max() + 300)
            np.testing.assert_allclose(value, exact, rtol=0, atol=rounding)
            rounds += 1
            operand = steps.send(value)
    assert 1 < rounds <= 24
    if name == "logistic":
        assert value[-1] <= data.target
        assert data.target < 300 * np.log(2)
        assert works.evaluations(data) == rounds


def test_numpy_alone_does_the_works_that_it_claims(tmp_path: Path) -> None:
    peer = libraries.NumPy(small(tmp_path))
    for name in peer.does:
        work = works.WORKS[name]
        assert peer.prepare(name, work, np.zeros((1, works.WORKERS))) == [os.getpid()]
        assert child.play(peer, name, work, 0.01)["off"] == 0.0


def test_delays_are_drawn_once_and_recorded_ones_are_scaled(tmp_path: Path) -> None:
    recorded = np.random.default_rng(0).exponential(5.0, (10, 20)) + 1.0
    settings.draw(tmp_path, recorded)
    for name in ("exponential", "lambda"):
        table = settings.delays(tmp_path, settings.SETTINGS[name])
        assert table.shape[1] == works.WORKERS
        assert table.min() >= 0
        assert table.mean() == pytest.approx(settings.MEAN, rel=0.1)
    assert settings.delays(tmp_path, settings.SETTINGS["quiet"]).sum() == 0
    rng = np.random.default_rng(0)
    model = settings.Table(table)
    assert model.timing(rng, 7, len(table) + 3, 1.0) == (table[3, 1], 0.0)


def test_a_cell_that_was_cut_short_is_carried_on_by_its_median(tmp_path: Path) -> None:
    def cell(done: int, of: int | None, took: float, ms: float) -> dict[str, Any]:
        return {"done": done, "of": of, "took": took, "median_ms": ms, "worst_ms": ms, "off": 0.0}

    cells: dict[str, Any] = {
        "kofn, products, quiet": cell(300, 300, 3.0, 10.0),
        "Dask, products, quiet": cell(100, None, 5.0, 50.0),
        "Ray actors, products, quiet": {"died": "RayActorError: gone"},
        "joblib, products, quiet": {"hangs": "nothing in 30 s"},
        "Spark, products, quiet": {"missing": "pyspark"},
        "Dask, logistic, quiet": cell(10, None, 2.0, 200.0),
    }
    peers._extrapolate(cells, 40)  # though nobody came to the end of it
    assert cells["Dask, products, quiet"]["total"] == pytest.approx(5.0 + 200 * 0.05)
    assert cells["Dask, logistic, quiet"]["total"] == pytest.approx(2.0 + 30 * 0.2)
    figures = peers._figures(cells)
    assert figures["products, quiet"].of == "Dask"
    assert figures["products, quiet"].ratio == pytest.approx(0.2)
    result = {"bench": "peers", "figures": {}, "cells": cells, "when": ""}
    history.plot({"peers": [result]}, tmp_path / "peers.svg")
    assert "joblib" in (tmp_path / "peers.svg").read_text()
    before = {**result, "cells": {"kofn, svd, quiet": {**cell(10, 10, 1.0, 9.0), "total": 1.0}}}
    text_of_both = history.markdown({"peers": [before, result]})
    assert "| Dask | 15 (50 ms) |" in text_of_both
    assert "svd" in text_of_both
    text = StringIO()
    result = {"cells": cells, "problems": ["Spark is not installed: pyspark"]}
    peers.table(Console(file=text, width=120), result)
    shown = text.getvalue()
    for words in ("died: RayActorError: gone", "hangs", "not installed", "15 (50 ms)"):
        assert words in shown


@pytest.mark.engine
def test_a_peer_is_asked_struck_and_leaves_nothing_behind(tmp_path: Path) -> None:
    settings.draw(tmp_path, None)
    child = peers.Child("kofn", small(tmp_path))
    try:
        quiet = child.ask("products", "quiet", 0.2, 0.2)
        assert quiet["off"] < 1e-12
        assert quiet["done"] >= 1
        killed = child.ask("products", "half killed", 0.5, 0.2)
        assert killed["off"] < 1e-12
        lost = child.ask("no such work", "quiet", 0.2, 0.2)
        assert "KeyError" in lost["died"]
        assert child.process is None
    finally:
        child.end()
    assert child._processes() == []
