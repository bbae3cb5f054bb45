"""kofn reproduce sequential: its theory, its search, and what it writes."""

from __future__ import annotations

import gzip
import json
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claimed import citing, holds, holds_in
from rich.console import Console
from support import unresolved
from typer.testing import CliRunner

from kofn.cli import reproduce
from kofn.cli.app import app
from kofn.delays import Fritchman, Independent, Stratified
from kofn.errors import BadInput
from kofn.reproduce import sequential, sequential_runs, sequential_search, sequential_theory
from kofn.reproduce.datasets import read_mnist
from kofn.reproduce.inventory import claims
from kofn.sequence import DIP, IDIP, Polynomial, SequenceCode, Uncoded

pytestmark = pytest.mark.papers
POLY = Polynomial(2, 1)

# The clock of the workers is simulated, so that figures are the same on any machine.
TINY = sequential.Settings(
    figure_jobs=128,
    figure_search=60,
    search_rounds=20,
    virtual_jobs=24,
    table_jobs=160,
    table_seeds=2,
    wall_jobs=3,
    wall_whole=0.06,
    paper_jobs=200,
    steps=1,
    widths=(784, 20, 10, 10),
    batch=64,
    largest=0.02,
    full_widths=(784, 20, 20, 10),
    full_steps=1,
    full_batch=32,
    repeats=1,
    deltas=(0.1, 0.3),
    product=(64, 48, 36),
    simulated=True,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("reproduce") / "out"
    reproduce.run("sequential", out, None, False, quiet=True, settings=TINY)
    return out


@pytest.fixture(scope="module")
def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


@pytest.mark.parametrize(
    "claim", citing("tests/test_reproduce_sequential.py::test_the_figure_of_a_claim")
)
def test_the_figure_of_a_claim(claim: str, results: Any) -> None:
    holds_in(claim, results)


def idip(alpha: float, N: int, W: int, P: int, delta: float) -> float:
    """IDIP itself, in the long run: a chain of how many straggled in each of the last W - 1 rounds.

    A round waits where one more window would hold more than N stragglers, or where all straggle;
    then nobody is left behind. The load is that of W mini-tasks a round, as in the bound.
    """
    came = np.array([comb(P, i) * delta**i * (1 - delta) ** (P - i) for i in range(P + 1)])
    before = np.indices((P + 1,) * (W - 1)).sum(axis=0)
    goes_on = (before[..., None] + np.arange(P + 1) <= N) & (np.arange(P + 1) < P)
    chance = np.zeros((P + 1,) * (W - 1))
    chance[(0,) * (W - 1)] = 1.0
    waits = change = 1.0
    while change > 1e-14:
        each = chance[..., None] * came  # by the rounds before, and how many straggle in this one
        last, waits = waits, float(each[~goes_on].sum())
        after = np.where(goes_on, each, 0.0)
        after[..., 0] += np.where(goes_on, 0.0, each).sum(axis=-1)
        following = after.sum(axis=0) if W > 1 else chance
        change = float(np.abs(following - chance).max()) + abs(waits - last)
        chance = following
    return (1 + (alpha - 1) * waits) / (P - N / W)


def write_mnist(data: Path, rows: int) -> None:
    (data / "mnist").mkdir()
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, rows, dtype=np.uint8)
        for array, name in ((images, "images-idx3"), (labels, "labels-idx1")):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            with gzip.open(data / "mnist" / f"{part}-{name}-ubyte.gz", "wb") as file:
                file.write(head + array.tobytes())


def test_without_data_the_images_are_made_up(tmp_path: Path) -> None:
    write_mnist(tmp_path, 100)
    for data, known, rows in ((tmp_path, "MNIST", 100), (None, "made-up images", 4096)):
        name, train, test = sequential.training_data(data)
        assert name == known
        assert train[0].shape == (rows, 784)
        assert len(test[0]) == len(test[1])


