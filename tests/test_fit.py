"""kofn fit, the tables it reads, and a spot market that really kills."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import dump_svmlight_file, make_classification
from support import driver_of, until

import kofn
from kofn.cli import places, reproduce, tables
from kofn.cli.bench import learn as bench_learn
from kofn.cli.fit import Fit, run
from kofn.delays import read_spot_trace
from kofn.engines.virtual import VirtualEngine
from kofn.files import check_file
from kofn.learn import CodedMLPClassifier, LinearSVC, load
from kofn.market import Market

X, Y = make_classification(300, 8, n_informative=5, random_state=0)

TRACE = """time_ms,event,node
0,add,a
0,add,b
0,add,c
200,add,d
400,remove,a
600,remove,c
900,add,e
1200,remove,b
1300,add,f
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def write(tmp_path: Path, kind: str) -> dict[str, Any]:
    """Write the data in one of the formats, and return how to name it."""
    if kind == "npy":
        np.save(tmp_path / "X.npy", X)
        np.save(tmp_path / "y.npy", Y)
        return {"data": tmp_path / "X.npy", "labels": tmp_path / "y.npy"}
    if kind == "csv":
        names = [f"x{i}" for i in range(8)]
        lines = [",".join(["label", *names])]
        lines += [
            ",".join([f"class{y}", *map(repr, row)]) for row, y in zip(X.tolist(), Y, strict=True)
        ]
        (tmp_path / "d.csv").write_text("\n".join(lines))
        return {"data": tmp_path / "d.csv", "target": "label"}
    if kind == "svm":
        dump_svmlight_file(X, Y, str(tmp_path / "d.svm"), zero_based=False)
        return {"data": tmp_path / "d.svm"}
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {f"x{i}": X[:, i] for i in range(8)} | {"y": Y}
    parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    return {"data": tmp_path / "d.parquet"}


