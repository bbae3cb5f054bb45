"""What `kofn fit` takes for numbers and for labels, and what it refuses to guess."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kofn
from kofn.cli import tables
from kofn.cli.fit import Fit, run


def csv(tmp_path: Path, *rows: str) -> Path:
    (tmp_path / "d.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    return tmp_path / "d.csv"


def parquet(tmp_path: Path, **columns: Any) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    return tmp_path / "d.parquet"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["01", "1", "01"], ["01", "1", "01"]),
        (["1", "1.0", "2"], ["1", "1.0", "2"]),
        (["+1", "-1", "+1"], ["+1", "-1", "+1"]),
        (["00501", "10001", "94103"], ["00501", "10001", "94103"]),
        (["1_0", "10", "2"], ["1_0", "10", "2"]),
        (["a", "1", "2"], ["a", "1", "2"]),
        ([" 1", "0", "1"], [1.0, 0.0, 1.0]),
        (["1", "-1", "0.5"], [1.0, -1.0, 0.5]),
        (["1.0", "2.0", "1.0"], [1.0, 2.0, 1.0]),
    ],
)
def test_csv_labels_are_text_unless_all_are_plain_numbers(
    labels: list[str], expected: list[Any], tmp_path: Path
) -> None:
    path = csv(tmp_path, *(f"{i},{label}" for i, label in enumerate(labels)))
    _, y, _ = tables.read(path, None, None)
    assert y.tolist() == expected


def test_numbers_to_predict_may_be_written_in_any_way(tmp_path: Path) -> None:
    path = csv(tmp_path, "1,01.50", "2,+3", "3,1e1")
    _, y, _ = tables.read(path, None, None, classes=False)
    assert y.tolist() == [1.5, 3.0, 10.0]
    path = csv(tmp_path, "1,1", "2,nan", "3,0")
    with pytest.raises(kofn.BadInput, match="every label must be finite"):
        run(Fit(path, "svm", 2, engine="virtual"), quiet=True)


@pytest.mark.parametrize("cell", ["1_000", "１", "0x10", "1,5"])
def test_csv_cells_that_are_no_numbers(cell: str, tmp_path: Path) -> None:
    path = csv(tmp_path, "2,0", f'"{cell}",1')
    with pytest.raises(kofn.BadInput, match=f"'x' of d.csv has '{cell}'. Encode it"):
        tables.read(path, None, None)


DAYS = [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 3)]


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("kind", ["date", "time", "duration", "list", "binary", "null"])
def test_parquet_columns_that_are_no_numbers_are_refused(
    kind: str, name: str, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    column = {
        "date": pa.array(DAYS),
        "time": pa.array(np.arange(3).astype("M8[ns]")),
        "duration": pa.array(np.arange(3).astype("m8[s]")),
        "list": pa.array([[1.0], [2.0], [3.0]]),
        "binary": pa.array([b"1", b"2", b"3"]),
        "null": pa.nulls(3),
    }[kind]
    columns: dict[str, Any] = {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0], name: column}
    path = parquet(tmp_path, **columns)
    with pytest.raises(kofn.BadInput, match=rf"'{name}' of d\.parquet is of type .* or drop it"):
        tables.read(path, "y", None)


def test_parquet_text_stays_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = parquet(tmp_path, x=[1.0, 2.0, 3.0], y=["01", "1", "2"])
    assert tables.read(path, None, None)[1].tolist() == ["01", "1", "2"]
    path = parquet(tmp_path, x=[1, 2], y=pa.array(["a", "b"]).dictionary_encode())
    X, y, _ = tables.read(path, None, None)
    assert (X.tolist(), y.tolist()) == ([[1.0], [2.0]], ["a", "b"])
    path = parquet(tmp_path, x=pa.array([Decimal("1.5"), Decimal("2")]), y=[False, True])
    X, y, _ = tables.read(path, None, None)
    assert (X.tolist(), y.tolist()) == ([[1.5], [2.0]], [0.0, 1.0])
    path = parquet(tmp_path, x=["1", "2"], y=[0, 1])
    with pytest.raises(kofn.BadInput, match=r"'x' of d\.parquet has '1'\. Encode it"):
        tables.read(path, None, None)
    path = parquet(tmp_path, x=[1, 2], y=["a", None])
    with pytest.raises(kofn.BadInput, match="has 1 missing values, the first in row 2"):
        tables.read(path, None, None)
    for columns in ({"x": [1, None], "y": [0, 1]}, {"x": [1, 2], "y": [0, None]}):
        path = parquet(tmp_path, **columns)
        with pytest.raises(kofn.BadInput, match="1 missing, the first in row 2"):
            tables.read(path, None, None)
    path = parquet(tmp_path, x=pa.array([], pa.float64()), y=pa.array([], pa.float64()))
    with pytest.raises(kofn.BadInput, match="2 columns and 0 rows"):
        tables.read(path, None, None)


def test_labels_beside_a_table(tmp_path: Path) -> None:
    path = csv(tmp_path, "1,5", "2,6", "3,7")
    np.save(tmp_path / "labels.npy", np.array([0, 1, 0]))
    X, y, _ = tables.read(path, None, tmp_path / "labels.npy")
    assert X.tolist() == [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]  # no column is the target
    assert y.tolist() == [0, 1, 0]
    with pytest.raises(kofn.BadInput, match="got both"):
        tables.read(path, "y", tmp_path / "labels.npy")
    (tmp_path / "d.svm").write_text("1 1:2\n0 1:3\n")
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(kofn.BadInput, match=r"has its own labels. Leave --labels out"):
        tables.read(tmp_path / "d.svm", None, tmp_path / "labels.npy")
    for name, labels in (("d.svm", None), ("X.npy", tmp_path / "labels.npy")):
        with pytest.raises(kofn.BadInput, match="--target names a column of CSV or Parquet"):
            tables.read(tmp_path / name, "y", labels)
    for bad in (np.arange(3).astype("M8[D]"), np.arange(3) * 1j):
        np.save(tmp_path / "labels.npy", bad)
        with pytest.raises(kofn.BadInput, match="labels must be numbers or text"):
            run(Fit(path, "svm", 2, engine="virtual", labels=tmp_path / "labels.npy"), quiet=True)


@pytest.mark.parametrize("index", [2_000_000_000, 3_000_000_000, 10**20])
def test_a_libsvm_column_that_no_vector_can_have(index: int, tmp_path: Path) -> None:
    from kofn.arrays.sources import open_source

    path = tmp_path / "d.svm"
    path.write_text(f"1 1:0.5 {index}:1\n0 2:0.5\n")
    with pytest.raises(kofn.BadInput, match=r"column's number must be below|too large"):
        tables.read(path, None, None)
    with pytest.raises(kofn.BadInput, match=r"column's number must be below|too large"):
        open_source(path)


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.npy", "d.svm", "d.csv.gz", "d.svm.gz"])
def test_directories_and_empty_files(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([0, 1]))
    labels = tmp_path / "labels.npy" if name == "d.npy" else None
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(kofn.BadInput, match=name) as caught:
        run(Fit(tmp_path / name, "svm", 2, engine="virtual", labels=labels), quiet=True)
    assert "\n" not in str(caught.value)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(kofn.BadInput, match="is a directory"):
        tables.read(tmp_path / name, None, labels)
    np.save(tmp_path / "X.npy", np.ones((2, 2)))
    with pytest.raises(kofn.BadInput, match="is a directory"):
        tables.read(tmp_path / "X.npy", None, tmp_path / name)


@pytest.mark.parametrize(
    "values",
    [[2**53 + i % 3 for i in range(30)], [2**63 + i % 3 for i in range(30)], [0, 1, 1] * 10],
)
def test_whole_numbers_of_parquet_stay_what_they_are(tmp_path: Path, values: list[int]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kind = pa.uint64() if max(values) > 2**62 else pa.int64()
    table = pa.table({"a": pa.array([0.5] * 30), "label": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    _, y, _ = tables.read(tmp_path / "a.parquet", None, None)
    assert [int(v) for v in y] == values
    _, numbers, _ = tables.read(tmp_path / "a.parquet", None, None, classes=False)
    assert numbers.dtype == np.float64


def test_a_target_that_is_no_class_is_refused(tmp_path: Path) -> None:
    lines = [f"{i},{i / 7 + 0.1}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    with pytest.raises(kofn.BadInput, match=r"takes classes; the target has 20 .* --model ridge"):
        run(Fit(tmp_path / "a.csv", "logistic", workers=2, k=1), quiet=True)


def test_a_zero_byte_is_no_part_of_a_number(tmp_path: Path) -> None:
    path = csv(tmp_path, "1,0", "0.35\0,1")
    with pytest.raises(kofn.BadInput, match=r"line 3 has a zero byte"):
        tables.read(path, None, None)