def test_everything_is_measured_and_written(out: Path, results: Any) -> None:
    assert results["training_data"] == "made-up images"
    assert unresolved(claims("sequential"), results) == []
    assert "few jobs" in results["few_jobs"]
    assert results["iid"]["parameters"]["delta"] == 0.3
    chain = results["fritchman"]["parameters"]
    assert "delta" not in chain
    assert (chain["enter"], chain["leave"], chain["bad"]) == (0.2, 0.5, 2)
    for name in ("figure_1", "table_1", "figure_2", "training", "full_size"):
        assert (out / f"{name}.png").stat().st_size > 10_000
    page = (out / "index.html").read_text()
    assert page.count("data:image/png") == 5
    for points in results["figure1"].values():
        assert [p["delta"] for p in points] == [0.1, 0.3]
        for point in points:
            for kind in ("uncoded", "poly"):
                assert point["measured"][kind] == pytest.approx(point[kind], rel=0.02)
            assert point["measured"]["idip"] < point["idip_bound"]
            assert max(point["rounds_after_last_job"].values()) <= point["delay"]
    for model in ("iid", "fritchman"):
        for table in (results[model], results["wall"][model], results[model]["mu_0.25"]):
            assert {"uncoded", "poly", "dip", "idip", "parameters"} <= set(table)
            assert all(table[kind] > 0 for kind in ("uncoded", "poly", "dip", "idip"))
            assert table["overdue"] == {"uncoded": [], "poly": [], "dip": [], "idip": []}
        published = results["table_1"][model]
        for mu in ("mu_0", "mu_0.25"):
            assert published[mu]["over_poly"]["poly"] == 1
            assert all(0 < published[mu]["error"][kind] < 0.1 for kind in ("dip", "idip"))
    for key in ("training", "training_bursts"):
        for run in results[key]["codes"].values():
            assert run["largest_loss_difference"] <= 1e-6
            assert 0 <= run["held_share"] < 1
    for model in ("iid", "fritchman"):
        times = results["table1_parts"][model]
        assert times["whole_job_seconds"] > 0
        assert times["codes"]["uncoded"]["encode_seconds"] == 0
    for row in results["theorem_3_1"]:
        assert row["dip"] == pytest.approx(row["bound"]) == row["idip"]
        assert row["dip_late"] == row["idip_late"] == 0
    variants = results["burst_variant"]["mu_0"]
    assert sum(name.startswith("BurstIDIP") for name in variants) == 8
    assert min(variants.values()) > 0
    for spans in results["burst_spans"].values():
        assert [int(B) for B in spans] == list(sequential_search.SPANS)
        assert all(f"B={B}, " in row["code"] for B, row in spans.items())
    for mu in ("mu_0", "mu_0.25"):
        found = results["burst_chains"][mu]
        rows = [row["over_poly"]["idip"] for row in found["chains"]]
        assert found["least_idip"] == min(rows)
    console = Console(record=True, width=120)
    reproduce.table(console, results)
    assert "bursts" in console.export_text()


@pytest.mark.engine
def test_by_wall_clock_workers_are_processes() -> None:
    codes = {"uncoded": Uncoded(2, 1), "poly": Polynomial(1, 1)}
    with sequential_runs.engines(codes, 2, simulated=False) as on:
        done = sequential_runs.walls(codes, on, Independent(0.3, 1), 5.0, 0.0, 2, 0.02)
    for run in done.values():
        assert run.report.jobs == 2
        assert run.per_job >= 0.5  # each of two workers has half a job at least


def test_bursts_at_most_0_70() -> None:
    """With a slack of a quarter of the fastest worker's time, jobs have two more rounds."""
    slow, jobs = Fritchman(**sequential.CHAIN, seed=3), 300

    def over_poly(code: SequenceCode, mu: float) -> float:
        times = [sequential_runs.virtual(c, slow, 4, 5.0, mu, jobs) for c in (code, POLY)]
        return times[0].per_job / times[1].per_job

    holds("sequential: Bursts, DIP found by search", over_poly(DIP(1, 7, 3, lam=1), 0.0))
    idip = IDIP(1, 5, 3, N=11, W=4)
    holds("sequential: Bursts, IDIP found by search", over_poly(idip, 0.0))
    holds("sequential: Bursts, DIP, two more rounds", over_poly(DIP(3, 4, 5, lam=1), 0.25))
    idip = IDIP(2, 5, 5, N=14, W=6)
    holds("sequential: Bursts, IDIP, two more rounds", over_poly(idip, 0.25))


@pytest.mark.claim("sequential: Theorem 3.1, the least load")
@pytest.mark.parametrize(("P", "N", "W"), [(2, 1, 2), (3, 4, 3), (4, 4, 4), (4, 10, 4)])
def test_no_load_below_that_of_theorem_3_1_keeps_every_deadline(P: int, N: int, W: int) -> None:
    """The adversary of the proof, against every code of this delay and several of none.

    Of every W rounds the first hold N stragglers in all.
    """
    pattern = np.tile(np.arange(W * P).reshape(W, P) < N, (40, 1))
    ks = range(1, P * W + 2)
    codes: list[SequenceCode] = [Polynomial(1, k) for k in range(1, P + 1)]
    codes += [DIP(1, k, W - 1, lam) for k in ks for lam in range(1, P + 1)]
    codes += [IDIP(1, P * W - n, W - 1, n, W) for n in range(P * W)]
    kept = []
    for code in codes:
        most, late = sequential_theory.most_mini_tasks(code.ledger(P), pattern)
        if not late:
            kept.append(most / code.product.k)
    assert min(kept) == pytest.approx(sequential_theory.least_load(P, N, W))


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        app, ["reproduce", "sequential", "--data", str(tmp_path / "no"), "--out", str(tmp_path)]
    )
    assert isinstance(run.exception, BadInput)
    assert "mnist/" in str(run.exception)
    with pytest.raises(BadInput, match="idx files"):
        read_mnist(tmp_path, "train")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        reproduce.run("sequential", tmp_path / "file", tmp_path, True, quiet=True)


