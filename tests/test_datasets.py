"""The real data sets come out at the published sizes; made ones of the same form, everywhere."""

from __future__ import annotations

import gzip
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claimed import holds_in
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder
from support import DataFolder

import kofn
from kofn.reproduce import datasets

IDS = (
    "RESOURCE,MGR_ID,ROLE_ROLLUP_1,ROLE_ROLLUP_2,ROLE_DEPTNAME,ROLE_TITLE,ROLE_FAMILY_DESC,"
    "ROLE_FAMILY,ROLE_CODE"
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def made_amazon(where: Path, rows: int = 40) -> np.ndarray:
    table = np.random.default_rng(1).integers(0, 6, (rows, 10)) * 1000
    table[:, 0] = np.arange(rows) % 2
    lines = [f"ACTION,{IDS}", *(",".join(map(str, row)) for row in table)]
    write(where / "amazon_access" / "train.csv.gz", "\n".join(lines) + "\n")
    return table


def made_covtype(where: Path, rows: int = 60) -> np.ndarray:
    rng = np.random.default_rng(2)
    measured = rng.integers(-5, 3000, (rows, 10))
    table = np.hstack([measured, rng.integers(0, 2, (rows, 44)), rng.integers(1, 8, (rows, 1))])
    write(where / "covtype" / "covtype.data", "\n".join(",".join(map(str, r)) for r in table))
    return table


def made_houses(where: Path, rows: int = 30) -> np.ndarray:
    rng = np.random.default_rng(3)
    names = ["bedrooms", *(f"f{i}" for i in range(16)), "sqft_lot15"]
    table = rng.integers(0, 9, (rows, 18)) / 4
    price = 75_000 + 1000 * np.arange(rows)
    lines = [f"id,date,price,{','.join(names)}"]
    lines += [
        f'"7{i}","20141013T000000",{price[i]},'
        + ",".join(f'"{v}"' if v == 1 else str(v) for v in r)
        for i, r in enumerate(table)
    ]
    write(where / "kc_house" / "kc_house_data.csv", "\n".join(lines) + "\n")
    return table


def made_recordings(where: Path, *names: str) -> None:
    """Of each name: four rounds of eight workers, at four loads."""
    rng = np.random.default_rng(0)
    loads: dict[str, Any] = {
        f"{name}_load{load:.3f}": (1 + load + rng.exponential(0.3, (4, 8))).astype(np.float32)
        for name in dict.fromkeys(names)
        for load in (0.0, 0.25, 0.5, 1.0)
    }
    (where / datasets.TIMINGS).parent.mkdir()
    np.savez(where / datasets.TIMINGS, **loads)


def made_digits(where: Path) -> None:
    """MNIST's files, of a few images of noise."""
    rng = np.random.default_rng(0)
    (where / "mnist").mkdir()
    for part, rows in (("train", 12), ("t10k", 10)):
        labels = rng.integers(0, 10, rows, dtype=np.uint8)
        images = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (where / f"mnist/{part}-{kind}-ubyte").write_bytes(head + array.tobytes())


def check(found: datasets.Dataset, fields: np.ndarray, y: np.ndarray) -> None:
    fields = np.hstack([fields, np.ones((len(fields), 1), dtype=fields.dtype)])
    train, test, y_train, y_test = train_test_split(fields, y, test_size=0.2, random_state=0)
    encoder = OneHotEncoder().fit(fields)
    assert np.array_equal(found.X.toarray(), encoder.transform(train).toarray())
    assert np.array_equal(found.X_test.toarray(), encoder.transform(test).toarray())
    assert np.array_equal(found.y, y_train)
    assert np.array_equal(found.y_test, y_test)


def test_amazon_has_ids_and_pairs(tmp_path: Path) -> None:
    table = made_amazon(tmp_path)
    ids = table[:, 1:]
    pairs = [(i, j) for i, j in combinations(range(9), 2) if (i, j) not in ((2, 3), (5, 7))]
    assert len(pairs) == 34
    joined = np.stack([ids[:, i] * 100_000 + ids[:, j] for i, j in pairs], axis=1)
    found = datasets.load("amazon", tmp_path)
    check(found, np.hstack([ids, joined]), 2.0 * table[:, 0] - 1)
    assert (np.diff(found.X.indptr) == 44).all()


def test_covtype_keeps_two_labels(tmp_path: Path) -> None:
    table = made_covtype(tmp_path)
    table = table[table[:, 54] <= 2]
    check(datasets.load("covtype", tmp_path), table[:, :54], np.where(table[:, 54] == 1, -1, 1))


def test_houses_are_prices_in_millions(tmp_path: Path) -> None:
    table = made_houses(tmp_path)
    found = datasets.load("kc_house", tmp_path)
    check(found, table, (75_000 + 1000 * np.arange(30)) / 1e6)
    assert found.regression


def test_what_is_not_there_is_said_with_its_origin(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match=r"amazon_access/train\.csv.*login"):
        datasets.load("amazon", tmp_path)
    with pytest.raises(kofn.BadInput, match=r"--data must hold kc_house"):
        datasets.load("kc_house", tmp_path)
    with pytest.raises(kofn.BadInput, match="amazon, covtype, kc_house"):
        datasets.load("iris", tmp_path)
    with pytest.raises(kofn.BadInput, match=r"covtype\.data or .*\.gz; .* does not.*uci\.edu"):
        datasets.load("covtype", tmp_path)
    (tmp_path / "covtype").mkdir()
    (tmp_path / "covtype" / "covtype.data.gz").write_bytes(gzip.compress(b"1,2")[:-4])
    with pytest.raises(kofn.BadInput, match=r"covtype\.data\.gz cannot be read"):
        datasets.load("covtype", tmp_path)


def test_files_that_are_cut(tmp_path: Path) -> None:
    write(tmp_path / "covtype" / "covtype.data", "1,2,3\n4,5\n")
    with pytest.raises(kofn.BadInput, match="55 numbers a line"):
        datasets.load("covtype", tmp_path)
    write(tmp_path / "amazon_access" / "train.csv", "ACTION,a\n1,2\n3\n")
    with pytest.raises(kofn.BadInput, match="line 3"):
        datasets.load("amazon", tmp_path)
    write(tmp_path / "amazon_access" / "train.csv", "ACTION,a\n1,2\n3,4\n")
    with pytest.raises(kofn.BadInput, match="9 columns of ids"):
        datasets.load("amazon", tmp_path)
    write(tmp_path / "kc_house" / "kc_house_data.csv", "id,b\n1,2\n1,2\n")
    with pytest.raises(kofn.BadInput, match="price and bedrooms"):
        datasets.load("kc_house", tmp_path)


def sizes(data_folder: DataFolder, name: str, folder: str, each: int) -> dict[str, object]:
    """The sizes of a real data set, as results.json has them; `each`: ones in a row."""
    found = datasets.load(name, data_folder(folder))
    assert found.shape == datasets.PUBLISHED[name]
    assert found.X_test.shape[1] == found.shape[1]
    assert found.X.nnz == found.shape[0] * each
    assert (found.X.data == 1).all()
    rows = found.shape[0] + found.X_test.shape[0]
    return {"shapes": {name: list(found.shape)}, "all_rows": {name: rows}}


def test_amazon_has_the_published_size(data_folder: DataFolder) -> None:
    found = sizes(data_folder, "amazon", "amazon_access", 44)
    holds_in("erasurehead: Table 1, Amazon, data points", found)
    holds_in("erasurehead: Table 1, Amazon, dimension", found)


def test_covertype_has_the_published_size(data_folder: DataFolder) -> None:
    """The paper's table has all rows of the two labels, not those of the training part."""
    found = sizes(data_folder, "covtype", "covtype", 55)
    holds_in("erasurehead: Table 1, Covertype, data points", found)
    holds_in("erasurehead: Table 1, Covertype, dimension", found)


def test_kc_housing_has_the_published_size(data_folder: DataFolder) -> None:
    found = sizes(data_folder, "kc_house", "kc_house", 19)
    holds_in("erasurehead: Table 1, KC Housing, data points", found)
    holds_in("erasurehead: Table 1, KC Housing, dimension", found)