@pytest.mark.parametrize("kind", ["npy", "csv", "svm", "parquet"])
def test_every_format_gives_the_same_model(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "model.kofn"
    job = Fit(**write(tmp_path, kind), model="svm", workers=3, k=2, engine="virtual", out=out)
    result = run(job, quiet=True)
    model = load(out)
    expected = LinearSVC(cluster="virtual").fit(X, Y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5, atol=1e-7)
    assert result["score"] == pytest.approx(expected.score(X, Y))
    report = json.loads((tmp_path / "model.kofn.report.json").read_text())
    assert report["iterations"] == len(report["losses"]) == model.n_iter_


@pytest.mark.parametrize("model", ["ridge", "logistic"])
def test_the_other_models(tmp_path: Path, model: str) -> None:
    result = run(
        Fit(**write(tmp_path, "npy"), model=model, workers=3, engine="virtual"), quiet=True
    )
    assert result["losses"][-1] <= result["losses"][0]


@pytest.mark.engine
def test_a_network_is_trained_through_a_trace(tmp_path: Path, trace: Path) -> None:
    # A network lives in its shares alone: one of those who began must stay, should all rest so
    # long that nobody else has got a share before they are gone.
    trace.write_text(TRACE.replace("1200,remove,b\n", ""))
    out = tmp_path / "net.kofn"
    job = Fit(
        **write(tmp_path, "npy"),
        model="mlp",
        workers=4,
        k=1,
        spot=trace,
        scale=4.0,
        out=out,
        hidden="12,6",
        epochs=4,
    )
    result = run(job, quiet=True)
    net = load(out)
    calm = CodedMLPClassifier((12, 6), max_epochs=4, random_state=0, cluster="virtual").fit(X, Y)
    for mine, expected in zip(net.coefs_, calm.coefs_, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-8, atol=1e-10)
    assert result["iterations"] == len(result["losses"]) == len(result["live"]) == 4
    assert result["score"] == net.score(X, Y)
    assert result["rounds"] > 4


def test_data_that_cannot_be_fitted_are_told_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kofn.cli.fit.connect", lambda *_, **__: pytest.fail("workers started"))

    def refused(problem: str, model: str, x: Any, y: Any, **more: Any) -> None:
        np.save(tmp_path / "X.npy", x)
        np.save(tmp_path / "y.npy", y)
        data: dict[str, Any] = {"data": tmp_path / "X.npy", "labels": tmp_path / "y.npy"}
        with pytest.raises(kofn.BadInput, match=problem):
            run(Fit(**data, model=model, workers=3, **more), quiet=True)

    hole = X.copy()
    hole[3, 2] = np.nan
    refused("one label a row; got 300 rows and labels of shape .5,", "svm", X, Y[:5])
    refused("one label a row", "svm", X, np.stack([Y, Y], axis=1))
    refused("must be finite; 1 are NaN", "ridge", hole, Y)
    refused("every label must be finite; 1 of 300", "ridge", X, np.r_[np.nan, Y[1:]])
    refused("at least 2 classes; all labels are", "logistic", X, np.ones(300))
    refused("at least 2 classes", "mlp", X, np.ones(300))
    refused("ridge predicts numbers", "ridge", X, np.where(Y > 0, "a", "b"))
    refused("numbers in rows and columns; X.npy has shape .300,", "svm", X[:, 0], Y)
    refused("numbers in rows and columns", "svm", X.astype(str), Y)
    refused("all labels are 1.0. Check", "logistic", X, np.ones(300))
    refused("--hidden is the widths", "mlp", X, Y, hidden="wide")
    refused("k .the threshold. must be a whole number >= 1; got 0", "svm", X, Y, k=0)
    refused("k must be at most the number of shares; got k=4 and n=3", "mlp", X, Y, k=4)


def test_notices_go_by_names_that_are_known(tmp_path: Path) -> None:
    job = Fit(**write(tmp_path, "npy"), model="svm", workers=3, notices=("asw",))
    with pytest.raises(kofn.BadInput, match=r"notices= takes names .* got 'asw'"):
        run(job, quiet=True)


@pytest.mark.engine
def test_a_fit_goes_on_when_it_is_told_that_its_machine_will_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
    job = Fit(**write(tmp_path, "npy"), model="svm", workers=3, k=2, notices=("slurm",))
    assert run(job, quiet=True)["score"] > 0.7


def test_workers_are_kept_but_not_against_a_market(tmp_path: Path, trace: Path) -> None:
    data = write(tmp_path, "npy")
    job = Fit(**data, model="svm", workers=3, k=2, engine="virtual", keep=3)
    assert run(job, quiet=True)["score"] > 0.7
    for more in ({"keep": 3, "spot": trace}, {"keep": 4}):
        with pytest.raises(kofn.BadInput, match=r"--keep is at most --workers, .* Leave --keep"):
            run(Fit(**data, model="svm", workers=3, **more), quiet=True)


@pytest.mark.engine
def test_a_spot_trace_really_kills_and_adds_workers(tmp_path: Path, trace: Path) -> None:
    calm = LinearSVC(cluster="virtual").fit(X, Y)
    out = tmp_path / "model.kofn"
    job = Fit(**write(tmp_path, "npy"), model="svm", workers=4, k=1, spot=trace, scale=4.0, out=out)
    result = run(job, quiet=True)
    model = load(out)
    np.testing.assert_allclose(model.coef_, calm.coef_, rtol=1e-8, atol=1e-10)
    assert set(result["killed"]) <= {0, 1, 2}
    assert 0.0 < result["market_played"] <= result["market_seconds"]


@pytest.mark.engine
def test_a_market_does_what_the_trace_says(trace: Path) -> None:
    A = np.random.default_rng(0).standard_normal((200, 6))
    spot = read_spot_trace(trace)
    assert (spot.at_start, spot.most) == (3, 4)
    with kofn.connect("local", workers=3, wait=300.0) as cluster:
        M = cluster.encode(A, k=1, n=4)
        with Market(cluster, spot, scale=2.0, shares=4) as market:
            while len(market.killed) + len(market.added) < 6:
                np.testing.assert_allclose(M @ np.ones(6), A @ np.ones(6), rtol=1e-9)
        assert market.killed == [0, 2, 1]
        assert market.added == [3, 4, 5]
        until(lambda: cluster.workers == (3, 4, 5), "the last joiner")


@pytest.mark.engine
def test_a_market_whose_clock_is_set_by_hand(trace: Path) -> None:
    with kofn.connect("local", workers=3) as cluster:
        with Market(cluster, read_spot_trace(trace), None, shares=4) as market:
            assert (market.killed, market.added) == ([], [])
            market.advance(0.4)
            market.settle()
            assert (market.killed, market.added) == ([0], [3])
            market.advance(0.1)  # never back
            market.advance(100.0)
            market.settle()
            assert (market.killed, market.added) == ([0, 2, 1], [3, 4, 5])
        assert cluster.workers == (3, 4, 5)
        assert market.played == read_spot_trace(trace).seconds


@pytest.mark.engine
def test_the_clock_of_a_market_may_be_set_from_within_a_round(trace: Path) -> None:
    """on_round runs in the engine's only caller: what the market asks for is done there."""
    with kofn.connect("local", workers=3, wait=300.0) as cluster:
        M = cluster.encode(np.eye(6), k=1, n=4)
        with Market(cluster, read_spot_trace(trace), None, shares=4) as market:

            def on_round(round: int, change: float) -> None:
                market.advance(round / 10)

            found = M.iterate(np.negative, np.ones(6), rounds=100, on_round=on_round)
            market.settle()
        np.testing.assert_array_equal(found, np.ones(6))
        assert (market.killed, market.added) == ([0, 2, 1], [3, 4, 5])


@pytest.mark.engine
def test_a_trace_that_ends_with_too_few_ends_the_fit(tmp_path: Path) -> None:
    (tmp_path / "die.csv").write_text(
        "time_ms,event,node\n0,add,a\n0,add,b\n0,add,c\n300,remove,a\n600,remove,b\n900,remove,c\n"
    )
    job = Fit(
        **write(tmp_path, "npy"),
        model="mlp",
        workers=3,
        k=2,
        spot=tmp_path / "die.csv",
        scale=2.0,
        epochs=1_000_000,  # more than there is time for
    )
    with pytest.raises(
        kofn.TooFewWorkers, match=r"market has left [01], and nobody comes"
    ) as caught:
        run(job, quiet=True)
    assert caught.value.waited < 100.0  # not the 300 s in which somebody might come


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_the_scale_of_a_trace(tmp_path: Path, trace: Path, scale: float) -> None:
    job = Fit(**write(tmp_path, "npy"), model="svm", workers=4, spot=trace, scale=scale)
    with pytest.raises(kofn.BadInput, match="a number > 0; got"):
        run(job, quiet=True)


def test_a_trace_that_is_always_too_small(tmp_path: Path, trace: Path) -> None:
    job = Fit(**write(tmp_path, "npy"), model="svm", workers=6, k=5, spot=trace)
    with pytest.raises(kofn.BadInput, match=r"5 workers must be live .* more than 4"):
        run(job, quiet=True)


@pytest.mark.engine
def test_an_error_in_the_market_fails_the_work(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kofn.connect("local", workers=3, wait=300.0) as cluster:
        X_ = cluster.encode(np.eye(6), k=3, n=4)

        def broken() -> int:
            raise ZeroDivisionError("of the market")

        monkeypatch.setattr(cluster.engine, "join", broken)

        def work() -> None:
            with Market(cluster, read_spot_trace(trace), 4.0, 4):
                cluster.lose(0)
                X_ @ np.ones(6)  # waits for a joiner who does not come

        with pytest.raises(ZeroDivisionError):
            work()
        assert driver_of(cluster).wait == 300.0


def test_pieces_of_a_trace(trace: Path) -> None:
    spot = read_spot_trace(trace)
    later = spot.since(0.5)
    assert [(e.time, e.added, e.node) for e in later.events[:3]] == [
        (0.0, True, "b"),
        (0.0, True, "c"),
        (0.0, True, "d"),
    ]
    assert later.events[3].time == pytest.approx(0.1)
    assert later.most == 3
    few = spot.at_most(2)
    assert (few.at_start, few.most) == (2, 2)
    # c and d find no place; e comes when a has left.
    assert [e.node for e in few.events] == ["a", "b", "a", "e", "b", "f"]


def test_the_same_trace_in_virtual_time(trace: Path) -> None:
    spot = read_spot_trace(trace)
    engine = VirtualEngine(spot.at_start, membership=spot.membership(scale=1.0))
    with kofn.connect(engine) as cluster:
        M = cluster.encode(np.eye(12), k=1, n=4)
        while cluster.engine.now() < 2:
            np.testing.assert_array_equal(M @ np.arange(12.0), np.arange(12.0))
            driver_of(cluster).settle(0.1)
        assert cluster.workers == (3, 4, 5)


def test_bad_traces_and_bad_places(tmp_path: Path, trace: Path) -> None:
    data = write(tmp_path, "npy")
    with pytest.raises(kofn.BadInput, match=r"up to 4 nodes alive, and the code 3 shares"):
        run(Fit(**data, model="svm", workers=3, spot=trace), quiet=True)
    with pytest.raises(kofn.BadInput, match="No such file"):
        run(Fit(**data, model="svm", workers=3, spot=tmp_path / "no.csv"), quiet=True)
    for text, problem in (
        ("a,b\n1,2\n", "a trace of machines has a time"),
        ("time_ms,event,node\n0,add,a\n1,add,a\n", "is there already"),
        ("time_ms,event,node\n0,remove,a\n", "is not there"),
        ("time_ms,event,node\n5,add,a\n", "at time 0"),
    ):
        trace.write_text(text)
        with pytest.raises(kofn.BadInput, match=problem):
            read_spot_trace(trace)
    with pytest.raises(kofn.BadInput, match="--out must be a file in a directory"):
        run(Fit(**data, model="svm", workers=3, out=tmp_path / "no" / "m.kofn"), quiet=True)
    with pytest.raises(kofn.BadInput, match="--model must be one of"):
        run(Fit(**data, model="tree", workers=3), quiet=True)


def test_bad_tables(tmp_path: Path) -> None:
    def broken(name: str, text: str, problem: str, target: str | None = None) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(kofn.BadInput, match=problem):
            tables.read(tmp_path / name, target, None)

    broken("a.csv", "x,y\n1\n", "must have 2 fields.*line 2 has 1")
    broken("b.csv", "x,y\n", "at least one row")
    broken("c.csv", "x,y\nred,1\n", "'x' of c.csv has .*red")
    broken("d.csv", "x,y\n1,2\n", "--target must be a column.*It has: x, y", "z")
    broken("g.csv", "x;y\n1;2\n", "separated by commas.*';' instead")
    broken("h.csv", "y\n1\n", "a column besides the target; it has 'y' alone")
    broken("i.csv", "1,2\n3,4\n", "must name the columns; it holds numbers only: 1, 2")
    broken("j.csv", "x,y\n1,2\n,3\n", "'x' of j.csv has a missing value in row 2")
    broken("k.csv", "x,y\n1,\n2,a\n", "'y' of k.csv has 1 missing values, the first in row 1")
    broken("l.csv", "x,y\nred,1\n", "has 'red'. Encode")
    broken("m.csv", "x,y,y\n1,2,3\n", "2 columns of m.csv are named 'y'")
    broken("n.csv.gz", "x,y\n1,2\n", "is named as gzip has it")
    broken("o.svm.gz", "1 1:2\n", "is named as gzip has it")
    broken("p.parquet", "x,y\n1,2\n", "is not a Parquet file")
    (tmp_path / "q.csv").write_bytes("x,gr\xf6\xdfe\n1,2\n".encode("latin-1"))
    with pytest.raises(kofn.BadInput, match="must be text in UTF-8; byte 4 is not"):
        tables.read(tmp_path / "q.csv", None, None)
    np.save(tmp_path / "o.npy", np.array([1, "a"], dtype=object))
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(kofn.BadInput, match=r"o\.npy must be one array of numbers or text"):
        tables.read(tmp_path / "X.npy", None, tmp_path / "o.npy")
    broken("e.svm", "this is not it\n", "is not LIBSVM text")
    broken("f.xls", "", "must be .csv, .parquet")
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(kofn.BadInput, match="--labels"):
        tables.read(tmp_path / "X.npy", None, None)
    with pytest.raises(kofn.BadInput, match=r"is not\. Check the path"):
        tables.read(tmp_path / "nowhere.csv", None, None)


def test_blank_lines_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffx,y\n1,2\n\n3,4\n \n\n", encoding="utf-8")
    rows, labels, _ = tables.read(tmp_path / "a.csv", "x", None)
    np.testing.assert_array_equal(rows, [[2.0], [4.0]])
    np.testing.assert_array_equal(labels, [1.0, 3.0])


def test_places_that_take_no_file(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match=r"is a directory\. Name a file in it"):
        check_file(tmp_path, "--out")
    (tmp_path / "link").symlink_to(tmp_path / "no/m.kofn")  # it is written where that leads
    with pytest.raises(kofn.BadInput, match=r"--out must be .* that is there; .*/no is not"):
        check_file(tmp_path / "link", "--out")
    (tmp_path / "file").write_text("")
    with pytest.raises(kofn.BadInput, match=r"is a file\. Name another"):
        places.directory(tmp_path / "file")
    places.directory(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []  # nothing is left behind
    with pytest.raises(kofn.BadInput, match="must be a directory that can be made"):
        places.directory(tmp_path / "file" / "under")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, which takes no files")
def test_a_file_system_that_takes_no_file() -> None:
    with pytest.raises(kofn.BadInput, match="must be where files can be written; /proc takes none"):
        check_file(Path("/proc/m.kofn"), "--out")
    with pytest.raises(kofn.BadInput, match="must be a directory that can be made; /proc/x cannot"):
        reproduce.run("svm", Path("/proc/x"), Path("/"), quiet=True)


@pytest.mark.engine
def test_the_benchmark_compares_with_scikit_learn() -> None:
    result = bench_learn.run(400, 12, workers=2, times=1)
    assert set(result["models"]) == {"Ridge", "LogisticRegression", "LinearSVC", "PCA"}
    assert result["models"]["Ridge"]["of_which_coding_seconds"] == 0.0  # without workers
    for row in result["models"].values():
        assert row["our_error"] < 1e-4  # what was fast was also right
        assert row["their_error"] < 1e-2
    assert all(figure.ratio > 0 for figure in result["figures"].values())
    console = Console(width=120, record=True)
    bench_learn.table(console, result)
    assert "LogisticRegression" in console.export_text()