def test_closed_forms() -> None:
    assert sequential_theory.uncoded(5.0, 4, 0.0) == pytest.approx(1 / 4)
    assert sequential_theory.uncoded(5.0, 4, 1.0) == pytest.approx(5 / 4)
    assert sequential_theory.polynomial(5.0, 2, 4, 0.3) == pytest.approx(0.6674)
    # Nobody straggles: beta results take ceil(beta / P) rounds.
    assert sequential_theory.dip_without_deadline(5.0, 8, 4, 0.0) == pytest.approx(2 / 8)
    assert sequential_theory.dip_without_deadline(5.0, 9, 4, 0.0) == pytest.approx(3 / 9)


@pytest.mark.claim("sequential: Section 4, IDIP and polynomial")
@pytest.mark.parametrize(("alpha", "P", "W"), [(5.0, 4, 4), (10.0, 6, 5), (3.0, 3, 1)])
def test_idip_is_never_slower_than_a_polynomial_code_of_its_load(
    alpha: float, P: int, W: int
) -> None:
    """With N = S W, as the paper says: of the time itself, not of the bound on it."""
    for S in range(1, P):
        for delta in (0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
            took = idip(alpha, S * W, W, P, delta)
            rounding = 1e-12
            assert took <= sequential_theory.polynomial(alpha, S, P, delta) + rounding
            assert took <= sequential_theory.idip_bound(alpha, S * W, W, P, delta) + rounding
            printed = sequential_theory.idip_bound(alpha, S * W, W, P, delta, True)
            assert printed <= sequential_theory.idip_bound(alpha, S * W, W, P, delta) + rounding
    # One round is one window: then it is the polynomial code.
    assert idip(alpha, 1, 1, P, 0.3) == pytest.approx(
        sequential_theory.polynomial(alpha, 1, P, 0.3)
    )


def test_idip_takes_the_time_that_its_chain_says() -> None:
    """The real master, at the setting where the bound (0.602) is above the polynomial code."""
    exact = idip(5.0, 4, 4, 4, 0.2)
    assert (exact, sequential_theory.polynomial(5.0, 1, 4, 0.2)) == pytest.approx(
        (0.4503, 0.5744), abs=5e-5
    )
    jobs, slow = 512, Independent(0.2, seed=1)
    took = sequential_runs.virtual(IDIP(3, 4, 3, N=4, W=4), slow, 4, 5.0, 0.0, jobs).per_job
    poly = sequential_runs.virtual(Polynomial(3, 1), slow, 4, 5.0, 0.0, jobs).per_job
    assert took < poly
    # Rounds that wait come in a row less often than by chance, so this standard error is a large
    # one; W - 1 rounds at each end are not as in the long run.
    waits = (3 * exact - 1) / 4
    error = 4 / 3 * np.sqrt(waits * (1 - waits) / jobs)
    assert abs(took - exact) <= 5 * error + 2 * 3 * 5 / 3 / jobs


@pytest.mark.parametrize(
    "code",
    [Uncoded(2, 2), Polynomial(2, 1), DIP(2, 4, 3, lam=3), IDIP(2, 3, 3, N=10, W=4)],
    ids=repr,
)
@pytest.mark.parametrize("mu", [0.0, 0.3])  # at 0.25 much would end in one instant
def test_first_order_time_is_what_the_master_needs(code: object, mu: float) -> None:
    """The search's own time against the real master in virtual time, on the same pattern."""
    assert isinstance(code, Uncoded | Polynomial | DIP | IDIP)
    slow, jobs = Stratified(0.35, 4, 5, 128), 128
    pattern = slow.pattern(jobs, 4)
    quick = sequential_search.time_per_job(code, pattern, 5.0, mu)
    real = sequential_runs.virtual(code, slow, 4, 5.0, mu, jobs).report.rounds[:jobs]
    assert sum(r.seconds for r in real) / jobs / sequential_runs.WHOLE == pytest.approx(quick, 1e-3)


def test_the_products_of_one_step() -> None:
    jobs = sequential_runs.layer_jobs(1024, (784, 300, 100, 10))
    assert jobs[:3] == [(1024, 784, 300), (1024, 300, 100), (1024, 100, 10)]
    assert jobs[3:] == [
        (100, 1024, 10),
        (1024, 10, 100),
        (300, 1024, 100),
        (1024, 100, 300),
        (784, 1024, 300),
    ]


def test_fritchman_chains_are_as_stated() -> None:
    chain = Fritchman(0.2, 0.5, 2, seed=1)
    pattern = chain.pattern(4000, 4)
    assert chain.share == pytest.approx(4 / 9)
    assert pattern.mean() == pytest.approx(chain.share, abs=0.03)
    starts = pattern[1:] & ~pattern[:-1]
    assert pattern[1:].sum() / starts.sum() == pytest.approx(4.0, rel=0.08)  # rounds a burst
    assert np.array_equal(chain.pattern(50, 4), pattern[:50])
